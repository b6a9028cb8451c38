// draft_attend on CUDA for head dimensions 32, 64 and 128: tensor cores over f32 rows, keys split on an absolute grid.
//
// Numeric class: q, scaled, K, V and the weights each enter the products as a sum of two bf16 (16 bits of mantissa, the
// range of f32), of whose four products the smallest is left out; sums are f32, weights powers of two by the hardware.
// Within 1e-4 of the host relative to the output vector. Both arms give the same bits while masked rows are finite, and
// so do a flat cache and a ring: pieces and steps lie on a grid of stream rows, and a piece's size is a function of
// length, window and block. A (row, query head) is a column of the products, which depends on no other column.
//
// A visible key or value beyond 3.38e38, infinite or NaN gives NaN; such a value also to those queries of the block
// whose window starts less than a step of keys behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/cuda/attend_mma.cuh>
#include <memra/cuda/draft_pieces.cuh>
#include <memra/cuda/draft_stage.cuh>
#include <memra/launch.hpp>

namespace memra::detail {

/// One block: one piece of one kv head, up to 8 * Tiles columns. Of each step warp w scores keys [16 w, 16 w + 16) for
/// all columns; the weights go through shared memory; then it adds up its 32 elements of V over all keys of the step.
/// A step's keys come while the step before is weighed and added up, its values while it is scored.
template <unsigned Dim, unsigned Tiles>
struct CudaDraftTile : CudaDraftStage<Dim, Tiles> {
  using Base = CudaDraftStage<Dim, Tiles>;
  using Base::a;
  using Base::block_threads;
  using Base::columns;
  using Base::d;
  using Base::fetch_k;
  using Base::fetch_v;
  using Base::group;
  using Base::k_at;
  using Base::load_q;
  using Base::maxima_at;
  using Base::own;
  using Base::part_bytes;
  using Base::partials;
  using Base::q_bytes;
  using Base::query;
  using Base::slots;
  using Base::step_keys;
  using Base::store_q;
  using Base::stride;
  using Base::v_at;
  using Base::warps;
  using Base::weights_at;
  using Base::weights_bytes;
  using typename Base::Halves;
  using typename Base::Place;

  /// Item: (kv head and tile of columns, piece).
  __device__ void block(const Item& item) const {
    extern __shared__ __align__(128) std::byte memra_draft_shared[];
    std::byte* const shared = memra_draft_shared;
    Place at;
    at.warp = threadIdx.x / 32;
    at.lane = threadIdx.x % 32;
    at.g = at.lane / 4;
    at.t = at.lane % 4;
    at.heads = static_cast<unsigned>(a.n_heads / d.n_kv);
    at.kv_head = static_cast<unsigned>(item.x % d.n_kv);
    at.first_column = static_cast<unsigned>(item.x / d.n_kv) * columns;
    at.n_columns = static_cast<unsigned>(d.block_rows) * at.heads;
    at.shared = shared_address(shared);
    float4 q[Tiles / warps][Dim / 16];  // on its way while the length is
    load_q(at, q);
    const CudaDraftPieces pieces(d);
    const auto piece = static_cast<std::uint32_t>(item.y);
    if (piece >= pieces.n) return;
    at.base = pieces.base;
    at.from = a.arm == DraftArm::full_scan ? pieces.base : pieces.first;
    at.end = pieces.end;
    at.visible = pieces.visible(static_cast<unsigned>(d.block_rows) - 1);
    // Steps with visible keys; before them this block's share of those without.
    const std::uint32_t begin = (pieces.first_piece + piece) << pieces.shift;
    const std::uint32_t own = (begin > pieces.first ? begin : pieces.first) / step_keys;
    const std::uint32_t stop = begin + (1U << pieces.shift) < pieces.end ? begin + (1U << pieces.shift) : pieces.end;
    const std::uint32_t n_own = (stop + step_keys - 1) / step_keys - own;
    const std::uint32_t n_hidden = pieces.first / step_keys - at.from / step_keys;
    const std::uint32_t share = (n_hidden + pieces.n - 1) / pieces.n;
    const std::uint32_t skipped = share * piece < n_hidden ? share * piece : n_hidden;
    const std::uint32_t n_before = n_hidden - skipped < share ? n_hidden - skipped : share;
    const std::uint32_t hidden = at.from / step_keys + skipped;
    const auto step_at = [&](std::uint32_t i) {
      return (i < n_before ? hidden + i : own + (i - n_before)) * step_keys;
    };

#pragma unroll
    for (unsigned i = 0; i < Dim / 32; ++i) fetch_k(at, step_at(0), i);
    copies_commit();
#pragma unroll
    for (unsigned i = 0; i < warps; ++i) fetch_v(at, step_at(0), i);
    copies_commit();
    store_q(at, q);
    barrier_publish();
    __syncthreads();

    float top[Tiles][2];
    float sum[Tiles][2];  // of this lane's keys' weights
    float o[2][Tiles][4];
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
      for (unsigned j = 0; j < 2; ++j) top[i][j] = -INFINITY, sum[i][j] = 0.0F;
#pragma unroll
      for (unsigned j = 0; j < 8; ++j) o[j / 4][i][j % 4] = 0.0F;
    }
    const std::uint32_t n = n_before + n_own;
#pragma unroll 1
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::uint32_t step = step_at(i);
      float s[Tiles][4];
      // Behind the last step, zeros.
      const std::uint32_t next = i + 1 < n ? step_at(i + 1) : at.end;
      copies_wait<1>();  // all but the values
      score(at, shared, next, s);
      copies_commit();
      if (step < at.visible || step + step_keys > at.end) mask(at, pieces, step, s);
      store_maxima(at, shared, s);
      __syncthreads();
      weigh(at, shared, s, top, sum, o);
      barrier_publish();
      copies_wait<1>();  // all but the next keys
      __syncthreads();
      add(at, shared, next, o);
      copies_commit();
    }
    copies_wait<0>();
    finish(at, shared, piece, top, sum, o);
  }

 private:
  /// A part of A in both halves.
  struct Operand {
    std::uint32_t high[4], low[4];
    __device__ void set(unsigned i, float x, float y) {
      const Halves both(x, y);
      high[i] = both.high;
      low[i] = both.low;
    }
  };

  /// to += both parts of A times both of B, but the product of the low ones.
  __device__ static void multiply_both(float (&to)[Tiles][4], const Operand& x, std::uint32_t b, std::uint32_t b_low) {
    multiply<group, true>(to, x.low, b);
    multiply<group, true>(to, x.high, b_low);
    multiply<group, true>(to, x.high, b);
  }

  /// Lane 4 g + t: keys g and g + 8 of the warp's, columns 2 t and 2 t + 1 of each eight. While some dimensions are
  /// multiplied the next are split; the next step's keys take the place of those that were.
  /// @param next  first key of the next step
  __device__ void score(const Place& at, const std::byte* shared, std::uint32_t next, float (&s)[Tiles][4]) const {
    using At = AttendOperand<group>;
    const std::uint32_t q = At(at.shared, at.lane).at;
    Operand x[2];
    float4 k = own(shared, k_at);
    float4 l = own(shared, k_at + part_bytes);
#pragma unroll
    for (unsigned i = 0; i < 4 * Tiles; ++i) s[i / 4][i % 4] = 0.0F;
#pragma unroll
    for (unsigned i = 0; i < Dim / 16; ++i) {
      x[i % 2].set(0, k.x, k.y);
      x[i % 2].set(1, l.x, l.y);
      x[i % 2].set(2, k.z, k.w);
      x[i % 2].set(3, l.z, l.w);
      if (i % 2 == 1) fetch_k(at, next, i / 2);
      if (i + 1 < Dim / 16) {
        k = own(shared, k_at + (2 * i + 2) * part_bytes);
        l = own(shared, k_at + (2 * i + 3) * part_bytes);
      }
      if (i != 0) group_wait_if();
      group_begin_if();
      multiply_both(s, x[i % 2], q + At::step(i * Tiles * 256), q + At::step(i * Tiles * 256 + q_bytes));
      group_commit_if();
    }
    group_wait_if();
  }

  __device__ static void group_begin_if() {
    if constexpr (group) group_begin();
  }
  __device__ static void group_commit_if() {
    if constexpr (group) group_commit();
  }
  __device__ static void group_wait_if() {
    if constexpr (group) group_wait();
  }

  __device__ static void mask(const Place& at, const CudaDraftPieces& pieces, std::uint32_t first,
                              float (&s)[Tiles][4]) {
    const std::uint32_t key = first + 16 * at.warp + at.g;
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
      for (unsigned j = 0; j < 2; ++j) {
        const std::uint32_t from = pieces.visible((at.first_column + 8 * i + 2 * at.t + j) / at.heads);
        if (key < from || key >= at.end) s[i][j] = -INFINITY;
        if (key + 8 < from || key + 8 >= at.end) s[i][j + 2] = -INFINITY;
      }
    }
  }

  /// The largest scores of this warp's keys, for all warps.
  __device__ static void store_maxima(const Place& at, std::byte* shared, const float (&s)[Tiles][4]) {
    auto* const maxima = reinterpret_cast<float2*>(shared + maxima_at) + at.t;
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
      float x = fmaxf(s[i][0], s[i][2]);
      float y = fmaxf(s[i][1], s[i][3]);
#pragma unroll
      for (unsigned distance = 4; distance < 32; distance *= 2) {
        x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, distance));
        y = fmaxf(y, __shfl_xor_sync(0xffffffffU, y, distance));
      }
      if (at.g == 0) maxima[(at.warp * Tiles + i) * 4] = {x, y};
    }
  }

  /// Weights of this warp's keys, 2^(score - largest score so far), into shared memory, for all warps. Sums so far are
  /// scaled to it.
  __device__ static void weigh(const Place& at, std::byte* shared, const float (&s)[Tiles][4], float (&top)[Tiles][2],
                               float (&sum)[Tiles][2], float (&o)[2][Tiles][4]) {
    const auto* const maxima = reinterpret_cast<const float2*>(shared + maxima_at) + at.t;
    float2 now[Tiles];
    bool grew = false;
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
      now[i] = {top[i][0], top[i][1]};
#pragma unroll
      for (unsigned w = 0; w < warps; ++w) {
        const float2 x = maxima[(w * Tiles + i) * 4];
        now[i] = {fmaxf(now[i].x, x.x), fmaxf(now[i].y, x.y)};
      }
      grew = grew || now[i].x != top[i][0] || now[i].y != top[i][1];
    }
    if (__any_sync(0xffffffffU, grew)) {
#pragma unroll
      for (unsigned i = 0; i < Tiles; ++i) {
        if (now[i].x != top[i][0]) raise<0>(i, now[i].x, top, sum, o);
        if (now[i].y != top[i][1]) raise<1>(i, now[i].y, top, sum, o);
      }
    }
    const std::uint32_t to = at.shared + weights_at + at.warp * Tiles * 256;
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
      // While nothing was seen there is no maximum to take away: weights are 0.
      const float2 least = {top[i][0] == -INFINITY ? 0.0F : top[i][0], top[i][1] == -INFINITY ? 0.0F : top[i][1]};
      const float p[4] = {exp2_fast(__fsub_rn(s[i][0], least.x)), exp2_fast(__fsub_rn(s[i][1], least.y)),
                          exp2_fast(__fsub_rn(s[i][2], least.x)), exp2_fast(__fsub_rn(s[i][3], least.y))};
      sum[i][0] = __fadd_rn(sum[i][0], __fadd_rn(p[0], p[2]));
      sum[i][1] = __fadd_rn(sum[i][1], __fadd_rn(p[1], p[3]));
      const Halves x(p[0], p[1]);
      const Halves y(p[2], p[3]);
      store_turned(to + i * 256, x.high, y.high, at.lane);
      store_turned(to + weights_bytes + i * 256, x.low, y.low, at.lane);
    }
  }

  /// A column has a new maximum: what it has so far is scaled to it.
  template <unsigned J>
  __device__ static void raise(unsigned i, float now, float (&top)[Tiles][2], float (&sum)[Tiles][2],
                               float (&o)[2][Tiles][4]) {
    const float c = exp2_fast(__fsub_rn(top[i][J], now));
    top[i][J] = now;
    sum[i][J] = __fmul_rn(sum[i][J], c);
#pragma unroll
    for (unsigned m = 0; m < 4; ++m) o[m / 2][i][m % 2 * 2 + J] = __fmul_rn(o[m / 2][i][m % 2 * 2 + J], c);
  }

  /// o += V^T times weights. Lane 4 g + t: elements 4 g to 4 g + 3 of the warp's 32 as rows g and g + 8 of two
  /// products, columns 2 t and 2 t + 1 of each eight.
  /// @param next  first key of the next step, whose values take the place of these
  __device__ void add(const Place& at, const std::byte* shared, std::uint32_t next, float (&o)[2][Tiles][4]) const {
    using At = AttendOperand<group>;
    const std::uint32_t weights = At(at.shared + weights_at, at.lane).at;
    float4 v[4];
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) v[j] = own(shared, v_at + j * part_bytes);
    Operand x[2][2];
#pragma unroll
    for (unsigned i = 0; i < warps; ++i) {
      Operand(&y)[2] = x[i % 2];
      y[0].set(0, v[0].x, v[1].x);
      y[0].set(1, v[0].y, v[1].y);
      y[0].set(2, v[2].x, v[3].x);
      y[0].set(3, v[2].y, v[3].y);
      y[1].set(0, v[0].z, v[1].z);
      y[1].set(1, v[0].w, v[1].w);
      y[1].set(2, v[2].z, v[3].z);
      y[1].set(3, v[2].w, v[3].w);
      fetch_v(at, next, i);
      if (i + 1 < warps) {
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) v[j] = own(shared, v_at + (4 * i + 4 + j) * part_bytes);
      }
      if (i != 0) group_wait_if();
      group_begin_if();
      const std::uint32_t w = weights + At::step(i * Tiles * 256);
      multiply_both(o[0], y[0], w, w + At::step(weights_bytes));
      multiply_both(o[1], y[1], w, w + At::step(weights_bytes));
      group_commit_if();
    }
    group_wait_if();
  }

  __device__ void finish(const Place& at, std::byte* shared, unsigned piece, const float (&top)[Tiles][2],
                         float (&sum)[Tiles][2], const float (&o)[2][Tiles][4]) const {
    auto* const sums = reinterpret_cast<float*>(shared + maxima_at);
#pragma unroll
    for (unsigned i = 0; i < 2 * Tiles; ++i) {
      float& x = sum[i / 2][i % 2];
#pragma unroll
      for (unsigned distance = 4; distance < 32; distance *= 2) {
        x = __fadd_rn(x, __shfl_xor_sync(0xffffffffU, x, distance));
      }
      if (at.g == 0) sums[at.warp * columns + i / 2 * 8 + 2 * at.t + i % 2] = x;
    }
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < 2 * Tiles; ++i) {
      const unsigned j = i % 2;
      const unsigned own = i / 2 * 8 + 2 * at.t + j;
      if (at.first_column + own >= at.n_columns) continue;
      float* const to = partials + (query(at, at.first_column + own) * slots + piece) * stride;
      reinterpret_cast<float4*>(to)[8 * at.warp + at.g] = {o[0][i / 2][j], o[0][i / 2][j + 2], o[1][i / 2][j],
                                                           o[1][i / 2][j + 2]};
      if (at.warp == 0 && at.g == 0) {
        float l = sums[own];
        for (unsigned w = 1; w < warps; ++w) l = __fadd_rn(l, sums[w * columns + own]);
        to[Dim] = top[i / 2][j];
        to[Dim + 1] = l;
      }
    }
  }
};

}  // namespace memra::detail
