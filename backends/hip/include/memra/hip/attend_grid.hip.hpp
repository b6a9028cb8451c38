// The key grid of attend on HIP: where a row's keys are split is a function of its own position and the geometry only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/detail/platform.hpp>
#include <memra/detail/scratch.hpp>

namespace memra::detail {

/// Rows of sixteen lanes in a block; a chunk is a whole number of turns of all of them.
inline constexpr unsigned hip_attend_teams = 16;
inline constexpr std::size_t hip_attend_smallest_chunk = 256;
static_assert(hip_attend_smallest_chunk >= attend_least_keys);

/// Keys per chunk of a row that ends at `hi`: the smallest power of two times the smallest chunk that needs at most
/// `most` chunks. Chunk c holds stream rows [c * size, (c + 1) * size), so a larger size is the union of two smaller.
MEMRA_HD constexpr std::size_t hip_attend_chunk(std::size_t hi, std::size_t most) noexcept {
  std::size_t size = hip_attend_smallest_chunk;
  while ((hi + size - 1) / size > most) size *= 2;
  return size;
}

}  // namespace memra::detail
