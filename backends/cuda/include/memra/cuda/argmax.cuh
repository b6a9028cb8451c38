// argmax_rows on CUDA: several blocks per row, CUB's reduction in each, then the best of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cub/block/block_reduce.cuh>
#include <cuda/functional>
#include <memra/detail/platform.hpp>
#include <memra/launch.hpp>

namespace memra::detail {

/// No row has an answer yet.
struct CudaArgmaxStart {
  std::int32_t* out;
  MEMRA_HD void operator()(const Item& item) const noexcept { out[item.x] = -1; }
};

/// The first of the largest; NaN never wins. Blocks agree through `out` itself: a candidate replaces the one there as
/// long as it is better.
struct CudaArgmax {
  static constexpr unsigned block_threads = 1024;
  static constexpr std::size_t columns = block_threads * 16;  ///< of one block

  /// Orders as argmax does: by value, then the lower index; 0 for NaN, below every number.
  static __device__ std::uint64_t key(float v, std::uint32_t index) {
    if (v != v) return 0;
    const std::uint32_t u = __float_as_uint(v + 0.0F);  // zeros are equal
    const std::uint32_t ordered = (u >> 31) != 0 ? ~u : u | 0x80000000U;
    return std::uint64_t{ordered} << 32 | (0xffffffffU - index);
  }

  const float* x;
  std::size_t n;
  std::int32_t* out;
  std::uint32_t row_blocks;  ///< blocks of a row

  CudaArgmax(const float* in, std::size_t width, std::int32_t* to) noexcept
      : x(in), n(width), out(to), row_blocks(static_cast<std::uint32_t>((width + columns - 1) / columns)) {}

  Grid grid(std::size_t rows) const noexcept { return {rows * row_blocks, 1, 1}; }

  /// Item: block of columns of a row.
  __device__ void block(const Item& item) const {
    using Reduce = cub::BlockReduce<std::uint64_t, block_threads>;
    __shared__ typename Reduce::TempStorage storage;
    const std::uint32_t r = static_cast<std::uint32_t>(item.x) / row_blocks;
    const float* row = x + r * n;
    const std::size_t first = (static_cast<std::uint32_t>(item.x) - r * row_blocks) * columns;
    const std::size_t end = first + columns < n ? first + columns : n;
    std::uint64_t best = 0;
#pragma unroll 16
    for (std::size_t i = first + threadIdx.x; i < end; i += block_threads) {
      const std::uint64_t k = key(row[i], static_cast<std::uint32_t>(i));
      best = k > best ? k : best;
    }
    best = Reduce(storage).Reduce(best, cuda::maximum<>{});
    if (threadIdx.x != 0 || best == 0) return;
    std::int32_t* at = out + r;
    std::int32_t seen = *static_cast<volatile std::int32_t*>(at);
    while (seen < 0 || best > key(row[seen], static_cast<std::uint32_t>(seen))) {
      const std::int32_t now = atomicCAS(at, seen, static_cast<std::int32_t>(0xffffffffU - (best & 0xffffffffU)));
      if (now == seen) return;
      seen = now;
    }
  }
};

}  // namespace memra::detail
