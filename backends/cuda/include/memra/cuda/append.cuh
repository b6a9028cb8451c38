// append on CUDA: K and V of a layer in one launch, eight elements per thread, four threads per 32.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memra/detail/codec_scalar.hpp>
#include <memra/detail/portable_plane.hpp>
#include <memra/launch.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// Same bytes as the scalar codec.
///
/// Thread j of four holds elements 4j..4j+3 and 16+4j..16+4j+3, whose nibbles share bytes.
/// Extremes are taken without regard to order; the cases where it matters (the first of equals lends its sign) are
/// looked for and settled apart, as are NaN and infinities.
struct CudaAppend {
  static constexpr unsigned block_threads = 128;

  /// One plane, in groups of 32 elements: blocks, or as many single elements.
  struct Target {
    BlockCursor first;        ///< of row 0; strides from group to group
    const float* in;          ///< [groups][32]
    std::int64_t base;        ///< stream row of the plane's first; 0 in a ring
    std::int64_t limit;       ///< rows from there on that the stream may have
    std::int64_t column;      ///< as PortablePlane has it
    std::uint32_t quant_row;  ///< bytes, as is the next
    std::uint32_t scale_row;
    std::uint32_t per_row;  ///< groups of a row
    std::uint32_t shift;    ///< see row_of
    std::uint32_t magic;
    std::uint32_t ring;    ///< rows of a ring; 0: none
    std::uint32_t groups;  ///< of this call
    Format format;
    bool words;  ///< parts may be stored four bytes at a time

    Target(const PortableTarget& p, const float* x, const StepPos& at)
        : first(p.first),
          in(x),
          base(p.ring ? 0 : static_cast<std::int64_t>(p.base)),
          limit(0),
          column(static_cast<std::int64_t>(p.column)),
          quant_row(static_cast<std::uint32_t>(p.quant_row)),
          scale_row(static_cast<std::uint32_t>(p.scale_row)),
          per_row(static_cast<std::uint32_t>(p.width / 32)),
          shift(static_cast<std::uint32_t>(std::bit_width(per_row - 1))),
          magic(static_cast<std::uint32_t>((((std::uint64_t{1} << shift) - per_row) << 32) / per_row + 1)),
          ring(p.ring ? static_cast<std::uint32_t>(p.rows) : 0),
          groups(static_cast<std::uint32_t>(at.rows * (p.width / 32))),
          format(p.format),
          words(in_words(p)) {
      const std::size_t below = p.ring ? at.capacity : at.capacity < p.base ? 0 : at.capacity - p.base;
      limit = static_cast<std::int64_t>(p.ring || below < p.rows ? below : p.rows);
      if (!has_blocks(p.format)) first.quant_stride *= 32;
    }
    /// group / per_row, by a multiplication: exact below 2^31 (magic is 2^32 (2^shift / per_row - 1), rounded up).
    __device__ std::uint32_t row_of(std::uint32_t group) const { return (__umulhi(group, magic) + group) >> shift; }
  };

  Target plane[2];
  const std::int32_t* pos_d;
  bool latent;  ///< there is no plane of V

  CudaAppend(const KvWriteView& kv, const float* k, const float* v)
      : plane{Target(PortableTarget(kv.k), k, kv.at), Target(PortableTarget(kv.v_in_k ? kv.k : kv.v), v, kv.at)},
        pos_d(kv.at.pos_d),
        latent(kv.v_in_k) {}

  Grid grid() const noexcept {
    const std::size_t most = latent || plane[0].groups > plane[1].groups ? plane[0].groups : plane[1].groups;
    return {(most * 4 + block_threads - 1) / block_threads, latent ? 1U : 2U, 1};
  }

  static bool fits(const KvWriteView& kv, const float* k, const float* v) noexcept {
    return fits(PortableTarget(kv.k), k, kv.at.rows) && (kv.v_in_k || fits(PortableTarget(kv.v), v, kv.at.rows));
  }

  /// Item: (block of threads, 0 for K or 1 for V).
  __device__ void block(const Item& item) const {
    const Target& p = plane[item.y];
    const std::uint32_t at = static_cast<std::uint32_t>(item.x) * block_threads + threadIdx.x;
    const std::uint32_t group = at / 4;
    const bool asked = group < p.groups;
    // The inputs do not wait for the position.
    float x[8] = {};
    if (asked) {
      const auto* in = reinterpret_cast<const float4*>(p.in) + std::size_t{group} * 8 + at % 4;
      const float4 a = in[0];
      const float4 b = in[4];
      x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
      x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    }
    // Nor does where a row's groups are.
    const std::uint32_t row = p.row_of(group);
    const std::uint32_t block = group - row * p.per_row;
    const std::uint32_t byte = block * static_cast<std::uint32_t>(p.first.scale_stride);
    const auto of_column = static_cast<std::uint32_t>(column_bytes);
    const std::int64_t quant = std::int64_t{block} * static_cast<std::uint32_t>(p.first.quant_stride);
    const std::int64_t narrow = byte / of_column * p.column + byte % of_column;
    const std::int64_t pos = *pos_d;
    // Negative for rows below the plane's base.
    std::int64_t phys = pos - p.base + row;
    const bool live = asked && pos >= 0 && phys >= 0 && phys < p.limit;
    if (p.ring != 0) {  // a call has no more rows than the ring
      phys = std::int64_t{static_cast<std::uint32_t>(pos) % p.ring} + row;
      if (phys >= p.ring) phys -= p.ring;
    }
    // NaN if any of the eight is NaN or infinite.
    float zero = 0.0F;
#pragma unroll
    for (int i = 0; i < 8; ++i) zero = __fmaf_rn(x[i], 0.0F, zero);
    const bool odd = zero != zero;
    if (has_blocks(p.format) && odd) {
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = block_input(x[i]);
    }
    const std::int64_t to = narrow + phys * p.scale_row;
    const BlockCursor c{p.first.quants + quant + phys * p.quant_row, p.first.fifths + to, p.first.scales + to, 0, 0, 0};
    switch (p.format) {
      case Format::q8_0:
        return q8_0(x, live, p.words, c);
      case Format::q5_1:
        return q5_1(x, live, p.words, c);
      case Format::q4_0:
        return q4_0(x, live, p.words, c);
      case Format::f32:
        if (!live) return;
        reinterpret_cast<float4*>(c.quants)[lane()] = make_float4(x[0], x[1], x[2], x[3]);
        reinterpret_cast<float4*>(c.quants)[4 + lane()] = make_float4(x[4], x[5], x[6], x[7]);
        return;
      case Format::f16:
        if (live) halves<Format::f16>(x, odd, c.quants);
        return;
      case Format::bf16:
        if (live) halves<Format::bf16>(x, odd, c.quants);
        return;
      case Format::fp8_e4m3:
        if (!live) return;
        reinterpret_cast<std::uint32_t*>(c.quants)[lane()] = fp8(x, odd);
        reinterpret_cast<std::uint32_t*>(c.quants)[4 + lane()] = fp8(x + 4, odd);
        return;
    }
  }

 private:
  static constexpr unsigned all_lanes = 0xffffffffU;

  static constexpr __host__ __device__ bool has_blocks(Format f) {
    return f == Format::q8_0 || f == Format::q5_1 || f == Format::q4_0;
  }

  static bool fits(const PortableTarget& p, const float* x, std::size_t rows) noexcept {
    return stores(p) && p.width != 0 && p.width % 32 == 0 && reinterpret_cast<std::uintptr_t>(x) % 16 == 0 &&
           rows <= 0x7fffffffU / (p.width / 8) && p.quant_row <= 0x7fffffffU && (!p.ring || p.rows <= 0x7fffffffU);
  }

  /// Blocks of every format are an even number of bytes; rows of formats without blocks are stored up to 16 at a time.
  static bool stores(const PortableTarget& p) noexcept {
    return reinterpret_cast<std::uintptr_t>(p.first.quants) % (has_blocks(p.format) ? 2 : 16) == 0;
  }

  static bool in_words(const PortableTarget& p) noexcept {
    const bool pairs = p.format == Format::q5_1;  // its scales are pairs
    std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(p.first.quants) | p.quant_row | p.first.quant_stride;
    if (pairs) {
      bits |= reinterpret_cast<std::uintptr_t>(p.first.fifths) | p.first.fifth_stride;
      bits |= reinterpret_cast<std::uintptr_t>(p.first.scales) | p.scale_row | p.first.scale_stride;
    }
    return bits % 4 == 0;
  }

  static __device__ unsigned lane() {
    return threadIdx.x % 4;
  }

  static __device__ float most(float x) {
    x = fmaxf(x, __shfl_xor_sync(all_lanes, x, 1));
    return fmaxf(x, __shfl_xor_sync(all_lanes, x, 2));
  }

  /// Smallest and largest of the block's elements; which of two zeros is left open.
  struct Extremes {
    float min, max;
    explicit __device__ Extremes(const float (&x)[8]) : min(x[0]), max(x[0]) {
#pragma unroll
      for (int i = 1; i < 8; ++i) {
        min = fminf(min, x[i]);
        max = fmaxf(max, x[i]);
      }
      min = -most(-min);
      max = most(max);
    }
  };

  /// Sign bit of the first of the block's elements for which `is` holds; all lanes of the warp take part.
  template <class F>
  static __device__ std::uint32_t sign_of_first(const float (&x)[8], const F& is) {
    std::uint32_t key = 0xffffffffU;  // element, then its sign
#pragma unroll
    for (int i = 7; i >= 0; --i) {
      const std::uint32_t element = 4 * lane() + static_cast<unsigned>(i % 4 + (i / 4) * 16);
      if (is(x[i])) key = element << 1 | f32_bits(x[i]) >> 31;
    }
    std::uint32_t other = __shfl_xor_sync(all_lanes, key, 1);
    key = other < key ? other : key;
    other = __shfl_xor_sync(all_lanes, key, 2);
    key = other < key ? other : key;
    return key << 31;
  }

  /// inverse_scale, by the rounded reciprocal.
  static __device__ float inverse(float d) {
    const float id = __frcp_rn(d);
    return fabsf(id) <= f32_max ? id : 0.0F;
  }

  /// stored_scale of a number that is no NaN: what would round beyond 65504 is 65504.
  static __device__ std::uint16_t scale_bits(float d) {
    return __half_as_ushort(__float2half_rn(fmaxf(fminf(d, 65504.0F), -65504.0F)));
  }

  static __device__ std::uint32_t low_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
  }

  /// round_half_away without a comparison.
  static __device__ int half_away(float x) {
    constexpr float below_half = 0.49999997F;
    return static_cast<int>(x + copysignf(below_half, x));
  }

  /// Integer part of 0 <= y < 2^22, in the low bits.
  static __device__ std::uint32_t whole(float y) {
    return f32_bits(__fadd_rz(y, 8388608.0F));
  }

  static __device__ void put(std::byte* to, std::uint32_t four, bool wide) {
    if (wide) {
      *reinterpret_cast<std::uint32_t*>(to) = four;
    } else {
      reinterpret_cast<std::uint16_t*>(to)[0] = static_cast<std::uint16_t>(four);
      reinterpret_cast<std::uint16_t*>(to)[1] = static_cast<std::uint16_t>(four >> 16);
    }
  }

  /// Two at a time by the conversion instructions, whose NaN is another than ours.
  template <Format F>
  static __device__ void halves(const float (&x)[8], bool odd, std::byte* to) {
    std::uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float a = x[2 * i];
      const float b = x[2 * i + 1];
      if (odd) {
        w[i] = F == Format::f16 ? f32_to_f16(a) | std::uint32_t{f32_to_f16(b)} << 16
                                : f32_to_bf16(a) | std::uint32_t{f32_to_bf16(b)} << 16;
      } else if (F == Format::f16) {
        const __half2 h = __floats2half2_rn(a, b);
        w[i] = __half_as_ushort(__low2half(h)) | std::uint32_t{__half_as_ushort(__high2half(h))} << 16;
      } else {
        w[i] = round_bf16(a) >> 16 | (round_bf16(b) & 0xffff0000U);
      }
    }
    reinterpret_cast<uint2*>(to)[lane()] = make_uint2(w[0], w[1]);
    reinterpret_cast<uint2*>(to)[4 + lane()] = make_uint2(w[2], w[3]);
  }
  static __device__ std::uint32_t round_bf16(float x) {
    const std::uint32_t u = f32_bits(x);
    return u + 0x7fffU + (u >> 16 & 1U);
  }

  static __device__ std::uint32_t fp8(const float* x, bool odd) {
    if (odd) {
      return f32_to_fp8(x[0]) | f32_to_fp8(x[1]) << 8 | f32_to_fp8(x[2]) << 16 | std::uint32_t{f32_to_fp8(x[3])} << 24;
    }
    const std::uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(x[0], x[1]), __NV_SATFINITE, __NV_E4M3);
    const std::uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(x[2], x[3]), __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
  }

  static __device__ void q8_0(const float (&x)[8], bool live, bool wide, const BlockCursor& to) {
    float top = 0.0F;
#pragma unroll
    for (int i = 0; i < 8; ++i) top = fmaxf(top, fabsf(x[i]));
    const float d = quotient(most(top), 127.0F);
    const float id = inverse(d);
    std::uint32_t q[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) q[i] = static_cast<std::uint32_t>(half_away(product(x[i], id)));
    if (!live) return;
    put(to.quants + 4 * lane(), low_bytes(q[0], q[1], q[2], q[3]), wide);
    put(to.quants + 4 * lane() + 16, low_bytes(q[4], q[5], q[6], q[7]), wide);
    if (lane() == 0) *reinterpret_cast<std::uint16_t*>(to.scales) = scale_bits(d);
  }

  /// Bit 4 of each byte, as four neighbouring bits.
  static __device__ std::uint32_t fifth_bits(std::uint32_t bytes) {
    return ((bytes >> 4 & 0x01010101U) * 0x01020408U) >> 24;
  }

  static __device__ void q5_1(const float (&x)[8], bool live, bool wide, const BlockCursor& to) {
    const Extremes of(x);
    const float d = quotient(of.max - of.min, 31.0F);
    const float id = inverse(d);
    std::uint32_t q[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) q[i] = whole(product(x[i] - of.min, id) + 0.5F);
    std::uint32_t low = low_bytes(q[0], q[1], q[2], q[3]);
    std::uint32_t high = low_bytes(q[4], q[5], q[6], q[7]);
    if (id == 0.0F) low = high = 0;  // max - min may have overflowed, and then so may x - min
    std::uint32_t fifth = fifth_bits(low) << (4 * lane()) | fifth_bits(high) << (4 * lane() + 16);
    fifth |= __shfl_xor_sync(all_lanes, fifth, 1);
    fifth |= __shfl_xor_sync(all_lanes, fifth, 2);
    std::uint32_t sign = f32_bits(of.min);
    if (__any_sync(all_lanes, of.min == 0.0F)) {
      const std::uint32_t first = sign_of_first(x, [&](float v) { return v == of.min; });
      if (of.min == 0.0F) sign = first;
    }
    if (!live) return;
    put(to.quants + 4 * lane(), (low & 0x0f0f0f0fU) | (high & 0x0f0f0f0fU) << 4, wide);
    if (lane() == 0) put(to.fifths, fifth, wide);
    if (lane() == 1) {
      const std::uint32_t m = __half_as_ushort(__float2half_rn(f32_from_bits(sign)));
      put(to.scales, scale_bits(d) | m << 16, wide);
    }
  }

  static __device__ void q4_0(const float (&x)[8], bool live, bool wide, const BlockCursor& to) {
    const Extremes of(x);
    float largest = of.max > -of.min ? of.max : of.min;
    const bool tie = of.max == -of.min;
    if (__any_sync(all_lanes, tie)) {
      const std::uint32_t first = sign_of_first(x, [&](float v) { return fabsf(v) == of.max; });
      if (tie) largest = of.max == 0.0F ? 0.0F : f32_from_bits(f32_bits(of.max) | first);  // zeros count as +0
    }
    const float d = product(largest, -0.125F);
    const float id = inverse(d);
    std::uint32_t q[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) q[i] = whole(product(x[i], id) + 8.5F);
    std::uint32_t low = low_bytes(q[0], q[1], q[2], q[3]);
    std::uint32_t high = low_bytes(q[4], q[5], q[6], q[7]);
    low -= low >> 4 & 0x01010101U;  // 16 is 15
    high -= high >> 4 & 0x01010101U;
    if (id == 0.0F && d != 0.0F) low = high = 0;
    if (!live) return;
    put(to.quants + 4 * lane(), low | high << 4, wide);
    if (lane() == 0) *reinterpret_cast<std::uint16_t*>(to.scales) = scale_bits(d);
  }
};

}  // namespace memra::detail
