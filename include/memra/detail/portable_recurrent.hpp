// Portable kernels of conv_update and delta_scan.
#pragma once

#include <cmath>
#include <cstddef>
#include <memra/detail/math.hpp>
#include <memra/detail/platform.hpp>
#include <memra/detail/portable_sum.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// conv_update, one channel per item. Definition: see ConvBody in host_conv.hpp.
struct PortableConv {
  RecurView r;
  ConvArgs a;

  MEMRA_HD void operator()(const Item& item) const noexcept {
    if (!r.fits()) return;
    const std::size_t c = item.x;
    const std::size_t kept = r.d_conv - 1;
    for (std::size_t t = 0; t < r.rows; ++t) {
      float y = a.bias != nullptr ? a.bias[c] : 0.0F;
      for (std::size_t j = 0; j <= kept; ++j) y = y + product(a.weight[c * r.d_conv + j], input(c, t, j));
      a.y[t * r.conv_dim() + c] = a.silu ? silu_f32(y) : y;
    }
    // Ascending, so that an entry is read before it is overwritten.
    for (std::size_t j = 0; j < kept; ++j) r.conv[c * kept + j] = input(c, r.rows, j);
  }

 private:
  /// Input at time t - kept + j; the ring comes before token 0.
  MEMRA_HD float input(std::size_t c, std::size_t t, std::size_t j) const noexcept {
    const std::size_t kept = r.d_conv - 1;
    return t + j < kept ? r.conv[c * kept + t + j] : a.x[(t + j - kept) * r.conv_dim() + c];
  }
};

/// delta_scan, one column of S per item: (column, value head). Definition: see ScanBody in host_scan.hpp.
struct PortableScan {
  RecurView r;
  ScanArgs a;
  float inv;  ///< 1 / sqrt(d_k), rounded once

  PortableScan(const RecurView& view, const ScanArgs& args) noexcept
      : r(view), a(args), inv(1.0F / std::sqrt(static_cast<float>(view.d_k))) {}

  MEMRA_HD void operator()(const Item& item) const noexcept {
    if (!r.fits()) return;
    const std::size_t h = item.y;
    const std::size_t kh = r.map.key_head(h, r.n_k_heads, r.n_v_heads);
    const std::size_t n = r.d_k;
    float* s = r.ssm + (h * r.d_v + item.x) * n;
    for (std::size_t t = 0; t < r.rows; ++t) {
      const float* q = a.q + t * a.q_stride + kh * n;
      const float* k = a.k + t * a.k_stride + kh * n;
      const float decay = exp_f32(a.g[t * r.n_v_heads + h]);
      PortableLanes read;
      for (std::size_t i = 0; i < n; ++i) {
        s[i] = product(s[i], decay);
        read.add(i, product(s[i], k[i]));
      }
      const float u = product(a.beta[t * r.n_v_heads + h], a.v[t * a.v_stride + h * r.d_v + item.x] - read.sum());
      PortableLanes write;
      for (std::size_t i = 0; i < n; ++i) {
        s[i] = s[i] + product(k[i], u);
        write.add(i, product(s[i], q[i]));
      }
      a.out[(t * r.n_v_heads + h) * r.d_v + item.x] = product(write.sum(), inv);
    }
  }
};

}  // namespace memra::detail
