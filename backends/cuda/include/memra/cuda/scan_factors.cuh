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

/// One block of eight warps per chunk and value head: four make k k^T and its inverse, four q k^T.
///
/// k k^T and q k^T come from tensor cores in three terms. The decay between two tokens is e to the difference of two
/// sums of log decays, which are kept in f64: what came before costs no digit. The inverse is made in f32: the two
/// diagonal blocks of 32 by substitution, a thread per column, and from them the block below.
template <unsigned DK>
struct CudaFactorsBody {
  static constexpr unsigned block_threads = 256;
  static constexpr unsigned least_blocks = 3;
  static constexpr unsigned pitch = 68;  ///< floats of a row of A and T: rows of float4, neighbours in other banks

  RecurView r;
  CudaChunkInputs in;
  ChunkGroup group;
  float* factors;

  /// Halves of q and k, later A, T and what is between: whichever is more.
  static constexpr unsigned area = 4 * ScanTile<DK>::bytes > 160 * pitch * sizeof(float) ? 4 * ScanTile<DK>::bytes
                                                                                         : 160 * pitch * sizeof(float);

  static std::size_t shared_bytes() noexcept { return area + 64 * (sizeof(double) + sizeof(float)); }

  /// Item: (chunk of the group, value head).
  __device__ void block(const Item& item) const {
    extern __shared__ __align__(1024) std::byte memory[];
    constexpr unsigned tile = ScanTile<DK>::bytes;
    auto* const sums = reinterpret_cast<double*>(memory + area);
    auto* const beta = reinterpret_cast<float*>(sums + 64);
    const unsigned thread = threadIdx.x;
    const unsigned lane = thread % 32;
    const unsigned warp = thread / 32;
    const auto h = static_cast<std::uint32_t>(item.y);
    const std::size_t first = (group.first + item.x) * scan_chunk;
    const auto n = static_cast<unsigned>(group.tokens(item.x, r.rows));
    const std::uint32_t kh = in.heads.of(h);
    const std::uint32_t base = shared_address(memory);
    const std::uint32_t k_high = base, k_low = base + tile, q_high = base + 2 * tile, q_low = base + 3 * tile;
    {
      ScanRows<DK, block_threads> k;
      ScanRows<DK, block_threads> q;
      k.fetch(in.a.k + first * in.a.k_stride + kh * DK, in.a.k_stride, n, in.wide, thread);
      q.fetch(in.a.q + first * in.a.q_stride + kh * DK, in.a.q_stride, n, in.wide, thread);
      if (warp == 0) add_up(sums, first, h, n, lane);
      if (warp == 1 || warp == 2) {
        const unsigned i = thread - 32;
        beta[i] = i < n ? in.a.beta[(first + i) * r.n_v_heads + h] : 0.0F;
      }
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
    __syncthreads();  // q and k are done with: A and T take their place

    auto* const a = reinterpret_cast<float*>(memory);
    float* const t = a + 64 * pitch;
    float* const x = t + 64 * pitch;
    std::byte* const out = CudaChunkFactors::of(factors, item.x, h, r.n_v_heads);
    const bool live = r.fits();
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
          // One scan_up stays.
          if (live) put(out + 2 * CudaChunkFactors::tile, i, j, z[0] * scan_down, z[1] * scan_down);
          continue;
        }
        const float rate = beta[i] * (scan_down * scan_down);
        a[i * pitch + j] = j < i ? rate * z[0] : 0.0F;
        a[i * pitch + j + 1] = j + 1 < i ? rate * z[1] : 0.0F;
      }
    }
    if (!keys) return;
    meet();
    invert(a, t, x, thread);
    if (!live) return;
    for (unsigned at = thread; at < 64 * 32; at += 128) {
      const unsigned i = at / 32;
      const unsigned j = 2 * (at % 32);
      put(out, i, j, t[i * pitch + j] * beta[j] * scan_up, t[i * pitch + j + 1] * beta[j + 1] * scan_up);
    }
    auto* const decays = reinterpret_cast<float*>(out + CudaChunkFactors::matrix_bytes);
    const unsigned i = thread % 64;
    decays[thread] = exp2_fast(static_cast<float>(thread < 64 ? sums[i] : sums[63] - sums[i]) * log2_e);
  }

 private:
  static constexpr float log2_e = 1.44269504F;

  /// The four warps that are left wait for each other.
  __device__ static void meet() {
    asm volatile("bar.sync 1, 128;" : : : "memory");
  }

  /// Log decays from the chunk's start to behind each token. The lowest e^x that is not 0 is far above the bound.
  __device__ void add_up(double* sums, std::size_t first, std::uint32_t h, unsigned n, unsigned lane) const {
    const auto log_decay = [&](unsigned i) {
      const float g = i < n ? in.a.g[(first + i) * r.n_v_heads + h] : 0.0F;
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

  /// t = (I + a)^-1, a being below the diagonal. x: 32 rows of scratch. All four warps take part.
  __device__ static void invert(const float* a, float* t, float* x, unsigned thread) {
    const unsigned column = thread % 32;
    if (thread < 64) {
      const unsigned corner = thread / 32 * 32;
      const float* const block = a + corner * pitch + corner;
      float y[32];
#pragma unroll
      for (unsigned i = 0; i < 32; ++i) {
        float sum[4] = {};
#pragma unroll
        for (unsigned m = 0; m < i; m += 4) {
          const float4 row = *reinterpret_cast<const float4*>(block + i * pitch + m);
          sum[0] = fmaf(row.x, y[m], sum[0]);
          if (m + 1 < i) sum[1] = fmaf(row.y, y[m + 1], sum[1]);
          if (m + 2 < i) sum[2] = fmaf(row.z, y[m + 2], sum[2]);
          if (m + 3 < i) sum[3] = fmaf(row.w, y[m + 3], sum[3]);
        }
        y[i] = (i == column ? 1.0F : 0.0F) - ((sum[0] + sum[1]) + (sum[2] + sum[3]));
        t[(corner + i) * pitch + corner + column] = y[i];
      }
    } else {
      for (unsigned i = (thread - 64) / 32; i < 32; i += 2) t[i * pitch + 32 + column] = 0.0F;
    }
    meet();
    const unsigned row = thread / 32 * 8;
    times(a + (32 + row) * pitch, t + column, x + row * pitch + column, 1.0F);
    meet();
    times(t + (32 + row) * pitch + 32, x + column, t + (32 + row) * pitch + column, -1.0F);
    meet();
  }
  /// Eight rows of a product of blocks of 32: of `left` the thread's rows, of `right` its column.
  __device__ static void times(const float* left, const float* right, float* to, float sign) {
    float sum[8] = {};
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
