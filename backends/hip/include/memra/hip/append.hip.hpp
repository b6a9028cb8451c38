// append on HIP: K and V of a layer in one launch, four elements per lane, eight lanes per block of 32.
#pragma once

#include <hip/hip_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memra/detail/codec_scalar.hpp>
#include <memra/detail/half.hpp>
#include <memra/detail/portable_plane.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/hip/lanes.hip.hpp>
#include <memra/hip/words.hip.hpp>
#include <memra/launch.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// Same bytes as the scalar codec. Minima, maxima and the value of largest magnitude keep the first of equals (signs of
/// zeros are stored): lanes hold consecutive elements, and of a pair the lower lane's value stays unless beaten.
struct HipAppend {
  static constexpr unsigned block_threads = 256;

  PortableTarget plane[2];
  const float* in[2];
  const std::int32_t* pos_d;
  std::size_t capacity;
  std::size_t rows;
  bool words[2];  ///< parts may be stored four bytes at a time
  bool latent;    ///< there is no plane of V

  HipAppend(const KvWriteView& kv, const float* k_in, const float* v_in) noexcept
      : plane{PortableTarget(kv.k), PortableTarget(kv.v)},
        in{k_in, v_in},
        pos_d(kv.at.pos_d),
        capacity(kv.at.capacity),
        rows(kv.at.rows),
        words{in_words(plane[0]), in_words(plane[1])},
        latent(kv.v_in_k) {}

  Grid grid() const noexcept {
    const std::size_t widest = plane[0].width > plane[1].width ? plane[0].width : plane[1].width;
    return {(widest / 4 + block_threads - 1) / block_threads, rows, latent ? 1U : 2U};
  }

  bool fits() const noexcept { return rows <= 65535 && takes(0) && (latent || takes(1)); }

  /// Item: (256 times four elements, row, 0 for K or 1 for V).
  __device__ void block(const Item& item) const {
    const PortableTarget& p = plane[item.z];
    const bool wide = words[item.z];
    const std::size_t quad = item.x * block_threads + threadIdx.x;
    std::size_t phys = 0;
    // Lanes of one block of 32 stay or leave together, but all of them take part in the exchanges.
    const bool live = quad < p.width / 4 && portable_row(*pos_d, item.y, p, capacity, phys);
    float x[4] = {};
    if (live) {
      const Floats<4> v = *reinterpret_cast<const Floats<4>*>(in[item.z] + item.y * p.width + quad * 4);
      for (int i = 0; i < 4; ++i) x[i] = v.at[i];
    }
    switch (p.format) {
      case Format::q8_0:
        return q8_0(x, live, wide, p.at(phys, quad / 8));
      case Format::q5_1:
        return q5_1(x, live, wide, p.at(phys, quad / 8));
      case Format::q4_0:
        return q4_0(x, live, wide, p.at(phys, quad / 8));
      case Format::f32:
        if (live) *reinterpret_cast<Floats<4>*>(p.at(phys, quad * 4).quants) = {{x[0], x[1], x[2], x[3]}};
        return;
      case Format::f16:
        if (live) put_halves(p.at(phys, quad * 4).quants, x, f32_to_f16);
        return;
      case Format::bf16:
        if (live) put_halves(p.at(phys, quad * 4).quants, x, f32_to_bf16);
        return;
      case Format::fp8_e4m3:
        if (live) {
          put(p.at(phys, quad * 4).quants,
              std::uint32_t{f32_to_fp8(x[0])} | std::uint32_t{f32_to_fp8(x[1])} << 8 |
                  std::uint32_t{f32_to_fp8(x[2])} << 16 | std::uint32_t{f32_to_fp8(x[3])} << 24,
              true);
        }
        return;
    }
  }

 private:
  /// Blocks of every format are an even number of bytes; rows of formats without blocks are stored up to 16 at a time.
  bool takes(unsigned i) const noexcept {
    const PortableTarget& p = plane[i];
    const bool blocks = p.format == Format::q8_0 || p.format == Format::q5_1 || p.format == Format::q4_0;
    return p.width % 32 == 0 && reinterpret_cast<std::uintptr_t>(in[i]) % 16 == 0 &&
           reinterpret_cast<std::uintptr_t>(p.first.quants) % (blocks ? 2 : 16) == 0;
  }

  static bool in_words(const PortableTarget& p) noexcept {
    std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(p.first.quants) | p.quant_row | p.first.quant_stride;
    if (p.format == Format::q5_1) {  // its scales are pairs
      bits |= reinterpret_cast<std::uintptr_t>(p.first.fifths) | p.first.fifth_stride;
      bits |= reinterpret_cast<std::uintptr_t>(p.first.scales) | p.scale_row | p.first.scale_stride;
    }
    return bits % 4 == 0;
  }

  static __device__ unsigned lane() { return threadIdx.x % 8; }

  template <class Narrow>
  static __device__ void put_halves(std::byte* to, const float (&x)[4], const Narrow& narrow) {
    Words<2> w;
    w.at[0] = std::uint32_t{narrow(x[0])} | std::uint32_t{narrow(x[1])} << 16;
    w.at[1] = std::uint32_t{narrow(x[2])} | std::uint32_t{narrow(x[3])} << 16;
    *reinterpret_cast<Words<2>*>(to) = w;
  }

  static __device__ void put(std::byte* to, std::uint32_t four, bool wide) {
    if (wide) {
      *reinterpret_cast<Words<1>*>(to) = {{four}};
    } else {
      store_half_word(to, static_cast<std::uint16_t>(four));
      store_half_word(to + 2, static_cast<std::uint16_t>(four >> 16));
    }
  }

  /// f(lower, higher) keeps `lower` unless `higher` beats it.
  template <unsigned Distance, class F>
  static __device__ float step(float x, const F& f) {
    const float other = row_partner<Distance>(x);
    return (lane() & Distance) == 0 ? f(x, other) : f(other, x);
  }
  template <class F>
  static __device__ float reduce(float x, const F& f) {
    return step<4>(step<2>(step<1>(x, f), f), f);
  }

  __device__ void q8_0(const float (&in4)[4], bool live, bool wide, const BlockCursor& to) const {
    float x[4];
    float top = 0.0F;
    for (int i = 0; i < 4; ++i) {
      x[i] = block_input(in4[i]);
      const float m = x[i] < 0 ? -x[i] : x[i];
      top = top < m ? m : top;
    }
    top = reduce(top, [](float a, float b) { return a < b ? b : a; });
    const float d = quotient(top, 127.0F);
    const float id = inverse_scale(d);
    std::uint32_t four = 0;
    for (int i = 0; i < 4; ++i) {
      four |= (static_cast<std::uint32_t>(round_half_away(product(x[i], id))) & 255U) << (8 * i);
    }
    if (!live) return;
    put(to.quants + 4 * lane(), four, wide);
    if (lane() == 0) store_half_word(to.scales, stored_scale(d));
  }

  /// Nibbles of elements i and i + 16 share a byte: the upper four lanes hand theirs to the lower four.
  __device__ void put_nibbles(std::uint32_t four, bool live, bool wide, std::byte* quants) const {
    const std::uint32_t upper = row_partner<4>(four);
    if (live && lane() < 4) put(quants + 4 * lane(), four | upper << 4, wide);
  }

  __device__ void q5_1(const float (&in4)[4], bool live, bool wide, const BlockCursor& to) const {
    float x[4];
    float min = block_input(in4[0]);
    float max = min;
    for (int i = 0; i < 4; ++i) {
      x[i] = block_input(in4[i]);
      min = x[i] < min ? x[i] : min;
      max = x[i] > max ? x[i] : max;
    }
    min = reduce(min, [](float a, float b) { return b < a ? b : a; });
    max = reduce(max, [](float a, float b) { return b > a ? b : a; });
    const float d = quotient(max - min, 31.0F);
    const float id = inverse_scale(d);
    std::uint32_t four = 0;
    std::uint32_t fifth = 0;
    for (int i = 0; i < 4; ++i) {
      const float y = id == 0 ? 0.0F : product(x[i] - min, id);
      const auto q = static_cast<std::uint32_t>(y + 0.5F);
      four |= (q & 15U) << (8 * i);
      fifth |= (q >> 4) << (4 * lane() + static_cast<unsigned>(i));
    }
    fifth |= row_partner<1>(fifth);
    fifth |= row_partner<2>(fifth);
    fifth |= row_partner<4>(fifth);
    put_nibbles(four, live, wide, to.quants);
    if (!live || lane() != 0) return;
    put(to.fifths, fifth, wide);
    put(to.scales, std::uint32_t{stored_scale(d)} | std::uint32_t{f32_to_f16(min)} << 16, wide);
  }

  __device__ void q4_0(const float (&in4)[4], bool live, bool wide, const BlockCursor& to) const {
    const auto size = [](float v) { return v < 0 ? -v : v; };
    float x[4];
    // A block of zeros keeps +0, as the scalar codec's start does.
    float largest = 0.0F;
    for (int i = 0; i < 4; ++i) {
      x[i] = block_input(in4[i]);
      largest = size(largest) < size(x[i]) ? x[i] : largest;
    }
    largest = reduce(largest, [&](float a, float b) { return size(a) < size(b) ? b : a; });
    const float d = quotient(largest, -8.0F);
    const float id = inverse_scale(d);
    std::uint32_t four = 0;
    for (int i = 0; i < 4; ++i) {
      const auto q = static_cast<std::uint32_t>(product(x[i], id) + 8.5F);
      four |= (id == 0 && d != 0 ? 0U : q < 15U ? q : 15U) << (8 * i);
    }
    put_nibbles(four, live, wide, to.quants);
    if (live && lane() == 0) store_half_word(to.scales, stored_scale(d));
  }
};

}  // namespace memra::detail
