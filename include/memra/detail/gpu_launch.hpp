// How a GPU runs bodies: one thread per item, or one block per item for kernels whose threads work together.
// Read by device compilers only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memra/detail/gpu_dev.hpp>
#include <memra/launch.hpp>

#if defined(__CUDACC__)
#define MEMRA_DETAIL_CONST_PARAM() __grid_constant__
#else
#define MEMRA_DETAIL_CONST_PARAM()
#endif

namespace memra::detail {

/// Index is wide enough for the number of items: 32-bit divisions are several times cheaper.
template <class Body, class Index>
__global__ void gpu_items(const MEMRA_DETAIL_CONST_PARAM() Body body, Index nx, Index ny, Index total) {
  const Index step = static_cast<Index>(gridDim.x) * blockDim.x;
  for (Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += step) {
    const Index row = i / nx;
    body(Item{static_cast<std::size_t>(i - row * nx), static_cast<std::size_t>(row % ny),
              static_cast<std::size_t>(row / ny)});
    if (total - i <= step) break;  // i + step could wrap
  }
}

/// A body whose items are blocks of cooperating threads: `static constexpr unsigned block_threads`, optionally
/// `static constexpr unsigned least_blocks`, `std::size_t shared_bytes() const`, and `__device__ void block(const
/// Item&) const`, called by every thread of it. A body with `void complete(const Api::Driver&)` is a whole one only
/// after that call, made on the copy that is launched.
template <class Body>
concept GpuBlockBody = requires {
  Body::block_threads;
};

template <class Body>
__global__ void __launch_bounds__(Body::block_threads) gpu_blocks(const MEMRA_DETAIL_CONST_PARAM() Body body) {
  body.block(Item{blockIdx.x, blockIdx.y, blockIdx.z});
}

/// For a body that says how many of its blocks are to fit on a multiprocessor at a time: a limit to its registers.
template <class Body>
__global__ void __launch_bounds__(Body::block_threads, Body::least_blocks)
    gpu_bounded_blocks(const MEMRA_DETAIL_CONST_PARAM() Body body) {
  body.block(Item{blockIdx.x, blockIdx.y, blockIdx.z});
}

template <class Api, class Body>
struct GpuLaunch {
  static bool fits(const Grid& g) noexcept {
    constexpr std::size_t most = std::numeric_limits<std::int64_t>::max();
    if constexpr (GpuBlockBody<Body>) {
      return g.x <= 0x7fffffffU && g.y <= 65535 && g.z <= 65535;
    } else {
      return g.x <= most / g.y && g.x * g.y <= most / g.z;
    }
  }

  /// @pre fits(grid), no axis is 0
  static typename Api::Error run(typename Api::Stream stream, [[maybe_unused]] const typename Api::Driver& driver,
                                 const Grid& g, const Body& body) noexcept {
    if constexpr (requires(Body own) { own.complete(driver); }) {
      Body own = body;
      own.complete(driver);
      return blocks(stream, driver, g, own);
    } else if constexpr (GpuBlockBody<Body>) {
      return blocks(stream, driver, g, body);
    } else {
      const std::size_t total = g.x * g.y * g.z;
      if (total <= 0x7fffffffU) return items<std::uint32_t>(stream, g, total, body);
      return items<std::uint64_t>(stream, g, total, body);
    }
  }

 private:
  /// A body that says `waits_itself` may begin while the kernel before it ends, where the device can: each of its
  /// blocks waits for that one before it writes, and before it relies on anything that kernels write.
  static typename Api::Error blocks(typename Api::Stream stream, [[maybe_unused]] const typename Api::Driver& driver,
                                    const Grid& g, const Body& body) noexcept {
    void* args[] = {const_cast<Body*>(&body)};
    const void* kernel = nullptr;
    if constexpr (requires { Body::least_blocks; }) {
      kernel = reinterpret_cast<const void*>(&gpu_bounded_blocks<Body>);
    } else {
      kernel = reinterpret_cast<const void*>(&gpu_blocks<Body>);
    }
    std::size_t shared = 0;
    if constexpr (requires { body.shared_bytes(); }) shared = body.shared_bytes();
    // What every GPU gives without asking.
    if (shared > 48 * 1024) {
      if (const auto e = Api::allow_shared(kernel, shared); e != Api::ok) return e;
    }
    const auto x = static_cast<unsigned>(g.x);
    const auto y = static_cast<unsigned>(g.y);
    const auto z = static_cast<unsigned>(g.z);
    if constexpr (requires { Body::waits_itself; }) {
      return Api::launch_early(driver, kernel, x, y, z, Body::block_threads, args, shared, stream);
    } else {
      return Api::launch(kernel, x, y, z, Body::block_threads, args, shared, stream);
    }
  }

  template <class Index>
  static typename Api::Error items(typename Api::Stream stream, const Grid& g, std::size_t total,
                                   const Body& body) noexcept {
    // Few items are spread over many multiprocessors; a multiple of every vendor's warp.
    const unsigned threads = total < 32768 ? 64 : 256;
    const std::size_t blocks = (total + threads - 1) / threads;
    constexpr std::size_t most_blocks = 1U << 20;  // the loop in the kernel does the rest
    auto nx = static_cast<Index>(g.x);
    auto ny = static_cast<Index>(g.y);
    auto n = static_cast<Index>(total);
    void* args[] = {const_cast<Body*>(&body), &nx, &ny, &n};
    return Api::launch(reinterpret_cast<const void*>(&gpu_items<Body, Index>),
                       static_cast<unsigned>(blocks < most_blocks ? blocks : most_blocks), 1, 1, threads, args, 0,
                       stream);
  }
};

}  // namespace memra::detail

#undef MEMRA_DETAIL_CONST_PARAM
