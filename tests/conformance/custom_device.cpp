// The device of examples/custom_device keeps the contract that its guide explains.
#include <conformance/catch_suite.hpp>
#include <custom_device/custom_dev.hpp>

namespace custom_device_cpp {
TEST_CASE("the custom device of the examples conforms", "[conformance]") {
  memra_conformance::require_conformance<CustomDev>();
}
}  // namespace custom_device_cpp
