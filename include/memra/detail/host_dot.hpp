// The inner loops that host kernels share, with their order of summation.
#pragma once

#include <cstddef>
#include <memra/detail/simd.hpp>
#include <memra/detail/strict_fp.hpp>

namespace memra::detail {

/// Lanes of a dot product: element i is added to lane i mod 16.
inline constexpr std::size_t dot_lanes = 16;
static_assert(dot_lanes % vec_lanes == 0);

/// Vectors that hold the lanes.
inline constexpr std::size_t dot_vecs = dot_lanes / vec_lanes;

/// Folds sixteen lanes: lane j takes lane j + 8, then j + 4, j + 2, j + 1.
inline float fold16(float* lane) noexcept {
  for (std::size_t j = 0; j < 8; ++j) lane[j] = lane[j] + lane[j + 8];
  for (std::size_t j = 0; j < 4; ++j) lane[j] = lane[j] + lane[j + 4];
  for (std::size_t j = 0; j < 2; ++j) lane[j] = lane[j] + lane[j + 2];
  return lane[0] + lane[1];
}

/// Dot product of n elements: sixteen lanes from +0, elements ascending, folded by fold16. The order is a function of n
/// alone.
inline float dot16(const float* x, const float* y, std::size_t n) noexcept {
  Vec sum[dot_vecs];
  for (std::size_t j = 0; j < dot_vecs; ++j) sum[j] = vec_splat(0.0F);
  std::size_t i = 0;
  for (; i + dot_lanes <= n; i += dot_lanes) {
    for (std::size_t j = 0; j < dot_vecs; ++j) {
      sum[j] = sum[j] + product(vec_load(x + i + j * vec_lanes), vec_load(y + i + j * vec_lanes));
    }
  }
  float lane[dot_lanes];
  for (std::size_t j = 0; j < dot_vecs; ++j) vec_store(lane + j * vec_lanes, sum[j]);
  for (std::size_t j = 0; i < n; ++i, ++j) lane[j] = lane[j] + product(x[i], y[i]);
  return fold16(lane);
}

/// y[i] = y[i] + factor * x[i].
inline void add_scaled(float* y, const float* x, float factor, std::size_t n) noexcept {
  const Vec f = vec_splat(factor);
  std::size_t i = 0;
  for (; i + vec_lanes <= n; i += vec_lanes) vec_store(y + i, vec_load(y + i) + product(f, vec_load(x + i)));
  for (; i < n; ++i) y[i] = y[i] + product(factor, x[i]);
}

}  // namespace memra::detail
