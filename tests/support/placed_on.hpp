// Where a cache may live: one device, one device twice, several, empty stages, layers past the fence.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace memra_test {

struct PlacedOn {
  std::string name;
  std::vector<std::size_t> devices;  ///< [stages] which device
  std::vector<std::size_t> fence;
};

/// For a model of `n` layers, n >= 2.
inline std::vector<PlacedOn> placements(std::size_t n) {
  return {{"one device", {0}, {0, n}},
          {"one device for two stages", {0, 0}, {0, n / 2, n}},
          {"two devices", {0, 1}, {0, n / 2, n}},
          {"four stages, three devices, one comes back, one stage empty", {0, 1, 0, 2}, {0, 1, n / 2, n / 2, n}},
          {"layers past the fence", {1, 0}, {0, 1, n - 1}},
          {"an empty first and an empty last stage", {0, 1, 2}, {0, 0, n, n}},
          {"three stages that all have layers, if there are as many", {0, 1, 2}, {0, n / 2, n - 1, n}}};
}

}  // namespace memra_test
