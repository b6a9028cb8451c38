// One register at a time: what the inner loops that block their sums in registers are made of.
//
// F32x16 is several registers on most CPUs, and compilers keep an array of such groups in memory. Loops whose sums must
// stay in registers use plain ones; what a lane computes is the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/detail/platform.hpp>
#include <memra/detail/simd.hpp>
#include <memra/detail/strict_fp.hpp>

namespace memra::detail {

/// The portable form: sixteen lanes are one register.
template <class Simd>
struct Reg {
  using T = F32x16<Simd>;
  static constexpr std::size_t lanes = simd_lanes;

  static T zero() noexcept { return T::zero(); }
  static T load(const float* p) noexcept { return T::load(p); }
  static T broadcast(float v) noexcept { return T::broadcast(v); }
  static void store(float* p, const T& v) noexcept { v.store(p); }
  /// a * b, rounded on its own.
  static T product(const T& a, const T& b) noexcept { return a * b; }
};

#if defined(__GNUC__) && !MEMRA_DEVICE_COMPILE()
template <std::size_t Bytes>
struct Reg<VectorSimd<Bytes>> {
  using T = typename Registers<Bytes>::F;
  static constexpr std::size_t lanes = Bytes / sizeof(float);

  static T zero() noexcept { return T{}; }
  static T load(const float* p) noexcept {
    T v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static T broadcast(float v) noexcept {
    using I = typename Registers<Bytes>::I;
    return (T)(I{} + __builtin_bit_cast(std::int32_t, v));  // of the bits: an addition of floats would lose a -0
  }
  static void store(float* p, T v) noexcept { std::memcpy(p, &v, sizeof v); }
  static T product(T a, T b) noexcept { return opaque<T>(a * b); }
};
#endif

}  // namespace memra::detail
