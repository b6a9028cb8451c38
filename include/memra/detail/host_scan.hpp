// Host kernel of delta_scan.
#pragma once

#include <cmath>
#include <cstddef>
#include <memra/detail/host_dot.hpp>
#include <memra/detail/math.hpp>
#include <memra/detail/simd.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// delta_scan, one value head per item.
///
/// Definition per value head, column c of S and token, in f32 without contraction, in this order:
///   S[i] = S[i] * exp_f32(g)        for every i < d_k
///   r    = dot(S, k)                in the order of dot16
///   u    = beta * (v[c] - r)
///   S[i] = S[i] + k[i] * u          for every i
///   out  = dot(S, q) * (1 / sqrt(d_k)), dot in the order of dot16, the reciprocal rounded to f32 once
/// Columns are independent, so each is taken through all tokens while it is in registers or L1: one pass over S however
/// many tokens the call has, and T tokens in one call give the bits of T calls.
template <class Simd>
struct ScanBody {
  RecurView r;
  ScanArgs a;

  void operator()(const Item& item) const noexcept {
    const std::size_t h = item.x;
    const std::size_t kh = r.map.key_head(h, r.n_k_heads, r.n_v_heads);
    const float inv = 1.0F / std::sqrt(static_cast<float>(r.d_k));
    std::size_t c = 0;
    for (; c + columns <= r.d_v; c += columns) some_columns<columns>(h, kh, c, inv);
    for (; c < r.d_v; ++c) some_columns<1>(h, kh, c, inv);
  }

 private:
  using F = F32x16<Simd>;

  // Columns that go through a token together: they share the loads of k and q, and their sums do not wait for each
  // other. Four columns of d_k = 128 are 2 KiB and stay in L1 from token to token.
  static constexpr std::size_t columns = 4;

  template <std::size_t N>
  void some_columns(std::size_t h, std::size_t kh, std::size_t first, float inv) const noexcept {
    const std::size_t n = r.d_k;
    float* s[N];
    for (std::size_t c = 0; c < N; ++c) s[c] = r.ssm + (h * r.d_v + first + c) * n;
    for (std::size_t t = 0; t < r.rows; ++t) {
      const float* q = a.q + t * a.q_stride + kh * n;
      const float* k = a.k + t * a.k_stride + kh * n;
      const float* v = a.v + t * a.v_stride + h * r.d_v + first;
      float* out = a.out + (t * r.n_v_heads + h) * r.d_v + first;
      const float beta = a.beta[t * r.n_v_heads + h];
      float sum[N];
      decay_and_dot<N>(s, k, exp_f32(a.g[t * r.n_v_heads + h]), n, sum);
      float u[N];
      for (std::size_t c = 0; c < N; ++c) u[c] = beta * (v[c] - sum[c]);
      add_and_dot<N>(s, k, u, q, n, sum);
      for (std::size_t c = 0; c < N; ++c) out[c] = sum[c] * inv;
    }
  }

  // s *= decay; out = dot16(s, k)
  template <std::size_t N>
  static void decay_and_dot(float* const* s, const float* k, float decay, std::size_t n, float* out) noexcept {
    const F factor = F::broadcast(decay);
    F lanes[N];
    for (std::size_t c = 0; c < N; ++c) lanes[c] = F::zero();
    std::size_t i = 0;
    for (; i + simd_lanes <= n; i += simd_lanes) {
      const F x = F::load(k + i);
      for (std::size_t c = 0; c < N; ++c) {
        const F y = F::load(s[c] + i) * factor;
        y.store(s[c] + i);
        lanes[c] = lanes[c] + y * x;
      }
    }
    for (std::size_t c = 0; c < N; ++c) {
      for (std::size_t j = i; j < n; ++j) s[c][j] = product(s[c][j], decay);
      out[c] = sum(dot_rest(lanes[c], s[c], k, i, n));
    }
  }

  // s += k * u; out = dot16(s, q)
  template <std::size_t N>
  static void add_and_dot(float* const* s, const float* k, const float* u, const float* q, std::size_t n,
                          float* out) noexcept {
    F factor[N];
    F lanes[N];
    for (std::size_t c = 0; c < N; ++c) {
      factor[c] = F::broadcast(u[c]);
      lanes[c] = F::zero();
    }
    std::size_t i = 0;
    for (; i + simd_lanes <= n; i += simd_lanes) {
      const F x = F::load(k + i);
      const F z = F::load(q + i);
      for (std::size_t c = 0; c < N; ++c) {
        const F y = F::load(s[c] + i) + x * factor[c];
        y.store(s[c] + i);
        lanes[c] = lanes[c] + y * z;
      }
    }
    for (std::size_t c = 0; c < N; ++c) {
      for (std::size_t j = i; j < n; ++j) s[c][j] = s[c][j] + product(k[j], u[c]);
      out[c] = sum(dot_rest(lanes[c], s[c], q, i, n));
    }
  }
};

}  // namespace memra::detail
