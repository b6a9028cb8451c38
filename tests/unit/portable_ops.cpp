// PortableKernels against HostKernels, on the host: the same bits from every op.
#include <memra/host_ops.hpp>
#include <memra/portable_ops.hpp>
#include <support/catch.hpp>
#include <support/op_cases.hpp>

namespace portable_ops_cpp {
namespace {

using namespace memra_test;

/// A host device that runs the portable kernels.
struct PortableHost : memra::HostDev {
  using kernels = memra::PortableKernels;
};

TEST_CASE("portable kernels give the host's bits for every op [identity]", "[identity]") {
  const auto expected = op_cases<memra::HostDev>();
  const auto cases = op_cases<PortableHost>();
  REQUIRE(cases.size() == expected.size());
  REQUIRE(cases.size() > 150);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    memra::HostDev host;
    PortableHost portable;
    INFO(cases[i].name);
    const Bytes want = expected[i].run(host);
    const Bytes got = cases[i].run(portable);
    REQUIRE(want.size() > 64);
    CHECK((got == want));  // in brackets: Catch would print megabytes
  }
}

TEST_CASE("rows of one call are rows of single calls", "[identity]") {
  PortableHost dev;
  for (const KvShape& s : kv_shapes()) {
    const AttendOn<PortableHost> a(dev, s, s.base + 89, 77);
    const Bytes together = a.run(dev, s.base + 60, 7);
    Bytes single;
    for (std::size_t i = 0; i < 7; ++i) join(single, a.run(dev, s.base + 60 + i, 1));
    CHECK((together == single));
    // The check can fail: another row has other bits.
    CHECK((together != a.run(dev, s.base + 61, 7)));
  }
}

TEST_CASE("one changed bit of an input is seen by the comparison") {
  memra::HostDev host;
  const RecurShape s;
  CHECK((run_scan(host, s, 3, 3, 5) == run_scan(host, s, 3, 1, 5)));
  CHECK((run_scan(host, s, 3, 3, 5) != run_scan(host, s, 3, 3, 6)));
}

}  // namespace
}  // namespace portable_ops_cpp
