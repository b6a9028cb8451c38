// attend on CUDA: tensor cores over packed K and V, keys split on an absolute grid.
//
// Numeric class: q, scaled, and the weights are rounded to halves (bf16 where the plane is bf16), K and V of block
// formats are exact integers times their scale (V rounded to half after it), sums are f32, weights are powers of two by
// the hardware. The error against a float64 reference is at most that of bf16 attention on the same decoded values.
//
// Every bit of a row is a function of the row's own position, its query, the keys it sees, the layer's geometry and
// formats: a (row, query head) is a column of the matrix products, which depends on no other column; its keys are cut on
// a grid of its own position (attend_grid.cuh), walked in steps that are absolute, and its decisions are its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/cuda/attend_grid.cuh>
#include <memra/cuda/attend_mma.cuh>
#include <memra/cuda/attend_stage.cuh>
#include <memra/cuda/attend_tile.cuh>
#include <memra/detail/portable_plane.hpp>
#include <memra/launch.hpp>

namespace memra::detail {

/// Weights are 2^(score - e) with e of each column such that no weight passes 2^attend_top; the largest is at least
/// 2^(attend_top - attend_slack) at the step that chose e. So e moves rarely, and weights keep all bits of a half down to
/// 2^-29 of the largest.
inline constexpr float attend_top = 15.0F;
inline constexpr float attend_slack = 8.0F;
/// -e before any key is seen.
inline constexpr float attend_no_exponent = 3.0e38F;

/// One block: one chunk of one kv head, up to 8 * Tiles columns, of which each is a (row, query head). Warp w scores
/// keys [16 w, 16 w + 16) of a step for all columns; the weights go through shared memory; then warp w adds up its 32
/// elements of V over all keys of the step. So each element is decoded once, whatever the number of rows and heads.
template <Format KF, Format VF, unsigned Tiles>
struct CudaAttend {
  static constexpr unsigned most_warps = 8;
  static constexpr unsigned block_threads = 32 * most_warps;
  static constexpr unsigned columns = 8 * Tiles;
  using Keys = AttendKeys<KF>;
  using Values = AttendValues<VF>;

  CudaAttendShape shape;
  AttendStage<KF, true> k;
  AttendStage<VF, false> v;
  const float* q;  ///< [rows][n_heads][dk]
  float scale;     ///< times log2 e
  float* partials;
  unsigned warps;
  unsigned slices;  ///< of a head's V: blocks that share a kv head and chunk
  unsigned stages;

  unsigned threads() const noexcept { return 32 * warps; }
  std::size_t shared_bytes() const noexcept { return queries_at() + queries_bytes(); }

  // Shared memory: steps; weights [Tiles][keys][8] halves; per warp and column maxima (then sums of weights); per
  // column factor of scores, and keys it sees; warps whose scores passed the top; q as fragments.
  __host__ __device__ unsigned step_keys() const { return 16 * warps; }
  __host__ __device__ unsigned step_bytes() const { return k.bytes + v.bytes; }
  __host__ __device__ unsigned weights_at() const { return stages * step_bytes(); }
  __host__ __device__ unsigned maxima_at() const { return weights_at() + Tiles * step_keys() * 16; }
  __host__ __device__ unsigned factors_at() const { return maxima_at() + most_warps * columns * 4; }
  __host__ __device__ unsigned ranges_at() const { return factors_at() + columns * 4; }
  __host__ __device__ unsigned flags_at() const { return ranges_at() + columns * 8; }
  __host__ __device__ unsigned queries_at() const { return flags_at() + 32; }
  __host__ __device__ unsigned queries_bytes() const {
    return static_cast<unsigned>(shape.dk) / 32 * Tiles * 32 * 16;
  }

  /// Item: (tile of columns, chunk, slice and kv head).
  __device__ void block(const Item& item) const {
    const std::size_t group = shape.n_heads / shape.n_kv_heads;
    const std::size_t first_column = item.x * columns;
    const std::size_t row_a = first_column / group;
    const std::size_t row_last = (first_column + columns - 1) / group;
    const std::size_t row_b = row_last < shape.rows ? row_last : shape.rows - 1;
    const AttendSpan a = shape.span(row_a);
    const AttendSpan b = shape.span(row_b);
    if (b.hi <= b.lo) return;
    const std::size_t size_a = attend_chunk_keys(a.hi, shape.most_chunks);
    const std::size_t size_b = attend_chunk_keys(b.hi, shape.most_chunks);
    bool ready = false;
    pass(item, group, first_column, row_a, row_b, size_a, ready);
    // Rows on both sides of a rung of the grid: once more, for those on the other side.
    if (size_b != size_a) pass(item, group, first_column, row_a, row_b, size_b, ready);
  }

 private:
  struct Lane {
    unsigned warp, lane, g, t;
  };

  /// Keys that the rows of this pass see in the chunk.
  struct Reach {
    std::size_t lo = ~std::size_t{0};  ///< some row
    std::size_t hi = 0;
    std::size_t all_lo = 0;  ///< every row
    std::size_t all_hi = ~std::size_t{0};
  };

  /// Keys of the chunk that `row` sees; none if its chunks are not of this size.
  __device__ AttendSpan seen(std::size_t row, std::size_t chunk_lo, std::size_t size) const {
    AttendSpan s = shape.span(row);
    if (s.hi <= s.lo || attend_chunk_keys(s.hi, shape.most_chunks) != size) return {};
    s.lo = s.lo > chunk_lo ? s.lo : chunk_lo;
    s.hi = s.hi < chunk_lo + size ? s.hi : chunk_lo + size;
    return s.lo < s.hi ? s : AttendSpan{};
  }

  __device__ void pass(const Item& item, std::size_t group, std::size_t first_column, std::size_t row_a,
                       std::size_t row_b, std::size_t size, bool& ready) const {
    extern __shared__ float4 memra_shared[];
    auto* const shared = reinterpret_cast<std::byte*>(memra_shared);
    const std::uint32_t base = shared_address(shared);
    const Lane at{threadIdx.x / 32, threadIdx.x % 32, threadIdx.x % 32 / 4, threadIdx.x % 4};
    const std::size_t chunk_lo = item.y * size;
    Reach reach;
    for (std::size_t row = row_a; row <= row_b; ++row) {
      const AttendSpan s = seen(row, chunk_lo, size);
      if (s.hi == 0) continue;
      reach.lo = s.lo < reach.lo ? s.lo : reach.lo;
      reach.hi = s.hi > reach.hi ? s.hi : reach.hi;
      reach.all_lo = s.lo > reach.all_lo ? s.lo : reach.all_lo;
      reach.all_hi = s.hi < reach.all_hi ? s.hi : reach.all_hi;
    }
    if (reach.hi == 0) return;

    const unsigned n = step_keys();
    const std::size_t kv_head = item.z / slices;
    const std::size_t slice = item.z % slices;
    const std::size_t k_element = kv_head * shape.dk;
    const std::size_t v_element = kv_head * shape.dv + slice * v.dims;
    const std::size_t first = reach.lo / n;
    const std::size_t end = (reach.hi + n - 1) / n;
    const auto fetch = [&](std::size_t step, unsigned stage) {
      if (step < end) {
        const std::uint32_t to = base + stage * step_bytes();
        k.copy(to, step * n, reach.lo, reach.hi, k_element);
        v.copy(to + k.bytes, step * n, reach.lo, reach.hi, v_element);
      }
      copies_commit();
    };
    __syncthreads();  // of an earlier pass
    for (unsigned i = 0; i + 1 < stages; ++i) fetch(first + i, i);

    if (!ready) prepare_queries(shared, at, group, first_column, kv_head);
    ready = true;
    auto* const ranges = reinterpret_cast<int2*>(shared + ranges_at());
    for (unsigned c = threadIdx.x; c < columns; c += blockDim.x) {
      const std::size_t row = (first_column + c) / group;
      const AttendSpan s = row < shape.rows ? seen(row, chunk_lo, size) : AttendSpan{};
      ranges[c] = s.hi == 0 ? int2{0, 0}
                            : int2{static_cast<int>(s.lo - chunk_lo), static_cast<int>(s.hi - chunk_lo)};
    }
    __syncthreads();

    float factor[Tiles][2];    // of scores
    float exponent[Tiles][2];  // -e
    float sum[Tiles][2];       // of this lane's keys' weights
    float o[2][Tiles][4];
    const auto* const factors = reinterpret_cast<const float*>(shared + factors_at());
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
      for (unsigned j = 0; j < 2; ++j) {
        factor[i][j] = factors[8 * i + 2 * at.t + j];
        exponent[i][j] = attend_no_exponent;
        sum[i][j] = 0.0F;
      }
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) o[0][i][j] = o[1][i][j] = 0.0F;
    }

    unsigned stage = 0;
    for (std::size_t step = first; step < end; ++step) {
      if (stages == 2) {
        copies_wait<0>();
      } else if (stages == 3) {
        copies_wait<1>();
      } else {
        copies_wait<2>();
      }
      __syncthreads();
      fetch(step + stages - 1, stage == 0 ? stages - 1 : stage - 1);  // where the last step's keys were
      const std::uint32_t part = base + stage * step_bytes();
      stage = stage + 1 == stages ? 0 : stage + 1;
      float s[Tiles][4];
      score(part, base + queries_at(), at, s);
      if (step * n < reach.all_lo || step * n + n > reach.all_hi) {
        mask(ranges, at, static_cast<int>(step * n - chunk_lo), s);
      }
      weigh(shared, base, at, s, factor, exponent, sum, o);
      add(part + k.bytes, base + weights_at(), at, slice, o);
    }
    finish(item, shared, at, group, first_column, slice, exponent, sum, o);
  }

  /// Scales each column's query to halves, exactly but for one rounding: a power of two of its own takes its largest
  /// element to between 2^8 and 2^9.
  __device__ void prepare_queries(std::byte* shared, const Lane& at, std::size_t group, std::size_t first_column,
                                  std::size_t kv_head) const {
    const auto dk = static_cast<unsigned>(shape.dk);
    for (unsigned c = at.warp; c < columns; c += warps) {
      const std::size_t row = (first_column + c) / group;
      const std::size_t head = kv_head * group + (first_column + c) % group;
      const bool real = row < shape.rows;
      const float* const x = q + ((shape.first_row + row) * shape.n_heads + head) * dk;
      float top = 0.0F;
      if (real) {
        for (unsigned d = at.lane; d < dk; d += 32) top = fmaxf(top, fabsf(__fmul_rn(x[d], scale)));
      }
#pragma unroll
      for (unsigned distance = 16; distance != 0; distance /= 2) {
        top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, distance));
      }
      // The exponent of top, within what a float's power of two can be; infinities stay what they are.
      int e = static_cast<int>(__float_as_uint(top) >> 23) - 127 - 8;
      e = top == 0.0F || e > 119 ? 0 : e < -100 ? -100 : e;
      const float up = __uint_as_float(static_cast<unsigned>(127 - e) << 23);
      if (at.lane == 0) {
        reinterpret_cast<float*>(shared + factors_at())[c] = __uint_as_float(static_cast<unsigned>(127 + e) << 23);
      }
      // One 4-byte register of a lane's fragment at a time: [group][tile][lane][step][reg].
      auto* const out = reinterpret_cast<std::uint32_t*>(shared + queries_at());
      for (unsigned i = at.lane; i < dk / 2; i += 32) {
        const unsigned reg = i % 2;
        const unsigned step = i / 2 % 2;
        const unsigned t = i / 4 % 4;
        const unsigned block = i / 16;
        float y[2];
        for (unsigned half = 0; half < 2; ++half) {
          const unsigned d = 32 * block + Keys::element(step, t, reg, half);
          y[half] = real ? __fmul_rn(__fmul_rn(x[d], scale), up) : 0.0F;
        }
        out[((block * Tiles + c / 8) * 32 + c % 8 * 4 + t) * 4 + step * 2 + reg] =
            pack_halves<AttendFormat<KF>::bf16>(y[0], y[1]);
      }
    }
  }

  /// s[tile]: keys g and g + 8 of this warp's, columns 2 t and 2 t + 1 of the tile.
  __device__ void score(std::uint32_t part, std::uint32_t queries, const Lane& at, float (&s)[Tiles][4]) const {
    constexpr bool blocks = AttendFormat<KF>::blocks;
    constexpr bool bf16 = AttendFormat<KF>::bf16;
    const std::uint32_t keys = part + at.warp * 16 * k.stride + Keys::lane_offset(at.lane, k.stride);
    const unsigned groups = k.dims / 32;
    const std::uint32_t scales = part + k.scales_at + (at.warp * 16 + at.g) * groups * 2;
    const std::uint32_t fragments = queries + at.lane * 16;
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) s[i][j] = 0.0F;
    }
#pragma unroll 2
    for (unsigned group = 0; group < groups; ++group) {
      std::uint32_t a[2][4];
      Keys::load(keys, group, a);
      float d0 = 0.0F;
      float d1 = 0.0F;
      if constexpr (blocks) {
        d0 = load_shared_half(scales + group * 2);
        d1 = load_shared_half(scales + 8 * groups * 2 + group * 2);
      }
#pragma unroll
      for (unsigned i = 0; i < Tiles; ++i) {
        const uint4 b = load_shared_16(fragments + (group * Tiles + i) * 512);
        if constexpr (blocks) {
          float x[4] = {0.0F, 0.0F, 0.0F, 0.0F};
          mma_16x8x16<bf16>(x, a[0], b.x, b.y);
          mma_16x8x16<bf16>(x, a[1], b.z, b.w);
          s[i][0] = __fmaf_rn(x[0], d0, s[i][0]);
          s[i][1] = __fmaf_rn(x[1], d0, s[i][1]);
          s[i][2] = __fmaf_rn(x[2], d1, s[i][2]);
          s[i][3] = __fmaf_rn(x[3], d1, s[i][3]);
        } else {
          mma_16x8x16<bf16>(s[i], a[0], b.x, b.y);
          mma_16x8x16<bf16>(s[i], a[1], b.z, b.w);
        }
      }
    }
  }

  /// Scores of keys that a column does not see become -inf.
  __device__ void mask(const int2* ranges, const Lane& at, int first, float (&s)[Tiles][4]) const {
    const int key = first + static_cast<int>(at.warp * 16 + at.g);
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        const int2 r = ranges[8 * i + 2 * at.t + j % 2];
        const int own = key + static_cast<int>(j / 2 * 8);
        if (own < r.x || own >= r.y) s[i][j] = -INFINITY;
      }
    }
  }

  /// Weights of this warp's keys into shared memory, for a step's all warps. A column whose exponent is too small for
  /// one of the step's keys takes the step's largest score instead; what it has so far is scaled.
  __device__ void weigh(std::byte* shared, std::uint32_t base, const Lane& at, const float (&s)[Tiles][4],
                        const float (&factor)[Tiles][2], float (&exponent)[Tiles][2], float (&sum)[Tiles][2],
                        float (&o)[2][Tiles][4]) const {
    bool over = false;
    float p[Tiles][4];
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        p[i][j] = __fmaf_rn(s[i][j], factor[i][j % 2], exponent[i][j % 2]);
        over = over || p[i][j] > attend_top;
      }
    }
    store_weights(base, at, p);
    auto* const flags = reinterpret_cast<volatile std::uint8_t*>(shared + flags_at());
    auto* const maxima = reinterpret_cast<float*>(shared + maxima_at());
    over = __any_sync(0xffffffffU, over);
    if (at.lane == 0) flags[at.warp] = over ? 1 : 0;
    if (over) {
#pragma unroll
      for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
        for (unsigned j = 0; j < 2; ++j) {
          float top = __fmul_rn(fmaxf(s[i][j], s[i][j + 2]), factor[i][j]);
#pragma unroll
          for (unsigned distance = 4; distance < 32; distance *= 2) {
            top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, distance));
          }
          if (at.g == 0) maxima[at.warp * columns + 8 * i + 2 * at.t + j] = top;
        }
      }
    }
    __syncthreads();
    unsigned passed = 0;
    for (unsigned w = 0; w < warps; ++w) passed |= static_cast<unsigned>(flags[w]) << w;
    if (passed != 0) {  // the same for every thread
#pragma unroll
      for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
        for (unsigned j = 0; j < 2; ++j) {
          float top = -INFINITY;
          for (unsigned w = 0; w < warps; ++w) {
            if ((passed >> w & 1U) != 0) top = fmaxf(top, maxima[w * columns + 8 * i + 2 * at.t + j]);
          }
          if (__fadd_rn(top, exponent[i][j]) > attend_top) {
            const float now = __fsub_rn(attend_top - attend_slack, top);
            const float c = exp2_fast(__fsub_rn(now, exponent[i][j]));
            exponent[i][j] = now;
            sum[i][j] = __fmul_rn(sum[i][j], c);
            o[0][i][j] = __fmul_rn(o[0][i][j], c);
            o[0][i][j + 2] = __fmul_rn(o[0][i][j + 2], c);
            o[1][i][j] = __fmul_rn(o[1][i][j], c);
            o[1][i][j + 2] = __fmul_rn(o[1][i][j + 2], c);
          }
        }
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) p[i][j] = __fmaf_rn(s[i][j], factor[i][j % 2], exponent[i][j % 2]);
      }
      store_weights(base, at, p);
      __syncthreads();
    }
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
      sum[i][0] = __fadd_rn(__fadd_rn(sum[i][0], p[i][0]), p[i][2]);
      sum[i][1] = __fadd_rn(__fadd_rn(sum[i][1], p[i][1]), p[i][3]);
    }
  }

  /// p: exponents in, weights out.
  __device__ void store_weights(std::uint32_t base, const Lane& at, float (&p)[Tiles][4]) const {
    const std::uint32_t to = base + weights_at() + (at.warp * 16 + at.g) * 16 + at.t * 4;
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) p[i][j] = exp2_fast(p[i][j]);
      store_shared(to + i * step_keys() * 16, pack_halves<AttendFormat<VF>::bf16>(p[i][0], p[i][1]));
      store_shared(to + i * step_keys() * 16 + 128, pack_halves<AttendFormat<VF>::bf16>(p[i][2], p[i][3]));
    }
  }

  /// o += V^T times weights, for this warp's 32 elements.
  __device__ void add(std::uint32_t part, std::uint32_t weights, const Lane& at, std::size_t slice,
                      float (&o)[2][Tiles][4]) const {
    constexpr bool bf16 = AttendFormat<VF>::bf16;
    constexpr unsigned word_elems = AttendFormat<VF>::scale_word_elems;
    const std::uint32_t quants =
        part + at.warp * AttendFormat<VF>::group_bytes + Values::lane_offset(at.lane, v.stride);
    const std::uint32_t words = at.warp * 32 / word_elems * v.keys * 4;
    // Slices are whole pairs of groups, so that the place in a word is the warp's.
    static_cast<void>(slice);
    for (unsigned key = 0; key < v.keys; key += 32) {
      std::uint32_t a[2][2][4];
      Values::load(quants + key * v.stride, v.stride, part + v.scales_at + words + key * 4,
                   part + v.fifths_at + words + key * 4, at.warp, at.lane, a);
#pragma unroll
      for (unsigned i = 0; i < Tiles; ++i) {
        std::uint32_t b[4];
        load_matrices_turned(weights + (i * v.keys + key + at.lane) * 16, b);
        mma_16x8x16<bf16>(o[0][i], a[0][0], b[0], b[1]);
        mma_16x8x16<bf16>(o[1][i], a[0][1], b[0], b[1]);
        mma_16x8x16<bf16>(o[0][i], a[1][0], b[2], b[3]);
        mma_16x8x16<bf16>(o[1][i], a[1][1], b[2], b[3]);
      }
    }
  }

  __device__ void finish(const Item& item, std::byte* shared, const Lane& at, std::size_t group,
                         std::size_t first_column, std::size_t slice, const float (&exponent)[Tiles][2],
                         float (&sum)[Tiles][2], const float (&o)[2][Tiles][4]) const {
    auto* const sums = reinterpret_cast<float*>(shared + maxima_at());
    const auto* const ranges = reinterpret_cast<const int2*>(shared + ranges_at());
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
    __syncthreads();
    const std::size_t kv_head = item.z / slices;
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
      for (unsigned j = 0; j < 2; ++j) {
        const unsigned c = 8 * i + 2 * at.t + j;
        if (ranges[c].y == 0) continue;
        const std::size_t row = (first_column + c) / group;
        const std::size_t head = kv_head * group + (first_column + c) % group;
        float* const to = shape.partial(partials, row, head, item.y);
        float* const own = to + slice * v.dims + at.warp * 32;
#pragma unroll
        for (unsigned tile = 0; tile < 2; ++tile) {
          own[Values::element(tile, at.g, 0)] = o[tile][i][j];
          own[Values::element(tile, at.g, 1)] = o[tile][i][j + 2];
        }
        if (at.warp == 0 && at.g == 0 && slice == 0) {
          float l = sums[c];
          for (unsigned w = 1; w < warps; ++w) l = __fadd_rn(l, sums[w * columns + c]);
          to[shape.dv] = -exponent[i][j];
          to[shape.dv + 1] = l;
        }
      }
    }
  }
};

/// Folds a row's chunks, ascending. Item: (head, row); one thread per output element.
struct CudaAttendFold {
  static constexpr unsigned block_threads = 128;

  CudaAttendShape shape;
  const float* partials;
  float* out;  ///< [rows][n_heads][dv]

  __device__ void block(const Item& item) const {
    float* const y = out + ((shape.first_row + item.y) * shape.n_heads + item.x) * shape.dv;
    const AttendSpan span = shape.span(item.y);
    if (span.hi <= span.lo) {
      for (std::size_t d = threadIdx.x; d < shape.dv; d += block_threads) y[d] = 0.0F;
      return;
    }
    const std::size_t size = attend_chunk_keys(span.hi, shape.most_chunks);
    const std::size_t first = span.lo / size;
    const std::size_t last = (span.hi - 1) / size;
    const float* const at = shape.partial(const_cast<float*>(partials), item.y, item.x, 0);
    const std::size_t stride = shape.dv + 2;
    float top = -INFINITY;
    for (std::size_t c = first; c <= last; ++c) top = fmaxf(top, at[c * stride + shape.dv]);
    for (std::size_t d = threadIdx.x; d < shape.dv; d += block_threads) {
      float l = 0.0F;
      float o = 0.0F;
      for (std::size_t c = first; c <= last; ++c) {
        const float* const part = at + c * stride;
        const float w = exp2_fast(__fsub_rn(part[shape.dv], top));
        l = __fmaf_rn(part[shape.dv + 1], w, l);
        o = __fmaf_rn(part[d], w, o);
      }
      y[d] = o / l;
    }
  }
};

}  // namespace memra::detail
