// From rows to lanes: transposes that move bits and compute nothing.
#pragma once

#include <cstddef>
#include <cstring>
#include <memra/detail/platform.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/detail/simd.hpp>

namespace memra::detail {

/// keys[d * 64 + j] = rows[j * width + d] for j < n, d from `first` on, one element at a time.
inline void turn_elements(const float* rows, std::size_t n, std::size_t width, std::size_t first,
                          float* keys) noexcept {
  for (std::size_t d = first; d < width; ++d) {
    for (std::size_t j = 0; j < n; ++j) keys[d * attend_tile + j] = rows[j * width + d];
  }
}

#if defined(__GNUC__) && !MEMRA_DEVICE_COMPILE()
/// Four rows, `width` apart, by four elements: to[d * to_width + j] = rows[j * width + d].
inline void turn_4x4(const float* rows, std::size_t width, float* to, std::size_t to_width) noexcept {
  using F = Registers<16>::F;
  F r[4];
  for (std::size_t j = 0; j < 4; ++j) std::memcpy(&r[j], rows + j * width, sizeof r[j]);
  const F a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
  const F b = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
  const F c = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
  const F d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
  const F out[4] = {__builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
                    __builtin_shufflevector(c, d, 0, 1, 4, 5), __builtin_shufflevector(c, d, 2, 3, 6, 7)};
  for (std::size_t i = 0; i < 4; ++i) std::memcpy(to + i * to_width, &out[i], sizeof out[i]);
}
#endif

/// Writes n <= 16 rows of `width` elements as n lanes: keys[d * 64 + j] = rows[j * width + d].
inline void turn_rows(const float* rows, std::size_t n, std::size_t width, float* keys) noexcept {
  std::size_t done = 0;
#if defined(__GNUC__) && !MEMRA_DEVICE_COMPILE()
  if (n == attend_stage_rows) {
    // Sixteen keys are one cache line of `keys`, so a step writes whole lines.
    for (; done < width - width % 4; done += 4) {
      for (std::size_t j = 0; j < attend_stage_rows; j += 4) {
        turn_4x4(rows + j * width + done, width, keys + done * attend_tile + j, attend_tile);
      }
    }
  }
#endif
  turn_elements(rows, n, width, done, keys);
}

}  // namespace memra::detail
