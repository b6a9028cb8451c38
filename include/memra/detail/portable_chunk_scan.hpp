// Portable kernels of delta_scan's chunked class: a group's factors first, then its chunks one after another.
#pragma once

#include <cmath>
#include <cstddef>
#include <memra/detail/chunk_scan.hpp>
#include <memra/detail/math.hpp>
#include <memra/detail/platform.hpp>
#include <memra/detail/portable_sum.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// Factors, one pair of tokens per item: (64 i + j, value head, chunk of the group). Definition: see ChunkScanBody in
/// host_chunk_scan.hpp.
struct PortableChunkFactors {
  RecurView r;
  ScanArgs a;
  ChunkGroup group;
  float* factors;

  MEMRA_HD void operator()(const Item& item) const noexcept {
    const std::size_t i = item.x / scan_chunk;
    const std::size_t j = item.x % scan_chunk;
    const std::size_t h = item.y;
    const std::size_t n = group.tokens(item.z, r.rows);
    if (!r.fits() || i >= n || j > i) return;
    const std::size_t first = (group.first + item.z) * scan_chunk;
    const std::size_t kh = r.map.key_head(h, r.n_k_heads, r.n_v_heads);
    const ChunkFactors f = ChunkFactors::of(factors, item.z, h, r.n_v_heads);
    const auto decay = [&](std::size_t t) { return exp_f32(a.g[(first + t) * r.n_v_heads + h]); };
    float d = 1.0F;
    for (std::size_t t = j + 1; t <= i; ++t) d = product(d, decay(t));
    const float* const k = a.k + (first + j) * a.k_stride + kh * r.d_k;
    if (j < i) f.a[item.x] = product(d, portable_dot(a.k + (first + i) * a.k_stride + kh * r.d_k, k, r.d_k));
    f.p[item.x] = product(d, portable_dot(a.q + (first + i) * a.q_stride + kh * r.d_k, k, r.d_k));
    if (i + 1 == n) f.f[j] = d;
    if (j != 0) return;
    float e = decay(0);
    for (std::size_t t = 1; t <= i; ++t) e = product(e, decay(t));
    f.e[i] = e;
  }
};

/// The state's part, one column of S per item: (column, value head).
struct PortableChunkScan {
  RecurView r;
  ScanArgs a;
  ChunkGroup group;
  float* factors;
  float inv;  ///< 1 / sqrt(d_k), rounded once

  PortableChunkScan(const RecurView& view, const ScanArgs& args, const ChunkGroup& g, float* at) noexcept
      : r(view), a(args), group(g), factors(at), inv(1.0F / std::sqrt(static_cast<float>(view.d_k))) {}

  MEMRA_HD void operator()(const Item& item) const noexcept {
    if (!r.fits()) return;
    const std::size_t c = item.x;
    const std::size_t h = item.y;
    const std::size_t kh = r.map.key_head(h, r.n_k_heads, r.n_v_heads);
    float* const s = r.ssm + (h * r.d_v + c) * r.d_k;
    for (std::size_t chunk = 0; chunk < group.count; ++chunk) {
      const ChunkFactors f = ChunkFactors::of(factors, chunk, h, r.n_v_heads);
      const std::size_t n = group.tokens(chunk, r.rows);
      const std::size_t first = (group.first + chunk) * scan_chunk;
      float u[scan_chunk];
      for (std::size_t i = 0; i < n; ++i) {
        const std::size_t t = first + i;
        float x = a.v[t * a.v_stride + h * r.d_v + c] -
                  product(f.e[i], portable_dot(s, a.k + t * a.k_stride + kh * r.d_k, r.d_k));
        for (std::size_t j = 0; j < i; ++j) x = x - product(f.a[i * scan_chunk + j], u[j]);
        u[i] = product(a.beta[t * r.n_v_heads + h], x);
        float y = product(f.e[i], portable_dot(s, a.q + t * a.q_stride + kh * r.d_k, r.d_k));
        for (std::size_t j = 0; j <= i; ++j) y = y + product(f.p[i * scan_chunk + j], u[j]);
        a.out[(t * r.n_v_heads + h) * r.d_v + c] = product(y, inv);
      }
      for (std::size_t j = 0; j < n; ++j) u[j] = product(f.f[j], u[j]);
      for (std::size_t d = 0; d < r.d_k; ++d) {
        float x = product(f.e[n - 1], s[d]);
        for (std::size_t j = 0; j < n; ++j) x = x + product(u[j], a.k[(first + j) * a.k_stride + kh * r.d_k + d]);
        s[d] = x;
      }
    }
  }
};

}  // namespace memra::detail
