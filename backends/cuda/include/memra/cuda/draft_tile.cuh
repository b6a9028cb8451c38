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
#include <memra/detail/portable_attend.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// Which stream rows the block's queries see, and the pieces that these are cut into.
struct CudaDraftPieces {
  std::uint32_t base = 0;   ///< stream row of physical row 0
  std::uint32_t first = 0;  ///< first that some query sees
  std::uint32_t end = 0;
  std::int32_t len = 0;
  std::int32_t reach = -0x7fffffff;  ///< first row of the window of the block's first
  std::uint32_t shift = 0;           ///< piece c holds stream rows [c << shift, (c + 1) << shift)
  std::uint32_t first_piece = 0;     ///< of those with visible rows
  std::uint32_t n = 0;               ///< pieces with visible rows; 0: no row is visible

  __device__ explicit CudaDraftPieces(const DraftView& d) {
    const PortableDraftRange r = PortableDraftRange::of(d, DraftArm::clip, 0);
    if (r.end <= r.visible) return;
    base = static_cast<std::uint32_t>(d.first_row());
    first = base + static_cast<std::uint32_t>(r.visible);
    end = base + static_cast<std::uint32_t>(r.end);
    const std::int32_t n_rows = *d.len_d < 0 ? 0 : *d.len_d;
    len = n_rows < static_cast<std::int64_t>(d.len_bound) ? n_rows : static_cast<std::int32_t>(d.len_bound);
    if (d.window != 0 && d.window <= std::size_t{0x7fffffff}) reach = len + 1 - static_cast<std::int32_t>(d.window);
    const std::size_t keys = most(d, end);
    shift = draft_piece_shift;
    while (keys > draft_pieces_bound << shift) ++shift;
    first_piece = first >> shift;
    n = ((end - 1) >> shift) - first_piece + 1;
  }

  /// Keys that the queries together see at most, of `end`.
  static __host__ __device__ std::size_t most(const DraftView& d, std::size_t end) {
    if (d.window == 0 || d.window > end) return end;
    const std::size_t seen = d.window - 1 + d.block_rows;
    return seen < end ? seen : end;
  }

  /// First stream row that a row of the block sees: the window moves on with the row, up to the block itself.
  __device__ std::uint32_t visible(unsigned row) const {
    const std::int32_t own = reach + static_cast<std::int32_t>(row);
    const auto least = static_cast<std::int32_t>(first);
    const std::int32_t to = own < len ? own : len;
    return static_cast<std::uint32_t>(to < least ? least : to);
  }
};

/// One block: one piece of one kv head, up to 8 * Tiles columns. Of each step warp w scores keys [16 w, 16 w + 16) for
/// all columns; the weights go through shared memory; then it adds up its 32 elements of V over all keys of the step.
/// Rows wait in shared memory, where each thread has put the parts that it alone takes: a step's keys come while the
/// step before is weighed and added up, its values while it is scored.
template <unsigned Dim, unsigned Tiles>
struct CudaDraftTile {
  static_assert(Dim == 32 || Dim == 64 || Dim == 128);
  static constexpr unsigned block_threads = Dim;
  static constexpr unsigned least_blocks = 256 / Dim;
  static constexpr unsigned warps = Dim / 32;
  static constexpr unsigned step_keys = 16 * warps;
  static constexpr unsigned columns = 8 * Tiles;
  static constexpr bool group = warps == 4;  ///< products of a warpgroup where the target has them
  static constexpr unsigned stride =
      Dim + 4;  ///< floats of a partial result: sums, exponent, sum of weights, two unused
  static_assert((std::size_t{1} << draft_piece_shift) % step_keys == 0);

  DraftView d;
  DraftAttendArgs a;
  float* partials;  ///< [block_rows][n_heads][slots][stride]
  unsigned slots;   ///< pieces at most

  Grid grid() const noexcept {
    const std::size_t tiles = (d.block_rows * (a.n_heads / d.n_kv) + columns - 1) / columns;
    return {tiles * d.n_kv, slots, 1};
  }

  // Shared memory: q [Dim / 16][Tiles][2][8][8] and weights [warps][Tiles][2][8][8] as the products take them, high
  // parts then low ones; maxima (then sums) per warp and column; of each thread 16-byte parts of a step's keys and
  // values.
  static constexpr unsigned q_bytes = Dim * Tiles * 16;
  static constexpr unsigned weights_at = 2 * q_bytes;
  static constexpr unsigned weights_bytes = warps * Tiles * 256;
  static constexpr unsigned maxima_at = weights_at + 2 * weights_bytes;
  static constexpr unsigned k_at = maxima_at + warps * columns * 4;
  static constexpr unsigned part_bytes = 16 * block_threads;
  static constexpr unsigned v_at = k_at + Dim / 8 * part_bytes;
  static constexpr std::size_t shared_bytes() noexcept { return v_at + 4 * warps * part_bytes; }

  /// Item: (kv head and tile of columns, piece).
  __device__ void block(const Item& item) const {
    extern __shared__ __align__(128) std::byte memra_draft_shared[];
    std::byte* const shared = memra_draft_shared;
    const CudaDraftPieces pieces(d);
    const auto piece = static_cast<std::uint32_t>(item.y);
    if (piece >= pieces.n) return;
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

    fetch_k(at, step_at(0));
    fetch_v(at, step_at(0));
    prepare(at);
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
      copies_wait<1>();  // all but the values
      score(at, shared, s);
      const std::uint32_t next = i + 1 < n ? step_at(i + 1) : at.end;  // behind the last, zeros
      fetch_k(at, next);
      if (step < at.visible || step + step_keys > at.end) mask(at, pieces, step, s);
      store_maxima(at, shared, s);
      __syncthreads();
      weigh(at, shared, s, top, sum, o);
      barrier_publish();
      copies_wait<1>();  // all but the next keys
      __syncthreads();
#pragma unroll
      for (unsigned j = 0; j < warps; ++j) add(at, shared, j, o);
      group_wait_if();
      fetch_v(at, next);
    }
    finish(at, shared, piece, top, sum, o);
  }

 private:
  struct Place {
    unsigned warp, lane, g, t;
    unsigned heads, kv_head, first_column, n_columns;
    std::uint32_t shared;
    std::uint32_t base, from, end;  ///< stream rows: of the planes' first; [from, end) is read, others are zeros
    std::uint32_t visible;          ///< every query sees [visible, end)
  };
  /// Two numbers as a sum of two bf16 each.
  struct Halves {
    std::uint32_t high, low;
    __device__ Halves(float x, float y) : high(pack_halves<true>(x, y)) {
      low = pack_halves<true>(__fsub_rn(x, __uint_as_float(high << 16)),
                              __fsub_rn(y, __uint_as_float(high & 0xFFFF0000U)));
    }
  };

  __device__ static float4 load(const float* p, bool valid) {
    float4 x;
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\nmov.f32 %0, 0f00000000;\nmov.f32 %1, 0f00000000;\n"
        "mov.f32 %2, 0f00000000;\nmov.f32 %3, 0f00000000;\n@p ld.global.L1::no_allocate.v4.f32 {%0,%1,%2,%3}, [%4];\n}"
        : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
        : "l"(p), "r"(valid ? 1 : 0)
        : "memory");
    return x;
  }
  __device__ const float* row(const Place& at, const float* plane, std::uint32_t key, bool valid) const {
    const std::uint32_t width = static_cast<std::uint32_t>(d.n_kv) * Dim;
    return plane + std::uint64_t{valid ? key - at.base : 0} * width + at.kv_head * Dim;
  }
  __device__ void fetch(const Place& at, std::uint32_t to, const float* from, bool valid) const {
    copy_16_async(at.shared + to + threadIdx.x * 16, reinterpret_cast<const std::byte*>(from), valid);
  }
  /// Of the warp's keys the lane's two, of each 16 dimensions its four.
  __device__ void fetch_k(const Place& at, std::uint32_t first) const {
#pragma unroll
    for (unsigned j = 0; j < 2; ++j) {
      const std::uint32_t key = first + 16 * at.warp + at.g + 8 * j;
      const bool valid = key >= at.from && key < at.end;
      const float* const from = row(at, d.k, key, valid) + 4 * at.t;
#pragma unroll
      for (unsigned i = 0; i < Dim / 16; ++i) fetch(at, k_at + (2 * i + j) * part_bytes, from + 16 * i, valid);
    }
    copies_commit();
  }
  /// Of each 16 keys the lane's four, as the products take them: 2 t, 2 t + 1, 2 t + 8, 2 t + 9.
  __device__ void fetch_v(const Place& at, std::uint32_t first) const {
#pragma unroll
    for (unsigned j = 0; j < 4 * warps; ++j) {
      const std::uint32_t key = first + j / 4 * 16 + 2 * at.t + j % 2 + j % 4 / 2 * 8;
      const bool valid = key >= at.from && key < at.end;
      fetch(at, v_at + j * part_bytes, row(at, d.v, key, valid) + 32 * at.warp + 4 * at.g, valid);
    }
    copies_commit();
  }
  __device__ static float4 own(const std::byte* shared, unsigned at) {
    return reinterpret_cast<const float4*>(shared + at)[threadIdx.x];
  }

  __device__ std::size_t query(const Place& at, unsigned column) const {
    return std::size_t{column / at.heads} * a.n_heads + at.kv_head * at.heads + column % at.heads;
  }

  /// q, scaled, into shared memory.
  __device__ void prepare(const Place& at) const {
    const float scale = __fmul_rn(a.scale, 1.44269504F);  // log2 e: weights are powers of two
    constexpr unsigned tiles = Tiles / warps;             // of a warp
    float4 x[tiles][Dim / 16];
#pragma unroll
    for (unsigned i = 0; i < tiles; ++i) {
      const unsigned column = at.first_column + (i * warps + at.warp) * 8 + at.g;
      const bool valid = column < at.n_columns;
      const float* const from = a.q + (valid ? query(at, column) : 0) * Dim + 4 * at.t;
#pragma unroll
      for (unsigned j = 0; j < Dim / 16; ++j) x[i][j] = load(from + 16 * j, valid);
    }
#pragma unroll
    for (unsigned i = 0; i < tiles * Dim / 16; ++i) {
      const float4 own = x[i % tiles][i / tiles];
      const Halves xy(__fmul_rn(own.x, scale), __fmul_rn(own.y, scale));
      const Halves zw(__fmul_rn(own.z, scale), __fmul_rn(own.w, scale));
      const std::uint32_t to = at.shared + (i * warps + at.warp) * 256 + at.lane * 4;
      store_shared(to, xy.high);
      store_shared(to + 128, zw.high);
      store_shared(to + q_bytes, xy.low);
      store_shared(to + q_bytes + 128, zw.low);
    }
  }

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
  /// multiplied the next are split.
  __device__ static void score(const Place& at, const std::byte* shared, float (&s)[Tiles][4]) {
    using At = AttendOperand<group>;
    const std::uint32_t q = At(at.shared, at.lane).at;
    Operand x[2];
#pragma unroll
    for (unsigned i = 0; i < 4 * Tiles; ++i) s[i / 4][i % 4] = 0.0F;
#pragma unroll
    for (unsigned i = 0; i < Dim / 16; ++i) {
      const float4 k = own(shared, k_at + 2 * i * part_bytes);
      const float4 l = own(shared, k_at + (2 * i + 1) * part_bytes);
      x[i % 2].set(0, k.x, k.y);
      x[i % 2].set(1, l.x, l.y);
      x[i % 2].set(2, k.z, k.w);
      x[i % 2].set(3, l.z, l.w);
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
    const std::uint32_t to = at.shared + weights_at + at.warp * Tiles * 256;
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
      float2 now = {top[i][0], top[i][1]};
#pragma unroll
      for (unsigned w = 0; w < warps; ++w) {
        const float2 x = maxima[(w * Tiles + i) * 4];
        now = {fmaxf(now.x, x.x), fmaxf(now.y, x.y)};
      }
      if (now.x != top[i][0]) raise<0>(i, now.x, top, sum, o);
      if (now.y != top[i][1]) raise<1>(i, now.y, top, sum, o);
      // While nothing was seen there is no maximum to take away: weights are 0.
      if (now.x == -INFINITY) now.x = 0.0F;
      if (now.y == -INFINITY) now.y = 0.0F;
      const float p[4] = {exp2_fast(__fsub_rn(s[i][0], now.x)), exp2_fast(__fsub_rn(s[i][1], now.y)),
                          exp2_fast(__fsub_rn(s[i][2], now.x)), exp2_fast(__fsub_rn(s[i][3], now.y))};
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

  /// o += V^T times weights for 16 keys. Lane 4 g + t: elements 4 g to 4 g + 3 of the warp's 32 as rows g and g + 8 of
  /// two products, columns 2 t and 2 t + 1 of each eight.
  __device__ static void add(const Place& at, const std::byte* shared, unsigned keys, float (&o)[2][Tiles][4]) {
    using At = AttendOperand<group>;
    const std::uint32_t w = At(at.shared + weights_at, at.lane).at + At::step(keys * Tiles * 256);
    float4 v[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) v[i] = own(shared, v_at + (4 * keys + i) * part_bytes);
    Operand x[2];
    x[0].set(0, v[0].x, v[1].x);
    x[0].set(1, v[0].y, v[1].y);
    x[0].set(2, v[2].x, v[3].x);
    x[0].set(3, v[2].y, v[3].y);
    x[1].set(0, v[0].z, v[1].z);
    x[1].set(1, v[0].w, v[1].w);
    x[1].set(2, v[2].z, v[3].z);
    x[1].set(3, v[2].w, v[3].w);
    if (keys != 0) group_wait_if();
    group_begin_if();
    multiply_both(o[0], x[0], w, w + At::step(weights_bytes));
    multiply_both(o[1], x[1], w, w + At::step(weights_bytes));
    group_commit_if();
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

/// Folds the pieces of a row and head, ascending. Item: (head, row); one thread per output element.
template <unsigned Dim>
struct CudaDraftFold {
  static constexpr unsigned block_threads = Dim;
  static constexpr unsigned stride = CudaDraftTile<Dim, 4>::stride;

  DraftView d;
  DraftAttendArgs a;
  const float* partials;
  unsigned slots;

  __device__ void block(const Item& item) const {
    const std::size_t query = item.y * a.n_heads + item.x;
    const CudaDraftPieces pieces(d);
    const float* const at = partials + query * slots * stride;
    __shared__ float2 weights[draft_pieces_bound + 1];  // and sums
    for (unsigned i = threadIdx.x; i < pieces.n; i += Dim)
      weights[i] = {at[i * stride + Dim], at[i * stride + Dim + 1]};
    __syncthreads();
    float top = -INFINITY;
    for (unsigned i = 0; i < pieces.n; ++i) top = fmaxf(top, weights[i].x);
    float l = 0.0F;
    float o = 0.0F;
#pragma unroll 16
    for (unsigned i = 0; i < pieces.n; ++i) {
      const float c = exp2_fast(__fsub_rn(weights[i].x, top));
      l = __fmaf_rn(weights[i].y, c, l);
      o = __fmaf_rn(at[i * stride + threadIdx.x], c, o);
    }
    a.out[query * Dim + threadIdx.x] = pieces.n == 0 ? 0.0F : o / l;
  }
};

}  // namespace memra::detail
