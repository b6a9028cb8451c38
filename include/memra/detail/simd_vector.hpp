// The vector forms of I32x16 and F32x16. Included by <memra/detail/simd.hpp> only, where the compiler has vector types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/detail/simd.hpp>
#include <memra/detail/strict_fp.hpp>

namespace memra::detail {

/// Register-wide vectors. Unaligned is what memory holds: reading it whole matters, because g++ copies 64 bytes by
/// memcpy in 16-byte steps and then waits for them.
template <std::size_t Bytes>
struct Registers;
template <>
struct Registers<16> {
  typedef float F __attribute__((vector_size(16)));
  typedef float Unaligned __attribute__((vector_size(16), aligned(4), may_alias));
  typedef std::int32_t I __attribute__((vector_size(16)));
  typedef std::uint32_t U __attribute__((vector_size(16)));
};
template <>
struct Registers<32> {
  typedef float F __attribute__((vector_size(32)));
  typedef float Unaligned __attribute__((vector_size(32), aligned(4), may_alias));
  typedef std::int32_t I __attribute__((vector_size(32)));
  typedef std::uint32_t U __attribute__((vector_size(32)));
};
template <>
struct Registers<64> {
  typedef float F __attribute__((vector_size(64)));
  typedef float Unaligned __attribute__((vector_size(64), aligned(4), may_alias));
  typedef std::int32_t I __attribute__((vector_size(64)));
  typedef std::uint32_t U __attribute__((vector_size(64)));
};

/// Folds a register of n lanes onto distance n/2, ..., 1.
template <class T, class V, class Fn>
inline T fold_register(V v, const Fn& f) noexcept {
  constexpr std::size_t n = sizeof(V) / 4;
  if constexpr (n == 16) {
    return fold_register<T>(f(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                              __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15)),
                            f);
  } else if constexpr (n == 8) {
    return fold_register<T>(f(__builtin_shufflevector(v, v, 0, 1, 2, 3), __builtin_shufflevector(v, v, 4, 5, 6, 7)), f);
  } else {
    const V two = f(v, __builtin_shufflevector(v, v, 2, 3, 2, 3));
    const V one = f(two, __builtin_shufflevector(two, two, 1, 1, 1, 1));
    return one[0];
  }
}

template <std::size_t Bytes>
struct I32x16<VectorSimd<Bytes>> {
  using I = typename Registers<Bytes>::I;
  using U = typename Registers<Bytes>::U;
  static constexpr std::size_t parts = 64 / Bytes;
  I part[parts];

  template <class Fn>
  static I32x16 each(const Fn& f) noexcept {
    I32x16 r;
#pragma GCC unroll 4
    for (std::size_t i = 0; i < parts; ++i) r.part[i] = (I)f(i);
    return r;
  }
  U bits(std::size_t i) const noexcept {
    return (U)part[i];
  }

  static I32x16 broadcast(std::int32_t v) noexcept {
    return each([&](std::size_t) { return I{} + v; });
  }
  friend I32x16 operator&(const I32x16& a, const I32x16& b) noexcept {
    return each([&](std::size_t i) { return a.part[i] & b.part[i]; });
  }
  friend I32x16 operator^(const I32x16& a, const I32x16& b) noexcept {
    return each([&](std::size_t i) { return a.part[i] ^ b.part[i]; });
  }
  friend I32x16 operator|(const I32x16& a, const I32x16& b) noexcept {
    return each([&](std::size_t i) { return a.part[i] | b.part[i]; });
  }
  friend I32x16 operator+(const I32x16& a, const I32x16& b) noexcept {
    return each([&](std::size_t i) { return a.bits(i) + b.bits(i); });
  }
  friend I32x16 operator-(const I32x16& a, const I32x16& b) noexcept {
    return each([&](std::size_t i) { return a.bits(i) - b.bits(i); });
  }
  friend I32x16 operator<<(const I32x16& a, int n) noexcept {
    return each([&](std::size_t i) { return a.bits(i) << n; });
  }
  friend I32x16 operator>>(const I32x16& a, int n) noexcept {
    return each([&](std::size_t i) { return a.bits(i) >> n; });
  }
  friend I32x16 shift_right_signed(const I32x16& a, int n) noexcept {
    return each([&](std::size_t i) { return a.part[i] >> n; });
  }
  friend I32x16 less(const I32x16& a, const I32x16& b) noexcept {
    return each([&](std::size_t i) { return a.part[i] < b.part[i]; });
  }
  friend I32x16 equal(const I32x16& a, const I32x16& b) noexcept {
    return each([&](std::size_t i) { return a.part[i] == b.part[i]; });
  }
  friend I32x16 select(const I32x16& mask, const I32x16& a, const I32x16& b) noexcept {
    return each([&](std::size_t i) { return mask.part[i] ? a.part[i] : b.part[i]; });
  }
  friend I32x16 max(const I32x16& a, const I32x16& b) noexcept {
    return each([&](std::size_t i) { return a.part[i] > b.part[i] ? a.part[i] : b.part[i]; });
  }
  friend I32x16 min(const I32x16& a, const I32x16& b) noexcept {
    return each([&](std::size_t i) { return a.part[i] < b.part[i] ? a.part[i] : b.part[i]; });
  }
  friend std::int32_t min_lane(const I32x16& a) noexcept {
    return a.template fold<std::int32_t>([](auto x, auto y) { return x < y ? x : y; });
  }
  friend std::int32_t max_lane(const I32x16& a) noexcept {
    return a.template fold<std::int32_t>([](auto x, auto y) { return x > y ? x : y; });
  }

 private:
  template <class T, class Fn>
  T fold(const Fn& f) const noexcept {
    if constexpr (parts == 4) return fold_register<T>(f(f(part[0], part[2]), f(part[1], part[3])), f);
    if constexpr (parts == 2) return fold_register<T>(f(part[0], part[1]), f);
    if constexpr (parts == 1) return fold_register<T>(part[0], f);
  }
};

template <std::size_t Bytes>
struct F32x16<VectorSimd<Bytes>> {
  using F = typename Registers<Bytes>::F;
  using Unaligned = typename Registers<Bytes>::Unaligned;
  using Mask = I32x16<VectorSimd<Bytes>>;
  using I = typename Mask::I;
  static constexpr std::size_t parts = 64 / Bytes;
  F part[parts];

  template <class Fn>
  static F32x16 each(const Fn& f) noexcept {
    F32x16 r;
#pragma GCC unroll 4
    for (std::size_t i = 0; i < parts; ++i) r.part[i] = f(i);
    return r;
  }

  static F32x16 load(const float* p) noexcept {
    return each([&](std::size_t i) { return *reinterpret_cast<const Unaligned*>(p + i * (Bytes / 4)); });
  }
  static F32x16 broadcast(float v) noexcept {
    // Not `F{} + v`: that would turn -0 into +0.
    const std::int32_t b = __builtin_bit_cast(std::int32_t, v);
    return from_bits(Mask::broadcast(b));
  }
  static F32x16 zero() noexcept {
    return each([](std::size_t) { return F{}; });
  }
  void store(float* p) const noexcept {
#pragma GCC unroll 4
    for (std::size_t i = 0; i < parts; ++i) *reinterpret_cast<Unaligned*>(p + i * (Bytes / 4)) = part[i];
  }

  friend F32x16 operator+(const F32x16& a, const F32x16& b) noexcept {
    return each([&](std::size_t i) { return a.part[i] + b.part[i]; });
  }
  friend F32x16 operator-(const F32x16& a, const F32x16& b) noexcept {
    return each([&](std::size_t i) { return a.part[i] - b.part[i]; });
  }
  friend F32x16 operator*(const F32x16& a, const F32x16& b) noexcept {
    return each([&](std::size_t i) { return opaque<F>(a.part[i] * b.part[i]); });
  }
  friend F32x16 operator/(const F32x16& a, const F32x16& b) noexcept {
    return each([&](std::size_t i) { return a.part[i] / b.part[i]; });
  }
  friend F32x16 negate(const F32x16& a) noexcept {
    return each([&](std::size_t i) { return -a.part[i]; });
  }
  friend F32x16 max(const F32x16& a, const F32x16& b) noexcept {
    return each([&](std::size_t i) { return a.part[i] > b.part[i] ? a.part[i] : b.part[i]; });
  }
  friend F32x16 min(const F32x16& a, const F32x16& b) noexcept {
    return each([&](std::size_t i) { return a.part[i] < b.part[i] ? a.part[i] : b.part[i]; });
  }
  friend Mask less(const F32x16& a, const F32x16& b) noexcept {
    return Mask::each([&](std::size_t i) { return a.part[i] < b.part[i]; });
  }
  friend F32x16 select(const Mask& mask, const F32x16& a, const F32x16& b) noexcept {
    return each([&](std::size_t i) { return mask.part[i] ? a.part[i] : b.part[i]; });
  }
  friend float sum(const F32x16& a) noexcept {
    return a.fold([](auto x, auto y) { return x + y; });
  }
  friend float max_lane(const F32x16& a) noexcept {
    return a.fold([](auto x, auto y) { return x > y ? x : y; });
  }
  friend float min_lane(const F32x16& a) noexcept {
    return a.fold([](auto x, auto y) { return x < y ? x : y; });
  }
  friend Mask bits(const F32x16& a) noexcept {
    return Mask::each([&](std::size_t i) { return (I)a.part[i]; });
  }
  static F32x16 from_bits(const Mask& a) noexcept {
    return each([&](std::size_t i) { return (F)a.part[i]; });
  }
  friend Mask truncate(const F32x16& a) noexcept {
    return Mask::each([&](std::size_t i) { return __builtin_convertvector(a.part[i], I); });
  }
  static F32x16 from_int(const Mask& a) noexcept {
    return each([&](std::size_t i) { return __builtin_convertvector(a.part[i], F); });
  }

 private:
  template <class Fn>
  float fold(const Fn& f) const noexcept {
    if constexpr (parts == 4) return fold_register<float>(f(f(part[0], part[2]), f(part[1], part[3])), f);
    if constexpr (parts == 2) return fold_register<float>(f(part[0], part[1]), f);
    if constexpr (parts == 1) return fold_register<float>(part[0], f);
  }
};

}  // namespace memra::detail
