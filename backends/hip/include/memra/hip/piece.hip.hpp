// Decoding inside attend on HIP: the piece of a head's row that one lane owns.
//
// Formats with blocks give small integers, a scale and an offset, which attend applies to sums instead of to elements.
// fp8 is OCP e4m3 and converted in software: the conversion instructions of some generations mean another fp8 (FNUZ).
#pragma once

#include <hip/hip_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memra/detail/codec_scalar.hpp>
#include <memra/detail/half.hpp>
#include <memra/format.hpp>
#include <memra/hip/words.hip.hpp>

namespace memra::detail {

/// Exact; by the conversion instruction where it can be named.
__device__ inline float hip_f16_to_f32(std::uint16_t h) {
#if defined(__HIP_DEVICE_COMPILE__)
  return static_cast<float>(__builtin_bit_cast(_Float16, h));
#else
  return f16_to_f32(h);
#endif
}

/// Exact. e4m3's bits below the sign are those of an f16 2^8 times smaller.
__device__ inline float hip_fp8_to_f32(std::uint32_t b) {
  const std::uint32_t magnitude = b & 0x7FU;
  const auto half = static_cast<std::uint16_t>((b & 0x80U) << 8 | magnitude << 7);
  const float x = hip_f16_to_f32(half) * 256.0F;
  return magnitude == 0x7FU ? f32_from_bits(f32_nan_bits) : x;
}

/// `N` neighbouring elements, x[i] * scale + offset each. N is 4, 8 or 16: a piece is in one block.
template <Format F, bool Split, unsigned N>
struct HipPiece {
  static constexpr bool has_scale = F == Format::q8_0 || F == Format::q5_1 || F == Format::q4_0;
  static constexpr bool has_offset = F == Format::q5_1 || F == Format::q4_0;
  static constexpr bool nibbles = has_offset;
  static constexpr unsigned element_bytes = F == Format::f16 || F == Format::bf16 ? 2 : 1;
  static constexpr unsigned n_words = N * element_bytes / 4;

  std::uint32_t w[n_words];  ///< as stored: loads of several pieces can be on their way at the same time
  std::uint32_t scales = 0;
  std::uint32_t fifths = 0;

  /// @param c   the block, or the piece itself where elements have no blocks
  /// @param at  of the first element in its block, a multiple of N
  __device__ void load(const ConstBlockCursor& c, unsigned at) {
    if constexpr (!has_scale) {
      load_words<n_words, true>(c.quants, w);
    } else {
      load_words<n_words, Split>(c.quants + (nibbles ? at % 16 : at), w);
      scales = load_half_word(c.scales);
    }
    if constexpr (F == Format::q5_1) {
      scales |= std::uint32_t{load_half_word(c.scales + 2)} << 16;
      std::uint32_t all[1];
      load_words<1, Split>(c.fifths, all);
      fifths = all[0] >> at;
    }
  }

  __device__ void decode(unsigned at, float (&x)[N], float& scale, float& offset) const {
    if constexpr (has_scale) scale = hip_f16_to_f32(static_cast<std::uint16_t>(scales));
    if constexpr (F == Format::q5_1) offset = hip_f16_to_f32(static_cast<std::uint16_t>(scales >> 16));
    if constexpr (F == Format::q4_0) offset = -8.0F * scale;
#pragma unroll
    for (unsigned i = 0; i < N; ++i) {
      if constexpr (F == Format::q8_0) {
        x[i] = static_cast<float>(static_cast<std::int8_t>(w[i / 4] >> (8 * (i % 4))));
      } else if constexpr (nibbles) {
        std::uint32_t q = w[i / 4] >> (at / 16 * 4) & 0x0F0F0F0FU;
        // Four fifth bits go to bit 4 of the four bytes.
        if constexpr (F == Format::q5_1) q |= ((fifths >> (i / 4 * 4) & 15U) * 0x00204081U & 0x01010101U) << 4;
        x[i] = static_cast<float>(q >> (8 * (i % 4)) & 255U);
      } else if constexpr (element_bytes == 2) {
        const auto h = static_cast<std::uint16_t>(w[i / 2] >> (16 * (i % 2)));
        x[i] = F == Format::f16 ? hip_f16_to_f32(h) : bf16_to_f32(h);
      } else {
        static_assert(F == Format::fp8_e4m3);
        x[i] = hip_fp8_to_f32(w[i / 4] >> (8 * (i % 4)) & 255U);
      }
    }
  }
};

}  // namespace memra::detail
