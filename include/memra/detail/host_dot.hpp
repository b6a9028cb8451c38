// The inner loops that host kernels share, with their order of summation.
#pragma once

#include <cstddef>
#include <memra/detail/math.hpp>
#include <memra/detail/simd.hpp>
#include <memra/detail/strict_fp.hpp>

namespace memra::detail {

/// What is left of a dot product after whole groups of sixteen: elements [from, n) are added to lanes 0, 1, ...
template <class Simd>
inline F32x16<Simd> dot_rest(const F32x16<Simd>& lanes, const float* x, const float* y, std::size_t from,
                             std::size_t n) noexcept {
  if (from == n) return lanes;
  float lane[simd_lanes];
  lanes.store(lane);
  for (std::size_t i = from; i < n; ++i) lane[i - from] = lane[i - from] + product(x[i], y[i]);
  return F32x16<Simd>::load(lane);
}

/// Dot product of n elements: element i is added to lane i mod 16, lanes start at +0, elements ascending; then lane j
/// takes lane j + 8, j + 4, j + 2, j + 1. The order is a function of n alone.
template <class Simd>
inline float dot16(const float* x, const float* y, std::size_t n) noexcept {
  using F = F32x16<Simd>;
  F lanes = F::zero();
  const std::size_t whole = n - n % simd_lanes;
  for (std::size_t i = 0; i < whole; i += simd_lanes) lanes = lanes + F::load(x + i) * F::load(y + i);
  return sum(dot_rest(lanes, x, y, whole, n));
}

/// y[i] = y[i] + factor * x[i].
template <class Simd>
inline void add_scaled(float* y, const float* x, float factor, std::size_t n) noexcept {
  using F = F32x16<Simd>;
  const F f = F::broadcast(factor);
  const std::size_t whole = n - n % simd_lanes;
  for (std::size_t i = 0; i < whole; i += simd_lanes) (F::load(y + i) + f * F::load(x + i)).store(y + i);
  for (std::size_t i = whole; i < n; ++i) y[i] = y[i] + product(factor, x[i]);
}

/// y[i] = x[i] * factor. y may be x.
template <class Simd>
inline void scale(float* y, const float* x, float factor, std::size_t n) noexcept {
  using F = F32x16<Simd>;
  const F f = F::broadcast(factor);
  const std::size_t whole = n - n % simd_lanes;
  for (std::size_t i = 0; i < whole; i += simd_lanes) (F::load(x + i) * f).store(y + i);
  for (std::size_t i = whole; i < n; ++i) y[i] = product(x[i], factor);
}

/// y[i] = y[i] / divisor.
template <class Simd>
inline void divide(float* y, float divisor, std::size_t n) noexcept {
  using F = F32x16<Simd>;
  const F f = F::broadcast(divisor);
  const std::size_t whole = n - n % simd_lanes;
  for (std::size_t i = 0; i < whole; i += simd_lanes) (F::load(y + i) / f).store(y + i);
  for (std::size_t i = whole; i < n; ++i) y[i] = y[i] / divisor;
}

/// p[i] = exp_f32(p[i] - m).
template <class Simd>
inline void exp_less(float* p, float m, std::size_t n) noexcept {
  using F = F32x16<Simd>;
  const F all_m = F::broadcast(m);
  const std::size_t whole = n - n % simd_lanes;
  for (std::size_t i = 0; i < whole; i += simd_lanes) exp_f32(F::load(p + i) - all_m).store(p + i);
  for (std::size_t i = whole; i < n; ++i) p[i] = exp_f32(p[i] - m);
}

}  // namespace memra::detail
