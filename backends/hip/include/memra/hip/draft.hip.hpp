// draft_attend on HIP: a block per head and block row. Same bits as the host, both arms.
#pragma once

#include <hip/hip_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memra/detail/half.hpp>
#include <memra/detail/math.hpp>
#include <memra/detail/portable_attend.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/hip/lanes.hip.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// Definition: DraftAttendBody in host_draft.hpp. A row of lanes scores a key at a time: its sixteen sums and their
/// fold are the host's dot product. Weights go through shared memory; then each lane walks the keys in ascending order
/// for one output element. Of ranges that do not fit there, scores are computed twice.
struct HipDraftAttend {
  static constexpr unsigned block_threads = 256;
  static constexpr unsigned teams = block_threads / row_lanes;
  static constexpr unsigned most_steps = block_threads / row_lanes;  ///< of a row over a head: an element per lane
  static constexpr unsigned piece = 4096;                            ///< keys whose weights are held at a time

  DraftView d;
  DraftAttendArgs a;

  static bool fits(const DraftView& d) noexcept {
    return d.head_dim % (2 * row_lanes) == 0 && d.head_dim <= block_threads && d.block_rows <= 65535;
  }

  /// Item: (head, block row).
  __device__ void block(const Item& item) const {
    __shared__ float p[piece];
    __shared__ float tops[teams];
    const std::size_t dim = d.head_dim;
    const std::size_t width = d.n_kv * dim;
    const std::size_t head = item.x / (a.n_heads / d.n_kv) * dim;
    const std::size_t query = (item.y * a.n_heads + item.x) * dim;
    const unsigned lane = threadIdx.x % row_lanes;
    const unsigned team = threadIdx.x / row_lanes;
    const PortableDraftRange rows = PortableDraftRange::of(d, a.arm, item.y);
    if (rows.end <= rows.visible) {  // the same in every lane
      if (threadIdx.x < dim) a.out[query + threadIdx.x] = 0.0F;
      return;
    }
    float q[most_steps];
#pragma unroll
    for (unsigned i = 0; i < most_steps; ++i) q[i] = i * row_lanes < dim ? a.q[query + i * row_lanes + lane] : 0.0F;
    const float* const k = d.k + head + lane;
    const bool whole = rows.end - rows.begin <= piece;

    float top = f32_from_bits(f32_minus_inf_bits);
    for (std::size_t r = rows.visible + team; r < rows.end; r += teams) {
      const float s = score(q, k + r * width, dim);
      top = s > top ? s : top;
      if (whole && lane == 0) p[r - rows.begin] = s;
    }
    if (lane == 0) tops[team] = top;
    __syncthreads();
    for (unsigned i = 0; i < teams; ++i) top = tops[i] > top ? tops[i] : top;

    float o = 0.0F;
    float l = 0.0F;
    for (std::size_t begin = rows.begin; begin < rows.end; begin += piece) {
      const std::size_t n = rows.end - begin < piece ? rows.end - begin : piece;
      if (!whole) {
        __syncthreads();  // the piece before was read
        for (std::size_t i = team; i < n; i += teams) {
          const float s = score(q, k + (begin + i) * width, dim);
          if (lane == 0) p[i] = s;
        }
        __syncthreads();
      }
      for (std::size_t i = threadIdx.x; i < n; i += block_threads) {
        p[i] = begin + i < rows.visible ? 0.0F : exp_f32(p[i] - top);
      }
      __syncthreads();
      if (threadIdx.x < dim) {
        const float* const y = d.v + begin * width + head + threadIdx.x;
        const auto add = [&](std::size_t i) {
          l = l + p[i];
          o = o + product(p[i], y[i * width]);
        };
        constexpr std::size_t many = 8;  // loads on their way at a time
        std::size_t i = 0;
        for (; i + many <= n; i += many) {
#pragma unroll
          for (std::size_t j = 0; j < many; ++j) add(i + j);
        }
        for (; i < n; ++i) add(i);
      }
    }
    if (threadIdx.x < dim) a.out[query + threadIdx.x] = o / l;
  }

 private:
  __device__ float score(const float (&q)[most_steps], const float* k, std::size_t dim) const {
    float x = 0.0F;
#pragma unroll
    for (unsigned i = 0; i < most_steps; i += 2) {
      if (i * row_lanes >= dim) continue;  // two at a time: sixteen such conditions are more than scalar registers hold
      x = x + product(q[i], k[i * row_lanes]);
      x = x + product(q[i + 1], k[(i + 1) * row_lanes]);
    }
    return product(row_sum(x), a.scale);
  }
};

}  // namespace memra::detail
