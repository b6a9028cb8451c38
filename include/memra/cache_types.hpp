// The small values that Cache takes and gives.
#pragma once

#include <cstddef>
#include <memra/detail/slab.hpp>
#include <memra/round_types.hpp>
#include <span>

namespace memra {

namespace detail {
template <class Dev>
struct SlabsOf;
}  // namespace detail

/// Memory an engine hands over instead of letting the cache allocate: {rows, state, extra} of every device object, in
/// order of first appearance (see DevicePlan for their bytes). The engine keeps it alive and frees it.
struct CacheOptions {
  std::span<const AdoptedBlock> blocks{};
  RoundOptions rounds{};  ///< which rounds it is to be able to run
};

/// The logits row parked at this position: [n] f32 on the last stage's device.
struct ParkedLogits {
  const float* data = nullptr;
  std::size_t n = 0;
  std::size_t pos = 0;
};

/// What a rollback or a round's commit left to do.
struct RolledBack {
  std::size_t pos = 0;     ///< where the next step starts
  std::size_t replay = 0;  ///< tokens to feed again, starting at pos; 0 when there is no recurrent layer, and
                           ///< after a round of planes or stash
};

}  // namespace memra
