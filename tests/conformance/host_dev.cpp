// HostDev, the reference, must keep its own contract; so must the smallest device there is.
#include <concepts/minimal_dev.hpp>
#include <conformance/catch_suite.hpp>
#include <memra/host_dev.hpp>

namespace host_dev_cpp {
namespace {

struct LargeHost {
  static constexpr bool beyond_4_gib = true;
  memra::HostDev& dev() { return host; }
  memra::HostDev host;
};

TEST_CASE("HostDev conforms", "[conformance]") {
  memra_conformance::require_conformance<LargeHost>();
}
TEST_CASE("MinimalDev conforms", "[conformance]") {
  memra_conformance::require_conformance<memra_test::MinimalDev>();
}

}  // namespace
}  // namespace host_dev_cpp
