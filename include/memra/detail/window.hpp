// Which keys a window shows: the one formula, for windows of any size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/detail/platform.hpp>

namespace memra::detail {

/// First key that the query at position `p` sees through a window of `window` keys, itself included; 0 without a window
/// (0) and where the window reaches beyond the first key, however far: a window may come from a file.
MEMRA_HD constexpr std::int64_t window_start(std::int64_t p, std::size_t window) noexcept {
  if (window == 0 || p < 0 || window > static_cast<std::size_t>(p)) return 0;
  return p + 1 - static_cast<std::int64_t>(window);
}

}  // namespace memra::detail
