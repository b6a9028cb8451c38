// Rule S5 where work fails after the call that queued it has returned: for a Make with fail_late(), see report.hpp.
#pragma once

#include <algorithm>
#include <conformance/bytes.hpp>
#include <conformance/report.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <string>
#include <utility>
#include <vector>

namespace memra_conformance {

namespace detail {

/// Listens to every call from the failure on: one may report it, and of a lost device all others must say so.
class LateReports {
 public:
  explicit LateReports(Report& r) : r_(&r) {}

  void hears(const char* call, const memra::Status& s) {
    if (lost_) {
      r_->that(s.kind() == memra::ErrorKind::device_lost, "the device is lost, but a call said: " + s.message());
      return;
    }
    if (s.ok()) return;
    r_->that(!std::exchange(reported_, true), "it was reported before, and again: " + s.message());
    r_->that(s.asynchronous(), "not named as asynchronous: " + s.message());
    r_->that(std::strcmp(s.operation(), call) == 0, std::string(call) + " reports as " + s.operation());
    r_->that(std::strlen(s.text()) >= 10, "text() is no sentence");
    lost_ = s.kind() == memra::ErrorKind::device_lost;
  }
  bool reported() const { return reported_; }
  bool lost() const { return lost_; }

 private:
  Report* r_;
  bool reported_ = false;
  bool lost_ = false;
};

/// Which call comes first after the failure cannot be told from outside, so any may report. The one that waits is the
/// last that can.
/// @param others    whether calls that need not wait come between
/// @param download  whether it is download that waits, not synchronize
template <class Make>
void fails_late(Report& r, bool others, bool download) {
  Made<Make> made;
  auto& dev = made.dev();
  auto b = dev.zeros(512);
  if (!r.that(b, "zeros") || !r.that(dev.synchronize(), "synchronize before the failure")) return;
  std::byte* const at = b->data();
  Bytes host(64);
  const std::int32_t value = 1;
  typename DevOf<Make>::Event e;

  LateReports late(r);
  made.make().fail_late();
  late.hears("fill", dev.fill(at, std::byte{1}, 256));
  if (others) {
    late.hears("copy", dev.copy(at + 256, at, 64));
    late.hears("move", dev.move(at + 256, at, 64));
    late.hears("upload", dev.upload(at + 256, host.data(), 64));
    late.hears("store_i32", dev.store_i32(reinterpret_cast<std::int32_t*>(at + 256), &value, 1));
    late.hears("alloc", dev.alloc(64).status());
    late.hears("publish", dev.publish(e));
    late.hears("wait", dev.wait(e));
  }
  const std::string waits = download ? "download" : "synchronize";
  late.hears(waits.c_str(), download ? dev.download(host.data(), at, 64) : dev.synchronize());
  if (!r.that(late.reported(), "nobody was told: " + waits + " waited for work that failed, and said ok")) return;
  late.hears("synchronize", dev.synchronize());
  late.hears("fill", dev.fill(at, std::byte{3}, 512));
  if (!late.lost()) r.that(all(read(dev, at, 512), 512, std::byte{3}), "the device does not work any more");
}

}  // namespace detail

template <class Make>
void late_properties(std::vector<Property>& out) {
  constexpr const char* no_hook = "there is no fail_late() to make queued work fail with (see report.hpp)";
  out.push_back(
      {"S5 work that fails late is reported once, at the latest by the call that waits for it", [](Report& r) {
         if constexpr (can_fail_late<Make>) {
           for (const bool others : {false, true}) {
             for (const bool download : {false, true}) detail::fails_late<Make>(r, others, download);
           }
         } else {
           r.not_checked(no_hook);
         }
       }});
  out.push_back({"S5 a work log names the batch of work that failed late, and none that was waited for", [](Report& r) {
                   if constexpr (!can_fail_late<Make>) {
                     r.not_checked(no_hook);
                   } else if constexpr (!memra::WorkLogDev<DevOf<Make>>) {
                     r.not_checked(no_work_log);
                   } else {
                     Made<Make> made;
                     auto& dev = made.dev();
                     const auto log = dev.work_log();
                     if (!log) return r.not_checked(no_work_log);
                     auto b = dev.zeros(64);
                     if (!r.that(b, "zeros") || !r.that(dev.synchronize(), "synchronize")) return;
                     const auto batch = log->batch;
                     const auto failed = [&](std::uint64_t one) {
                       return std::find(log->failed.begin(), log->failed.end(), one) != log->failed.end();
                     };
                     made.make().fail_late();
                     detail::LateReports late(r);
                     late.hears("fill", dev.fill(b->data(), std::byte{1}, 64));
                     late.hears("synchronize", dev.synchronize());
                     r.that(failed(batch), "it does not name the batch that failed");
                     r.that(log->failed.empty() || log->failed.front() >= batch, "it names one that went well before");
                     if (late.lost()) return;
                     const auto next = log->batch;
                     r.that(dev.fill(b->data(), std::byte{2}, 64), "fill");
                     r.that(dev.synchronize(), "synchronize");
                     r.that(next > batch && !failed(next), "it names one that went well afterwards");
                   }
                 }});
}

}  // namespace memra_conformance
