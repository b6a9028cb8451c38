// What a killed context leaves behind. Hidden, and run alone: nothing works after it in the same process.
#include <cstdint>
#include <cstdio>
#include <memra/cache.hpp>
#include <support/catch.hpp>

#include "gpu_ops.hpp"
#include "support.hpp"

namespace memra_lost {

/// Writes to an address that no one has.
struct WildBody {
  MEMRA_HD void operator()(const memra::Item&) const noexcept {
    *reinterpret_cast<volatile std::int32_t*>(std::uintptr_t{0x10}) = 1;
  }
};

TEST_CASE("S5 a killed context is device_lost, reported by the next call and by every later one", "[.lost]") {
  using memra::ErrorKind;
  memra_test::Gpu dev = memra_test::make_gpu();
  memra_test::Gpu other = memra_test::make_gpu();
  auto b = memra::check(dev.zeros(4096));
  memra::check(
      memra::launch(dev, "wild", memra::Grid{1, 1, 1}, WildBody{}));  // asynchronous: the launch itself is fine
  const memra::Status first = dev.synchronize();
  REQUIRE(first.kind() == ErrorKind::device_lost);
  REQUIRE(first.native() != 0);
  REQUIRE(dev.copy(b.data(), b.data() + 1024, 16).kind() == ErrorKind::device_lost);
  REQUIRE(dev.alloc(16).status().kind() == ErrorKind::device_lost);
  REQUIRE(memra::launch(dev, "input", memra::Grid{1, 1, 1}, WildBody{}).kind() == ErrorKind::device_lost);
  REQUIRE(dev.begin_capture().kind() == ErrorKind::device_lost);
  REQUIRE(other.fill(b.data(), std::byte{0}, 16).kind() == ErrorKind::device_lost);  // it learns by its own next call
  std::printf("%s\n", first.message().c_str());
}

}  // namespace memra_lost
