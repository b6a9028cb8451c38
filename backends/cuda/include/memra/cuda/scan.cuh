// delta_scan on CUDA: the state stays in registers from token to token. Same bits as the host.
#pragma once

#include <cmath>
#include <cstddef>
#include <memra/detail/math.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// Half a warp owns `columns` columns of S; lane j holds elements j, j + 16, ...: exactly the sixteen accumulators of
/// the host's dot products, whose fold over distances 8, 4, 2, 1 is a butterfly (each step adds the same two numbers in
/// both lanes, so all sixteen end with the same bits).
/// In a round (Mode) the same registers go on, and only what is written differs: planes keep the state after each
/// token, a stash keeps what its commit needs and leaves the state alone.
template <unsigned Steps, RoundMode Mode>
struct CudaScan {
  static constexpr unsigned block_threads = 128;
  static constexpr unsigned columns = 2;
  static constexpr unsigned block_columns = block_threads / 16 * columns;

  RecurView r;
  ScanArgs a;
  float inv;  ///< 1 / sqrt(d_k), rounded once

  CudaScan(const RecurView& view, const ScanArgs& args) noexcept
      : r(view), a(args), inv(1.0F / std::sqrt(static_cast<float>(view.d_k))) {}

  static bool fits(const RecurView& r) noexcept { return r.d_k == Steps * 16 && r.d_v % columns == 0; }

  /// Item: (block of columns of a head, head).
  __device__ void block(const Item& item) const {
    if (!r.fits()) return;
    const unsigned lane = threadIdx.x % 16;
    const std::size_t column = item.x * block_columns + threadIdx.x / 16 * columns;
    const std::size_t h = item.y;
    const bool live = column < r.d_v;
    const std::size_t kh = r.map.key_head(h, r.n_k_heads, r.n_v_heads);
    const std::size_t first = live ? column : 0;
    const std::size_t at = (h * r.d_v + first) * r.d_k + lane;
    const std::size_t plane = r.current();
    float* const state = r.plane(plane) + at;
    const bool keeps_keys = Mode == RoundMode::stash && live && column == 0 && first_reader(h, kh);
    float s[columns][Steps];
#pragma unroll
    for (unsigned c = 0; c < columns; ++c) {
#pragma unroll
      for (unsigned i = 0; i < Steps; ++i) s[c][i] = state[c * r.d_k + i * 16];
    }
    for (std::size_t t = 0; t < r.rows; ++t) {
      const float* q = a.q + t * a.q_stride + kh * r.d_k + lane;
      const float* k = a.k + t * a.k_stride + kh * r.d_k + lane;
      float kv[Steps];
      float qv[Steps];
#pragma unroll
      for (unsigned i = 0; i < Steps; ++i) {
        kv[i] = k[i * 16];
        qv[i] = q[i * 16];
      }
      const float decay = exp_f32(a.g[t * r.n_v_heads + h]);
      const float beta = a.beta[t * r.n_v_heads + h];
      float out[columns];
#pragma unroll
      for (unsigned c = 0; c < columns; ++c) {
        const float v = a.v[t * a.v_stride + h * r.d_v + first + c];
        float read = 0.0F;
#pragma unroll
        for (unsigned i = 0; i < Steps; ++i) {
          s[c][i] = product(s[c][i], decay);
          read = read + product(s[c][i], kv[i]);
        }
        const float u = product(beta, v - fold(read));
        float write = 0.0F;
#pragma unroll
        for (unsigned i = 0; i < Steps; ++i) {
          s[c][i] = s[c][i] + product(kv[i], u);
          write = write + product(s[c][i], qv[i]);
        }
        out[c] = product(fold(write), inv);
        if (Mode == RoundMode::stash && live && lane == c) r.round.u[(t * r.n_v_heads + h) * r.d_v + first + c] = u;
      }
      if constexpr (Mode == RoundMode::planes) {
        if (live) keep(r.plane((plane + 1 + t) % r.round.n_planes) + at, s);
      } else if constexpr (Mode == RoundMode::stash) {
        if (live && column == 0 && lane == 0) r.round.decay[t * r.n_v_heads + h] = decay;
        if (keeps_keys) {
          float* to = r.round.k + (t * r.n_k_heads + kh) * r.d_k + lane;
#pragma unroll
          for (unsigned i = 0; i < Steps; ++i) to[i * 16] = kv[i];
        }
      }
      if (live && lane < columns) a.out[(t * r.n_v_heads + h) * r.d_v + first + lane] = out[lane == 0 ? 0 : 1];
    }
    if (Mode == RoundMode::none && live) keep(state, s);
  }

 private:
  __device__ void keep(float* to, const float (&s)[columns][Steps]) const {
#pragma unroll
    for (unsigned c = 0; c < columns; ++c) {
#pragma unroll
      for (unsigned i = 0; i < Steps; ++i) to[c * r.d_k + i * 16] = s[c][i];
    }
  }

  /// The first value head that reads a key head keeps its keys: one writer each.
  __device__ bool first_reader(std::size_t h, std::size_t kh) const {
    for (std::size_t before = 0; before < h; ++before) {
      if (r.map.key_head(before, r.n_k_heads, r.n_v_heads) == kh) return false;
    }
    return true;
  }

  static __device__ float fold(float x) {
#pragma unroll
    for (unsigned distance = 8; distance != 0; distance /= 2) x = x + __shfl_xor_sync(0xffffffffU, x, distance, 16);
    return x;
  }
};

}  // namespace memra::detail
