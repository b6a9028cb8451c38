// The kernels of attend for many sequences in one launch.
#pragma once

#include <cstddef>
#include <memra/batch_views.hpp>
#include <memra/cuda/api.hpp>
#include <memra/cuda/attend_mma.cuh>
#include <memra/detail/attend_sequence.hpp>
#include <memra/launch.hpp>

namespace memra::detail {

/// A kernel of one sequence for those of a batch. A block finds its sequence in the table, takes what is the sequence's
/// own from there (planes, position, rows, where its queries and partial results are) and is then what a block of a
/// single call is: the same chunks, the same bits. What all have in common stays in the launch's parameters.
///
/// Item: as that kernel's, its z times the sequences. A block takes `chunks` chunks one after the other, since short
/// sequences have small ones; how many changes no bit.
template <class One>
struct CudaAttendBatch {
  static constexpr unsigned block_threads = One::block_threads;
  static constexpr bool waits_itself = true;

  One one;
  AttendBatchView batch;
  std::size_t stride;  ///< of sequences' partial results
  unsigned chunks;

  __device__ void block(const Item& item) const {
    wait_for_previous();
    let_next_begin();
    const std::size_t depth = one.depth();
    const std::size_t sequence = item.z / depth;
    const AttendBatchView::Rows rows = batch.rows_of(sequence);
    if (rows.count <= one.shape.first_row) return;
    const AttendSequence& s = batch.table[sequence];
    One own = one;
    const std::size_t left = rows.count - one.shape.first_row;
    own.shape.rows = left < one.shape.rows ? left : one.shape.rows;
    const Item mine{item.x, item.y, item.z - sequence * depth};
    if (!own.has(mine)) return;
    own.shape.base = static_cast<std::size_t>(s.range.base);
    own.shape.end = static_cast<std::size_t>(s.range.end);
    own.shape.pos_d = s.kv.at.pos_d;
    own.partials += sequence * stride;
    own.take(s, rows.first);
    own.turn(mine, chunks, s);
  }
};

/// The same for kernels with shared memory, and with copies by the engine.
template <class One>
struct CudaAttendBatchShared : CudaAttendBatch<One> {
  std::size_t shared_bytes() const noexcept { return this->one.shared_bytes(); }
};
template <class One>
struct CudaAttendBatchMapped : CudaAttendBatchShared<One> {
  static constexpr unsigned least_blocks = One::least_blocks;
  void complete(const CudaApi::Driver& driver) noexcept {
    this->one.complete(driver);
    this->one.mapped = this->one.mapped && this->batch.described;
  }
};

}  // namespace memra::detail
