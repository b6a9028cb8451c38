// A chunk's beginning and end in attend's kernel: sums that begin with nothing and become a partial result.
#pragma once

#include <cstdint>
#include <memra/cuda/attend_add.cuh>
#include <memra/cuda/attend_weigh.cuh>

namespace memra::detail {

template <class Block>
struct CudaAttendPartial : CudaAttendAdd<Block> {
  using Base = CudaAttendAdd<Block>;
  using Base::Base;
  using Base::block_threads;
  using Base::columns;
  using Base::groups;
  using Base::maxima_at;
  using Base::owners_at;
  using Base::partials;
  using Base::ranges_at;
  using Base::shape;
  using Base::slice_dims;
  using Base::warps;
  using typename Base::Place;
  using typename Base::Sums;
  using typename Base::Values;
  static constexpr unsigned Tiles = Block::n_tiles;

  __device__ static void begin_chunk(float (&exponent)[Tiles][2], float (&sum)[Tiles][2], Sums& o) {
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
      for (unsigned j = 0; j < 2; ++j) {
        exponent[i][j] = attend_no_exponent;
        sum[i][j] = 0.0F;
      }
#pragma unroll
      for (unsigned j = 0; j < 8 * groups; ++j) o[j / 4][i][j % 4] = 0.0F;
    }
  }

  /// @param from  the chunk's first key, as `ranges` count
  __device__ void finish(const Place& at, unsigned chunk, unsigned from, const float (&exponent)[Tiles][2],
                         float (&sum)[Tiles][2], const Sums& o) const {
    auto* const sums = reinterpret_cast<float*>(at.shared + maxima_at);
    const auto* const owners = reinterpret_cast<const uint2*>(at.shared + owners_at);
    const auto* const ranges = reinterpret_cast<const uint2*>(at.shared + ranges_at);
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
      for (unsigned j = 0; j < 2; ++j) {
#pragma unroll
        for (unsigned distance = 4; distance < 32; distance *= 2) {
          sum[i][j] = __fadd_rn(sum[i][j], __shfl_xor_sync(0xffffffffU, sum[i][j], distance));
        }
        if (at.g == 0) sums[at.warp * columns + 8 * i + 2 * at.t + j] = sum[i][j];
      }
    }
    // e is the same in all warps.
    float* const exponents = sums + warps * columns;
    const auto sees = [&](unsigned c) { return ranges[c].x < from + at.size && ranges[c].y > from; };
    if (at.warp == 0 && at.g == 0) {
#pragma unroll
      for (unsigned i = 0; i < 2 * Tiles; ++i) {
        exponents[8 * (i / 2) + 2 * at.t + i % 2] = -exponent[i / 2][i % 2];
      }
    }
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
      for (unsigned j = 0; j < 2; ++j) {
        const unsigned c = 8 * i + 2 * at.t + j;
        if (!sees(c)) continue;
        float* const own = shape.partial(partials, owners[c].y + chunk) + at.slice * slice_dims + at.warp * groups * 32;
#pragma unroll
        for (unsigned n = 0; n < 2 * groups; ++n) {
          float* const to = own + n / 2 * 32 + Values::element(n % 2, at.g, 0);
          if constexpr (Values::element(0, 0, 1) == 1) {
            *reinterpret_cast<float2*>(to) = {o[n][i][j], o[n][i][j + 2]};
          } else {
            to[0] = o[n][i][j];
            own[n / 2 * 32 + Values::element(n % 2, at.g, 1)] = o[n][i][j + 2];
          }
        }
      }
    }
    __syncthreads();
    if (at.slice != 0) return;
    for (unsigned c = threadIdx.x; c < columns; c += block_threads) {
      if (!sees(c)) continue;
      float l = sums[c];
      for (unsigned w = 1; w < warps; ++w) l = __fadd_rn(l, sums[w * columns + c]);
      *shape.weight(partials, owners[c].y + chunk) = {exponents[c], l};
    }
  }
};

}  // namespace memra::detail
