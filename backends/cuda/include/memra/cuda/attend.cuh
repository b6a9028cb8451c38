// attend on CUDA: tensor cores over packed K and V, keys split on an absolute grid.
//
// Numeric class: q, scaled, and the weights are rounded to halves (bf16 where the plane is bf16), K and V are the
// decoded values rounded to halves, sums are f32, weights are powers of two by the hardware. The error against a
// float64 reference is at most that of bf16 attention on the same decoded values.
//
// Every bit of a row is a function of the row's own position, its query, the keys it sees, the layer's geometry and
// formats: a (row, query head) is a column of the matrix products, which depends on no other column; its keys are cut
// on a grid of its own position (attend_grid.cuh), walked in steps that are absolute, and its decisions are its own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memra/cuda/api.hpp>
#include <memra/cuda/attend_grid.cuh>
#include <memra/cuda/attend_mma.cuh>
#include <memra/cuda/attend_stage.cuh>
#include <memra/cuda/attend_tile.cuh>
#include <memra/launch.hpp>

namespace memra::detail {

/// Weights are 2^(score - e) with e of each column such that no weight passes 2^attend_top; the largest is at least
/// 2^(attend_top - attend_slack) at the step that chose e. So e moves rarely, and weights keep all bits of a half down
/// to 2^-21 of the largest and more.
inline constexpr float attend_top = 15.0F;
inline constexpr float attend_slack = 8.0F;
/// -e before any key is seen.
inline constexpr float attend_no_exponent = 3.0e38F;

/// One block: one chunk of one kv head, up to 8 * Tiles columns, of which each is a (row, query head). Warp w scores
/// keys [16 w, 16 w + 16) of a step for all columns; the weights go through shared memory; then warp w adds up its
/// elements of V over all keys of the step. So each element is decoded once, whatever the number of rows and heads.
/// @tparam Groups  of 32 elements of V for each of four warps, whose products are a warpgroup's where the target has
///                 those; 0: one group for each of two warps
template <Format KF, Format VF, unsigned Tiles, unsigned Groups>
struct CudaAttend {
  static constexpr bool group = Groups != 0;
  static constexpr unsigned groups = Groups == 0 ? 1 : Groups;
  static constexpr unsigned warps = Groups == 0 ? 2 : 4;
  static constexpr unsigned block_threads = 32 * warps;
  static constexpr unsigned least_blocks = Tiles == 1 ? 5 - groups : 2;
  static constexpr unsigned step_keys = 16 * warps;
  static constexpr unsigned slice_dims = 32 * groups * warps;  ///< of V
  static constexpr unsigned columns = 8 * Tiles;
  static constexpr unsigned most_stages = 4;
  static constexpr unsigned most_boxes = 16;
  /// Some parts of a step are not the copy engine's.
  static constexpr bool narrow = AttendFormat<KF>::blocks || AttendFormat<VF>::blocks;
  static constexpr bool k_bf16 = AttendFormat<KF>::bf16;
  static constexpr bool v_bf16 = AttendFormat<VF>::bf16;
  /// Halves that a query's element is the sum of: with the first alone bf16 would lose what planes of it have kept.
  static constexpr unsigned terms = k_bf16 ? 2 : 1;
  using Keys = AttendKeys<KF>;
  using Values = AttendValues<VF>;
  using KStage = AttendStage<KF, step_keys>;
  using VStage = AttendStage<VF, step_keys>;
  using Sums = float[2 * groups][Tiles][4];

  CudaAttendShape shape;
  KStage k;
  VStage v;
  const float* q;  ///< [rows][n_heads][dk]
  float scale;     ///< times log2 e
  float* partials;
  unsigned slices;      ///< of a head's V: blocks that share a kv head and chunk
  unsigned tiles;       ///< of columns
  unsigned stages = 2;  ///< steps in shared memory
  bool mapped = false;  ///< copied by the copy engine

  std::size_t shared_bytes() const noexcept { return boxes_at() + sizeof(AttendBox) * most_boxes; }

  /// As many steps on their way as leave room for another block beside this one.
  void complete(const CudaApi::Driver& driver) noexcept {
    mapped = k.describe(driver) && v.describe(driver);
    // Four blocks to a multiprocessor, or three, two, one.
    constexpr std::array<std::size_t, 4> rooms{55, 74, 112, 227};
    for (std::size_t i = 0; i < rooms.size(); ++i) {
      const std::size_t most = rooms[i] * 1024 < driver.shared_bytes ? rooms[i] * 1024 : driver.shared_bytes;
      for (stages = most_stages; stages > 2 && shared_bytes() > most;) --stages;
      if (stages > 2) return;
    }
  }

  // Shared memory: steps; weights of two steps [keys / 16][Tiles][2][8][8] halves; q [terms][dk / 16][Tiles][2][8][8];
  // of two steps per warp and column maxima (then sums of weights); per column factor of scores, keys it sees, row and
  // query head; of two steps which warps' scores passed the top; barriers; boxes.
  __host__ __device__ unsigned step_bytes() const { return k.bytes + v.bytes; }
  static constexpr unsigned weights_bytes = Tiles * step_keys * 16;
  __host__ __device__ unsigned weights_at() const { return stages * step_bytes(); }
  __host__ __device__ unsigned queries_at() const { return weights_at() + 2 * weights_bytes; }
  __host__ __device__ unsigned maxima_at() const { return queries_at() + queries_bytes(); }
  __host__ __device__ unsigned queries_bytes() const { return terms * k.dims * Tiles * 16; }
  __host__ __device__ unsigned factors_at() const { return maxima_at() + 2 * warps * columns * 4; }
  __host__ __device__ unsigned ranges_at() const { return factors_at() + columns * 4; }
  __host__ __device__ unsigned owners_at() const { return ranges_at() + columns * 8; }
  __host__ __device__ unsigned flags_at() const { return owners_at() + columns * 8; }
  __host__ __device__ unsigned barriers_at() const { return flags_at() + 16; }
  __host__ __device__ unsigned boxes_at() const { return barriers_at() + 8 * most_stages; }

  /// Item: (kv head, slice, tile of columns; chunk). Heads side by side: their rows lie side by side in memory.
  __device__ void block(const Item& item) const {
    Place at;
    at.warp = threadIdx.x / 32;
    at.lane = threadIdx.x % 32;
    at.g = at.lane / 4;
    at.t = at.lane % 4;
    at.heads = static_cast<unsigned>(shape.n_heads) / static_cast<unsigned>(shape.n_kv_heads);
    const auto x = static_cast<unsigned>(item.x);
    at.first_column = x % tiles * columns;
    at.kv_head = x / tiles / slices;
    at.slice = x / tiles % slices;
    at.chunk = item.y;
    at.k_offset = KStage::box_offset(at.kv_head * shape.dk, KStage::scale_bytes);
    at.k_quants = k.piece_at(at.warp * 16 + at.lane % 16, at.lane / 16);
    at.k_scales = k.scales_at + (at.warp * 16 + at.g) * 16;
    const std::size_t v_element = at.kv_head * shape.dv + at.slice * slice_dims;
#pragma unroll
    for (unsigned i = 0; i < groups; ++i) {
      const unsigned n = at.warp * groups + i;
      const unsigned byte = VStage::box_offset(v_element, VStage::scale_bytes) + n * VStage::scale_bytes;
      at.v_quants[i] = k.bytes + v.piece_at(Values::lane_key(at.lane), Values::lane_piece(at.lane, n));
      at.v_scales[i] = k.bytes + v.scales_at + VStage::word_at(2 * at.t, byte & ~3U);
      at.v_fifths[i] = k.bytes + v.fifths_at + VStage::word_at(2 * at.t, byte);
      at.v_upper[i] = (byte & 2U) != 0;
    }
    at.row_a = at.first_column / at.heads;
    const unsigned last = (at.first_column + columns - 1) / at.heads;
    at.row_b = last < shape.rows ? last : static_cast<unsigned>(shape.rows) - 1;
    const AttendSpan a = shape.span(at.row_a);
    const AttendSpan b = shape.span(at.row_b);
    if (b.hi <= b.lo) return;
    const std::size_t size_a = attend_chunk_keys(a.hi, shape.most_chunks);
    const std::size_t size_b = attend_chunk_keys(b.hi, shape.most_chunks);
    // Rows on both sides of a rung of the grid: once more, for those on the other side.
    unsigned steps = 0;
    for (at.size = size_a;; at.size = size_b) {
      pass(at, steps);
      if (at.size == size_b) return;
    }
  }

 private:
  struct Place {
    unsigned warp, lane, g, t;
    unsigned heads;  ///< query heads of a kv head
    unsigned first_column, row_a, row_b;
    std::size_t kv_head, chunk;
    unsigned slice;
    unsigned k_offset;  ///< where in its boxes the head's first scale is
    // From a step's part on: what this lane loads of K, and of V's groups, key 2 t for scales and fifth bits.
    unsigned k_quants, k_scales;
    unsigned v_quants[groups], v_scales[groups], v_fifths[groups];
    bool v_upper[groups];  ///< half of a word that the scale is
    std::size_t size;      ///< of chunks
    std::byte* shared;
    std::uint32_t base;
  };

  /// Keys that the rows of this pass see in the chunk.
  struct Reach {
    std::size_t lo = ~std::size_t{0};  ///< some row
    std::size_t hi = 0;
    std::size_t all_lo = 0;  ///< every row
    std::size_t all_hi = ~std::size_t{0};
  };

  /// Keys of the chunk that `row` sees; none if its chunks are not of this size.
  __device__ AttendSpan seen(const Place& at, std::size_t row) const {
    AttendSpan s = shape.span(row);
    if (s.hi <= s.lo || attend_chunk_keys(s.hi, shape.most_chunks) != at.size) return {};
    const std::size_t chunk_lo = at.chunk * at.size;
    s.lo = s.lo > chunk_lo ? s.lo : chunk_lo;
    s.hi = s.hi < chunk_lo + at.size ? s.hi : chunk_lo + at.size;
    return s.lo < s.hi ? s : AttendSpan{};
  }

  /// @param steps  barriers' steps so far, over all passes
  __device__ void pass(Place& at, unsigned& steps) const {
    extern __shared__ __align__(1024) std::byte memra_attend_shared[];
    at.shared = memra_attend_shared;
    at.base = shared_address(memra_attend_shared);
    Reach reach;
    for (unsigned row = at.row_a; row <= at.row_b; ++row) {
      const AttendSpan s = seen(at, row);
      if (s.hi == 0) continue;
      reach.lo = s.lo < reach.lo ? s.lo : reach.lo;
      reach.hi = s.hi > reach.hi ? s.hi : reach.hi;
      reach.all_lo = s.lo > reach.all_lo ? s.lo : reach.all_lo;
      reach.all_hi = s.hi < reach.all_hi ? s.hi : reach.all_hi;
    }
    if (reach.hi == 0) return;

    const unsigned n = step_keys;
    const std::size_t chunk_lo = at.chunk * at.size;
    const std::size_t first = reach.lo / n;
    const std::size_t end = (reach.hi + n - 1) / n;
    const std::size_t k_element = at.kv_head * shape.dk;
    const std::size_t v_element = at.kv_head * shape.dv + at.slice * slice_dims;
    const std::uint32_t barriers = at.base + barriers_at();
    auto* const boxes = reinterpret_cast<AttendBox*>(at.shared + boxes_at());
    const auto fetch = [&](std::size_t step, unsigned stage) {
      const std::uint32_t to = at.base + stage * step_bytes();
      if (mapped) {
        if (step >= end) return;
        const std::uint32_t barrier = barriers + 8 * stage;
        const auto row = static_cast<std::int64_t>(step * n);
        const auto k_row = row - static_cast<std::int64_t>(k.plane.base);
        // One lane of each warp has its share of the boxes, none much work.
        if (at.lane == 0) {
          if (at.warp == 0) barrier_expect(barrier, k.quant_bytes() + v.quant_bytes());
#pragma unroll 1
          for (unsigned i = at.warp; i < k.quant_boxes() + v.quant_boxes(); i += warps) {
            const AttendBox box = boxes[i];
            copy_box_async(to + box.to, box.map, box.x, static_cast<int>(k_row) + box.y, barrier);
          }
        }
        if constexpr (narrow) {
          k.copy_narrow(to, k_row, k_element, 0);
          v.copy_narrow(to + k.bytes, row - static_cast<std::int64_t>(v.plane.base), v_element, 1);
          barrier_arrive_copied(barrier);
        }
      } else {
        if (step < end) {
          k.copy(to, step * n, reach.lo, reach.hi, k_element);
          v.copy(to + k.bytes, step * n, reach.lo, reach.hi, v_element);
        }
        copies_commit();
      }
    };
    const bool fresh = steps == 0;
    if (fresh && mapped && threadIdx.x == 32) {
      k.list(boxes, 0, k_element, 0);
      const auto shift = static_cast<std::ptrdiff_t>(k.plane.base) - static_cast<std::ptrdiff_t>(v.plane.base);
      v.list(boxes + k.quant_boxes(), k.bytes, v_element, static_cast<int>(shift));
    }
    auto* const owners = reinterpret_cast<uint2*>(at.shared + owners_at());
    if (fresh && threadIdx.x < columns) {
      const unsigned c = at.first_column + threadIdx.x;
      owners[threadIdx.x] = {c / at.heads, static_cast<unsigned>(at.kv_head) * at.heads + c % at.heads};
    }
    if (fresh && mapped && threadIdx.x == 0) {
      for (unsigned i = 0; i < stages; ++i) barrier_make(barriers + 8 * i, narrow ? 1 + block_threads : 1);
      barrier_publish();
    }
    __syncthreads();  // barriers; an earlier pass is over
    // A pass begins with the stage after the last one's.
    unsigned stage = steps % stages;
    for (unsigned i = 0; i + 1 < stages; ++i) fetch(first + i, (stage + i) % stages);
    if (fresh) prepare_queries(at);
    if (threadIdx.x < 2) store_shared(at.base + flags_at() + 4 * threadIdx.x, 0);
    auto* const ranges = reinterpret_cast<int2*>(at.shared + ranges_at());
    if (threadIdx.x < columns) {
      const unsigned c = threadIdx.x;
      const AttendSpan s = owners[c].x < shape.rows ? seen(at, owners[c].x) : AttendSpan{};
      ranges[c] = s.hi == 0 ? int2{0, 0} : int2{static_cast<int>(s.lo - chunk_lo), static_cast<int>(s.hi - chunk_lo)};
    }
    barrier_publish();
    __syncthreads();

    float exponent[Tiles][2];  // -e
    float sum[Tiles][2];       // of this lane's keys' weights
    Sums o;
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

    for (std::size_t step = first; step < end; ++step) {
      const std::uint32_t part = at.base + stage * step_bytes();
      const unsigned turn = steps % 2;
      if (mapped) {
        barrier_wait(barriers + 8 * stage, steps / stages % 2);
      } else {
        wait_for_copies();
        __syncthreads();
      }
      float s[Tiles][4];
      score(at, part, s);
      const bool edge = step * n < reach.all_lo || step * n + n > reach.all_hi;
      if (edge) mask(at, static_cast<int>(step * n - chunk_lo), s);
      weigh(at, turn, s, exponent, sum, o);
      // Every warp is past the step before this one: its keys' place is free.
      fetch(step + stages - 1, stage == 0 ? stages - 1 : stage - 1);
      add(at, part, turn, edge ? static_cast<int>(step * n - chunk_lo) : -1, o);
      stage = stage + 1 == stages ? 0 : stage + 1;
      ++steps;
    }
    finish(at, exponent, sum, o);
  }

  __device__ void wait_for_copies() const {
    if (stages == 2) {
      copies_wait<0>();
    } else if (stages == 3) {
      copies_wait<1>();
    } else {
      copies_wait<2>();
    }
  }

  /// Scales each column's query to halves, exactly but for one rounding: a power of two of its own takes its largest
  /// element to between 2^8 and 2^9.
  __device__ void prepare_queries(const Place& at) const {
    const auto dk = static_cast<unsigned>(shape.dk);
    const auto* const owners = reinterpret_cast<const uint2*>(at.shared + owners_at());
    constexpr unsigned batch = Tiles == 1 ? 2 : 4;  // columns of a warp whose elements are on their way together
    constexpr unsigned quads = 4;                   // of a lane, for up to 512 elements
#pragma unroll 1
    for (unsigned first = at.warp * batch; first < columns; first += warps * batch) {
      float4 x[batch][quads];
#pragma unroll
      for (unsigned i = 0; i < batch; ++i) {
        const uint2 owner = owners[first + i];
        const float* const from = q + ((shape.first_row + owner.x) * shape.n_heads + owner.y) * dk;
#pragma unroll
        for (unsigned j = 0; j < quads; ++j) {
          const unsigned n = j * 32 + at.lane;
          x[i][j] = owner.x < shape.rows && n < dk / 4 ? load_quad(from + 4 * n) : float4{};
        }
      }
#pragma unroll
      for (unsigned i = 0; i < batch; ++i) {
        float top = 0.0F;
#pragma unroll
        for (unsigned j = 0; j < quads; ++j) {
          x[i][j] = {__fmul_rn(x[i][j].x, scale), __fmul_rn(x[i][j].y, scale), __fmul_rn(x[i][j].z, scale),
                     __fmul_rn(x[i][j].w, scale)};
          top = fmaxf(top, fmaxf(fmaxf(fabsf(x[i][j].x), fabsf(x[i][j].y)), fmaxf(fabsf(x[i][j].z), fabsf(x[i][j].w))));
        }
#pragma unroll
        for (unsigned distance = 16; distance != 0; distance /= 2) {
          top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, distance));
        }
        // The exponent of top, within what a float's power of two can be; infinities stay what they are.
        int e = static_cast<int>(__float_as_uint(top) >> 23) - 127 - 8;
        e = top == 0.0F || e > 119 ? 0 : e < -100 ? -100 : e;
        const float up = __uint_as_float(static_cast<unsigned>(127 - e) << 23);
        const unsigned c = first + i;
        if (at.lane == 0) {
          reinterpret_cast<float*>(at.shared + factors_at())[c] = __uint_as_float(static_cast<unsigned>(127 + e) << 23);
        }
#pragma unroll
        for (unsigned j = 0; j < quads; ++j) {
          const unsigned d = (j * 32 + at.lane) * 4;
          if (d >= dk) continue;
          const float y[4] = {__fmul_rn(x[i][j].x, up), __fmul_rn(x[i][j].y, up), __fmul_rn(x[i][j].z, up),
                              __fmul_rn(x[i][j].w, up)};
#pragma unroll
          for (unsigned n = 0; n < 2; ++n) {
            const auto place = Keys::place(d % 16, n);
            store_query(at, d / 16, c, place.reg, place.t, y[place.first], y[place.second]);
          }
        }
      }
    }
  }

  __device__ static float4 load_quad(const float* p) {
    if (reinterpret_cast<std::uintptr_t>(p) % 16 == 0) return *reinterpret_cast<const float4*>(p);
    return {p[0], p[1], p[2], p[3]};
  }

  /// Elements of places 2 t, 2 t + 1 (plus 8 if reg is 1) of 16 as a column's, in shared memory.
  __device__ void store_query(const Place& at, unsigned step, unsigned c, unsigned reg, unsigned t, float low,
                              float high) const {
    auto* const to = reinterpret_cast<std::uint32_t*>(at.shared + queries_at()) +
                     ((step * Tiles + c / 8) * 2 + reg) * 32 + c % 8 * 4 + t;
    *to = pack_halves<k_bf16>(low, high);
    if constexpr (terms == 2) {
      to[static_cast<unsigned>(shape.dk) * Tiles * 4] = pack_halves<true>(
          __fsub_rn(low, __uint_as_float(*to << 16)), __fsub_rn(high, __uint_as_float(*to & 0xFFFF0000U)));
    }
  }

  /// s[tile]: keys g and g + 8 of this warp's, columns 2 t and 2 t + 1 of the tile.
  __device__ void score(const Place& at, std::uint32_t part, float (&s)[Tiles][4]) const {
    constexpr unsigned pair_bytes = 2 * AttendFormat<KF>::group_bytes;
    const std::uint32_t lane_keys = part + at.k_quants;
    const std::uint32_t scales = part + at.k_scales;
    const AttendOperand<group> queries(at.base + queries_at(), at.lane);
    std::uint32_t query = queries.at;
    [[maybe_unused]] const std::uint32_t second = queries.step(k.dims * Tiles * 16);
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) s[i][j] = 0.0F;
    }
    __half2 top[2] = {};
    // Two groups of 32 elements at a time: their scales share a word.
    const auto decode = [&](unsigned pair, std::uint32_t(&a)[2][2][4]) {
      const unsigned byte = pair * pair_bytes;
      Keys::load((lane_keys + (byte >> k.width_shift) * step_keys * k.width) ^ (byte & (k.width - 1)), a);
      if constexpr (AttendFormat<KF>::blocks) {
        const unsigned scale = at.k_offset + pair * 4;
        const std::uint32_t word = scales + scale / 16 * step_keys * 16 + scale % 16;
        const __half2 d[2] = {half2_of(load_shared_4(word)), half2_of(load_shared_4(word + 128))};
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
          top[i] = __hmax2(top[i], __habs2(d[i]));
          const __half2 both[2] = {__low2half2(d[i]), __high2half2(d[i])};
#pragma unroll
          for (unsigned j = 0; j < 4; ++j) {  // group and step
            std::uint32_t(&r)[4] = a[j / 2][j % 2];
            r[i] = half2_bits(__hmul2(half2_of(r[i]), both[j / 2]));
            r[i + 2] = half2_bits(__hmul2(half2_of(r[i + 2]), both[j / 2]));
          }
        }
      }
    };
    const auto product = [&](const std::uint32_t(&a)[2][2][4]) {
      group_begin_if();
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        multiply<group, k_bf16>(s, a[j / 2][j % 2], query + queries.step(j * Tiles * 256));
        if constexpr (terms == 2) {
          multiply<group, k_bf16>(s, a[j / 2][j % 2], query + queries.step(j * Tiles * 256) + second);
        }
      }
      group_commit_if();
      query += queries.step(4 * Tiles * 256);
    };
    const unsigned pairs = k.dims / 64;
    unsigned pair = 0;
    for (; pair + 2 <= pairs; pair += 2) {  // one is decoded while the other is multiplied
      std::uint32_t a[2][2][2][4];
      decode(pair, a[0]);
      product(a[0]);
      decode(pair + 1, a[1]);
      product(a[1]);
      group_wait_if();
    }
    if (pair < pairs) {
      std::uint32_t a[2][2][4];
      decode(pair, a);
      product(a);
      group_wait_if();
    }
    if constexpr (AttendFormat<KF>::blocks) {
      const float most = AttendFormat<KF>::most_scale;
      const bool wild[2] = {fmaxf(__low2float(top[0]), __high2float(top[0])) > most,
                            fmaxf(__low2float(top[1]), __high2float(top[1])) > most};
      if (__any_sync(0xffffffffU, wild[0] || wild[1])) score_wild(at, part, wild, s);
    }
  }

  __device__ static void group_begin_if() {
    if constexpr (group) group_begin();
  }
  __device__ static void group_commit_if() {
    if constexpr (group) group_commit();
  }
  __device__ static void group_wait_if() {
    if constexpr (group) group_wait();
  }

  /// Keys whose values do not fit into halves: one by one, in f32.
  __device__ void score_wild(const Place& at, std::uint32_t part, const bool (&wild)[2], float (&s)[Tiles][4]) const {
    const auto* const queries = reinterpret_cast<const __half*>(at.shared + queries_at());
    float x[Tiles][4];  // indexed at run time: in memory, where `s` must not be
#pragma unroll
    for (unsigned i = 0; i < Tiles * 4; ++i) x[i / 4][i % 4] = s[i / 4][i % 4];
#pragma unroll 1
    for (unsigned i = 0; i < Tiles * 4; ++i) {
      const unsigned j = i % 4;
      if (j < 2 ? !wild[0] : !wild[1]) continue;
      const unsigned key = at.warp * 16 + at.g + j / 2 * 8;
      float y = 0.0F;
#pragma unroll 1
      for (unsigned n = 0; n < k.dims; ++n) {  // n: place in the products' order
        const unsigned e = n / 32 * 32 + Keys::element(n / 16 % 2, n % 8 / 2, n / 8 % 2, n % 2);
        const __half w = queries[((n / 16 * Tiles + i / 4) * 2 + n / 8 % 2) * 64 + (2 * at.t + j % 2) * 8 + n % 8];
        y = __fmaf_rn(__half2float(w), k.value(part, key, e, at.k_offset), y);
      }
      x[i / 4][j] = y;
    }
#pragma unroll
    for (unsigned i = 0; i < Tiles * 4; ++i) s[i / 4][i % 4] = x[i / 4][i % 4];
  }

  /// Scores of keys that a column does not see become -inf.
  __device__ void mask(const Place& at, int first, float (&s)[Tiles][4]) const {
    const auto* const ranges = reinterpret_cast<const int2*>(at.shared + ranges_at());
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

  /// Weights of this warp's keys into shared memory, for all warps. A column whose exponent is too small for one of the
  /// step's keys takes the step's largest score instead; what it has so far is scaled. Ends with all warps' weights
  /// visible.
  __device__ void weigh(const Place& at, unsigned turn, const float (&s)[Tiles][4], float (&exponent)[Tiles][2],
                        float (&sum)[Tiles][2], Sums& o) const {
    const auto* const factors = reinterpret_cast<const float2*>(at.shared + factors_at());
    const std::uint32_t flags = at.base + flags_at() + turn * 4;
    auto* const maxima = reinterpret_cast<float*>(at.shared + maxima_at()) + turn * warps * columns;
    float more[Tiles][2];
    bool over = store_weights(at, turn, s, exponent, more);
    over = __any_sync(0xffffffffU, over);
    if (at.lane == 0) store_shared_byte(flags + at.warp, over ? 1 : 0);
    if (over) {
#pragma unroll
      for (unsigned i = 0; i < Tiles; ++i) {
        const float2 factor = factors[4 * i + at.t];
#pragma unroll
        for (unsigned j = 0; j < 2; ++j) {
          float top = __fmul_rn(fmaxf(s[i][j], s[i][j + 2]), j == 0 ? factor.x : factor.y);
#pragma unroll
          for (unsigned distance = 4; distance < 32; distance *= 2) {
            top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, distance));
          }
          if (at.g == 0) maxima[at.warp * columns + 8 * i + 2 * at.t + j] = top;
        }
      }
    }
    barrier_publish();
    __syncthreads();
    const std::uint32_t passed = load_shared_4(flags);
    if (passed != 0) {  // the same for every thread
#pragma unroll
      for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
        for (unsigned j = 0; j < 2; ++j) {
          float top = -INFINITY;
#pragma unroll 1
          for (unsigned w = 0; w < warps; ++w) {
            if ((passed >> (8 * w) & 1U) != 0) top = fmaxf(top, maxima[w * columns + 8 * i + 2 * at.t + j]);
          }
          if (__fadd_rn(top, exponent[i][j]) > attend_top) {
            const float now = __fsub_rn(attend_top - attend_slack, top);
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
      barrier_publish();
      __syncthreads();
    }
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
      for (unsigned j = 0; j < 2; ++j) sum[i][j] = __fadd_rn(sum[i][j], more[i][j]);
    }
  }

  /// @param more  sums of this lane's two weights of a column
  /// @return whether a weight passes the top
  __device__ bool store_weights(const Place& at, unsigned turn, const float (&s)[Tiles][4],
                                const float (&exponent)[Tiles][2], float (&more)[Tiles][2]) const {
    const auto* const factors = reinterpret_cast<const float2*>(at.shared + factors_at());
    const std::uint32_t to = at.base + weights_at() + turn * weights_bytes + at.warp * Tiles * 256;
    bool over = false;
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
      store_turned(to + i * 256, pack_halves<v_bf16>(p[0], p[1]), pack_halves<v_bf16>(p[2], p[3]), at.lane);
    }
    return over;
  }

  /// o += V^T times weights, for this warp's elements.
  /// @param edge  first key, from the chunk's on, of a step that some column does not see all of; else -1
  __device__ void add(const Place& at, std::uint32_t part, unsigned turn, int edge, Sums& o) const {
    const std::uint32_t weights = at.base + weights_at() + turn * weights_bytes;
    if constexpr (AttendFormat<VF>::blocks) {
#pragma unroll
      for (unsigned i = 0; i < groups; ++i) add_wild(at, part, i, weights, o);
    } else if (edge >= 0 && __syncthreads_or(wild_values(at, part)) != 0) {
      return add_by_rows(at, part, weights, edge, o);
    }
    const std::uint32_t operand = AttendOperand<group>(weights, at.lane).at;
    // While some are multiplied others are decoded, if there are registers for it.
    constexpr unsigned ahead = step_keys == 64 && groups * Tiles <= 8 ? 2 : 1;
#pragma unroll 1
    for (unsigned key = 0; key < step_keys; key += 32 * ahead) {
      std::uint32_t a[ahead][groups][2][2][4];
#pragma unroll
      for (unsigned n = 0; n < ahead; ++n) {
#pragma unroll
        for (unsigned i = 0; i < groups; ++i) load_values(at, part, i, key + 32 * n, a[n][i]);
        products(a[n], operand + AttendOperand<group>::step((key / 16 + 2 * n) * Tiles * 256), o);
      }
      group_wait_if();
    }
  }

  /// Keys [key, key + 32) of group i.
  __device__ void load_values(const Place& at, std::uint32_t part, unsigned i, unsigned key,
                              std::uint32_t (&a)[2][2][4]) const {
    Values::load(part + at.v_quants[i] + key * v.width, v.width, part + at.v_scales[i] + key * 16,
                 part + at.v_fifths[i] + key * 16, at.v_upper[i], at.lane, a);
  }

  __device__ static void products(const std::uint32_t (&a)[groups][2][2][4], std::uint32_t weights, Sums& o) {
    group_begin_if();
#pragma unroll
    for (unsigned step = 0; step < 2; ++step) {
#pragma unroll
      for (unsigned i = 0; i < 2 * groups; ++i) {
        multiply<group, v_bf16>(o[i], a[i / 2][step][i % 2], weights + AttendOperand<group>::step(step * Tiles * 256));
      }
    }
    group_commit_if();
  }

  /// V of keys whose values do not fit into halves, or are not finite: added one by one, in f32, to the columns that
  /// give them weight; then their scales become 0.
  __device__ void add_wild(const Place& at, std::uint32_t part, unsigned i, std::uint32_t weights, Sums& o) const {
    const std::uint32_t scales = part + at.v_scales[i] - 2 * at.t * 16;
    for (unsigned first = 0; first < step_keys; first += 32) {
      const std::uint32_t word = load_shared_4(scales + (first + at.lane) * 16);
      const __half2 size = __habs2(half2_of(word));
      bool wild = !(__half2float(VF != Format::q5_1 && at.v_upper[i] ? __high2half(size) : __low2half(size)) <=
                    AttendFormat<VF>::most_scale);
      if constexpr (VF == Format::q5_1) {
        wild = wild || !(__half2float(__high2half(size)) <= AttendFormat<VF>::most_offset);
      }
      for (unsigned all = __ballot_sync(0xffffffffU, wild); all != 0; all &= all - 1) {
        const unsigned key = first + static_cast<unsigned>(__ffs(static_cast<int>(all))) - 1;
        add_one(at, part, weights, i, key, o);
        __syncwarp();
        if (at.lane == 0) {
          if constexpr (VF == Format::q5_1) {
            store_shared(scales + key * 16, 0);
          } else {
            store_shared_half(scales + key * 16 + (at.v_upper[i] ? 2 : 0), 0);
          }
          barrier_publish();
        }
        __syncwarp();
      }
    }
  }

  __device__ void add_one(const Place& at, std::uint32_t part, std::uint32_t weights, unsigned i, unsigned key,
                          Sums& o) const {
    const unsigned offset = VStage::box_offset(at.kv_head * shape.dv, VStage::scale_bytes);
    float x[4];  // tile, half
#pragma unroll
    for (unsigned n = 0; n < 4; ++n) {
      x[n] = v.value(part + k.bytes, key, (at.warp * groups + i) * 32 + Values::element(n / 2, at.g, n % 2), offset);
    }
#pragma unroll
    for (unsigned tile = 0; tile < Tiles; ++tile) {
#pragma unroll
      for (unsigned j = 0; j < 2; ++j) {
        const std::uint32_t w = load_shared_4(weights + ((key / 16 * Tiles + tile) * 2 + key / 8 % 2) * 128 +
                                              (2 * at.t + j) * 16 + key % 8 / 2 * 4);
        const float p = __half2float(key % 2 == 0 ? __low2half(half2_of(w)) : __high2half(half2_of(w)));
        if (p == 0.0F) continue;
#pragma unroll
        for (unsigned n = 0; n < 4; ++n) {
          float& sum = o[2 * i + n / 2][tile][n % 2 * 2 + j];
          sum = __fmaf_rn(p, x[n], sum);
        }
      }
    }
  }

  /// Whether this lane finds an infinity or NaN among its keys' elements of the warp's group.
  __device__ bool wild_values(const Place& at, std::uint32_t part) const {
    bool wild = false;
    for (unsigned key = at.lane; key < step_keys; key += 32) {
      constexpr unsigned pieces = groups * AttendFormat<VF>::group_bytes / 16;
      for (unsigned i = 0; i < pieces; ++i) {
        const uint4 w = load_shared_16(part + k.bytes + v.piece_at(key, at.warp * pieces + i));
        wild = wild || AttendFormat<VF>::wild(w.x) || AttendFormat<VF>::wild(w.y) || AttendFormat<VF>::wild(w.z) ||
               AttendFormat<VF>::wild(w.w);
      }
    }
    return wild;
  }

  /// As `add`, where V has values that are not finite in keys that some columns do not see: those must not meet even
  /// weights of 0. Row by row, with the keys it does not see as zeros, for its columns: the bits are those of a call
  /// that has this row alone.
  __device__ void add_by_rows(const Place& at, std::uint32_t part, std::uint32_t weights, int first, Sums& o) const {
    const auto* const ranges = reinterpret_cast<const int2*>(at.shared + ranges_at());
    const auto* const owners = reinterpret_cast<const uint2*>(at.shared + owners_at());
    const std::uint32_t operand = AttendOperand<group>(weights, at.lane).at;
#pragma unroll 1
    for (unsigned row = at.row_a; row <= at.row_b; ++row) {
      const unsigned begin = row * at.heads < at.first_column ? 0 : row * at.heads - at.first_column;
      const int2 seen = ranges[begin];
      Sums x;
#pragma unroll
      for (unsigned i = 0; i < 2 * groups; ++i) {
#pragma unroll
        for (unsigned j = 0; j < 4 * Tiles; ++j) x[i][j / 4][j % 4] = o[i][j / 4][j % 4];
      }
#pragma unroll 1
      for (unsigned key = 0; key < step_keys; key += 32) {
        std::uint32_t a[groups][2][2][4];
#pragma unroll
        for (unsigned i = 0; i < groups; ++i) {
          load_values(at, part, i, key, a[i]);
#pragma unroll
          for (unsigned j = 0; j < 16; ++j) {
            const int own = first + static_cast<int>(key + j / 8 * 16 + j % 4 / 2 * 8 + 2 * at.t);
            const std::uint32_t low = own >= seen.x && own < seen.y ? 0x0000FFFFU : 0;
            const std::uint32_t high = own + 1 >= seen.x && own + 1 < seen.y ? 0xFFFF0000U : 0;
            a[i][j / 8][j / 4 % 2][j % 4] &= low | high;
          }
        }
        products(a, operand + AttendOperand<group>::step(key / 16 * Tiles * 256), x);
        group_wait_if();
      }
#pragma unroll
      for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) {
          if (owners[8 * i + 2 * at.t + j % 2].x != row) continue;
#pragma unroll
          for (unsigned n = 0; n < 2 * groups; ++n) o[n][i][j] = x[n][i][j];
        }
      }
    }
  }

  __device__ void finish(const Place& at, const float (&exponent)[Tiles][2], float (&sum)[Tiles][2],
                         const Sums& o) const {
    auto* const sums = reinterpret_cast<float*>(at.shared + maxima_at());
    const auto* const owners = reinterpret_cast<const uint2*>(at.shared + owners_at());
    const auto* const ranges = reinterpret_cast<const int2*>(at.shared + ranges_at());
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
#pragma unroll
    for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
      for (unsigned j = 0; j < 2; ++j) {
        const unsigned c = 8 * i + 2 * at.t + j;
        if (ranges[c].y == 0) continue;
        float* const to = shape.partial(partials, owners[c].x, owners[c].y, at.chunk);
        float* const own = to + at.slice * slice_dims + at.warp * groups * 32;
#pragma unroll
        for (unsigned n = 0; n < 2 * groups; ++n) {
          own[n / 2 * 32 + Values::element(n % 2, at.g, 0)] = o[n][i][j];
          own[n / 2 * 32 + Values::element(n % 2, at.g, 1)] = o[n][i][j + 2];
        }
        if (at.warp == 0 && at.g == 0 && at.slice == 0) {
          float l = sums[c];
          for (unsigned w = 1; w < warps; ++w) l = __fadd_rn(l, sums[w * columns + c]);
          to[shape.dv] = -exponent[i][j];
          to[shape.dv + 1] = l;
        }
      }
    }
  }
};

}  // namespace memra::detail
