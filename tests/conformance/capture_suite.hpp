// CaptureDev (memra/capture.hpp) by the rules S4 and S9: what is refused inside a capture, what is recorded, replays.
#pragma once

#include <algorithm>
#include <conformance/bytes.hpp>
#include <conformance/report.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/capture.hpp>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <string>
#include <utility>
#include <vector>

namespace memra_conformance {

namespace detail {

/// A graph that baked an upload would read the caller's memory at every replay; one that ran it, or waited, would do at
/// once what the work around it does later.
template <class Make>
void refuses_inside_a_capture(Report& r) {
  Made<Make> made;
  auto& dev = made.dev();
  auto b = dev.zeros(768);
  if (!r.that(b, "zeros") || !r.that(dev.synchronize(), "synchronize")) return;
  std::byte* const at = b->data();
  Bytes host(256, std::byte{7});
  const auto refused = [&](const memra::Status& s, const char* call) {
    r.that(s.kind() == memra::ErrorKind::bad_state, std::string(call) + " inside a capture: " + s.message());
  };
  if (!r.that(dev.begin_capture(), "begin_capture")) return;
  r.that(dev.fill(at, std::byte{1}, 256), "fill inside a capture");
  refused(dev.upload(at + 256, host.data(), 256), "upload");
  refused(dev.alloc(64).status(), "alloc");
  refused(dev.zeros(64).status(), "zeros");
  refused(dev.download(host.data(), at, 256), "download");
  refused(dev.synchronize(), "synchronize");
  r.that(dev.fill(at + 512, std::byte{2}, 256), "fill after what was refused");
  auto graph = dev.end_capture();
  if (!r.that(graph, "end_capture, after what was refused")) return;
  r.that(all(host, 256, std::byte{7}), "a refused download wrote to the host");
  r.that(all(read(dev, at, 768), 768, std::byte{0}), "something ran at once inside a capture");
  r.that(dev.replay(*graph), "replay");
  Bytes want(768);
  std::fill_n(want.begin(), 256, std::byte{1});
  std::fill_n(want.begin() + 512, 256, std::byte{2});
  r.that(read(dev, at, 768) == want, "a replay does not do what was recorded, and that only");
}

/// What travels with a call is baked; what lies on the device is read by each replay.
template <class Make>
void replays_in_order(Report& r) {
  Made<Make> made;
  auto& dev = made.dev();
  auto src = dev.zeros(256);
  auto dst = dev.zeros(512);
  if (!r.that(src, "zeros") || !r.that(dst, "zeros")) return;
  std::vector<std::int32_t> values(4, -5);
  if (!r.that(dev.begin_capture(), "begin_capture")) return;
  r.that(dev.copy(dst->data(), src->data(), 256), "copy");
  r.that(dev.move(dst->data() + 256, dst->data() + 4, 200), "move");
  r.that(dev.store_i32(reinterpret_cast<std::int32_t*>(dst->data() + 496), values.data(), 4), "store_i32");
  std::fill(values.begin(), values.end(), 0);
  auto recorded = dev.end_capture();
  if (!r.that(recorded, "end_capture")) return;
  const auto graph = *std::move(recorded);
  for (std::uint64_t round = 1; round <= 3; ++round) {
    const Bytes host = Numbers(round).bytes(256);
    r.that(dev.fill(dst->data(), std::byte{0}, 512), "fill before a replay");
    r.that(dev.upload(src->data(), host.data(), 256), "upload before a replay");
    r.that(dev.replay(graph), "replay");
    r.that(dev.fill(dst->data(), std::byte{9}, 2), "fill behind a replay");
    Bytes want(512);
    std::copy(host.begin(), host.end(), want.begin());
    std::copy_n(host.begin() + 4, 200, want.begin() + 256);
    const std::int32_t stored[4] = {-5, -5, -5, -5};
    std::memcpy(want.data() + 496, stored, sizeof stored);
    std::fill_n(want.begin(), 2, std::byte{9});
    r.that(read(dev, dst->data(), 512) == want, "replay " + std::to_string(round) + " left other bytes");
  }
}

}  // namespace detail

template <class Make>
void capture_properties(std::vector<Property>& out) {
  constexpr const char* no_capture = "the device has no begin_capture, end_capture and replay (CaptureDev)";
  out.push_back({"S9 inside a capture upload is refused, like all that waits or allocates, and the capture lives on",
                 [](Report& r) {
                   if constexpr (memra::CaptureDev<DevOf<Make>>) {
                     detail::refuses_inside_a_capture<Make>(r);
                   } else {
                     r.not_checked(no_capture);
                   }
                 }});
  out.push_back(
      {"S4 a replay does what was recorded, in stream order, with what the device holds by then", [](Report& r) {
         if constexpr (memra::CaptureDev<DevOf<Make>>) {
           detail::replays_in_order<Make>(r);
         } else {
           r.not_checked(no_capture);
         }
       }});
}

}  // namespace memra_conformance
