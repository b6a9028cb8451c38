// argmax_rows on CUDA: several blocks per row, CUB's reduction in each, then the best of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cub/block/block_reduce.cuh>
#include <memra/launch.hpp>

namespace memra::detail {

/// No row has an answer yet.
struct CudaArgmaxStart {
  std::int32_t* out;
  MEMRA_HD void operator()(const Item& item) const noexcept { out[item.x] = -1; }
};

/// The first of the largest; NaN never wins. The order of comparison does not matter: larger value, then lower index.
/// Blocks agree through `out` itself: a candidate replaces the one there as long as it is better.
struct CudaArgmax {
  static constexpr unsigned block_threads = 512;
  static constexpr std::size_t columns = block_threads * 16;  ///< of one block

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
  std::uint32_t row_blocks;  ///< blocks of a row

  CudaArgmax(const float* in, std::size_t width, std::int32_t* to) noexcept
      : x(in), n(width), out(to), row_blocks(static_cast<std::uint32_t>((width + columns - 1) / columns)) {}

  Grid grid(std::size_t rows) const noexcept { return {rows * row_blocks, 1, 1}; }

  /// Item: block of columns of a row.
  __device__ void block(const Item& item) const {
    using Reduce = cub::BlockReduce<Best, block_threads>;
    __shared__ typename Reduce::TempStorage storage;
    const std::uint32_t r = static_cast<std::uint32_t>(item.x) / row_blocks;
    const float* row = x + r * n;
    const std::size_t first = (static_cast<std::uint32_t>(item.x) - r * row_blocks) * columns;
    const std::size_t end = first + columns < n ? first + columns : n;
    Best best{0.0F, -1};
#pragma unroll 16
    for (std::size_t i = first + threadIdx.x; i < end; i += block_threads) {
      const float v = row[i];
      if (v == v && (best.index < 0 || v > best.value)) best = {v, static_cast<std::int32_t>(i)};
    }
    best = Reduce(storage).Reduce(best, Better{});
    if (threadIdx.x != 0 || best.index < 0) return;
    std::int32_t* at = out + r;
    std::int32_t seen = *static_cast<volatile std::int32_t*>(at);
    while (seen < 0 || Better{}(Best{row[seen], seen}, best).index == best.index) {
      const std::int32_t now = atomicCAS(at, seen, best.index);
      if (now == seen) return;
      seen = now;
    }
  }
};

}  // namespace memra::detail
