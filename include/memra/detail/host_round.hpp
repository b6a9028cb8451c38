// Host kernel that moves the state on by what a stash kept.
#pragma once

#include <cstddef>
#include <memra/detail/host_state.hpp>
#include <memra/detail/simd.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/format.hpp>
#include <memra/launch.hpp>
#include <memra/round_views.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// round_apply, one value head (x) of one layer (y) of one cache (z) per item: the accepted tokens of a stash move the
/// ssm on in place. Definition per column c and token, in the order and the bits of delta_scan:
///   S[i] = S[i] * decay; S[i] = S[i] + k[i] * u, rounded to the state's format     for every i < d_k
/// where decay is the head's, or element i of it for a rule that keeps one per key channel.
template <class Simd>
struct RoundApplyBody {
  RoundCommit one;
  const RoundCommit* many;  ///< nullptr: `one`

  void operator()(const Item& item) const noexcept {
    const RoundCommit c = RoundCommit::of(one, many, item.z);
    if (item.y >= c.n_layers) return;
    const RecurView r = c.layers[item.y];
    const auto accept = static_cast<std::size_t>(c.accepted());
    if (c.mode != RoundMode::stash || item.x >= r.n_v_heads || accept == 0) return;
    with_state_format(r.ssm_format, [&]<Format Fmt>() {
      if (r.decay_width() == 1) {
        all_columns<Fmt, false>(r, item.x, accept);
      } else {
        all_columns<Fmt, true>(r, item.x, accept);
      }
    });
  }

 private:
  using F = F32x16<Simd>;
  static constexpr std::size_t columns = 4;

  template <Format Fmt, bool PerChannel>
  static void all_columns(const RecurView& r, std::size_t h, std::size_t accept) noexcept {
    const std::size_t whole = r.d_v - r.d_v % columns;
    for (std::size_t v = 0; v < whole; v += columns) some_columns<columns, Fmt, PerChannel>(r, h, v, accept);
    for (std::size_t v = whole; v < r.d_v; ++v) some_columns<1, Fmt, PerChannel>(r, h, v, accept);
  }

  // A vector of every column goes through all tokens in registers: one pass over S.
  template <std::size_t N, Format Fmt, bool PerChannel>
  static void some_columns(const RecurView& r, std::size_t h, std::size_t first, std::size_t accept) noexcept {
    const std::size_t n = r.d_k;
    const StateElems s = r.plane_state(r.current()) + (h * r.d_v + first) * n;
    const std::size_t key_row = r.n_k_heads * n;
    const std::size_t u_row = r.n_v_heads * r.d_v;
    const std::size_t decay_row = r.n_v_heads * r.decay_width();
    const float* k = r.round.k + r.map.key_head(h, r.n_k_heads, r.n_v_heads) * n;
    const float* u = r.round.u + h * r.d_v + first;
    const float* decay = r.round.decay + h * r.decay_width();
    const std::size_t whole = n - n % simd_lanes;
    for (std::size_t i = 0; i < whole; i += simd_lanes) {
      F y[N];
      for (std::size_t c = 0; c < N; ++c) y[c] = load_elems<Fmt, Simd>(s, c * n + i);
      for (std::size_t t = 0; t < accept; ++t) {
        const F x = F::load(k + t * key_row + i);
        const float* d = decay + t * decay_row;
        const F factor = [&] {
          if constexpr (PerChannel) return F::load(d + i);
          return F::broadcast(*d);
        }();
        for (std::size_t c = 0; c < N; ++c) {
          y[c] = round_elems<Fmt>(y[c] * factor + x * F::broadcast(u[t * u_row + c]));
        }
      }
      for (std::size_t c = 0; c < N; ++c) store_elems<Fmt>(s, c * n + i, y[c]);
    }
    for (std::size_t c = 0; c < N; ++c) {
      for (std::size_t i = whole; i < n; ++i) {
        float y = s.load(c * n + i);
        for (std::size_t t = 0; t < accept; ++t) {
          const float factor = decay[t * decay_row + (PerChannel ? i : 0)];
          y = s.rounded(product(y, factor) + product(k[t * key_row + i], u[t * u_row + c]));
        }
        s.store(c * n + i, y);
      }
    }
  }
};

}  // namespace memra::detail
