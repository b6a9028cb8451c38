// draft_attend on CUDA: one block per head and block row. Same bits as the host, both arms.
#pragma once

#include <cstddef>
#include <memra/detail/math.hpp>
#include <memra/detail/portable_attend.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// Scores by half warps (the host's sixteen accumulators), weights in shared memory, then one thread per output element
/// walks the keys in ascending order, as the definition has it. Longer ranges go through shared memory in pieces.
struct CudaDraftAttend {
  static constexpr unsigned block_threads = 256;
  static constexpr unsigned piece = 4096;  ///< keys whose weights are held at a time

  DraftView d;
  DraftAttendArgs a;

  static bool fits(const DraftView& d) noexcept { return d.head_dim % 16 == 0 && d.head_dim <= 256; }

  __device__ void block(const Item& item) const {
    __shared__ float p[piece];
    __shared__ float tops[block_threads / 16];
    const std::size_t dim = d.head_dim;
    const std::size_t width = d.n_kv * dim;
    const std::size_t head = item.x / (a.n_heads / d.n_kv) * dim;
    const std::size_t query = (item.y * a.n_heads + item.x) * dim;
    const PortableDraftRange rows = PortableDraftRange::of(d, a.arm, item.y);
    if (rows.end <= rows.visible) {
      if (threadIdx.x < dim) a.out[query + threadIdx.x] = 0.0F;
      return;
    }
    const float* k = d.k + head;
    const float* v = d.v + head;
    const bool whole = rows.end - rows.begin <= piece;

    const unsigned team = threadIdx.x / 16;
    const unsigned lane = threadIdx.x % 16;
    constexpr unsigned teams = block_threads / 16;
    float q[16];
#pragma unroll
    for (unsigned i = 0; i < 16; ++i) q[i] = i * 16 < dim ? a.q[query + i * 16 + lane] : 0.0F;

    float top = f32_from_bits(f32_minus_inf_bits);
    const std::size_t n = rows.end - rows.visible;
    for (std::size_t i = 0; i < n; i += teams) {  // every lane of a warp takes every turn: shuffles need them all
      const std::size_t r = rows.visible + (i + team < n ? i + team : n - 1);
      const float s = product(dot(q, k + r * width + lane, dim), a.scale);
      top = s > top ? s : top;
      if (whole && lane == 0 && i + team < n) p[r - rows.begin] = s;
    }
    if (lane == 0) tops[team] = top;
    __syncthreads();
    for (unsigned i = 0; i < teams; ++i) top = tops[i] > top ? tops[i] : top;

    float o = 0.0F;
    float l = 0.0F;
    for (std::size_t begin = rows.begin; begin < rows.end; begin += piece) {
      const std::size_t m = rows.end - begin < piece ? rows.end - begin : piece;
      if (!whole) {
        __syncthreads();
        for (std::size_t i = 0; i < m; i += teams) {
          const std::size_t at = i + team < m ? i + team : m - 1;
          const float s = product(dot(q, k + (begin + at) * width + lane, dim), a.scale);
          if (lane == 0 && i + team < m) p[at] = s;
        }
      }
      __syncthreads();
      for (std::size_t i = threadIdx.x; i < m; i += block_threads) {
        p[i] = begin + i < rows.visible ? 0.0F : exp_f32(p[i] - top);
      }
      __syncthreads();
      if (threadIdx.x < dim) {
        const float* y = v + begin * width + threadIdx.x;
#pragma unroll 8
        for (std::size_t i = 0; i < m; ++i) {
          l = l + p[i];
          o = o + product(p[i], y[i * width]);
        }
      }
    }
    if (threadIdx.x < dim) a.out[query + threadIdx.x] = o / l;
  }

 private:
  static __device__ float dot(const float (&q)[16], const float* k, std::size_t dim) {
    float x = 0.0F;
#pragma unroll
    for (unsigned i = 0; i < 16; ++i) {
      if (i * 16 < dim) x = x + product(q[i], k[i * 16]);
    }
#pragma unroll
    for (unsigned distance = 8; distance != 0; distance /= 2) x = x + __shfl_xor_sync(0xffffffffU, x, distance, 16);
    return x;
  }
};

}  // namespace memra::detail
