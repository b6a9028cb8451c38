// The kernels of attend for many sequences in one launch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memra/batch_views.hpp>
#include <memra/cuda/api.hpp>
#include <memra/cuda/attend_grid.cuh>
#include <memra/cuda/attend_mma.cuh>
#include <memra/detail/attend_sequence.hpp>
#include <memra/launch.hpp>

namespace memra::detail {

/// What is a sequence's own of what the kernels of a call know, and never changes.
__device__ inline void take_sequence(CudaAttendShape& shape, const AttendSequence& s) {
  shape.base = static_cast<std::size_t>(s.range.base);
  shape.end = static_cast<std::size_t>(s.range.end);
  shape.pos_d = s.kv.at.pos_d;
}
/// And its rows.
/// @return whether it has some in this pass
__device__ inline bool take_rows(CudaAttendShape& shape, AttendBatchView::Rows rows) {
  if (rows.count <= shape.first_row) return false;
  const std::size_t left = rows.count - shape.first_row;
  if (left < shape.rows) shape.rows = left;
  return true;
}

/// A kernel of one sequence for those of a batch. A block finds its sequence in the table and is then what a block of a
/// single call is: the same bits. What all have in common stays in the launch's parameters.
///
/// Item: as that kernel's, its z times the sequences.
template <class One>
struct CudaAttendBatch {
  static constexpr unsigned block_threads = One::block_threads;
  static constexpr bool waits_itself = true;

  One one;
  AttendBatchView batch;
  std::size_t stride;  ///< of sequences' partial results

  /// The table is read before the wait: AttendBatch waits for the device when it has written it, and nobody else does.
  __device__ void block(const Item& item) const {
    const std::size_t depth = one.depth();
    const std::size_t sequence = item.z / depth;
    const Item mine{item.x, item.y, item.z - sequence * depth};
    const AttendSequence& s = batch.table[sequence];
    One own = one;
    own.partials += sequence * stride;
    take_sequence(own.shape, s);
    [[maybe_unused]] const std::int32_t guess = load_now(own.shape.pos_d);
    wait_for_previous();
    // Not before: blocks of the next launch would begin among the last of the one before this (docs/gpu_attend.md).
    let_next_begin();
    const AttendBatchView::Rows rows = batch.rows_of(sequence);
    if (!take_rows(own.shape, rows) || !own.has(mine)) return;
    own.take(s, rows.first);
    if constexpr (requires { own.block(mine, guess); }) {
      own.block(mine, guess);
    } else {
      own.block(mine);
    }
  }
};

/// The same for kernels of which a multiprocessor holds so many blocks.
template <class One>
struct CudaAttendBatchBounded : CudaAttendBatch<One> {
  static constexpr unsigned least_blocks = One::least_blocks;
};

/// The same for kernels with shared memory.
template <class One>
struct CudaAttendBatchShared : CudaAttendBatch<One> {
  std::size_t shared_bytes() const noexcept { return this->one.shared_bytes(); }
};

/// The tensor cores' kernel for the sequences of a batch. Each sequence's chunks are dealt to one or more blocks, in
/// shares that are as even as they can be with so many blocks as the device holds at a time: so blocks end together,
/// however unlike the sequences are. Who has which is worked out from the positions on the device, by each block for
/// itself. The chunks are those of a single call, and so are the bits: who computes a chunk changes none.
///
/// Item: (that kernel's x; share).
template <class One>
struct CudaAttendShares {
  static constexpr unsigned block_threads = One::block_threads;
  /// Unlike a single call's, registers are not bounded for the fold's blocks to find room: those of a few sequences
  /// would all be there at once, and of the next launch's blocks some come late (docs/gpu_attend.md).
  static constexpr unsigned least_blocks = One::running_blocks;
  static constexpr bool waits_itself = true;
  /// More sequences are a share each.
  static constexpr unsigned most_sequences = 512;
  static constexpr float start_units = 128.0F / One::chunk_unit;  ///< what a block's beginning costs
  static_assert(most_sequences * sizeof(float) <= One::maxima_at);

  One one;
  AttendBatchView batch;
  std::size_t stride;  ///< of sequences' partial results
  unsigned at_a_time;  ///< shares that the device computes
  unsigned shares;     ///< to launch: at least two for each sequence and as many as run at a time

  CudaAttendShares(const One& kernel, const AttendBatchView& b, std::size_t s, std::size_t wave) noexcept
      : one(kernel),
        batch(b),
        stride(s),
        at_a_time(static_cast<unsigned>(std::max<std::size_t>(wave, 1))),
        shares(static_cast<unsigned>(b.n)) {
    if (b.n <= most_sequences) shares = (2 * shares + at_a_time - 1) / at_a_time * at_a_time;
  }

  std::size_t shared_bytes() const noexcept { return one.shared_bytes(); }
  void complete(const CudaApi::Driver& driver) noexcept {
    one.complete(driver);
    one.mapped = one.mapped && batch.described;
  }

  /// Which share is its own a block works out while the kernel before this one ends, from positions and rows as they
  /// are until then. Nearly always they stay that: what it then waits for is one look at memory.
  __device__ void block(const Item& item) const {
    let_next_begin();
    const auto wanted = static_cast<unsigned>(item.y);
    const bool dealt = batch.n <= most_sequences;
    Share s = dealt ? share(item) : Share{wanted, 0, 1};
    wait_for_previous();
    AttendBatchView::Rows rows = batch.rows_of(s.sequence);
    std::int32_t pos = *batch.table[s.sequence].kv.at.pos_d;
    if (dealt && block_any(changed(item))) {
      s = share(item);
      rows = batch.rows_of(s.sequence);
      pos = *batch.table[s.sequence].kv.at.pos_d;
    }
    s.sequence = uniform(s.sequence);
    const AttendSequence& sequence = batch.table[s.sequence];
    One own = one;
    own.partials += s.sequence * stride;
    take_sequence(own.shape, sequence);
    if (s.of == 0 || !take_rows(own.shape, rows) || !own.has(item)) return;
    own.take(rows.first);
    AttendUnits u = own.shape.units(pos);
    const std::size_t n = u.end - u.first;
    u.end = u.first + static_cast<unsigned>(n * (s.i + 1) / s.of);
    u.first += static_cast<unsigned>(n * s.i / s.of);
    if (u.first < u.end) own.turn(item, u, pos, sequence);
  }

 private:
  /// Share i of `of` of a sequence; of 0: none.
  struct Share {
    unsigned sequence, i, of;
  };

  /// Of a sequence's keys, by what is in memory now.
  __device__ float units_now(const Item& item, unsigned sequence) const {
    const AttendSequence& s = batch.table[sequence];
    One own = one;
    const std::int32_t first = load_now(batch.starts + sequence);
    const std::int32_t end = load_now(batch.starts + sequence + 1);
    const std::int32_t pos = load_now(s.kv.at.pos_d);
    take_sequence(own.shape, s);
    AttendUnits u;
    if (take_rows(own.shape, batch.rows_between(first, end)) && own.has(item)) u = own.shape.units(pos);
    return static_cast<float>(u.end - u.first);
  }
  /// Whether units are not those that `share` went by.
  __device__ bool changed(const Item& item) const {
    const auto* const units = reinterpret_cast<const float*>(One::shared());
    bool other = false;
    for (unsigned i = threadIdx.x; i < batch.n; i += block_threads) other = other || units[i] != units_now(item, i);
    return other;
  }

  __device__ Share share(const Item& item) const {
    const auto n = static_cast<unsigned>(batch.n);
    const auto wanted = static_cast<unsigned>(item.y);
    auto* const units = reinterpret_cast<float*>(One::shared());  // of each sequence
    for (unsigned i = threadIdx.x; i < n; i += block_threads) units[i] = units_now(item, i);
    __syncthreads();
    const float size = size_of_share(units);
    const unsigned lane = threadIdx.x % 32;
    unsigned before = 0;  // shares of the sequences before
    for (unsigned first = 0; first < n; first += 32) {
      const unsigned of = first + lane < n ? shares_of(units[first + lane], size) : 0;
      unsigned up_to = of;  // and of those up to the lane's
#pragma unroll
      for (unsigned distance = 1; distance < 32; distance *= 2) {
        const unsigned others = __shfl_up_sync(0xffffffffU, up_to, distance);
        if (lane >= distance) up_to += others;
      }
      const unsigned beyond = __ballot_sync(0xffffffffU, wanted < before + up_to);
      if (beyond != 0) {
        const auto at = static_cast<unsigned>(__ffs(static_cast<int>(beyond)) - 1);
        return {first + at, wanted - before - __shfl_sync(0xffffffffU, up_to - of, at),
                __shfl_sync(0xffffffffU, of, at)};
      }
      before += __shfl_sync(0xffffffffU, up_to, 31);
    }
    return {};
  }

  /// Of 32 sizes, from that of an even deal to that of the longest sequence, the one with which blocks end first: so
  /// many waves of such shares. The largest always has shares enough, one for each sequence.
  __device__ float size_of_share(const float* units) const {
    const auto n = static_cast<unsigned>(batch.n);
    const unsigned lane = threadIdx.x % 32;
    float total = 0.0F;
    float most = 0.0F;
    for (unsigned i = 0; i < n; ++i) {
      total += units[i];
      most = fmaxf(most, units[i]);
    }
    const float even = total / static_cast<float>(shares);
    const float size = even * exp2f(log2f(most / even) * (static_cast<float>(lane) * (1.0F / 31.0F)));
    unsigned needed = 0;
    for (unsigned i = 0; i < n; ++i) needed += shares_of(units[i], size);
    const unsigned waves = (needed + at_a_time - 1) / at_a_time;
    const float cost = needed > shares ? INFINITY : static_cast<float>(waves) * (size + start_units);
    // As an integer a positive float has the same order.
    const unsigned least = __reduce_min_sync(0xffffffffU, __float_as_uint(cost));
    const unsigned best = __ballot_sync(0xffffffffU, __float_as_uint(cost) == least);
    return __shfl_sync(0xffffffffU, size, __ffs(static_cast<int>(best)) - 1);
  }
  /// Rounded up, but for a thousandth; one at least where there is something. Every use of it gives the same number:
  /// nothing is contracted.
  __device__ static unsigned shares_of(float units, float size) {
    const float n = ceilf(__fsub_rn(__fdividef(units, size), 0.001F));
    return static_cast<unsigned>(fmaxf(n, fminf(units, 1.0F)));
  }
};

}  // namespace memra::detail
