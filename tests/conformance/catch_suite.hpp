// The conformance suite as sections of a Catch2 test case.
#pragma once

#include <conformance/conformance.hpp>
#include <conformance/erased.hpp>
#include <support/catch.hpp>
#include <vector>

namespace memra_conformance {

/// No property twice in one test case, be it of another device: Catch2 takes two sections of one name and place for
/// one, and leaves the second out. What does not apply to the device is a warning, no assertion.
inline void require_all(const std::vector<Property>& properties) {
  for (const Property& p : properties) {
    DYNAMIC_SECTION(p.name) {
      const Report report = attempt(p);
      if (report.ok() && !report.checked()) {
        WARN("not checked: " << report.why_not());
      } else {
        INFO(report.text());
        REQUIRE(report.ok());
      }
    }
  }
}

template <class Make>
void require_conformance() {
  require_all(properties<Make>());
}

/// The same of one of many wrappers over HostDev: the rules of a device on the device itself, caches and kernels on an
/// ErasedDev over it. To compile them anew for every wrapper takes minutes.
template <class Make>
void require_wrapper_conformance() {
  require_all(device_properties<Make>());
  using Erased = Behind<ErasedDev>;
  Erased::use<Make>();
  require_all(cache_properties<Erased>());
  require_all(kernel_properties<Erased>());
}

/// Of an AnyDev over the device.
template <class Make>
void require_any_conformance() {
  using Any = Behind<memra::AnyDev>;
  Any::use<Make>();
  require_all(properties<Any>());
}

}  // namespace memra_conformance
