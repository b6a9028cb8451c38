// Host kernel of delta_scan.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memra/detail/host_dot.hpp>
#include <memra/detail/math.hpp>
#include <memra/detail/simd.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>
#include <type_traits>

namespace memra::detail {

/// delta_scan, one value head per item.
///
/// Definition per value head, column c of S and token, in f32 without contraction, in this order:
///   S[i] = S[i] * exp_f32(g)        for every i < d_k
///   r    = dot(S, k)                in the order of dot16
///   u    = beta * (v[c] - r)
///   S[i] = S[i] + k[i] * u          for every i
///   out  = dot(S, q) * (1 / sqrt(d_k)), dot in the order of dot16, the reciprocal rounded to f32 once
/// Columns are independent, so each is taken through many tokens while it is in L1: one pass over S per scan_tokens
/// tokens, and T tokens in one call give the bits of T calls.
template <class Simd>
struct ScanBody {
  RecurView r;
  ScanArgs a;

  void operator()(const Item& item) const noexcept {
    if (!r.fits()) return;
    const std::size_t h = item.x;
    const std::size_t whole = r.d_v - r.d_v % columns;
    Tokens some{};
    some.key_head = r.map.key_head(h, r.n_k_heads, r.n_v_heads);
    some.inv = 1.0F / std::sqrt(static_cast<float>(r.d_k));
    for (some.first = 0; some.first < r.rows; some.first += scan_tokens) {
      some.count = std::min(scan_tokens, r.rows - some.first);
      for (std::size_t t = 0; t < some.count; ++t) some.decay[t] = exp_f32(a.g[(some.first + t) * r.n_v_heads + h]);
      for (std::size_t c = 0; c < whole; c += columns) some_columns<columns>(h, c, some);
      for (std::size_t c = whole; c < r.d_v; ++c) some_columns<1>(h, c, some);
    }
  }

 private:
  using F = F32x16<Simd>;

  // Tokens per pass over S: k and q of that many heads of 128 stay in L2, and the decays on the stack.
  static constexpr std::size_t scan_tokens = 64;

  // Columns that go through a token together: they share the loads of k and q, and while one waits for its sum the
  // others work. As many as have their sums and factors in registers.
  static constexpr std::size_t columns = std::is_same_v<Simd, VectorSimd<64>> ? 8 : 4;

  struct Tokens {
    std::size_t first;
    std::size_t count;
    std::size_t key_head;
    float inv;
    float decay[scan_tokens];
  };

  template <std::size_t N>
  void some_columns(std::size_t h, std::size_t first, const Tokens& some) const noexcept {
    const std::size_t n = r.d_k;
    float* s[N];
    for (std::size_t c = 0; c < N; ++c) s[c] = r.ssm + (h * r.d_v + first + c) * n;
    for (std::size_t i = 0; i < some.count; ++i) {
      const std::size_t t = some.first + i;
      const float* q = a.q + t * a.q_stride + some.key_head * n;
      const float* k = a.k + t * a.k_stride + some.key_head * n;
      const float* v = a.v + t * a.v_stride + h * r.d_v + first;
      float* out = a.out + (t * r.n_v_heads + h) * r.d_v + first;
      const float beta = a.beta[t * r.n_v_heads + h];
      float dot[N];
      float u[N];
      decay_and_dot<N>(s, k, some.decay[i], n, dot);
      for (std::size_t c = 0; c < N; ++c) u[c] = product(beta, v[c] - dot[c]);
      add_and_dot<N>(s, k, u, q, n, dot);
      for (std::size_t c = 0; c < N; ++c) out[c] = product(dot[c], some.inv);
    }
  }

  // s *= decay; out = dot16(s, k)
  template <std::size_t N>
  static void decay_and_dot(float* const* s, const float* k, float decay, std::size_t n, float* out) noexcept {
    const F factor = F::broadcast(decay);
    F lanes[N];
    for (std::size_t c = 0; c < N; ++c) lanes[c] = F::zero();
    const std::size_t whole = n - n % simd_lanes;
    for (std::size_t i = 0; i < whole; i += simd_lanes) {
      const F x = F::load(k + i);
      for (std::size_t c = 0; c < N; ++c) {
        const F y = F::load(s[c] + i) * factor;
        y.store(s[c] + i);
        lanes[c] = lanes[c] + y * x;
      }
    }
    for (std::size_t c = 0; c < N; ++c) {
      for (std::size_t j = whole; j < n; ++j) s[c][j] = product(s[c][j], decay);
      out[c] = sum(dot_rest(lanes[c], s[c], k, whole, n));
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
    const std::size_t whole = n - n % simd_lanes;
    for (std::size_t i = 0; i < whole; i += simd_lanes) {
      const F x = F::load(k + i);
      const F z = F::load(q + i);
      for (std::size_t c = 0; c < N; ++c) {
        const F y = F::load(s[c] + i) + x * factor[c];
        y.store(s[c] + i);
        lanes[c] = lanes[c] + y * z;
      }
    }
    for (std::size_t c = 0; c < N; ++c) {
      for (std::size_t j = whole; j < n; ++j) s[c][j] = s[c][j] + product(k[j], u[c]);
      out[c] = sum(dot_rest(lanes[c], s[c], q, whole, n));
    }
  }
};

}  // namespace memra::detail
