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
    const StateElems ring = r.conv_state() + c * kept;
    for (std::size_t t = 0; t < r.rows; ++t) {
      float y = a.bias != nullptr ? a.bias[c] : 0.0F;
      for (std::size_t j = 0; j < kept; ++j) y = y + product(a.weight[c * r.d_conv + j], input(ring, c, t, j));
      y = y + product(a.weight[c * r.d_conv + kept], a.x[t * r.conv_dim() + c]);
      a.y[t * r.conv_dim() + c] = a.silu ? silu_f32(y) : y;
    }
    if (r.round.mode == RoundMode::none) {
      // Ascending, so that an entry is read before it is overwritten.
      for (std::size_t j = 0; j < kept; ++j) ring.store(j, input(ring, c, r.rows, j));
    } else if (kept != 0) {
      const std::size_t width = r.conv_dim();
      for (std::size_t t = 0; t < r.rows; ++t) r.round.conv_rows[t * width + c] = a.x[t * width + c];
    }
  }

 private:
  /// Input at time t - kept + j, as the ring holds it; the ring comes before token 0.
  MEMRA_HD float input(const StateElems& ring, std::size_t c, std::size_t t, std::size_t j) const noexcept {
    const std::size_t kept = r.d_conv - 1;
    return t + j < kept ? ring.load(t + j) : ring.rounded(a.x[(t + j - kept) * r.conv_dim() + c]);
  }
};

/// delta_scan and linear_scan, one column of S per item: (column, value head). Definition: see RuleScanBody in
/// host_rule_scan.hpp.
struct PortableScan {
  RecurView r;
  ScanArgs a;
  float scale;  ///< of the outputs: 1 / sqrt(d_k), rounded once, or 1

  PortableScan(const RecurView& view, const ScanArgs& args) noexcept
      : r(view), a(args), scale(corrects() ? 1.0F / std::sqrt(static_cast<float>(view.d_k)) : 1.0F) {}

  MEMRA_HD void operator()(const Item& item) const noexcept {
    if (!r.fits()) return;
    const std::size_t h = item.y;
    const std::size_t c = item.x;
    const std::size_t kh = r.map.key_head(h, r.n_k_heads, r.n_v_heads);
    const std::size_t at = (h * r.d_v + c) * r.d_k;
    const bool stash = r.round.mode == RoundMode::stash;
    const std::size_t plane = r.current();
    StateElems from = r.plane_state(plane) + at;
    for (std::size_t t = 0; t < r.rows; ++t) {
      const float* q = a.q + t * a.q_stride + kh * r.d_k;
      const float* k = a.k + t * a.k_stride + kh * r.d_k;
      const float all = scalar_decay(h, t);
      // A stash leaves the state: what an element would be after t tokens is computed again from what was kept. Slow
      // for many tokens, but it needs no memory of its own and does the additions of a plain scan.
      const auto decayed = [&](std::size_t i) {
        return product(stash ? after(h, c, kh, i, t) : from.load(i), scalar() ? all : decay(h, c, i, t));
      };
      PortableLanes read;
      for (std::size_t i = 0; corrects() && i < r.d_k; ++i) read.add(i, product(decayed(i), k[i]));
      const float u = added(h, c, t, read);
      const StateElems to =
          r.round.mode == RoundMode::planes ? r.plane_state((plane + 1 + t) % r.round.n_planes) + at : from;
      PortableLanes write;
      for (std::size_t i = 0; i < r.d_k; ++i) {
        const float s = decayed(i) + product(k[i], u);
        write.add(i, product(s, q[i]));
        if (!stash) to.store(i, s);
      }
      a.out[(t * r.n_v_heads + h) * r.d_v + c] = product(write.sum(), scale);
      from = to;
      if (stash) keep(h, c, kh, t, u);
    }
  }

 private:
  MEMRA_HD bool corrects() const noexcept { return r.rule == ScanRule::gated_delta || r.rule == ScanRule::kda; }
  MEMRA_HD bool scalar() const noexcept { return r.rule != ScanRule::kda && r.rule != ScanRule::mamba1; }
  MEMRA_HD float scalar_decay(std::size_t h, std::size_t t) const noexcept {
    return scalar() ? exp_f32(a.g[t * r.n_v_heads + h]) : 0.0F;
  }

  MEMRA_HD float decay(std::size_t h, std::size_t c, std::size_t i, std::size_t t) const noexcept {
    if (r.rule == ScanRule::kda) return exp_f32(a.g[(t * r.n_v_heads + h) * r.d_k + i]);
    if (r.rule == ScanRule::mamba1) return exp_f32(product(a.g[t * r.d_v + c], a.a[c * r.d_k + i]));
    return scalar_decay(h, t);
  }

  MEMRA_HD float added(std::size_t h, std::size_t c, std::size_t t, const PortableLanes& read) const noexcept {
    const float v = a.v[t * a.v_stride + h * r.d_v + c];
    if (r.rule == ScanRule::mamba1) return product(a.g[t * r.d_v + c], v);
    if (corrects()) return product(a.beta[t * r.n_v_heads + h], v - read.sum());
    return a.beta == nullptr ? v : product(a.beta[t * r.n_v_heads + h], v);
  }

  MEMRA_HD void keep(std::size_t h, std::size_t c, std::size_t kh, std::size_t t, float u) const noexcept {
    r.round.u[(t * r.n_v_heads + h) * r.d_v + c] = u;
    if (c != 0) return;
    const std::size_t width = r.decay_width();
    for (std::size_t i = 0; i < width; ++i) r.round.decay[(t * r.n_v_heads + h) * width + i] = decay(h, c, i, t);
    if (!first_reader(h, kh)) return;
    for (std::size_t i = 0; i < r.d_k; ++i) {
      r.round.k[(t * r.n_k_heads + kh) * r.d_k + i] = a.k[t * a.k_stride + kh * r.d_k + i];
    }
  }

  /// Element i of the column after t tokens of a stash.
  MEMRA_HD float after(std::size_t h, std::size_t c, std::size_t kh, std::size_t i, std::size_t t) const noexcept {
    const StateElems s = r.plane_state(r.current());
    float y = s.load((h * r.d_v + c) * r.d_k + i);
    for (std::size_t j = 0; j < t; ++j) {
      const float u = r.round.u[(j * r.n_v_heads + h) * r.d_v + c];
      y = s.rounded(product(y, decay(h, c, i, j)) + product(a.k[j * a.k_stride + kh * r.d_k + i], u));
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
