// The second half of attend: a row's chunks become its output.
#pragma once

#include <cstddef>
#include <memra/cuda/attend_grid.cuh>
#include <memra/cuda/attend_mma.cuh>
#include <memra/detail/scratch.hpp>
#include <memra/launch.hpp>

namespace memra::detail {

/// Folds a row's chunks, ascending. Item: (head, row); one thread per output element.
struct CudaAttendFold {
  static constexpr unsigned block_threads = 128;

  CudaAttendShape shape;
  const float* partials;
  float* out;  ///< [rows][n_heads][dv]

  __device__ void block(const Item& item) const {
    float* const y = out + ((shape.first_row + item.y) * shape.n_heads + item.x) * shape.dv;
    const AttendSpan span = shape.span(item.y);
    if (span.hi <= span.lo) {
      for (std::size_t d = threadIdx.x; d < shape.dv; d += block_threads) y[d] = 0.0F;
      return;
    }
    const std::size_t size = attend_chunk_keys(span.hi, shape.most_chunks);
    const std::size_t first = span.lo / size;
    const auto n = static_cast<unsigned>((span.hi - 1) / size - first + 1);
    const float* const at = shape.partial(const_cast<float*>(partials), item.y, item.x, first);
    const std::size_t stride = shape.dv + 2;
    __shared__ float2 weights[attend_chunks_bound];  // and sums
    __shared__ float tops[block_threads / 32];
    float top = -INFINITY;
    for (unsigned c = threadIdx.x; c < n; c += block_threads) {
      weights[c] = {at[c * stride + shape.dv], at[c * stride + shape.dv + 1]};
      top = fmaxf(top, weights[c].x);
    }
#pragma unroll
    for (unsigned distance = 16; distance != 0; distance /= 2) {
      top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, distance));
    }
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
    __syncthreads();
    for (unsigned i = 0; i < block_threads / 32; ++i) top = fmaxf(top, tops[i]);
    for (unsigned c = threadIdx.x; c < n; c += block_threads) weights[c].x = exp2_fast(__fsub_rn(weights[c].x, top));
    __syncthreads();
    for (std::size_t d = threadIdx.x; d < shape.dv; d += block_threads) {
      float l = 0.0F;
      float o = 0.0F;
#pragma unroll 16
      for (unsigned c = 0; c < n; ++c) {
        l = __fmaf_rn(weights[c].y, weights[c].x, l);
        o = __fmaf_rn(at[c * stride + d], weights[c].x, o);
      }
      y[d] = o / l;
    }
  }
};

}  // namespace memra::detail
