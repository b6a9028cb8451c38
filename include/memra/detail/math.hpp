// exp, sigmoid and silu with the same bits everywhere: no library call, no table, no contraction. The scalar and the
// wide forms run the same operations in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/detail/half.hpp>
#include <memra/detail/platform.hpp>
#include <memra/detail/simd.hpp>
#include <memra/detail/strict_fp.hpp>

namespace memra::detail {

/// Constants of exp_f32: x = n ln 2 + r with |r| <= ln 2 / 2, e^x = 2^n (1 + r + r^2 p(r)).
struct ExpConstants {
  static constexpr float lowest = -104.0F;  ///< below, e^x rounds to 0: ln 2^-150 is -103.97
  static constexpr float highest = 89.0F;   ///< above, e^x is infinite: ln 2^128 is 88.73
  static constexpr float log2_e = 1.44269504F;
  static constexpr float round = 12582912.0F;  ///< 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  static constexpr std::uint32_t round_bits = 0x4B400000U;
  static constexpr float ln2_high = 0.693359375F;  ///< 9 bits of ln 2: n * ln2_high is exact
  static constexpr float ln2_low = -2.12194440e-4F;
  /// p, lowest power first: least maximal relative error (3e-9) on the interval, found by reweighted least squares.
  static constexpr float p0 = 0x1.fffffcp-2F;
  static constexpr float p1 = 0x1.555492p-3F;
  static constexpr float p2 = 0x1.5558f2p-5F;
  static constexpr float p3 = 0x1.123a2p-7F;
  static constexpr float p4 = 0x1.6a23cep-10F;
};

/// e^x within 1 unit in the last place. exp(+-0) = 1, exp(-inf) = 0, underflow is gradual, overflow gives infinity, a
/// NaN gives the quiet NaN 0x7FC00000.
MEMRA_HD constexpr float exp_f32(float x) noexcept {
  using C = ExpConstants;
  if ((f32_bits(x) & 0x7FFFFFFFU) > f32_inf_bits) return f32_from_bits(f32_nan_bits);
  x = x < C::lowest ? C::lowest : x;
  x = x > C::highest ? C::highest : x;
  const float shifted = product(x, C::log2_e) + C::round;
  const float n = shifted - C::round;
  const float r = (x - product(n, C::ln2_high)) - product(n, C::ln2_low);
  float p = product(C::p4, r) + C::p3;
  p = product(p, r) + C::p2;
  p = product(p, r) + C::p1;
  p = product(p, r) + C::p0;
  const float y = (product(product(p, r), r) + r) + 1.0F;
  // 2^n in two factors, each a normal number: the second product is the only one that rounds.
  const std::uint32_t e = f32_bits(shifted) - C::round_bits + 256U;  // n + 256, positive
  const std::uint32_t half = e >> 1;
  return product(product(y, f32_from_bits((half - 1U) << 23)), f32_from_bits((e - half - 1U) << 23));
}

/// 1 / (1 + e^-x): 0 below about -88.7, where e^-x overflows.
MEMRA_HD constexpr float sigmoid_f32(float x) noexcept {
  return quotient(1.0F, 1.0F + exp_f32(-x));
}

/// x * sigmoid(x) as x / (1 + e^-x): -0 below about -88.7, NaN at -infinity.
MEMRA_HD constexpr float silu_f32(float x) noexcept {
  return quotient(x, 1.0F + exp_f32(-x));
}

/// exp_f32 of every lane, with the same bits.
template <class Simd>
inline F32x16<Simd> exp_f32(const F32x16<Simd>& x) noexcept {
  using C = ExpConstants;
  using F = F32x16<Simd>;
  using I = I32x16<Simd>;
  const auto all = [](float v) { return F::broadcast(v); };
  const I magnitude = bits(x) & I::broadcast(0x7FFFFFFF);
  const I nan = less(I::broadcast(static_cast<std::int32_t>(f32_inf_bits)), magnitude);
  // Clamp to the range; max and min give their second operand for a NaN, which is replaced below.
  const F clamped = min(max(x, all(C::lowest)), all(C::highest));
  const F shifted = clamped * all(C::log2_e) + all(C::round);
  const F n = shifted - all(C::round);
  const F r = (clamped - n * all(C::ln2_high)) - n * all(C::ln2_low);
  F p = all(C::p4) * r + all(C::p3);
  p = p * r + all(C::p2);
  p = p * r + all(C::p1);
  p = p * r + all(C::p0);
  const F y = ((p * r) * r + r) + all(1.0F);
  const I e = bits(shifted) - I::broadcast(static_cast<std::int32_t>(C::round_bits) - 256);
  const I half = e >> 1;
  const I one = I::broadcast(1);
  const F s0 = F::from_bits((half - one) << 23);
  const F s1 = F::from_bits((e - half - one) << 23);
  return select(nan, all(f32_from_bits(f32_nan_bits)), (y * s0) * s1);
}

template <class Simd>
inline F32x16<Simd> sigmoid_f32(const F32x16<Simd>& x) noexcept {
  using F = F32x16<Simd>;
  const F one = F::broadcast(1.0F);
  return one / (one + exp_f32(negate(x)));
}

template <class Simd>
inline F32x16<Simd> silu_f32(const F32x16<Simd>& x) noexcept {
  using F = F32x16<Simd>;
  return x / (F::broadcast(1.0F) + exp_f32(negate(x)));
}

/// y[i] = exp_f32(x[i]) for i in [0, n); y may be x.
inline void exp_f32(const float* x, float* y, std::size_t n) noexcept {
  std::size_t i = 0;
  for (; n - i >= simd_lanes; i += simd_lanes) exp_f32(F32x16<>::load(x + i)).store(y + i);
  for (; i < n; ++i) y[i] = exp_f32(x[i]);
}

}  // namespace memra::detail
