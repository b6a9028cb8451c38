// Products of the chunked scan: a warp's 16 rows, as they lie in registers, by matrices in shared memory.
//
// On sm_90a four warps start a product together, and it goes on until it is waited for; elsewhere each warp makes its
// own at once, and there is nothing to wait for. D of either is 16 rows of 64 columns per warp, as eight tiles.
#pragma once

#include <cstdint>
#include <memra/cuda/attend_mma.cuh>
#include <memra/cuda/scan_halves.cuh>

namespace memra::detail {

/// Products are of groups of four warps.
inline constexpr bool scan_groups = AttendOperand<true>::group;

/// The largest numbers of the lane's two rows of some tiles.
struct ScanLargest {
  float low = 0.0F;
  float high = 0.0F;

  template <unsigned First, unsigned N>
  __device__ void look(const float (&x)[N][4]) {
#pragma unroll
    for (unsigned n = First; n < First + 8; ++n) {
      low = fmaxf(low, fmaxf(fabsf(x[n][0]), fabsf(x[n][1])));
      high = fmaxf(high, fmaxf(fabsf(x[n][2]), fabsf(x[n][3])));
    }
  }
};
/// Scales of 16 rows, and what undoes them in a product.
struct ScanScales {
  ScanScale low;
  ScanScale high;

  __device__ explicit ScanScales(const ScanLargest& x) : low(scan_row_max(x.low)), high(scan_row_max(x.high)) {
    low.down *= scan_down;
    high.down *= scan_down;
  }
  __device__ static ScanScales of(const float (&x)[8][4]) {
    ScanLargest l;
    l.template look<0>(x);
    return ScanScales(l);
  }
  __device__ void apply(float (&y)[8][4]) const { times(y, low.up, high.up); }
  __device__ void undo(float (&y)[8][4]) const { times(y, low.down, high.down); }

 private:
  __device__ static void times(float (&y)[8][4], float l, float h) {
#pragma unroll
    for (unsigned n = 0; n < 8; ++n) {
      y[n][0] *= l;
      y[n][1] *= l;
      y[n][2] *= h;
      y[n][3] *= h;
    }
  }
};
/// Operands A: 16 rows of tiles [First, First + 8) of x.
struct ScanOperands {
  ScanA a[4];

  template <unsigned First, unsigned N>
  __device__ static ScanOperands scaled(const float (&x)[N][4], const ScanScales& by) {
    ScanOperands o;
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) o.a[k] = ScanA(x[First + 2 * k], x[First + 2 * k + 1], by.low.up, by.high.up);
    return o;
  }
  /// Of numbers that have been scaled.
  __device__ static ScanOperands of(const float (&x)[8][4]) {
    ScanOperands o;
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) o.a[k] = ScanA(x[2 * k], x[2 * k + 1], 1.0F, 1.0F);
    return o;
  }
};

/// y += x M^T for M of 64 rows and columns.
__device__ inline void scan_start(float (&y)[8][4], const ScanOperands& x, std::uint32_t high, std::uint32_t low,
                                  unsigned lane) {
  using Tile = ScanTile<64>;
#pragma unroll
  for (unsigned k = 0; k < 4; ++k) {
    if constexpr (scan_groups) {
      const unsigned at = Tile::group_b(k);
      scan_group<false>(y, x.a[k].low, high + at);
      scan_group<false>(y, x.a[k].high, low + at);
      scan_group<false>(y, x.a[k].high, high + at);
    } else {
#pragma unroll
      for (unsigned n = 0; n < 4; ++n) {
        std::uint32_t b_high[4];
        std::uint32_t b_low[4];
        Tile::load_b(high, n, k, lane, b_high);
        Tile::load_b(low, n, k, lane, b_low);
        scan_multiply(y[2 * n], y[2 * n + 1], x.a[k], b_high, b_low);
      }
    }
  }
  group_commit();
}
/// The same for an M that is zero above the diagonal, `matrix` being its high halves and then its low ones.
__device__ inline void scan_start_lower(float (&y)[8][4], const ScanOperands& x, std::uint32_t matrix, unsigned lane) {
  using Tile = ScanTile<64>;
  if constexpr (scan_groups) {
    scan_start(y, x, matrix, matrix + Tile::bytes, lane);
  } else {
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
#pragma unroll
      for (unsigned n = k; n < 4; ++n) {
        std::uint32_t b_high[4];
        std::uint32_t b_low[4];
        Tile::load_b(matrix, n, k, lane, b_high);
        Tile::load_b(matrix + Tile::bytes, n, k, lane, b_low);
        scan_multiply(y[2 * n], y[2 * n + 1], x.a[k], b_high, b_low);
      }
    }
  }
}
/// y += w k^T of columns [64 n, 64 n + 64) of k.
template <unsigned DK>
__device__ inline void scan_start_outer(float (&y)[8][4], const ScanOperands& w, std::uint32_t k_high, unsigned n,
                                        unsigned lane) {
  using Tile = ScanTile<DK>;
#pragma unroll
  for (unsigned k = 0; k < 4; ++k) {
    if constexpr (scan_groups) {
      const unsigned at = Tile::group_b_turned(n, k);
      scan_group<true>(y, w.a[k].low, k_high + at);
      scan_group<true>(y, w.a[k].high, k_high + Tile::bytes + at);
      scan_group<true>(y, w.a[k].high, k_high + at);
    } else {
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) {
        std::uint32_t b_high[4];
        std::uint32_t b_low[4];
        Tile::load_b_turned(k_high, 4 * n + c, k, lane, b_high);
        Tile::load_b_turned(k_high + Tile::bytes, 4 * n + c, k, lane, b_low);
        scan_multiply(y[2 * c], y[2 * c + 1], w.a[k], b_high, b_low);
      }
    }
  }
  group_commit();
}
/// Nothing before this may come after it, or the other way round: the compiler does not know that a product started
/// earlier writes y later.
__device__ inline void scan_hold(float (&y)[8][4]) {
  if constexpr (scan_groups) {
#pragma unroll
    for (unsigned n = 0; n < 8; ++n) {
      asm volatile("" : "+f"(y[n][0]), "+f"(y[n][1]), "+f"(y[n][2]), "+f"(y[n][3]) : : "memory");
    }
  }
}
__device__ inline void scan_clear(float (&y)[8][4]) {
#pragma unroll
  for (unsigned n = 0; n < 8; ++n) y[n][0] = y[n][1] = y[n][2] = y[n][3] = 0.0F;
  scan_hold(y);
}
/// Waits until at most `Pending` batches of products are not done, y's not being among them.
template <unsigned Pending>
__device__ inline void scan_finish(float (&y)[8][4]) {
  scan_group_wait<Pending>();
  scan_hold(y);
}

}  // namespace memra::detail
