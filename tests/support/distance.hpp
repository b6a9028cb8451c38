// How far results of a numeric class are from those that they are held to.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

namespace memra_test {

/// ||a - b|| / ||b|| of f32 values as bytes; NaN if anything is, or if one has fewer.
inline double distance(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  if (a.size() != b.size()) return std::nan("");
  double d = 0;
  double n = 0;
  for (std::size_t i = 0; i < a.size(); i += 4) {
    float x = 0;
    float y = 0;
    std::memcpy(&x, a.data() + i, 4);
    std::memcpy(&y, b.data() + i, 4);
    d += (static_cast<double>(x) - y) * (static_cast<double>(x) - y);
    n += static_cast<double>(y) * y;
  }
  return std::sqrt(d / n);
}

}  // namespace memra_test
