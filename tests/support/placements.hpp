// One cache in every kind of placement: one device, one device twice, several, empty stages, layers past the fence.
#pragma once

#include <cstddef>
#include <functional>
#include <memra/cache.hpp>
#include <memra/counting_dev.hpp>
#include <memra/dev_call.hpp>
#include <support/placed_on.hpp>
#include <support/test_dev.hpp>
#include <vector>

namespace memra_test {

/// Three devices that share one count of calls, and what they were asked for together.
struct Devices {
  TestDev dev[3];

  explicit Devices(std::size_t gap = 0) : dev{TestDev(gap), TestDev(gap), TestDev(gap)} {
    for (TestDev& d : dev) d.share(dev[0].plan());
  }

  /// The n-th call of them all fails, half done; 0: none does any more.
  void arm(std::size_t n) noexcept {
    if (n == 0) {
      dev[0].disarm();
    } else {
      dev[0].arm(torn(n));
    }
  }
  /// @pre armed, and not for 0 since
  bool fired() const noexcept { return dev[0].fired() != 0; }
  /// Calls since arm(n).
  std::size_t seen() const noexcept { return dev[0].matched(); }

  std::size_t live() const { return sum(&memra::DevCounters::live); }
  std::size_t live_bytes() const { return sum(&memra::DevCounters::live_bytes); }
  std::size_t allocations() const { return sum(&memra::DevCounters::allocations); }
  std::size_t copies() const { return sum(&memra::DevCounters::copies); }
  std::size_t copied_bytes() const { return sum(&memra::DevCounters::copied_bytes); }
  std::size_t host_copies() const { return sum(&memra::DevCounters::host_copies); }
  std::size_t stores() const {
    return sum([](const memra::DevCounters& n) { return n.calls(memra::DevOp::store_i32); });
  }
  /// Counts from zero again.
  void reset() noexcept {
    for (TestDev& d : dev) d.inner().reset();
  }

  std::vector<TestDev*> of(const PlacedOn& p) {
    std::vector<TestDev*> devs;
    for (const std::size_t d : p.devices) devs.push_back(&dev[d]);
    return devs;
  }
  memra::Result<memra::Cache<TestDev>> create(const PlacedOn& p, const memra::ModelConfig& cfg, std::size_t max_ctx,
                                              const memra::CacheOptions& options = {}) {
    return memra::Cache<TestDev>::create_ppn(of(p), p.fence, cfg, max_ctx, options);
  }

 private:
  template <class Pick>
  std::size_t sum(const Pick& pick) const {
    std::size_t n = 0;
    for (const TestDev& d : dev) n += std::invoke(pick, d.inner().counters());
    return n;
  }
};

/// A cache on the first of them alone.
inline memra::Cache<TestDev> make(Devices& d, const memra::ModelConfig& cfg, std::size_t max_ctx) {
  return memra::check(memra::Cache<TestDev>::create(d.dev[0], cfg, max_ctx));
}

}  // namespace memra_test
