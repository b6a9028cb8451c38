// PoisonDev: undefined memory is NaN in every format, and freed memory is not what it was.
#include <array>
#include <cmath>
#include <concepts/minimal_dev.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/detail/half.hpp>
#include <memra/host_dev.hpp>
#include <memra/poison_dev.hpp>
#include <support/catch.hpp>
#include <utility>
#include <vector>

namespace wrappers_poison_cpp {
namespace {

/// Memory of one arena that is never given back to the system, so that a test may look at what was freed.
struct Arena {
  alignas(256) std::array<std::byte, 64 * 1024> memory{};
  std::size_t used = 0;
  void* allocate(memra::HostStream, std::size_t bytes, std::size_t) noexcept {
    const std::size_t at = used;
    used = (used + bytes + 255) / 256 * 256;
    return used <= memory.size() ? memory.data() + at : nullptr;
  }
  void deallocate(memra::HostStream, void*, std::size_t, std::size_t) noexcept {}
};

TEST_CASE("fresh memory of PoisonDev is a signalling NaN as f32 and NaN as f16 and bf16", "[wrappers]") {
  memra::PoisonDev<memra::HostDev> dev;
  auto b = memra::check(dev.alloc(1003));
  std::uint32_t word = 0;
  for (std::size_t i = 0; i + 4 <= 1003; i += 4) {
    std::memcpy(&word, b.data() + i, 4);
    REQUIRE(word == dev.pattern);
  }
  REQUIRE((word & 0x7f800000U) == 0x7f800000U);  // exponent of NaN and infinity
  REQUIRE((word & 0x00400000U) == 0);            // quiet bit
  REQUIRE((word & 0x003fffffU) != 0);            // not infinity
  for (const std::uint32_t half : {word & 0xffffU, word >> 16}) {
    REQUIRE(((half & 0x7c00U) == 0x7c00U && (half & 0x03ffU) != 0));  // f16
    REQUIRE(((half & 0x7f80U) == 0x7f80U && (half & 0x007fU) != 0));  // bf16
  }
  auto z = memra::check(dev.zeros(512));
  for (std::size_t i = 0; i < 512; ++i) REQUIRE(z.data()[i] == std::byte{0});
  dev.poison_with(std::byte{0x11});
  REQUIRE(memra::check(dev.alloc(64)).data()[63] == std::byte{0x11});
  dev.poison_with_nan();
  REQUIRE(memra::check(dev.alloc(64)).data()[63] == std::byte{0x7f});
}

TEST_CASE("PoisonDev shows a read after free, which HostDev does not", "[wrappers]") {
  const auto read_after_free = [](auto& dev) {
    std::byte* kept = nullptr;
    {
      auto b = memra::check(dev.zeros(64));
      memra::check(dev.fill(b.data(), std::byte{5}, 64));
      kept = b.data();
    }
    return *kept;  // what a device that frees early would hand to a kernel
  };
  Arena arena;
  auto plain = memra::HostDev::adopt(arena);
  REQUIRE(read_after_free(plain) == std::byte{5});  // the mistake goes unnoticed
  memra::PoisonDev<memra::HostDev> poison(memra::HostDev::adopt(arena));
  REQUIRE(read_after_free(poison) != std::byte{5});
}

TEST_CASE("a buffer may outlive its PoisonDev, and move assignment poisons what it replaces", "[wrappers]") {
  Arena arena;
  using Dev = memra::PoisonDev<memra::HostDev>;
  Dev::Buffer kept;
  std::byte* replaced = nullptr;
  {
    Dev dev(memra::HostDev::adopt(arena));
    kept = memra::check(dev.zeros(64));
    replaced = kept.data();
    kept = memra::check(dev.zeros(64));
    REQUIRE(*replaced == std::byte{0xa0});
  }
  REQUIRE(*kept.data() == std::byte{0});
}

}  // namespace
}  // namespace wrappers_poison_cpp
