// Products that no compiler flag can merge with a later addition: the numeric foundation of every op.
//
// Our results are defined to the last bit, so `a * b + c` must round twice everywhere. Pragmas do not reach that far:
// g++ 12 ignores `#pragma STDC FP_CONTRACT`, a function with an `optimize` attribute is not inlined into its callers,
// and clang disregards every pragma under -ffp-contract=fast. Hiding the product from the optimiser costs no
// instruction, survives inlining into functions built with any flags, and changes nothing for the code after us.
// The rule that follows: in our arithmetic a product that meets an addition is written product(a, b).
#pragma once

#include <memra/detail/platform.hpp>
#include <type_traits>

#if MEMRA_ON_DEVICE()
#include <memra/detail/gpu_strict_fp.hpp>
#endif

namespace memra::detail {

/// Returns `x` as a value the optimiser knows nothing about: nothing before it merges with anything after it.
/// T is float or a vector of floats that fits one register.
template <class T>
constexpr T opaque(T x) noexcept {
  if (!std::is_constant_evaluated()) {
#if defined(__x86_64__) || defined(__i386__)
    __asm__("" : "+v"(x));
#elif defined(__aarch64__)
    __asm__("" : "+w"(x));
#elif defined(__riscv) || defined(__powerpc64__)
    __asm__("" : "+f"(x));
#else
    __asm__("" : "+m"(x));
#endif
  }
  return x;
}

/// a * b, rounded on its own.
MEMRA_HD constexpr float product(float a, float b) noexcept {
#if MEMRA_ON_DEVICE()
  return gpu_product(a, b);
#else
  return opaque(a * b);
#endif
}

/// a / b, correctly rounded also in device code built for fast division.
MEMRA_HD constexpr float quotient(float a, float b) noexcept {
#if MEMRA_ON_DEVICE()
  return gpu_quotient(a, b);
#else
  return a / b;
#endif
}

}  // namespace memra::detail
