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
/// of log decays, which are kept in f64: what came before costs no digit. The inverse is made in f32: the two diagonal
/// blocks of 32 by substitution, a thread per column, and from them the block below.
template <unsigned DK>
struct CudaFactorsBody {
  static constexpr unsigned block_threads = 256;
  static constexpr unsigned least_blocks = 2;
  static constexpr unsigned together = 3;  ///< value heads at a time
  static constexpr unsigned pitch = 68;    ///< floats of a row of A: rows of float4, neighbours in other banks

  RecurView r;
  CudaChunkInputs in;
  ChunkGroup group;
  float* factors;

  /// Per value head A, which T replaces, and a block of 32 rows between.
  static constexpr unsigned head_bytes = (64 + 32) * pitch * sizeof(float);
  /// Halves of q and k, later what is made of them: whichever is more.
  static constexpr unsigned area =
      4 * ScanTile<DK>::bytes > together* head_bytes ? 4 * ScanTile<DK>::bytes : together* head_bytes;

  static std::size_t shared_bytes() noexcept { return area + together * 64 * (sizeof(double) + sizeof(float)); }

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

    // Rows [16 part, 16 part + 16), columns up to the diagonal.
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
        if (c > part) continue;
        std::uint32_t high[4];
        std::uint32_t low[4];
        ScanTile<DK>::load_b(k_high, c, step, lane, high);
        ScanTile<DK>::load_b(k_low, c, step, lane, low);
        scan_multiply(y[2 * c], y[2 * c + 1], left, high, low);
      }
    }

    const std::uint32_t to_next = in.heads.grouped ? 1 : in.heads.all_k;
    while (h < r.n_v_heads && in.heads.of(h) == kh) {
      unsigned count = 1;
      while (count < together && h + count * to_next < r.n_v_heads && in.heads.of(h + count * to_next) == kh) ++count;
      some_heads(memory, chunk, h, to_next, count, y);
      h += count * to_next;
    }
  }

 private:
  static constexpr float log2_e = 1.44269504F;
  struct Chunk {
    std::size_t first;
    unsigned n;
    std::size_t index;
  };

  /// Value heads h, h + to_next, ...: `count` of them.
  __device__ void some_heads(std::byte* memory, const Chunk& chunk, std::uint32_t h, std::uint32_t to_next,
                             unsigned count, const float (&y)[8][4]) const {
    auto* const all_sums = reinterpret_cast<double*>(memory + area);
    auto* const rates = reinterpret_cast<float*>(all_sums + together * 64);
    auto* const a = reinterpret_cast<float*>(memory);
    constexpr unsigned head = head_bytes / sizeof(float);
    const unsigned thread = threadIdx.x;
    const unsigned lane = thread % 32;
    const unsigned warp = thread / 32;
    __syncthreads();  // q, k or the heads before are done with
    if (warp < count) add_up(all_sums + 64 * warp, chunk, h + warp * to_next, lane);
    if (thread < 64 * count) {
      const unsigned i = thread % 64;
      rates[thread] = i < chunk.n ? in.a.beta[(chunk.first + i) * r.n_v_heads + h + thread / 64 * to_next] : 0.0F;
    }
    __syncthreads();

    const unsigned part = warp % 4;
    const bool keys = warp < 4;
    for (unsigned m = 0; m < count; ++m) {
      std::byte* const out = CudaChunkFactors::of(factors, chunk.index, h + m * to_next, r.n_v_heads);
      const double* const sums = all_sums + 64 * m;
#pragma unroll
      for (unsigned c = 0; c < 8; ++c) {
        if (keys && c > 2 * part + 1) continue;  // of A nothing else is read
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
          const unsigned i = 16 * part + 8 * half + lane / 4;
          const unsigned j = 8 * c + 2 * (lane % 4);
          float z[2];
#pragma unroll
          for (unsigned e = 0; e < 2; ++e) {
            const double decay = sums[i] - sums[j + e];
            z[e] = j + e <= i ? y[c][2 * half + e] * exp2_fast(static_cast<float>(decay) * log2_e) : 0.0F;
          }
          if (!keys) {
            put(out + 2 * CudaChunkFactors::tile, i, j, z[0] * scan_down, z[1] * scan_down);  // one scan_up stays
            continue;
          }
          const float rate = rates[64 * m + i] * (scan_down * scan_down);
          float* const to = a + m * head + i * pitch + j;
          to[0] = j < i ? rate * z[0] : 0.0F;
          to[1] = j + 1 < i ? rate * z[1] : 0.0F;
        }
      }
    }
    __syncthreads();
    if (warp < 2 * count) substitute(a + warp / 2 * head + warp % 2 * (32 * pitch + 32), lane);
    __syncthreads();
    for (unsigned task = warp; task < 4 * count; task += 8) {
      float* const t = a + task / 4 * head;
      const unsigned row = task % 4 * 8;
      times(t + (32 + row) * pitch, t + lane, t + (64 + row) * pitch + lane, 1.0F);
    }
    __syncthreads();
    for (unsigned task = warp; task < 4 * count; task += 8) {
      float* const t = a + task / 4 * head;
      const unsigned row = task % 4 * 8;
      times(t + (32 + row) * pitch + 32, t + 64 * pitch + lane, t + (32 + row) * pitch + lane, -1.0F);
    }
    __syncthreads();
    for (unsigned m = 0; m < count; ++m) {
      std::byte* const out = CudaChunkFactors::of(factors, chunk.index, h + m * to_next, r.n_v_heads);
      const float* const t = a + m * head;
      const float* const rate = rates + 64 * m;
      const double* const sums = all_sums + 64 * m;
      for (unsigned at = thread; at < 64 * 32; at += block_threads) {
        const unsigned i = at / 32;
        const unsigned j = 2 * (at % 32);
        put(out, i, j, j > i ? 0.0F : t[i * pitch + j] * rate[j] * scan_up,
            j + 1 > i ? 0.0F : t[i * pitch + j + 1] * rate[j + 1] * scan_up);
      }
      if (thread >= 128) continue;
      const double sum = thread < 64 ? sums[thread] : sums[63] - sums[thread - 64];
      reinterpret_cast<float*>(out + CudaChunkFactors::matrix_bytes)[thread] =
          exp2_fast(static_cast<float>(sum) * log2_e);
    }
  }

  /// Log decays from the chunk's start to behind each token. The lowest e^x that is not 0 is far above the bound.
  __device__ void add_up(double* sums, const Chunk& chunk, std::uint32_t h, unsigned lane) const {
    const auto log_decay = [&](unsigned i) {
      const float g = i < chunk.n ? in.a.g[(chunk.first + i) * r.n_v_heads + h] : 0.0F;
      return static_cast<double>(g < -1e4F ? -1e4F : g);
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

  /// Elements j and j + 1 of row i, of a matrix that is kept high half, low half.
  __device__ static void put(std::byte* to, unsigned i, unsigned j, float x, float y) {
    const ScanHalves both(x, y);
    const unsigned offset = ScanTile<64>::at(i, j / 8) + j % 8 * 2;
    *reinterpret_cast<std::uint32_t*>(to + offset) = both.high;
    *reinterpret_cast<std::uint32_t*>(to + CudaChunkFactors::tile + offset) = both.low;
  }

  /// A block of 32 by 32 below the diagonal, a, becomes (I + a)^-1. By one warp, a lane per column.
  __device__ static void substitute(float* a, unsigned column) {
    float y[32];
#pragma unroll
    for (unsigned i = 0; i < 32; ++i) {
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
    for (unsigned i = 0; i < 32; ++i) a[i * pitch + column] = y[i];
  }
  /// Eight rows of a product of blocks of 32: of `left` those rows, of `right` the lane's column.
  __device__ static void times(const float* left, const float* right, float* to, float sign) {
    float sum[8] = {};
#pragma unroll 2
    for (unsigned m = 0; m < 32; m += 4) {
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
