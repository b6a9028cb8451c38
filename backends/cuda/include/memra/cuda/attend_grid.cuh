// The key grid of attend on CUDA: where a row's keys are split is a function of its own position and the geometry only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/detail/platform.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// Keys of the smallest chunk: what one block of threads takes of one kv head.
inline constexpr std::size_t attend_smallest_chunk = 256;

/// Keys per chunk of a row that ends at `hi`: the smallest power of two times attend_smallest_chunk that needs at most
/// `most` chunks. Chunk c holds stream rows [c * size, (c + 1) * size), so a larger size is the union of two smaller.
MEMRA_HD constexpr std::size_t attend_chunk_keys(std::size_t hi, std::size_t most) noexcept {
  std::size_t size = attend_smallest_chunk;
  while (hi > most * size) size *= 2;
  return size;
}

/// Stream rows that one row of a call sees.
struct AttendSpan {
  std::size_t lo = 0;
  std::size_t hi = 0;  ///< <= lo: none

  /// @param base, end  stream rows that both planes hold
  MEMRA_HD static AttendSpan of(std::int32_t pos, std::size_t row, std::size_t window, std::size_t base,
                                std::size_t end) noexcept {
    AttendSpan s;
    if (pos < 0) return s;
    const std::size_t own = static_cast<std::size_t>(pos) + row + 1;
    s.hi = own < end ? own : end;
    const std::size_t first = window == 0 || window >= own ? 0 : own - window;
    s.lo = first > base ? first : base;
    return s;
  }
};

/// What the kernels of one call know.
struct CudaAttendShape {
  std::size_t n_heads;
  std::size_t n_kv_heads;
  std::size_t dk;
  std::size_t dv;
  std::size_t window;
  std::size_t base;  ///< stream rows [base, end) are in both planes
  std::size_t end;
  std::size_t first_row;  ///< of the call, that row 0 of this pass stands for
  std::size_t rows;       ///< of this pass
  std::size_t most_chunks;
  const std::int32_t* pos_d;

  /// Chunks to launch where no row is beyond `pos_bound` plus its own place: of the smallest size at most so many, and
  /// a row far back has larger ones.
  std::size_t grid_chunks(std::size_t pos_bound) const noexcept {
    const std::size_t reach = (pos_bound + first_row + rows + attend_smallest_chunk - 1) / attend_smallest_chunk;
    return reach < most_chunks ? reach : most_chunks;
  }
  __device__ AttendSpan span(std::size_t row) const {
    return AttendSpan::of(*pos_d, first_row + row, window, base, end);
  }
  /// Partial result of one (row, head, chunk): dv sums of weighted values, then the exponent that its weights are
  /// relative to, then the sum of weights.
  __device__ float* partial(float* all, std::size_t row, std::size_t head, std::size_t chunk) const {
    return all + ((row * n_heads + head) * most_chunks + chunk) * (dv + 2);
  }
};

}  // namespace memra::detail
