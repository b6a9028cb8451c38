// f16 and bf16 as bit code: the same bits on every compiler, flag set and device, usable in constant expressions.
#pragma once

#include <cstdint>
#include <memra/detail/platform.hpp>

namespace memra::detail {

MEMRA_HD constexpr std::uint32_t f32_bits(float x) noexcept {
  return __builtin_bit_cast(std::uint32_t, x);
}
MEMRA_HD constexpr float f32_from_bits(std::uint32_t u) noexcept {
  return __builtin_bit_cast(float, u);
}

inline constexpr float f32_max = 0x1.fffffep127F;  ///< a constant: device code cannot call numeric_limits
inline constexpr std::uint32_t f32_inf_bits = 0x7F800000U;
inline constexpr std::uint32_t f32_nan_bits = 0x7FC00000U;  ///< the quiet NaN without payload

/// Drops the low `shift` bits, to nearest, ties to even.
/// @pre 1 <= shift <= 31
MEMRA_HD constexpr std::uint32_t shift_right_even(std::uint32_t m, std::uint32_t shift) noexcept {
  return (m + (1U << (shift - 1)) - 1U + ((m >> shift) & 1U)) >> shift;
}

/// Nearest even; 65520 and above give infinity, NaN gives 0x7E00 with its sign.
MEMRA_HD constexpr std::uint16_t f32_to_f16(float x) noexcept {
  const std::uint32_t u = f32_bits(x);
  const std::uint32_t sign = (u >> 16) & 0x8000U;
  const std::uint32_t a = u & 0x7FFFFFFFU;
  std::uint32_t h = 0;
  if (a > f32_inf_bits) {
    h = 0x7E00U;
  } else if (a >= 0x47800000U) {  // 65536
    h = 0x7C00U;
  } else if (a >= 0x38800000U) {  // 2^-14: normal; a carry out of the mantissa lands in the exponent, as it should
    h = shift_right_even(a - 0x38000000U, 13);
  } else if (a >= 0x33000000U) {  // 2^-25: subnormal, in units of 2^-24
    h = shift_right_even((a & 0x7FFFFFU) | 0x800000U, 126U - (a >> 23));
  }
  return static_cast<std::uint16_t>(sign | h);
}

/// Exact; a NaN keeps its sign and payload and becomes quiet.
MEMRA_HD constexpr float f16_to_f32(std::uint16_t h) noexcept {
  const std::uint32_t sign = (h & 0x8000U) << 16;
  const std::uint32_t a = h & 0x7FFFU;
  if (a >= 0x7C00U) return f32_from_bits(sign | f32_inf_bits | (a > 0x7C00U ? 0x400000U | (a & 0x3FFU) << 13 : 0U));
  if (a >= 0x400U) return f32_from_bits(sign | ((a << 13) + 0x38000000U));
  // Subnormal: a * 2^-24, as the low bits of a number in [0.5, 1), whose last place is 2^-24, less 0.5.
  return f32_from_bits(sign | f32_bits(f32_from_bits(0x3F000000U | a) - 0.5F));
}

/// Nearest even; NaN gives 0x7FC0 with its sign.
MEMRA_HD constexpr std::uint16_t f32_to_bf16(float x) noexcept {
  const std::uint32_t u = f32_bits(x);
  if ((u & 0x7FFFFFFFU) > f32_inf_bits) return static_cast<std::uint16_t>(((u >> 16) & 0x8000U) | 0x7FC0U);
  return static_cast<std::uint16_t>((u + 0x7FFFU + ((u >> 16) & 1U)) >> 16);
}

/// Exact.
MEMRA_HD constexpr float bf16_to_f32(std::uint16_t h) noexcept {
  return f32_from_bits(static_cast<std::uint32_t>(h) << 16);
}

}  // namespace memra::detail
