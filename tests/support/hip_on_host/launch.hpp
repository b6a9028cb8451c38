// How a HipDev runs bodies on the host: the kernels of detail/gpu_launch.hpp, called by their types. For tests only.
#pragma once

#include <hip/hip_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memra/detail/gpu_launch.hpp>
#include <memra/hip/api.hpp>
#include <support/hip_on_host/wave.hpp>

namespace memra::detail {

template <class Body>
struct GpuLaunch<HipApi, Body> {
  static bool fits(const Grid&) noexcept { return true; }

  static HipApi::Error run(HipApi::Stream stream, const HipApi::Driver&, const Grid& g, const Body& body) noexcept {
    // Hardware refuses a stream of another device than the current one, too.
    if (stream != nullptr && stream->device != hip_on_host::state().device) {
      return hip_on_host::answer(hipErrorInvalidHandle);
    }
    return hip_on_host::enqueue(stream, [g, body] {
      if constexpr (GpuBlockBody<Body>) {
        const dim3 grid(static_cast<unsigned>(g.x), static_cast<unsigned>(g.y), static_cast<unsigned>(g.z));
        for (unsigned z = 0; z < grid.z; ++z) {
          for (unsigned y = 0; y < grid.y; ++y) {
            for (unsigned x = 0; x < grid.x; ++x) {
              hip_on_host::run_block(
                  Body::block_threads, dim3(x, y, z), grid,
                  [](const void* b) { gpu_blocks(*static_cast<const Body*>(b)); }, &body);
            }
          }
        }
      } else {
        // Lanes of these do not meet: any order of them will do.
        const std::size_t total = g.x * g.y * g.z;
        const unsigned threads = 64;
        hip_on_host::Here& here = hip_on_host::here();
        here.block_size = dim3(threads, 1, 1);
        here.grid_size = dim3(static_cast<unsigned>((total + threads - 1) / threads), 1, 1);
        for (unsigned b = 0; b < here.grid_size.x; ++b) {
          for (unsigned t = 0; t < threads; ++t) {
            here.block = dim3(b, 0, 0);
            here.thread = dim3(t, 0, 0);
            gpu_items(body, static_cast<std::uint32_t>(g.x), static_cast<std::uint32_t>(g.y),
                      static_cast<std::uint32_t>(total));
          }
        }
      }
    });
  }
};

}  // namespace memra::detail
