// Host kernels that end a round.
#pragma once

#include <cstddef>
#include <cstdint>
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

/// round_commit, a block of channels (x) of one layer (y) of one cache (z) per item: the conv columns move on by the
/// accepted inputs. The first item of each cache moves its position, plane and generation, which no other item reads.
struct RoundCommitBody {
  static constexpr std::size_t channels = 256;  ///< per item

  RoundCommit one;
  const RoundCommit* many;  ///< nullptr: `one`

  MEMRA_HD void operator()(const Item& item) const noexcept {
    const RoundCommit& c = many == nullptr ? one : many[item.z];
    const std::int32_t accept = c.accepted();
    if (item.x == 0 && item.y == 0) move_words(c, accept);
    if (item.y >= c.n_layers || accept == 0) return;
    const RecurView r = c.layers[item.y];
    const std::size_t kept = r.d_conv - 1;
    const std::size_t width = r.conv_dim();
    const std::size_t first = item.x * channels;
    const auto a = static_cast<std::size_t>(accept);
    for (std::size_t ch = first; ch < first + channels && ch < width; ++ch) {
      float* ring = r.conv + ch * kept;
      // Ascending, so that an entry is read before it is overwritten.
      for (std::size_t j = 0; j < kept; ++j) {
        ring[j] = a + j < kept ? ring[a + j] : r.round.conv_rows[(a + j - kept) * width + ch];
      }
    }
  }

 private:
  MEMRA_HD static void move_words(const RoundCommit& c, std::int32_t accept) noexcept {
    RoundWords& w = *c.words;
    if (c.asked() != accept) w.status = 1;
    const std::int32_t pos = *c.pos_d;
    if (pos >= 0) {
      const bool fits = accept <= c.capacity - pos;
      if (!fits) w.status = 1;
      *c.pos_d = fits ? pos + accept : ~pos;
    }
    if (c.mode == RoundMode::planes) w.plane = (w.plane + accept) % c.n_planes;
    w.generation = next_generation(w.generation);
  }
};

}  // namespace memra::detail
