// Many int32 values from the host to the device, in the order of a stream.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memra/error.hpp>
#include <span>

namespace memra::detail {

/// A few values at a time travel with the call, which a capture can record.
/// @return of the first store that fails: those before it are queued
template <class Dev>
Status store_values(Dev& dev, std::int32_t* to, std::span<const std::int32_t> values) noexcept {
  constexpr std::size_t few = 64;
  for (std::size_t i = 0; i < values.size(); i += few) {
    const std::size_t n = std::min(few, values.size() - i);
    if (Status s = dev.store_i32(to + i, values.data() + i, n); !s) return s;
  }
  return {};
}

}  // namespace memra::detail
