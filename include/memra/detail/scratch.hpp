// How much scratch an op needs: one formula for the planner and for the check before a launch.
#pragma once

#include <algorithm>
#include <cstddef>

namespace memra::detail {

/// Keys per step of the attention grid. Absolute: tile i holds stream rows [64 i, 64 i + 64).
inline constexpr std::size_t attend_tile = 64;

/// Query rows that share one pass over K and V.
inline constexpr std::size_t attend_block_rows = 16;

/// Scratch of attend: one decoded tile of K and of V, and per query of the block its scaled vector, scores, weights and
/// running sums. f32 throughout.
constexpr std::size_t attend_scratch_bytes(std::size_t n_heads, std::size_t n_kv_heads, std::size_t head_dim_k,
                                           std::size_t head_dim_v, std::size_t rows) noexcept {
  const std::size_t group = n_kv_heads == 0 ? 0 : n_heads / n_kv_heads;
  const std::size_t queries = group * std::min(rows, attend_block_rows);
  return 4 * (attend_tile * (head_dim_k + head_dim_v) + queries * (head_dim_k + head_dim_v + attend_tile + 16)) + 256;
}

/// Scratch of draft_attend: the scores of one query against every row below len_bound + block_rows.
constexpr std::size_t draft_scratch_bytes(std::size_t /*n_heads*/, std::size_t /*n_kv*/, std::size_t /*head_dim*/,
                                          std::size_t block_rows, std::size_t len_bound) noexcept {
  return 4 * block_rows * (len_bound + block_rows);
}

}  // namespace memra::detail
