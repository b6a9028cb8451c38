// Host kernel of delta_scan.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/detail/host_dot.hpp>
#include <memra/detail/math.hpp>
#include <memra/detail/simd.hpp>
#include <memra/detail/simd_pack.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/round_types.hpp>
#include <memra/views.hpp>
#include <type_traits>

namespace memra::detail {

/// Keeps the keys of a stash: the first value head that reads a key head does, one writer each.
inline void keep_keys(const RecurView& r, const ScanArgs& a, std::size_t h) noexcept {
  const std::size_t head = r.map.key_head(h, r.n_k_heads, r.n_v_heads);
  for (std::size_t before = 0; before < h; ++before) {
    if (r.map.key_head(before, r.n_k_heads, r.n_v_heads) == head) return;
  }
  for (std::size_t t = 0; t < r.rows; ++t) {
    std::memcpy(r.round.k + (t * r.n_k_heads + head) * r.d_k, a.k + t * a.k_stride + head * r.d_k,
                r.d_k * sizeof(float));
  }
}

/// delta_scan of the gated delta rule on an f32 state, one value head per item. RuleScanBody serves everything else.
///
/// Definition per value head, column c of S and token, in f32 without contraction, in this order:
///   S[i] = S[i] * exp_f32(g)        for every i < d_k
///   r    = dot(S, k)                in the order of dot16
///   u    = beta * (v[c] - r)
///   S[i] = S[i] + k[i] * u          for every i
///   out  = dot(S, q) * (1 / sqrt(d_k)), dot in the order of dot16, the reciprocal rounded to f32 once
/// Columns are independent, so each is taken through many tokens while it is in L1: one pass over S per scan_tokens
/// tokens, and T tokens in one call give the bits of T calls. In a round the same columns go through the same code and
/// only land elsewhere: after each token in the next plane, or in memory of the item's own, u and e^g being kept.
template <class Simd>
struct ScanBody {
  RecurView r;
  ScanArgs a;

  void operator()(const Item& item) const noexcept {
    if (!r.fits()) return;
    switch (r.round.mode) {
      case RoundMode::none:
        return all_columns<RoundMode::none>(item.x);
      case RoundMode::planes:
        return all_columns<RoundMode::planes>(item.x);
      case RoundMode::stash:
        keep_keys(r, a, item.x);
        return all_columns<RoundMode::stash>(item.x);
    }
  }

 private:
  using F = F32x16<Simd>;

  // Tokens per pass over S: k and q of that many heads of 128 stay in L2, and the decays on the stack.
  static constexpr std::size_t scan_tokens = max_round_rows;

  // Columns that go through a token together: they share the loads of k and q, and while one waits for its sum the
  // others work. As many as have their sums and factors in registers.
  static constexpr std::size_t columns = std::is_same_v<Simd, VectorSimd<64>> ? 8 : 4;

  struct Tokens {
    std::size_t first;
    std::size_t count;
    std::size_t key_head;
    std::size_t plane;
    bool past_caches;
    float inv;
    float decay[scan_tokens];
  };

  template <RoundMode Mode>
  void all_columns(std::size_t h) const noexcept {
    // A stash takes columns through the round on the stack: as many at once as fit there.
    const std::size_t together = Mode == RoundMode::stash && columns * r.d_k > max_stash_d_k ? 1 : columns;
    const std::size_t whole = together == 1 ? 0 : r.d_v - r.d_v % columns;
    Tokens some{};
    some.key_head = r.map.key_head(h, r.n_k_heads, r.n_v_heads);
    some.inv = 1.0F / std::sqrt(static_cast<float>(r.d_k));
    some.plane = r.current();
    some.past_caches = Mode == RoundMode::planes && planes_are_large();
    for (some.first = 0; some.first < r.rows; some.first += scan_tokens) {
      some.count = std::min(scan_tokens, r.rows - some.first);
      for (std::size_t t = 0; t < some.count; ++t) {
        some.decay[t] = exp_f32(a.g[(some.first + t) * r.n_v_heads + h]);
        if constexpr (Mode == RoundMode::stash) r.round.decay[(some.first + t) * r.n_v_heads + h] = some.decay[t];
      }
      for (std::size_t c = 0; c < whole; c += columns) some_columns<columns, Mode>(h, c, some);
      for (std::size_t c = whole; c < r.d_v; ++c) some_columns<1, Mode>(h, c, some);
    }
    if (some.past_caches) finish_copies();
  }

  // Planes that no cache near a core holds are written past the caches, or every line would be read to be overwritten:
  // measured, 16 planes of 3 MB then take 0.4 of the time.
  bool planes_are_large() const noexcept {
    constexpr std::size_t large = std::size_t{4} << 20;
    const auto aligned = [](const float* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
    return r.round.n_planes * r.n_v_heads * r.d_v * r.d_k * sizeof(float) > large && r.d_k % 4 == 0 &&
           columns * r.d_k <= max_stash_d_k && aligned(r.ssm) && aligned(r.round.planes);
  }

  template <std::size_t N, RoundMode Mode>
  void some_columns(std::size_t h, std::size_t first, const Tokens& some) const noexcept {
    const std::size_t n = r.d_k;
    const std::size_t at = (h * r.d_v + first) * n;
    float local[Mode != RoundMode::none ? max_stash_d_k : 1];
    float* from[N];
    float* to[N];
    for (std::size_t c = 0; c < N; ++c) to[c] = from[c] = r.plane(some.plane) + at + c * n;
    for (std::size_t i = 0; i < some.count; ++i) {
      const std::size_t t = some.first + i;
      const float* q = a.q + t * a.q_stride + some.key_head * n;
      const float* k = a.k + t * a.k_stride + some.key_head * n;
      const float* v = a.v + t * a.v_stride + h * r.d_v + first;
      float* out = a.out + (t * r.n_v_heads + h) * r.d_v + first;
      const float beta = a.beta[t * r.n_v_heads + h];
      float* next = nullptr;
      if constexpr (Mode == RoundMode::planes) next = r.plane((some.plane + 1 + t) % r.round.n_planes) + at;
      if constexpr (Mode != RoundMode::none) {
        float* here = Mode == RoundMode::stash || some.past_caches ? local : next;
        for (std::size_t c = 0; c < N; ++c) to[c] = here + c * n;
      }
      float dot[N];
      float u[N];
      decay_and_dot<N>(from, to, k, some.decay[i], n, dot);
      for (std::size_t c = 0; c < N; ++c) u[c] = product(beta, v[c] - dot[c]);
      add_and_dot<N>(to, k, u, q, n, dot);
      for (std::size_t c = 0; c < N; ++c) out[c] = product(dot[c], some.inv);
      if constexpr (Mode == RoundMode::stash) {
        for (std::size_t c = 0; c < N; ++c) r.round.u[(t * r.n_v_heads + h) * r.d_v + first + c] = u[c];
      }
      if constexpr (Mode == RoundMode::planes) {
        if (some.past_caches) copy_past_caches(next, local, N * n);
      }
      if constexpr (Mode != RoundMode::none) {
        for (std::size_t c = 0; c < N; ++c) from[c] = to[c];
      }
    }
  }

  // s = from * decay; out = dot16(s, k). s may be from.
  template <std::size_t N>
  static void decay_and_dot(float* const* from, float* const* s, const float* k, float decay, std::size_t n,
                            float* out) noexcept {
    const F factor = F::broadcast(decay);
    F lanes[N];
    for (std::size_t c = 0; c < N; ++c) lanes[c] = F::zero();
    const std::size_t whole = n - n % simd_lanes;
    for (std::size_t i = 0; i < whole; i += simd_lanes) {
      const F x = F::load(k + i);
      for (std::size_t c = 0; c < N; ++c) {
        const F y = F::load(from[c] + i) * factor;
        y.store(s[c] + i);
        lanes[c] = lanes[c] + y * x;
      }
    }
    for (std::size_t c = 0; c < N; ++c) {
      for (std::size_t j = whole; j < n; ++j) s[c][j] = product(from[c][j], decay);
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
