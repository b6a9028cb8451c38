// fp8 e4m3fn (OCP): 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinity, 0x7F and 0xFF are NaN, largest 448.
#pragma once

#include <cstdint>
#include <memra/detail/half.hpp>
#include <memra/detail/platform.hpp>

namespace memra::detail {

/// Nearest even, saturating: everything from 448 on, infinity included, gives 0x7E; NaN gives 0x7F; both with the sign.
MEMRA_HD constexpr std::uint8_t f32_to_fp8(float x) noexcept {
  const std::uint32_t u = f32_bits(x);
  const std::uint32_t sign = (u >> 24) & 0x80U;
  const std::uint32_t a = u & 0x7FFFFFFFU;
  std::uint32_t b = 0;
  if (a > f32_inf_bits) {
    b = 0x7FU;
  } else if (a >= 0x43E00000U) {  // 448
    b = 0x7EU;
  } else if (a >= 0x3C800000U) {  // 2^-6: normal
    b = shift_right_even(a - 0x3C000000U, 20);
  } else if (a >= 0x3A800000U) {  // 2^-10: subnormal, in units of 2^-9
    b = shift_right_even((a & 0x7FFFFFU) | 0x800000U, 141U - (a >> 23));
  }
  return static_cast<std::uint8_t>(sign | b);
}

/// Exact; 0x7F and 0xFF give the quiet NaN with the sign.
MEMRA_HD constexpr float fp8_to_f32(std::uint8_t b) noexcept {
  const std::uint32_t sign = (b & 0x80U) << 24;
  const std::uint32_t a = b & 0x7FU;
  if (a == 0x7FU) return f32_from_bits(sign | f32_nan_bits);
  if (a >= 0x08U) return f32_from_bits(sign | ((a << 20) + 0x3C000000U));
  // Subnormal: a * 2^-9, as the low bits of a number in [2^14, 2^15), whose last place is 2^-9, less 2^14.
  return f32_from_bits(sign | f32_bits(f32_from_bits(0x46800000U | a) - 16384.0F));
}

}  // namespace memra::detail
