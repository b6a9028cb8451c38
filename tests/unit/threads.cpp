// S9: different device objects are independent. One thread each, at the same time; a race detector looks on.
#include <cstddef>
#include <cstdint>
#include <memra/any_dev.hpp>
#include <memra/cache.hpp>
#include <memra/canary_dev.hpp>
#include <memra/counting_dev.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/fault_dev.hpp>
#include <memra/guard_planes.hpp>
#include <memra/host_dev.hpp>
#include <memra/ordered_dev.hpp>
#include <memra/poison_dev.hpp>
#include <string>
#include <support/catch.hpp>
#include <support/stand_in.hpp>
#include <thread>
#include <vector>

namespace threads_cpp {
namespace {

using memra_test::Tokens;
using Stack =
    memra::FaultDev<memra::CountingDev<memra::OrderedDev<memra::PoisonDev<memra::CanaryDev<memra::HostDev>>>>>;

/// Rounds of everything a cache does; says what went wrong, in words (assertions are not for other threads).
template <class Dev>
std::string rounds(std::uint32_t seed) {
  Dev dev;
  const auto cfg = memra_test::hybrid_model();
  auto cache = memra::check(memra::Cache<Dev>::create(dev, cfg, 40));
  Tokens fed = memra_test::stream(5, seed);
  memra::check(memra_test::feed_by(cache, fed, 3));
  auto snap = memra::check(cache.snapshot());
  for (std::uint32_t round = 0; round < 8; ++round) {
    memra::check(cache.snapshot_into(snap));
    memra::check(memra_test::feed_by(cache, memra_test::stream(4, seed + 100), 4));
    memra::check(cache.rollback(snap, 0));
    const Tokens more = memra_test::stream(3, seed + round);
    memra::check(memra_test::feed_by(cache, more, 3));
    fed = memra_test::join(fed, more);
  }
  memra::check(cache.snapshot_into(snap));
  const auto prefix = memra::check(cache.export_prefix(snap));
  auto copy = memra::check(memra::Cache<Dev>::from_prefix(dev, cfg, 40, prefix));
  for (const auto* c : {&cache, &copy}) {
    const auto got = memra_test::image(*c);
    const auto want = memra_test::straight(cfg, fed);
    if (got != want) return memra_test::difference(got, want);
  }
  return "";
}

template <class Dev>
void two_at_once() {
  std::string said[2];
  std::thread a([&] { said[0] = rounds<Dev>(1); });
  std::thread b([&] { said[1] = rounds<Dev>(2); });
  a.join();
  b.join();
  REQUIRE(said[0].empty());
  REQUIRE(said[1].empty());
}

TEST_CASE("S9 two host devices, one thread each, are independent", "[threads]") {
  two_at_once<memra::HostDev>();
}

TEST_CASE("S9 two stacks of wrappers, one thread each, are independent", "[threads]") {
  two_at_once<Stack>();
}

TEST_CASE("S9 a cache made in one thread may be used up in another", "[threads]") {
  memra::HostDev dev;
  const auto cfg = memra_test::hybrid_model();
  auto cache = memra::check(memra::Cache<memra::HostDev>::create(dev, cfg, 20));
  memra::check(memra_test::feed_by(cache, memra_test::stream(4), 2));
  std::thread other([&] {
    memra::check(memra_test::feed_by(cache, memra_test::stream(3, 2), 1));
    const auto snap = memra::check(cache.snapshot());
    memra::check(cache.rollback(snap, 0));
  });
  other.join();
  REQUIRE(memra_test::image(cache) ==
          memra_test::straight(cfg, memra_test::join(memra_test::stream(4), memra_test::stream(3, 2))));
}

// The red arm of the race detector, hidden from everything else: one device used by two threads at once.
TEST_CASE("a race on one device", "[.][planted][race]") {
  memra::CountingDev<memra::HostDev> dev;
  const auto b = memra::check(dev.alloc(8));
  const auto use = [&] { static_cast<void>(dev.fill(b.data(), std::byte{1}, 8).ok()); };
  std::thread one(use);
  std::thread two(use);
  one.join();
  two.join();
  REQUIRE(dev.counters().allocations() == 1);
}

// The red arm of memcheck, hidden as well: a decision that hangs on memory nobody wrote.
TEST_CASE("a decision on unwritten memory", "[.][planted][unwritten]") {
  memra::HostDev dev;
  const auto b = memra::check(dev.alloc(64));
  int sum = 0;
  for (std::size_t i = 0; i < 64; ++i) {
    if (b.data()[i] == std::byte{7}) ++sum;
  }
  REQUIRE(sum >= 0);
}

}  // namespace
}  // namespace threads_cpp
