// CaptureDev: devices that record what is queued and replay it.
#pragma once

#include <concepts>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <type_traits>

namespace memra {

/// Optional: graph capture.
///
/// 1. Between `begin_capture` and `end_capture` operations and launches of this device object are recorded, not run.
///    Addresses and sizes are baked; what varies from replay to replay is data on the device (S4).
/// 2. `alloc`, `zeros`, `upload`, `download` and `synchronize` are refused inside (bad_state, the capture lives on);
///    `store_i32` of a few values is recorded with its values.
/// 3. A `Graph` is move-only and may outlive the device object, but not the memory it was recorded on: whatever it
///    bakes must live as long as it may be replayed.
/// 4. `replay` queues the recorded work in stream order, any number of times.
template <class D>
concept CaptureDev = KvDev<D> && requires {
  typename D::Graph;
} && std::movable<typename D::Graph> && !std::copyable<typename D::Graph> &&
    requires(D & d, const typename D::Graph& g) {
  { d.begin_capture() }
  noexcept->std::same_as<Status>;
  { d.end_capture() }
  noexcept->std::same_as<Result<typename D::Graph>>;
  { d.replay(g) }
  noexcept->std::same_as<Status>;
};

}  // namespace memra
