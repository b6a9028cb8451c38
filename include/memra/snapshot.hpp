// CacheSnapshot: the recurrent state of a cache at one position, owned by itself.
#pragma once

#include <cstddef>
#include <memory>
#include <memra/detail/lineage.hpp>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <memra/views.hpp>
#include <utility>
#include <vector>

namespace memra {

template <class Dev>
class Cache;

/// A deep copy of everything a cache changes in place (conv and ssm, as one unit) and the position it was taken at.
///
/// Owns its bytes, so it may outlive the cache. Made by Cache::snapshot, refreshed by Cache::snapshot_into, used by
/// Cache::rollback and Cache::export_prefix of the same cache only.
template <class Dev>
class CacheSnapshot {
 public:
  CacheSnapshot(CacheSnapshot&&) noexcept = default;
  /// By way of a temporary: assigning a snapshot to itself keeps it whole (a vector assigned to itself is emptied).
  CacheSnapshot& operator=(CacheSnapshot&& other) noexcept {
    CacheSnapshot taken(std::move(other));
    lineage_.swap(taken.lineage_);
    record_.swap(taken.record_);
    state_.swap(taken.state_);
    return *this;
  }

  /// Committed tokens when it was taken; 0 for a moved-from one.
  std::size_t pos() const noexcept { return record_ ? record_->pos : 0; }

  /// Chunked if a step of that class is behind the state it holds; a rollback to it restores that, too.
  ScanClass scan_class() const noexcept { return record_ ? record_->scan : ScanClass::sequential; }

  /// True if it holds a whole state of a branch its cache has not given up, as far as is known by now: on a device that
  /// says so (WorkLogDev), not if what was queued with its copy or before it has failed since, or a replay that wrote
  /// its rows again.
  bool valid() const noexcept { return record_ && record_->written && !record_->stale && !record_->work.failed(); }

  /// Device bytes held.
  std::size_t bytes() const noexcept {
    std::size_t n = 0;
    for (const auto& b : state_) n += b.size();
    return n;
  }

 private:
  friend class Cache<Dev>;
  CacheSnapshot() = default;

  /// Refuses a snapshot that the cache of this lineage did not make.
  Status made_by(const detail::Lineage& lineage, const char* call) const noexcept {
    if (!record_) return Status::failure(ErrorKind::bad_argument, call, 0, 0, "the snapshot is empty (moved-from)");
    if (lineage_.get() == &lineage) return {};
    return Status::failure(ErrorKind::bad_argument, call, 0, 0, "the snapshot was made by another cache");
  }

  /// Refuses also a snapshot that is not whole, or whose branch was given up.
  Status usable_for(const detail::Lineage& lineage, const char* call) const noexcept {
    if (Status s = made_by(lineage, call); !s) return s;
    if (!record_->written) {
      return Status::failure(ErrorKind::bad_state, call, 0, 0,
                             "the snapshot is half-written: its last snapshot_into failed");
    }
    if (record_->work.failed()) {
      return Status::failure(
          ErrorKind::bad_state, call, 0, 0,
          "the snapshot at position %zu is lost: work that was queued with its copy, or that wrote its rows "
          "again, failed later",
          record_->pos);
    }
    if (!record_->stale) return {};
    return Status::failure(ErrorKind::bad_state, call, 0, 0,
                           "the snapshot at position %zu is stale: the cache was rolled back or reset below it",
                           record_->pos);
  }

  std::shared_ptr<detail::Lineage> lineage_;
  std::shared_ptr<detail::SnapRecord> record_;
  std::vector<typename Dev::Buffer> state_;  // [devices] the state slab of each
};

}  // namespace memra
