// Elementwise kernels: attention's output gate, the MLP's product, the delta rule's decay and rate, fused projections.
#pragma once

#include <cstddef>
#include <memra/launch.hpp>
#include <tiny_engine/math.hpp>
#include <tiny_engine/strict_fp.hpp>

namespace tiny {

/// a[r][h][d] *= sigmoid(gate[r][h][d]). Items: x = row, y = head.
struct SigmoidGateBody {
  float* a = nullptr;           ///< [rows][n_heads][dim]
  const float* gate = nullptr;  ///< head h of row r at gate + r * row_stride + h * head_stride
  std::size_t row_stride = 0;
  std::size_t head_stride = 0;
  std::size_t n_heads = 0;
  std::size_t dim = 0;

  struct TimesSigmoid {
    template <class V>
    MEMRA_HD V operator()(V x, V g) const noexcept {
      return product(x, sigmoid(g));
    }
  };

  MEMRA_HD void operator()(const memra::Item& item) const noexcept {
    float* out = a + (item.x * n_heads + item.y) * dim;
    zip(out, gate + item.x * row_stride + item.y * head_stride, out, dim, TimesSigmoid{});
  }
};

/// gate = silu(gate) * up. One item of the grid's x: one row.
struct SiluMulBody {
  float* gate = nullptr;      ///< [rows][n]
  const float* up = nullptr;  ///< [rows][n]
  std::size_t n = 0;

  struct SiluTimes {
    template <class V>
    MEMRA_HD V operator()(V g, V u) const noexcept {
      return product(silu(g), u);
    }
  };

  MEMRA_HD void operator()(const memra::Item& item) const noexcept {
    float* out = gate + item.x * n;
    zip(out, up + item.x * n, out, n, SiluTimes{});
  }
};

/// g = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b), in place of a and b. Items: x = row.
struct DecayBody {
  float* a = nullptr;               ///< [rows][n_v] in: a, out: g
  float* b = nullptr;               ///< [rows][n_v] in: b, out: beta
  const float* neg_rate = nullptr;  ///< [n_v] -exp(A_log)
  const float* dt_bias = nullptr;   ///< [n_v]
  std::size_t n_v = 0;

  MEMRA_HD void operator()(const memra::Item& item) const noexcept {
    float* ar = a + item.x * n_v;
    float* br = b + item.x * n_v;
    for (std::size_t h = 0; h < n_v; ++h) {
      ar[h] = product(neg_rate[h], softplus(ar[h] + dt_bias[h]));
      br[h] = sigmoid(br[h]);
    }
  }
};

/// Takes Qwen3-Next's fused projections apart. Per key head, with r = n_v / n_k, a row of `qkvz` holds
/// [q d_k | k d_k | v r*d_v | z r*d_v] and a row of `ba` [b r | a r]. Items: x = row, y = key head.
struct UnfuseBody {
  const float* qkvz = nullptr;  ///< [rows][n_k][2 d_k + 2 r d_v]
  const float* ba = nullptr;    ///< [rows][n_k][2 r]
  float* conv_in = nullptr;     ///< [rows][all q | all k | all v]
  float* z = nullptr;           ///< [rows][n_v][d_v]
  float* a = nullptr;           ///< [rows][n_v]
  float* b = nullptr;           ///< [rows][n_v]
  std::size_t n_k = 0;
  std::size_t n_v = 0;
  std::size_t d_k = 0;
  std::size_t d_v = 0;

  MEMRA_HD void operator()(const memra::Item& item) const noexcept {
    const std::size_t r = n_v / n_k;
    const std::size_t v_run = r * d_v;
    const std::size_t h = item.y;
    const float* in = qkvz + (item.x * n_k + h) * (2 * d_k + 2 * v_run);
    float* conv = conv_in + item.x * (2 * d_k * n_k + d_v * n_v);
    copy(conv + h * d_k, in, d_k);
    copy(conv + (n_k + h) * d_k, in + d_k, d_k);
    copy(conv + 2 * n_k * d_k + h * v_run, in + 2 * d_k, v_run);
    copy(z + item.x * n_v * d_v + h * v_run, in + 2 * d_k + v_run, v_run);
    const float* gates = ba + (item.x * n_k + h) * 2 * r;
    copy(b + item.x * n_v + h * r, gates, r);
    copy(a + item.x * n_v + h * r, gates + r, r);
  }

 private:
  MEMRA_HD static void copy(float* to, const float* from, std::size_t n) noexcept {
    for (std::size_t i = 0; i < n; ++i) to[i] = from[i];
  }
};

}  // namespace tiny
