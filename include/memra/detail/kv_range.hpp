// Which rows a query of attend sees: one definition for every kernel.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memra/detail/platform.hpp>
#include <memra/detail/window.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// The plane that holds the values: V, or K where V is a part of it.
inline ConstPlaneView values_of(const KvReadView& kv) noexcept {
  return kv.v_in_k ? kv.k : kv.v;
}

/// What bounds the rows that are seen, worked out once on the host.
///
/// A flat plane holds rows [base, end) whatever the position. A ring holds the last phys_rows rows that were written,
/// so what bounds it is the window alone: at most phys_rows, and small enough that no row of the call overwrites what
/// another still sees (a step is only begun if that holds).
struct KvRange {
  struct Rows {
    std::int64_t lo;
    std::int64_t hi;  ///< hi <= lo: none
  };

  std::int64_t base = 0;
  std::int64_t end = std::numeric_limits<std::int64_t>::max();
  std::size_t window = 0;  ///< 0: none

  explicit KvRange(const KvReadView& kv) noexcept {
    const ConstPlaneView v = values_of(kv);
    if (kv.k.ring) {
      const std::size_t rows = std::min(kv.k.phys_rows(), v.phys_rows());
      window = kv.window == 0 ? rows : std::min(kv.window, rows);
    } else {
      base = static_cast<std::int64_t>(std::max(kv.k.base, v.base));
      end = static_cast<std::int64_t>(std::min(kv.k.base + kv.k.phys_rows(), v.base + v.phys_rows()));
      window = kv.window;
    }
  }

  /// Stream rows that row `i` of a call at `pos` sees; none in a stream that ran out of rows.
  MEMRA_HD Rows seen(std::int32_t pos, std::size_t i) const noexcept {
    if (pos < 0) return {0, 0};
    const std::int64_t hi = std::int64_t{pos} + static_cast<std::int64_t>(i) + 1;
    const std::int64_t first = window_start(hi - 1, window);
    return {first > base ? first : base, hi < end ? hi : end};
  }
};

}  // namespace memra::detail
