// delta_scan on HIP: a row of sixteen lanes owns a column of S and keeps it in registers. Same bits as the host.
#pragma once

#include <hip/hip_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memra/detail/math.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/hip/lanes.hip.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// KeyHeadMap with its divisions by totals done on the host and the rest in 32 bits: a division of 64 bits is hundreds
/// of instructions, and the first load of keys waits for it.
struct HipKeyHeads {
  std::uint32_t first_v, all_k, group, first;
  bool grouped;

  explicit HipKeyHeads(const RecurView& r) noexcept
      : first_v(static_cast<std::uint32_t>(r.map.first_v)),
        all_k(static_cast<std::uint32_t>(r.map.total_k == 0 ? r.n_k_heads : r.map.total_k)),
        group(static_cast<std::uint32_t>((r.map.total_v == 0 ? r.n_v_heads : r.map.total_v) / all_k)),
        first(0),
        grouped(r.map.mode == KeyHeadMode::grouped) {
    if (r.n_k_heads != all_k) first = grouped ? first_v / group : first_v % all_k;
  }
  static bool fits(const RecurView& r) noexcept {
    return r.map.total_v <= 0x7fffffffU && r.map.total_k <= 0x7fffffffU && r.map.first_v <= 0x3fffffffU;
  }

  __device__ std::uint32_t of(std::uint32_t h) const {
    const std::uint32_t global = grouped ? (first_v + h) / group : (first_v + h) % all_k;
    return global < first ? global + all_k - first : global - first;
  }
  /// No value head below h reads the same key head: one writer each. Heads of a group are neighbours; interleaved ones
  /// come round after all key heads.
  __device__ bool reads_first(std::uint32_t h) const {
    return grouped ? h == 0 || (first_v + h) % group == 0 : h < all_k;
  }
};

/// The gated delta rule, d_k = 16 * Steps. Lane i holds elements i, i + 16, ... of the column, and with them one of the
/// sixteen accumulators of the host's dot products, whose fold is row_sum. In a round (Mode) the same registers go on,
/// and only what is written differs: planes keep the state after each token, a stash keeps what its commit needs and
/// leaves the state alone.
template <unsigned Steps, RoundMode Mode>
struct HipScan {
  static constexpr unsigned block_threads = 256;
  static constexpr unsigned columns = block_threads / row_lanes;

  RecurView r;
  ScanArgs a;
  HipKeyHeads heads;
  float scale;  ///< 1 / sqrt(d_k), rounded once

  HipScan(const RecurView& view, const ScanArgs& args) noexcept
      : r(view), a(args), heads(view), scale(1.0F / std::sqrt(static_cast<float>(view.d_k))) {}

  static bool fits(const RecurView& r) noexcept {
    return r.rule == ScanRule::gated_delta && r.ssm_format == Format::f32 && r.d_k == Steps * row_lanes &&
           r.n_v_heads <= 65535 && HipKeyHeads::fits(r);
  }
  Grid grid() const noexcept { return {(r.d_v + columns - 1) / columns, r.n_v_heads, 1}; }

  /// Item: (block of columns of a head, head).
  __device__ void block(const Item& item) const {
    const std::size_t lane = threadIdx.x % row_lanes;
    const std::size_t column = item.x * columns + threadIdx.x / row_lanes;
    // Whole rows of lanes leave: those that stay exchange values with nobody else.
    if (column >= r.d_v || !r.fits()) return;
    const std::size_t h = item.y;
    const std::size_t kh = heads.of(static_cast<std::uint32_t>(h));
    const std::size_t at = (h * r.d_v + column) * r.d_k + lane;
    const bool keeps_keys = Mode == RoundMode::stash && column == 0 && heads.reads_first(static_cast<std::uint32_t>(h));
    std::size_t plane = r.current();
    float* const state = r.plane(plane) + at;
    float s[Steps];
    load(s, state);
    Token next;
    fetch(next, 0, h, kh, column, lane);
    for (std::size_t t = 0; t < r.rows; ++t) {
      const Token now = next;
      // The next token's inputs are on their way while this one is worked on.
      if (t + 1 < r.rows) fetch(next, t + 1, h, kh, column, lane);
      const float decay = exp_f32(now.g);
      float read = 0.0F;
#pragma unroll
      for (unsigned i = 0; i < Steps; ++i) {
        s[i] = product(s[i], decay);
        read = read + product(s[i], now.k[i]);
      }
      const float u = product(now.beta, now.v - row_sum(read));
      float write = 0.0F;
#pragma unroll
      for (unsigned i = 0; i < Steps; ++i) {
        s[i] = s[i] + product(now.k[i], u);
        write = write + product(s[i], now.q[i]);
      }
      const float y = row_sum(write);
      const std::size_t head = t * r.n_v_heads + h;
      if (lane == 0) a.out[head * r.d_v + column] = product(y, scale);
      if constexpr (Mode == RoundMode::planes) {
        plane = plane + 1 == r.round.n_planes ? 0 : plane + 1;
        keep(r.plane(plane) + at, s);
      } else if constexpr (Mode == RoundMode::stash) {
        if (lane == 0) r.round.u[head * r.d_v + column] = u;
        if (lane == 0 && column == 0) r.round.decay[head] = decay;
        if (keeps_keys) keep(r.round.k + (t * r.n_k_heads + kh) * r.d_k + lane, now.k);
      }
    }
    if constexpr (Mode == RoundMode::none) keep(state, s);
  }

 private:
  /// Inputs of one token.
  struct Token {
    float k[Steps];
    float q[Steps];
    float v, g, beta;
  };

  __device__ void fetch(Token& to, std::size_t t, std::size_t h, std::size_t kh, std::size_t column,
                        std::size_t lane) const {
    load(to.k, a.k + t * a.k_stride + kh * r.d_k + lane);
    load(to.q, a.q + t * a.q_stride + kh * r.d_k + lane);
    to.v = a.v[t * a.v_stride + h * r.d_v + column];
    to.g = a.g[t * r.n_v_heads + h];
    to.beta = a.beta[t * r.n_v_heads + h];
  }

  static __device__ void load(float (&x)[Steps], const float* from) {
#pragma unroll
    for (unsigned i = 0; i < Steps; ++i) x[i] = from[row_lanes * i];
  }
  static __device__ void keep(float* to, const float (&x)[Steps]) {
#pragma unroll
    for (unsigned i = 0; i < Steps; ++i) to[row_lanes * i] = x[i];
  }
};

}  // namespace memra::detail
