// What HipDev says on a machine without an AMD GPU: HIP's own runtime is asked. A plain C++ file.
#include <cstdio>
#include <memra/hip/device.hpp>
#include <memra/hip/plain_allocator.hpp>
#include <support/catch.hpp>

TEST_CASE("without a GPU, creating a device is unsupported and says why", "[absent]") {
  int n = 0;
  if (hipGetDeviceCount(&n) == hipSuccess && n > 0) {
    WARN("SKIPPED: there is a GPU here");
    return;
  }
  const auto dev = memra::HipDev::create();
  REQUIRE_FALSE(dev.ok());
  REQUIRE(dev.status().kind() == memra::ErrorKind::unsupported);
  REQUIRE(dev.status().native() != 0);
  memra::PlainHipAllocator plain;
  REQUIRE(memra::HipDev::adopt(plain).status().kind() == memra::ErrorKind::unsupported);
  std::printf("%s\n", dev.status().message().c_str());
}
