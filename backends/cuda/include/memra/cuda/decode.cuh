// Decoding inside attend: 32 elements of one row per thread (K), or four elements per thread (V).
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstddef>
#include <cstdint>
#include <memra/detail/codec_scalar.hpp>
#include <memra/detail/half.hpp>
#include <memra/format.hpp>

namespace memra::detail {

/// Exact, by the conversion instructions.
__device__ inline float f16_to_f32_fast(std::uint16_t h) {
  return __half2float(__ushort_as_half(h));
}
__device__ inline float fp8_to_f32_fast(std::uint8_t b) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(b, __NV_E4M3)));
}

/// Loads of `Split` planes are 16 and 4 bytes wide; blocks of the interleaved layout are aligned to 2.
template <bool Split>
__device__ inline std::uint32_t load_word(const std::byte* p) {
  if constexpr (Split) {
    return *reinterpret_cast<const std::uint32_t*>(p);
  } else {
    const auto* h = reinterpret_cast<const std::uint16_t*>(p);
    return std::uint32_t{h[0]} | std::uint32_t{h[1]} << 16;
  }
}

/// 16 bytes; `Wide` where the address is a multiple of 16.
template <bool Wide>
__device__ inline void load_words(const std::byte* p, std::uint32_t (&w)[4]) {
  if constexpr (Wide) {
    const uint4 v = *reinterpret_cast<const uint4*>(p);
    w[0] = v.x;
    w[1] = v.y;
    w[2] = v.z;
    w[3] = v.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = load_word<false>(p + 4 * i);
  }
}

__device__ inline float load_half(const std::byte* p) {
  return f16_to_f32_fast(*reinterpret_cast<const std::uint16_t*>(p));
}

/// Byte i of a word as a float: the byte becomes the low mantissa bits of 2^23, which is then taken away.
__device__ inline float byte_to_float(std::uint32_t w, unsigned i, float bias) {
  return __uint_as_float(__byte_perm(w, 0x4B000000U, 0x7440U | i)) - bias;
}

/// 32 elements of a row, from a multiple of 32 on.
template <Format F, bool Split>
__device__ inline void decode_32(const ConstBlockCursor& c, float (&y)[32]) {
  if constexpr (F == Format::q8_0) {
    std::uint32_t w[8];
    load_words<Split>(c.quants, reinterpret_cast<std::uint32_t(&)[4]>(w[0]));
    load_words<Split>(c.quants + 16, reinterpret_cast<std::uint32_t(&)[4]>(w[4]));
    const float d = load_half(c.scales);
#pragma unroll
    for (unsigned i = 0; i < 32; ++i) {
      y[i] = d * byte_to_float(w[i / 4] ^ 0x80808080U, i % 4, 8388608.0F + 128.0F);
    }
  } else if constexpr (F == Format::q5_1 || F == Format::q4_0) {
    std::uint32_t w[4];
    load_words<Split>(c.quants, w);
    const float d = load_half(c.scales);
    float bias = 8388608.0F + 8.0F;
    float min = 0.0F;
    std::uint32_t fifth = 0;
    if constexpr (F == Format::q5_1) {
      min = load_half(c.scales + 2);
      fifth = load_word<Split>(c.fifths);
      bias = 8388608.0F;
    }
#pragma unroll
    for (unsigned i = 0; i < 32; ++i) {
      std::uint32_t q = (w[i % 16 / 4] >> (8 * (i % 4) + (i < 16 ? 0 : 4))) & 15U;
      if constexpr (F == Format::q5_1) q |= ((fifth >> i) & 1U) << 4;
      y[i] = d * (__uint_as_float(q | 0x4B000000U) - bias) + min;
    }
  } else if constexpr (F == Format::f16 || F == Format::bf16) {
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      std::uint32_t w[4];
      load_words<true>(c.quants + 16 * j, w);
#pragma unroll
      for (unsigned i = 0; i < 8; ++i) {
        const auto h = static_cast<std::uint16_t>(w[i / 2] >> (16 * (i % 2)));
        y[8 * j + i] = F == Format::f16 ? f16_to_f32_fast(h) : bf16_to_f32(h);
      }
    }
  } else {
    static_assert(F == Format::fp8_e4m3);
    std::uint32_t w[8];
    load_words<true>(c.quants, reinterpret_cast<std::uint32_t(&)[4]>(w[0]));
    load_words<true>(c.quants + 16, reinterpret_cast<std::uint32_t(&)[4]>(w[4]));
#pragma unroll
    for (unsigned i = 0; i < 32; ++i) y[i] = fp8_to_f32_fast(static_cast<std::uint8_t>(w[i / 4] >> (8 * (i % 4))));
  }
}

/// Four elements from `i` of a block on, i a multiple of four.
template <Format F, bool Split>
__device__ inline void decode_4(const ConstBlockCursor& c, unsigned i, float (&y)[4]) {
  if constexpr (F == Format::q8_0) {
    const std::uint32_t w = load_word<Split>(c.quants + i) ^ 0x80808080U;
    const float d = load_half(c.scales);
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) y[j] = d * byte_to_float(w, j, 8388608.0F + 128.0F);
  } else if constexpr (F == Format::q5_1 || F == Format::q4_0) {
    const std::uint32_t w = load_word<Split>(c.quants + i % 16) >> (i < 16 ? 0 : 4) & 0x0F0F0F0FU;
    if constexpr (F == Format::q5_1) {
      const std::uint32_t dm = load_word<Split>(c.scales);
      const float d = f16_to_f32_fast(static_cast<std::uint16_t>(dm));
      const float min = f16_to_f32_fast(static_cast<std::uint16_t>(dm >> 16));
      const std::uint32_t fifth = load_word<Split>(c.fifths) >> i;
      // Bits 0..3 go to bit 4 of the four bytes.
      const std::uint32_t spread = ((fifth & 15U) * 0x00204081U & 0x01010101U) << 4;
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) y[j] = d * byte_to_float(w | spread, j, 8388608.0F) + min;
    } else {
      const float d = load_half(c.scales);
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) y[j] = d * byte_to_float(w, j, 8388608.0F + 8.0F);
    }
  } else if constexpr (F == Format::f16 || F == Format::bf16) {
    const uint2 v = *reinterpret_cast<const uint2*>(c.quants + 2 * i);
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      const auto h = static_cast<std::uint16_t>((j < 2 ? v.x : v.y) >> (16 * (j % 2)));
      y[j] = F == Format::f16 ? f16_to_f32_fast(h) : bf16_to_f32(h);
    }
  } else {
    static_assert(F == Format::fp8_e4m3);
    const std::uint32_t w = *reinterpret_cast<const std::uint32_t*>(c.quants + i);
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) y[j] = fp8_to_f32_fast(static_cast<std::uint8_t>(w >> (8 * j)));
  }
}

}  // namespace memra::detail
