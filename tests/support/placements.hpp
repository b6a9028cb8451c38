// One cache in every kind of placement: one device, one device twice, several, empty stages, layers past the fence.
#pragma once

#include <cstddef>
#include <memra/cache.hpp>
#include <string>
#include <support/failing_dev.hpp>
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
          {"an empty first and an empty last stage", {0, 1, 2}, {0, 0, n, n}}};
}

/// Three devices that share one count of calls.
struct Devices {
  std::shared_ptr<Calls> calls = std::make_shared<Calls>();
  FailingDev dev[3] = {FailingDev(calls), FailingDev(calls), FailingDev(calls)};

  std::vector<FailingDev*> of(const PlacedOn& p) {
    std::vector<FailingDev*> devs;
    for (const std::size_t d : p.devices) devs.push_back(&dev[d]);
    return devs;
  }
  memra::Result<memra::Cache<FailingDev>> create(const PlacedOn& p, const memra::ModelConfig& cfg, std::size_t max_ctx,
                                                 const memra::CacheOptions& options = {}) {
    return memra::Cache<FailingDev>::create_ppn(of(p), p.fence, cfg, max_ctx, options);
  }
};

}  // namespace memra_test
