// encode_blocks and decode_blocks: the codecs of every format, for blocks wherever their parts are.
#pragma once

#include <cstddef>
#include <cstring>
#include <memra/detail/codec_elements.hpp>
#include <memra/detail/codec_scalar.hpp>
#include <memra/detail/codec_wide.hpp>
#include <memra/detail/simd.hpp>
#include <memra/detail/simd_pack.hpp>
#include <memra/format.hpp>

namespace memra::detail {

/// Encodes x, [n_blocks][block_elems], into the blocks at `to`. The bytes do not depend on Simd.
template <Format F, class Simd = NativeSimd>
void encode_blocks(const float* x, std::size_t n_blocks, BlockCursor to) noexcept {
  if constexpr (facts(F).block_elems == 1) {
    std::size_t i = 0;
    if constexpr (F == Format::f32) {
      if (n_blocks != 0) std::memcpy(to.quants, x, 4 * n_blocks);
      i = n_blocks;
    } else {
      for (; n_blocks - i >= simd_lanes; i += simd_lanes) {
        const auto v = F32x16<Simd>::load(x + i);
        if constexpr (F == Format::f16) narrow_u16(wide_f32_to_f16(v), to.quants + 2 * i);
        if constexpr (F == Format::bf16) narrow_u16(wide_f32_to_bf16(v), to.quants + 2 * i);
        if constexpr (F == Format::fp8_e4m3) narrow_u8(wide_f32_to_fp8(v), to.quants + i);
      }
    }
    to.quants += i * facts(F).block_bytes;
    scalar_encode_blocks<F>(x + i, n_blocks - i, to);
  } else {
    for (std::size_t b = 0; b < n_blocks; ++b) {
      if constexpr (F == Format::q8_0) wide_encode_q8_0<Simd>(x, to.quants, to.scales);
      if constexpr (F == Format::q5_1) wide_encode_q5_1<Simd>(x, to.quants, to.fifths, to.scales);
      if constexpr (F == Format::q4_0) wide_encode_q4_0<Simd>(x, to.quants, to.scales);
      x += facts(F).block_elems;
      to.quants += to.quant_stride;
      to.fifths += to.fifth_stride;
      to.scales += to.scale_stride;
    }
  }
}

/// Decodes the blocks at `from` into y, [n_blocks][block_elems]. The bits do not depend on Simd.
template <Format F, class Simd = NativeSimd>
void decode_blocks(ConstBlockCursor from, std::size_t n_blocks, float* y) noexcept {
  if constexpr (facts(F).block_elems == 1) {
    std::size_t i = 0;
    if constexpr (F == Format::f32) {
      if (n_blocks != 0) std::memcpy(y, from.quants, 4 * n_blocks);
      i = n_blocks;
    } else {
      for (; n_blocks - i >= simd_lanes; i += simd_lanes) {
        using V = F32x16<Simd>;
        if constexpr (F == Format::f16) wide_f16_to_f32(widen_u16<Simd>(from.quants + 2 * i)).store(y + i);
        if constexpr (F == Format::bf16) V::from_bits(widen_u16<Simd>(from.quants + 2 * i) << 16).store(y + i);
        if constexpr (F == Format::fp8_e4m3) wide_fp8_to_f32(widen_u8<Simd>(from.quants + i)).store(y + i);
      }
    }
    from.quants += i * facts(F).block_bytes;
    scalar_decode_blocks<F>(from, n_blocks - i, y + i);
  } else {
    for (std::size_t b = 0; b < n_blocks; ++b) {
      if constexpr (F == Format::q8_0) wide_decode_q8_0<Simd>(from.quants, from.scales, y);
      if constexpr (F == Format::q5_1) wide_decode_q5_1<Simd>(from.quants, from.fifths, from.scales, y);
      if constexpr (F == Format::q4_0) wide_decode_q4_0<Simd>(from.quants, from.scales, y);
      y += facts(F).block_elems;
      from.quants += from.quant_stride;
      from.fifths += from.fifth_stride;
      from.scales += from.scale_stride;
    }
  }
}

}  // namespace memra::detail
