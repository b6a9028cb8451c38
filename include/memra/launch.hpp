// The one door every kernel goes through: launch(dev, name, grid, body).
#pragma once

#include <concepts>
#include <cstddef>
#include <memra/error.hpp>

namespace memra {

/// Number of independent work items along three axes.
struct Grid {
  std::size_t x = 1;
  std::size_t y = 1;
  std::size_t z = 1;
};

/// One work item: 0 <= x < grid.x and so on.
struct Item {
  std::size_t x = 0;
  std::size_t y = 0;
  std::size_t z = 0;
};

namespace detail {
struct ProbeBody {
  void operator()(const Item&) const noexcept {}
};
}  // namespace detail

/// A device that runs kernels of ours or of an engine.
///
/// 1. `dev.launch(name, grid, body)` runs `body(item)` once for every item of the grid, in stream order;
/// 2. items run in any order, possibly at the same time, and do not communicate;
/// 3. `body` is trivially copyable and holds only values and pointers into this device's memory;
/// 4. `name` is a static string; wrapper devices count and fail launches by it;
/// 5. an empty grid enqueues nothing and is ok.
template <class D>
concept LaunchDev = requires(D& dev, const char* name, Grid grid, const detail::ProbeBody& body) {
  { dev.launch(name, grid, body) }
  noexcept->std::same_as<Status>;
};

/// Runs `body` for every item of `grid`, ordered on the device's stream. See LaunchDev.
template <LaunchDev D, class Body>
Status launch(D& dev, const char* name, Grid grid, const Body& body) noexcept {
  return dev.launch(name, grid, body);
}

}  // namespace memra
