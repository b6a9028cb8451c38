// argmax_rows on HIP: one block per row, rocPRIM's reduction.
#pragma once

#include <hip/hip_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memra/launch.hpp>
#include <rocprim/block/block_reduce.hpp>

namespace memra::detail {

/// The first of the largest; NaN never wins. The order of comparison does not matter: larger value, then lower index.
struct HipArgmax {
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
    using Reduce = rocprim::block_reduce<Best, block_threads>;
    __shared__ typename Reduce::storage_type storage;
    const float* row = x + item.x * n;
    Best best{0.0F, -1};
#pragma unroll 4
    for (std::size_t i = threadIdx.x; i < n; i += block_threads) {
      const float v = row[i];
      if (v == v && (best.index < 0 || v > best.value)) best = {v, static_cast<std::int32_t>(i)};
    }
    Best all = best;
    Reduce().reduce(best, all, storage, Better{});
    if (threadIdx.x == 0) out[item.x] = all.index;
  }
};

}  // namespace memra::detail
