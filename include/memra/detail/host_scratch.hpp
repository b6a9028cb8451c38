// Where a host kernel starts inside the caller's workspace.
#pragma once

#include <cstddef>
#include <cstdint>

namespace memra::detail {

/// First address of the workspace that is a multiple of 64 bytes; the scratch formulas count the bytes lost by it.
inline float* aligned_floats(std::byte* scratch) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(scratch);
  return reinterpret_cast<float*>(scratch + ((64 - address % 64) % 64));
}

}  // namespace memra::detail
