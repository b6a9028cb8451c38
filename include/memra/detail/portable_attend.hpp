// Portable kernels of attend and draft_attend: the host's definitions, bit for bit, without scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/batch_views.hpp>
#include <memra/detail/attend_sequence.hpp>
#include <memra/detail/kv_range.hpp>
#include <memra/detail/math.hpp>
#include <memra/detail/platform.hpp>
#include <memra/detail/portable_plane.hpp>
#include <memra/detail/portable_sum.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/detail/window.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

inline constexpr std::uint32_t f32_minus_inf_bits = 0xFF800000U;

/// attend: item (group of 32 output elements, query head, row). Definition: see AttendBody in host_attend.hpp. Items of
/// one row and head each compute the row's scores again: what that costs, tuned kernels save.
struct PortableAttend {
  PortableSource k;
  PortableSource v;
  AttendArgs a;
  KvRange range;
  std::size_t n_kv_heads;
  std::size_t dk;
  std::size_t dv;
  std::size_t v_head;  ///< elements from one head's values to the next: dv, or dk where V is a part of K
  const std::int32_t* pos_d;

  PortableAttend(const KvReadView& kv, const AttendArgs& args) noexcept
      : k(kv.k),
        v(values_of(kv)),
        a(args),
        range(kv),
        n_kv_heads(kv.n_kv_heads),
        dk(kv.head_dim_k),
        dv(kv.head_dim_v),
        v_head(kv.v_in_k ? kv.head_dim_k : kv.head_dim_v),
        pos_d(kv.at.pos_d) {}

  MEMRA_HD void operator()(const Item& item) const noexcept {
    const std::size_t kv_head = item.y / (a.n_heads / n_kv_heads);
    const std::size_t query = item.z * a.n_heads + item.y;
    const std::size_t first = item.x * portable_group;
    const std::size_t n = dv - first < portable_group ? dv - first : portable_group;
    const float* q = a.q + query * dk;
    float* out = a.out + query * dv + first;

    const KvRange::Rows seen = range.seen(*pos_d, item.z);
    const std::int64_t lo = seen.lo;
    const std::int64_t hi = seen.hi;
    if (hi <= lo) {
      for (std::size_t d = 0; d < n; ++d) out[d] = 0.0F;
      return;
    }
    float o[portable_group];
    for (std::size_t d = 0; d < n; ++d) o[d] = 0.0F;
    float m = 0.0F;
    float l = 0.0F;
    constexpr auto tile = static_cast<std::int64_t>(attend_tile);
    for (std::int64_t start = lo / tile * tile; start < hi; start += tile) {
      const std::int64_t from = most(start, lo);
      const std::int64_t to = least(start + tile, hi);
      float p[attend_tile];
      float top = f32_from_bits(f32_minus_inf_bits);
      for (std::int64_t key = from; key < to; ++key) {
        const float s = score(q, k.phys(static_cast<std::size_t>(key)), kv_head);
        p[key - start] = s;
        top = s > top ? s : top;
      }
      if (from == lo) {
        m = top;
      } else if (top > m) {
        const float c = exp_f32(m - top);
        l = product(l, c);
        for (std::size_t d = 0; d < n; ++d) o[d] = product(o[d], c);
        m = top;
      }
      PortableLanes lanes;
      for (std::int64_t key = from; key < to; ++key) {
        float y[portable_group];
        portable_decode(v, v.phys(static_cast<std::size_t>(key)), kv_head * v_head + first, n, y);
        const float w = exp_f32(p[key - start] - m);
        lanes.add(static_cast<std::size_t>(key - start), w);
        for (std::size_t d = 0; d < n; ++d) o[d] = o[d] + product(w, y[d]);
      }
      l = l + lanes.sum();
    }
    for (std::size_t d = 0; d < n; ++d) out[d] = o[d] / l;
  }

 private:
  MEMRA_HD static std::int64_t most(std::int64_t x, std::int64_t y) noexcept { return x > y ? x : y; }
  MEMRA_HD static std::int64_t least(std::int64_t x, std::int64_t y) noexcept { return x < y ? x : y; }

  MEMRA_HD float score(const float* q, std::size_t row, std::size_t kv_head) const noexcept {
    float s = 0.0F;
    for (std::size_t first = 0; first < dk; first += portable_group) {
      const std::size_t n = dk - first < portable_group ? dk - first : portable_group;
      float x[portable_group];
      portable_decode(k, row, kv_head * dk + first, n, x);
      for (std::size_t d = 0; d < n; ++d) s = s + product(product(q[first + d], a.scale), x[d]);
    }
    return s;
  }
};

/// attend_batch: item (group of 32 output elements, query head, sequence and its row).
struct PortableAttendBatch {
  PortableAttend first;  ///< of the first sequence
  AttendBatchView batch;

  PortableAttendBatch(const AttendBatchView& b, const AttendArgs& args) noexcept : first(b.common, args), batch(b) {}

  MEMRA_HD void operator()(const Item& item) const noexcept {
    const std::size_t sequence = item.z / batch.common.at.rows;
    const std::size_t row = item.z % batch.common.at.rows;
    const AttendBatchView::Rows rows = batch.rows_of(sequence);
    if (row >= rows.count) return;
    const AttendSequence& s = batch.table[sequence];
    PortableAttend one = first;
    one.k.take(s.k);
    one.v.take(s.v);
    one.range = s.range;
    one.pos_d = s.kv.at.pos_d;
    one.a.q += rows.first * one.a.n_heads * one.dk;
    one.a.out += rows.first * one.a.n_heads * one.dv;
    one({item.x, item.y, row});
  }
};

/// Which rows a row of a draft block meets, as physical rows.
struct PortableDraftRange {
  std::size_t begin = 0;    ///< first row that takes part
  std::size_t visible = 0;  ///< first row that is not masked
  std::size_t end = 0;      ///< end <= visible: none

  MEMRA_HD static PortableDraftRange of(const DraftView& d, DraftArm arm, std::size_t row) noexcept {
    const std::int64_t base = d.first_row();
    const auto bound = static_cast<std::int64_t>(d.len_bound);
    std::int64_t len = *d.len_d < 0 ? 0 : std::int64_t{*d.len_d};
    len = len > bound ? bound : len;
    const std::int64_t full = len + static_cast<std::int64_t>(d.block_rows);
    const std::int64_t held = base + static_cast<std::int64_t>(d.phys_rows);
    const std::int64_t end = full < held ? full : held;
    auto first = static_cast<std::int64_t>(d.floor);
    const std::int64_t reach = window_start(len + static_cast<std::int64_t>(row), d.window);
    first = reach > first ? reach : first;
    first = first < len ? first : len;
    first = first > base ? first : base;
    PortableDraftRange r;
    if (end <= first) return r;
    r.visible = static_cast<std::size_t>(first - base);
    r.begin = arm == DraftArm::full_scan ? 0 : r.visible;
    r.end = static_cast<std::size_t>(end - base);
    return r;
  }
};

/// draft_attend: item (group of 32 output elements, head, block row). Definition: see DraftAttendBody in
/// host_draft.hpp. Scores are computed twice, once for their maximum: no scratch, any length.
struct PortableDraftAttend {
  DraftView d;
  DraftAttendArgs a;

  MEMRA_HD void operator()(const Item& item) const noexcept {
    const std::size_t width = d.n_kv * d.head_dim;
    const std::size_t head = item.y / (a.n_heads / d.n_kv) * d.head_dim;
    const std::size_t first = item.x * portable_group;
    const std::size_t n = d.head_dim - first < portable_group ? d.head_dim - first : portable_group;
    const std::size_t query = (item.z * a.n_heads + item.y) * d.head_dim;
    const float* q = a.q + query;
    float* out = a.out + query + first;
    const PortableDraftRange rows = PortableDraftRange::of(d, a.arm, item.z);
    if (rows.end <= rows.visible) {
      for (std::size_t i = 0; i < n; ++i) out[i] = 0.0F;
      return;
    }
    float m = f32_from_bits(f32_minus_inf_bits);
    for (std::size_t r = rows.visible; r < rows.end; ++r) {
      const float s = product(portable_dot(q, d.k + r * width + head, d.head_dim), a.scale);
      m = s > m ? s : m;
    }
    float o[portable_group];
    for (std::size_t i = 0; i < n; ++i) o[i] = 0.0F;
    float l = 0.0F;
    for (std::size_t r = rows.begin; r < rows.end; ++r) {
      float p = 0.0F;  // of a masked row
      if (r >= rows.visible) p = exp_f32(product(portable_dot(q, d.k + r * width + head, d.head_dim), a.scale) - m);
      l = l + p;
      const float* y = d.v + r * width + head + first;
      for (std::size_t i = 0; i < n; ++i) o[i] = o[i] + product(p, y[i]);
    }
    for (std::size_t i = 0; i < n; ++i) out[i] = o[i] / l;
  }
};

}  // namespace memra::detail
