// The second half of attend: a row's chunks become its output.
#pragma once

#include <cstddef>
#include <memra/cuda/attend_grid.cuh>
#include <memra/cuda/attend_mma.cuh>
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
    const std::size_t last = (span.hi - 1) / size;
    const float* const at = shape.partial(const_cast<float*>(partials), item.y, item.x, 0);
    const std::size_t stride = shape.dv + 2;
    float top = -INFINITY;
    for (std::size_t c = first; c <= last; ++c) top = fmaxf(top, at[c * stride + shape.dv]);
    for (std::size_t d = threadIdx.x; d < shape.dv; d += block_threads) {
      float l = 0.0F;
      float o = 0.0F;
      for (std::size_t c = first; c <= last; ++c) {
        const float* const part = at + c * stride;
        const float w = exp2_fast(__fsub_rn(part[shape.dv], top));
        l = __fmaf_rn(part[shape.dv + 1], w, l);
        o = __fmaf_rn(part[d], w, o);
      }
      y[d] = o / l;
    }
  }
};

}  // namespace memra::detail
