// The whole conformance suite. With your own device and the folders include/ and tests/ on the include path:
//
//     #include <conformance/conformance.hpp>
//     #include "my_dev.hpp"
//     int main() { return memra_conformance::run_all<MyDev>("MyDev"); }
//
// MyDev is default-constructible; for one that is not see Made in report.hpp. A device with kernels includes them, too.
// What does not apply to the device, or needs a member of Made that is not there, is said to be not checked. Needs
// exceptions and threads, no test framework. From one: loop over properties<MyDev>() and look at attempt(p).
#pragma once

#include <conformance/cache_suite.hpp>
#include <conformance/device_suite.hpp>
#include <conformance/kernel_suite.hpp>
#include <conformance/report.hpp>
#include <vector>

namespace memra_conformance {

template <class Make>
std::vector<Property> properties() {
  std::vector<Property> all = device_properties<Make>();
  for (auto* more : {&cache_properties<Make>, &kernel_properties<Make>}) {
    for (const Property& p : more()) all.push_back(p);
  }
  return all;
}

/// Prints one line for each property, be it "ok", "FAILED" or "not checked"; @return how many failed.
template <class Make>
int run_all(const char* device) {
  static_assert(memra::check_kv_dev<DevOf<Make>>());
  return run(properties<Make>(), device);
}

}  // namespace memra_conformance
