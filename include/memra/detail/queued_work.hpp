// QueuedWork: what something was queued with, so that it can say whether it may be believed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <memra/kv_dev.hpp>
#include <utility>
#include <vector>

namespace memra::detail {

/// Empty, and never failed, on devices that do not say (WorkLogDev).
class QueuedWork {
 public:
  void reserve(std::size_t devices) { parts_.reserve(devices); }
  void clear() noexcept {
    parts_.clear();
    failed_ = false;
  }
  /// What is queued on `dev` by now and was not waited for.
  template <class Dev>
  void add(Dev& dev) {
    note(work_log_of(dev), false);
  }
  /// The same, and what will be queued before close().
  template <class Dev>
  void open(Dev& dev) {
    note(work_log_of(dev), true);
  }
  void close() noexcept {
    for (Part& p : parts_) p.last = std::min(p.last, p.log->batch);
  }
  bool failed() const noexcept {
    return failed_ || std::any_of(parts_.begin(), parts_.end(), [](const Part& p) { return p.failed(); });
  }

 private:
  static constexpr std::uint64_t not_yet = std::numeric_limits<std::uint64_t>::max();

  /// Batches [first, last] of one device. One range is enough: when another one begins, either this one still runs, and
  /// they are one, or it is known how it ended.
  struct Part {
    std::shared_ptr<const WorkLog> log;
    std::uint64_t first = 0;
    std::uint64_t last = 0;

    bool failed() const noexcept {
      const auto at = std::lower_bound(log->failed.begin(), log->failed.end(), first);
      return at != log->failed.end() && *at <= last;
    }
  };

  void note(std::shared_ptr<const WorkLog> log, bool open) {
    if (!log) return;
    const std::uint64_t now = log->batch;
    const std::uint64_t last = open ? not_yet : now;
    const auto p = std::find_if(parts_.begin(), parts_.end(), [&](const Part& part) { return part.log == log; });
    if (p == parts_.end()) {
      parts_.push_back({std::move(log), now, last});
      return;
    }
    if (p->last < now) {
      failed_ = failed_ || p->failed();
      p->first = now;
    }
    p->last = std::max(p->last, last);
  }

  std::vector<Part> parts_;  // one per device
  bool failed_ = false;
};

}  // namespace memra::detail
