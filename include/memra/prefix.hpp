// CachePrefix: a published prompt. Rows, recurrent state and logits at one boundary, ready for another cache.
#pragma once

#include <cstddef>
#include <memra/detail/queued_work.hpp>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <memra/model_config.hpp>
#include <memra/plan.hpp>
#include <memra/views.hpp>
#include <optional>
#include <utility>
#include <vector>

namespace memra {

namespace detail {
template <class Dev>
struct PrefixIo;
template <class Dev>
struct HandoverIo;
}  // namespace detail

/// Rows [0, pos) of every attention layer, conv and ssm at pos, and the logits parked there, if any.
///
/// Owns its bytes: it may outlive the cache it came from, and any number of caches can be made from it. The devices it
/// was exported from must be alive while Cache::from_prefix reads it.
template <class Dev>
class CachePrefix {
 public:
  CachePrefix(CachePrefix&&) noexcept = default;
  /// By way of a temporary: a vector assigned to itself is emptied.
  CachePrefix& operator=(CachePrefix&& other) noexcept {
    CachePrefix taken(std::move(other));
    std::swap(config_, taken.config_);
    std::swap(plan_, taken.plan_);
    std::swap(scan_, taken.scan_);
    devices_.swap(taken.devices_);
    std::swap(logits_, taken.logits_);
    std::swap(work_, taken.work_);
    return *this;
  }

  /// The publication boundary: tokens it stands for; 0 for a moved-from one.
  std::size_t pos() const noexcept { return devices_.empty() ? 0 : plan_.max_ctx; }
  /// Chunked if a step of that class is behind the state it holds: caches made of it are of that class.
  ScanClass scan_class() const noexcept { return scan_; }
  const ModelConfig& config() const noexcept { return config_; }
  /// Layout of the bytes held: that of a cache of pos() rows.
  const Plan& plan() const noexcept { return plan_; }
  bool has_logits() const noexcept { return !devices_.empty() && logits_.has_value(); }

 private:
  friend struct detail::PrefixIo<Dev>;
  friend struct detail::HandoverIo<Dev>;
  CachePrefix() = default;

  struct DeviceBytes {
    Dev* dev = nullptr;
    std::optional<typename Dev::Buffer> rows;
    std::optional<typename Dev::Buffer> state;
  };

  /// Where the slabs are: (device, kind) -> address.
  auto slabs() const noexcept {
    return [this](std::size_t device, SlabKind kind) {
      return (kind == SlabKind::rows ? devices_[device].rows : devices_[device].state)->data();
    };
  }

  ModelConfig config_;
  Plan plan_;
  ScanClass scan_ = ScanClass::sequential;
  std::vector<DeviceBytes> devices_;
  std::optional<typename Dev::Buffer> logits_;  // [n_vocab] f32 on the last stage's device
  detail::QueuedWork work_;                     // what it was copied with
};

}  // namespace memra
