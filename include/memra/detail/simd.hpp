// Sixteen f32 lanes at a time, whatever the width of the registers: results never depend on it.
//
// F32x16<VectorSimd<B>> keeps them in registers of B bytes (GCC's and clang's vector types); F32x16<PortableSimd> is
// the twin on plain arrays, equal bit for bit, for compilers without such types. Code takes `class Simd = NativeSimd`
// as a template parameter, so that tests can compare all widths in one program. Memory needs no alignment.
// Vector types need GCC or clang, and no device compiler: their front ends do not all know vector types, so they read
// the portable twin. The test for that is spelt out wherever it is needed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/detail/half.hpp>
#include <memra/detail/platform.hpp>
#include <memra/detail/strict_fp.hpp>

namespace memra::detail {

/// Lanes of every wide vector.
inline constexpr std::size_t simd_lanes = 16;

/// Plain arrays.
struct PortableSimd {};
/// Registers of `Bytes` bytes. The width is part of the name: translation units built for different CPUs may meet.
template <std::size_t Bytes>
struct VectorSimd {};

#if defined(__GNUC__) && !MEMRA_DEVICE_COMPILE()
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
using NativeSimd = VectorSimd<64>;
#elif defined(__AVX2__)
using NativeSimd = VectorSimd<32>;
#else
using NativeSimd = VectorSimd<16>;
#endif
#else
using NativeSimd = PortableSimd;
#endif

template <class Simd = NativeSimd>
struct I32x16;

template <class Simd = NativeSimd>
struct F32x16;

/// The portable twin. Its operators are the definition of what the vector ones do.
template <>
struct I32x16<PortableSimd> {
  std::array<std::int32_t, simd_lanes> lane;

  template <class Fn>
  static I32x16 each(const Fn& f) noexcept {
    I32x16 r;
    for (std::size_t i = 0; i < simd_lanes; ++i) r.lane[i] = static_cast<std::int32_t>(f(i));
    return r;
  }
  std::uint32_t bits(std::size_t i) const noexcept { return static_cast<std::uint32_t>(lane[i]); }

  static I32x16 broadcast(std::int32_t v) noexcept {
    return each([&](std::size_t) { return v; });
  }
  friend I32x16 operator&(const I32x16& a, const I32x16& b) noexcept {
    return each([&](std::size_t i) { return a.bits(i) & b.bits(i); });
  }
  friend I32x16 operator^(const I32x16& a, const I32x16& b) noexcept {
    return each([&](std::size_t i) { return a.bits(i) ^ b.bits(i); });
  }
  friend I32x16 operator|(const I32x16& a, const I32x16& b) noexcept {
    return each([&](std::size_t i) { return a.bits(i) | b.bits(i); });
  }
  /// Wraps.
  friend I32x16 operator+(const I32x16& a, const I32x16& b) noexcept {
    return each([&](std::size_t i) { return a.bits(i) + b.bits(i); });
  }
  friend I32x16 operator-(const I32x16& a, const I32x16& b) noexcept {
    return each([&](std::size_t i) { return a.bits(i) - b.bits(i); });
  }
  friend I32x16 operator<<(const I32x16& a, int n) noexcept {
    return each([&](std::size_t i) { return a.bits(i) << n; });
  }
  /// Of the bits: zeros come in from above.
  friend I32x16 operator>>(const I32x16& a, int n) noexcept {
    return each([&](std::size_t i) { return a.bits(i) >> n; });
  }
  /// Copies of the sign come in from above.
  friend I32x16 shift_right_signed(const I32x16& a, int n) noexcept {
    return each([&](std::size_t i) { return a.lane[i] >> n; });
  }
  /// Signed; all bits set where true.
  friend I32x16 less(const I32x16& a, const I32x16& b) noexcept {
    return each([&](std::size_t i) { return a.lane[i] < b.lane[i] ? -1 : 0; });
  }
  friend I32x16 equal(const I32x16& a, const I32x16& b) noexcept {
    return each([&](std::size_t i) { return a.lane[i] == b.lane[i] ? -1 : 0; });
  }
  /// a where the mask is set, else b.
  friend I32x16 select(const I32x16& mask, const I32x16& a, const I32x16& b) noexcept {
    return each([&](std::size_t i) { return (a.bits(i) & mask.bits(i)) | (b.bits(i) & ~mask.bits(i)); });
  }
  /// Signed.
  friend I32x16 max(const I32x16& a, const I32x16& b) noexcept {
    return each([&](std::size_t i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  friend I32x16 min(const I32x16& a, const I32x16& b) noexcept {
    return each([&](std::size_t i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  friend std::int32_t min_lane(const I32x16& a) noexcept {
    std::int32_t m = a.lane[0];
    for (const std::int32_t v : a.lane) m = v < m ? v : m;
    return m;
  }
  friend std::int32_t max_lane(const I32x16& a) noexcept {
    std::int32_t m = a.lane[0];
    for (const std::int32_t v : a.lane) m = v > m ? v : m;
    return m;
  }
};

template <>
struct F32x16<PortableSimd> {
  using Mask = I32x16<PortableSimd>;
  std::array<float, simd_lanes> lane;

  template <class Fn>
  static F32x16 each(const Fn& f) noexcept {
    F32x16 r;
    for (std::size_t i = 0; i < simd_lanes; ++i) r.lane[i] = f(i);
    return r;
  }

  static F32x16 load(const float* p) noexcept {
    F32x16 r;
    std::memcpy(&r.lane, p, sizeof r.lane);
    return r;
  }
  static F32x16 broadcast(float v) noexcept {
    return each([&](std::size_t) { return v; });
  }
  static F32x16 zero() noexcept { return broadcast(0.0F); }
  void store(float* p) const noexcept { std::memcpy(p, &lane, sizeof lane); }

  friend F32x16 operator+(const F32x16& a, const F32x16& b) noexcept {
    return each([&](std::size_t i) { return a.lane[i] + b.lane[i]; });
  }
  friend F32x16 operator-(const F32x16& a, const F32x16& b) noexcept {
    return each([&](std::size_t i) { return a.lane[i] - b.lane[i]; });
  }
  /// Rounded on its own: never merged with an addition.
  friend F32x16 operator*(const F32x16& a, const F32x16& b) noexcept {
    return each([&](std::size_t i) { return product(a.lane[i], b.lane[i]); });
  }
  friend F32x16 operator/(const F32x16& a, const F32x16& b) noexcept {
    return each([&](std::size_t i) { return a.lane[i] / b.lane[i]; });
  }
  friend F32x16 negate(const F32x16& a) noexcept {
    return each([&](std::size_t i) { return -a.lane[i]; });
  }
  /// a > b ? a : b, so b where either is NaN and where both are zeros.
  friend F32x16 max(const F32x16& a, const F32x16& b) noexcept {
    return each([&](std::size_t i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  /// a < b ? a : b
  friend F32x16 min(const F32x16& a, const F32x16& b) noexcept {
    return each([&](std::size_t i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  friend Mask less(const F32x16& a, const F32x16& b) noexcept {
    return Mask::each([&](std::size_t i) { return a.lane[i] < b.lane[i] ? -1 : 0; });
  }
  friend F32x16 select(const Mask& mask, const F32x16& a, const F32x16& b) noexcept {
    return each([&](std::size_t i) { return mask.lane[i] < 0 ? a.lane[i] : b.lane[i]; });
  }
  /// Lanes folded onto their neighbours at distance 8, then 4, 2, 1: the one order of every horizontal result.
  template <class Fn>
  float fold(const Fn& f) const noexcept {
    std::array<float, simd_lanes> v = lane;
    for (std::size_t half = simd_lanes / 2; half != 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) v[i] = f(v[i], v[i + half]);
    }
    return v[0];
  }
  friend float sum(const F32x16& a) noexcept {
    return a.fold([](float x, float y) { return x + y; });
  }
  friend float max_lane(const F32x16& a) noexcept {
    return a.fold([](float x, float y) { return x > y ? x : y; });
  }
  friend float min_lane(const F32x16& a) noexcept {
    return a.fold([](float x, float y) { return x < y ? x : y; });
  }
  friend Mask bits(const F32x16& a) noexcept {
    return Mask::each([&](std::size_t i) { return f32_bits(a.lane[i]); });
  }
  static F32x16 from_bits(const Mask& a) noexcept {
    return each([&](std::size_t i) { return f32_from_bits(a.bits(i)); });
  }
  /// Towards zero. @pre every lane fits int32
  friend Mask truncate(const F32x16& a) noexcept {
    return Mask::each([&](std::size_t i) { return static_cast<std::int32_t>(a.lane[i]); });
  }
  static F32x16 from_int(const Mask& a) noexcept {
    return each([&](std::size_t i) { return static_cast<float>(a.lane[i]); });
  }
};

}  // namespace memra::detail

#if defined(__GNUC__) && !MEMRA_DEVICE_COMPILE()
#include <memra/detail/simd_vector.hpp>
#endif
