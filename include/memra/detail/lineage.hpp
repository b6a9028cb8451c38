// Who is whose, and what is stale: the control block that a cache shares with its snapshots.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <memra/detail/queued_work.hpp>
#include <memra/views.hpp>
#include <utility>
#include <vector>

namespace memra::detail {

/// What a snapshot and its cache both know about the snapshot.
struct SnapRecord {
  std::size_t pos = 0;
  ScanClass scan = ScanClass::sequential;  ///< of the state it holds
  bool written = false;                    ///< false while, and after a failure of, a snapshot or snapshot_into
  bool stale = false;                      ///< the branch it belonged to was given up
  QueuedWork work;  ///< its copies, all that was queued before them and not waited for, and what wrote its rows again

  void begin() noexcept {
    written = false;
    work.clear();
  }
  /// Every copy is queued on these devices.
  template <class Devices>
  void complete(std::size_t at, ScanClass by, const Devices& devices) noexcept {
    for (const auto& d : devices) work.add(*d.dev);
    pos = at;
    scan = by;
    stale = false;
    written = true;
  }
};

/// One per cache. Its address is the cache's identity: snapshots share ownership, so it is never used again for
/// another.
class Lineage {
 public:
  /// Registers a new record; drops those whose snapshots are gone.
  std::shared_ptr<SnapRecord> add(std::size_t devices) {
    std::erase_if(records_, [](const std::weak_ptr<SnapRecord>& r) { return r.expired(); });
    auto record = std::make_shared<SnapRecord>();
    record->work.reserve(devices);
    records_.push_back(record);
    return record;
  }

  /// Rows from `from` on, which snapshots beyond it count on, may be written again by what is queued on these devices,
  /// and until close() if `open`.
  template <class Devices>
  void rewrite(std::size_t from, const Devices& devices, bool open) noexcept {
    for (const std::weak_ptr<SnapRecord>& r : records_) {
      const auto record = r.lock();
      if (!record || record->pos <= from) continue;
      for (const auto& d : devices) open ? record->work.open(*d.dev) : record->work.add(*d.dev);
      open_ = open_ || open;
    }
  }
  void close() noexcept {
    if (!std::exchange(open_, false)) return;  // as every step ends but those of a replay
    for (const std::weak_ptr<SnapRecord>& r : records_) {
      if (const auto record = r.lock()) record->work.close();
    }
  }

  /// The cache's committed rows now end at `end`: what was taken beyond it is stale for ever.
  void cut(std::size_t end) noexcept {
    for (const std::weak_ptr<SnapRecord>& r : records_) {
      if (const auto record = r.lock(); record && record->pos > end) record->stale = true;
    }
  }

 private:
  std::vector<std::weak_ptr<SnapRecord>> records_;
  bool open_ = false;  // some record waits for close()
};

}  // namespace memra::detail
