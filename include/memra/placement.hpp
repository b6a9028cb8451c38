// Placement: which stage runs which layers, and on which device object.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memra/error.hpp>
#include <vector>

namespace memra {

/// Which stage runs which layers, and which device object each stage names.
struct Placement {
  std::vector<std::size_t> fence;  ///< [stages + 1]: stage s runs layers [fence[s], fence[s+1]); starts with 0
  std::vector<std::size_t>
      device_of;  ///< [stages]: index of the stage's device object, below stages; equal: shared slabs
  std::vector<std::size_t> plane_gap;  ///< [devices]: bytes between planes (plane_gap_of); empty means 0

  static Placement single(std::size_t n_layers, std::size_t gap = 0) { return {{0, n_layers}, {0}, {gap}}; }
};

/// Default fence: stage s starts at s * n_layers / stages. Empty for 0 stages, which every user of a fence refuses.
inline std::vector<std::size_t> pp_cuts(std::size_t n_layers, std::size_t stages) {
  std::vector<std::size_t> fence;
  if (stages == 0) return fence;
  for (std::size_t s = 0; s <= stages; ++s) {
    // s * n / stages without the product, which could wrap: n = a * stages + b.
    fence.push_back(s * (n_layers / stages) + s * (n_layers % stages) / stages);
  }
  return fence;
}

/// Stage that runs layer `il`: the last whose first layer is <= il; layers past the fence go to the last stage.
inline std::size_t stage_of(const Placement& placement, std::size_t il) noexcept {
  const auto end = placement.fence.end() - 1;
  const auto after = std::upper_bound(placement.fence.begin(), end, il);
  return static_cast<std::size_t>(after - placement.fence.begin()) - 1;
}

namespace detail {

inline Status check_placement(const Placement& p, std::size_t n_layers) noexcept {
  const auto bad = [](const char* s) { return Status::failure(ErrorKind::bad_argument, "plan", 0, 0, "%s", s); };
  if (p.device_of.empty() || p.fence.size() != p.device_of.size() + 1) {
    return Status::failure(ErrorKind::bad_argument, "plan", 0, 0,
                           "the fence has %zu entries for %zu stages; expected stages + 1", p.fence.size(),
                           p.device_of.size());
  }
  if (p.fence.front() != 0) return bad("the fence must start with layer 0");
  if (const auto down = std::is_sorted_until(p.fence.begin(), p.fence.end()); down != p.fence.end()) {
    return Status::failure(ErrorKind::bad_argument, "plan", 0, 0,
                           "the fence goes from layer %zu back to %zu of %zu layers; it must not decrease", *(down - 1),
                           *down, n_layers);
  }
  if (p.fence.back() > n_layers) {
    return Status::failure(ErrorKind::bad_argument, "plan", 0, 0, "the fence ends at layer %zu of %zu", p.fence.back(),
                           n_layers);
  }
  for (const std::size_t device : p.device_of) {
    if (device >= p.device_of.size()) {
      return Status::failure(ErrorKind::bad_argument, "plan", 0, 0,
                             "a stage names device %zu; expected an index below the %zu stages", device,
                             p.device_of.size());
    }
  }
  return {};
}

}  // namespace detail
}  // namespace memra
