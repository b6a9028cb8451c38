// Host kernel of attend: which queries meet which tiles. The arithmetic of one tile is in host_attend_tile.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/batch_views.hpp>
#include <memra/codec.hpp>
#include <memra/detail/attend_sequence.hpp>
#include <memra/detail/host_attend_tile.hpp>
#include <memra/detail/host_scratch.hpp>
#include <memra/detail/host_turn.hpp>
#include <memra/detail/kv_range.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// attend, one kv head per item: its query heads, in blocks of attend_block_rows rows that share each decoded tile.
///
/// Definition for row i of the call (position P = *pos_d + i) and query head h, in f32 without contraction:
/// - visible keys: [lo, hi) with hi = P + 1 and lo = max(0, P + 1 - window), or 0 without a window; rows the plane does
///   not hold are not visible (see KvRange). Where a row is in memory changes nothing: a ring gives the bits of a flat
///   plane. v is the V plane's, or the first head_dim_v elements of k where there is none;
/// - s(key) = sum over d ascending of (q[d] * scale) * k[d], one accumulator that starts at +0;
/// - tiles of 64 keys on the absolute grid, ascending; tiles without a visible key are skipped. Per tile:
///   M = max of the visible s (NaN never wins). In the row's first tile m = M, l = +0, o = +0; later, if M > m:
///   c = exp_f32(m - M), l = l * c, o[d] = o[d] * c, m = M;
///   p(key) = exp_f32(s(key) - m) for visible keys; l = l + L, where L adds p in sixteen lanes (key mod 16, keys
///   ascending, from +0) and folds them as dot16 does; o[d] = o[d] + p * v[d], visible keys ascending;
/// - out[d] = o[d] / l.
///
/// Nothing here depends on the other rows of the call, on the block of rows or on the layout. Masked keys contribute to
/// nothing: their K and V may hold NaN. A row that sees no key gives zeros; a NaN among the visible keys, or a first
/// tile whose scores are all -inf, gives NaN.
template <class Simd>
struct AttendBody {
  KvReadView kv;
  AttendArgs a;
  std::byte* scratch;

  void operator()(const Item& item) const noexcept {
    const std::size_t group = a.n_heads / kv.n_kv_heads;
    run(item.x, aligned_floats(scratch) + item.x * attend_head_floats(group, kv.head_dim_k, kv.head_dim_v, kv.at.rows));
  }

  /// @param f  attend_head_floats floats for one kv head
  void run(std::size_t kv_head, float* f) const noexcept {
    const std::size_t group = a.n_heads / kv.n_kv_heads;
    const std::size_t queries = group * std::min(kv.at.rows, attend_block_rows);
    AttendHead head{};
    head.dk = kv.head_dim_k;
    head.dv = kv.head_dim_v;
    head.keys = f;
    head.values = head.keys + attend_tile * head.dk;
    head.stage = head.values + attend_tile * head.dv;
    head.q = head.stage + attend_stage_rows * head.dk;
    head.p = head.q + queries * head.dk;
    head.m = head.p + queries * attend_tile;
    head.l = head.m + queries;
    for (std::size_t r0 = 0; r0 < kv.at.rows; r0 += attend_block_rows) {
      block(head, kv_head, group, r0, std::min(kv.at.rows - r0, attend_block_rows));
    }
  }

 private:
  KvRange::Rows visible(std::size_t i) const noexcept { return KvRange(kv).seen(*kv.at.pos_d, i); }

  void block(AttendHead& head, std::size_t kv_head, std::size_t group, std::size_t r0,
             std::size_t rows) const noexcept {
    const std::size_t queries = rows * group;
    const auto q_at = [&](std::size_t n) { return (r0 + n / group) * a.n_heads + kv_head * group + n % group; };
    for (std::size_t n = 0; n < queries; ++n) {
      scale<Simd>(head.q + n * head.dk, a.q + q_at(n) * head.dk, a.scale, head.dk);
      std::memset(a.out + q_at(n) * head.dv, 0, head.dv * sizeof(float));
      head.l[n] = 0.0F;
    }
    // lo and hi do not fall from one row to the next, so the block's range is spanned by its ends.
    const std::int64_t lo = visible(r0).lo;
    const std::int64_t hi = visible(r0 + rows - 1).hi;
    if (hi <= lo) return;
    constexpr auto tile = static_cast<std::int64_t>(attend_tile);
    for (std::int64_t start = lo / tile * tile; start < hi; start += tile) {
      load_tile(head, kv_head, start, std::max(lo, start), std::min(hi, start + tile));
      TileRow seen[attend_block_rows];
      for (std::size_t i = 0; i < rows; ++i) {
        const KvRange::Rows range = visible(r0 + i);
        seen[i] = {static_cast<std::size_t>(std::clamp<std::int64_t>(range.lo - start, 0, tile)),
                   static_cast<std::size_t>(std::clamp<std::int64_t>(range.hi - start, 0, tile)), range.lo >= start};
      }
      // Two passes, so that the tile of K stays in L1 for all queries, then the tile of V.
      float* out = a.out + (r0 * a.n_heads + kv_head * group) * head.dv;
      each_group(seen, rows, group, out, [&](const AttendQueries& some) { weigh_queries<Simd>(head, some); });
      each_group(seen, rows, group, out, [&](const AttendQueries& some) { add_queries<Simd>(head, some); });
    }
    for (std::size_t n = 0; n < queries; ++n) {
      const KvRange::Rows seen = visible(r0 + n / group);
      if (seen.lo < seen.hi) divide<Simd>(a.out + q_at(n) * head.dv, head.l[n], head.dv);
    }
  }

  struct TileRow {
    std::size_t begin;
    std::size_t end;
    bool opens;
  };

  // Calls f for the block's queries in order, up to max_attend_queries of them at a time; neighbours may belong to two
  // rows.
  template <class Fn>
  void each_group(const TileRow* seen, std::size_t rows, std::size_t group, float* out, const Fn& f) const noexcept {
    AttendQueries some;
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t g = 0; g < group; ++g) {
        some.begin[some.count] = seen[i].begin;
        some.end[some.count] = seen[i].end;
        some.opens[some.count] = seen[i].opens;
        some.out[some.count] = out + (i * a.n_heads + g) * kv.head_dim_v;
        if (++some.count < max_attend_queries) continue;
        f(some);
        some.first += some.count;
        some.count = 0;
      }
    }
    if (some.count != 0) f(some);
  }

  // Decodes stream rows [first, last) of the tile that starts at `start`: K with keys in lanes, V row by row. Lanes
  // without a row are zero, so that no unwritten memory is read. A ring does not split a tile.
  void load_tile(const AttendHead& head, std::size_t kv_head, std::int64_t start, std::int64_t first,
                 std::int64_t last) const noexcept {
    const auto from = static_cast<std::size_t>(first - start);
    const auto to = static_cast<std::size_t>(last - start);
    const std::size_t k_row = kv.k.phys(static_cast<std::size_t>(start));  // may wrap; used with an offset >= from
    const std::size_t v_row = kv.v.phys(static_cast<std::size_t>(start));
    if (from != 0 || to != attend_tile) std::memset(head.keys, 0, attend_tile * head.dk * sizeof(float));
    for (std::size_t r = from; r < to;) {
      const std::size_t n = std::min(attend_stage_rows - r % attend_stage_rows, to - r);
      for (std::size_t j = 0; j < n; ++j) {
        const float* row = head.stage + j * head.dk;
        decode_row(kv.k, k_row + r + j, kv_head * head.dk, head.dk, head.stage + j * head.dk);
        if (kv.v_in_k) std::copy(row, row + head.dv, head.values + (r + j) * head.dv);
      }
      turn_rows(head.stage, n, head.dk, head.keys + r);
      r += n;
    }
    for (std::size_t r = from; !kv.v_in_k && r < to; ++r) {
      decode_row(kv.v, v_row + r, kv_head * head.dv, head.dv, head.values + r * head.dv);
    }
  }
};

/// attend_batch, one kv head per item: one sequence after the other, each by AttendBody.
template <class Simd>
struct AttendBatchBody {
  AttendBatchView batch;
  AttendArgs a;
  std::byte* scratch;

  void operator()(const Item& item) const noexcept {
    const KvReadView& c = batch.common;
    // Heads' places do not depend on what a sequence's rows are: other items are at other sequences.
    float* const own = aligned_floats(scratch) +
                       item.x * attend_head_floats(a.n_heads / c.n_kv_heads, c.head_dim_k, c.head_dim_v, c.at.rows);
    for (std::size_t i = 0; i < batch.n; ++i) {
      const AttendBatchView::Rows rows = batch.rows_of(i);
      AttendBody<Simd> one{batch.table[i].kv, a, nullptr};
      one.kv.at.rows = rows.count;
      one.a.q += rows.first * a.n_heads * c.head_dim_k;
      one.a.out += rows.first * a.n_heads * c.head_dim_v;
      one.run(item.x, own);
    }
  }
};

}  // namespace memra::detail
