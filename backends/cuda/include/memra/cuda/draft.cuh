// draft_attend on CUDA: which kernel a shape takes, and the one for head dimensions that draft_tile.cuh does not take:
// one block per head and block row, the host's bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/cuda/attend_launch.cuh>
#include <memra/cuda/draft_pieces.cuh>
#include <memra/cuda/draft_tile.cuh>
#include <memra/detail/math.hpp>
#include <memra/detail/portable_attend.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/error.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/portable_ops.hpp>
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

template <unsigned Dim, unsigned Tiles, class D>
Status cuda_draft_tile(D& dev, const DraftView& d, const DraftAttendArgs& a, const WorkspaceView& ws) noexcept {
  auto* const partials = reinterpret_cast<float*>(ws.data + (64 - reinterpret_cast<std::uintptr_t>(ws.data) % 64) % 64);
  const auto slots = static_cast<unsigned>(draft_most_pieces(CudaDraftPieces::most(d, d.most_keys() + d.block_rows)));
  const CudaDraftTile<Dim, Tiles> body{{d, a, partials, slots}};
  if (Status s = launch(dev, "draft_attend", body.grid(), body); !s) return s;
  return launch(dev, "draft_fold", Grid{a.n_heads, d.block_rows, 1}, CudaDraftFold<Dim>{d, a, partials, slots});
}

/// How many columns a block takes changes no bit of any: the number of rows, and what the device has, may choose it.
template <unsigned Dim, class D>
Status cuda_draft_tiles(D& dev, const DraftView& d, const DraftAttendArgs& a, const WorkspaceView& ws) noexcept {
  const bool few = d.block_rows * (a.n_heads / d.n_kv) <= 32;
  if (few || CudaDraftTile<Dim, 8>::shared_bytes() > cuda_shared_limit(dev))
    return cuda_draft_tile<Dim, 4>(dev, d, a, ws);
  return cuda_draft_tile<Dim, 8>(dev, d, a, ws);
}

/// Every shape.
template <class D>
Status cuda_draft_attend(D& dev, const DraftView& d, const DraftAttendArgs& a, const WorkspaceView& ws) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(d.k) | reinterpret_cast<std::uintptr_t>(d.v) |
                  reinterpret_cast<std::uintptr_t>(a.q);
  if (draft_splits(d.head_dim) && at % 16 == 0) {
    if (d.head_dim == 32) return cuda_draft_tiles<32>(dev, d, a, ws);
    if (d.head_dim == 64) return cuda_draft_tiles<64>(dev, d, a, ws);
    return cuda_draft_tiles<128>(dev, d, a, ws);
  }
  if (!CudaDraftAttend::fits(d)) return PortableKernels::draft_attend(dev, d, a, ws);
  return launch(dev, "draft_attend", Grid{a.n_heads, d.block_rows, 1}, CudaDraftAttend{d, a});
}

}  // namespace memra::detail
