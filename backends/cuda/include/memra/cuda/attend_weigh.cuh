// From scores to weights, which all warps of a block share.
#pragma once

#include <cstdint>
#include <memra/cuda/attend_mma.cuh>
#include <memra/cuda/attend_score.cuh>

namespace memra::detail {

/// Weights are 2^(score - e) with e of each column such that no weight passes 2^attend_top; the largest is at least
/// 2^(attend_top - attend_slack) at the step that chose e. So e moves rarely, and weights keep all bits of a half down
/// to 2^-21 of the largest and more.
inline constexpr float attend_top = 15.0F;
inline constexpr float attend_slack = 8.0F;
/// -e before any key is seen.
inline constexpr float attend_no_exponent = 3.0e38F;

template <class Block>
struct CudaAttendWeigh : CudaAttendScore<Block> {
  using Base = CudaAttendScore<Block>;
  using Base::Base;
  using Base::columns;
  using Base::factors_at;
  using Base::flags_at;
  using Base::group;
  using Base::groups;
  using Base::maxima_at;
  using Base::v_bf16;
  using Base::warps;
  using Base::weights_bytes;
  using typename Base::Place;
  using typename Base::Sums;
  static constexpr Format KF = Block::k_format;
  static constexpr Format VF = Block::v_format;
  static constexpr unsigned Tiles = Block::n_tiles;

  /// Weights of this warp's keys into shared memory, for all warps. A column whose exponent is too small for one of the
  /// step's keys takes the step's largest score instead; what it has so far is scaled. Ends with all warps' weights
  /// visible.
  /// @param wild      whether this lane found scales of V that halves do not hold
  /// @param exponent  -e
  /// @return whether some lane of the block did
  __device__ bool weigh(const Place& at, unsigned turn, bool wild, const float (&s)[Tiles][4],
                        float (&exponent)[Tiles][2], float (&sum)[Tiles][2], Sums& o) const {
    float more[Tiles][2];
    const bool over = store_weights(at, turn, s, exponent, more);
    if constexpr (group) barrier_publish();
    bool some_wild = false;
    if (block_any(over || wild)) some_wild = raise(at, turn, over, wild, s, exponent, sum, more, o);
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
      for (unsigned j = 0; j < 2; ++j) sum[i][j] = __fadd_rn(sum[i][j], more[i][j]);
    }
    return some_wild;
  }

  /// Where a lane of the block found something: new exponents, and the weights again.
  __device__ bool raise(const Place& at, unsigned turn, bool over, bool wild, const float (&s)[Tiles][4],
                        float (&exponent)[Tiles][2], float (&sum)[Tiles][2], float (&more)[Tiles][2], Sums& o) const {
    const auto* const factors = reinterpret_cast<const float2*>(at.shared + factors_at);
    const std::uint32_t flags = at.base + flags_at;
    auto* const maxima = reinterpret_cast<float*>(at.shared + maxima_at);
    const unsigned found = __reduce_or_sync(0xffffffffU, (over ? 1U : 0U) | (wild ? 2U : 0U));
    if (at.lane == 0) store_shared_byte(flags + at.warp, found);
    if ((found & 1U) != 0) {
#pragma unroll
      for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
        for (unsigned j = 0; j < 2; ++j) {
          float top = fmaxf(s[i][j], s[i][j + 2]);
#pragma unroll
          for (unsigned distance = 4; distance < 32; distance *= 2) {
            top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, distance));
          }
          if (at.g == 0) maxima[at.warp * columns + 8 * i + 2 * at.t + j] = top;
        }
      }
    }
    __syncthreads();
    // The same for every thread.
    std::uint32_t all[2] = {load_shared_4(flags), 0};
    if constexpr (warps > 4) all[1] = load_shared_4(flags + 4);
    if (((all[0] | all[1]) & 0x01010101U) != 0) {
#pragma unroll
      for (unsigned i = 0; i < Tiles; ++i) {
        const float2 factor = factors[4 * i + at.t];
#pragma unroll
        for (unsigned j = 0; j < 2; ++j) {
          const float f = j == 0 ? factor.x : factor.y;
          float top = -INFINITY;
#pragma unroll
          for (unsigned w = 0; w < warps; ++w) {
            if ((all[w / 4] >> (w % 4 * 8) & 1U) != 0) top = fmaxf(top, maxima[w * columns + 8 * i + 2 * at.t + j]);
          }
          if (__fmaf_rn(top, f, exponent[i][j]) > attend_top) {  // as store_weights finds: the column's own affair
            const float now = __fsub_rn(attend_top - attend_slack, __fmul_rn(top, f));
            const float c = exp2_fast(__fsub_rn(now, exponent[i][j]));
            exponent[i][j] = now;
            sum[i][j] = __fmul_rn(sum[i][j], c);
#pragma unroll
            for (unsigned n = 0; n < 4 * groups; ++n) {
              o[n / 2][i][n % 2 * 2 + j] = __fmul_rn(o[n / 2][i][n % 2 * 2 + j], c);
            }
          }
        }
      }
      store_weights(at, turn, s, exponent, more);
      if constexpr (group) barrier_publish();
      __syncthreads();
    }
    return __any_sync(0xffffffffU, ((all[0] | all[1]) & 0x02020202U) != 0) != 0;
  }

  /// @param more  sums of this lane's two weights of a column
  /// @return whether a weight passes the top
  __device__ bool store_weights(const Place& at, unsigned turn, const float (&s)[Tiles][4],
                                const float (&exponent)[Tiles][2], float (&more)[Tiles][2]) const {
    const auto* const factors = reinterpret_cast<const float2*>(at.shared + factors_at);
    const std::uint32_t to = at.base + turn * weights_bytes + at.warp * Tiles * 256;
    bool over = false;
    std::uint32_t packed[Tiles][2];
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
      const float2 factor = factors[4 * i + at.t];
      float p[4];
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        p[j] = __fmaf_rn(s[i][j], j % 2 == 0 ? factor.x : factor.y, exponent[i][j % 2]);
        over = over || p[j] > attend_top;
        p[j] = exp2_fast(p[j]);
      }
      more[i][0] = __fadd_rn(p[0], p[2]);
      more[i][1] = __fadd_rn(p[1], p[3]);
      packed[i][0] = pack_halves<v_bf16>(p[0], p[1]);
      packed[i][1] = pack_halves<v_bf16>(p[2], p[3]);
    }
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) store_turned(to + i * 256, packed[i][0], packed[i][1], at.lane);
    return over;
  }
};

}  // namespace memra::detail
