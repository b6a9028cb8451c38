// delta_scan on CUDA: the state stays in registers from token to token. Same bits as the host.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memra/detail/key_heads.hpp>
#include <memra/detail/math.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

using CudaKeyHeads = KeyHeads;

/// Eight lanes own a column of S: lane j holds elements 2j, 2j + 1, 2j + 16, 2j + 17, ... and with them two of the
/// sixteen accumulators of the host's dot products. Their fold adds the same pairs, over distances 8, 4, 2, 1.
/// In a round (Mode) the same registers go on, and only what is written differs: planes keep the state after each
/// token, a stash keeps what its commit needs and leaves the state alone.
template <unsigned Steps, RoundMode Mode>
struct CudaScan {
  static constexpr unsigned block_threads = 128;
  static constexpr unsigned lanes = 8;
  static constexpr unsigned block_columns = block_threads / lanes;
  static constexpr unsigned all_lanes = 0xffffffffU;

  RecurView r;
  ScanArgs a;
  CudaKeyHeads heads;
  std::uint32_t rows;
  float inv;  ///< 1 / sqrt(d_k), rounded once

  CudaScan(const RecurView& view, const ScanArgs& args) noexcept
      : r(view),
        a(args),
        heads(view),
        rows(static_cast<std::uint32_t>(view.rows)),
        inv(1.0F / std::sqrt(static_cast<float>(view.d_k))) {}

  static bool fits(const RecurView& r, const ScanArgs& a) noexcept {
    const auto bits = reinterpret_cast<std::uintptr_t>(a.q) | reinterpret_cast<std::uintptr_t>(a.k) |
                      reinterpret_cast<std::uintptr_t>(r.ssm) | reinterpret_cast<std::uintptr_t>(r.round.planes) |
                      reinterpret_cast<std::uintptr_t>(r.round.k) | (a.q_stride | a.k_stride) * sizeof(float);
    return r.d_k == Steps * 16 && bits % sizeof(float2) == 0 && CudaKeyHeads::fits(r) && r.n_v_heads <= 65535 &&
           r.d_v <= 0x7fffffffU && r.rows < 0x7fffffffU;
  }

  /// Item: (block of columns of a head, head).
  __device__ void block(const Item& item) const {
    Thread th;
    th.lane = threadIdx.x % lanes;
    th.h = static_cast<std::uint32_t>(item.y);
    th.kh = heads.of(th.h);
    th.column = static_cast<std::uint32_t>(item.x) * block_columns + threadIdx.x / lanes;
    const bool inside = th.column < r.d_v;
    const std::size_t first = inside ? th.column : 0;
    th.plane = r.current();
    th.at = (th.h * r.d_v + first) * r.d_k + 2 * th.lane;
    th.q = a.q + th.kh * r.d_k + 2 * th.lane;
    th.k = a.k + th.kh * r.d_k + 2 * th.lane;
    th.v = a.v + th.h * r.d_v + first;
    th.out = a.out + th.h * r.d_v + first;
    float* const state = r.plane(th.plane) + th.at;
    load(th.s, state);
    th.written = make_float2(0.0F, 0.0F);
    Token even;
    Token odd;
    fetch(th, even);
    th.next_g = scalar(a.g, th.h, th.lane);
    th.next_beta = scalar(a.beta, th.h, th.lane);
    // A call that does not fit goes through the motions and writes nothing: no load waits for the position.
    th.live = inside && r.fits();
    th.keeps_keys = Mode == RoundMode::stash && th.live && th.column == 0 && heads.reads_first(th.h);
    // Two sets of registers take turns: while one token is worked on, the next one's inputs are on their way.
    for (std::uint32_t t = 0; t < rows; t += 2) {
      advance(th, t, even, odd);
      if (t + 1 < rows) advance(th, t + 1, odd, even);
    }
    put(th, fold(th.written, th.written, th.lane).x);
    if (Mode == RoundMode::none && th.live) keep(state, th.s);
  }

 private:
  /// Inputs of one token.
  struct Token {
    float2 k[Steps];
    float2 q[Steps];
    float v;
  };
  struct Thread {
    std::uint32_t lane, h, kh, column;
    bool live, keeps_keys;
    std::size_t plane, at;
    const float *q, *k, *v;  ///< of the token to fetch next
    float* out;
    float2 s[Steps];
    // Each lane looks after the scalars of one token of every eight.
    float g, beta, next_g, next_beta;
    float2 written;  ///< of the last token's output, not yet summed up
  };

  __device__ void put(Thread& th, float y) const {
    if (th.live && th.lane == 0) *th.out = product(y, inv);
    th.out += r.n_v_heads * r.d_v;
  }

  __device__ void fetch(Thread& th, Token& to) const {
    load(to.k, th.k);
    load(to.q, th.q);
    to.v = *th.v;
    th.k += a.k_stride;
    th.q += a.q_stride;
    th.v += a.v_stride;
  }

  __device__ void advance(Thread& th, std::uint32_t t, const Token& now, Token& next) const {
    const std::uint32_t mine = t % lanes;
    if (mine == 0) {
      th.g = exp_f32(th.next_g);
      th.beta = th.next_beta;
      th.next_g = scalar(a.g, th.h, t + lanes + th.lane);
      th.next_beta = scalar(a.beta, th.h, t + lanes + th.lane);
      if (threadIdx.x < lanes) ahead(th, t + lanes + th.lane);
    }
    if (t + 1 < rows) fetch(th, next);
    const float decay = __shfl_sync(all_lanes, th.g, mine, lanes);
    const float rate = __shfl_sync(all_lanes, th.beta, mine, lanes);
    float2 read = make_float2(0.0F, 0.0F);
#pragma unroll
    for (unsigned i = 0; i < Steps; ++i) {
      th.s[i].x = product(th.s[i].x, decay);
      th.s[i].y = product(th.s[i].y, decay);
      read.x = read.x + product(th.s[i].x, now.k[i].x);
      read.y = read.y + product(th.s[i].y, now.k[i].y);
    }
    // The output of the token before is summed up beside: its shuffles would only be waited for.
    const float2 sums = fold(read, th.written, th.lane);
    const float u = product(rate, now.v - sums.x);
    if (t != 0) put(th, sums.y);
    float2 write = make_float2(0.0F, 0.0F);
#pragma unroll
    for (unsigned i = 0; i < Steps; ++i) {
      th.s[i].x = th.s[i].x + product(now.k[i].x, u);
      th.s[i].y = th.s[i].y + product(now.k[i].y, u);
      write.x = write.x + product(th.s[i].x, now.q[i].x);
      write.y = write.y + product(th.s[i].y, now.q[i].y);
    }
    th.written = write;
    if constexpr (Mode == RoundMode::planes) {
      th.plane = th.plane + 1 == r.round.n_planes ? 0 : th.plane + 1;
      if (th.live) keep<true>(r.plane(th.plane) + th.at, th.s);
    } else if constexpr (Mode == RoundMode::stash) {
      const std::size_t head = std::size_t{t} * r.n_v_heads + th.h;
      if (th.live && th.lane == 0) r.round.u[head * r.d_v + th.column] = u;
      if (th.live && th.lane == 0 && th.column == 0) r.round.decay[head] = decay;
      if (th.keeps_keys) keep(r.round.k + (t * r.n_k_heads + th.kh) * r.d_k + 2 * th.lane, now.k);
    }
  }

  /// Brings a token's rows into the second-level cache: a token is worked on in less time than memory takes to answer.
  __device__ void ahead(const Thread& th, std::uint32_t t) const {
    if (t >= rows) return;
    const float* q = a.q + t * a.q_stride + th.kh * r.d_k;
    const float* k = a.k + t * a.k_stride + th.kh * r.d_k;
#pragma unroll
    for (unsigned i = 0; i < Steps * 16; i += 32) {
      prefetch(q + i);
      prefetch(k + i);
    }
    if (th.live) prefetch(a.v + t * a.v_stride + th.h * r.d_v + th.column);
  }
  static __device__ void prefetch(const float* p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
  }

  /// Issued where it stands: the compiler would rather load behind the checks that come before the first use.
  static __device__ void load(float2 (&x)[Steps], const float* from) {
#pragma unroll
    for (unsigned i = 0; i < Steps; ++i) {
      asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(x[i].x), "=f"(x[i].y) : "l"(from + 16 * i) : "memory");
    }
  }
  /// Streams: what is written once and not read soon, such as planes, leaves the cache early. Without that the last
  /// half of 16 planes waited for the first to be written back (19.6 us, not 15.8, on an H200).
  template <bool Streams = false>
  static __device__ void keep(float* to, const float2 (&x)[Steps]) {
#pragma unroll
    for (unsigned i = 0; i < Steps; ++i) {
      auto* at = reinterpret_cast<float2*>(to + 16 * i);
      if constexpr (Streams) {
        __stcs(at, x[i]);
      } else {
        *at = x[i];
      }
    }
  }
  __device__ float scalar(const float* x, std::uint32_t h, std::size_t t) const {
    return t < rows ? x[t * r.n_v_heads + h] : 0.0F;
  }

  /// Two sums of sixteen numbers: the lower four lanes go on with the even ones, the upper four with the odd ones.
  static __device__ float2 fold(const float2& a, const float2& b, unsigned lane) {
    const bool lower = lane < 4;
    float2 y = lower ? make_float2(a.x, b.x) : make_float2(a.y, b.y);
    const float2 other = lower ? make_float2(a.y, b.y) : make_float2(a.x, b.x);
    y = sum(y, shuffled(other, 4));
    y = sum(y, shuffled(y, 2));
    y = sum(y, shuffled(y, 1));
    return sum(y, shuffled(y, 4));
  }
  static __device__ float2 shuffled(const float2& x, int distance) {
    return make_float2(__shfl_xor_sync(all_lanes, x.x, distance), __shfl_xor_sync(all_lanes, x.y, distance));
  }
  static __device__ float2 sum(const float2& a, const float2& b) {
    return make_float2(a.x + b.x, a.y + b.y);
  }
};

}  // namespace memra::detail
