// attend for head dimensions that the tensor cores' kernel does not take: split keys, one thread per key for scores.
//
// Numeric class: f32 accumulation with fused multiply-adds, weights by the hardware's exp2. Not the host's bits; equal
// to it within the class's tolerance (relative error of the output vector below 1e-5). Every bit of a row is a function
// of the row's own position, its query, the keys it sees, the layer's geometry and formats: never of the rows, heads or
// sequences beside it, because each (row, query head) has accumulators of its own and its keys are cut on a grid of its
// own position (attend_grid.cuh).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/cuda/attend_grid.cuh>
#include <memra/cuda/decode.cuh>
#include <memra/detail/attend_sequence.hpp>
#include <memra/detail/portable_plane.hpp>
#include <memra/launch.hpp>

namespace memra::detail {

/// Warps of a block, each with its own run of a chunk's keys; keys a warp takes at a time, one per lane.
inline constexpr unsigned attend_warps = 8;
inline constexpr unsigned attend_step = 32;
inline constexpr unsigned attend_any_unit = attend_warps * attend_step;  ///< of chunks
static_assert(attend_long_chunk % attend_any_unit == 0);

/// One block: `Queries` query heads of one row that share a kv head, one chunk. Each warp takes an eighth of the chunk,
/// 32 keys at a time: a lane scores a key for all queries, then owns 4 * Quads elements of the weighted sums.
template <Format KF, Format VF, bool Split, unsigned Queries, unsigned Quads>
struct CudaAttendAny {
  static constexpr unsigned block_threads = 32 * attend_warps;
  static constexpr bool k_blocks = KF == Format::q8_0 || KF == Format::q5_1 || KF == Format::q4_0;
  static constexpr bool v_blocks = VF == Format::q8_0 || VF == Format::q5_1 || VF == Format::q4_0;

  CudaAttendShape shape;
  PortableSource k;
  PortableSource v;
  const float* q;  ///< [rows][n_heads][dk]
  float scale;     ///< times log2 e
  float* partials;

  std::size_t shared_bytes() const noexcept {
    const std::size_t merge = attend_warps * Queries * (shape.dv + 2);
    const std::size_t work = Queries * shape.dk + attend_warps * attend_step * Queries;
    return sizeof(float) * (merge > work ? merge : work);
  }

  /// For CudaAttendBatch.
  __device__ std::size_t depth() const { return shape.n_kv_heads; }
  __device__ bool has(const Item& item) const {
    return item.x / ((shape.n_heads / shape.n_kv_heads + Queries - 1) / Queries) < shape.rows;
  }
  __device__ void take(const AttendSequence& s, std::size_t first_row) {
    k.take(s.k);
    v.take(s.v);
    q += first_row * shape.n_heads * shape.dk;
  }

  /// Item: (row and group of queries, chunk among those that the row sees, kv head).
  __device__ void block(const Item& item) const {
    extern __shared__ float4 memra_shared[];
    auto* const shared = reinterpret_cast<float*>(memra_shared);
    const std::size_t group = shape.n_heads / shape.n_kv_heads;
    const std::size_t groups = (group + Queries - 1) / Queries;
    const std::size_t row = item.x / groups;
    const std::size_t first = item.x % groups * Queries;  // within the group
    const auto queries = static_cast<unsigned>(group - first < Queries ? group - first : Queries);
    const std::size_t head = item.z * group + first;
    const AttendSpan span = shape.span(row);
    if (span.hi <= span.lo) return;
    const std::size_t size = shape.chunk_keys(span.hi);
    const std::size_t chunk = span.lo / size + item.y;
    const std::size_t chunk_lo = chunk * size;
    if (chunk_lo >= span.hi) return;

    float* const qs = shared;  // [dk][Queries]
    const float* const q_in = q + ((shape.first_row + row) * shape.n_heads + head) * shape.dk;
    for (unsigned i = threadIdx.x; i < shape.dk * Queries; i += block_threads) {
      const unsigned n = i % Queries;
      qs[i] = n < queries ? q_in[n * shape.dk + i / Queries] * scale : 0.0F;
    }
    __syncthreads();

    const unsigned warp = threadIdx.x / 32;
    const unsigned lane = threadIdx.x % 32;
    float* const ps = shared + Queries * shape.dk + warp * attend_step * Queries;  // [keys][Queries]
    const std::size_t run = size / attend_warps;
    const std::size_t run_lo = chunk_lo + warp * run;
    const std::size_t lo = run_lo > span.lo ? run_lo : span.lo;
    const std::size_t hi = run_lo + run < span.hi ? run_lo + run : span.hi;

    float m[Queries];
    float l[Queries];  // of this lane's keys
    float o[Queries][Quads][4];
#pragma unroll
    for (unsigned n = 0; n < Queries; ++n) {
      m[n] = -INFINITY;
      l[n] = 0.0F;
#pragma unroll
      for (unsigned i = 0; i < Quads * 4; ++i) o[n][i / 4][i % 4] = 0.0F;
    }
    for (std::size_t step = lo / attend_step * attend_step; step < hi; step += attend_step) {
      const std::size_t key = step + lane;
      const bool seen = key >= lo && key < hi;
      float s[Queries];
#pragma unroll
      for (unsigned n = 0; n < Queries; ++n) s[n] = seen ? 0.0F : -INFINITY;
      if (seen) score(qs, key, item.z, s);
      bool grew = false;
      float top[Queries];
#pragma unroll
      for (unsigned n = 0; n < Queries; ++n) {
        float x = s[n];
#pragma unroll
        for (unsigned distance = 16; distance != 0; distance /= 2) {
          x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, distance));
        }
        top[n] = fmaxf(m[n], x);
        grew = grew || top[n] > m[n];
      }
      if (grew) {  // the same in every lane
#pragma unroll
        for (unsigned n = 0; n < Queries; ++n) {
          const float c = m[n] == top[n] ? 1.0F : exp2f(m[n] - top[n]);
          m[n] = top[n];
          l[n] *= c;
#pragma unroll
          for (unsigned i = 0; i < Quads * 4; ++i) o[n][i / 4][i % 4] *= c;
        }
      }
      __syncwarp();
#pragma unroll
      for (unsigned n = 0; n < Queries; ++n) {
        // While every score is -inf there is no maximum to take away: such weights are 0. A NaN stays NaN.
        const float p = seen ? exp2f(s[n] - (m[n] == -INFINITY ? 0.0F : m[n])) : 0.0F;
        l[n] += p;
        ps[lane * Queries + n] = p;
      }
      __syncwarp();
      const auto from = static_cast<unsigned>(lo > step ? lo - step : 0);
      const auto to = static_cast<unsigned>(hi - step < attend_step ? hi - step : attend_step);
      add(ps, step, from, to, item.z, lane, o);
    }
#pragma unroll
    for (unsigned n = 0; n < Queries; ++n) {
#pragma unroll
      for (unsigned distance = 16; distance != 0; distance /= 2) {
        l[n] += __shfl_xor_sync(0xffffffffU, l[n], distance);
      }
    }
    merge(shared, static_cast<unsigned>(item.y), row, head, queries, warp, lane, m, l, o);
  }

 private:
  __device__ void score(const float* qs, std::size_t key, std::size_t kv_head, float (&s)[Queries]) const {
    const std::size_t r = key - k.base;
    for (std::size_t d = 0; d < shape.dk; d += 32) {
      float x[32];
      const std::size_t e = kv_head * shape.dk + d;
      decode_32<KF, Split>(k.at(r, k_blocks ? e / 32 : e), x);
#pragma unroll
      for (unsigned i = 0; i < 32; ++i) {
#pragma unroll
        for (unsigned n = 0; n < Queries; n += 4) {
          const float4 w = *reinterpret_cast<const float4*>(qs + (d + i) * Queries + n);
          s[n] = __fmaf_rn(w.x, x[i], s[n]);
          s[n + 1] = __fmaf_rn(w.y, x[i], s[n + 1]);
          s[n + 2] = __fmaf_rn(w.z, x[i], s[n + 2]);
          s[n + 3] = __fmaf_rn(w.w, x[i], s[n + 3]);
        }
      }
    }
  }

  __device__ void add(const float* ps, std::size_t step, unsigned from, unsigned to, std::size_t kv_head, unsigned lane,
                      float (&o)[Queries][Quads][4]) const {
#pragma unroll
    for (unsigned u = 0; u < Quads; ++u) {
      const unsigned d = 4 * (lane + 32 * u);
      if (d >= shape.dv) return;
      const std::size_t e = kv_head * shape.dv + d;
      ConstBlockCursor c = v.at(step + from - v.base, v_blocks ? e / 32 : e);
#pragma unroll 4
      for (unsigned key = from; key < to; ++key) {
        float x[4];
        decode_4<VF, Split>(c, v_blocks ? d % 32 : 0, x);
        c.quants += v.quant_row;
        c.fifths += v.scale_row;
        c.scales += v.scale_row;
#pragma unroll
        for (unsigned n = 0; n < Queries; n += 4) {
          const float4 p = *reinterpret_cast<const float4*>(ps + key * Queries + n);
#pragma unroll
          for (unsigned i = 0; i < 4; ++i) {
            o[n][u][i] = __fmaf_rn(p.x, x[i], o[n][u][i]);
            o[n + 1][u][i] = __fmaf_rn(p.y, x[i], o[n + 1][u][i]);
            o[n + 2][u][i] = __fmaf_rn(p.z, x[i], o[n + 2][u][i]);
            o[n + 3][u][i] = __fmaf_rn(p.w, x[i], o[n + 3][u][i]);
          }
        }
      }
    }
  }

  /// Folds the warps' results, ascending, into the partial of that chunk of those that the row sees.
  __device__ void merge(float* shared, unsigned chunk, std::size_t row, std::size_t head, unsigned queries,
                        unsigned warp, unsigned lane, const float (&m)[Queries], const float (&l)[Queries],
                        const float (&o)[Queries][Quads][4]) const {
    const std::size_t stride = shape.dv + 2;
    __syncthreads();
#pragma unroll
    for (unsigned n = 0; n < Queries; ++n) {
      float* const mine = shared + (warp * Queries + n) * stride;
#pragma unroll
      for (unsigned u = 0; u < Quads; ++u) {
        const unsigned d = 4 * (lane + 32 * u);
        if (d >= shape.dv) continue;
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) mine[d + i] = o[n][u][i];
      }
      if (lane == 0) {
        mine[shape.dv] = m[n];
        mine[shape.dv + 1] = l[n];
      }
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < queries * stride; i += block_threads) {
      const auto n = static_cast<unsigned>(i / stride);
      const auto d = static_cast<std::size_t>(i % stride);
      const float* const at = shared + n * stride;
      float top = -INFINITY;
      for (unsigned w = 0; w < attend_warps; ++w) top = fmaxf(top, at[w * Queries * stride + shape.dv]);
      float sum = top;
      if (d != shape.dv) {
        sum = 0.0F;
        for (unsigned w = 0; w < attend_warps; ++w) {
          const float* const part = at + w * Queries * stride;
          const float c = part[shape.dv] == top ? 1.0F : exp2f(part[shape.dv] - top);
          // A warp without keys has -inf and zeros: it adds +0.
          sum = __fmaf_rn(part[d == shape.dv + 1 ? shape.dv + 1 : d], c, sum);
        }
      }
      if (d < shape.dv) {
        shape.partial(partials, shape.place(row, head + n) + chunk)[d] = sum;
      } else {
        reinterpret_cast<float*>(shape.weight(partials, shape.place(row, head + n) + chunk))[d - shape.dv] = sum;
      }
    }
  }
};

}  // namespace memra::detail
