// f16, bf16 and fp8 sixteen lanes at a time: the same bits as <memra/detail/half.hpp> and <memra/detail/fp8.hpp>.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/detail/half.hpp>
#include <memra/detail/simd.hpp>
#include <memra/detail/simd_pack.hpp>

namespace memra::detail {

template <class Simd>
inline I32x16<Simd> all_lanes(std::uint32_t v) noexcept {
  return I32x16<Simd>::broadcast(static_cast<std::int32_t>(v));
}

/// A float's magnitude bits dropped to their upper ones, to nearest, ties to even.
template <class Simd>
inline I32x16<Simd> shift_right_even(const I32x16<Simd>& m, int shift) noexcept {
  const I32x16<Simd> odd = (m >> shift) & all_lanes<Simd>(1);
  return (m + all_lanes<Simd>((1U << (shift - 1)) - 1U) + odd) >> shift;
}

template <class Simd>
inline I32x16<Simd> wide_f32_to_f16(const F32x16<Simd>& x) noexcept {
  using F = F32x16<Simd>;
  using I = I32x16<Simd>;
  const I u = bits(x);
  const I a = u & all_lanes<Simd>(0x7FFFFFFFU);
  const I normal = shift_right_even(a - all_lanes<Simd>(0x38000000U), 13);
  // Adding 0.5, whose last place is 2^-24, rounds to units of the subnormals.
  const I subnormal = bits(F::from_bits(a) + F::broadcast(0.5F)) - all_lanes<Simd>(0x3F000000U);
  I h = select(less(a, all_lanes<Simd>(0x38800000U)), subnormal, normal);
  h = select(less(a, all_lanes<Simd>(0x47800000U)), h, all_lanes<Simd>(0x7C00U));
  h = select(less(all_lanes<Simd>(f32_inf_bits), a), all_lanes<Simd>(0x7E00U), h);
  return h | ((u >> 16) & all_lanes<Simd>(0x8000U));
}

template <class Simd>
inline F32x16<Simd> wide_f16_to_f32(const I32x16<Simd>& h) noexcept {
  using F = F32x16<Simd>;
  using I = I32x16<Simd>;
  const I a = h & all_lanes<Simd>(0x7FFFU);
  const I shifted = a << 13;
  const I subnormal = bits(F::from_bits(all_lanes<Simd>(0x3F000000U) | a) - F::broadcast(0.5F));
  I r = select(less(a, all_lanes<Simd>(0x400U)), subnormal, shifted + all_lanes<Simd>(0x38000000U));
  r = select(less(a, all_lanes<Simd>(0x7C00U)), r, shifted + all_lanes<Simd>(0x70000000U));
  r = r | (less(all_lanes<Simd>(0x7C00U), a) & all_lanes<Simd>(0x400000U));
  return F::from_bits(r | ((h & all_lanes<Simd>(0x8000U)) << 16));
}

template <class Simd>
inline I32x16<Simd> wide_f32_to_bf16(const F32x16<Simd>& x) noexcept {
  using I = I32x16<Simd>;
  const I u = bits(x);
  const I a = u & all_lanes<Simd>(0x7FFFFFFFU);
  const I h = select(less(all_lanes<Simd>(f32_inf_bits), a), all_lanes<Simd>(0x7FC0U), shift_right_even(a, 16));
  return h | ((u >> 16) & all_lanes<Simd>(0x8000U));
}

template <class Simd>
inline I32x16<Simd> wide_f32_to_fp8(const F32x16<Simd>& x) noexcept {
  using F = F32x16<Simd>;
  using I = I32x16<Simd>;
  const I u = bits(x);
  const I a = u & all_lanes<Simd>(0x7FFFFFFFU);
  const I normal = shift_right_even(a - all_lanes<Simd>(0x3C000000U), 20);
  // Adding 2^14, whose last place is 2^-9, rounds to units of the subnormals.
  const I subnormal = bits(F::from_bits(a) + F::broadcast(16384.0F)) - all_lanes<Simd>(0x46800000U);
  I b = select(less(a, all_lanes<Simd>(0x3C800000U)), subnormal, normal);
  b = select(less(a, all_lanes<Simd>(0x43E00000U)), b, all_lanes<Simd>(0x7EU));
  b = select(less(all_lanes<Simd>(f32_inf_bits), a), all_lanes<Simd>(0x7FU), b);
  return b | ((u >> 24) & all_lanes<Simd>(0x80U));
}

template <class Simd>
inline F32x16<Simd> wide_fp8_to_f32(const I32x16<Simd>& b) noexcept {
  using F = F32x16<Simd>;
  using I = I32x16<Simd>;
  const I a = b & all_lanes<Simd>(0x7FU);
  const I subnormal = bits(F::from_bits(all_lanes<Simd>(0x46800000U) | a) - F::broadcast(16384.0F));
  I r = select(less(a, all_lanes<Simd>(0x08U)), subnormal, (a << 20) + all_lanes<Simd>(0x3C000000U));
  r = select(equal(a, all_lanes<Simd>(0x7FU)), all_lanes<Simd>(f32_nan_bits), r);
  return F::from_bits(r | ((b & all_lanes<Simd>(0x80U)) << 24));
}

}  // namespace memra::detail
