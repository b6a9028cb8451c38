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

#include <cstddef>
#include <cstdint>
#include <memra/cuda/attend_block.cuh>
#include <memra/cuda/attend_grid.cuh>
#include <memra/cuda/attend_mma.cuh>
#include <memra/cuda/attend_partial.cuh>
#include <memra/detail/attend_sequence.hpp>
#include <memra/launch.hpp>

namespace memra::detail {

/// One block: one chunk of one kv head, up to 8 * Tiles columns, of which each is a (row, query head). Warp w scores
/// keys [16 w, 16 w + 16) of a step for all columns; the weights go through shared memory; then warp w adds up its
/// elements of V over all keys of the step. So each element is decoded once, whatever the number of rows and heads.
template <class Block>
struct CudaAttend : CudaAttendPartial<Block> {
  using Base = CudaAttendPartial<Block>;
  using Base::add;
  using Base::barriers_at;
  using Base::Base;
  using Base::begin_chunk;
  using Base::blank;
  using Base::block_threads;
  using Base::boxes;
  using Base::boxes_at;
  using Base::columns;
  using Base::finish;
  using Base::flags_at;
  using Base::groups;
  using Base::k;
  using Base::keep;
  using Base::load_queries;
  using Base::mapped;
  using Base::mask;
  using Base::owners_at;
  using Base::prepare_queries;
  using Base::ranges_at;
  using Base::roomy;
  using Base::score;
  using Base::shape;
  using Base::slice_dims;
  using Base::slices;
  using Base::span;
  using Base::stages;
  using Base::step_bytes;
  using Base::step_keys;
  using Base::steps_at;
  using Base::tiles;
  using Base::v;
  using Base::warps;
  using Base::weigh;
  using Base::wild_scales;
  using typename Base::Batch;
  using typename Base::KStage;
  using typename Base::Place;
  using typename Base::Sums;
  using typename Base::Values;
  using typename Base::VStage;
  static constexpr unsigned Tiles = Block::n_tiles;
  static_assert(Base::chunk_unit % step_keys == 0 && attend_least_chunk % Base::chunk_unit == 0 &&
                attend_long_chunk % Base::chunk_unit == 0);

  /// Item: (kv head, slice, tile of columns; chunk among those that its rows see). Heads side by side: their rows lie
  /// side by side in memory.
  __device__ void block(const Item& item) const { run<false>(item, {}, 0, nullptr); }

  /// For CudaAttendShares: whether the item has a row; a sequence's own queries; its chunks that begin in `units`;
  /// memory that is free until then.
  __device__ bool has(const Item& item) const {
    const unsigned heads = static_cast<unsigned>(shape.n_heads) / static_cast<unsigned>(shape.n_kv_heads);
    return static_cast<unsigned>(item.x) % tiles * columns < heads * static_cast<unsigned>(shape.rows);
  }
  __device__ void take(std::size_t first_row) { Base::q += first_row * shape.n_heads * Base::dk; }
  __device__ void turn(const Item& item, AttendUnits units, std::int32_t pos, const AttendSequence& s) const {
    run<true>(item, units, pos, &s);
  }
  __device__ static std::byte* shared() {
    extern __shared__ __align__(1024) std::byte memra_attend_shared[];
    return memra_attend_shared;
  }

 private:
  /// @tparam Several  the chunks that begin in `units`, one after the other; else the item's
  template <bool Several>
  __device__ void run(const Item& item, AttendUnits units, std::int32_t pos, const AttendSequence* sequence) const {
    let_next_begin();
    Place at = place(item);
    at.sequence = sequence;
    if (mapped && at.lane < boxes) {
      const unsigned i = at.lane;
      const AttendBox box = i < KStage::boxes
                                ? KStage::box(k_source<Several>(at), i, at.k_element, 0)
                                : VStage::box(v_source<Several>(at), i - KStage::boxes, at.v_element, KStage::bytes);
      if (at.warp == 0) {
        reinterpret_cast<AttendBox*>(at.shared + boxes_at)[i] = box;
        if constexpr (Several) map_acquire(box.map);  // once for the block
      }
    }
    if (threadIdx.x < 4) store_shared(at.base + flags_at + 4 * threadIdx.x, 0);
    if (mapped && threadIdx.x == 0) {
      for (unsigned i = 0; i < stages; ++i) barrier_make(at.base + barriers_at + 8 * i, 1);
      barrier_publish();
    }
    Batch queries;
    unsigned steps = 0;
    bool started = false;
    if constexpr (Several || Tiles > 1) {
      if constexpr (!Several) {
        wait_for_previous();
        pos = uniform(*shape.pos_d);
      }
      load_queries(at, at.warp * Base::batch, queries);
    } else {
      pos = begin(item, at, queries, steps, started);
    }
    uint2 a = span(pos, at.row_a);
    uint2 b = span(pos, at.row_b);
    if constexpr (Several) {  // what is a sequence's own comes from memory
      a = {uniform(a.x), uniform(a.y)};
      b = {uniform(b.x), uniform(b.y)};
    }
    if (b.x >= b.y) return;
    // Rows on both sides of a rung of the grid: once more, for those on the other side.
    const unsigned size_a = shape.chunk_keys(a.y == 0 ? b.y : a.y);
    const unsigned size_b = shape.chunk_keys(b.y);
    bool fresh = true;
    for (at.size = size_a;; at.size = size_b) {
      if constexpr (Several) {
        const unsigned whole = at.size / Base::chunk_unit;
        at.chunk = uniform((units.first + whole - 1) / whole);
        at.chunks = uniform((units.end + whole - 1) / whole) - at.chunk;
      } else {
        at.chunk = a.x / at.size + static_cast<unsigned>(item.y);
      }
      pass<Several>(at, pos, a, b, size_a != size_b, fresh, queries, steps, started);
      if (at.size == size_b) return;
    }
  }

  /// Waits for the kernel before, having worked out what to copy first from the position as it was until then: it
  /// nearly always stays that, and copies arrive while it is read again.
  /// @param steps    of which copies were started
  /// @param started  and are those of the first pass
  /// @return the position
  __device__ std::int32_t begin(const Item& item, Place& at, Batch& queries, unsigned& steps, bool& started) const {
    auto* const told = reinterpret_cast<std::int32_t*>(at.shared + ranges_at);
    if (threadIdx.x == 0) *told = load_now(shape.pos_d);  // one for all threads
    __syncthreads();
    const std::int32_t guess = uniform(*told);
    const uint2 a = span(guess, at.row_a);
    const uint2 b = span(guess, at.row_b);
    Steps ahead{};
    if (b.x < b.y) {
      at.size = shape.chunk_keys(a.y == 0 ? b.y : a.y);
      at.chunk = a.x / at.size + static_cast<unsigned>(item.y);
      ahead = steps_of(at, a, b);
    }
    wait_for_previous();
    const std::int32_t now = *shape.pos_d;
    load_queries(at, at.warp * Base::batch, queries);
    start<false>(at, ahead, 0);
    const std::int32_t pos = uniform(now);
    started = pos == guess && ahead.first < ahead.end;
    if (pos == guess) return pos;
    if (mapped) {
      for (; steps + 1 < stages && ahead.first + steps < ahead.end; ++steps) {
        barrier_wait(at.base + barriers_at + 8 * steps, 0);
      }
    } else {
      copies_wait<0>();
    }
    return pos;
  }

  __device__ Place place(const Item& item) const {
    Place at;
    at.shared = shared();
    at.base = shared_address(at.shared);
    at.warp = uniform(threadIdx.x / 32);
    at.lane = threadIdx.x % 32;
    at.g = at.lane / 4;
    at.t = at.lane % 4;
    at.heads = static_cast<unsigned>(shape.n_heads) / static_cast<unsigned>(shape.n_kv_heads);
    const auto x = static_cast<unsigned>(item.x);
    const unsigned y = x / tiles;
    at.first_column = (x - y * tiles) * columns;
    at.kv_head = slices == 1 ? y : y / slices;
    at.slice = y - at.kv_head * slices;
    at.chunks = 1;
    at.k_element = at.kv_head * Base::dk;
    at.v_element = at.kv_head * static_cast<unsigned>(shape.dv) + at.slice * slice_dims;
    at.k_quants = keep(KStage::piece_at(at.warp * 16 + at.lane % 16, at.lane / 16));
    at.k_scales = KStage::scales_at + KStage::word_at(at.warp * 16 + at.g, KStage::column_offset(at.k_element));
    at.v_bits = Values::lane_bits(at.lane);
    if constexpr (VStage::fives) at.v_bits = {keep(at.v_bits.x), keep(at.v_bits.y)};
#pragma unroll
    for (unsigned i = 0; i < groups; ++i) {
      const unsigned n = at.warp * groups + i;
      const unsigned byte = VStage::column_offset(at.v_element) + n * VStage::scale_bytes;
      at.v_quants[i] =
          keep(KStage::bytes + VStage::piece_at(Values::lane_key(at.lane), Values::lane_piece(at.lane, n)));
      at.v_scales[i] = keep(KStage::bytes + VStage::scales_at + VStage::word_at(2 * at.t, byte & ~3U));
      at.v_fifths[i] = at.v_scales[i] + VStage::fifths_at - VStage::scales_at;  // where there are any
      at.v_upper[i] = (byte & 2U) != 0;
    }
    at.row_a = at.first_column / at.heads;
    const unsigned last = (at.first_column + columns - 1) / at.heads;
    const auto rows = static_cast<unsigned>(shape.rows);
    at.row_b = last < rows ? last : rows - 1;
    return at;
  }

  /// A sequence's own planes stay in its table: they are more than the registers of the loop have room for.
  template <bool Several>
  __device__ AttendSource k_source(const Place& at) const {
    if constexpr (Several) return {at.sequence->k, reinterpret_cast<const CUtensorMap*>(at.sequence->k_boxes)};
    return {k.plane, k.maps};
  }
  template <bool Several>
  __device__ AttendSource v_source(const Place& at) const {
    if constexpr (Several) return {at.sequence->v, reinterpret_cast<const CUtensorMap*>(at.sequence->v_boxes)};
    return {v.plane, v.maps};
  }

  /// A step's copies: by the engine, its boxes dealt to all warps, a lane each, for what one warp alone does the others
  /// wait for (where there are no registers for that: to one, the warps taking turns); or a share of them by every
  /// thread.
  /// @param to      the step's part of shared memory
  /// @param lo, hi  keys outside are not read without the engine
  template <bool Several>
  __device__ void fetch(const Place& at, unsigned step, unsigned end, std::uint32_t to, std::uint32_t barrier,
                        unsigned lo, unsigned hi) const {
    if (mapped) {
      if (step >= end || (!roomy && step % warps != at.warp)) return;
      if ((!roomy || at.warp == warps - 1) && at.lane == 0) barrier_expect(barrier, KStage::used + VStage::used);
      const unsigned own = roomy ? at.warp + at.lane * warps : at.lane;
      if (own < boxes) {
        const AttendBox b = reinterpret_cast<const AttendBox*>(at.shared + boxes_at)[own];
        const auto row = static_cast<int>(step * step_keys - b.base);
        constexpr int words = KStage::row_words;
        copy_box_async(to + b.to, b.map, b.columns ? row * words : b.at, b.columns ? b.at : row, barrier);
      }
    } else {
      if (step < end) {
        k.copy(k_source<Several>(at).plane, to, step * step_keys, lo, hi, at.k_element);
        v.copy(v_source<Several>(at).plane, to + KStage::bytes, step * step_keys, lo, hi, at.v_element);
      }
      copies_commit();
    }
  }

  /// Steps [first, end), of which keys [lo, hi) are wanted.
  struct Steps {
    unsigned lo, hi, first, end;
  };
  /// Of the block's chunks, what some of the rows sees of which the first and the last see `a` and `b`.
  __device__ static Steps steps_of(const Place& at, uint2 a, uint2 b) {
    const unsigned run_lo = at.chunk * at.size;
    const unsigned run_hi = run_lo + at.chunks * at.size;
    const unsigned lo = a.x > run_lo ? a.x : run_lo;
    const unsigned hi = b.y < run_hi ? b.y : run_hi;
    if (lo >= hi) return {};
    return {lo, hi, lo / step_keys, (hi + step_keys - 1) / step_keys};
  }
  /// Starts the copies of as many as are on their way at a time, the first to place `stage`.
  template <bool Several>
  __device__ void start(const Place& at, const Steps& s, unsigned stage) const {
#pragma unroll 1
    for (unsigned i = 0; i + 1 < stages; ++i) {
      const unsigned n = (stage + i) % stages;
      fetch<Several>(at, s.first + i, s.end, at.base + steps_at + n * step_bytes, at.base + barriers_at + 8 * n, s.lo,
                     s.hi);
    }
  }

  /// The rows whose chunks have at.size keys: at.chunks chunks of theirs.
  /// @param a, b   keys that the first and the last row of the block see; those between see keys between
  /// @param mixed  not all rows have chunks of this size
  /// @param fresh  the queries are yet to be prepared
  /// @param steps  barriers' steps so far, over all passes
  /// @param started  its first copies are on their way already
  template <bool Several>
  __device__ void pass(Place& at, std::int32_t pos, uint2 a, uint2 b, bool mixed, bool& fresh, Batch& queries,
                       unsigned& steps, bool& started) const {
    constexpr unsigned n = step_keys;
    const unsigned run_lo = at.chunk * at.size;
    const unsigned run_hi = run_lo + at.chunks * at.size;
    const auto [lo, hi, first, end] = steps_of(at, a, b);
    if (first == end) return;
    const unsigned all_lo = mixed ? hi : b.x;  // what every row sees
    const unsigned all_hi = a.y;
    const std::uint32_t steps_from = at.base + steps_at;
    const std::uint32_t steps_to = steps_from + stages * step_bytes;
    const std::uint32_t barriers = at.base + barriers_at;
    __syncthreads();  // boxes and barriers; an earlier pass is over
    // A pass begins with the stage after the last one's.
    unsigned stage = steps % stages;
    std::uint32_t part = steps_from + stage * step_bytes;
    if (!started) start<Several>(at, {lo, hi, first, end}, stage);
    started = false;
    std::uint32_t before = (stage == 0 ? steps_to : part) - step_bytes;  // the part of the step before
    if (fresh) prepare_queries(at, queries);
    fresh = false;
    auto* const owners = reinterpret_cast<uint2*>(at.shared + owners_at);
    auto* const ranges = reinterpret_cast<uint2*>(at.shared + ranges_at);
    if (threadIdx.x < columns) {
      const unsigned c = at.first_column + threadIdx.x;
      const unsigned row = c / at.heads;
      uint2 r = {0, 0};
      if (row < shape.rows) {
        r = span(pos, row);
        owners[threadIdx.x].y = shape.place(row, at.kv_head * at.heads + (c - row * at.heads)) - r.x / at.size;
        if (mixed && (r.y == 0 || shape.chunk_keys(r.y) != at.size)) r.y = 0;
        r = {r.x > run_lo ? r.x : run_lo, r.y < run_hi ? r.y : run_hi};
        r = r.x < r.y ? uint2{r.x - run_lo, r.y - run_lo} : uint2{0, 0};
      }
      ranges[threadIdx.x] = r;
      owners[threadIdx.x].x = row;
    }
    barrier_publish();
    __syncthreads();

    float exponent[Tiles][2];  // -e
    float sum[Tiles][2];       // of this lane's keys' weights
    Sums o;
    begin_chunk(exponent, sum, o);
    unsigned chunk = lo / at.size;

    unsigned phase = steps / stages % 2;
#pragma unroll 1
    for (unsigned step = first; step < end; ++step) {
      const unsigned turn = steps % 2;
      if (mapped) {
        barrier_wait(barriers + 8 * stage, phase);
      } else {
        wait_for_copies();
        __syncthreads();
      }
      if (mapped && step * n + n > hi) blank(at, part, hi - step * n);
      float s[Tiles][4];
      const bool wild = wild_scales(at, part);
      score(at, part, s);
      const bool edge = step * n < all_lo || step * n + n > all_hi;
      if (edge) mask(at, step * n - run_lo, s);
      const bool some_wild = weigh(at, turn, wild, s, exponent, sum, o);
      add(at, part, turn, some_wild, edge ? static_cast<int>(step * n - run_lo) : -1, o, [&] {
        // Every warp is past the step before this one: its keys' place is free.
        fetch<Several>(at, step + stages - 1, end, before, barriers + 8 * (stage == 0 ? stages - 1 : stage - 1), lo,
                       hi);
      });
      before = part;
      part += step_bytes;
      if (++stage == stages) {
        stage = 0;
        part = steps_from;
        phase ^= 1;
      }
      ++steps;
      if constexpr (Several) {
        if ((step + 1) * n != (chunk + 1) * at.size && step + 1 != end) continue;
        finish(at, chunk, chunk * at.size - run_lo, exponent, sum, o);
        begin_chunk(exponent, sum, o);
        ++chunk;
        __syncthreads();  // the sums' place is free
      }
    }
    if constexpr (!Several) finish(at, chunk, 0, exponent, sum, o);
  }

  __device__ void wait_for_copies() const {
    if (stages == 2) {
      copies_wait<0>();
    } else {
      copies_wait<1>();
    }
  }
};

}  // namespace memra::detail
