// attend on HIP: split keys, partial results, a fold in ascending order.
//
// Numeric class: f32 accumulation with fused multiply-adds, weights by the hardware's exp2, scales of blocks applied to
// sums. Not the host's bits; equal to it within the class's tolerance (relative error of the output vector below 1e-5).
// Every bit of a row is a function of the row's own position, its query, the keys it sees, the layer's geometry and
// formats: never of the rows, heads or sequences beside it, nor of the width of a wave.
#pragma once

#include <hip/hip_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memra/batch_views.hpp>
#include <memra/detail/attend_sequence.hpp>
#include <memra/detail/half.hpp>
#include <memra/detail/kv_range.hpp>
#include <memra/detail/portable_attend.hpp>
#include <memra/detail/portable_plane.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/hip/attend_grid.hip.hpp>
#include <memra/hip/lanes.hip.hpp>
#include <memra/hip/piece.hip.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// An address from memory, of which the compiler cannot know that it is the device's: loads through it would be flat.
template <class T>
__device__ __forceinline__ T* hip_global(T* p) {
#if defined(__HIP_DEVICE_COMPILE__) && defined(__AMDGCN__)
  return (T*)(__attribute__((address_space(1)))
              T*)reinterpret_cast<std::uintptr_t>(p);  // NOLINT: no named cast changes the address space
#else
  return p;
#endif
}

/// What both kernels know.
struct HipAttendShape {
  KvRange range;
  std::size_t n_heads = 0;
  std::size_t n_kv_heads = 0;
  std::size_t dim = 0;
  std::size_t first_row = 0;  ///< of the call, that grid row 0 stands for
  std::size_t most_chunks = 0;
  std::size_t places = 0;  ///< for partial results of a (row, head): chunks that there may be
  const std::int32_t* pos_d = nullptr;

  explicit HipAttendShape(const KvReadView& kv) noexcept : range(kv) {}

  __device__ KvRange::Rows span(std::size_t row) const { return range.seen(*pos_d, first_row + row); }
  /// Keys per chunk of a row that ends at `hi`. What a window shows may begin and end within a chunk: it lies in one
  /// more than it would fill.
  __device__ std::size_t chunk_keys(std::size_t hi) const {
    if (range.window == 0) return hip_attend_chunk(hi, most_chunks);
    return hip_attend_chunk(range.window < hi ? range.window : hi, most_chunks - 1);
  }
  /// Partial result of one (row, head) and chunk of those that the row sees: dim sums, then maximum and sum of weights.
  __device__ float* partial(float* all, std::size_t row, std::size_t head, unsigned chunk) const {
    return all + ((row * n_heads + head) * places + chunk) * (dim + 2);
  }
};

/// One block: four query heads of one row that share a kv head, one chunk. Sixteen lanes (a team) hold the queries, a
/// sixteenth of each head's elements per lane, and take a few keys at a time: scores are summed over the team, so that
/// every lane has the weights for its elements of V. Teams meet once, at the end.
template <Format KF, Format VF, bool Split, unsigned Dim>
struct HipAttend {
  static constexpr unsigned block_threads = row_lanes * hip_attend_teams;
  static constexpr unsigned queries = 4;
  static constexpr unsigned n = Dim / row_lanes;       ///< elements per lane
  static constexpr unsigned keys = Dim > 128 ? 2 : 4;  ///< at a time: what registers hold on every generation
  static constexpr std::size_t step = keys * hip_attend_teams;
  using K = HipPiece<KF, Split, n>;
  using V = HipPiece<VF, Split, n>;

  HipAttendShape shape;
  PortableSource k;
  PortableSource v;
  const float* q;  ///< [rows][n_heads][Dim]
  float scale;     ///< times log2 e
  float* partials;

  /// Running result of a team over its keys.
  struct Sums {
    float m[queries];
    float l[queries];
    float o[queries][n];
    float offset[queries];  ///< to be added to every element
  };

  /// For HipAttendBatch: kv heads, the item's row, and another sequence whose query rows begin with row `first`.
  __device__ static std::size_t depth(const HipAttendShape& s) { return s.n_kv_heads; }
  __device__ std::size_t row_of(const Item& item) const {
    return item.x / ((shape.n_heads / shape.n_kv_heads + queries - 1) / queries);
  }
  __device__ void take(const AttendSequence& s, std::size_t first) {
    k.take(s.k);
    v.take(s.v);
    for (PortableSource* const plane : {&k, &v}) {
      plane->first.quants = hip_global(plane->first.quants);
      plane->first.fifths = hip_global(plane->first.fifths);
      plane->first.scales = hip_global(plane->first.scales);
    }
    q += first * shape.n_heads * Dim;
  }

  /// Item: (row and group of queries, chunk among those that the row sees, kv head). Inlined by force, as are its
  /// parts: shared memory of a function that two kernels call would be every kernel's.
  __device__ __forceinline__ void block(const Item& item) const {
    const std::size_t group = shape.n_heads / shape.n_kv_heads;
    const std::size_t groups = (group + queries - 1) / queries;
    // Both fit 32 bits (a grid's limit, and what an array of queries holds), and are kept over the loop.
    const auto row = static_cast<unsigned>(item.x / groups);
    const std::size_t first = item.x % groups * queries;  // within the group
    const auto present = static_cast<unsigned>(group - first < queries ? group - first : queries);
    const auto head = static_cast<unsigned>(item.z * group + first);
    const KvRange::Rows span = shape.span(row);
    if (span.hi <= span.lo) return;
    const auto seen_lo = static_cast<std::size_t>(span.lo);
    const auto seen_hi = static_cast<std::size_t>(span.hi);
    const std::size_t size = shape.chunk_keys(seen_hi);
    const std::size_t chunk = seen_lo / size + item.y;
    const std::size_t chunk_lo = chunk * size;
    if (chunk_lo >= seen_hi) return;
    const std::size_t lo = chunk_lo > seen_lo ? chunk_lo : seen_lo;
    const std::size_t hi = chunk_lo + size < seen_hi ? chunk_lo + size : seen_hi;

    const unsigned lane = threadIdx.x % row_lanes;
    const unsigned team = threadIdx.x / row_lanes;
    float qs[queries][n];
    float q_sum[queries];
    const float* const mine = q + ((shape.first_row + row) * shape.n_heads + head) * Dim + lane * n;
#pragma unroll
    for (unsigned i = 0; i < queries; ++i) {
      q_sum[i] = 0.0F;
#pragma unroll
      for (unsigned e = 0; e < n; ++e) {
        qs[i][e] = i < present ? mine[i * Dim + e] * scale : 0.0F;
        q_sum[i] += qs[i][e];
      }
    }
    Sums s;
#pragma unroll
    for (unsigned i = 0; i < queries; ++i) {
      s.m[i] = f32_from_bits(f32_minus_inf_bits);
      s.l[i] = 0.0F;
      s.offset[i] = 0.0F;
#pragma unroll
      for (unsigned e = 0; e < n; ++e) s.o[i][e] = 0.0F;
    }
    for (std::size_t key = lo / step * step + team * keys; key < hi; key += step) {
      if (key + keys > lo) turn(key, lo, hi, item.z * Dim + lane * n, qs, q_sum, s);
    }
    merge(row, head, static_cast<unsigned>((item.z + 1) * group), static_cast<unsigned>(item.y), lane, team, s);
  }

 private:
  /// Blocks are addressed by number, elements without blocks by themselves. `row` may be past the end of a ring.
  template <class Piece>
  static __device__ __forceinline__ void load(Piece& piece, const PortableSource& plane, std::size_t row,
                                              std::size_t element) {
    if (plane.ring && row >= plane.rows) row -= plane.rows;
    piece.load(plane.at(row, Piece::has_scale ? element / 32 : element), static_cast<unsigned>(element % 32));
  }

  /// Keys [key, key + keys) that are in [lo, hi).
  __device__ __forceinline__ void turn(std::size_t key, std::size_t lo, std::size_t hi, std::size_t element,
                                       const float (&qs)[queries][n], const float (&q_sum)[queries], Sums& s) const {
    const auto at = static_cast<unsigned>(element % 32);
    K ks[keys];
    V vs[keys];
    bool seen[keys];
    const std::size_t least = key < lo ? lo : key;
    const std::size_t k_row = k.phys(least);
    const std::size_t v_row = v.phys(least);
#pragma unroll
    for (unsigned j = 0; j < keys; ++j) {
      seen[j] = key + j >= lo && key + j < hi;
      // Of a key that is not seen the bytes are those of one that is, and unused.
      const std::size_t further = (key + j < lo ? lo : key + j < hi ? key + j : hi - 1) - least;
      load(ks[j], k, k_row + further, element);
      load(vs[j], v, v_row + further, element);
    }
    float p[keys][queries];
#pragma unroll
    for (unsigned j = 0; j < keys; ++j) {
      float x[n];
      float d = 1.0F;
      float offset = 0.0F;
      ks[j].decode(at, x, d, offset);
#pragma unroll
      for (unsigned i = 0; i < queries; ++i) {
        float sum = 0.0F;
#pragma unroll
        for (unsigned e = 0; e < n; ++e) sum = fmaf(qs[i][e], x[e], sum);
        if constexpr (K::has_scale) sum *= d;
        if constexpr (K::has_offset) sum = fmaf(offset, q_sum[i], sum);
        sum = row_sum(sum);
        p[j][i] = seen[j] ? sum : f32_from_bits(f32_minus_inf_bits);
      }
    }
#pragma unroll
    for (unsigned i = 0; i < queries; ++i) {
      const float none = f32_from_bits(f32_minus_inf_bits);
      float top = s.m[i];
#pragma unroll
      for (unsigned j = 0; j < keys; ++j) top = fmaxf(top, p[j][i]);
      if (top > s.m[i]) {  // the same in every lane of the team
        const float c = exp2f(s.m[i] - top);
        s.m[i] = top;
        s.l[i] *= c;
        s.offset[i] *= c;
#pragma unroll
        for (unsigned e = 0; e < n; ++e) s.o[i][e] *= c;
      }
      // While every score is -inf there is no maximum to take away: such weights are 0. A NaN stays NaN.
      const float less = top == none ? 0.0F : top;
#pragma unroll
      for (unsigned j = 0; j < keys; ++j) {
        p[j][i] = exp2f(p[j][i] - less);
        s.l[i] += p[j][i];
      }
    }
#pragma unroll
    for (unsigned j = 0; j < keys; ++j) {
      if (!seen[j]) continue;  // its weight is 0, but its value may be infinite
      float x[n];
      float d = 1.0F;
      float offset = 0.0F;
      vs[j].decode(at, x, d, offset);
#pragma unroll
      for (unsigned i = 0; i < queries; ++i) {
        const float w = V::has_scale ? p[j][i] * d : p[j][i];
        if constexpr (V::has_offset) s.offset[i] = fmaf(p[j][i], offset, s.offset[i]);
#pragma unroll
        for (unsigned e = 0; e < n; ++e) s.o[i][e] = fmaf(w, x[e], s.o[i][e]);
      }
    }
  }

  /// Folds the teams' results, ascending, into the chunk's partials. Heads from `end` on are not there: other words for
  /// what block() asks, or a compiler keeps its four answers, in scalar registers, over the whole loop.
  __device__ __forceinline__ void merge(unsigned row, unsigned head, unsigned end, unsigned chunk, unsigned lane,
                                        unsigned team, const Sums& s) const {
    __shared__ float tops[queries][hip_attend_teams];
    __shared__ float weights[queries][hip_attend_teams];
    __shared__ float sums[hip_attend_teams][Dim];
    if (lane == 0) {
#pragma unroll
      for (unsigned i = 0; i < queries; ++i) tops[i][team] = s.m[i];
    }
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < queries; ++i) {
      float top = tops[i][0];
#pragma unroll
      for (unsigned t = 1; t < hip_attend_teams; ++t) top = fmaxf(top, tops[i][t]);
      // A team without keys has -inf and zeros: it adds +0.
      const float c = s.m[i] == top ? 1.0F : exp2f(s.m[i] - top);
      if (lane == 0) weights[i][team] = s.l[i] * c;
#pragma unroll
      for (unsigned e = 0; e < n; ++e) sums[team][lane * n + e] = (s.o[i][e] + s.offset[i]) * c;
      __syncthreads();
      if (head + i < end) {  // heads that are not there take part in the barriers
        float* const out = shape.partial(partials, row, head + i, chunk);
        for (unsigned d = threadIdx.x; d < Dim; d += block_threads) {
          float sum = 0.0F;
#pragma unroll
          for (unsigned t = 0; t < hip_attend_teams; ++t) sum += sums[t][d];
          out[d] = sum;
        }
        if (threadIdx.x == 0) {
          float weight = 0.0F;
#pragma unroll
          for (unsigned t = 0; t < hip_attend_teams; ++t) weight += weights[i][t];
          out[Dim] = top;
          out[Dim + 1] = weight;
        }
      }
      __syncthreads();
    }
  }
};

/// Folds a row's chunks, ascending. Item: (head, row); one lane per output element.
struct HipAttendFold {
  static constexpr unsigned block_threads = 128;

  HipAttendShape shape;
  float* partials;
  float* out;  ///< [rows][n_heads][dim]

  __device__ static std::size_t depth(const HipAttendShape&) { return 1; }
  __device__ static std::size_t row_of(const Item& item) { return item.y; }
  __device__ void take(const AttendSequence&, std::size_t first) { out += first * shape.n_heads * shape.dim; }

  __device__ void block(const Item& item) const {
    float* const y = out + ((shape.first_row + item.y) * shape.n_heads + item.x) * shape.dim;
    const KvRange::Rows span = shape.span(item.y);
    if (span.hi <= span.lo) {
      for (std::size_t d = threadIdx.x; d < shape.dim; d += block_threads) y[d] = 0.0F;
      return;
    }
    const std::size_t size = shape.chunk_keys(static_cast<std::size_t>(span.hi));
    const std::size_t chunks =
        static_cast<std::size_t>(span.hi - 1) / size - static_cast<std::size_t>(span.lo) / size + 1;
    const float* const at = shape.partial(partials, item.y, item.x, 0);
    const std::size_t stride = shape.dim + 2;
    float top = f32_from_bits(f32_minus_inf_bits);
    for (std::size_t c = 0; c < chunks; ++c) top = fmaxf(top, at[c * stride + shape.dim]);
    for (std::size_t d = threadIdx.x; d < shape.dim; d += block_threads) {
      float l = 0.0F;
      float o = 0.0F;
      for (std::size_t c = 0; c < chunks; ++c) {
        const float* const part = at + c * stride;
        const float w = part[shape.dim] == top ? 1.0F : exp2f(part[shape.dim] - top);
        l = fmaf(part[shape.dim + 1], w, l);
        o = fmaf(part[d], w, o);
      }
      y[d] = o / l;
    }
  }
};

/// A kernel of one sequence for those of a batch. Item: as that kernel's, its z times the sequences.
template <class One>
struct HipAttendBatch {
  static constexpr unsigned block_threads = One::block_threads;

  One one;  ///< what all sequences have in common
  AttendBatchView batch;
  std::size_t stride;  ///< of sequences' partial results

  __device__ void block(const Item& item) const {
    const std::size_t depth = One::depth(one.shape);
    const std::size_t sequence = item.z / depth;
    const AttendBatchView::Rows rows = batch.rows_of(sequence);
    if (one.shape.first_row + one.row_of(item) >= rows.count) return;
    const AttendSequence& s = batch.table[sequence];
    One own = one;
    own.shape.range = s.range;
    own.shape.pos_d = hip_global(s.kv.at.pos_d);
    own.partials = one.partials + sequence * stride;
    own.take(s, rows.first);
    own.block({item.x, item.y, item.z % depth});
  }
};

}  // namespace memra::detail
