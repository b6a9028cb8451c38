// Attention of a few queries over one tile of 64 keys: scores, online softmax, weighted sum of values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memra/detail/host_dot.hpp>
#include <memra/detail/math.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/detail/simd.hpp>
#include <memra/detail/strict_fp.hpp>

namespace memra::detail {

/// Queries that share one pass over a tile: with the vectors below, their sums fit the registers.
inline constexpr std::size_t attend_queries = 4;

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

/// Up to attend_queries neighbouring queries and what each sees of one tile.
struct AttendQueries {
  std::size_t first = 0;  ///< index of the first query in the block
  std::size_t count = 0;
  std::size_t begin[attend_queries] = {};  ///< keys [begin, end) of the tile are visible
  std::size_t end[attend_queries] = {};
  bool opens[attend_queries] = {};  ///< this is the first tile of the row
  float* out[attend_queries] = {};  ///< [dv] running sum of weighted values
};

/// y[i] = x[i] * factor.
inline void scale(float* y, const float* x, float factor, std::size_t n) noexcept {
  const Vec f = vec_splat(factor);
  std::size_t i = 0;
  for (; i + vec_lanes <= n; i += vec_lanes) vec_store(y + i, product(vec_load(x + i), f));
  for (; i < n; ++i) y[i] = product(x[i], factor);
}

/// y[i] = y[i] / l.
inline void divide(float* y, float l, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; ++i) y[i] = y[i] / l;
}

/// Scores of NQ queries against NV vectors of keys: one accumulator per query and key, d ascending.
template <std::size_t NQ, std::size_t NV>
inline void score_keys(const float* keys, std::size_t dk, const float* q, float* s) noexcept {
  Vec sum[NQ][NV];
  for (std::size_t i = 0; i < NQ; ++i) {
    for (std::size_t j = 0; j < NV; ++j) sum[i][j] = vec_splat(0.0F);
  }
  for (std::size_t d = 0; d < dk; ++d) {
    Vec k[NV];
    for (std::size_t j = 0; j < NV; ++j) k[j] = vec_load(keys + d * attend_tile + j * vec_lanes);
    for (std::size_t i = 0; i < NQ; ++i) {
      const Vec x = vec_splat(q[i * dk + d]);
      for (std::size_t j = 0; j < NV; ++j) sum[i][j] = sum[i][j] + product(x, k[j]);
    }
  }
  for (std::size_t i = 0; i < NQ; ++i) {
    for (std::size_t j = 0; j < NV; ++j) vec_store(s + i * attend_tile + j * vec_lanes, sum[i][j]);
  }
}

/// o += p * v for NQ queries, NV vectors of o and keys [begin, end) ascending.
template <std::size_t NQ, std::size_t NV>
inline void add_values(const float* values, std::size_t dv, const float* p, std::size_t begin, std::size_t end,
                       float* const* out, std::size_t d) noexcept {
  Vec sum[NQ][NV];
  for (std::size_t i = 0; i < NQ; ++i) {
    for (std::size_t j = 0; j < NV; ++j) sum[i][j] = vec_load(out[i] + d + j * vec_lanes);
  }
  for (std::size_t key = begin; key < end; ++key) {
    Vec v[NV];
    for (std::size_t j = 0; j < NV; ++j) v[j] = vec_load(values + key * dv + d + j * vec_lanes);
    for (std::size_t i = 0; i < NQ; ++i) {
      const Vec w = vec_splat(p[i * attend_tile + key]);
      for (std::size_t j = 0; j < NV; ++j) sum[i][j] = sum[i][j] + product(w, v[j]);
    }
  }
  for (std::size_t i = 0; i < NQ; ++i) {
    for (std::size_t j = 0; j < NV; ++j) vec_store(out[i] + d + j * vec_lanes, sum[i][j]);
  }
}

/// add_values over all of o: wide steps, then single vectors, then single elements.
template <std::size_t NQ>
inline void add_range(const AttendHead& head, const float* p, std::size_t begin, std::size_t end,
                      float* const* out) noexcept {
  constexpr std::size_t wide = attend_vectors * vec_lanes;
  std::size_t d = 0;
  for (; d + wide <= head.dv; d += wide) {
    add_values<NQ, attend_vectors>(head.values, head.dv, p, begin, end, out, d);
  }
  for (; d + vec_lanes <= head.dv; d += vec_lanes) add_values<NQ, 1>(head.values, head.dv, p, begin, end, out, d);
  for (; d < head.dv; ++d) {
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
inline void softmax_tile(float* p, std::size_t begin, std::size_t end, bool opens, float& m, float& l, float* out,
                         std::size_t dv) noexcept {
  constexpr float lowest = -std::numeric_limits<float>::infinity();
  for (std::size_t j = 0; j < begin; ++j) p[j] = lowest;
  for (std::size_t j = end; j < attend_tile; ++j) p[j] = lowest;
  float best[dot_lanes];
  for (std::size_t j = 0; j < dot_lanes; ++j) best[j] = lowest;
  for (std::size_t i = 0; i < attend_tile; i += dot_lanes) {
    for (std::size_t j = 0; j < dot_lanes; ++j) best[j] = p[i + j] > best[j] ? p[i + j] : best[j];
  }
  for (std::size_t n = dot_lanes / 2; n != 0; n /= 2) {
    for (std::size_t j = 0; j < n; ++j) best[j] = best[j + n] > best[j] ? best[j + n] : best[j];
  }
  const float top = best[0];
  if (opens) {
    m = top;
  } else if (top > m) {
    const float c = exp_f32(m - top);
    l = product(l, c);  // l meets an addition below
    scale(out, out, c, dv);
    m = top;
  }
  for (std::size_t j = 0; j < attend_tile; ++j) p[j] = exp_f32(p[j] - m);
  // Hidden keys add +0, which changes no lane.
  for (std::size_t j = 0; j < begin; ++j) p[j] = 0.0F;
  for (std::size_t j = end; j < attend_tile; ++j) p[j] = 0.0F;
  float lane[dot_lanes] = {};
  for (std::size_t i = 0; i < attend_tile; i += dot_lanes) {
    for (std::size_t j = 0; j < dot_lanes; ++j) lane[j] = lane[j] + p[i + j];
  }
  l = l + fold16(lane);
}

template <std::size_t NQ>
inline void tile_of(const AttendHead& head, const AttendQueries& some) noexcept {
  bool any = false;
  for (std::size_t i = 0; i < NQ; ++i) any = any || some.begin[i] < some.end[i];
  if (!any) return;
  float* p = head.p + some.first * attend_tile;
  const float* q = head.q + some.first * head.dk;
  constexpr std::size_t wide = attend_vectors * vec_lanes;
  for (std::size_t j = 0; j < attend_tile; j += wide) {
    score_keys<NQ, attend_vectors>(head.keys + j, head.dk, q, p + j);
  }
  // Keys that all of these queries see are taken together; the ragged ends one query at a time, in the same order.
  std::size_t common = 0;
  std::size_t common_end = attend_tile;
  for (std::size_t i = 0; i < NQ; ++i) {
    if (some.begin[i] < some.end[i]) {
      softmax_tile(p + i * attend_tile, some.begin[i], some.end[i], some.opens[i], head.m[some.first + i],
                   head.l[some.first + i], some.out[i], head.dv);
    }
    common = std::max(common, some.begin[i]);
    common_end = std::min(common_end, some.end[i]);
  }
  const bool together = common < common_end;
  for (std::size_t i = 0; i < NQ; ++i) {
    const std::size_t stop = together ? common : some.end[i];
    if (some.begin[i] < stop) add_range<1>(head, p + i * attend_tile, some.begin[i], stop, some.out + i);
  }
  if (!together) return;
  add_range<NQ>(head, p, common, common_end, some.out);
  for (std::size_t i = 0; i < NQ; ++i) {
    if (common_end < some.end[i]) add_range<1>(head, p + i * attend_tile, common_end, some.end[i], some.out + i);
  }
}

/// One tile for some.count queries.
inline void attend_one_tile(const AttendHead& head, const AttendQueries& some) noexcept {
  switch (some.count) {
    case 4:
      return tile_of<4>(head, some);
    case 3:
      return tile_of<3>(head, some);
    case 2:
      return tile_of<2>(head, some);
    default:
      return tile_of<1>(head, some);
  }
}

/// Writes n <= 16 rows of `width` elements as n lanes: keys[d * 64 + j] = rows[j * width + d].
inline void turn_rows(const float* rows, std::size_t n, std::size_t width, float* keys) noexcept {
  for (std::size_t d = 0; d < width; ++d) {
    for (std::size_t j = 0; j < n; ++j) keys[d * attend_tile + j] = rows[j * width + d];
  }
}

}  // namespace memra::detail
