// Attention of a few queries over one tile of 64 keys: scores, online softmax, weighted sum of values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memra/detail/host_dot.hpp>
#include <memra/detail/host_reg.hpp>
#include <memra/detail/math.hpp>
#include <memra/detail/platform.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/detail/simd.hpp>
#include <memra/detail/strict_fp.hpp>

namespace memra::detail {

/// Registers of keys or values that one pass holds; max_attend_queries queries share the pass. Their sums and one
/// register of operands each fit: of 64-byte registers there are 32, of the smaller ones 16.
template <class Simd>
inline constexpr std::size_t attend_regs = 2;
template <>
inline constexpr std::size_t attend_regs<PortableSimd> = 1;
#if defined(__GNUC__) && !MEMRA_DEVICE_COMPILE()
template <>
inline constexpr std::size_t attend_regs<VectorSimd<64>> = 4;
#endif
inline constexpr std::size_t max_attend_queries = 4;

/// Where the parts of one kv head's scratch are, all f32.
struct AttendHead {
  std::size_t dk;
  std::size_t dv;
  float* keys;    ///< [dk][64]: keys in lanes
  float* values;  ///< [64][dv]
  float* stage;   ///< [16][dk]: rows of K before they are turned
  float* q;       ///< [queries][dk], scaled
  float* p;       ///< [queries][64]: scores, then weights
  float* m;       ///< [queries] maximum so far
  float* l;       ///< [queries] sum of weights so far
};

/// Up to max_attend_queries neighbouring queries and what each sees of one tile.
struct AttendQueries {
  std::size_t first = 0;  ///< index of the first query in the block
  std::size_t count = 0;
  std::size_t begin[max_attend_queries] = {};  ///< keys [begin, end) of the tile are visible
  std::size_t end[max_attend_queries] = {};
  bool opens[max_attend_queries] = {};  ///< this is the first tile of the row
  float* out[max_attend_queries] = {};  ///< [dv] running sum of weighted values
};

/// Scores of NQ queries against NR registers of keys: one accumulator per query and key, d ascending.
template <class Simd, std::size_t NQ, std::size_t NR>
inline void score_keys(const float* keys, std::size_t dk, const float* q, float* s) noexcept {
  using R = Reg<Simd>;
  typename R::T sum[NQ][NR];
  for (std::size_t i = 0; i < NQ; ++i) {
    for (std::size_t j = 0; j < NR; ++j) sum[i][j] = R::zero();
  }
  for (std::size_t d = 0; d < dk; ++d) {
    typename R::T k[NR];
    for (std::size_t j = 0; j < NR; ++j) k[j] = R::load(keys + d * attend_tile + j * R::lanes);
    for (std::size_t i = 0; i < NQ; ++i) {
      const typename R::T x = R::broadcast(q[i * dk + d]);
      for (std::size_t j = 0; j < NR; ++j) sum[i][j] = sum[i][j] + R::product(x, k[j]);
    }
  }
  for (std::size_t i = 0; i < NQ; ++i) {
    for (std::size_t j = 0; j < NR; ++j) R::store(s + i * attend_tile + j * R::lanes, sum[i][j]);
  }
}

/// o += p * v for NQ queries, NR registers of o and keys [begin, end) ascending.
template <class Simd, std::size_t NQ, std::size_t NR>
inline void add_values(const float* values, std::size_t dv, const float* p, std::size_t begin, std::size_t end,
                       float* const* out, std::size_t d) noexcept {
  using R = Reg<Simd>;
  typename R::T sum[NQ][NR];
  for (std::size_t i = 0; i < NQ; ++i) {
    for (std::size_t j = 0; j < NR; ++j) sum[i][j] = R::load(out[i] + d + j * R::lanes);
  }
  for (std::size_t key = begin; key < end; ++key) {
    typename R::T v[NR];
    for (std::size_t j = 0; j < NR; ++j) v[j] = R::load(values + key * dv + d + j * R::lanes);
    for (std::size_t i = 0; i < NQ; ++i) {
      const typename R::T w = R::broadcast(p[i * attend_tile + key]);
      for (std::size_t j = 0; j < NR; ++j) sum[i][j] = sum[i][j] + R::product(w, v[j]);
    }
  }
  for (std::size_t i = 0; i < NQ; ++i) {
    for (std::size_t j = 0; j < NR; ++j) R::store(out[i] + d + j * R::lanes, sum[i][j]);
  }
}

/// add_values over all of o: wide steps, then single registers, then single elements.
template <class Simd, std::size_t NQ>
inline void add_range(const AttendHead& head, const float* p, std::size_t begin, std::size_t end,
                      float* const* out) noexcept {
  constexpr std::size_t lanes = Reg<Simd>::lanes;
  constexpr std::size_t wide = attend_regs<Simd> * lanes;
  const std::size_t whole = head.dv - head.dv % lanes;
  const std::size_t stepped = head.dv - head.dv % wide;
  for (std::size_t d = 0; d < stepped; d += wide) {
    add_values<Simd, NQ, attend_regs<Simd>>(head.values, head.dv, p, begin, end, out, d);
  }
  for (std::size_t d = stepped; d < whole; d += lanes) {
    add_values<Simd, NQ, 1>(head.values, head.dv, p, begin, end, out, d);
  }
  for (std::size_t d = whole; d < head.dv; ++d) {
    for (std::size_t i = 0; i < NQ; ++i) {
      float sum = out[i][d];
      for (std::size_t key = begin; key < end; ++key) {
        sum = sum + product(p[i * attend_tile + key], head.values[key * head.dv + d]);
      }
      out[i][d] = sum;
    }
  }
}

/// Turns the scores of one query into weights and brings its m, l and o up to this tile. See AttendBody.
template <class Simd>
inline void softmax_tile(float* p, std::size_t begin, std::size_t end, bool opens, float& m, float& l, float* out,
                         std::size_t dv) noexcept {
  using F = F32x16<Simd>;
  constexpr float lowest = -std::numeric_limits<float>::infinity();
  for (std::size_t j = 0; j < begin; ++j) p[j] = lowest;
  for (std::size_t j = end; j < attend_tile; ++j) p[j] = lowest;
  F best = F::broadcast(lowest);
  for (std::size_t i = 0; i < attend_tile; i += simd_lanes) best = max(F::load(p + i), best);
  const float top = max_lane(best);
  if (opens) {
    m = top;
  } else if (top > m) {
    const float c = exp_f32(m - top);
    l = product(l, c);  // l meets an addition below
    scale<Simd>(out, out, c, dv);
    m = top;
  }
  const F all_m = F::broadcast(m);
  for (std::size_t i = 0; i < attend_tile; i += simd_lanes) exp_f32(F::load(p + i) - all_m).store(p + i);
  // Hidden keys add +0, which changes no lane.
  for (std::size_t j = 0; j < begin; ++j) p[j] = 0.0F;
  for (std::size_t j = end; j < attend_tile; ++j) p[j] = 0.0F;
  F lanes = F::zero();
  for (std::size_t i = 0; i < attend_tile; i += simd_lanes) lanes = lanes + F::load(p + i);
  l = l + sum(lanes);
}

/// Scores and weights of NQ queries in one tile.
template <class Simd, std::size_t NQ>
inline void weigh(const AttendHead& head, const AttendQueries& some) noexcept {
  bool any = false;
  for (std::size_t i = 0; i < NQ; ++i) any = any || some.begin[i] < some.end[i];
  if (!any) return;
  float* p = head.p + some.first * attend_tile;
  const float* q = head.q + some.first * head.dk;
  constexpr std::size_t wide = attend_regs<Simd> * Reg<Simd>::lanes;
  for (std::size_t j = 0; j < attend_tile; j += wide) {
    score_keys<Simd, NQ, attend_regs<Simd>>(head.keys + j, head.dk, q, p + j);
  }
  for (std::size_t i = 0; i < NQ; ++i) {
    if (some.begin[i] >= some.end[i]) continue;
    softmax_tile<Simd>(p + i * attend_tile, some.begin[i], some.end[i], some.opens[i], head.m[some.first + i],
                       head.l[some.first + i], some.out[i], head.dv);
  }
}

/// Weighted values of NQ queries in one tile. Keys that all of them see are taken together; the ragged ends one query
/// at a time, in the same order.
template <class Simd, std::size_t NQ>
inline void add_weighted(const AttendHead& head, const AttendQueries& some) noexcept {
  const float* p = head.p + some.first * attend_tile;
  std::size_t common = 0;
  std::size_t common_end = attend_tile;
  for (std::size_t i = 0; i < NQ; ++i) {
    common = std::max(common, some.begin[i]);
    common_end = std::min(common_end, some.end[i]);
  }
  const bool together = common < common_end;
  for (std::size_t i = 0; i < NQ; ++i) {
    const std::size_t stop = together ? common : some.end[i];
    if (some.begin[i] < stop) add_range<Simd, 1>(head, p + i * attend_tile, some.begin[i], stop, some.out + i);
  }
  if (!together) return;
  add_range<Simd, NQ>(head, p, common, common_end, some.out);
  for (std::size_t i = 0; i < NQ; ++i) {
    if (common_end < some.end[i]) add_range<Simd, 1>(head, p + i * attend_tile, common_end, some.end[i], some.out + i);
  }
}

/// weigh for some.count queries.
template <class Simd>
inline void weigh_queries(const AttendHead& head, const AttendQueries& some) noexcept {
  switch (some.count) {
    case 4:
      return weigh<Simd, 4>(head, some);
    case 3:
      return weigh<Simd, 3>(head, some);
    case 2:
      return weigh<Simd, 2>(head, some);
    default:
      return weigh<Simd, 1>(head, some);
  }
}

/// add_weighted for some.count queries.
template <class Simd>
inline void add_queries(const AttendHead& head, const AttendQueries& some) noexcept {
  switch (some.count) {
    case 4:
      return add_weighted<Simd, 4>(head, some);
    case 3:
      return add_weighted<Simd, 3>(head, some);
    case 2:
      return add_weighted<Simd, 2>(head, some);
    default:
      return add_weighted<Simd, 1>(head, some);
  }
}

}  // namespace memra::detail
