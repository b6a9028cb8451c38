// HostDev by itself: the S rules it can show, and an engine's allocator under it.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <memra/host_dev.hpp>
#include <optional>
#include <string>
#include <support/catch.hpp>
#include <utility>
#include <vector>

namespace host_dev_cpp {
namespace {

using memra::ErrorKind;
using memra::HostDev;
using memra::HostStream;
using memra::Status;

/// True if every byte of a buffer is `value`.
bool all(const HostDev::Buffer& b, int value) {
  for (std::size_t i = 0; i < b.size(); ++i) {
    if (b.data()[i] != static_cast<std::byte>(value)) return false;
  }
  return true;
}

/// Gives memory, counts it, and misbehaves on request.
struct EngineAllocator {
  std::size_t live = 0;
  int frees = 0;
  std::size_t freed_bytes = 0;
  bool empty = false;
  std::size_t skew = 0;
  void* allocate(HostStream, std::size_t bytes, std::size_t align) noexcept {
    if (empty) return nullptr;
    ++live;
    return static_cast<char*>(std::aligned_alloc(align, (bytes + 2 * align - 1) / align * align)) + skew;
  }
  void deallocate(HostStream, void* p, std::size_t bytes, std::size_t) noexcept {
    --live;
    ++frees;
    freed_bytes += bytes;
    std::free(static_cast<char*>(p) - skew);
  }
};

TEST_CASE("S2 alloc is aligned, zeros is zero also where memory was used before, sizes are exact", "[host_dev]") {
  HostDev dev;
  for (const std::size_t n : {1U, 255U, 256U, 257U, 100000U}) {
    for (int i = 0; i < 8; ++i) {
      {
        const auto dirty = memra::check(dev.alloc(n));
        REQUIRE(reinterpret_cast<std::uintptr_t>(dirty.data()) % memra::plane_alignment == 0);
        REQUIRE(dirty.size() == n);
        REQUIRE(dev.fill(dirty.data(), std::byte{0xEE}, n).ok());
        REQUIRE(all(dirty, 0xEE));
      }
      const auto zero = memra::check(dev.zeros(n));
      REQUIRE(all(zero, 0));
    }
  }
  const auto none = memra::check(dev.alloc(0));
  REQUIRE((none.data() == nullptr && none.size() == 0));
  REQUIRE(memra::check(dev.zeros(0)).size() == 0);
  // Sizes that wrap when they are rounded up to the alignment.
  for (const std::size_t n : {std::numeric_limits<std::size_t>::max(), std::numeric_limits<std::size_t>::max() - 254}) {
    const Status s = dev.alloc(n).status();
    REQUIRE((s.kind() == ErrorKind::out_of_memory && s.bytes() == n));
    REQUIRE(dev.zeros(n).status().kind() == ErrorKind::out_of_memory);
  }
}

TEST_CASE("S3 copy refuses every overlap and copies nothing then; move does not", "[host_dev]") {
  HostDev dev;
  const auto b = memra::check(dev.alloc(64));
  std::array<std::byte, 64> host{};
  const auto refill = [&] {
    for (std::size_t i = 0; i < 64; ++i) host[i] = static_cast<std::byte>(i);
    REQUIRE(dev.upload(b.data(), host.data(), 64).ok());
  };
  for (std::size_t src = 0; src < 32; ++src) {
    for (std::size_t dst = 0; dst < 32; ++dst) {
      for (const std::size_t n : {0U, 1U, 8U, 16U, 32U}) {
        refill();
        const bool overlap = n != 0 && src < dst + n && dst < src + n;
        const Status s = dev.copy(b.data() + dst, b.data() + src, n);
        REQUIRE(s.kind() == (overlap ? ErrorKind::bad_argument : ErrorKind::ok));
        REQUIRE((!overlap || s.bytes() == n));
        std::array<std::byte, 64> want = host;
        if (!overlap) std::memmove(want.data() + dst, host.data() + src, n);
        REQUIRE(std::memcmp(b.data(), want.data(), 64) == 0);
        refill();
        std::memmove(host.data() + dst, host.data() + src, n);
        REQUIRE(dev.move(b.data() + dst, b.data() + src, n).ok());
        REQUIRE(std::memcmp(b.data(), host.data(), 64) == 0);
      }
    }
  }
  refill();
  const memra::CopyItem items[] = {{b.data(), b.data() + 32, 8}, {b.data() + 8, b.data() + 12, 8}};
  REQUIRE(dev.copy_batch(items, 1).ok());
  REQUIRE(dev.copy_batch(items, 2).kind() == ErrorKind::bad_argument);
  HostDev other;
  REQUIRE(dev.copy_peer(b.data(), other, b.data() + 4, 8).kind() == ErrorKind::bad_argument);
  REQUIRE(dev.copy_peer(b.data(), other, b.data() + 40, 8).ok());
}

TEST_CASE("a count of zero does nothing, with any address", "[host_dev]") {
  HostDev dev;
  REQUIRE(dev.copy(nullptr, nullptr, 0).ok());
  REQUIRE(dev.move(nullptr, nullptr, 0).ok());
  REQUIRE(dev.fill(nullptr, std::byte{1}, 0).ok());
  REQUIRE(dev.upload(nullptr, nullptr, 0).ok());
  REQUIRE(dev.download(nullptr, nullptr, 0).ok());
  REQUIRE(dev.store_i32(nullptr, nullptr, 0).ok());
  REQUIRE(dev.copy_batch(nullptr, 0).ok());
}

TEST_CASE("S9 upload and store_i32 have read their source when they return", "[host_dev]") {
  HostDev dev;
  const auto b = memra::check(dev.zeros(64));
  std::vector<std::byte> host(16, std::byte{7});
  std::int32_t ints[] = {5, -6, 7};
  REQUIRE(dev.upload(b.data(), host.data(), 16).ok());
  REQUIRE(dev.store_i32(reinterpret_cast<std::int32_t*>(b.data() + 16), ints, 3).ok());
  std::memset(host.data(), 0, 16);
  ints[0] = ints[1] = ints[2] = 0;
  std::int32_t back[3] = {};
  REQUIRE(dev.download(reinterpret_cast<std::byte*>(back), b.data() + 16, sizeof back).ok());
  REQUIRE((back[0] == 5 && back[1] == -6 && back[2] == 7));
  REQUIRE(b.data()[15] == std::byte{7});
  REQUIRE(b.data()[28] == std::byte{0});
}

TEST_CASE("S1 S10 launch runs every item once, an empty grid none, in call order with copies", "[host_dev]") {
  HostDev dev;
  const auto b = memra::check(dev.zeros(2 * 3 * 4));
  std::byte* at = b.data();
  REQUIRE(memra::launch(dev, "count", {2, 3, 4}, [at](const memra::Item& i) {
            std::byte& x = at[(i.z * 3 + i.y) * 2 + i.x];
            x = static_cast<std::byte>(std::to_integer<int>(x) + 1);
          }).ok());
  REQUIRE(all(b, 1));
  for (const memra::Grid empty : {memra::Grid{0, 3, 4}, memra::Grid{2, 0, 4}, memra::Grid{2, 3, 0}}) {
    REQUIRE(memra::launch(dev, "none", empty, [at](const memra::Item&) { *at = std::byte{9}; }).ok());
  }
  REQUIRE(all(b, 1));
  HostDev::Event e;
  REQUIRE((dev.publish(e).ok() && dev.wait(e).ok() && dev.synchronize().ok()));
}

TEST_CASE("S6 an adopted allocator gives all memory, and buffers outlive the device", "[host_dev]") {
  EngineAllocator engine;
  {
    std::optional<HostDev> dev(HostDev::adopt(engine));
    auto a = memra::check(dev->alloc(100));
    auto b = memra::check(dev->zeros(300));
    REQUIRE((engine.live == 2 && all(b, 0)));
    HostDev moved = std::move(*dev);
    dev.reset();
    REQUIRE(moved.fill(a.data(), std::byte{3}, 100).ok());
    auto c = memra::check(moved.alloc(5));
    REQUIRE(engine.live == 3);
    moved = HostDev();  // the adopted pool lives on in the buffers
    REQUIRE(all(a, 3));
    a = std::move(b);  // frees the 100
    REQUIRE((engine.live == 2 && engine.freed_bytes == 100 && a.size() == 300));
    HostDev::Buffer& self = a;
    a = std::move(self);
    REQUIRE((engine.live == 2 && a.size() == 300 && all(a, 0)));
    REQUIRE((b.data() == nullptr && b.size() == 0));  // NOLINT(bugprone-use-after-move)
  }
  REQUIRE((engine.live == 0 && engine.frees == 3 && engine.freed_bytes == 405));
}

TEST_CASE("S5 S6 an allocator that has none, or ignores the alignment, is reported with the byte count", "[host_dev]") {
  EngineAllocator engine;
  HostDev dev = HostDev::adopt(engine);
  engine.empty = true;
  const Status none = dev.alloc(1000).status();
  REQUIRE(
      (none.kind() == ErrorKind::out_of_memory && none.bytes() == 1000 && std::string(none.operation()) == "alloc"));
  REQUIRE(dev.zeros(1000).status().kind() == ErrorKind::out_of_memory);
  engine.empty = false;
  engine.skew = 64;
  const Status skewed = dev.alloc(1000).status();
  REQUIRE((skewed.kind() == ErrorKind::device_failure && engine.live == 0 && engine.frees == 1));
}

TEST_CASE("C13 a moved-from HostDev gives no memory", "[host_dev]") {
  HostDev dev;
  const HostDev taken = std::move(dev);
  REQUIRE(dev.alloc(4).status().kind() == ErrorKind::bad_state);  // NOLINT(bugprone-use-after-move)
  REQUIRE(dev.zeros(4).status().kind() == ErrorKind::bad_state);
  dev = HostDev();
  REQUIRE(dev.alloc(4).ok());
}

// Faults that a build with sanitizers must die of: run one by one and seen to fail (see tests/CMakeLists.txt).

TEST_CASE("a read behind an allocation of a device", "[.][planted][overrun]") {
  memra::HostDev dev;
  const auto b = memra::check(dev.alloc(256));
  const volatile std::byte* p = b.data();
  REQUIRE(p[b.size()] == p[b.size()]);
}

TEST_CASE("a read of a buffer that is gone", "[.][planted][stale]") {
  memra::HostDev dev;
  const volatile std::byte* p = memra::check(dev.alloc(256)).data();
  REQUIRE(p[0] == p[0]);
}

TEST_CASE("a leak", "[.][planted][leak]") {
  memra::HostDev dev;
  auto* lost = new memra::HostDev::Buffer(memra::check(dev.alloc(256)));
  REQUIRE(lost->size() == 256);
  lost = nullptr;
  REQUIRE(lost == nullptr);
}

TEST_CASE("a sum that overflows", "[.][planted][sum]") {
  volatile int most = std::numeric_limits<int>::max();
  most = most + 1;
  REQUIRE(most != 0);
}

TEST_CASE("a number that an int cannot hold", "[.][planted][cast]") {
  const volatile float x = 3e10F;
  const volatile int n = static_cast<int>(x);
  REQUIRE(n == n);
}

}  // namespace
}  // namespace host_dev_cpp
