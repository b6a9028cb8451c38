// Host kernels of the draft cache: draft_write and both arms of draft_attend.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memra/detail/host_dot.hpp>
#include <memra/detail/host_scratch.hpp>
#include <memra/detail/math.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/detail/window.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// draft_write: row x of the block goes to stream row *len_d + x. Rows the plane does not hold are not written.
/// Item (x, 0) writes K, item (x, 1) writes V.
struct DraftWriteBody {
  DraftView d;
  const float* k;
  const float* v;

  void operator()(const Item& item) const noexcept {
    const std::int64_t row = std::int64_t{*d.len_d} + static_cast<std::int64_t>(item.x);
    const std::int64_t phys = row - d.first_row();
    if (*d.len_d < 0 || phys < 0 || phys >= static_cast<std::int64_t>(d.phys_rows)) return;
    const std::size_t width = d.n_kv * d.head_dim;
    float* dst = (item.y == 0 ? d.k : d.v) + static_cast<std::size_t>(phys) * width;
    std::memcpy(dst, (item.y == 0 ? k : v) + item.x * width, width * sizeof(float));
  }
};

/// draft_attend, one block row per item.
///
/// Definition for query i (at position p = *len_d + i) and head h, all in f32 without contraction:
/// - visible keys: [max(p - (window - 1), floor), *len_d) and the whole block [*len_d, *len_d + block_rows); with
///   window 0 the first range starts at floor;
/// - s(key) = dot(q, k(key)) * scale with dot in the order of dot16;
/// - m = max of the visible s; p(key) = exp_f32(s(key) - m); l = sum of p and o[d] = sum of p * v[d], both from +0 with
///   keys ascending, one key at a time; out[d] = o[d] / l.
///
/// `full_scan` scores every row the plane holds below *len_d + block_rows, sets p of masked rows to +0 and lets them
/// take part in both sums. Adding +0 to l and 0 * v to o changes no bit while v is finite, because both start at +0 and
/// a sum that starts at +0 never becomes -0. A masked row whose V holds NaN or infinity does change the result.
///
/// A row without visible keys (only possible if the view breaks its own bounds) gives zeros.
template <class Simd>
struct DraftAttendBody {
  DraftView d;
  DraftAttendArgs a;
  std::byte* scratch;

  void operator()(const Item& item) const noexcept {
    const std::int64_t base = d.first_row();
    const auto block = static_cast<std::int64_t>(d.block_rows);
    // A length beyond its bound would run over the scratch; a key outside the plane is never touched.
    const std::int64_t len = std::clamp<std::int64_t>(*d.len_d, 0, static_cast<std::int64_t>(d.len_bound));
    const std::int64_t end = std::min(len + block, base + static_cast<std::int64_t>(d.phys_rows));
    std::int64_t first_visible =
        std::max(static_cast<std::int64_t>(d.floor), window_start(len + static_cast<std::int64_t>(item.x), d.window));
    // The block is visible whatever window and floor say.
    first_visible = std::max(std::min(first_visible, len), base);
    const std::int64_t begin = a.arm == DraftArm::full_scan ? base : first_visible;

    float* p = aligned_floats(scratch) + item.x * (d.most_keys() + d.block_rows);
    const std::size_t group = a.n_heads / d.n_kv;
    for (std::size_t h = 0; h < a.n_heads; ++h) {
      const std::size_t at = (item.x * a.n_heads + h) * d.head_dim;
      one_head(a.q + at, a.out + at, h / group, begin - base, first_visible - base, end - base, p);
    }
  }

  /// begin, visible and end are physical rows.
  void one_head(const float* q, float* out, std::size_t kv_head, std::int64_t begin, std::int64_t visible,
                std::int64_t end, float* p) const noexcept {
    const std::size_t width = d.n_kv * d.head_dim;
    const std::size_t dim = d.head_dim;
    for (std::size_t i = 0; i < dim; ++i) out[i] = 0.0F;
    if (end <= visible) return;
    const auto n = static_cast<std::size_t>(end - begin);
    const auto hidden = static_cast<std::size_t>(visible - begin);
    const auto offset = static_cast<std::size_t>(begin);
    const float* k = d.k + offset * width + kv_head * dim;
    const float* v = d.v + offset * width + kv_head * dim;

    for (std::size_t i = 0; i < n; ++i) p[i] = product(dot16<Simd>(q, k + i * width, dim), a.scale);
    float m = -std::numeric_limits<float>::infinity();
    for (std::size_t i = hidden; i < n; ++i) m = p[i] > m ? p[i] : m;
    for (std::size_t i = 0; i < hidden; ++i) p[i] = 0.0F;
    exp_less<Simd>(p + hidden, m, n - hidden);
    float l = 0.0F;
    for (std::size_t i = 0; i < n; ++i) l = l + p[i];
    for (std::size_t i = 0; i < n; ++i) add_scaled<Simd>(out, v + i * width, p[i], dim);
    divide<Simd>(out, l, dim);
  }
};

}  // namespace memra::detail
