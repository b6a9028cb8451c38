// The chunked scan on CUDA, second half: the state goes through a group's chunks, in registers.
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memra/cuda/scan_factors.cuh>
#include <memra/cuda/scan_halves.cuh>
#include <memra/cuda/scan_products.cuh>
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
/// registers, and only what all columns share comes from shared memory: on sm_90a to the group's products, elsewhere to
/// each warp's. Warps wait for each other for the next chunk only. ScanOperands of the state's side are scaled by a
/// power of two per column (ScanScale), so that the error is that of the column's largest number, whatever its size.
template <unsigned DK, unsigned Stages>
struct CudaChunksBody {
  static constexpr unsigned block_threads = 256;
  static constexpr unsigned block_columns = 64;
  static constexpr unsigned tile = ScanTile<DK>::bytes;
  static constexpr unsigned stage_bytes = (4 * tile + CudaChunkFactors::bytes + 1023) / 1024 * 1024;
  static constexpr unsigned tiles = DK / 8;  ///< of a warp's S

  RecurView r;
  CudaChunkInputs in;
  ChunkGroup group_of;
  float* factors;
  float inv;  ///< 1 / sqrt(d_k)

  CudaChunksBody(const RecurView& view, const CudaChunkInputs& inputs, const ChunkGroup& g, float* at) noexcept
      : r(view), in(inputs), group_of(g), factors(at), inv(1.0F / std::sqrt(static_cast<float>(DK))) {}

  static std::size_t shared_bytes() noexcept { return Stages * stage_bytes; }

  /// Item: (64 columns, value head).
  __device__ void block(const Item& item) const {
    extern __shared__ __align__(1024) std::byte memory[];
    if (!r.fits()) return;
    const std::uint32_t base = shared_address(memory);
    const auto h = static_cast<std::uint32_t>(item.y);
    const unsigned warp = threadIdx.x / 32;
    // The two kinds of warps never share a branch: what one keeps in registers is none of the other's.
    if (warp >= 4) {
      const auto column = static_cast<std::uint32_t>(item.x) * block_columns;
      bring(base, 0, h, column);
      meet();
      for (unsigned chunk = 1; chunk <= group_of.count; ++chunk) {
        if (Stages == 1) meet();
        if (chunk < group_of.count) bring(base + chunk % Stages * stage_bytes, chunk, h, column);
        meet();
      }
      return;
    }
    Warp w;
    w.lane = threadIdx.x % 32;
    w.h = h;
    w.column = static_cast<std::uint32_t>(item.x) * block_columns + warp * 16 + w.lane / 4;
    w.there = w.column < r.d_v;  // all lanes of a warp alike: d_v is a multiple of 16
    Carried c;
    float* const state = r.ssm + (std::size_t{h} * r.d_v + w.column) * DK + 2 * (w.lane % 4);
    if (w.there) {
#pragma unroll
      for (unsigned n = 0; n < tiles; ++n) {
        c.s[n][0] = state[8 * n];
        c.s[n][1] = state[8 * n + 1];
        c.s[n][2] = state[8 * DK + 8 * n];
        c.s[n][3] = state[8 * DK + 8 * n + 1];
      }
    }
    c.largest.template look<0>(c.s);
    if constexpr (DK == 128) c.largest.template look<8>(c.s);
    meet();
    for (unsigned chunk = 0; chunk < group_of.count; ++chunk) {
      const unsigned stage = chunk % Stages * stage_bytes;
      go_through(w, c, base + stage, memory + stage, chunk);
      meet();
      if (Stages == 1) meet();
    }
    if (!w.there) return;
#pragma unroll
    for (unsigned n = 0; n < tiles; ++n) {
      state[8 * n] = c.s[n][0];
      state[8 * n + 1] = c.s[n][1];
      state[8 * DK + 8 * n] = c.s[n][2];
      state[8 * DK + 8 * n + 1] = c.s[n][3];
    }
  }

 private:
  struct Warp {
    std::uint32_t lane, h, column;
    bool there;
  };

  /// All eight warps, wherever they are in the code.
  __device__ static void meet() {
    asm volatile("bar.sync 1, 256;" : : : "memory");
  }

  __device__ void bring(std::uint32_t to, unsigned chunk, std::uint32_t h, std::uint32_t first_column) const {
    const unsigned thread = threadIdx.x - 128;
    const std::byte* const from = CudaChunkFactors::of(factors, chunk, h, r.n_v_heads);
    for (unsigned i = thread * 16; i < CudaChunkFactors::bytes; i += 128 * 16) {
      copy_16_async(to + 4 * tile + i, from + i, true);
    }
    copies_commit();
    const std::size_t first = (group_of.first + chunk) * scan_chunk;
    const auto n = static_cast<unsigned>(group_of.tokens(chunk, r.rows));
    const std::uint32_t kh = in.heads.of(h);
    // v is read by who works: a row's 64 columns are two lines.
    const std::size_t column = std::size_t{first_column} + thread % 2 * 32;
    if (thread / 2 < n && column < r.d_v) {
      asm volatile(
          "prefetch.global.L2 [%0];" ::"l"(in.a.v + (first + thread / 2) * in.a.v_stride + h * r.d_v + column));
    }
    ScanRows<DK, 128> k;
    ScanRows<DK, 128> q;
    k.fetch(in.a.k + first * in.a.k_stride + kh * DK, in.a.k_stride, n, in.wide, thread);
    q.fetch(in.a.q + first * in.a.q_stride + kh * DK, in.a.q_stride, n, in.wide, thread);
    k.put(to, to + tile, thread);
    q.put(to + 2 * tile, to + 3 * tile, thread);
    copies_wait<0>();
    barrier_publish();  // group products read what was written here
  }

  /// What a warp takes from chunk to chunk: S and its largest numbers.
  struct Carried {
    float s[tiles][4] = {};
    ScanLargest largest;
  };

  __device__ void go_through(const Warp& w, Carried& c, std::uint32_t here, const std::byte* memory,
                             unsigned chunk) const {
    if (group_of.tokens(chunk, r.rows) == scan_chunk) {
      tokens<true>(w, c, here, memory, chunk);
    } else {
      tokens<false>(w, c, here, memory, chunk);
    }
  }

  /// v of a chunk's tokens 8 n + 2 (lane % 4) and the next, columns `column` and `column` + 8.
  template <bool Whole>
  __device__ void fetch(const Warp& w, float (&x)[8][4], unsigned chunk) const {
    const std::size_t first = (group_of.first + chunk) * scan_chunk;
    const auto n_tokens = static_cast<unsigned>(group_of.tokens(chunk, r.rows));
    const unsigned mine = 2 * (w.lane % 4);
    const float* v = in.a.v + (first + mine) * in.a.v_stride + std::size_t{w.h} * r.d_v + w.column;
#pragma unroll
    for (unsigned n = 0; n < 8; ++n) {
#pragma unroll
      for (unsigned i = 0; i < 2; ++i) {
        const bool there = w.there && (Whole || 8 * n + mine + i < n_tokens);
        const float* const at = i == 0 ? v : v + in.a.v_stride;
        x[n][i] = there ? at[0] : 0.0F;
        x[n][i + 2] = there ? at[8] : 0.0F;
      }
      v += 8 * in.a.v_stride;
    }
  }

  /// What is started goes on while the numbers for the next products are made: every wait names what it is for.
  template <bool Whole>
  __device__ void tokens(const Warp& w, Carried& c, std::uint32_t here, const std::byte* memory, unsigned chunk) const {
    const unsigned lane = w.lane;
    const unsigned mine = 2 * (lane % 4);  // of the chunk's tokens this lane has 8 n + mine and the next
    const std::size_t first = (group_of.first + chunk) * scan_chunk;
    const auto n_tokens = static_cast<unsigned>(group_of.tokens(chunk, r.rows));
    const auto* const e = reinterpret_cast<const float*>(memory + 4 * tile + CudaChunkFactors::matrix_bytes) + mine;
    const float* const f = e + 64;
    float(&s)[tiles][4] = c.s;
    float x[8][4];
    fetch<Whole>(w, x, chunk);  // early: it is needed after the first products
    float u[8][4];
    float y[8][4];
    scan_clear(u);
    scan_clear(y);
    const ScanScales by(c.largest);
    read<0>(u, y, s, by, here, lane);
    if constexpr (DK == 128) read<8>(u, y, s, by, here, lane);
    scan_finish<1>(u);  // S k; S q goes on
#pragma unroll
    for (unsigned n = 0; n < 8; ++n) {
      const float2 decay = *reinterpret_cast<const float2*>(e + 8 * n);
      x[n][0] -= decay.x * by.low.down * u[n][0];
      x[n][1] -= decay.y * by.low.down * u[n][1];
      x[n][2] -= decay.x * by.high.down * u[n][2];
      x[n][3] -= decay.y * by.high.down * u[n][3];
    }
    {
      const ScanScales of = ScanScales::of(x);
      const ScanOperands a = ScanOperands::template scaled<0>(x, of);
      scan_clear(u);
      group_begin();
      scan_start_lower(u, a, here + 4 * tile, lane);
      scan_finish<0>(u);  // T x, which is u
      scan_hold(y);
      of.undo(u);
    }
    const ScanScales of = ScanScales::of(u);
    of.apply(u);
    const ScanOperands a = ScanOperands::of(u);
    scan_clear(x);
    group_begin();
    scan_start_lower(x, a, here + 4 * tile + 2 * CudaChunkFactors::tile, lane);
    // The decays to the chunk's end are at most 1: the same scale will do.
#pragma unroll
    for (unsigned n = 0; n < 8; ++n) {
      const float2 decay = *reinterpret_cast<const float2*>(f + 8 * n);
      u[n][0] *= decay.x;
      u[n][1] *= decay.y;
      u[n][2] *= decay.x;
      u[n][3] *= decay.y;
    }
    const ScanOperands b = ScanOperands::of(u);
    const float decay = e[63 - mine];
    scan_clear(u);
    group_begin();
    scan_start_outer<DK>(u, b, here, 0, lane);
    scan_finish<1>(x);  // P u
#pragma unroll
    for (unsigned n = 0; n < 8; ++n) {
      const float2 d = *reinterpret_cast<const float2*>(e + 8 * n);
      x[n][0] = (d.x * by.low.down * y[n][0] + of.low.down * x[n][0]) * inv;
      x[n][1] = (d.y * by.low.down * y[n][1] + of.low.down * x[n][1]) * inv;
      x[n][2] = (d.x * by.high.down * y[n][2] + of.high.down * x[n][2]) * inv;
      x[n][3] = (d.y * by.high.down * y[n][3] + of.high.down * x[n][3]) * inv;
    }
    if constexpr (DK == 128) {
      scan_clear(y);
      group_begin();
      scan_start_outer<DK>(y, b, here, 1, lane);
    }
    float* out = in.a.out + ((first + mine) * r.n_v_heads + w.h) * r.d_v + w.column;
    const std::size_t step = r.n_v_heads * r.d_v;
#pragma unroll
    for (unsigned n = 0; n < 8; ++n) {
      if (w.there && (Whole || 8 * n + mine < n_tokens)) {
        out[0] = x[n][0];
        out[8] = x[n][2];
      }
      if (w.there && (Whole || 8 * n + mine + 1 < n_tokens)) {
        out[step] = x[n][1];
        out[step + 8] = x[n][3];
      }
      out += 8 * step;
    }
    c.largest = ScanLargest();
    if constexpr (DK == 128) {
      scan_finish<1>(u);
      move_on<0>(s, u, of, decay);
      c.largest.template look<0>(s);
      scan_finish<0>(y);
      move_on<8>(s, y, of, decay);
      c.largest.template look<8>(s);
    } else {
      scan_finish<0>(u);
      move_on<0>(s, u, of, decay);
      c.largest.template look<0>(s);
    }
  }

  /// Starts u += S k, and then y += S q, scaled, of 64 elements from 8 * First on.
  template <unsigned First>
  __device__ static void read(float (&u)[8][4], float (&y)[8][4], const float (&s)[tiles][4], const ScanScales& by,
                              std::uint32_t here, unsigned lane) {
    const ScanOperands a = ScanOperands::template scaled<First>(s, by);
    const std::uint32_t at = here + First / 8 * ScanTile<64>::square;
    group_begin();
    scan_start(u, a, at, at + tile, lane);
    scan_start(y, a, at + 2 * tile, at + 3 * tile, lane);
  }
  /// S = S * decay + y, of 64 elements from 8 * First on.
  template <unsigned First>
  __device__ static void move_on(float (&s)[tiles][4], const float (&y)[8][4], const ScanScales& by, float decay) {
#pragma unroll
    for (unsigned n = 0; n < 8; ++n) {
      s[First + n][0] = fmaf(s[First + n][0], decay, y[n][0] * by.low.down);
      s[First + n][1] = fmaf(s[First + n][1], decay, y[n][1] * by.low.down);
      s[First + n][2] = fmaf(s[First + n][2], decay, y[n][2] * by.high.down);
      s[First + n][3] = fmaf(s[First + n][3], decay, y[n][3] * by.high.down);
    }
  }
};

/// By geometry alone, for every position and number of rows.
inline bool cuda_chunks_fit(const RecurView& r) noexcept {
  return (r.d_k == 64 || r.d_k == 128) && r.d_v % 16 == 0 && r.n_v_heads <= 65535 && CudaKeyHeads::fits(r);
}

template <unsigned DK, unsigned Stages, unsigned Together, class D>
Status cuda_chunk_scan_as(D& dev, const RecurView& r, const ScanArgs& a, const WorkspaceView& ws) noexcept {
  using Body = CudaChunksBody<DK, Stages>;
  const CudaChunkInputs in(r, a);
  float* const factors = chunk_factors(ws);
  const Grid grid{(r.d_v + Body::block_columns - 1) / Body::block_columns, r.n_v_heads, 1};
  return each_chunk_group(r, [&](const ChunkGroup& g) {
    const CudaFactorsBody<DK, Together> first{r, in, g, factors};
    if (Status s = launch(dev, "chunk_factors", Grid{g.count, r.n_v_heads, 1}, first); !s) return s;
    return launch(dev, "chunk_scan", grid, Body(r, in, g, factors));
  });
}

/// The bits are the same however much shared memory there is.
template <unsigned DK, class D>
Status cuda_chunk_scan(D& dev, const RecurView& r, const ScanArgs& a, const WorkspaceView& ws) noexcept {
  int room = 0;
  const auto e = cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, dev.ordinal());
  if (e != cudaSuccess) {
    return Status::failure(ErrorKind::device_failure, "chunk_scan", static_cast<int>(e), 0,
                           "the device does not say how much shared memory it has");
  }
  if (static_cast<std::size_t>(room) >= CudaChunksBody<DK, 2>::shared_bytes()) {
    return cuda_chunk_scan_as<DK, 2, 3>(dev, r, a, ws);
  }
  return cuda_chunk_scan_as<DK, 1, 2>(dev, r, a, ws);
}

}  // namespace memra::detail
