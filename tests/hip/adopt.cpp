// HipDev on memory without a pool. A plain C++ file, for a machine with a device.
#include <cstddef>
#include <memra/cache.hpp>
#include <memra/hip/device.hpp>
#include <memra/hip/plain_allocator.hpp>
#include <support/catch.hpp>
#include <support/stand_in.hpp>

namespace memra_adopt {

using namespace memra_test;

struct Counted : memra::PlainHipAllocator {
  std::size_t taken = 0;  ///< bytes

  void* allocate(hipStream_t stream, std::size_t n, std::size_t align) noexcept {
    void* p = PlainHipAllocator::allocate(stream, n, align);
    if (p != nullptr) taken += n;
    return p;
  }
  void deallocate(hipStream_t stream, void* p, std::size_t n, std::size_t align) noexcept {
    taken -= n;
    PlainHipAllocator::deallocate(stream, p, n, align);
  }
};

TEST_CASE("S6 a cache on hipMalloc gives the bytes of the oracle and takes what is planned", "[device]") {
  Counted memory;
  {
    auto dev = memra::check(memra::HipDev::adopt(memory));
    auto cache = memra::check(memra::Cache<memra::HipDev>::create(dev, hybrid_model(), 40));
    REQUIRE(memory.taken == cache.plan().totals.total_bytes);
    auto snap = memra::check(cache.snapshot());
    REQUIRE(feed_by(cache, stream(30), 7).ok());
    REQUIRE((image(cache) == straight(hybrid_model(), stream(30))));
    REQUIRE_FALSE((image(cache) == straight(hybrid_model(), stream(29))));
    REQUIRE(cache.rollback(snap, 0).ok());
    REQUIRE((image(cache) == straight(hybrid_model(), {})));
    // More than any device has: typed, nothing kept, and the device goes on.
    const std::size_t before = memory.taken;
    REQUIRE(dev.alloc(std::size_t{1} << 46).status().kind() == memra::ErrorKind::out_of_memory);
    REQUIRE(memory.taken == before);
    REQUIRE(dev.alloc(1000).ok());
  }
  REQUIRE(memory.taken == 0);
}

}  // namespace memra_adopt
