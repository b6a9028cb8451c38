// How much scratch an op needs: one formula for the planner and for the check before a launch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memra/detail/checked_math.hpp>

namespace memra::detail {

/// Keys per step of the attention grid. Absolute: tile i holds stream rows [64 i, 64 i + 64).
inline constexpr std::size_t attend_tile = 64;

/// Query rows that share one pass over K and V.
inline constexpr std::size_t attend_block_rows = 16;

/// Rows of K that are decoded before they are turned into lanes.
inline constexpr std::size_t attend_stage_rows = 16;

/// Scratch of attend for one kv head, in floats: one decoded tile of K (keys in lanes) and of V, the rows being turned,
/// and per query of the block its scaled vector, the weights of one tile, maximum and sum. Rounded up to whole cache
/// lines of 16 floats, so that heads do not share one.
constexpr std::size_t attend_head_floats(std::size_t group, std::size_t head_dim_k, std::size_t head_dim_v,
                                         std::size_t rows) noexcept {
  const std::size_t queries = group * std::min(rows, attend_block_rows);
  const std::size_t floats = attend_tile * (head_dim_k + head_dim_v) + attend_stage_rows * head_dim_k +
                             queries * (head_dim_k + attend_tile + 2);
  return (floats + 15) / 16 * 16;
}

/// No row is cut into more pieces than this.
inline constexpr std::size_t attend_chunks_bound = 128;

/// No kernel cuts keys into smaller pieces.
inline constexpr std::size_t attend_least_keys = 128;

/// Most pieces that the keys of one row are cut into where pieces run at the same time: a block of threads per piece
/// and kv head, a warp of it per 32 elements of V, so many warps on each of 132 multiprocessors (those of an H200).
constexpr std::size_t attend_most_chunks(std::size_t n_kv_heads, std::size_t head_dim_v,
                                         std::size_t warps_each = 16) noexcept {
  const std::size_t n =
      warps_each * 132 / std::max<std::size_t>(n_kv_heads, 1) / std::max<std::size_t>(head_dim_v / 32, 1);
  return std::clamp<std::size_t>(n, 16, attend_chunks_bound);
}

/// As attend_most_chunks, of rows that see fewer than `most_keys` keys.
constexpr std::size_t attend_batch_chunks(std::size_t n_kv_heads, std::size_t head_dim_v,
                                          std::size_t most_keys) noexcept {
  const std::size_t whole = most_keys / attend_least_keys + (most_keys % attend_least_keys == 0 ? 0 : 1);
  return std::min(attend_most_chunks(n_kv_heads, head_dim_v), whole);
}

/// Scratch of attend where keys are split: per query row of a pass, query head and piece, the weighted sum of values,
/// the exponent they are relative to and the sum of weights.
constexpr std::size_t attend_split_bytes(std::size_t n_heads, std::size_t n_kv_heads, std::size_t head_dim_v,
                                         std::size_t rows) noexcept {
  return 4 * std::min(rows, attend_block_rows) * n_heads * attend_most_chunks(n_kv_heads, head_dim_v) *
         (head_dim_v + 2);
}

/// What no device gives: the answer where the product does not fit.
inline constexpr std::size_t no_scratch = std::numeric_limits<std::size_t>::max();

/// Whether the formulas below fit: asked of an upper bound of them, since they multiply without looking.
constexpr bool attend_scratch_fits(std::size_t n_heads, std::size_t n_kv_heads, std::size_t head_dim_k,
                                   std::size_t head_dim_v) noexcept {
  const CheckedSize queries = CheckedSize(std::max(n_heads, n_kv_heads)) * attend_block_rows;
  const CheckedSize tile = CheckedSize(head_dim_k) + head_dim_v + 1;
  return ((tile * n_kv_heads + queries * tile) * 4 * (2 * attend_chunks_bound)).valid();
}

/// Scratch of attend: the larger of what either way to compute it needs. On the host every kv head has its own, since
/// items of a launch may run at the same time. 64 bytes more let the kernel align its start.
constexpr std::size_t attend_scratch_bytes(std::size_t n_heads, std::size_t n_kv_heads, std::size_t head_dim_k,
                                           std::size_t head_dim_v, std::size_t rows) noexcept {
  if (!attend_scratch_fits(n_heads, n_kv_heads, head_dim_k, head_dim_v)) return no_scratch;
  const std::size_t group = n_kv_heads == 0 ? 0 : n_heads / n_kv_heads;
  return std::max(4 * n_kv_heads * attend_head_floats(group, head_dim_k, head_dim_v, rows),
                  attend_split_bytes(n_heads, n_kv_heads, head_dim_v, rows)) +
         64;
}

/// Head dimensions whose keys draft_attend may split.
constexpr bool draft_splits(std::size_t head_dim) noexcept {
  return head_dim == 32 || head_dim == 64 || head_dim == 128;
}

/// Keys, as a power of two, of the smallest piece of a draft block's visible keys, and how many pieces these would fill
/// at most.
inline constexpr std::size_t draft_piece_shift = 7;
inline constexpr std::size_t draft_pieces_bound = 64;

/// Most pieces that `keys` visible keys lie in: on an absolute grid, so one more than they would fill.
constexpr std::size_t draft_most_pieces(std::size_t keys) noexcept {
  return std::min((keys >> draft_piece_shift) + 1, draft_pieces_bound) + 1;
}

/// Floats of one sequence of attend_batch where keys are split.
constexpr std::size_t attend_batch_floats(std::size_t n_heads, std::size_t n_kv_heads, std::size_t head_dim_v,
                                          std::size_t rows, std::size_t most_keys) noexcept {
  return std::min(rows, attend_block_rows) * n_heads * attend_batch_chunks(n_kv_heads, head_dim_v, most_keys) *
         (head_dim_v + 2);
}

/// From one sequence's to the next one's: whole cache lines.
constexpr std::size_t attend_batch_stride(std::size_t floats) noexcept {
  return (floats + 15) / 16 * 16;
}

/// Scratch of attend_batch for `n` sequences of up to `rows` rows that see fewer than `most_keys` keys. On the host
/// they take turns in what one needs; where keys are split each has its own. Never more than n times
/// attend_scratch_bytes.
/// @pre n > 0
constexpr std::size_t attend_batch_scratch_bytes(std::size_t n_heads, std::size_t n_kv_heads, std::size_t head_dim_k,
                                                 std::size_t head_dim_v, std::size_t n, std::size_t rows,
                                                 std::size_t most_keys) noexcept {
  if (!attend_scratch_fits(n_heads, n_kv_heads, head_dim_k, head_dim_v)) return no_scratch;
  const std::size_t group = n_kv_heads == 0 ? 0 : n_heads / n_kv_heads;
  const std::size_t turn = 4 * n_kv_heads * attend_head_floats(group, head_dim_k, head_dim_v, rows);
  const std::size_t one = attend_batch_floats(n_heads, n_kv_heads, head_dim_v, rows, most_keys);
  const CheckedSize split = (CheckedSize(attend_batch_stride(one)) * (n - 1) + one) * 4;
  return split.valid() && split.value() < no_scratch - 64 ? std::max(turn, split.value()) + 64 : no_scratch;
}

/// Scratch of draft_attend: for every query row, the scores of one head against all committed rows that it may meet
/// (DraftView::most_keys) and the block's; or, where keys are split, per query row, query head and piece the weighted
/// sum of values and four floats.
constexpr std::size_t draft_scratch_bytes(std::size_t n_heads, std::size_t /*n_kv*/, std::size_t head_dim,
                                          std::size_t block_rows, std::size_t most_keys) noexcept {
  const CheckedSize keys = CheckedSize(most_keys) + block_rows;
  const CheckedSize scores = keys * 4 * block_rows + 64;
  if (!scores.valid() || !draft_splits(head_dim)) return scores.valid() ? scores.value() : no_scratch;
  const CheckedSize split =
      CheckedSize(block_rows) * n_heads * draft_most_pieces(keys.value()) * ((head_dim + 4) * 4) + 64;
  return split.valid() ? std::max(scores.value(), split.value()) : no_scratch;
}

/// Chunks of the chunked scan whose factors are held at a time, which is what its scratch grows up to: 48 heads take
/// 102 MB from 4,096 rows on, and a quarter of that for calls of 1,024. Groups of 16 took 1.13 times as long on an
/// H200.
inline constexpr std::size_t scan_group_chunks = 64;

/// Bytes of one chunk's factors of one value head: two matrices of 64 x 64 floats, and two floats per token.
inline constexpr std::size_t scan_chunk_bytes = std::size_t{4} * (2 * 64 * 64 + 2 * 64);

/// Scratch of delta_scan in its chunked class; 256 bytes more let kernels align its start.
constexpr std::size_t chunk_scan_bytes(std::size_t n_v_heads, std::size_t rows) noexcept {
  const std::size_t chunks = rows / 64 + (rows % 64 == 0 ? 0 : 1);
  const CheckedSize bytes = CheckedSize(n_v_heads) * std::min(chunks, scan_group_chunks) * scan_chunk_bytes + 256;
  return bytes.valid() ? bytes.value() : no_scratch;
}

}  // namespace memra::detail
