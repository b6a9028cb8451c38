// Host kernel that moves the state on by what a stash kept.
#pragma once

#include <cstddef>
#include <memra/detail/simd.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/launch.hpp>
#include <memra/round_views.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// round_apply, one value head (x) of one layer (y) of one cache (z) per item: the accepted tokens of a stash move the
/// ssm on in place. Definition per column c and token, in the order and the bits of delta_scan:
///   S[i] = S[i] * decay; S[i] = S[i] + k[i] * u     for every i < d_k
template <class Simd>
struct RoundApplyBody {
  RoundCommit one;
  const RoundCommit* many;  ///< nullptr: `one`

  void operator()(const Item& item) const noexcept {
    const RoundCommit& c = many == nullptr ? one : many[item.z];
    if (item.y >= c.n_layers) return;
    const RecurView r = c.layers[item.y];
    const auto accept = static_cast<std::size_t>(c.accepted());
    if (c.mode != RoundMode::stash || item.x >= r.n_v_heads || accept == 0) return;
    const std::size_t whole = r.d_v - r.d_v % columns;
    for (std::size_t v = 0; v < whole; v += columns) some_columns<columns>(r, item.x, v, accept);
    for (std::size_t v = whole; v < r.d_v; ++v) some_columns<1>(r, item.x, v, accept);
  }

 private:
  using F = F32x16<Simd>;
  static constexpr std::size_t columns = 4;

  // A vector of every column goes through all tokens in registers: one pass over S.
  template <std::size_t N>
  static void some_columns(const RecurView& r, std::size_t h, std::size_t first, std::size_t accept) noexcept {
    const std::size_t n = r.d_k;
    float* s = r.plane(r.current()) + (h * r.d_v + first) * n;
    const std::size_t key_row = r.n_k_heads * n;
    const std::size_t u_row = r.n_v_heads * r.d_v;
    const float* k = r.round.k + r.map.key_head(h, r.n_k_heads, r.n_v_heads) * n;
    const float* u = r.round.u + h * r.d_v + first;
    const float* decay = r.round.decay + h;
    const std::size_t whole = n - n % simd_lanes;
    for (std::size_t i = 0; i < whole; i += simd_lanes) {
      F y[N];
      for (std::size_t c = 0; c < N; ++c) y[c] = F::load(s + c * n + i);
      for (std::size_t t = 0; t < accept; ++t) {
        const F x = F::load(k + t * key_row + i);
        const F factor = F::broadcast(decay[t * r.n_v_heads]);
        for (std::size_t c = 0; c < N; ++c) y[c] = y[c] * factor + x * F::broadcast(u[t * u_row + c]);
      }
      for (std::size_t c = 0; c < N; ++c) y[c].store(s + c * n + i);
    }
    for (std::size_t c = 0; c < N; ++c) {
      for (std::size_t i = whole; i < n; ++i) {
        float y = s[c * n + i];
        for (std::size_t t = 0; t < accept; ++t) {
          y = product(y, decay[t * r.n_v_heads]) + product(k[t * key_row + i], u[t * u_row + c]);
        }
        s[c * n + i] = y;
      }
    }
  }
};

}  // namespace memra::detail
