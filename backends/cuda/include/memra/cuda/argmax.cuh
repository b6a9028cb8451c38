// argmax_rows on CUDA: one block per row, CUB's reduction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cub/block/block_reduce.cuh>
#include <memra/launch.hpp>

namespace memra::detail {

/// The first of the largest; NaN never wins. The order of comparison does not matter: larger value, then lower index.
struct CudaArgmax {
  static constexpr unsigned block_threads = 1024;

  struct Best {
    float value;
    std::int32_t index;  ///< -1: none yet
  };
  struct Better {
    __device__ Best operator()(const Best& a, const Best& b) const {
      if (b.index < 0) return a;
      if (a.index < 0) return b;
      if (b.value > a.value || (b.value == a.value && b.index < a.index)) return b;
      return a;
    }
  };

  const float* x;
  std::size_t n;
  std::int32_t* out;

  __device__ void block(const Item& item) const {
    using Reduce = cub::BlockReduce<Best, block_threads>;
    __shared__ typename Reduce::TempStorage storage;
    const float* row = x + item.x * n;
    Best best{0.0F, -1};
#pragma unroll 4
    for (std::size_t i = threadIdx.x; i < n; i += block_threads) {
      const float v = row[i];
      if (v == v && (best.index < 0 || v > best.value)) best = {v, static_cast<std::int32_t>(i)};
    }
    best = Reduce(storage).Reduce(best, Better{});
    if (threadIdx.x == 0) out[item.x] = best.index;
  }
};

}  // namespace memra::detail
