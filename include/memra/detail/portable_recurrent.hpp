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
    if (r.round.mode == RoundMode::none) {
      // Ascending, so that an entry is read before it is overwritten.
      for (std::size_t j = 0; j < kept; ++j) r.conv[c * kept + j] = input(c, r.rows, j);
    } else if (kept != 0) {
      const std::size_t width = r.conv_dim();
      for (std::size_t t = 0; t < r.rows; ++t) r.round.conv_rows[t * width + c] = a.x[t * width + c];
    }
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
    if (r.round.mode == RoundMode::stash) return stash(item.y, item.x);
    const std::size_t h = item.y;
    const std::size_t kh = r.map.key_head(h, r.n_k_heads, r.n_v_heads);
    const std::size_t n = r.d_k;
    const std::size_t at = (h * r.d_v + item.x) * n;
    const std::size_t plane = r.current();
    const float* from = r.plane(plane) + at;
    for (std::size_t t = 0; t < r.rows; ++t) {
      float* s = r.round.mode == RoundMode::none ? r.ssm + at : r.plane((plane + 1 + t) % r.round.n_planes) + at;
      const float* q = a.q + t * a.q_stride + kh * n;
      const float* k = a.k + t * a.k_stride + kh * n;
      const float decay = exp_f32(a.g[t * r.n_v_heads + h]);
      PortableLanes read;
      for (std::size_t i = 0; i < n; ++i) {
        s[i] = product(from[i], decay);
        read.add(i, product(s[i], k[i]));
      }
      const float u = product(a.beta[t * r.n_v_heads + h], a.v[t * a.v_stride + h * r.d_v + item.x] - read.sum());
      PortableLanes write;
      for (std::size_t i = 0; i < n; ++i) {
        s[i] = s[i] + product(k[i], u);
        write.add(i, product(s[i], q[i]));
      }
      a.out[(t * r.n_v_heads + h) * r.d_v + item.x] = product(write.sum(), inv);
      from = s;
    }
  }

 private:
  /// The state stays: what an element would be after t tokens is computed again from what was kept. Slow for many
  /// tokens, but it needs no memory of its own and does the additions of a plain scan.
  MEMRA_HD void stash(std::size_t h, std::size_t c) const noexcept {
    const std::size_t kh = r.map.key_head(h, r.n_k_heads, r.n_v_heads);
    const std::size_t n = r.d_k;
    const bool keeps_keys = c == 0 && first_reader(h, kh);
    for (std::size_t t = 0; t < r.rows; ++t) {
      const float* q = a.q + t * a.q_stride + kh * n;
      const float* k = a.k + t * a.k_stride + kh * n;
      const float decay = exp_f32(a.g[t * r.n_v_heads + h]);
      PortableLanes read;
      for (std::size_t i = 0; i < n; ++i) read.add(i, product(product(after(h, c, kh, i, t), decay), k[i]));
      const float u = product(a.beta[t * r.n_v_heads + h], a.v[t * a.v_stride + h * r.d_v + c] - read.sum());
      r.round.u[(t * r.n_v_heads + h) * r.d_v + c] = u;
      PortableLanes write;
      for (std::size_t i = 0; i < n; ++i) write.add(i, product(after(h, c, kh, i, t + 1), q[i]));
      a.out[(t * r.n_v_heads + h) * r.d_v + c] = product(write.sum(), inv);
      if (c == 0) r.round.decay[t * r.n_v_heads + h] = decay;
      if (!keeps_keys) continue;
      for (std::size_t i = 0; i < n; ++i) r.round.k[(t * r.n_k_heads + kh) * n + i] = k[i];
    }
  }

  /// Element i of the column after t tokens.
  MEMRA_HD float after(std::size_t h, std::size_t c, std::size_t kh, std::size_t i, std::size_t t) const noexcept {
    float y = r.plane(r.current())[(h * r.d_v + c) * r.d_k + i];
    for (std::size_t j = 0; j < t; ++j) {
      y = product(y, exp_f32(a.g[j * r.n_v_heads + h])) +
          product(a.k[j * a.k_stride + kh * r.d_k + i], r.round.u[(j * r.n_v_heads + h) * r.d_v + c]);
    }
    return y;
  }

  /// The first value head that reads a key head keeps its keys: one writer each.
  MEMRA_HD bool first_reader(std::size_t h, std::size_t kh) const noexcept {
    for (std::size_t before = 0; before < h; ++before) {
      if (r.map.key_head(before, r.n_k_heads, r.n_v_heads) == kh) return false;
    }
    return true;
  }
};

}  // namespace memra::detail
