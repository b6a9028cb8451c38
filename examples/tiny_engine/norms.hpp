// RMS norms, the L2 norm of keys, and rotary embedding: one work item per vector, fixed order of addition.
//
// Compilers that make device code get a block of threads per vector instead. It adds in the same order, so the bits are
// those of one item.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memra/launch.hpp>
#include <tiny_engine/lanes.hpp>
#include <tiny_engine/math.hpp>
#include <tiny_engine/strict_fp.hpp>

namespace tiny {

#if MEMRA_DEVICE_COMPILE()

/// Threads of a block that normalises one vector: a multiple of every GPU's warp, and not fewer than lanes.
inline constexpr unsigned norm_threads = 128;

/// sum_squares by a block: all threads square, then thread i adds lane i up in ascending order, then everyone folds.
__device__ inline float block_sum_squares(const float* x, std::size_t n) {
  constexpr std::size_t tile = 1024;  // a multiple of the lanes
  __shared__ float squares[tile];
  __shared__ float sums[lane_count];
  float sum = 0.0F;
  for (std::size_t at = 0; at < n; at += tile) {
    const std::size_t m = n - at < tile ? n - at : tile;
    for (std::size_t i = threadIdx.x; i < m; i += norm_threads) squares[i] = product(x[at + i], x[at + i]);
    __syncthreads();
    if (threadIdx.x < lane_count) {
      for (std::size_t i = threadIdx.x; i < m; i += lane_count) sum = sum + squares[i];
    }
    __syncthreads();
  }
  if (threadIdx.x < lane_count) sums[threadIdx.x] = sum;
  __syncthreads();
  Lanes all;
  load(all, sums);
  return fold(all);
}

/// rms_norm by a block. out[i] is written by the thread that reads x[i].
__device__ inline void block_rms_norm(const float* x, const float* w, float* out, std::size_t n, float eps) {
  const float mean = block_sum_squares(x, n) / static_cast<float>(n);
  const float scale = 1.0F / std::sqrt(mean + eps);
  for (std::size_t i = threadIdx.x; i < n; i += norm_threads) out[i] = product(product(x[i], scale), w[i]);
}

#endif

struct Multiply {
  template <class V>
  MEMRA_HD V operator()(V a, V b) const noexcept {
    return product(a, b);
  }
};

/// out = (x / sqrt(mean(x^2) + eps)) * w for one vector. Weights that are stored minus one get their one on loading.
MEMRA_HD inline void rms_norm(const float* x, const float* w, float* out, std::size_t n, float eps) noexcept {
  const float mean = sum_squares(x, n) / static_cast<float>(n);
  const float scale = 1.0F / std::sqrt(mean + eps);
  struct Scale {
    float s;
    MEMRA_HD float operator()(float a, float b) const noexcept { return product(product(a, s), b); }
#if TINY_VECTOR_LANES()
    internal::FloatVector operator()(internal::FloatVector a, internal::FloatVector b) const noexcept {
      return product(product(a, internal::all<internal::FloatVector>(s)), b);
    }
#endif
  };
  zip(x, w, out, n, Scale{scale});
}

/// One item of the grid's x: one row.
struct RmsNormBody {
  const float* x = nullptr;  ///< [rows][n]
  const float* w = nullptr;  ///< [n]
  float* y = nullptr;        ///< [rows][n]
  std::size_t n = 0;
  float eps = 0;

  MEMRA_HD void operator()(const memra::Item& item) const noexcept {
    rms_norm(x + item.x * n, w, y + item.x * n, n, eps);
  }
#if MEMRA_DEVICE_COMPILE()
  static constexpr unsigned block_threads = norm_threads;
  __device__ void block(const memra::Item& item) const {
    block_rms_norm(x + item.x * n, w, y + item.x * n, n, eps);
  }
#endif
};

/// cos and sin of every position: [positions][2][rot_dim / 2].
struct RopeView {
  const float* table = nullptr;
  std::size_t positions = 0;
  std::size_t rot_dim = 0;
};

/// Norm of one head, then RoPE over its first rot_dim dims (halves): the position is *pos_d + row, read on the device.
/// Items: x = row, y = head.
struct HeadNormRopeBody {
  const float* x = nullptr;     ///< head h of row r at x + r * row_stride + h * head_stride
  std::size_t row_stride = 0;   ///< floats
  std::size_t head_stride = 0;  ///< floats
  const float* w = nullptr;     ///< [head_dim]
  float* y = nullptr;           ///< [rows][n_heads][head_dim]
  std::size_t n_heads = 0;
  std::size_t head_dim = 0;
  float eps = 0;
  RopeView rope;
  const std::int32_t* pos_d = nullptr;

  MEMRA_HD void operator()(const memra::Item& item) const noexcept {
    float* out = y + (item.x * n_heads + item.y) * head_dim;
    rms_norm(x + item.x * row_stride + item.y * head_stride, w, out, head_dim, eps);
    turn(out, item.x, 0, 1);
  }
#if MEMRA_DEVICE_COMPILE()
  static constexpr unsigned block_threads = norm_threads;
  __device__ void block(const memra::Item& item) const {
    float* out = y + (item.x * n_heads + item.y) * head_dim;
    block_rms_norm(x + item.x * row_stride + item.y * head_stride, w, out, head_dim, eps);
    __syncthreads();
    turn(out, item.x, threadIdx.x, norm_threads);
  }
#endif

 private:
  /// Rotates every `step`th pair of a head from `first` on.
  MEMRA_HD void turn(float* out, std::size_t row, std::size_t first, std::size_t step) const noexcept {
    const std::size_t pos = static_cast<std::size_t>(*pos_d) + row;
    if (pos >= rope.positions) return;  // beyond capacity: the row is dead anyway
    const std::size_t half = rope.rot_dim / 2;
    const float* c = rope.table + pos * rope.rot_dim;
    const float* s = c + half;
    for (std::size_t i = first; i < half; i += step) {
      const float a = out[i];
      const float b = out[i + half];
      out[i] = product(a, c[i]) - product(b, s[i]);
      out[i + half] = product(b, c[i]) + product(a, s[i]);
    }
  }
};

/// x / sqrt(sum x^2 + 1e-6) in place. Items: x = row, y = head. The constant is the architecture's.
struct L2NormBody {
  float* x = nullptr;  ///< head h of row r at x + r * row_stride + h * dim
  std::size_t row_stride = 0;
  std::size_t dim = 0;

  MEMRA_HD void operator()(const memra::Item& item) const noexcept {
    float* v = x + item.x * row_stride + item.y * dim;
    const float scale = 1.0F / std::sqrt(sum_squares(v, dim) + 1e-6F);
    for (std::size_t i = 0; i < dim; ++i) v[i] = v[i] * scale;
  }
#if MEMRA_DEVICE_COMPILE()
  static constexpr unsigned block_threads = norm_threads;
  __device__ void block(const memra::Item& item) const {
    float* v = x + item.x * row_stride + item.y * dim;
    const float scale = 1.0F / std::sqrt(block_sum_squares(v, dim) + 1e-6F);
    for (std::size_t i = threadIdx.x; i < dim; i += norm_threads) v[i] = v[i] * scale;
  }
#endif
};

/// rms(x) * w * silu(z), per head. Items: x = row, y = head.
struct GatedRmsNormBody {
  float* x = nullptr;        ///< [rows][n_heads][dim], in place
  const float* w = nullptr;  ///< [dim]
  const float* z = nullptr;  ///< [rows][n_heads][dim]
  std::size_t n_heads = 0;
  std::size_t dim = 0;
  float eps = 0;

  struct TimesSilu {
    template <class V>
    MEMRA_HD V operator()(V a, V gate) const noexcept {
      return product(a, silu(gate));
    }
  };

  MEMRA_HD void operator()(const memra::Item& item) const noexcept {
    const std::size_t at = (item.x * n_heads + item.y) * dim;
    rms_norm(x + at, w, x + at, dim, eps);
    zip(x + at, z + at, x + at, dim, TimesSilu{});
  }
#if MEMRA_DEVICE_COMPILE()
  static constexpr unsigned block_threads = norm_threads;
  __device__ void block(const memra::Item& item) const {
    const std::size_t at = (item.x * n_heads + item.y) * dim;
    block_rms_norm(x + at, w, x + at, dim, eps);
    for (std::size_t i = threadIdx.x; i < dim; i += norm_threads) x[at + i] = TimesSilu{}(x[at + i], z[at + i]);
  }
#endif
};

}  // namespace tiny
