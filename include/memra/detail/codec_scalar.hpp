// The block codecs one element at a time: the definition of every stored bit, and the oracle of the fast ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/detail/fp8.hpp>
#include <memra/detail/half.hpp>
#include <memra/detail/platform.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/format.hpp>

namespace memra::detail {

/// Where the parts of consecutive blocks are: one codec serves both layouts. Strides in bytes, from block to block.
/// Formats without blocks use `quants` only, and their elements are contiguous.
struct BlockCursor {
  std::byte* quants = nullptr;
  std::byte* fifths = nullptr;
  std::byte* scales = nullptr;
  std::size_t quant_stride = 0;
  std::size_t fifth_stride = 0;
  std::size_t scale_stride = 0;
};
struct ConstBlockCursor {
  const std::byte* quants = nullptr;
  const std::byte* fifths = nullptr;
  const std::byte* scales = nullptr;
  std::size_t quant_stride = 0;
  std::size_t fifth_stride = 0;
  std::size_t scale_stride = 0;
};

/// Reads or writes a value of any type at any address. The builtin, because there is a device compiler that knows
/// std::memcpy only if nobody included <cstring> first.
template <class T>
MEMRA_HD inline T load_bytes(const std::byte* p) noexcept {
  T v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
MEMRA_HD inline void store_bytes(std::byte* p, T v) noexcept {
  __builtin_memcpy(p, &v, sizeof v);
}

/// What a block format sees of an input: NaN counts as +0, an infinity as the largest finite value of its sign.
MEMRA_HD constexpr float block_input(float x) noexcept {
  const std::uint32_t a = f32_bits(x) & 0x7FFFFFFFU;
  if (a < f32_inf_bits) return x;
  if (a > f32_inf_bits) return 0.0F;
  return x > 0 ? f32_max : -f32_max;
}

/// 1 / d, or 0 where the quants are to be 0: d is zero or not finite, or so small that its inverse is not finite.
MEMRA_HD constexpr float inverse_scale(float d) noexcept {
  if (d == 0.0F || (f32_bits(d) & 0x7FFFFFFFU) >= f32_inf_bits) return 0.0F;
  const float id = quotient(1.0F, d);
  return (f32_bits(id) & 0x7FFFFFFFU) >= f32_inf_bits ? 0.0F : id;
}

/// A scale as stored: f16, nearest even, but 65504 of its sign where that would be infinity.
MEMRA_HD constexpr std::uint16_t stored_scale(float d) noexcept {
  const std::uint16_t h = f32_to_f16(d);
  return (h & 0x7FFFU) == 0x7C00U ? static_cast<std::uint16_t>(h - 1U) : h;
}

/// Nearest integer, halves away from zero, for |x| < 2^22. The constant is the float below 0.5: with 0.5 itself the sum
/// would round up for the float below 0.5, and for a true half the sum still rounds up to the integer.
MEMRA_HD constexpr int round_half_away(float x) noexcept {
  constexpr float below_half = 0.49999997F;
  return static_cast<int>(x < 0 ? x - below_half : x + below_half);
}

MEMRA_HD inline void scalar_encode_q8_0(const float* in, std::byte* quants, std::byte* scale) noexcept {
  float amax = 0.0F;
  for (int i = 0; i < 32; ++i) {
    const float x = block_input(in[i]);
    const float a = x < 0 ? -x : x;
    if (amax < a) amax = a;
  }
  const float d = quotient(amax, 127.0F);
  const float id = inverse_scale(d);
  for (int i = 0; i < 32; ++i) {
    const int q = round_half_away(product(block_input(in[i]), id));
    store_bytes(quants + i, static_cast<std::int8_t>(q));
  }
  store_bytes(scale, stored_scale(d));
}

MEMRA_HD inline void scalar_encode_q5_1(const float* in, std::byte* quants, std::byte* fifths,
                                        std::byte* scale) noexcept {
  float min = f32_max;
  float max = -f32_max;
  for (int i = 0; i < 32; ++i) {
    const float x = block_input(in[i]);
    if (x < min) min = x;  // of zeros the first stays, and with it its sign
    if (x > max) max = x;
  }
  const float d = quotient(max - min, 31.0F);
  const float id = inverse_scale(d);
  std::uint32_t fifth = 0;
  for (int i = 0; i < 16; ++i) {
    // id is 0 where max - min overflows, but then so may x - min: infinity times 0 must not reach the conversion.
    const float lo = id == 0 ? 0.0F : product(block_input(in[i]) - min, id);
    const float hi = id == 0 ? 0.0F : product(block_input(in[i + 16]) - min, id);
    const auto q0 = static_cast<std::uint32_t>(lo + 0.5F);
    const auto q1 = static_cast<std::uint32_t>(hi + 0.5F);
    store_bytes(quants + i, static_cast<std::uint8_t>((q0 & 15U) | (q1 & 15U) << 4));
    fifth |= (q0 >> 4) << i | (q1 >> 4) << (i + 16);
  }
  store_bytes(fifths, fifth);
  store_bytes(scale, stored_scale(d));
  store_bytes(scale + 2, f32_to_f16(min));
}

MEMRA_HD inline void scalar_encode_q4_0(const float* in, std::byte* quants, std::byte* scale) noexcept {
  float amax = 0.0F;
  float largest = 0.0F;
  for (int i = 0; i < 32; ++i) {
    const float x = block_input(in[i]);
    const float a = x < 0 ? -x : x;
    if (amax < a) {
      amax = a;
      largest = x;
    }
  }
  const float d = quotient(largest, -8.0F);
  const float id = inverse_scale(d);
  for (int i = 0; i < 16; ++i) {
    const auto q0 = static_cast<std::uint32_t>(product(block_input(in[i]), id) + 8.5F);
    const auto q1 = static_cast<std::uint32_t>(product(block_input(in[i + 16]), id) + 8.5F);
    // Without a usable id the quants are 0, not the 8 that the formula gives.
    const std::uint32_t n0 = id == 0 && d != 0 ? 0U : q0 < 15U ? q0 : 15U;
    const std::uint32_t n1 = id == 0 && d != 0 ? 0U : q1 < 15U ? q1 : 15U;
    store_bytes(quants + i, static_cast<std::uint8_t>(n0 | n1 << 4));
  }
  store_bytes(scale, stored_scale(d));
}

MEMRA_HD inline void scalar_decode_q8_0(const std::byte* quants, const std::byte* scale, float* out) noexcept {
  const float d = f16_to_f32(load_bytes<std::uint16_t>(scale));
  for (int i = 0; i < 32; ++i) out[i] = product(d, static_cast<float>(load_bytes<std::int8_t>(quants + i)));
}

MEMRA_HD inline void scalar_decode_q5_1(const std::byte* quants, const std::byte* fifths, const std::byte* scale,
                                        float* out) noexcept {
  const float d = f16_to_f32(load_bytes<std::uint16_t>(scale));
  const float min = f16_to_f32(load_bytes<std::uint16_t>(scale + 2));
  const auto fifth = load_bytes<std::uint32_t>(fifths);
  for (int i = 0; i < 16; ++i) {
    const std::uint32_t b = load_bytes<std::uint8_t>(quants + i);
    const std::uint32_t q0 = (b & 15U) | ((fifth >> i) & 1U) << 4;
    const std::uint32_t q1 = b >> 4 | ((fifth >> (i + 16)) & 1U) << 4;
    out[i] = product(d, static_cast<float>(q0)) + min;
    out[i + 16] = product(d, static_cast<float>(q1)) + min;
  }
}

MEMRA_HD inline void scalar_decode_q4_0(const std::byte* quants, const std::byte* scale, float* out) noexcept {
  const float d = f16_to_f32(load_bytes<std::uint16_t>(scale));
  for (int i = 0; i < 16; ++i) {
    const int b = load_bytes<std::uint8_t>(quants + i);
    out[i] = product(d, static_cast<float>((b & 15) - 8));
    out[i + 16] = product(d, static_cast<float>((b >> 4) - 8));
  }
}

/// encode_blocks and decode_blocks, one element at a time.
template <Format F>
MEMRA_HD inline void scalar_encode_blocks(const float* x, std::size_t n_blocks, BlockCursor to) noexcept {
  for (std::size_t b = 0; b < n_blocks; ++b) {
    if constexpr (F == Format::f32) {
      store_bytes(to.quants + 4 * b, f32_bits(x[b]));
    } else if constexpr (F == Format::f16) {
      store_bytes(to.quants + 2 * b, f32_to_f16(x[b]));
    } else if constexpr (F == Format::bf16) {
      store_bytes(to.quants + 2 * b, f32_to_bf16(x[b]));
    } else if constexpr (F == Format::fp8_e4m3) {
      store_bytes(to.quants + b, f32_to_fp8(x[b]));
    } else {
      std::byte* quants = to.quants + b * to.quant_stride;
      std::byte* scale = to.scales + b * to.scale_stride;
      if constexpr (F == Format::q8_0) scalar_encode_q8_0(x + 32 * b, quants, scale);
      if constexpr (F == Format::q5_1) scalar_encode_q5_1(x + 32 * b, quants, to.fifths + b * to.fifth_stride, scale);
      if constexpr (F == Format::q4_0) scalar_encode_q4_0(x + 32 * b, quants, scale);
    }
  }
}
template <Format F>
MEMRA_HD inline void scalar_decode_blocks(ConstBlockCursor from, std::size_t n_blocks, float* y) noexcept {
  for (std::size_t b = 0; b < n_blocks; ++b) {
    if constexpr (F == Format::f32) {
      __builtin_memcpy(y + b, from.quants + 4 * b, 4);
    } else if constexpr (F == Format::f16) {
      y[b] = f16_to_f32(load_bytes<std::uint16_t>(from.quants + 2 * b));
    } else if constexpr (F == Format::bf16) {
      y[b] = bf16_to_f32(load_bytes<std::uint16_t>(from.quants + 2 * b));
    } else if constexpr (F == Format::fp8_e4m3) {
      y[b] = fp8_to_f32(load_bytes<std::uint8_t>(from.quants + b));
    } else {
      const std::byte* quants = from.quants + b * from.quant_stride;
      const std::byte* scale = from.scales + b * from.scale_stride;
      if constexpr (F == Format::q8_0) scalar_decode_q8_0(quants, scale, y + 32 * b);
      if constexpr (F == Format::q5_1)
        scalar_decode_q5_1(quants, from.fifths + b * from.fifth_stride, scale, y + 32 * b);
      if constexpr (F == Format::q4_0) scalar_decode_q4_0(quants, scale, y + 32 * b);
    }
  }
}

}  // namespace memra::detail
