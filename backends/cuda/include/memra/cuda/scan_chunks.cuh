// The chunked scan on CUDA, second half: the state goes through a group's chunks, in registers.
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memra/cuda/scan_factors.cuh>
#include <memra/cuda/scan_halves.cuh>
#include <memra/detail/chunk_scan.hpp>
#include <memra/error.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// One block per value head and 64 columns of S: four warps of which each owns 16 columns, and four that bring the next
/// chunk to shared memory meanwhile.
///
/// A warp keeps its columns as the sums of matrix instructions, 16 columns by d_k: the layout of a sum is that of an
/// operand A, so every product of a chunk (S k, S q, T r, P u, u k^T; see ChunkScanBody) goes from registers to
/// registers, and only what all columns share comes from shared memory. Warps never wait for each other but for the
/// next chunk. Operands of the state's side are scaled by a power of two per column (ScanScale), so that the error is
/// that of the column's largest number, whatever its size.
template <unsigned DK, unsigned Stages>
struct CudaChunksBody {
  static constexpr unsigned block_threads = 256;
  static constexpr unsigned block_columns = 64;
  static constexpr unsigned tile = ScanTile<DK>::bytes;
  static constexpr unsigned stage_bytes = 4 * tile + CudaChunkFactors::bytes;
  static constexpr unsigned tiles = DK / 8;  ///< of a warp's S

  RecurView r;
  CudaChunkInputs in;
  ChunkGroup group;
  float* factors;
  float inv;  ///< 1 / sqrt(d_k)

  CudaChunksBody(const RecurView& view, const CudaChunkInputs& inputs, const ChunkGroup& g, float* at) noexcept
      : r(view), in(inputs), group(g), factors(at), inv(1.0F / std::sqrt(static_cast<float>(DK))) {}

  static std::size_t shared_bytes() noexcept { return Stages * stage_bytes; }

  /// Item: (64 columns, value head).
  __device__ void block(const Item& item) const {
    extern __shared__ __align__(128) std::byte memory[];
    if (!r.fits()) return;
    Warp w;
    w.lane = threadIdx.x % 32;
    w.h = static_cast<std::uint32_t>(item.y);
    const unsigned warp = threadIdx.x / 32;
    w.column = static_cast<std::uint32_t>(item.x) * block_columns + warp % 4 * 16 + w.lane / 4;
    const bool brings = warp >= 4;
    const bool works = !brings && w.column < r.d_v;  // all lanes of a warp alike: d_v is a multiple of 16
    const std::uint32_t base = shared_address(memory);
    float s[tiles][4];
    float* const state = r.ssm + (std::size_t{w.h} * r.d_v + w.column) * DK + 2 * (w.lane % 4);
    if (works) {
#pragma unroll
      for (unsigned n = 0; n < tiles; ++n) {
        s[n][0] = state[8 * n];
        s[n][1] = state[8 * n + 1];
        s[n][2] = state[8 * DK + 8 * n];
        s[n][3] = state[8 * DK + 8 * n + 1];
      }
    }
    if (brings) bring(base, 0, w.h);
    __syncthreads();
    for (unsigned chunk = 0; chunk < group.count; ++chunk) {
      const std::uint32_t here = base + chunk % Stages * stage_bytes;
      if (brings && Stages > 1 && chunk + 1 < group.count)
        bring(base + (chunk + 1) % Stages * stage_bytes, chunk + 1, w.h);
      if (works) go_through(w, s, here, memory + chunk % Stages * stage_bytes, chunk);
      __syncthreads();
      if (Stages == 1) {
        if (brings && chunk + 1 < group.count) bring(base, chunk + 1, w.h);
        __syncthreads();
      }
    }
    if (!works) return;
#pragma unroll
    for (unsigned n = 0; n < tiles; ++n) {
      state[8 * n] = s[n][0];
      state[8 * n + 1] = s[n][1];
      state[8 * DK + 8 * n] = s[n][2];
      state[8 * DK + 8 * n + 1] = s[n][3];
    }
  }

 private:
  struct Warp {
    std::uint32_t lane, h, column;
  };

  __device__ void bring(std::uint32_t to, unsigned chunk, std::uint32_t h) const {
    const unsigned thread = threadIdx.x - 128;
    const std::byte* const from = CudaChunkFactors::of(factors, chunk, h, r.n_v_heads);
    for (unsigned i = thread * 16; i < CudaChunkFactors::bytes; i += 128 * 16) {
      copy_16_async(to + 4 * tile + i, from + i, true);
    }
    copies_commit();
    const std::size_t first = (group.first + chunk) * scan_chunk;
    const auto n = static_cast<unsigned>(group.tokens(chunk, r.rows));
    const std::uint32_t kh = in.heads.of(h);
    scan_bring<DK, 128>(to, to + tile, in.a.k + first * in.a.k_stride + kh * DK, in.a.k_stride, n, in.wide, thread);
    scan_bring<DK, 128>(to + 2 * tile, to + 3 * tile, in.a.q + first * in.a.q_stride + kh * DK, in.a.q_stride, n,
                        in.wide, thread);
    copies_wait<0>();
  }

  /// Operand A's scales of the lane's two rows.
  template <unsigned N>
  __device__ static void scales(const float (&x)[N][4], ScanScale& low, ScanScale& high) {
    float a = 0.0F;
    float b = 0.0F;
#pragma unroll
    for (unsigned n = 0; n < N; ++n) {
      a = fmaxf(a, fmaxf(fabsf(x[n][0]), fabsf(x[n][1])));
      b = fmaxf(b, fmaxf(fabsf(x[n][2]), fabsf(x[n][3])));
    }
    low = ScanScale(scan_row_max(a));
    high = ScanScale(scan_row_max(b));
  }

  /// y = x * M^T of tokens, M being below or on the diagonal: 64 x 64 as halves at `matrix`.
  __device__ static void times_lower(float (&y)[8][4], const float (&x)[8][4], std::uint32_t matrix, unsigned lane) {
    ScanScale low(1.0F);
    ScanScale high(1.0F);
    scales(x, low, high);
#pragma unroll
    for (unsigned n = 0; n < 8; ++n) y[n][0] = y[n][1] = y[n][2] = y[n][3] = 0.0F;
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      const ScanA a(x[2 * k], x[2 * k + 1], low.up, high.up);
#pragma unroll
      for (unsigned n = k; n < 4; ++n) {
        std::uint32_t b_high[4];
        std::uint32_t b_low[4];
        ScanTile<64>::load_b(matrix, n, k, lane, b_high);
        ScanTile<64>::load_b(matrix + CudaChunkFactors::tile, n, k, lane, b_low);
        scan_multiply(y[2 * n], y[2 * n + 1], a, b_high, b_low);
      }
    }
#pragma unroll
    for (unsigned n = 0; n < 8; ++n) {
      y[n][0] *= low.down * scan_down;
      y[n][1] *= low.down * scan_down;
      y[n][2] *= high.down * scan_down;
      y[n][3] *= high.down * scan_down;
    }
  }

  __device__ void go_through(const Warp& w, float (&s)[tiles][4], std::uint32_t here, const std::byte* memory,
                             unsigned chunk) const {
    const unsigned lane = w.lane;
    const std::size_t first = (group.first + chunk) * scan_chunk;
    const auto n_tokens = static_cast<unsigned>(group.tokens(chunk, r.rows));
    const auto* const e = reinterpret_cast<const float*>(memory + 4 * tile + CudaChunkFactors::matrix_bytes);
    const float* const f = e + 64;
    // v, early: it is needed after the first products.
    float x[8][4];
    const float* const v = in.a.v + first * in.a.v_stride + std::size_t{w.h} * r.d_v + w.column;
#pragma unroll
    for (unsigned n = 0; n < 8; ++n) {
#pragma unroll
      for (unsigned i = 0; i < 2; ++i) {
        const unsigned t = 8 * n + 2 * (lane % 4) + i;
        x[n][i] = t < n_tokens ? v[t * in.a.v_stride] : 0.0F;
        x[n][i + 2] = t < n_tokens ? v[t * in.a.v_stride + 8] : 0.0F;
      }
    }

    float sk[8][4] = {};
    float sq[8][4] = {};
    {
      ScanScale low(1.0F);
      ScanScale high(1.0F);
      scales(s, low, high);
#pragma unroll
      for (unsigned k = 0; k < tiles / 2; ++k) {
        const ScanA a(s[2 * k], s[2 * k + 1], low.up, high.up);
#pragma unroll
        for (unsigned n = 0; n < 4; ++n) {
          std::uint32_t b_high[4];
          std::uint32_t b_low[4];
          ScanTile<DK>::load_b(here, n, k, lane, b_high);
          ScanTile<DK>::load_b(here + tile, n, k, lane, b_low);
          scan_multiply(sk[2 * n], sk[2 * n + 1], a, b_high, b_low);
          ScanTile<DK>::load_b(here + 2 * tile, n, k, lane, b_high);
          ScanTile<DK>::load_b(here + 3 * tile, n, k, lane, b_low);
          scan_multiply(sq[2 * n], sq[2 * n + 1], a, b_high, b_low);
        }
      }
#pragma unroll
      for (unsigned n = 0; n < 8; ++n) {
        const float2 decay = *reinterpret_cast<const float2*>(e + 8 * n + 2 * (lane % 4));
        const float d[4] = {decay.x * (low.down * scan_down), decay.y * (low.down * scan_down),
                            decay.x * (high.down * scan_down), decay.y * (high.down * scan_down)};
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          x[n][i] -= d[i] * sk[n][i];
          sq[n][i] *= d[i];
        }
      }
    }
    times_lower(sk, x, here + 4 * tile, lane);                               // u
    times_lower(x, sk, here + 4 * tile + 2 * CudaChunkFactors::tile, lane);  // its part of the outputs
    float* const out = in.a.out + (first * r.n_v_heads + w.h) * r.d_v + w.column;
#pragma unroll
    for (unsigned n = 0; n < 8; ++n) {
      const float2 decay = *reinterpret_cast<const float2*>(f + 8 * n + 2 * (lane % 4));
#pragma unroll
      for (unsigned i = 0; i < 2; ++i) {
        const unsigned t = 8 * n + 2 * (lane % 4) + i;
        float* const at = out + std::size_t{t} * r.n_v_heads * r.d_v;
        if (t < n_tokens) {
          at[0] = (sq[n][i] + x[n][i]) * inv;
          at[8] = (sq[n][i + 2] + x[n][i + 2]) * inv;
        }
        sk[n][i] *= i == 0 ? decay.x : decay.y;
        sk[n][i + 2] *= i == 0 ? decay.x : decay.y;
      }
    }
    add_outer(s, sk, e[63], here, lane);
  }

  /// S = S * decay + w k^T.
  __device__ static void add_outer(float (&s)[tiles][4], const float (&w)[8][4], float decay, std::uint32_t k_high,
                                   unsigned lane) {
    ScanScale low(1.0F);
    ScanScale high(1.0F);
    scales(w, low, high);
    ScanA a[4];
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) a[k] = ScanA(w[2 * k], w[2 * k + 1], low.up, high.up);
#pragma unroll
    for (unsigned first = 0; first < tiles; first += 8) {
      float y[8][4] = {};
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) {
#pragma unroll
        for (unsigned n = 0; n < 4; ++n) {
          std::uint32_t b_high[4];
          std::uint32_t b_low[4];
          ScanTile<DK>::load_b_turned(k_high, first / 2 + n, k, lane, b_high);
          ScanTile<DK>::load_b_turned(k_high + tile, first / 2 + n, k, lane, b_low);
          scan_multiply(y[2 * n], y[2 * n + 1], a[k], b_high, b_low);
        }
      }
#pragma unroll
      for (unsigned n = 0; n < 8; ++n) {
        s[first + n][0] = fmaf(s[first + n][0], decay, y[n][0] * (low.down * scan_down));
        s[first + n][1] = fmaf(s[first + n][1], decay, y[n][1] * (low.down * scan_down));
        s[first + n][2] = fmaf(s[first + n][2], decay, y[n][2] * (high.down * scan_down));
        s[first + n][3] = fmaf(s[first + n][3], decay, y[n][3] * (high.down * scan_down));
      }
    }
  }
};

/// By geometry alone, for every position and number of rows.
inline bool cuda_chunks_fit(const RecurView& r) noexcept {
  return (r.d_k == 64 || r.d_k == 128) && r.d_v % 16 == 0 && r.n_v_heads <= 65535;
}

template <unsigned DK, class D>
Status cuda_chunk_scan(D& dev, const RecurView& r, const ScanArgs& a, const WorkspaceView& ws) noexcept {
  using Two = CudaChunksBody<DK, 2>;
  using One = CudaChunksBody<DK, 1>;  // the same bits where a multiprocessor has no room for two chunks
  int room = 0;
  const auto e = cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, dev.ordinal());
  if (e != cudaSuccess) {
    return Status::failure(ErrorKind::device_failure, "chunk_scan", static_cast<int>(e), 0,
                           "the device does not say how much shared memory it has");
  }
  const CudaChunkInputs in(r, a);
  float* const factors = chunk_factors(ws);
  const Grid grid{(r.d_v + Two::block_columns - 1) / Two::block_columns, r.n_v_heads, 1};
  return each_chunk_group(r, [&](const ChunkGroup& g) {
    const CudaFactorsBody<DK> first{r, in, g, factors};
    if (Status s = launch(dev, "chunk_factors", Grid{g.count, r.n_v_heads, 1}, first); !s) return s;
    if (static_cast<std::size_t>(room) < Two::shared_bytes())
      return launch(dev, "chunk_scan", grid, One(r, in, g, factors));
    return launch(dev, "chunk_scan", grid, Two(r, in, g, factors));
  });
}

}  // namespace memra::detail
