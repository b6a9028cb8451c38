// Queries as halves, and scores: the first products of attend's kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/cuda/attend_block.cuh>
#include <memra/cuda/attend_mma.cuh>
#include <memra/cuda/attend_tile.cuh>

namespace memra::detail {

template <class Block>
struct CudaAttendScore : Block {
  using Base = Block;
  using Base::Base;
  using Base::columns;
  using Base::factors_at;
  using Base::group;
  using Base::group_begin_if;
  using Base::group_commit_if;
  using Base::group_wait_if;
  using Base::groups;
  using Base::k;
  using Base::k_bf16;
  using Base::q;
  using Base::queries_at;
  using Base::ranges_at;
  using Base::scale;
  using Base::shape;
  using Base::step_keys;
  using Base::terms;
  using Base::warps;
  using typename Base::Keys;
  using typename Base::KStage;
  using typename Base::Place;
  static constexpr Format KF = Block::k_format;
  static constexpr Format VF = Block::v_format;
  static constexpr unsigned Tiles = Block::n_tiles;

  /// Columns of a warp whose elements are on their way together: as many as there are registers for before the loop.
  static constexpr unsigned quads = (Base::dk + 127) / 128;  ///< of a lane
  static constexpr unsigned batch = columns / warps < 16 / quads ? columns / warps : 16 / quads;
  using Batch = float4[batch][quads];

  /// A warp's columns from `first` on: those of the first batch before anything waits for memory.
  __device__ void load_queries(const Place& at, unsigned first, Batch& x) const {
    constexpr unsigned dk = Base::dk;
    const unsigned rows = static_cast<unsigned>(shape.rows);
#pragma unroll
    for (unsigned i = 0; i < batch; ++i) {
      const unsigned c = at.first_column + first + i;
      const unsigned row = c / at.heads;
      const float* const from =
          q + ((shape.first_row + row) * shape.n_heads + (at.kv_head * at.heads + (c - row * at.heads))) * dk;
#pragma unroll
      for (unsigned j = 0; j < quads; ++j) {
        const unsigned n = j * 32 + at.lane;
        x[i][j] = row < rows && n < dk / 4 ? load_quad(from + 4 * n) : float4{};
      }
    }
  }

  /// Scales each column's query to halves, exactly but for one rounding: a power of two of its own takes its largest
  /// element to between 2^8 and 2^9.
  __device__ void prepare_queries(const Place& at, Batch& x) const {
    constexpr unsigned dk = Base::dk;
#pragma unroll 1
    for (unsigned first = at.warp * batch; first < columns; first += warps * batch) {
      if (first != at.warp * batch) load_queries(at, first, x);
#pragma unroll
      for (unsigned i = 0; i < batch; ++i) {
        float top = 0.0F;
#pragma unroll
        for (unsigned j = 0; j < quads; ++j) {
          x[i][j] = {__fmul_rn(x[i][j].x, scale), __fmul_rn(x[i][j].y, scale), __fmul_rn(x[i][j].z, scale),
                     __fmul_rn(x[i][j].w, scale)};
          top = fmaxf(top, fmaxf(fmaxf(fabsf(x[i][j].x), fabsf(x[i][j].y)), fmaxf(fabsf(x[i][j].z), fabsf(x[i][j].w))));
        }
#pragma unroll
        for (unsigned distance = 16; distance != 0; distance /= 2) {
          top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, distance));
        }
        // The exponent of top, within what a float's power of two can be; infinities stay what they are.
        int e = static_cast<int>(__float_as_uint(top) >> 23) - 127 - 8;
        e = top == 0.0F || e > 119 ? 0 : e < -100 ? -100 : e;
        const float up = __uint_as_float(static_cast<unsigned>(127 - e) << 23);
        const unsigned c = first + i;
        if (at.lane == 0) {
          reinterpret_cast<float*>(at.shared + factors_at)[c] = __uint_as_float(static_cast<unsigned>(127 + e) << 23);
        }
#pragma unroll
        for (unsigned j = 0; j < quads; ++j) {
          const unsigned d = (j * 32 + at.lane) * 4;
          if (d >= dk) continue;
          const float y[4] = {__fmul_rn(x[i][j].x, up), __fmul_rn(x[i][j].y, up), __fmul_rn(x[i][j].z, up),
                              __fmul_rn(x[i][j].w, up)};
#pragma unroll
          for (unsigned n = 0; n < 2; ++n) {
            const auto place = Keys::place(d % 16, n);
            store_query(at, d / 16, c, place.reg, place.t, y[place.first], y[place.second]);
          }
        }
      }
    }
  }

  __device__ static float4 load_quad(const float* p) {
    if (reinterpret_cast<std::uintptr_t>(p) % 16 == 0) return *reinterpret_cast<const float4*>(p);
    return {p[0], p[1], p[2], p[3]};
  }

  /// Elements of places 2 t, 2 t + 1 (plus 8 if reg is 1) of 16 as a column's, in shared memory.
  __device__ void store_query(const Place& at, unsigned step, unsigned c, unsigned reg, unsigned t, float low,
                              float high) const {
    auto* const to = reinterpret_cast<std::uint32_t*>(at.shared + queries_at) +
                     ((step * Tiles + c / 8) * 2 + reg) * 32 + c % 8 * 4 + t;
    *to = pack_halves<k_bf16>(low, high);
    if constexpr (terms == 2) {
      to[Base::dk * Tiles * 4] = pack_halves<true>(__fsub_rn(low, __uint_as_float(*to << 16)),
                                                   __fsub_rn(high, __uint_as_float(*to & 0xFFFF0000U)));
    }
  }

  /// s[tile]: keys g and g + 8 of this warp's, columns 2 t and 2 t + 1 of the tile.
  __device__ void score(const Place& at, std::uint32_t part, float (&s)[Tiles][4]) const {
    constexpr unsigned pair_bytes = 2 * AttendFormat<KF>::group_bytes;
    const std::uint32_t lane_keys = part + at.k_quants;
    const std::uint32_t scales = part + at.k_scales;
    const AttendOperand<group> queries(at.base + queries_at, at.lane);
    std::uint32_t query = queries.at;
    [[maybe_unused]] const std::uint32_t second = queries.step(Base::dk * Tiles * 16);
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) s[i][j] = 0.0F;
    }
    __half2 top[2] = {};
    // Two groups of 32 elements at a time: their scales share a word.
    const auto decode = [&](unsigned pair, std::uint32_t(&a)[2][2][4]) {
      const unsigned byte = pair * pair_bytes;
      Keys::load((lane_keys + byte / KStage::width * step_keys * KStage::width) ^ (byte % KStage::width), a);
      if constexpr (AttendFormat<KF>::blocks) {
        const std::uint32_t word = scales + KStage::scale_at(pair * 4);
        const __half2 d[2] = {half2_of(load_shared_4(word)), half2_of(load_shared_4(word + 8 * column_bytes))};
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
          top[i] = __hmax2(top[i], __habs2(d[i]));
          const __half2 both[2] = {__low2half2(d[i]), __high2half2(d[i])};
#pragma unroll
          for (unsigned j = 0; j < 4; ++j) {  // group and step
            std::uint32_t(&r)[4] = a[j / 2][j % 2];
            r[i] = half2_bits(__hmul2(half2_of(r[i]), both[j / 2]));
            r[i + 2] = half2_bits(__hmul2(half2_of(r[i + 2]), both[j / 2]));
          }
        }
      }
    };
    const auto product = [&](const std::uint32_t(&a)[2][2][4]) {
      group_begin_if();
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        multiply<group, k_bf16>(s, a[j / 2][j % 2], query + queries.step(j * Tiles * 256));
        if constexpr (terms == 2) {
          multiply<group, k_bf16>(s, a[j / 2][j % 2], query + queries.step(j * Tiles * 256) + second);
        }
      }
      group_commit_if();
      query += queries.step(4 * Tiles * 256);
    };
    constexpr unsigned pairs = Base::dk / 64;
#pragma unroll(pairs > 4 ? 1 : 2)
    for (unsigned pair = 0; pair + 2 <= pairs; pair += 2) {  // one is decoded while the other is multiplied
      std::uint32_t a[2][2][2][4];
      decode(pair, a[0]);
      product(a[0]);
      decode(pair + 1, a[1]);
      product(a[1]);
      group_wait_if();
    }
    if constexpr (pairs == 1) {
      std::uint32_t a[2][2][4];
      decode(0, a);
      product(a);
      group_wait_if();
    }
    if constexpr (AttendFormat<KF>::blocks) {
      const __half2 most = half2_twice(AttendFormat<KF>::most_scale);
      if (__any_sync(0xffffffffU, !__hble2(__hmax2(top[0], top[1]), most))) {
        const bool wild[2] = {!__hble2(top[0], most), !__hble2(top[1], most)};
        score_wild(at, part, wild, s);
      }
    }
  }

  /// Keys whose values do not fit into halves: one by one, in f32.
  __device__ void score_wild(const Place& at, std::uint32_t part, const bool (&wild)[2], float (&s)[Tiles][4]) const {
    const auto* const queries = reinterpret_cast<const __half*>(at.shared + queries_at);
    float x[Tiles][4];  // indexed at run time: in memory, where `s` must not be
#pragma unroll
    for (unsigned i = 0; i < Tiles * 4; ++i) x[i / 4][i % 4] = s[i / 4][i % 4];
#pragma unroll 1
    for (unsigned i = 0; i < Tiles * 4; ++i) {
      const unsigned j = i % 4;
      if (j < 2 ? !wild[0] : !wild[1]) continue;
      const unsigned key = at.warp * 16 + at.g + j / 2 * 8;
      float y = 0.0F;
#pragma unroll 1
      for (unsigned n = 0; n < Base::dk; ++n) {  // n: place in the products' order
        const unsigned e = n / 32 * 32 + Keys::element(n / 16 % 2, n % 8 / 2, n / 8 % 2, n % 2);
        const __half w = queries[((n / 16 * Tiles + i / 4) * 2 + n / 8 % 2) * 64 + (2 * at.t + j % 2) * 8 + n % 8];
        y = __fmaf_rn(__half2float(w), k.value(part, key, e, KStage::column_offset(at.k_element)), y);
      }
      x[i / 4][j] = y;
    }
#pragma unroll
    for (unsigned i = 0; i < Tiles * 4; ++i) s[i / 4][i % 4] = x[i / 4][i % 4];
  }

  /// Scores of keys that a column does not see become -inf.
  __device__ void mask(const Place& at, unsigned first, float (&s)[Tiles][4]) const {
    const auto* const ranges = reinterpret_cast<const uint2*>(at.shared + ranges_at);
    const unsigned key = first + at.warp * 16 + at.g;
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        const uint2 r = ranges[8 * i + 2 * at.t + j % 2];
        const unsigned own = key + j / 2 * 8;
        if (own < r.x || own >= r.y) s[i][j] = -INFINITY;
      }
    }
  }
};

}  // namespace memra::detail
