// The one order of every horizontal sum, for kernels without vector registers.
#pragma once

#include <cstddef>
#include <memra/detail/platform.hpp>
#include <memra/detail/strict_fp.hpp>

namespace memra::detail {

/// Sixteen accumulators from +0: element i is added to lane i mod 16; then lane j takes lane j + 8, j + 4, j + 2, j
/// + 1.
struct PortableLanes {
  float lane[16] = {};

  MEMRA_HD void add(std::size_t i, float x) noexcept { lane[i % 16] = lane[i % 16] + x; }

  MEMRA_HD float sum() const noexcept {
    float v[8];
    for (int i = 0; i < 8; ++i) v[i] = lane[i] + lane[i + 8];
    for (int half = 4; half != 0; half /= 2) {
      for (int i = 0; i < half; ++i) v[i] = v[i] + v[i + half];
    }
    return v[0];
  }
};

/// Dot product in the order of the host's dot16.
MEMRA_HD inline float portable_dot(const float* x, const float* y, std::size_t n) noexcept {
  PortableLanes lanes;
  for (std::size_t i = 0; i < n; ++i) lanes.add(i, product(x[i], y[i]));
  return lanes.sum();
}

}  // namespace memra::detail
