// One cache in every kind of placement: one device, one device twice, several, empty stages, layers past the fence.
#pragma once

#include <cstddef>
#include <memory>
#include <memra/cache.hpp>
#include <support/failing_dev.hpp>
#include <support/placed_on.hpp>
#include <vector>

namespace memra_test {

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
