// How draft_attend on CUDA cuts the keys of a block into pieces, and how these become its output again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/cuda/attend_mma.cuh>
#include <memra/detail/portable_attend.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// Which stream rows the block's queries see, and the pieces that these are cut into.
struct CudaDraftPieces {
  std::uint32_t base = 0;   ///< stream row of physical row 0
  std::uint32_t first = 0;  ///< first that some query sees
  std::uint32_t end = 0;
  std::int32_t len = 0;
  std::int32_t reach = -0x7fffffff;  ///< first row of the window of the block's first
  std::uint32_t shift = 0;           ///< piece c holds stream rows [c << shift, (c + 1) << shift)
  std::uint32_t first_piece = 0;     ///< of those with visible rows
  std::uint32_t n = 0;               ///< pieces with visible rows; 0: no row is visible

  __device__ explicit CudaDraftPieces(const DraftView& d) {
    const PortableDraftRange r = PortableDraftRange::of(d, DraftArm::clip, 0);
    if (r.end <= r.visible) return;
    base = static_cast<std::uint32_t>(d.first_row());
    first = base + static_cast<std::uint32_t>(r.visible);
    end = base + static_cast<std::uint32_t>(r.end);
    const std::int32_t n_rows = *d.len_d < 0 ? 0 : *d.len_d;
    len = n_rows < static_cast<std::int64_t>(d.len_bound) ? n_rows : static_cast<std::int32_t>(d.len_bound);
    if (d.window != 0 && d.window <= std::size_t{0x7fffffff}) reach = len + 1 - static_cast<std::int32_t>(d.window);
    const std::size_t keys = most(d, end);
    shift = draft_piece_shift;
    while (keys > draft_pieces_bound << shift) ++shift;
    first_piece = first >> shift;
    n = ((end - 1) >> shift) - first_piece + 1;
  }

  /// Keys that the queries together see at most, of `end`.
  static __host__ __device__ std::size_t most(const DraftView& d, std::size_t end) {
    if (d.window == 0 || d.window > end) return end;
    const std::size_t seen = d.window - 1 + d.block_rows;
    return seen < end ? seen : end;
  }

  /// First stream row that a row of the block sees: the window moves on with the row, up to the block itself.
  __device__ std::uint32_t visible(unsigned row) const {
    const std::int32_t own = reach + static_cast<std::int32_t>(row);
    const auto least = static_cast<std::int32_t>(first);
    const std::int32_t to = own < len ? own : len;
    return static_cast<std::uint32_t>(to < least ? least : to);
  }
};

/// Floats of a piece's result for a row and head: sums of weighted values, the exponent that weights are relative to,
/// the sum of weights, two unused.
constexpr unsigned draft_partial_floats(unsigned head_dim) {
  return head_dim + 4;
}

/// Folds the pieces of a row and head, ascending. Item: (head, row); one thread per output element.
template <unsigned Dim>
struct CudaDraftFold {
  static constexpr unsigned block_threads = Dim;
  static constexpr unsigned stride = draft_partial_floats(Dim);

  DraftView d;
  DraftAttendArgs a;
  const float* partials;
  unsigned slots;

  __device__ void block(const Item& item) const {
    const std::size_t query = item.y * a.n_heads + item.x;
    const CudaDraftPieces pieces(d);
    const float* const at = partials + query * slots * stride;
    __shared__ float2 weights[draft_pieces_bound + 1];  // and sums
    for (unsigned i = threadIdx.x; i < pieces.n; i += Dim)
      weights[i] = {at[i * stride + Dim], at[i * stride + Dim + 1]};
    __syncthreads();
    float top = -INFINITY;
    for (unsigned i = 0; i < pieces.n; ++i) top = fmaxf(top, weights[i].x);
    float l = 0.0F;
    float o = 0.0F;
#pragma unroll 16
    for (unsigned i = 0; i < pieces.n; ++i) {
      const float c = exp2_fast(__fsub_rn(weights[i].x, top));
      l = __fmaf_rn(weights[i].y, c, l);
      o = __fmaf_rn(at[i * stride + threadIdx.x], c, o);
    }
    a.out[query * Dim + threadIdx.x] = pieces.n == 0 ? 0.0F : o / l;
  }
};

}  // namespace memra::detail
