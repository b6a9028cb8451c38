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
#include <memra/cuda/attend_add.cuh>
#include <memra/cuda/attend_block.cuh>
#include <memra/cuda/attend_grid.cuh>
#include <memra/cuda/attend_mma.cuh>
#include <memra/launch.hpp>

namespace memra::detail {

/// One block: one chunk of one kv head, up to 8 * Tiles columns, of which each is a (row, query head). Warp w scores
/// keys [16 w, 16 w + 16) of a step for all columns; the weights go through shared memory; then warp w adds up its
/// elements of V over all keys of the step. So each element is decoded once, whatever the number of rows and heads.
template <class Block>
struct CudaAttend : CudaAttendAdd<Block> {
  using Base = CudaAttendAdd<Block>;
  using Base::add;
  using Base::barriers_at;
  using Base::Base;
  using Base::block_threads;
  using Base::boxes_at;
  using Base::columns;
  using Base::flags_at;
  using Base::groups;
  using Base::k;
  using Base::mapped;
  using Base::mask;
  using Base::maxima_at;
  using Base::narrow;
  using Base::owners_at;
  using Base::partials;
  using Base::prepare_queries;
  using Base::ranges_at;
  using Base::score;
  using Base::seen;
  using Base::shape;
  using Base::slice_dims;
  using Base::slices;
  using Base::stages;
  using Base::step_bytes;
  using Base::step_keys;
  using Base::tiles;
  using Base::v;
  using Base::warps;
  using Base::weigh;
  using typename Base::KStage;
  using typename Base::Place;
  using typename Base::Sums;
  using typename Base::Values;
  using typename Base::VStage;
  static constexpr unsigned Tiles = Block::n_tiles;

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
  /// Keys that the rows of this pass see in the chunk.
  struct Reach {
    std::size_t lo = ~std::size_t{0};  ///< some row
    std::size_t hi = 0;
    std::size_t all_lo = 0;  ///< every row
    std::size_t all_hi = ~std::size_t{0};
  };

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
