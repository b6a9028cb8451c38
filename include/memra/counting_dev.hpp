// CountingDev: a device that counts what is asked of it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <memra/detail/wrap_dev.hpp>
#include <memra/dev_call.hpp>
#include <memra/error.hpp>
#include <memra/host_dev.hpp>
#include <memra/kv_dev.hpp>

namespace memra {

/// What was asked of a device and went well. Plain values: copy them to keep a snapshot.
struct DevCounters {
  struct Launches {
    const char* name = nullptr;
    std::size_t n = 0;
  };
  /// Names that are told apart; launches of further ones are counted in calls(DevOp::launch) only.
  static constexpr std::size_t max_names = 64;

  std::array<std::size_t, n_dev_ops> calls_of{};  ///< by DevOp
  std::array<std::size_t, n_dev_ops> bytes_of{};  ///< by DevOp; 0 for launch, synchronize, publish, wait
  std::array<Launches, max_names> launches{};     ///< in order of first appearance, then empty ones
  std::size_t frees = 0;                          ///< buffers that were freed
  std::size_t live = 0;                           ///< buffers not freed yet
  std::size_t live_bytes = 0;
  std::size_t peak_bytes = 0;  ///< most live_bytes at any time since the last reset

  std::size_t calls(DevOp op) const noexcept { return calls_of[static_cast<std::size_t>(op)]; }
  std::size_t bytes(DevOp op) const noexcept { return bytes_of[static_cast<std::size_t>(op)]; }
  /// alloc and zeros.
  std::size_t allocations() const noexcept { return calls(DevOp::alloc) + calls(DevOp::zeros); }
  /// Copies between device memory of any kind: copy, move, copy_batch (one per call) and copy_peer.
  std::size_t copies() const noexcept {
    return calls(DevOp::copy) + calls(DevOp::move) + calls(DevOp::copy_batch) + calls(DevOp::copy_peer);
  }
  std::size_t copied_bytes() const noexcept {
    return bytes(DevOp::copy) + bytes(DevOp::move) + bytes(DevOp::copy_batch) + bytes(DevOp::copy_peer);
  }
  /// Uploads and downloads. store_i32 is not among them: it carries positions, not state.
  std::size_t host_copies() const noexcept { return calls(DevOp::upload) + calls(DevOp::download); }
  std::size_t host_copied_bytes() const noexcept { return bytes(DevOp::upload) + bytes(DevOp::download); }
  /// Launches of one kernel.
  std::size_t launched(const char* name) const noexcept {
    for (const Launches& l : launches) {
      if (l.name == nullptr) return 0;
      if (std::strcmp(l.name, name) == 0) return l.n;
    }
    return 0;
  }
  /// Everything asked of the device, frees not included. Zero proves that an operation never touched it.
  std::size_t total_calls() const noexcept {
    std::size_t n = 0;
    for (const std::size_t c : calls_of) n += c;
    return n;
  }
};

namespace detail {

struct CountingPolicy : WrapPolicy {
  DevCounters n;

  template <class Dev>
  Status after(Dev&, const DevCall& c) noexcept {
    ++n.calls_of[static_cast<std::size_t>(c.op)];
    n.bytes_of[static_cast<std::size_t>(c.op)] += c.bytes;
    if (c.op != DevOp::launch) return {};
    for (DevCounters::Launches& l : n.launches) {
      if (l.name == nullptr) l.name = c.name;
      if (std::strcmp(l.name, c.name) != 0) continue;
      ++l.n;
      break;
    }
    return {};
  }
  template <class Dev>
  Status born(Dev&, const WrapBlock& at, bool) noexcept {
    ++n.live;
    n.live_bytes += at.size;
    n.peak_bytes = std::max(n.peak_bytes, n.live_bytes);
    return {};
  }
  template <class Dev>
  void dying(Dev*, const WrapBlock& at) noexcept {
    ++n.frees;
    --n.live;
    n.live_bytes -= at.size;
  }
};

}  // namespace detail

/// A KvDev over `Dev` that counts calls, bytes, launches by name, live and peak memory. Calls that failed, and calls
/// that do nothing (zero bytes, empty grid), are not counted. Kernels count as launches under their op's name.
///
/// To prove that something costs nothing: `dev.reset(); operation(); REQUIRE(dev.counters().allocations() == 0);`
template <class Dev>
class CountingDev : public detail::WrapDev<Dev, detail::CountingPolicy> {
  using Base = detail::WrapDev<Dev, detail::CountingPolicy>;

 public:
  using Base::Base;

  const DevCounters& counters() const noexcept { return this->policy().n; }
  /// The same, for looking at what is left when the device is gone.
  std::shared_ptr<const DevCounters> shared_counters() const noexcept {
    return {this->shared_policy(), &this->policy().n};
  }

  /// Zeroes every count. Memory that is live stays live, and the peak starts from it.
  void reset() noexcept {
    DevCounters& n = this->policy().n;
    DevCounters fresh;
    fresh.live = n.live;
    fresh.live_bytes = fresh.peak_bytes = n.live_bytes;
    n = fresh;
  }
};

static_assert(check_kv_dev<CountingDev<HostDev>>());

}  // namespace memra
