// Host kernel of conv_update.
#pragma once

#include <cstddef>
#include <cstring>
#include <memra/detail/host_turn.hpp>
#include <memra/detail/math.hpp>
#include <memra/detail/platform.hpp>
#include <memra/detail/simd.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/format.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// conv_update, a block of channels per item.
///
/// Definition for token t and channel c, with K = d_conv, in f32 without contraction:
///   y = bias[c] (or +0), then for j = 0 .. K-1 ascending: y = y + weight[c][j] * x_c[t - (K-1) + j]
/// where x_c at a negative time -m is the ring's entry K-1-m. With silu: y = silu_f32(y), that is y / (1 +
/// exp_f32(-y)). Afterwards the ring holds the last K-1 raw inputs, oldest first; fewer rows than that shift it. In a
/// round the ring stays, and the raw inputs are kept for the commit.
/// A ring in 16 bits holds them rounded, and every tap but the newest reads them so, also inside a call: T tokens in
/// one call give the bits of T calls.
template <class Simd>
struct ConvBody {
  using F = F32x16<Simd>;

  static constexpr std::size_t channels = 32;  ///< per item: whole vectors, and all local arrays stay in L1
  static constexpr std::size_t max_taps = 8;   ///< longest kernel that is transposed into local arrays; longer: direct

  RecurView r;
  ConvArgs a;

  static constexpr std::size_t blocks(const RecurView& r) noexcept { return (r.conv_dim() + channels - 1) / channels; }

  void operator()(const Item& item) const noexcept {
    if (!r.fits()) return;
    const std::size_t first = item.x * channels;
    const std::size_t n = r.conv_dim() - first < channels ? r.conv_dim() - first : channels;
    if (r.round.mode != RoundMode::none && r.d_conv > 1) keep_inputs(first, n);
    if (n == channels && r.d_conv <= max_taps) {
      r.conv_format == Format::f32 ? whole_block<false>(first) : whole_block<true>(first);
    } else {
      for (std::size_t c = first; c < first + n; ++c) one_channel(c);
    }
  }

  void keep_inputs(std::size_t first, std::size_t n) const noexcept {
    const std::size_t width = r.conv_dim();
    for (std::size_t t = 0; t < r.rows; ++t) {
      std::memcpy(r.round.conv_rows + t * width + first, a.x + t * width + first, n * sizeof(float));
    }
  }

  // Channels in lanes. `line` holds the last d_conv inputs as a ring of rows, so nothing moves from token to token.
  template <bool Rounds>
  void whole_block(std::size_t first) const noexcept {
    const std::size_t taps = r.d_conv;
    const std::size_t width = r.conv_dim();
    const StateElems ring = r.conv_state();
    float w[max_taps][channels];
    float line[max_taps][channels];
    float bias[channels];
    for (std::size_t c = 0; c < channels; ++c) {
      bias[c] = a.bias != nullptr ? a.bias[first + c] : 0.0F;
      for (std::size_t j = 0; j + 1 < taps; ++j) {
        const std::size_t at = (first + c) * (taps - 1) + j;
        if constexpr (Rounds) {
          line[j][c] = ring.load(at);
        } else {
          line[j][c] = ring.f32[at];
        }
      }
    }
    turn_weights(first, w);
    std::size_t next = taps - 1;  // row of `line` that takes the next input
    for (std::size_t t = 0; t < r.rows; ++t) {
      const float* x = a.x + t * width + first;
      float* out = a.y + t * width + first;
      const std::size_t oldest = next + 1 == taps ? 0 : next + 1;
      for (std::size_t c = 0; c < channels; c += simd_lanes) {
        F::load(x + c).store(line[next] + c);
        F y = F::load(bias + c);
        std::size_t row = oldest;
        for (std::size_t j = 0; j < taps; ++j) {
          y = y + F::load(w[j] + c) * F::load(line[row] + c);
          row = row + 1 == taps ? 0 : row + 1;
        }
        (a.silu ? silu_f32(y) : y).store(out + c);
      }
      if constexpr (Rounds) {
        for (float& e : line[next]) e = ring.rounded(e);
      }
      next = oldest;
    }
    if (r.round.mode != RoundMode::none) return;
    std::size_t row = next;
    for (std::size_t j = 0; j + 1 < taps; ++j) {
      row = row + 1 == taps ? 0 : row + 1;
      for (std::size_t c = 0; c < channels; ++c) {
        const std::size_t at = (first + c) * (taps - 1) + j;
        if constexpr (Rounds) {
          ring.store(at, line[row][c]);
        } else {
          ring.f32[at] = line[row][c];
        }
      }
    }
  }

  // w[j][c] = weight of tap j and channel first + c. Four taps are what every model has.
  void turn_weights(std::size_t first, float (&w)[max_taps][channels]) const noexcept {
    const float* from = a.weight + first * r.d_conv;
#if defined(__GNUC__) && !MEMRA_DEVICE_COMPILE()
    if (r.d_conv == 4) {
      for (std::size_t c = 0; c < channels; c += 4) turn_4x4(from + c * 4, 4, w[0] + c, channels);
      return;
    }
#endif
    for (std::size_t c = 0; c < channels; ++c) {
      for (std::size_t j = 0; j < r.d_conv; ++j) w[j][c] = from[c * r.d_conv + j];
    }
  }

  void one_channel(std::size_t c) const noexcept {
    const std::size_t kept = r.d_conv - 1;
    const std::size_t width = r.conv_dim();
    const StateElems ring = r.conv_state() + c * kept;
    // Input at time t - kept + j, as the ring holds it; the ring comes before token 0.
    const auto input = [&](std::size_t t, std::size_t j) {
      return t + j < kept ? ring.load(t + j) : ring.rounded(a.x[(t + j - kept) * width + c]);
    };
    for (std::size_t t = 0; t < r.rows; ++t) {
      float y = a.bias != nullptr ? a.bias[c] : 0.0F;
      for (std::size_t j = 0; j < kept; ++j) y = y + product(a.weight[c * r.d_conv + j], input(t, j));
      y = y + product(a.weight[c * r.d_conv + kept], a.x[t * width + c]);
      a.y[t * width + c] = a.silu ? silu_f32(y) : y;
    }
    if (r.round.mode != RoundMode::none) return;
    // Ascending, so that an entry is read before it is overwritten.
    for (std::size_t j = 0; j < kept; ++j) ring.store(j, input(r.rows, j));
  }
};

}  // namespace memra::detail
