// Every wrapper device over HostDev is a device like any other.
#include <conformance/catch_suite.hpp>
#include <memra/canary_dev.hpp>
#include <memra/counting_dev.hpp>
#include <memra/dev_call.hpp>
#include <memra/error.hpp>
#include <memra/fault_dev.hpp>
#include <memra/host_dev.hpp>
#include <memra/ordered_dev.hpp>
#include <memra/poison_dev.hpp>
#include <vector>

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
/// Fills fail when the queue is run.
template <memra::ErrorKind Kind>
struct FailsLate {
  memra::OrderedDev<memra::FaultDev<HostDev>>& dev() { return queue; }
  void fail_late() {
    memra::Fault f;
    f.op = memra::DevOp::fill;
    f.kind = Kind;
    queue.inner().arm(f);
  }
  memra::OrderedDev<memra::FaultDev<HostDev>> queue;
};
TEST_CASE("OrderedDev conforms, and tells of work that fails late", "[conformance]") {
  memra_conformance::require_wrapper_conformance<FailsLate<memra::ErrorKind::device_failure>>();
}
TEST_CASE("OrderedDev tells of work that fails late and takes the device with it", "[conformance]") {
  std::vector<memra_conformance::Property> properties;
  memra_conformance::late_properties<FailsLate<memra::ErrorKind::device_lost>>(properties);
  memra_conformance::require_all(properties);
}

}  // namespace
}  // namespace wrappers_cpp
