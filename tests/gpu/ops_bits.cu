// Every op on the GPU against the host, bit for bit.
#include <memra/cuda/ops.cuh>
#include <memra/host_ops.hpp>
#include <support/catch.hpp>
#include <support/op_cases.hpp>

#include "support.hpp"

namespace {

using namespace memra_test;

/// Compares every case on `Dev` with the host; a case that `skips` names is left to a test of its own class.
template <class Dev, class Skip>
void compare_with_host(Dev& dev, const Skip& skips) {
  const auto expected = op_cases<memra::HostDev>();
  const auto cases = op_cases<Dev>();
  REQUIRE(cases.size() == expected.size());
  std::size_t compared = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (skips(cases[i].name)) continue;
    memra::HostDev host;
    INFO(cases[i].name);
    const Bytes want = expected[i].run(host);
    const Bytes got = cases[i].run(dev);
    REQUIRE(want.size() > 64);
    CHECK((got == want));
    const Bytes again = cases[i].run(dev);
    CHECK((got == again));
    ++compared;
  }
  REQUIRE(compared > 100);
}

TEST_CASE("portable kernels on the GPU give the host's bits for every op", "[ops]") {
  PortableCuda dev;
  compare_with_host(dev, [](const std::string&) { return false; });
}

}  // namespace
