// Arithmetic that rounds where it is written: no compiler flag turns product(a, b) + c into a fused multiply-add.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/views.hpp>  // MEMRA_HD and its kin

namespace tiny {

/// a * b, rounded on its own. T is float or a vector of floats that fits one register.
///
/// The product is hidden from the optimiser: pragmas are not honoured by every compiler and flag, this is, and it
/// costs no instruction.
template <class T>
MEMRA_HD inline T product(T a, T b) noexcept {
#if MEMRA_ON_DEVICE()
  return __fmul_rn(a, b);
#else
  T p = a * b;
#if defined(__x86_64__)
  __asm__("" : "+v"(p));
#elif defined(__aarch64__)
  __asm__("" : "+w"(p));
#else
  __asm__("" : "+m"(p));
#endif
  return p;
#endif
}

MEMRA_HD inline std::uint32_t float_bits(float x) noexcept {
  std::uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}
MEMRA_HD inline float float_from_bits(std::uint32_t u) noexcept {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

}  // namespace tiny
