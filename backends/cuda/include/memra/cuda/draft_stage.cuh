// What draft_attend's kernel has in shared memory, and how it gets there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/cuda/attend_mma.cuh>
#include <memra/cuda/draft_pieces.cuh>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// Rows wait in shared memory, where each thread has put the parts that it alone takes.
template <unsigned Dim, unsigned Tiles>
struct CudaDraftStage {
  static_assert(Dim == 32 || Dim == 64 || Dim == 128);
  static constexpr unsigned block_threads = Dim;
  static constexpr unsigned least_blocks = 256 / Dim;
  static constexpr unsigned warps = Dim / 32;
  static constexpr unsigned step_keys = 16 * warps;
  static constexpr unsigned columns = 8 * Tiles;
  static constexpr bool group = warps == 4;  ///< products of a warpgroup where the target has them
  static constexpr unsigned stride = draft_partial_floats(Dim);
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
  __device__ const std::byte* row(const Place& at, const float* plane, std::uint32_t key, bool valid) const {
    const std::uint32_t width = static_cast<std::uint32_t>(d.n_kv) * Dim * 4;
    return reinterpret_cast<const std::byte*>(plane + at.kv_head * Dim) +
           std::uint64_t{valid ? key - at.base : 0} * width;
  }
  /// Of the warp's keys the lane's two, of each 16 dimensions its four.
  /// @param i  of 32 dimensions
  __device__ void fetch_k(const Place& at, std::uint32_t first, unsigned i) const {
    const std::uint32_t to = at.shared + k_at + threadIdx.x * 16;
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      const std::uint32_t key = first + 16 * at.warp + at.g + j % 2 * 8;
      const bool valid = key >= at.from && key < at.end;
      copy_16_async(to + (4 * i + j) * part_bytes, row(at, d.k, key, valid) + 128 * i + j / 2 * 64 + 16 * at.t, valid);
    }
  }
  /// Of each 16 keys the lane's four, as the products take them: 2 t, 2 t + 1, 2 t + 8, 2 t + 9.
  /// @param i  of 16 keys
  __device__ void fetch_v(const Place& at, std::uint32_t first, unsigned i) const {
    const std::uint32_t to = at.shared + v_at + threadIdx.x * 16;
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      const std::uint32_t key = first + i * 16 + 2 * at.t + j % 2 + j / 2 * 8;
      const bool valid = key >= at.from && key < at.end;
      copy_16_async(to + (4 * i + j) * part_bytes, row(at, d.v, key, valid) + 128 * at.warp + 16 * at.g, valid);
    }
  }
  __device__ static float4 own(const std::byte* shared, unsigned at) {
    return reinterpret_cast<const float4*>(shared + at)[threadIdx.x];
  }

  __device__ std::size_t query(const Place& at, unsigned column) const {
    return std::size_t{column / at.heads} * a.n_heads + at.kv_head * at.heads + column % at.heads;
  }

  /// Of each 8 columns' q the lane's column, of each 16 dimensions its four.
  __device__ void load_q(const Place& at, float4 (&q)[Tiles / warps][Dim / 16]) const {
#pragma unroll
    for (unsigned i = 0; i < Tiles / warps; ++i) {
      const unsigned column = at.first_column + (i * warps + at.warp) * 8 + at.g;
      const bool valid = column < at.n_columns;
      const float* const from = a.q + (valid ? query(at, column) : 0) * Dim + 4 * at.t;
#pragma unroll
      for (unsigned j = 0; j < Dim / 16; ++j) q[i][j] = load(from + 16 * j, valid);
    }
  }
  /// Scaled and split, into shared memory.
  __device__ void store_q(const Place& at, const float4 (&q)[Tiles / warps][Dim / 16]) const {
    const float scale = __fmul_rn(a.scale, 1.44269504F);  // log2 e: weights are powers of two
#pragma unroll
    for (unsigned i = 0; i < Tiles / warps; ++i) {
#pragma unroll
      for (unsigned j = 0; j < Dim / 16; ++j) {
        const Halves xy(__fmul_rn(q[i][j].x, scale), __fmul_rn(q[i][j].y, scale));
        const Halves zw(__fmul_rn(q[i][j].z, scale), __fmul_rn(q[i][j].w, scale));
        const std::uint32_t to = at.shared + (j * Tiles + i * warps + at.warp) * 256 + at.lane * 4;
        store_shared(to, xy.high);
        store_shared(to + 128, zw.high);
        store_shared(to + q_bytes, xy.low);
        store_shared(to + q_bytes + 128, zw.low);
      }
    }
  }
};

}  // namespace memra::detail
