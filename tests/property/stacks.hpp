// The devices a machine runs on: a plain one, and one on which everything is late, poisoned and guarded.
#pragma once

#include <array>
#include <cstddef>
#include <memra/canary_dev.hpp>
#include <memra/counting_dev.hpp>
#include <memra/error.hpp>
#include <memra/fault_dev.hpp>
#include <memra/guard_planes.hpp>
#include <memra/host_dev.hpp>
#include <memra/ordered_dev.hpp>
#include <memra/poison_dev.hpp>
#include <property/script.hpp>
#include <string>
#include <vector>

namespace property {

using Plain = memra::FaultDev<memra::CountingDev<memra::PoisonDev<memra::HostDev>>>;
using Late = memra::FaultDev<memra::CountingDev<memra::OrderedDev<memra::PoisonDev<memra::CanaryDev<memra::HostDev>>>>>;

/// For models that hand host memory to kernels: nothing is late.
using Guarded = memra::FaultDev<memra::CountingDev<memra::PoisonDev<memra::CanaryDev<memra::HostDev>>>>;

template <class Dev>
constexpr bool guarded = false;
template <>
inline constexpr bool guarded<Late> = true;
template <>
inline constexpr bool guarded<Guarded> = true;

/// Three devices, and which of their calls fails.
template <class Dev>
struct Devices {
  static constexpr std::size_t n = 3;
  std::array<Dev, n> dev;

  /// Reads an Op's fault: which of the `used` devices, which call of it, that one or all from there on, and now and
  /// then a lost device.
  void arm(unsigned fault, const std::vector<std::size_t>& used) noexcept {
    if (fault == 0) return;
    constexpr std::size_t nth[9] = {1, 1, 2, 2, 3, 4, 6, 9, 14};
    memra::Fault f;
    f.nth = nth[fault / 3 % 9];
    f.forever = fault / 27 % 2 == 1;
    if (fault / 54 % 4 == 3) f.kind = memra::ErrorKind::device_lost;
    // Half of a reset that overwrites a slab, gaps and all, is no stray write, but guards cannot tell.
    f.torn = !guarded<Dev> && fault % 7 < 3;
    dev[used[fault % used.size()]].arm(f);
  }
  /// @return whether a call failed since arm
  bool disarm() noexcept {
    bool fired = false;
    for (Dev& d : dev) {
      fired = fired || d.fired() != 0;
      d.disarm();
    }
    return fired;
  }
  std::size_t calls() const noexcept {
    std::size_t sum = 0;
    for (const Dev& d : dev) sum += d.calls();
    return sum;
  }
  std::size_t live() const noexcept {
    std::size_t sum = 0;
    for (const Dev& d : dev) sum += d.inner().counters().live;
    return sum;
  }
  void expect_guards_whole() {
    for (Dev& d : dev) {
      memra::check(d.synchronize());
      if constexpr (guarded<Dev>) {
        expect(memra::detail::canary_of(d).violations() == 0, "a guard byte was overwritten");
      }
    }
  }
};

template <class Dev, class Thing>
void guard(const Thing& thing) {
  if constexpr (guarded<Dev>) memra::check(memra::guard_planes(thing));
}

}  // namespace property
