// Between sixteen lanes and sixteen stored bytes or halves. The library's intrinsics are all here, each before the lane
// loop that defines it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/detail/half.hpp>
#include <memra/detail/simd.hpp>

#if defined(__SSE2__) && defined(__GNUC__) && !MEMRA_DEVICE_COMPILE()
#include <immintrin.h>
#endif

namespace memra::detail {

/// Whether this translation unit may use x86 intrinsics.
#if defined(__SSE2__) && defined(__GNUC__) && !MEMRA_DEVICE_COMPILE()
inline constexpr bool has_x86 = true;
#else
inline constexpr bool has_x86 = false;
#endif

template <class Simd>
inline constexpr std::size_t register_bytes = 0;
template <std::size_t Bytes>
inline constexpr std::size_t register_bytes<VectorSimd<Bytes>> = Bytes;

/// The register type of a vector form. The portable form has none: its int is never used.
template <class Simd>
struct PartOf {
  using type = int;
};
template <std::size_t Bytes>
struct PartOf<VectorSimd<Bytes>> {
  using type = typename I32x16<VectorSimd<Bytes>>::I;
};
template <class Simd>
using Part = typename PartOf<Simd>::type;

/// Sixteen lanes as a plain array, and back: for what has no vector form.
template <class Simd>
inline std::array<std::int32_t, simd_lanes> lanes_of(const I32x16<Simd>& v) noexcept {
  std::array<std::int32_t, simd_lanes> r;
  std::memcpy(&r, &v, sizeof r);
  return r;
}
template <class Simd>
inline I32x16<Simd> from_lanes(const std::array<std::int32_t, simd_lanes>& lane) noexcept {
  I32x16<Simd> r;
  std::memcpy(&r, &lane, sizeof r);
  return r;
}

/// Sixteen stored T, widened.
template <class Simd, class T>
inline I32x16<Simd> widen_lanes(const std::byte* p) noexcept {
  std::array<T, simd_lanes> stored;
  std::memcpy(&stored, p, sizeof stored);
  std::array<std::int32_t, simd_lanes> lane;
  for (std::size_t i = 0; i < simd_lanes; ++i) lane[i] = stored[i];
  return from_lanes<Simd>(lane);
}
/// The low bits of every lane.
template <class T, class Simd>
inline void narrow_lanes(const I32x16<Simd>& v, std::byte* p) noexcept {
  const std::array<std::int32_t, simd_lanes> lane = lanes_of(v);
  std::array<T, simd_lanes> stored;
  for (std::size_t i = 0; i < simd_lanes; ++i) stored[i] = static_cast<T>(lane[i]);
  std::memcpy(p, &stored, sizeof stored);
}

#if defined(__SSE2__) && defined(__GNUC__) && !MEMRA_DEVICE_COMPILE()
#if defined(__AVX512F__)
/// The masked forms of the intrinsics, because g++ 12 warns of the undefined register inside the others.
inline constexpr __mmask16 all_of_16 = 0xFFFF;
#endif
inline __m128i load_128(const std::byte* p) noexcept {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline void store_128(std::byte* p, __m128i v) noexcept {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v);
}

/// Sixteen lanes narrowed to int16, in order: two registers. @pre every lane fits int16
template <std::size_t Bytes>
inline std::array<I32x16<VectorSimd<16>>::I, 2> pack_16(const I32x16<VectorSimd<Bytes>>& v) noexcept {
  using I = I32x16<VectorSimd<16>>::I;
#if defined(__AVX2__)
  if constexpr (Bytes == 32) {
    const __m256i mixed = _mm256_packs_epi32((__m256i)v.part[0], (__m256i)v.part[1]);
    const __m256i sorted = _mm256_permute4x64_epi64(mixed, 0xD8);
    return {(I)_mm256_castsi256_si128(sorted), (I)_mm256_extracti128_si256(sorted, 1)};
  } else  // NOLINT(readability-misleading-indentation)
#endif
  {
    I32x16<VectorSimd<16>> quarters;
    std::memcpy(&quarters, &v, sizeof quarters);
    return {(I)_mm_packs_epi32((__m128i)quarters.part[0], (__m128i)quarters.part[1]),
            (I)_mm_packs_epi32((__m128i)quarters.part[2], (__m128i)quarters.part[3])};
  }
}
#endif

/// 16 bytes, each a number from 0 to 255.
template <class Simd>
inline I32x16<Simd> widen_u8(const std::byte* p) noexcept {
  constexpr std::size_t width = register_bytes<Simd>;
#if defined(__SSE2__) && defined(__GNUC__) && !MEMRA_DEVICE_COMPILE()
  using I = Part<Simd>;
#if defined(__AVX512F__)
  if constexpr (width == 64) {
    return {(I)_mm512_maskz_cvtepu8_epi32(all_of_16, load_128(p))};
  }
#endif
#if defined(__AVX2__)
  if constexpr (width == 32) {
    const __m128i v = load_128(p);
    return {(I)_mm256_cvtepu8_epi32(v), (I)_mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))};
  }
#endif
  if constexpr (width == 16) {
    const __m128i v = load_128(p);
    const __m128i zero = _mm_setzero_si128();
    const __m128i low = _mm_unpacklo_epi8(v, zero);
    const __m128i high = _mm_unpackhi_epi8(v, zero);
    return {(I)_mm_unpacklo_epi16(low, zero), (I)_mm_unpackhi_epi16(low, zero), (I)_mm_unpacklo_epi16(high, zero),
            (I)_mm_unpackhi_epi16(high, zero)};
  }
#endif
  if constexpr (width == 0 || !has_x86) return widen_lanes<Simd, std::uint8_t>(p);
}

/// 16 bytes, each a number from -128 to 127.
template <class Simd>
inline I32x16<Simd> widen_i8(const std::byte* p) noexcept {
  constexpr std::size_t width = register_bytes<Simd>;
#if defined(__SSE2__) && defined(__GNUC__) && !MEMRA_DEVICE_COMPILE()
  using I = Part<Simd>;
#if defined(__AVX512F__)
  if constexpr (width == 64) {
    return {(I)_mm512_maskz_cvtepi8_epi32(all_of_16, load_128(p))};
  }
#endif
#if defined(__AVX2__)
  if constexpr (width == 32) {
    const __m128i v = load_128(p);
    return {(I)_mm256_cvtepi8_epi32(v), (I)_mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))};
  }
#endif
  if constexpr (width == 16) {
    const __m128i v = load_128(p);
    const __m128i low = _mm_unpacklo_epi8(v, v);
    const __m128i high = _mm_unpackhi_epi8(v, v);
    return {(I)_mm_srai_epi32(_mm_unpacklo_epi16(low, low), 24), (I)_mm_srai_epi32(_mm_unpackhi_epi16(low, low), 24),
            (I)_mm_srai_epi32(_mm_unpacklo_epi16(high, high), 24),
            (I)_mm_srai_epi32(_mm_unpackhi_epi16(high, high), 24)};
  }
#endif
  if constexpr (width == 0 || !has_x86) return widen_lanes<Simd, std::int8_t>(p);
}

/// @pre every lane is in [-128, 127]
template <class Simd>
inline void narrow_i8(const I32x16<Simd>& v, std::byte* p) noexcept {
#if defined(__SSE2__) && defined(__GNUC__) && !MEMRA_DEVICE_COMPILE()
#if defined(__AVX512F__)
  if constexpr (register_bytes<Simd> == 64)
    return store_128(p, _mm512_maskz_cvtepi32_epi8(all_of_16, (__m512i)v.part[0]));
#endif
  if constexpr (register_bytes<Simd> == 16 || register_bytes<Simd> == 32) {
    const auto packed = pack_16(v);
    return store_128(p, _mm_packs_epi16((__m128i)packed[0], (__m128i)packed[1]));
  }
#endif
  if constexpr (register_bytes<Simd> == 0 || !has_x86) narrow_lanes<std::int8_t>(v, p);
}

/// @pre every lane is in [0, 255]
template <class Simd>
inline void narrow_u8(const I32x16<Simd>& v, std::byte* p) noexcept {
#if defined(__SSE2__) && defined(__GNUC__) && !MEMRA_DEVICE_COMPILE()
#if defined(__AVX512F__)
  if constexpr (register_bytes<Simd> == 64)
    return store_128(p, _mm512_maskz_cvtepi32_epi8(all_of_16, (__m512i)v.part[0]));
#endif
  if constexpr (register_bytes<Simd> == 16 || register_bytes<Simd> == 32) {
    const auto packed = pack_16(v);
    return store_128(p, _mm_packus_epi16((__m128i)packed[0], (__m128i)packed[1]));
  }
#endif
  if constexpr (register_bytes<Simd> == 0 || !has_x86) narrow_lanes<std::uint8_t>(v, p);
}

/// Bit i is the top bit of lane i.
template <class Simd>
inline std::uint32_t top_bits(const I32x16<Simd>& v) noexcept {
#if defined(__SSE2__) && defined(__GNUC__) && !MEMRA_DEVICE_COMPILE()
#if defined(__AVX512DQ__)
  if constexpr (register_bytes<Simd> == 64) return _mm512_movepi32_mask((__m512i)v.part[0]);
#endif
#if defined(__AVX2__)
  if constexpr (register_bytes<Simd> == 32) {
    const auto low = static_cast<std::uint32_t>(_mm256_movemask_ps((__m256)v.part[0]));
    return low | static_cast<std::uint32_t>(_mm256_movemask_ps((__m256)v.part[1])) << 8;
  }
#endif
  if constexpr (register_bytes<Simd> == 16) {
    std::uint32_t r = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      r |= static_cast<std::uint32_t>(_mm_movemask_ps((__m128)v.part[i])) << (4 * i);
    }
    return r;
  }
#endif
  if constexpr (register_bytes<Simd> == 0 || !has_x86) {
    const std::array<std::int32_t, simd_lanes> lane = lanes_of(v);
    std::uint32_t r = 0;
    for (std::size_t i = 0; i < simd_lanes; ++i) r |= (static_cast<std::uint32_t>(lane[i]) >> 31) << i;
    return r;
  }
}

/// Lane i is `value` where bit i of `mask` is set, else 0.
template <class Simd>
inline I32x16<Simd> spread_bits(std::uint32_t mask, std::int32_t value) noexcept {
  using I = I32x16<Simd>;
#if defined(__SSE2__) && defined(__GNUC__) && !MEMRA_DEVICE_COMPILE() && defined(__AVX512F__)
  if constexpr (register_bytes<Simd> == 64) {
    return {(typename I::I)_mm512_maskz_set1_epi32(static_cast<__mmask16>(mask), value)};
  }
#endif
  const I bit = from_lanes<Simd>({1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768});
  return equal(I::broadcast(static_cast<std::int32_t>(mask)) & bit, bit) & I::broadcast(value);
}

/// Sixteen 16-bit numbers, each from 0 to 65535.
template <class Simd>
inline I32x16<Simd> widen_u16(const std::byte* p) noexcept {
  constexpr std::size_t width = register_bytes<Simd>;
#if defined(__SSE2__) && defined(__GNUC__) && !MEMRA_DEVICE_COMPILE()
  using I = Part<Simd>;
#if defined(__AVX512F__)
  if constexpr (width == 64) {
    return {(I)_mm512_maskz_cvtepu16_epi32(all_of_16, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
#endif
#if defined(__AVX2__)
  if constexpr (width == 32) {
    return {(I)_mm256_cvtepu16_epi32(load_128(p)), (I)_mm256_cvtepu16_epi32(load_128(p + 16))};
  }
#endif
  if constexpr (width == 16) {
    const __m128i zero = _mm_setzero_si128();
    const __m128i low = load_128(p);
    const __m128i high = load_128(p + 16);
    return {(I)_mm_unpacklo_epi16(low, zero), (I)_mm_unpackhi_epi16(low, zero), (I)_mm_unpacklo_epi16(high, zero),
            (I)_mm_unpackhi_epi16(high, zero)};
  }
#endif
  if constexpr (width == 0 || !has_x86) return widen_lanes<Simd, std::uint16_t>(p);
}

/// The low 16 bits of every lane.
template <class Simd>
inline void narrow_u16(const I32x16<Simd>& v, std::byte* p) noexcept {
#if defined(__SSE2__) && defined(__GNUC__) && !MEMRA_DEVICE_COMPILE()
#if defined(__AVX512F__)
  if constexpr (register_bytes<Simd> == 64) {
    return _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                               _mm512_maskz_cvtepi32_epi16(all_of_16, (__m512i)v.part[0]));
  }
#endif
  if constexpr (register_bytes<Simd> == 16 || register_bytes<Simd> == 32) {
    const auto packed = pack_16(shift_right_signed(v << 16, 16));  // as int16: packing saturates signed numbers
    store_128(p, (__m128i)packed[0]);
    return store_128(p + 16, (__m128i)packed[1]);
  }
#endif
  if constexpr (register_bytes<Simd> == 0 || !has_x86) narrow_lanes<std::uint16_t>(v, p);
}

/// Copies n floats without reading the lines they go to, for what is written once and read much later; a plain copy
/// where the CPU cannot. Other threads see them after finish_copies().
/// @param to  16-byte aligned   @param n  a multiple of 4
inline void copy_past_caches(float* to, const float* from, std::size_t n) noexcept {
#if defined(__SSE2__) && defined(__GNUC__) && !MEMRA_DEVICE_COMPILE()
  for (std::size_t i = 0; i < n; i += 4) _mm_stream_ps(to + i, _mm_loadu_ps(from + i));
#else
  std::memcpy(to, from, n * sizeof(float));
#endif
}
inline void finish_copies() noexcept {
#if defined(__SSE2__) && defined(__GNUC__) && !MEMRA_DEVICE_COMPILE()
  _mm_sfence();
#endif
}

/// f16_to_f32 and f32_to_f16 by the CPU's own instruction where there is one.
inline float fast_f16_to_f32(std::uint16_t h) noexcept {
#if defined(__SSE2__) && defined(__GNUC__) && !MEMRA_DEVICE_COMPILE() && defined(__F16C__)
  return _cvtsh_ss(h);
#else
  return f16_to_f32(h);
#endif
}
/// @pre x is not NaN
inline std::uint16_t fast_f32_to_f16(float x) noexcept {
#if defined(__SSE2__) && defined(__GNUC__) && !MEMRA_DEVICE_COMPILE() && defined(__F16C__)
  const __m128i h = _mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT);
  return static_cast<std::uint16_t>(_mm_cvtsi128_si32(h));
#else
  return f32_to_f16(x);
#endif
}

}  // namespace memra::detail
