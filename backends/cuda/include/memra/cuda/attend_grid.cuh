// The key grid of attend on CUDA: where a row's keys are split is a function of its own position and the geometry only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memra/detail/platform.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// Chunks have at least so many keys, and those of a row that sees more than `attend_long_keys` `attend_long_chunk`:
/// with several rows or sequences in a call short chunks cost more than they bring, and below, one row alone does not
/// fill the device without.
inline constexpr unsigned attend_least_chunk = 128;
inline constexpr unsigned attend_long_keys = 4096;
inline constexpr unsigned attend_long_chunk = 256;
static_assert(attend_least_chunk >= attend_least_keys);

/// Most chunks of a row: what runs at the same time, and has scratch. Heads of 256 elements and more have half as many
/// blocks on a multiprocessor as their warps would let be.
constexpr std::size_t cuda_attend_chunks(std::size_t n_kv_heads, std::size_t head_dim_v) noexcept {
  return attend_most_chunks(n_kv_heads, head_dim_v, head_dim_v >= 256 ? 8 : 16);
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

/// Units [first, end) of the grid.
struct AttendUnits {
  unsigned first = 0;
  unsigned end = 0;
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
  std::size_t places;  ///< for the chunks of a (row, head) among the partial results
  unsigned unit;       ///< keys that chunks are whole multiples of: the kernel's steps, or several of them
  const std::int32_t* pos_d;

  /// Keys per chunk of a row that ends at `hi`: so many units that it sees no more than `most_chunks`, and no fewer
  /// than a long row's. Chunk c holds stream rows [c * size, (c + 1) * size). What a window shows may begin and end
  /// within a chunk: it lies in one more than it would fill.
  MEMRA_HD unsigned chunk_keys(std::size_t hi) const noexcept {
    const bool windowed = window != 0;
    const auto seen = static_cast<unsigned>(windowed && window < hi ? window : hi);
    const unsigned most = (static_cast<unsigned>(most_chunks) - (windowed ? 1 : 0)) * unit;
    const unsigned size = (seen + most - 1) / most * unit;
    const unsigned least = seen > attend_long_keys ? attend_long_chunk : attend_least_chunk;
    return size < least ? least : size;
  }
  /// Chunks to launch where no row is beyond `pos_bound` plus its own place, from the first on that the pass's first
  /// row sees: a row far back needs no more than of the smallest, and rows behind a window are together no longer than
  /// a chunk more.
  std::size_t grid_chunks(std::size_t pos_bound) const noexcept {
    const std::size_t least = std::max(unit, attend_least_chunk);
    const std::size_t reach = (pos_bound + first_row + rows + least - 1) / least;
    if (window == 0) return std::min(reach, most_chunks);
    const std::size_t shown = window < end ? (window + rows + least - 1) / least + 1 : reach;
    return std::min({reach, shown, most_chunks + 1});
  }
  /// Chunks of the longest row there is then.
  std::size_t row_chunks(std::size_t pos_bound) const noexcept {
    const std::size_t reach = std::min(pos_bound + first_row + rows, end);
    if (reach == 0) return 0;
    const std::size_t size = chunk_keys(reach);
    const std::size_t seen = window == 0 || window >= reach ? reach : std::min(reach, window + size);
    return (seen + size - 1) / size;
  }
  __device__ AttendSpan span(std::int32_t pos, std::size_t row) const {
    return AttendSpan::of(pos, first_row + row, window, base, end);
  }
  __device__ AttendSpan span(std::size_t row) const { return span(*pos_d, row); }
  /// Where the chunks of all rows of the pass begin and end. Rows of one pass have chunks of at most two sizes, and of
  /// those the larger need not be a multiple of the smaller.
  /// @pre rows > 0
  __device__ AttendUnits units(std::int32_t pos) const {
    const AttendSpan first = span(pos, 0);
    const AttendSpan last = span(pos, rows - 1);
    if (last.lo >= last.hi) return {};
    const auto lo = static_cast<unsigned>(first.lo);
    const unsigned size_a = chunk_keys(first.hi == 0 ? last.hi : first.hi);
    const unsigned size_b = chunk_keys(last.hi);
    const unsigned from_a = lo / size_a * (size_a / unit);
    const unsigned from_b = lo / size_b * (size_b / unit);
    return {from_a < from_b ? from_a : from_b, (static_cast<unsigned>(last.hi) + unit - 1) / unit};
  }
  /// Which partial result is that of the first chunk that a row sees, for a head; the next chunks' are behind it.
  /// 32 bits: so many would be terabytes of scratch.
  __device__ unsigned place(std::size_t row, std::size_t head) const {
    return static_cast<unsigned>((row * n_heads + head) * places);
  }
  /// Partial result of one (row, head, chunk): dv sums of weighted values.
  __device__ float* partial(float* all, unsigned place) const { return all + std::size_t{place} * dv; }
  /// Behind all those: the exponent that its weights are relative to, and the sum of weights.
  __device__ float2* weight(float* all, unsigned place) const {
    float* const behind = all + rows * n_heads * places * dv;
    return reinterpret_cast<float2*>(behind) + place;
  }
};

}  // namespace memra::detail
