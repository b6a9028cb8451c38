// Sixteen float lanes: the unit in which every reduction of the engine adds up. Same bits with and without vector
// types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/views.hpp>
#include <tiny_engine/strict_fp.hpp>

// GCC's vector extensions where the compiler has them and is not making device code; plain arrays elsewhere. One vector
// is as wide as the target's registers: wider ones would be passed in memory and warned about.
// TINY_NO_VECTORS asks for the plain form, to compare the two.
#if defined(__GNUC__) && !MEMRA_DEVICE_COMPILE() && !defined(TINY_NO_VECTORS)
#define TINY_VECTOR_LANES() 1
#if defined(__AVX__)
#include <immintrin.h>
#endif
#if defined(__AVX512F__)
#define TINY_VECTOR_BYTES() 64
#elif defined(__AVX__)
#define TINY_VECTOR_BYTES() 32
#else
#define TINY_VECTOR_BYTES() 16
#endif
#else
#define TINY_VECTOR_LANES() 0
#endif

namespace tiny {

inline constexpr std::size_t lane_count = 16;

#if TINY_VECTOR_LANES()

namespace internal {
inline constexpr std::size_t vector_bytes = TINY_VECTOR_BYTES();
inline constexpr std::size_t vector_elems = vector_bytes / 4;
inline constexpr std::size_t vector_count = lane_count / vector_elems;
typedef float FloatVector __attribute__((vector_size(vector_bytes)));
// The same for memory of any alignment and type: GCC splits a memcpy of a whole register in two.
typedef float LooseFloats __attribute__((vector_size(vector_bytes), aligned(1), may_alias));
typedef std::uint16_t LooseHalves __attribute__((vector_size(vector_bytes / 2), aligned(1), may_alias));
typedef std::uint32_t WordVector __attribute__((vector_size(vector_bytes)));
typedef std::uint16_t HalfVector __attribute__((vector_size(vector_bytes / 2)));
}  // namespace internal

/// Lane i is element i of a group of 16.
struct Lanes {
  internal::FloatVector v[internal::vector_count];
};

inline void clear(Lanes& a) noexcept {
  for (std::size_t i = 0; i < internal::vector_count; ++i) a.v[i] = internal::FloatVector{};
}
inline void load_f32(Lanes& a, const std::byte* p) noexcept {
  for (std::size_t i = 0; i < internal::vector_count; ++i) {
    a.v[i] = *reinterpret_cast<const internal::LooseFloats*>(p + i * internal::vector_bytes);
  }
}
inline void load(Lanes& a, const float* p) noexcept {
  load_f32(a, reinterpret_cast<const std::byte*>(p));
}
/// acc += a * b: product rounded, then sum rounded.
inline void add_product(Lanes& acc, const Lanes& a, const Lanes& b) noexcept {
  for (std::size_t i = 0; i < internal::vector_count; ++i) {
    acc.v[i] = acc.v[i] + product(a.v[i], b.v[i]);
  }
}
/// 16-bit words to 32 bits each. GCC 12 makes the general form in halves.
inline internal::WordVector widened(const std::byte* p) noexcept {
  const internal::HalfVector h = *reinterpret_cast<const internal::LooseHalves*>(p);
#if defined(__AVX512F__)
  return (internal::WordVector)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)h);
#elif defined(__AVX2__)
  return (internal::WordVector)_mm256_cvtepu16_epi32((__m128i)h);
#else
  return __builtin_convertvector(h, internal::WordVector);
#endif
}
inline void load_bf16(Lanes& a, const std::byte* p) noexcept {
  for (std::size_t i = 0; i < internal::vector_count; ++i) {
    a.v[i] = (internal::FloatVector)(widened(p + i * sizeof(internal::HalfVector)) << 16);
  }
}
/// The magnitude's bits, moved to f32's places, read as a number 2^-112 of the right size; inf and NaN get their
/// exponent back.
inline void load_f16(Lanes& a, const std::byte* p) noexcept {
  for (std::size_t i = 0; i < internal::vector_count; ++i) {
    const std::byte* at = p + i * sizeof(internal::HalfVector);
#if defined(__F16C__) && TINY_VECTOR_BYTES() == 64
    a.v[i] = (internal::FloatVector)_mm512_maskz_cvtph_ps(
        0xffff, (__m256i) * reinterpret_cast<const internal::LooseHalves*>(at));
#elif defined(__F16C__)
    a.v[i] = (internal::FloatVector)_mm256_cvtph_ps((__m128i) * reinterpret_cast<const internal::LooseHalves*>(at));
#else
    const internal::WordVector w = widened(at);
    const internal::WordVector magnitude = (w & 0x7fffU) << 13;
    const internal::FloatVector scaled = (internal::FloatVector)magnitude * 0x1p112F;
    const internal::WordVector special = (internal::WordVector)(magnitude >= 0x0f800000U) & 0x7f800000U;
    a.v[i] = (internal::FloatVector)((internal::WordVector)scaled | special | ((w & 0x8000U) << 16));
#endif
  }
}
namespace internal {
typedef float Four __attribute__((vector_size(16)));
/// Folds lanes 8 and 4 apart.
inline Four fold_to_four(const Lanes& a) noexcept {
#if TINY_VECTOR_BYTES() == 64
  const auto e = __builtin_shufflevector(a.v[0], a.v[0], 0, 1, 2, 3, 4, 5, 6, 7) +
                 __builtin_shufflevector(a.v[0], a.v[0], 8, 9, 10, 11, 12, 13, 14, 15);
  return __builtin_shufflevector(e, e, 0, 1, 2, 3) + __builtin_shufflevector(e, e, 4, 5, 6, 7);
#elif TINY_VECTOR_BYTES() == 32
  const FloatVector e = a.v[0] + a.v[1];
  return __builtin_shufflevector(e, e, 0, 1, 2, 3) + __builtin_shufflevector(e, e, 4, 5, 6, 7);
#else
  return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
#endif
}
}  // namespace internal

/// Four sums of lanes, each folded 8, 4, 2, 1 apart.
inline void fold4(const Lanes& a, const Lanes& b, const Lanes& c, const Lanes& d, float* out) noexcept {
  const internal::Four fa = internal::fold_to_four(a);
  const internal::Four fb = internal::fold_to_four(b);
  const internal::Four fc = internal::fold_to_four(c);
  const internal::Four fd = internal::fold_to_four(d);
  // Lanes 2 apart: [a0+a2 b0+b2 a1+a3 b1+b3] and the same of c, d; then 1 apart: one sum per lane.
  const internal::Four ab = __builtin_shufflevector(fa, fb, 0, 4, 1, 5) + __builtin_shufflevector(fa, fb, 2, 6, 3, 7);
  const internal::Four cd = __builtin_shufflevector(fc, fd, 0, 4, 1, 5) + __builtin_shufflevector(fc, fd, 2, 6, 3, 7);
  const internal::Four all = __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
  std::memcpy(out, &all, sizeof all);
}
inline float fold(const Lanes& a) noexcept {
  const internal::Four f = internal::fold_to_four(a);
  return (f[0] + f[2]) + (f[1] + f[3]);
}

#else

struct Lanes {
  float v[lane_count];
};

MEMRA_HD inline void clear(Lanes& a) noexcept {
  for (float& x : a.v) x = 0.0F;
}
MEMRA_HD inline void load(Lanes& a, const float* p) noexcept {
  for (std::size_t i = 0; i < lane_count; ++i) a.v[i] = p[i];
}
MEMRA_HD inline void load_f32(Lanes& a, const std::byte* p) noexcept {
  std::memcpy(a.v, p, sizeof a.v);
}
MEMRA_HD inline void add_product(Lanes& acc, const Lanes& a, const Lanes& b) noexcept {
  for (std::size_t i = 0; i < lane_count; ++i) {
    acc.v[i] = acc.v[i] + product(a.v[i], b.v[i]);
  }
}
MEMRA_HD inline std::uint32_t half_word(const std::byte* p, std::size_t i) noexcept {
  return static_cast<std::uint32_t>(p[2 * i]) | static_cast<std::uint32_t>(p[2 * i + 1]) << 8;
}
MEMRA_HD inline void load_bf16(Lanes& a, const std::byte* p) noexcept {
  for (std::size_t i = 0; i < lane_count; ++i) a.v[i] = float_from_bits(half_word(p, i) << 16);
}
MEMRA_HD inline void load_f16(Lanes& a, const std::byte* p) noexcept {
  for (std::size_t i = 0; i < lane_count; ++i) {
    const std::uint32_t w = half_word(p, i);
    const std::uint32_t magnitude = (w & 0x7fffU) << 13;
    const float scaled = float_from_bits(magnitude) * 0x1p112F;
    std::uint32_t bits = float_bits(scaled);
    if (magnitude >= 0x0f800000U) bits |= 0x7f800000U;
    a.v[i] = float_from_bits(bits | (w & 0x8000U) << 16);
  }
}
MEMRA_HD inline float fold(const Lanes& a) noexcept {
  float s[lane_count];
  for (std::size_t i = 0; i < lane_count; ++i) s[i] = a.v[i];
  for (std::size_t width = lane_count / 2; width != 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) s[i] = s[i] + s[i + width];
  }
  return s[0];
}
MEMRA_HD inline void fold4(const Lanes& a, const Lanes& b, const Lanes& c, const Lanes& d, float* out) noexcept {
  out[0] = fold(a);
  out[1] = fold(b);
  out[2] = fold(c);
  out[3] = fold(d);
}

#endif

/// The first `n` lanes from memory, zeros after them.
MEMRA_HD inline void load_part(Lanes& a, const float* p, std::size_t n) noexcept {
  float padded[lane_count] = {};
  for (std::size_t i = 0; i < n; ++i) padded[i] = p[i];
  load(a, padded);
}

/// Sum of squares of x[0..n): lane k % 16 adds its elements in ascending order, then the fold.
MEMRA_HD inline float sum_squares(const float* x, std::size_t n) noexcept {
  Lanes acc;
  clear(acc);
  Lanes v;
  std::size_t k = 0;
  for (; k + lane_count <= n; k += lane_count) {
    load(v, x + k);
    add_product(acc, v, v);
  }
  if (k < n) {
    load_part(v, x + k, n - k);
    add_product(acc, v, v);
  }
  return fold(acc);
}

}  // namespace tiny
