// Host kernel of argmax_rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memra/launch.hpp>

namespace memra::detail {

/// argmax_rows: the first index of the largest value. NaN never wins; a row of NaN only gives -1, a row of -inf gives
/// its first -inf. +0 and -0 are equal, so the first of them wins.
struct ArgmaxBody {
  static constexpr std::size_t lanes = 16;

  const float* x;
  std::size_t n;
  std::int32_t* out;

  void operator()(const Item& item) const noexcept {
    const float* row = x + item.x * n;
    out[item.x] = first_equal(row, largest(row));
  }

  // A comparison with NaN is false, so NaN never enters a lane. The maximum does not depend on the order of lanes.
  float largest(const float* row) const noexcept {
    float best[lanes];
    for (float& b : best) b = -std::numeric_limits<float>::infinity();
    const std::size_t whole = n - n % lanes;
    for (std::size_t i = 0; i < whole; i += lanes) {
      for (std::size_t j = 0; j < lanes; ++j) best[j] = row[i + j] > best[j] ? row[i + j] : best[j];
    }
    for (std::size_t i = whole; i < n; ++i) best[0] = row[i] > best[0] ? row[i] : best[0];
    for (std::size_t j = 1; j < lanes; ++j) best[0] = best[j] > best[0] ? best[j] : best[0];
    return best[0];
  }

  // Whole groups are tested without a branch per element; the group with a hit is searched again.
  std::int32_t first_equal(const float* row, float value) const noexcept {
    std::size_t i = 0;
    for (; i < n - n % lanes; i += lanes) {
      unsigned hit = 0;
      for (std::size_t j = 0; j < lanes; ++j) hit |= row[i + j] == value ? 1U : 0U;
      if (hit != 0) break;
    }
    for (; i < n; ++i) {
      if (row[i] == value) return static_cast<std::int32_t>(i);
    }
    return -1;
  }
};

}  // namespace memra::detail
