// Wrapper devices on each other in any order, and AnyDev over and under them.
#include <concepts/minimal_dev.hpp>
#include <conformance/catch_suite.hpp>
#include <memra/any_dev.hpp>
#include <memra/canary_dev.hpp>
#include <memra/counting_dev.hpp>
#include <memra/fault_dev.hpp>
#include <memra/host_dev.hpp>
#include <memra/ordered_dev.hpp>
#include <memra/poison_dev.hpp>

namespace stacks_cpp {
namespace {

using memra::AnyDev;
using memra::HostDev;
using memra_conformance::has_kernels;
using memra_test::MinimalDev;

template <class Dev>
using Stack = memra::FaultDev<memra::CountingDev<memra::OrderedDev<memra::PoisonDev<memra::CanaryDev<Dev>>>>>;
template <class Dev>
using Upside = memra::CanaryDev<memra::PoisonDev<memra::OrderedDev<memra::CountingDev<memra::FaultDev<Dev>>>>>;

// Optional capabilities come through exactly when the wrapped device has them.
static_assert(memra::LaunchDev<Stack<HostDev>> && memra::BatchedCopyDev<Stack<HostDev>> &&
              memra::PeerCopyDev<Stack<HostDev>> && has_kernels<Stack<HostDev>>);
static_assert(!memra::LaunchDev<Stack<MinimalDev>> && !memra::BatchedCopyDev<Stack<MinimalDev>> &&
              !memra::PeerCopyDev<Stack<MinimalDev>> && !has_kernels<Stack<MinimalDev>>);
static_assert(!memra::LaunchDev<Stack<AnyDev>> && !memra::BatchedCopyDev<Stack<AnyDev>> && has_kernels<Stack<AnyDev>>);
constexpr memra::AnyCaps with_batches = {true, true};
static_assert(memra::BatchedCopyDev<memra::OrderedDev<memra::BasicAnyDev<with_batches>>>);

struct AnyBelow {
  Stack<AnyDev>& dev() { return stack; }
  HostDev under;
  Stack<AnyDev> stack{under};
};

TEST_CASE("all wrappers on each other conform", "[conformance]") {
  memra_conformance::require_wrapper_conformance<Stack<HostDev>>();
}
TEST_CASE("all wrappers the other way round conform", "[conformance]") {
  memra_conformance::require_wrapper_conformance<Upside<HostDev>>();
}
TEST_CASE("AnyDev over HostDev conforms", "[conformance]") {
  memra_conformance::require_any_conformance<HostDev>();
}
TEST_CASE("AnyDev over all wrappers conforms", "[conformance]") {
  memra_conformance::require_any_conformance<Stack<HostDev>>();
}
TEST_CASE("all wrappers over AnyDev conform", "[conformance]") {
  memra_conformance::require_all(memra_conformance::device_properties<AnyBelow>());
}
TEST_CASE("AnyDev over all wrappers over AnyDev conforms", "[conformance]") {
  memra_conformance::require_any_conformance<AnyBelow>();
}

}  // namespace
}  // namespace stacks_cpp
