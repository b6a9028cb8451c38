// The arithmetic of the chunked scan on tensor cores: numbers of f32 as two halves each, products in three terms.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <memra/cuda/attend_mma.cuh>

namespace memra::detail {

/// Two neighbouring elements of a matrix: x is `high` + `low`, each rounded to nearest even. While |x| is in
/// [2^-3, 2^16) the two have 22 bits of it, below it an absolute error of 2^-25.
struct ScanHalves {
  std::uint32_t high, low;

  __device__ ScanHalves(float x, float y) {
    const __half2 h = __floats2half2_rn(x, y);
    const float2 there = __half22float2(h);
    const __half2 l = __floats2half2_rn(x - there.x, y - there.y);
    high = reinterpret_cast<const std::uint32_t&>(h);
    low = reinterpret_cast<const std::uint32_t&>(l);
  }
};

/// What operands from outside are multiplied by: rows of q and k have length 1, factors are a few at most.
inline constexpr float scan_up = 256.0F;
inline constexpr float scan_down = 1.0F / 256.0F;

/// A power of two that brings the largest of some numbers to [2^14, 2^15), and its inverse. Both are exact.
struct ScanScale {
  float up, down;

  __device__ explicit ScanScale(float largest) {
    unsigned exponent = __float_as_uint(largest) >> 23;
    exponent = exponent < 30 ? 30 : exponent;
    up = __uint_as_float((268 - exponent) << 23);
    down = __uint_as_float((exponent - 14) << 23);
  }
};

/// The larger of a row's two halves of numbers among the four lanes that hold it.
__device__ inline float scan_row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 2));
}

/// Operand A of 16 rows and 16 columns.
struct ScanA {
  std::uint32_t high[4], low[4];

  ScanA() = default;
  /// Of two neighbouring tiles of a D, rows g and g + 8 scaled apart.
  __device__ ScanA(const float (&left)[4], const float (&right)[4], float low_row, float high_row) {
    set(0, ScanHalves(left[0] * low_row, left[1] * low_row));
    set(1, ScanHalves(left[2] * high_row, left[3] * high_row));
    set(2, ScanHalves(right[0] * low_row, right[1] * low_row));
    set(3, ScanHalves(right[2] * high_row, right[3] * high_row));
  }

 private:
  __device__ void set(unsigned i, const ScanHalves& x) {
    high[i] = x.high;
    low[i] = x.low;
  }
};

/// d and e += A * B of two tiles of 8 columns: the small terms first. What is left out is 2^-22 of a product.
__device__ inline void scan_multiply(float (&d)[4], float (&e)[4], const ScanA& a, const std::uint32_t (&high)[4],
                                     const std::uint32_t (&low)[4]) {
  mma_16x8x16<false>(d, a.low, high[0], high[1]);
  mma_16x8x16<false>(e, a.low, high[2], high[3]);
  mma_16x8x16<false>(d, a.high, low[0], low[1]);
  mma_16x8x16<false>(e, a.high, low[2], low[3]);
  mma_16x8x16<false>(d, a.high, high[0], high[1]);
  mma_16x8x16<false>(e, a.high, high[2], high[3]);
}

/// D[64][64] += A * B by the four warps of a group, A in registers as for mma_16x8x16, B in shared memory as a
/// ScanTile: its rows are B's columns, or if `Turned` B's rows. For sm_90a; asynchronous, see group_begin.
template <bool Turned>
__device__ inline void scan_group([[maybe_unused]] float (&d)[8][4], [[maybe_unused]] const std::uint32_t (&a)[4],
                                  [[maybe_unused]] std::uint32_t tile) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  // 128-byte swizzle, 1,024 bytes from eight rows to the next.
  const std::uint64_t b = (std::uint64_t{1} << 62) | (std::uint64_t{1024 >> 4} << 32) | (tile >> 4 & 0x3fffU);
#define MEMRA_DETAIL_D4(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,"
      "%29,%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, %37;"
      : MEMRA_DETAIL_D4(0), MEMRA_DETAIL_D4(1), MEMRA_DETAIL_D4(2), MEMRA_DETAIL_D4(3), MEMRA_DETAIL_D4(4),
        MEMRA_DETAIL_D4(5), MEMRA_DETAIL_D4(6), MEMRA_DETAIL_D4(7)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(Turned ? 1 : 0));
#undef MEMRA_DETAIL_D4
#endif
}

/// Waits until at most `Pending` of the newest batches of group products are not done.
template <unsigned Pending>
__device__ inline void scan_group_wait() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(Pending) : "memory");
#endif
}

/// Matrices of 64 rows of halves in shared memory, 64 columns after another: rows of 128 bytes in pieces of 16, piece c
/// of row r being where piece c ^ (r % 8) would be, so that eight rows of a column of pieces are in different banks. It
/// is the 128-byte swizzle of group products; to start at a multiple of 1,024 bytes.
template <unsigned Columns>
struct ScanTile {
  static constexpr unsigned square = 64 * 128;  ///< bytes of 64 columns
  static constexpr unsigned bytes = Columns / 64 * square;

  __device__ static unsigned at(unsigned row, unsigned piece) {
    return piece / 8 * square + row * 128 + ((piece % 8 ^ (row % 8)) << 4);
  }
  /// Where B of a group product starts: columns [16 k, 16 k + 16) of the matrix; and the transpose's rows
  /// [16 k, 16 k + 16) of columns [64 n, 64 n + 64).
  __device__ static unsigned group_b(unsigned k) { return k / 4 * square + k % 4 * 32; }
  __device__ static unsigned group_b_turned(unsigned n, unsigned k) { return n * square + k * 16 * 128; }

  /// B for columns [16 n, 16 n + 16) of D and rows [16 k, 16 k + 16): those rows of the matrix are B's columns.
  __device__ static void load_b(std::uint32_t tile, unsigned n, unsigned k, unsigned lane, std::uint32_t (&r)[4]) {
    load_matrices(tile + at(16 * n + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2), r);
  }
  /// The same of the transpose: rows [16 k, 16 k + 16) of the matrix are B's rows.
  __device__ static void load_b_turned(std::uint32_t tile, unsigned n, unsigned k, unsigned lane,
                                       std::uint32_t (&r)[4]) {
    load_matrices_turned(tile + at(16 * k + lane % 16, 2 * n + lane / 16), r);
  }
  /// A of rows [16 m, 16 m + 16) and columns [16 k, 16 k + 16).
  __device__ static void load_a(std::uint32_t high, std::uint32_t low, unsigned m, unsigned k, unsigned lane,
                                ScanA& a) {
    const unsigned offset = at(16 * m + lane % 16, 2 * k + lane / 16);
    load_matrices(high + offset, a.high);
    load_matrices(low + offset, a.low);
  }
};

/// A chunk's rows on their way from memory, f32, to shared memory, as halves. Rows beyond `rows` are zeros.
template <unsigned DK, unsigned Threads>
struct ScanRows {
  static constexpr unsigned per_row = DK / 4;  ///< pieces of four elements
  static constexpr unsigned step = Threads / per_row;
  static constexpr unsigned each = 64 / step;
  static_assert(Threads % per_row == 0 && 64 % step == 0);
  float4 x[each];

  __device__ void fetch(const float* from, std::size_t stride, unsigned rows, bool wide, unsigned thread) {
    const unsigned row = thread / per_row;
    const float* p = from + row * stride + thread % per_row * 4;
    if (wide && rows == 64) {  // all but a prompt's end
#pragma unroll
      for (unsigned i = 0; i < each; ++i) {
        x[i] = __ldg(reinterpret_cast<const float4*>(p));
        p += step * stride;
      }
      return;
    }
#pragma unroll
    for (unsigned i = 0; i < each; ++i) {
      x[i] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
      if (i * step + row < rows) x[i] = make_float4(p[0], p[1], p[2], p[3]);
      p += step * stride;
    }
  }
  __device__ void put(std::uint32_t high, std::uint32_t low, unsigned thread) const {
    const unsigned row = thread / per_row;
    const unsigned piece = thread % per_row / 2;
    const unsigned half = thread % 2 * 8;
#pragma unroll
    for (unsigned i = 0; i < each; ++i) {
      const unsigned offset = ScanTile<DK>::at(row + i * step % 8, piece) + i * step / 8 * 1024 + half;
      const ScanHalves a(x[i].x * scan_up, x[i].y * scan_up);
      const ScanHalves b(x[i].z * scan_up, x[i].w * scan_up);
      asm volatile("st.shared.v2.u32 [%0], {%1, %2};" : : "r"(high + offset), "r"(a.high), "r"(b.high) : "memory");
      asm volatile("st.shared.v2.u32 [%0], {%1, %2};" : : "r"(low + offset), "r"(a.low), "r"(b.low) : "memory");
    }
  }
};

}  // namespace memra::detail
