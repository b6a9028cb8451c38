// append on CUDA: K and V of a layer in one launch, four elements per thread, eight threads per block of 32.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <memra/detail/codec_scalar.hpp>
#include <memra/detail/portable_plane.hpp>
#include <memra/launch.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// Same bytes as the scalar codec. Minima, maxima and the value of largest magnitude keep the first of equals (signs of
/// zeros are stored): threads hold consecutive elements, and of a pair the lower thread's value stays unless beaten.
struct CudaAppend {
  static constexpr unsigned block_threads = 256;

  PortableTarget plane[2];
  const float* in[2];
  const std::int32_t* pos_d;
  std::size_t capacity;
  std::uint32_t rows;
  bool words[2];  ///< parts may be stored four bytes at a time

  CudaAppend(const PortableTarget& k, const PortableTarget& v, const float* k_in, const float* v_in, const StepPos& at)
      : plane{k, v},
        in{k_in, v_in},
        pos_d(at.pos_d),
        capacity(at.capacity),
        rows(static_cast<std::uint32_t>(at.rows)),
        words{in_words(k), in_words(v)} {}

  Grid grid() const noexcept {
    const std::size_t widest = plane[0].width > plane[1].width ? plane[0].width : plane[1].width;
    return {(rows * (widest / 4) + block_threads - 1) / block_threads, 1, 2};
  }

  static bool fits(const PortableTarget& k, const PortableTarget& v, const float* a, const float* b,
                   std::size_t rows) noexcept {
    const std::size_t widest = k.width > v.width ? k.width : v.width;
    const auto bits = reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b);
    return stores(k) && stores(v) && k.width % 32 == 0 && v.width % 32 == 0 && bits % 16 == 0 &&
           rows <= 0x7fffffffU / (widest / 4);
  }

  /// Item: (block of threads, 0, 0 for K or 1 for V).
  __device__ void block(const Item& item) const {
    const PortableTarget& p = plane[item.z];
    const bool wide = words[item.z];
    const auto quads = static_cast<std::uint32_t>(p.width / 4);
    const std::uint32_t at = static_cast<std::uint32_t>(item.x) * block_threads + threadIdx.x;
    const std::uint32_t row = at / quads;
    const std::uint32_t quad = at - row * quads;
    std::size_t phys = 0;
    // Threads of one block of 32 share their row, so all eight stay or leave; the others' shuffles do not concern them.
    const bool live = row < rows && portable_row(*pos_d, row, p, capacity, phys);
    float x[4] = {};
    if (live) {
      const float4 v = *reinterpret_cast<const float4*>(in[item.z] + std::size_t{at} * 4);
      x[0] = v.x;
      x[1] = v.y;
      x[2] = v.z;
      x[3] = v.w;
    }
    switch (p.format) {
      case Format::q8_0:
        return q8_0(x, live, wide, p.at(phys, quad / 8));
      case Format::q5_1:
        return q5_1(x, live, wide, p.at(phys, quad / 8));
      case Format::q4_0:
        return q4_0(x, live, wide, p.at(phys, quad / 8));
      case Format::f32:
        if (live) *reinterpret_cast<float4*>(p.at(phys, quad * 4).quants) = make_float4(x[0], x[1], x[2], x[3]);
        return;
      case Format::f16:
        if (live)
          put_halves(p.at(phys, quad * 4).quants, half_bits(x[0]), half_bits(x[1]), half_bits(x[2]), half_bits(x[3]));
        return;
      case Format::bf16:
        if (live) {
          put_halves(p.at(phys, quad * 4).quants, f32_to_bf16(x[0]), f32_to_bf16(x[1]), f32_to_bf16(x[2]),
                     f32_to_bf16(x[3]));
        }
        return;
      case Format::fp8_e4m3:
        if (live) {
          put(p.at(phys, quad * 4).quants,
              f32_to_fp8(x[0]) | f32_to_fp8(x[1]) << 8 | f32_to_fp8(x[2]) << 16 | std::uint32_t{f32_to_fp8(x[3])} << 24,
              true);
        }
        return;
    }
  }

 private:
  /// Blocks of every format are an even number of bytes; rows of formats without blocks are stored up to 16 at a time.
  static bool stores(const PortableTarget& p) noexcept {
    const bool blocks = p.format == Format::q8_0 || p.format == Format::q5_1 || p.format == Format::q4_0;
    return reinterpret_cast<std::uintptr_t>(p.first.quants) % (blocks ? 2 : 16) == 0;
  }

  static bool in_words(const PortableTarget& p) noexcept {
    const bool pairs = p.format == Format::q5_1;  // its scales are pairs
    std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(p.first.quants) | p.quant_row | p.first.quant_stride;
    if (pairs) {
      bits |= reinterpret_cast<std::uintptr_t>(p.first.fifths) | p.fifth_row | p.first.fifth_stride;
      bits |= reinterpret_cast<std::uintptr_t>(p.first.scales) | p.scale_row | p.first.scale_stride;
    }
    return bits % 4 == 0;
  }

  static __device__ unsigned lane() { return threadIdx.x % 8; }

  /// Reduces over the eight threads of a block; f(lower, higher) keeps `lower` unless `higher` beats it.
  template <class F>
  static __device__ float reduce(float x, const F& f) {
#pragma unroll
    for (unsigned distance = 1; distance < 8; distance *= 2) {
      const float other = __shfl_xor_sync(0xffffffffU, x, distance, 8);
      x = (lane() & distance) == 0 ? f(x, other) : f(other, x);
    }
    return x;
  }

  /// f32_to_f16 by the conversion instruction, which rounds the same way but has another NaN.
  static __device__ std::uint16_t half_bits(float x) {
    const std::uint32_t u = __float_as_uint(x);
    if ((u & 0x7FFFFFFFU) > f32_inf_bits) return static_cast<std::uint16_t>((u >> 16 & 0x8000U) | 0x7E00U);
    return __half_as_ushort(__float2half_rn(x));
  }
  static __device__ std::uint16_t scale_bits(float d) {
    const std::uint16_t h = half_bits(d);
    return (h & 0x7FFFU) == 0x7C00U ? static_cast<std::uint16_t>(h - 1U) : h;
  }
  static __device__ void put_halves(std::byte* to, std::uint16_t a, std::uint16_t b, std::uint16_t c, std::uint16_t d) {
    *reinterpret_cast<uint2*>(to) =
        make_uint2(std::uint32_t{a} | std::uint32_t{b} << 16, std::uint32_t{c} | std::uint32_t{d} << 16);
  }

  static __device__ void put(std::byte* to, std::uint32_t four, bool wide) {
    if (wide) {
      *reinterpret_cast<std::uint32_t*>(to) = four;
    } else {  // blocks of every format are an even number of bytes
      reinterpret_cast<std::uint16_t*>(to)[0] = static_cast<std::uint16_t>(four);
      reinterpret_cast<std::uint16_t*>(to)[1] = static_cast<std::uint16_t>(four >> 16);
    }
  }

  __device__ void q8_0(const float* in4, bool live, bool wide, const BlockCursor& to) const {
    float x[4];
    float top = 0.0F;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = block_input(in4[i]);
      const float m = x[i] < 0 ? -x[i] : x[i];
      top = top < m ? m : top;
    }
    top = reduce(top, [](float a, float b) { return a < b ? b : a; });
    const float d = top / 127.0F;
    const float id = inverse_scale(d);
    std::uint32_t four = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      four |= (static_cast<std::uint32_t>(round_half_away(product(x[i], id))) & 255U) << (8 * i);
    }
    if (!live) return;
    put(to.quants + 4 * lane(), four, wide);
    if (lane() == 0) *reinterpret_cast<std::uint16_t*>(to.scales) = scale_bits(d);
  }

  /// Nibbles of elements i and i + 16 share a byte: the upper four threads hand theirs to the lower four.
  __device__ void put_nibbles(std::uint32_t four, bool live, bool wide, std::byte* quants) const {
    const std::uint32_t upper = __shfl_down_sync(0xffffffffU, four, 4, 8);
    if (live && lane() < 4) put(quants + 4 * lane(), four | upper << 4, wide);
  }

  __device__ void q5_1(const float* in4, bool live, bool wide, const BlockCursor& to) const {
    float x[4];
    float min = block_input(in4[0]);
    float max = min;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = block_input(in4[i]);
      min = x[i] < min ? x[i] : min;
      max = x[i] > max ? x[i] : max;
    }
    min = reduce(min, [](float a, float b) { return b < a ? b : a; });
    max = reduce(max, [](float a, float b) { return b > a ? b : a; });
    const float d = (max - min) / 31.0F;
    const float id = inverse_scale(d);
    std::uint32_t four = 0;
    std::uint32_t fifth = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float y = id == 0 ? 0.0F : product(x[i] - min, id);
      const auto q = static_cast<std::uint32_t>(y + 0.5F);
      four |= (q & 15U) << (8 * i);
      fifth |= (q >> 4) << (4 * lane() + static_cast<unsigned>(i));
    }
#pragma unroll
    for (unsigned distance = 1; distance < 8; distance *= 2) {
      fifth |= __shfl_xor_sync(0xffffffffU, fifth, distance, 8);
    }
    put_nibbles(four, live, wide, to.quants);
    if (!live || lane() != 0) return;
    put(to.fifths, fifth, wide);
    put(to.scales, std::uint32_t{scale_bits(d)} | std::uint32_t{half_bits(min)} << 16, wide);
  }

  __device__ void q4_0(const float* in4, bool live, bool wide, const BlockCursor& to) const {
    const auto size = [](float v) { return v < 0 ? -v : v; };
    float x[4];
    // A block of zeros keeps +0, as the scalar codec's start does.
    float largest = 0.0F;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = block_input(in4[i]);
      largest = size(largest) < size(x[i]) ? x[i] : largest;
    }
    largest = reduce(largest, [&](float a, float b) { return size(a) < size(b) ? b : a; });
    const float d = largest / -8.0F;
    const float id = inverse_scale(d);
    std::uint32_t four = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto q = static_cast<std::uint32_t>(product(x[i], id) + 8.5F);
      four |= (id == 0 && d != 0 ? 0U : q < 15U ? q : 15U) << (8 * i);
    }
    put_nibbles(four, live, wide, to.quants);
    if (live && lane() == 0) *reinterpret_cast<std::uint16_t*>(to.scales) = scale_bits(d);
  }
};

}  // namespace memra::detail
