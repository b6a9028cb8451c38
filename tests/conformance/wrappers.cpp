// Every wrapper device over HostDev is a device like any other.
#include <conformance/catch_suite.hpp>
#include <memra/canary_dev.hpp>
#include <memra/counting_dev.hpp>
#include <memra/fault_dev.hpp>
#include <memra/host_dev.hpp>
#include <memra/ordered_dev.hpp>
#include <memra/poison_dev.hpp>

namespace wrappers_cpp {
namespace {

using memra::HostDev;

struct Mortal {
  memra::FaultDev<HostDev>& dev() { return fault; }
  void lose() {
    memra::Fault f;
    f.kind = memra::ErrorKind::device_lost;
    fault.arm(f);
  }
  memra::FaultDev<HostDev> fault;
};

TEST_CASE("FaultDev conforms, and stays lost when it is lost", "[conformance]") {
  memra_conformance::require_wrapper_conformance<Mortal>();
}
TEST_CASE("PoisonDev conforms", "[conformance]") {
  memra_conformance::require_wrapper_conformance<memra::PoisonDev<HostDev>>();
}
TEST_CASE("CanaryDev conforms", "[conformance]") {
  memra_conformance::require_wrapper_conformance<memra::CanaryDev<HostDev>>();
}
TEST_CASE("CountingDev conforms", "[conformance]") {
  memra_conformance::require_wrapper_conformance<memra::CountingDev<HostDev>>();
}
TEST_CASE("OrderedDev conforms", "[conformance]") {
  memra_conformance::require_wrapper_conformance<memra::OrderedDev<HostDev>>();
}

}  // namespace
}  // namespace wrappers_cpp
