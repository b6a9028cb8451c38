// RMS norms, the L2 norm of keys, and rotary embedding: one work item per vector, fixed order of addition.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memra/launch.hpp>
#include <tiny_engine/lanes.hpp>
#include <tiny_engine/math.hpp>
#include <tiny_engine/strict_fp.hpp>

namespace tiny {

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
    const std::size_t pos = static_cast<std::size_t>(*pos_d) + item.x;
    if (pos >= rope.positions) return;  // beyond capacity: the row is dead anyway
    const std::size_t half = rope.rot_dim / 2;
    const float* c = rope.table + pos * rope.rot_dim;
    const float* s = c + half;
    for (std::size_t i = 0; i < half; ++i) {
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
};

}  // namespace tiny
