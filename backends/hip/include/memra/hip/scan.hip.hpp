// delta_scan and linear_scan on HIP: a row of sixteen lanes owns a column of S and keeps it in registers. Same bits as
// the host.
#pragma once

#include <hip/hip_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memra/detail/half.hpp>
#include <memra/detail/key_heads.hpp>
#include <memra/detail/math.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/format.hpp>
#include <memra/hip/lanes.hip.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// One rule, d_k = 16 * Steps; definitions: RuleScanBody in host_rule_scan.hpp. Lane i holds elements i, i + 16, ... of
/// the column, and with them one of the sixteen accumulators of the host's dot products, whose fold is row_sum. In a
/// round the same registers go on, and only what is written differs: planes keep the state after each token, a stash
/// keeps what its commit needs and leaves the state alone.
template <ScanRule Rule, unsigned Steps>
struct HipScan {
  static constexpr unsigned block_threads = 256;
  static constexpr unsigned columns = block_threads / row_lanes;
  /// Delta rules write what the state does not say yet; the others write the value.
  static constexpr bool corrects = Rule == ScanRule::gated_delta || Rule == ScanRule::kda;
  static constexpr bool by_key = Rule == ScanRule::kda;         ///< a decay per element of the key
  static constexpr bool by_element = Rule == ScanRule::mamba1;  ///< a decay per element of the state
  static constexpr unsigned decays = by_key || by_element ? Steps : 1;

  RecurView r;
  ScanArgs a;
  KeyHeads heads;
  float scale;  ///< of the outputs: 1 / sqrt(d_k), rounded once, or 1

  HipScan(const RecurView& view, const ScanArgs& args) noexcept
      : r(view), a(args), heads(view), scale(corrects ? 1.0F / std::sqrt(static_cast<float>(view.d_k)) : 1.0F) {}

  static bool fits(const RecurView& r) noexcept {
    return r.rule == Rule && r.d_k == Steps * row_lanes && r.n_v_heads <= 65535 && KeyHeads::fits(r);
  }
  Grid grid() const noexcept { return {(r.d_v + columns - 1) / columns, r.n_v_heads, 1}; }

  /// Item: (block of columns of a head, head).
  __device__ void block(const Item& item) const {
    Place at;
    at.lane = threadIdx.x % row_lanes;
    at.column = item.x * columns + threadIdx.x / row_lanes;
    // Whole rows of lanes leave: those that stay exchange values with nobody else.
    if (at.column >= r.d_v || !r.fits()) return;
    at.h = item.y;
    at.kh = heads.of(static_cast<std::uint32_t>(at.h));
    const std::size_t element = (at.h * r.d_v + at.column) * r.d_k + at.lane;
    const bool keeps_keys = at.column == 0 && heads.reads_first(static_cast<std::uint32_t>(at.h));
    std::size_t plane = r.current();
    float s[Steps];
    load_state(s, plane, element);
    float rates[decays];
    if constexpr (by_element) load(rates, a.a + at.column * r.d_k + at.lane);
    Token next;
    fetch(next, 0, at);
    for (std::size_t t = 0; t < r.rows; ++t) {
      const Token now = next;
      // The next token's inputs are on their way while this one is worked on.
      if (t + 1 < r.rows) fetch(next, t + 1, at);
      float decay[decays];
#pragma unroll
      for (unsigned i = 0; i < decays; ++i) decay[i] = exp_f32(by_element ? product(now.g[0], rates[i]) : now.g[i]);
      float read = 0.0F;
#pragma unroll
      for (unsigned i = 0; i < Steps; ++i) {
        s[i] = product(s[i], decay[decays == 1 ? 0 : i]);
        if constexpr (corrects) read = read + product(s[i], now.k[i]);
      }
      float u = now.v;
      if constexpr (corrects) u = product(now.beta, now.v - row_sum(read));
      if constexpr (Rule == ScanRule::linear) u = a.beta == nullptr ? u : product(now.beta, u);
      if constexpr (by_element) u = product(now.g[0], u);
      float write = 0.0F;
#pragma unroll
      for (unsigned i = 0; i < Steps; ++i) {
        s[i] = s[i] + product(now.k[i], u);
        write = write + product(s[i], now.q[i]);
      }
      const float y = row_sum(write);
      const std::size_t head = t * r.n_v_heads + at.h;
      if (at.lane == 0) a.out[head * r.d_v + at.column] = product(y, scale);
      if (r.ssm_format != Format::f32) {  // what is kept in 16 bits is read so by the next token
#pragma unroll
        for (unsigned i = 0; i < Steps; ++i) s[i] = from_bits(to_bits(s[i]));
      }
      if (r.round.mode == RoundMode::planes) {
        plane = plane + 1 == r.round.n_planes ? 0 : plane + 1;
        keep_state(plane, element, s);
      } else if (r.round.mode == RoundMode::stash) {
        if (at.lane == 0) r.round.u[head * r.d_v + at.column] = u;
        if (at.column == 0) {
          if constexpr (by_key) {
            keep(r.round.decay + head * r.d_k + at.lane, decay);
          } else if (at.lane == 0) {
            r.round.decay[head] = decay[0];
          }
        }
        if (keeps_keys) keep(r.round.k + (t * r.n_k_heads + at.kh) * r.d_k + at.lane, now.k);
      }
    }
    if (r.round.mode == RoundMode::none) keep_state(plane, element, s);
  }

 private:
  struct Place {
    std::size_t lane, column, h, kh;
  };
  /// Inputs of one token.
  struct Token {
    float k[Steps];
    float q[Steps];
    float g[by_key ? Steps : 1];
    float v, beta;
  };

  __device__ void fetch(Token& to, std::size_t t, const Place& at) const {
    load(to.k, a.k + t * a.k_stride + at.kh * r.d_k + at.lane);
    load(to.q, a.q + t * a.q_stride + at.kh * r.d_k + at.lane);
    to.v = a.v[t * a.v_stride + at.h * r.d_v + at.column];
    const std::size_t head = t * r.n_v_heads + at.h;
    if constexpr (by_key) {
      load(to.g, a.g + head * r.d_k + at.lane);
    } else {
      to.g[0] = by_element ? a.g[t * r.d_v + at.column] : a.g[head];
    }
    to.beta = by_element || a.beta == nullptr ? 1.0F : a.beta[head];
  }

  template <unsigned N>
  static __device__ void load(float (&x)[N], const float* from) {
#pragma unroll
    for (unsigned i = 0; i < N; ++i) x[i] = from[row_lanes * i];
  }
  template <unsigned N>
  static __device__ void keep(float* to, const float (&x)[N]) {
#pragma unroll
    for (unsigned i = 0; i < N; ++i) to[row_lanes * i] = x[i];
  }

  // As StateElems do, but for their choice between two addresses: a compiler no longer knows then that it is global
  // memory.
  __device__ std::uint16_t* plane16(std::size_t i) const {
    return i == 0 ? r.ssm16 : r.round.planes16 + (i - 1) * r.ssm_elems();
  }
  __device__ float from_bits(std::uint16_t x) const {
    return r.ssm_format == Format::f16 ? f16_to_f32(x) : bf16_to_f32(x);
  }
  __device__ std::uint16_t to_bits(float x) const {
    return r.ssm_format == Format::f16 ? f32_to_f16(x) : f32_to_bf16(x);
  }
  __device__ void load_state(float (&s)[Steps], std::size_t plane, std::size_t element) const {
    if (r.ssm_format == Format::f32) return load(s, r.plane(plane) + element);
    const std::uint16_t* const from = plane16(plane) + element;
#pragma unroll
    for (unsigned i = 0; i < Steps; ++i) s[i] = from_bits(from[row_lanes * i]);
  }
  __device__ void keep_state(std::size_t plane, std::size_t element, const float (&s)[Steps]) const {
    if (r.ssm_format == Format::f32) return keep(r.plane(plane) + element, s);
    std::uint16_t* const to = plane16(plane) + element;
#pragma unroll
    for (unsigned i = 0; i < Steps; ++i) to[row_lanes * i] = to_bits(s[i]);
  }
};

}  // namespace memra::detail
