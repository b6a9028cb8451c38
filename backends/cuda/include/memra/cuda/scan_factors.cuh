// The chunked scan on CUDA, first half: the factors of a group's chunks, which do not depend on the state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/cuda/scan.cuh>
#include <memra/cuda/scan_halves.cuh>
#include <memra/detail/chunk_scan.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// Factors of one chunk and value head as the second half wants them: T = (I + A)^-1 with beta_j in column j, and P
/// (see ChunkScanBody), as halves times scan_up, in the order of ScanTile<64>; E and F.
struct CudaChunkFactors {
  static constexpr unsigned tile = ScanTile<64>::bytes;
  static constexpr unsigned matrix_bytes = 4 * tile;  ///< T high, T low, P high, P low
  static constexpr unsigned bytes = matrix_bytes + 2 * 64 * sizeof(float);
  static_assert(bytes == scan_chunk_bytes);

  __device__ static std::byte* of(float* factors, std::size_t chunk, std::size_t h, std::size_t n_v) {
    return reinterpret_cast<std::byte*>(factors) + (chunk * n_v + h) * bytes;
  }
};

/// Where a chunk's q and k are, and that they may be read 16 bytes at a time. The numbers do not depend on that.
struct CudaChunkInputs {
  ScanArgs a;
  CudaKeyHeads heads;
  bool wide;

  CudaChunkInputs(const RecurView& r, const ScanArgs& args) noexcept : a(args), heads(r) {
    const auto bits = reinterpret_cast<std::uintptr_t>(a.q) | reinterpret_cast<std::uintptr_t>(a.k) |
                      (a.q_stride | a.k_stride) * sizeof(float);
    wide = bits % sizeof(float4) == 0;
  }
};

/// One block of eight warps per chunk and key head, for all value heads that read it: four make k k^T, four q k^T.
///
/// The products come from tensor cores in three terms. The decay between two tokens is e to the difference of two sums
/// of log decays, which are kept in f64: what came before costs no digit. The inverse is made in f32: four diagonal
/// blocks of 16 by substitution, a lane per column, then the blocks below them, of 16 and at last of 32. Loops are kept
/// rolled: a block runs through its code once, and waits for every line of it.
template <unsigned DK, unsigned Together>
struct CudaFactorsBody {
  static constexpr unsigned block_threads = 256;
  static constexpr unsigned least_blocks = 2;
  static constexpr unsigned together = Together;  ///< value heads at a time: as shared memory has room for
  static constexpr unsigned pitch = 68;           ///< floats of a row of A: rows of float4, neighbours in other banks

  RecurView r;
  CudaChunkInputs in;
  ChunkGroup group;
  float* factors;

  /// Halves of q and k, later k k^T and q k^T; then per value head A, which T replaces, and a block of 32 rows between.
  static constexpr unsigned square = 64 * pitch;
  static constexpr unsigned head_floats = square + 32 * pitch;
  static constexpr unsigned halves = 4 * ScanTile<DK>::bytes / sizeof(float);
  static constexpr unsigned products = 2 * square;
  static constexpr unsigned floats =
      halves > products + together* head_floats ? halves : products + together* head_floats;

  static std::size_t shared_bytes() noexcept {
    return floats * sizeof(float) + together * 64 * (sizeof(double) + sizeof(float));
  }

  /// Item: (chunk of the group, value head). Of the heads that read a key head the first does the work.
  __device__ void block(const Item& item) const {
    extern __shared__ __align__(1024) std::byte memory[];
    auto h = static_cast<std::uint32_t>(item.y);
    if (!in.heads.reads_first(h) || !r.fits()) return;
    constexpr unsigned tile = ScanTile<DK>::bytes;
    const unsigned thread = threadIdx.x;
    const unsigned lane = thread % 32;
    const unsigned warp = thread / 32;
    const Chunk chunk{(group.first + item.x) * scan_chunk, static_cast<unsigned>(group.tokens(item.x, r.rows)), item.x};
    const std::uint32_t kh = in.heads.of(h);
    const std::uint32_t base = shared_address(memory);
    const std::uint32_t k_high = base, k_low = base + tile, q_high = base + 2 * tile, q_low = base + 3 * tile;
    {
      ScanRows<DK, block_threads> k;
      ScanRows<DK, block_threads> q;
      k.fetch(in.a.k + chunk.first * in.a.k_stride + kh * DK, in.a.k_stride, chunk.n, in.wide, thread);
      q.fetch(in.a.q + chunk.first * in.a.q_stride + kh * DK, in.a.q_stride, chunk.n, in.wide, thread);
      k.put(k_high, k_low, thread);
      q.put(q_high, q_low, thread);
    }
    __syncthreads();

    // Rows [16 part, 16 part + 16). Columns above the diagonal, too: nobody reads them, but a branch would cost more.
    const unsigned part = warp % 4;
    const bool keys = warp < 4;
    const std::uint32_t left_high = keys ? k_high : q_high;
    const std::uint32_t left_low = keys ? k_low : q_low;
    float y[8][4] = {};
#pragma unroll 2
    for (unsigned step = 0; step < DK / 16; ++step) {
      ScanA left;
      ScanTile<DK>::load_a(left_high, left_low, part, step, lane, left);
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) {
        std::uint32_t high[4];
        std::uint32_t low[4];
        ScanTile<DK>::load_b(k_high, c, step, lane, high);
        ScanTile<DK>::load_b(k_low, c, step, lane, low);
        scan_multiply(y[2 * c], y[2 * c + 1], left, high, low);
      }
    }

    __syncthreads();  // q and k are done with
    auto* const products = reinterpret_cast<float*>(memory);
    float* const mine = products + (keys ? 0 : square) + (16 * part + lane / 4) * pitch + 2 * (lane % 4);
#pragma unroll
    for (unsigned c = 0; c < 8; ++c) {
      *reinterpret_cast<float2*>(mine + 8 * c) = make_float2(y[c][0], y[c][1]);
      *reinterpret_cast<float2*>(mine + 8 * c + 8 * pitch) = make_float2(y[c][2], y[c][3]);
    }

    const std::uint32_t to_next = in.heads.grouped ? 1 : in.heads.all_k;
    while (h < r.n_v_heads && in.heads.of(h) == kh) {
      unsigned count = 1;
      while (count < together && h + count * to_next < r.n_v_heads && in.heads.of(h + count * to_next) == kh) ++count;
      some_heads(memory, chunk, h, to_next, count);
      h += count * to_next;
    }
  }

 private:
  struct Chunk {
    std::size_t first;
    unsigned n;
    std::size_t index;
  };

  /// Value heads h, h + to_next, ...: `count` of them.
  __device__ void some_heads(std::byte* memory, const Chunk& chunk, std::uint32_t h, std::uint32_t to_next,
                             unsigned count) const {
    auto* const kk = reinterpret_cast<float*>(memory);
    float* const heads = kk + products;
    auto* const all_sums = reinterpret_cast<double*>(kk + floats);
    auto* const rates = reinterpret_cast<float*>(all_sums + together * 64);
    const unsigned thread = threadIdx.x;
    const unsigned lane = thread % 32;
    const unsigned warp = thread / 32;
    if (warp < count) add_up(all_sums + 64 * warp, chunk, h + warp * to_next, lane);
    if (thread < 64 * count) {
      const unsigned i = thread % 64;
      rates[thread] = i < chunk.n ? in.a.beta[(chunk.first + i) * r.n_v_heads + h + thread / 64 * to_next] : 0.0F;
    }
    __syncthreads();
#pragma unroll 1
    for (unsigned m = 0; m < count; ++m) {
      const double* const sums = all_sums + 64 * m;
      std::byte* const out = CudaChunkFactors::of(factors, chunk.index, h + m * to_next, r.n_v_heads);
      float* const a = heads + m * head_floats;
      zero_above(out, thread);
      each_pair(warp, lane, [&](unsigned i, unsigned j) {
        const float2 k = *reinterpret_cast<const float2*>(kk + i * pitch + j);
        const float2 q = *reinterpret_cast<const float2*>(kk + square + i * pitch + j);
        const double2 from = *reinterpret_cast<const double2*>(sums + j);
        const double to = sums[i] - 8.0;  // times scan_down: of q k^T one scan_up stays
        const float x = j > i ? 0.0F : exp2_fast(static_cast<float>(to - from.x));
        const float y = j + 1 > i ? 0.0F : exp2_fast(static_cast<float>(to - from.y));
        put(out + 2 * CudaChunkFactors::tile, i, j, q.x * x, q.y * y);
        const float rate = rates[64 * m + i] * scan_down;
        *reinterpret_cast<float2*>(a + i * pitch + j) =
            make_float2(j < i ? rate * (k.x * x) : 0.0F, j + 1 < i ? rate * (k.y * y) : 0.0F);
      });
    }
    __syncthreads();
    if (warp < 2 * count) {
      const unsigned corner = warp % 2 * 32 + lane / 16 * 16;
      substitute(heads + warp / 2 * head_floats + corner * (pitch + 1), lane % 16);
    }
    __syncthreads();
    // Below two blocks of 16, a warp for each such pair; then below two of 32, a warp for every 8 rows.
    float* const pair = heads + warp / 2 * head_floats + warp % 2 * 32 * (pitch + 1);
    float* const between = heads + warp / 2 * head_floats + (64 + warp % 2 * 16) * pitch;
    const unsigned rows = lane / 16 * 8 * pitch;
    if (warp < 2 * count) times<16>(pair + 16 * pitch + rows, pair + lane % 16, between + rows + lane % 16, 1.0F);
    __syncwarp();
    if (warp < 2 * count) {
      times<16>(pair + 16 * (pitch + 1) + rows, between + lane % 16, pair + 16 * pitch + rows + lane % 16, -1.0F);
    }
    __syncthreads();
#pragma unroll 1
    for (unsigned task = warp; task < 4 * count; task += 8) {
      float* const t = heads + task / 4 * head_floats;
      const unsigned row = task % 4 * 8;
      times<32>(t + (32 + row) * pitch, t + lane, t + (64 + row) * pitch + lane, 1.0F);
    }
    __syncthreads();
#pragma unroll 1
    for (unsigned task = warp; task < 4 * count; task += 8) {
      float* const t = heads + task / 4 * head_floats;
      const unsigned row = task % 4 * 8;
      times<32>(t + (32 + row) * pitch + 32, t + 64 * pitch + lane, t + (32 + row) * pitch + lane, -1.0F);
    }
    __syncthreads();
#pragma unroll 1
    for (unsigned m = 0; m < count; ++m) {
      std::byte* const out = CudaChunkFactors::of(factors, chunk.index, h + m * to_next, r.n_v_heads);
      const float* const t = heads + m * head_floats;
      each_pair(warp, lane, [&](unsigned i, unsigned j) {
        const float2 y = *reinterpret_cast<const float2*>(t + i * pitch + j);
        const float2 rate = *reinterpret_cast<const float2*>(rates + 64 * m + j);
        // Below the diagonal and on it; beside it the substitution has left zeros.
        put(out, i, j, y.x * (rate.x * scan_up), y.y * (rate.y * scan_up));
      });
    }
#pragma unroll 1
    for (unsigned at = thread; at < 128 * count; at += block_threads) {
      const double* const sums = all_sums + at / 128 * 64;
      const double sum = at % 128 < 64 ? sums[at % 64] : sums[63] - sums[at % 64];
      std::byte* const out = CudaChunkFactors::of(factors, chunk.index, h + at / 128 * to_next, r.n_v_heads);
      reinterpret_cast<float*>(out + CudaChunkFactors::matrix_bytes)[at % 128] = exp2_fast(static_cast<float>(sum));
    }
    __syncthreads();  // the next heads take their place
  }

  /// Logarithms, to base 2, of the decays from the chunk's start to behind each token. The lowest that is not 0 is far
  /// above the bound.
  __device__ void add_up(double* sums, const Chunk& chunk, std::uint32_t h, unsigned lane) const {
    const auto log_decay = [&](unsigned i) {
      const float g = i < chunk.n ? in.a.g[(chunk.first + i) * r.n_v_heads + h] : 0.0F;
      return 1.4426950408889634 * static_cast<double>(g < -1e4F ? -1e4F : g);
    };
    const double even = log_decay(2 * lane);
    const double both = even + log_decay(2 * lane + 1);
    double upto = both;
    for (unsigned d = 1; d < 32; d *= 2) {
      const double other = __shfl_up_sync(0xffffffffU, upto, d);
      if (lane >= d) upto += other;
    }
    sums[2 * lane + 1] = upto;
    sums[2 * lane] = upto - both + even;
  }

  /// f(i, j) for all pairs of columns j, j + 1 of rows i but those of the upper right block of 32, which is zero.
  template <class F>
  __device__ static void each_pair(unsigned warp, unsigned lane, const F& f) {
#pragma unroll
    for (unsigned i = 0; i < 32; i += 16) f(i + 2 * warp + lane / 16, lane % 16 * 2);
#pragma unroll
    for (unsigned i = 32; i < 64; i += 8) f(i + warp, 2 * lane);
  }
  /// That block, of T and P, high halves and low ones.
  __device__ static void zero_above(std::byte* to, unsigned thread) {
    const unsigned offset = ScanTile<64>::at(thread % 32, 4 + thread / 32 % 4) + thread / 128 * CudaChunkFactors::tile;
#pragma unroll
    for (unsigned i = 0; i < 2; ++i) {
      *reinterpret_cast<uint4*>(to + 2 * i * CudaChunkFactors::tile + offset) = make_uint4(0, 0, 0, 0);
    }
  }

  /// Elements j and j + 1 of row i, of a matrix that is kept high half, low half.
  __device__ static void put(std::byte* to, unsigned i, unsigned j, float x, float y) {
    const ScanHalves both(x, y);
    const unsigned offset = ScanTile<64>::at(i, j / 8) + j % 8 * 2;
    *reinterpret_cast<std::uint32_t*>(to + offset) = both.high;
    *reinterpret_cast<std::uint32_t*>(to + CudaChunkFactors::tile + offset) = both.low;
  }

  /// A block of 16 by 16 below the diagonal, a, becomes (I + a)^-1. By half a warp, a lane per column.
  __device__ static void substitute(float* a, unsigned column) {
    float y[16];
#pragma unroll
    for (unsigned i = 0; i < 16; ++i) {
      float sum[4] = {};
#pragma unroll
      for (unsigned m = 0; m < i; m += 4) {
        const float4 row = *reinterpret_cast<const float4*>(a + i * pitch + m);
        sum[0] = fmaf(row.x, y[m], sum[0]);
        if (m + 1 < i) sum[1] = fmaf(row.y, y[m + 1], sum[1]);
        if (m + 2 < i) sum[2] = fmaf(row.z, y[m + 2], sum[2]);
        if (m + 3 < i) sum[3] = fmaf(row.w, y[m + 3], sum[3]);
      }
      y[i] = (i == column ? 1.0F : 0.0F) - ((sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
    __syncwarp();
#pragma unroll
    for (unsigned i = 0; i < 16; ++i) a[i * pitch + column] = y[i];
  }
  /// Eight rows of a product of blocks of N: of `left` those rows, of `right` the lane's column.
  template <unsigned N>
  __device__ static void times(const float* left, const float* right, float* to, float sign) {
    float sum[8] = {};
#pragma unroll 2
    for (unsigned m = 0; m < N; m += 4) {
      float y[4];
#pragma unroll
      for (unsigned e = 0; e < 4; ++e) y[e] = right[(m + e) * pitch];
#pragma unroll
      for (unsigned i = 0; i < 8; ++i) {
        const float4 x = *reinterpret_cast<const float4*>(left + i * pitch + m);
        sum[i] = fmaf(x.w, y[3], fmaf(x.z, y[2], fmaf(x.y, y[1], fmaf(x.x, y[0], sum[i]))));
      }
    }
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) to[i * pitch] = sign * sum[i];
  }
};

}  // namespace memra::detail
