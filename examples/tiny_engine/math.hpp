// exp, sigmoid, silu and softplus with the same bits in scalar and vector form, whatever the compiler and flags.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tiny_engine/lanes.hpp>
#include <tiny_engine/strict_fp.hpp>

namespace tiny {
namespace internal {

/// 2^n where `shifted` is n + 1.5 * 2^23: n sits in the low bits. @pre -126 <= n <= 127
MEMRA_HD inline float power_of_two(float shifted) noexcept {
  return float_from_bits((float_bits(shifted) - 0x4b400000U + 127U) << 23);
}
#if TINY_VECTOR_LANES()
inline FloatVector power_of_two(FloatVector shifted) noexcept {
  return (FloatVector)(((WordVector)shifted - 0x4b400000U + 127U) << 23);
}
#endif
template <class V>
MEMRA_HD inline V all(float x) noexcept {
  return V{} + x;
}

}  // namespace internal

/// e^x for x clamped to [-87, 88], so that the result is always a normal number: all uses here are gates that have
/// saturated long before. Within 2 units in the last place; NaN stays NaN.
template <class V>
MEMRA_HD inline V exp_clamped(V x) noexcept {
  using internal::all;
  x = x < all<V>(-87.0F) ? all<V>(-87.0F) : x;
  x = x > all<V>(88.0F) ? all<V>(88.0F) : x;
  // x = n ln 2 + r; adding 1.5 * 2^23 rounds to a whole number. ln 2 in two parts, the first short enough that n times
  // it is exact.
  const V shifted = product(x, all<V>(0x1.715476p+0F)) + 0x1.8p23F;
  const V n = shifted - 0x1.8p23F;
  const V r = (x - product(n, all<V>(0x1.63p-1F))) - product(n, all<V>(-0x1.bd0106p-13F));
  // Taylor: |r| <= 0.347, the first term left out is 5e-9 of the result.
  V p = all<V>(1.0F / 5040) * r;
  p = product(p + 1.0F / 720, r);
  p = product(p + 1.0F / 120, r);
  p = product(p + 1.0F / 24, r);
  p = product(p + 1.0F / 6, r);
  p = product(product(p + 0.5F, r), r);
  return product((p + r) + 1.0F, internal::power_of_two(shifted));
}

/// 1 / (1 + e^-x)
template <class V>
MEMRA_HD inline V sigmoid(V x) noexcept {
  return internal::all<V>(1.0F) / (exp_clamped(-x) + 1.0F);
}

/// x sigmoid(x)
template <class V>
MEMRA_HD inline V silu(V x) noexcept {
  return x / (exp_clamped(-x) + 1.0F);
}

/// ln(1 + e^x) as max(x, 0) + ln(1 + t), t = e^-|x|; the logarithm as 2 atanh(t / (2 + t)).
MEMRA_HD inline float softplus(float x) noexcept {
  const float magnitude = x < 0.0F ? -x : x;
  const float t = exp_clamped(-magnitude);
  const float s = t / (2.0F + t);  // at most 1/3: the first term left out is below 1e-9
  const float s2 = product(s, s);
  float p = 1.0F / 17;
  for (int k = 15; k >= 1; k -= 2) p = product(p, s2) + 1.0F / static_cast<float>(k);
  const float log = product(s, p) + product(s, p);
  return (x > 0.0F ? x : (x == x ? 0.0F : x)) + log;
}

/// out[i] = f(a[i], b[i]) for i in [0, n), wide where the target has vectors. f takes float and vectors alike.
template <class F>
MEMRA_HD inline void zip(const float* a, const float* b, float* out, std::size_t n, const F& f) noexcept {
  std::size_t whole = 0;
#if TINY_VECTOR_LANES()
  whole = n - n % internal::vector_elems;
  for (std::size_t i = 0; i < whole; i += internal::vector_elems) {
    const internal::FloatVector x = *reinterpret_cast<const internal::LooseFloats*>(a + i);
    const internal::FloatVector y = *reinterpret_cast<const internal::LooseFloats*>(b + i);
    *reinterpret_cast<internal::LooseFloats*>(out + i) = f(x, y);
  }
#endif
  for (std::size_t i = whole; i < n; ++i) out[i] = f(a[i], b[i]);
}

}  // namespace tiny
