// Host kernel of delta_scan and linear_scan for every rule and state format.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memra/detail/host_scan.hpp>
#include <memra/detail/host_state.hpp>
#include <memra/detail/math.hpp>
#include <memra/detail/simd.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/round_types.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// What multiplies a column of S before a token is added: one factor, one per key channel, or one per element.
template <class Simd>
struct ScalarDecay {
  float factor;
  F32x16<Simd> wide(std::size_t, std::size_t) const noexcept { return F32x16<Simd>::broadcast(factor); }
  float one(std::size_t, std::size_t) const noexcept { return factor; }
};
template <class Simd>
struct ChannelDecay {
  const float* factor;  ///< [d_k]
  F32x16<Simd> wide(std::size_t, std::size_t i) const noexcept { return F32x16<Simd>::load(factor + i); }
  float one(std::size_t, std::size_t i) const noexcept { return factor[i]; }
};
template <class Simd>
struct ElementDecay {
  const float* dt;  ///< [columns]
  const float* a;   ///< [columns][d_k]
  std::size_t d_k;
  F32x16<Simd> wide(std::size_t c, std::size_t i) const noexcept {
    return exp_f32(F32x16<Simd>::broadcast(dt[c]) * F32x16<Simd>::load(a + c * d_k + i));
  }
  float one(std::size_t c, std::size_t i) const noexcept { return exp_f32(product(dt[c], a[c * d_k + i])); }
};

/// delta_scan and linear_scan, one value head per item.
///
/// Definition per value head, column c of S and token, in f32 without contraction, in this order, S being what the
/// state's elements hold as f32:
///   S[i] = S[i] * D                 D = exp_f32(g) of the head; kda: exp_f32(g[i]); mamba1: exp_f32(g[c] * A[c][i])
///   r    = dot(S, k)                gated_delta and kda, in the order of dot16
///   u    = beta * (v[c] - r)        linear: beta * v[c], or v[c] without beta; mamba1: g[c] * v[c]
///   S[i] = S[i] + k[i] * u
///   out  = dot(S, q)                in the order of dot16; gated_delta and kda: times 1 / sqrt(d_k), rounded once
///   S[i] is stored, rounded to the state's format: the next token, of this call or of another, reads it rounded
/// So T tokens in one call give the bits of T calls, whatever the format. Columns move through all tokens in local
/// memory: one pass over S.
template <class Simd>
struct RuleScanBody {
  static constexpr std::size_t most_d_k = max_stash_d_k;  ///< larger columns: PortableScan

  RecurView r;
  ScanArgs a;

  void operator()(const Item& item) const noexcept {
    if (!r.fits()) return;
    if (r.round.mode == RoundMode::stash) keep_keys(r, a, item.x);
    with_state_format(r.ssm_format, [&]<Format Fmt>() { this->template all_columns<Fmt>(item.x); });
  }

 private:
  using F = F32x16<Simd>;
  static constexpr std::size_t columns = 4;

  /// Tokens [first, first + count) and their decays: [count][decay_width], `stride` floats from token to token.
  struct Tokens {
    std::size_t first;
    std::size_t count;
    std::size_t key_head;
    const float* decay;
    std::size_t stride;
  };

  bool corrects() const noexcept { return r.rule == ScanRule::gated_delta || r.rule == ScanRule::kda; }

  template <Format Fmt>
  void all_columns(std::size_t h) const noexcept {
    const std::size_t width = r.decay_width();
    const bool stash = r.round.mode == RoundMode::stash;
    // A stash keeps the decays of all tokens, and its columns must go through all of them at once.
    float local[most_d_k];
    const std::size_t most = stash ? max_round_rows : std::max<std::size_t>(1, most_d_k / width);
    Tokens some{};
    some.key_head = r.map.key_head(h, r.n_k_heads, r.n_v_heads);
    some.stride = stash ? r.n_v_heads * width : width;
    float* decay = stash ? r.round.decay + h * width : local;
    some.decay = decay;
    const std::size_t whole = columns * r.d_k <= most_d_k ? r.d_v - r.d_v % columns : 0;
    for (some.first = 0; some.first < r.rows; some.first += most) {
      some.count = std::min(most, r.rows - some.first);
      for (std::size_t t = 0; r.rule != ScanRule::mamba1 && t < some.count; ++t) {
        const float* g = a.g + ((some.first + t) * r.n_v_heads + h) * width;
        for (std::size_t i = 0; i < width; ++i) decay[t * some.stride + i] = exp_f32(g[i]);
      }
      for (std::size_t c = 0; c < whole; c += columns) some_columns<columns, Fmt>(h, c, some);
      for (std::size_t c = whole; c < r.d_v; ++c) some_columns<1, Fmt>(h, c, some);
    }
  }

  template <std::size_t N, Format Fmt>
  void some_columns(std::size_t h, std::size_t first, const Tokens& some) const noexcept {
    const std::size_t at = (h * r.d_v + first) * r.d_k;
    const bool planes = r.round.mode == RoundMode::planes;
    const std::size_t plane = planes ? (r.current() + some.first) % r.round.n_planes : r.current();
    float s[most_d_k];
    move<Fmt>(r.plane_state(plane) + at, s, N * r.d_k, false);
    for (std::size_t i = 0; i < some.count; ++i) {
      const std::size_t t = some.first + i;
      const float* decay = some.decay + i * some.stride;
      switch (r.rule) {
        case ScanRule::kda:
          one_token<N>(h, first, t, some.key_head, ChannelDecay<Simd>{decay}, s);
          break;
        case ScanRule::mamba1:
          one_token<N>(h, first, t, 0, ElementDecay<Simd>{a.g + t * r.d_v + first, a.a + first * r.d_k, r.d_k}, s);
          break;
        default:
          one_token<N>(h, first, t, some.key_head, ScalarDecay<Simd>{*decay}, s);
      }
      if (planes) move<Fmt>(r.plane_state((plane + 1 + i) % r.round.n_planes) + at, s, N * r.d_k, true);
      round_all<Fmt>(s, N * r.d_k);
    }
    if (r.round.mode == RoundMode::none) move<Fmt>(r.plane_state(plane) + at, s, N * r.d_k, true);
  }

  /// Takes N columns through token t; s is not rounded yet.
  template <std::size_t N, class Decay>
  void one_token(std::size_t h, std::size_t first, std::size_t t, std::size_t key_head, const Decay& decay,
                 float* s) const noexcept {
    const std::size_t n = r.d_k;
    const float* q = a.q + t * a.q_stride + key_head * n;
    const float* k = a.k + t * a.k_stride + key_head * n;
    const float* v = a.v + t * a.v_stride + h * r.d_v + first;
    float* out = a.out + (t * r.n_v_heads + h) * r.d_v + first;
    const std::size_t whole = n - n % simd_lanes;
    F factor[N];
    F lanes[N];
    for (std::size_t c = 0; c < N; ++c) lanes[c] = F::zero();
    for (std::size_t i = 0; i < whole; i += simd_lanes) {
      const F x = F::load(k + i);
      for (std::size_t c = 0; c < N; ++c) {
        const F y = F::load(s + c * n + i) * decay.wide(c, i);
        y.store(s + c * n + i);
        lanes[c] = lanes[c] + y * x;
      }
    }
    for (std::size_t c = 0; c < N; ++c) {
      for (std::size_t i = whole; i < n; ++i) s[c * n + i] = product(s[c * n + i], decay.one(c, i));
      const float dot = corrects() ? sum(dot_rest(lanes[c], s + c * n, k, whole, n)) : 0.0F;
      const float u = added(h, first + c, t, v[c], dot);
      if (r.round.mode == RoundMode::stash) r.round.u[(t * r.n_v_heads + h) * r.d_v + first + c] = u;
      for (std::size_t i = whole; i < n; ++i) s[c * n + i] = s[c * n + i] + product(k[i], u);
      factor[c] = F::broadcast(u);
      lanes[c] = F::zero();
    }
    for (std::size_t i = 0; i < whole; i += simd_lanes) {
      const F x = F::load(k + i);
      const F z = F::load(q + i);
      for (std::size_t c = 0; c < N; ++c) {
        const F y = F::load(s + c * n + i) + x * factor[c];
        y.store(s + c * n + i);
        lanes[c] = lanes[c] + y * z;
      }
    }
    const float scale = corrects() ? 1.0F / std::sqrt(static_cast<float>(n)) : 1.0F;
    for (std::size_t c = 0; c < N; ++c) {
      out[c] = product(sum(dot_rest(lanes[c], s + c * n, q, whole, n)), scale);
    }
  }

  /// u of column c.
  float added(std::size_t h, std::size_t c, std::size_t t, float v, float dot) const noexcept {
    if (r.rule == ScanRule::mamba1) return product(a.g[t * r.d_v + c], v);
    const float* beta = a.beta == nullptr ? nullptr : a.beta + t * r.n_v_heads + h;
    if (corrects()) return product(*beta, v - dot);
    return beta == nullptr ? v : product(*beta, v);
  }

  template <Format Fmt>
  static void move(const StateElems& state, float* s, std::size_t n, bool back) noexcept {
    const std::size_t whole = n - n % simd_lanes;
    for (std::size_t i = 0; i < whole; i += simd_lanes) {
      if (back) {
        store_elems<Fmt>(state, i, F::load(s + i));
      } else {
        load_elems<Fmt, Simd>(state, i).store(s + i);
      }
    }
    for (std::size_t i = whole; i < n; ++i) {
      if (back) {
        state.store(i, s[i]);
      } else {
        s[i] = state.load(i);
      }
    }
  }

  template <Format Fmt>
  void round_all(float* s, std::size_t n) const noexcept {
    if constexpr (Fmt != Format::f32) {
      const std::size_t whole = n - n % simd_lanes;
      for (std::size_t i = 0; i < whole; i += simd_lanes) round_elems<Fmt>(F::load(s + i)).store(s + i);
      for (std::size_t i = whole; i < n; ++i) s[i] = r.plane_state(0).rounded(s[i]);
    }
  }
};

}  // namespace memra::detail
