// What attend_batch receives: one attention layer of many sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/detail/platform.hpp>
#include <memra/views.hpp>
#include <type_traits>

namespace memra {

namespace detail {
struct AttendSequence;
}  // namespace detail

/// One attention layer of many sequences, as AttendBatch hands it out. What never changes about a sequence (its planes,
/// where its position is) lies in a table on the device; what changes from call to call (positions, row counts) is data
/// on the device, too, so that a captured call replays with others.
struct AttendBatchView {
  const detail::AttendSequence* table = nullptr;  ///< device: [n]
  const std::int32_t* starts = nullptr;  ///< device: [n + 1]; sequence i has query rows [starts[i], starts[i + 1])
  std::size_t n = 0;
  /// The first sequence's view. Geometry, formats, layouts and window are those of all; at.rows, at.pos_bound and
  /// at.capacity are the largest of any.
  KvReadView common = {};
  bool described = false;     ///< the device's kernels have described every sequence's planes to a copy engine
  std::size_t most_keys = 0;  ///< no row sees a key at or beyond; for the size of scratch

  /// Query rows of one sequence among those of all.
  struct Rows {
    std::size_t first;
    std::size_t count;  ///< 0: the sequence sits this call out
  };
  /// Of sequence i; never more than the call was launched for.
  MEMRA_HD Rows rows_of(std::size_t i) const noexcept { return rows_between(starts[i], starts[i + 1]); }
  /// The same of two values of `starts`.
  MEMRA_HD Rows rows_between(std::int32_t first, std::int32_t end) const noexcept {
    const auto count = static_cast<std::size_t>(end > first ? end - first : 0);
    return {static_cast<std::size_t>(first), count < common.at.rows ? count : common.at.rows};
  }
};

static_assert(std::is_trivially_copyable_v<AttendBatchView>);

}  // namespace memra
