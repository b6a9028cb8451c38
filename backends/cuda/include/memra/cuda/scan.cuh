// delta_scan on CUDA: the state stays in registers from token to token. Same bits as the host.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memra/detail/math.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// KeyHeadMap with its divisions by run-time totals done on the host, and the rest in 32 bits.
struct CudaKeyHeads {
  std::uint32_t first_v, group, all_k, n_k, first;
  bool grouped;

  explicit CudaKeyHeads(const RecurView& r) noexcept
      : first_v(static_cast<std::uint32_t>(r.map.first_v)),
        group(static_cast<std::uint32_t>((r.map.total_v == 0 ? r.n_v_heads : r.map.total_v) /
                                         (r.map.total_k == 0 ? r.n_k_heads : r.map.total_k))),
        all_k(static_cast<std::uint32_t>(r.map.total_k == 0 ? r.n_k_heads : r.map.total_k)),
        n_k(static_cast<std::uint32_t>(r.n_k_heads)),
        first(0),
        grouped(r.map.mode == KeyHeadMode::grouped) {
    if (n_k != all_k) first = grouped ? first_v / group : first_v % all_k;
  }

  __device__ std::uint32_t of(std::uint32_t h) const {
    const std::uint32_t global = grouped ? (first_v + h) / group : (first_v + h) % all_k;
    return global < first ? global + all_k - first : global - first;
  }
  /// No value head below h reads the same key head.
  __device__ bool reads_first(std::uint32_t h) const {
    return grouped ? h == 0 || (first_v + h) % group == 0 : h < all_k;
  }
};

/// Eight lanes own a column of S: lane j holds elements 2j, 2j + 1, 2j + 16, 2j + 17, ... and with them two of the
/// sixteen accumulators of the host's dot products. Their fold adds the same pairs, over distances 8, 4, 2, 1.
/// In a round (Mode) the same registers go on, and only what is written differs: planes keep the state after each
/// token, a stash keeps what its commit needs and leaves the state alone.
template <unsigned Steps, RoundMode Mode>
struct CudaScan {
  static constexpr unsigned block_threads = 128;
  static constexpr unsigned lanes = 8;
  static constexpr unsigned block_columns = block_threads / lanes;

  RecurView r;
  ScanArgs a;
  CudaKeyHeads heads;
  float inv;  ///< 1 / sqrt(d_k), rounded once

  CudaScan(const RecurView& view, const ScanArgs& args) noexcept
      : r(view), a(args), heads(view), inv(1.0F / std::sqrt(static_cast<float>(view.d_k))) {}

  static bool fits(const RecurView& r, const ScanArgs& a) noexcept {
    const auto bits = reinterpret_cast<std::uintptr_t>(a.q) | reinterpret_cast<std::uintptr_t>(a.k) |
                      reinterpret_cast<std::uintptr_t>(r.ssm) | reinterpret_cast<std::uintptr_t>(r.round.planes) |
                      reinterpret_cast<std::uintptr_t>(r.round.k) | (a.q_stride | a.k_stride) * sizeof(float);
    return r.d_k == Steps * 16 && bits % sizeof(float2) == 0 && r.n_v_heads <= 65535;
  }

  /// Item: (block of columns of a head, head).
  __device__ void block(const Item& item) const {
    const unsigned lane = threadIdx.x % lanes;
    const auto h = static_cast<std::uint32_t>(item.y);
    const std::size_t column = item.x * block_columns + threadIdx.x / lanes;
    const bool live = column < r.d_v;
    const std::size_t first = live ? column : 0;
    const std::size_t kh = heads.of(h);
    const bool fits = r.fits();
    std::size_t plane = Mode == RoundMode::none && r.round.plane_d == nullptr ? 0 : r.current();
    const std::size_t at = (h * r.d_v + first) * r.d_k + 2 * lane;
    float* const state = r.plane(plane) + at;
    float2 s[Steps];
    load(s, state);
    const float* q = a.q + kh * r.d_k + 2 * lane;
    const float* k = a.k + kh * r.d_k + 2 * lane;
    const float* v = a.v + h * r.d_v + first;
    float2 next_k[Steps];
    float2 next_q[Steps];
    load(next_k, k);
    load(next_q, q);
    float next_v = *v;
    // Each lane looks after the scalars of one token of every eight.
    float g = 0.0F;
    float beta = 0.0F;
    float next_g = scalar(a.g, h, lane);
    float next_beta = scalar(a.beta, h, lane);
    if (!fits) return;
    const bool keeps_keys = Mode == RoundMode::stash && live && column == 0 && heads.reads_first(h);
    float* out = a.out + h * r.d_v + first;
    for (std::size_t t = 0; t < r.rows; ++t) {
      const unsigned mine = static_cast<unsigned>(t % lanes);
      if (mine == 0) {
        g = exp_f32(next_g);
        beta = next_beta;
        next_g = scalar(a.g, h, t + lanes + lane);
        next_beta = scalar(a.beta, h, t + lanes + lane);
      }
      float2 kv[Steps];
      float2 qv[Steps];
#pragma unroll
      for (unsigned i = 0; i < Steps; ++i) {
        kv[i] = next_k[i];
        qv[i] = next_q[i];
      }
      const float value = next_v;
      if (t + 1 < r.rows) {
        k += a.k_stride;
        q += a.q_stride;
        v += a.v_stride;
        load(next_k, k);
        load(next_q, q);
        next_v = *v;
      }
      const float decay = __shfl_sync(0xffffffffU, g, mine, lanes);
      const float rate = __shfl_sync(0xffffffffU, beta, mine, lanes);
      float2 read = make_float2(0.0F, 0.0F);
#pragma unroll
      for (unsigned i = 0; i < Steps; ++i) {
        s[i].x = product(s[i].x, decay);
        s[i].y = product(s[i].y, decay);
        read.x = read.x + product(s[i].x, kv[i].x);
        read.y = read.y + product(s[i].y, kv[i].y);
      }
      const float u = product(rate, value - fold(read, lane));
      float2 write = make_float2(0.0F, 0.0F);
#pragma unroll
      for (unsigned i = 0; i < Steps; ++i) {
        s[i].x = s[i].x + product(kv[i].x, u);
        s[i].y = s[i].y + product(kv[i].y, u);
        write.x = write.x + product(s[i].x, qv[i].x);
        write.y = write.y + product(s[i].y, qv[i].y);
      }
      const float y = product(fold(write, lane), inv);
      if (live && lane == 0) *out = y;
      out += r.n_v_heads * r.d_v;
      if constexpr (Mode == RoundMode::planes) {
        plane = plane + 1 == r.round.n_planes ? 0 : plane + 1;
        if (live) keep(r.plane(plane) + at, s);
      } else if constexpr (Mode == RoundMode::stash) {
        if (live && lane == 0) r.round.u[(t * r.n_v_heads + h) * r.d_v + column] = u;
        if (live && column == 0 && lane == 0) r.round.decay[t * r.n_v_heads + h] = decay;
        if (keeps_keys) keep(r.round.k + (t * r.n_k_heads + kh) * r.d_k + 2 * lane, kv);
      }
    }
    if (Mode == RoundMode::none && live) keep(state, s);
  }

 private:
  static __device__ void load(float2 (&x)[Steps], const float* from) {
#pragma unroll
    for (unsigned i = 0; i < Steps; ++i) x[i] = *reinterpret_cast<const float2*>(from + 16 * i);
  }
  static __device__ void keep(float* to, const float2 (&x)[Steps]) {
#pragma unroll
    for (unsigned i = 0; i < Steps; ++i) *reinterpret_cast<float2*>(to + 16 * i) = x[i];
  }
  __device__ float scalar(const float* x, std::uint32_t h, std::size_t t) const {
    return t < r.rows ? x[t * r.n_v_heads + h] : 0.0F;
  }

  /// Sixteen numbers: the lower four lanes go on with the even ones, the upper four with the odd ones.
  static __device__ float fold(const float2& x, unsigned lane) {
    constexpr unsigned all = 0xffffffffU;
    const bool lower = lane < 4;
    float y = lower ? x.x : x.y;
    y = y + __shfl_xor_sync(all, lower ? x.y : x.x, 4);
    y = y + __shfl_xor_sync(all, y, 2);
    y = y + __shfl_xor_sync(all, y, 1);
    return y + __shfl_xor_sync(all, y, 4);
  }
};

}  // namespace memra::detail
