// CountingDev: every number it gives, against calls that were counted by hand.
#include <cstddef>
#include <cstdint>
#include <memra/counting_dev.hpp>
#include <memra/fault_dev.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/launch.hpp>
#include <optional>
#include <string>
#include <support/catch.hpp>
#include <utility>
#include <vector>

namespace wrappers_counting_cpp {
namespace {

using memra::DevOp;
using Dev = memra::CountingDev<memra::HostDev>;

struct Nothing {
  void operator()(const memra::Item&) const noexcept {}
};

TEST_CASE("CountingDev counts calls, bytes, launches and memory", "[wrappers]") {
  Dev dev;
  REQUIRE(dev.counters().total_calls() == 0);
  std::byte host[64] = {};
  std::optional<Dev::Buffer> a(memra::check(dev.alloc(1000)));
  {
    auto b = memra::check(dev.zeros(500));
    memra::check(dev.copy(b.data(), a->data(), 100));
    memra::check(dev.move(b.data(), b.data() + 1, 10));
    memra::check(dev.fill(b.data(), std::byte{1}, 7));
    memra::check(dev.upload(b.data(), host, 64));
    memra::check(dev.download(host, b.data(), 3));
    const std::int32_t two[2] = {1, 2};
    memra::check(dev.store_i32(reinterpret_cast<std::int32_t*>(b.data()), two, 2));
    memra::check(dev.synchronize());
    Dev::Event e;
    memra::check(dev.publish(e));
    memra::check(dev.wait(e));
    const memra::CopyItem items[2] = {{b.data(), a->data(), 20}, {b.data() + 20, a->data(), 30}};
    memra::check(dev.copy_batch(items, 2));
    memra::check(memra::launch(dev, "one", memra::Grid{3, 1, 1}, Nothing{}));
    memra::check(memra::launch(dev, "one", memra::Grid{}, Nothing{}));
    memra::check(memra::launch(dev, "two", memra::Grid{}, Nothing{}));
    memra::check(memra::launch(dev, "two", memra::Grid{0, 1, 1}, Nothing{}));  // nothing
    memra::check(memra::ops_for<Dev>(dev).copy_rows(b.data(), 8, a->data(), 8, 8, 2));
  }
  Dev peer;
  memra::check(dev.copy_peer(a->data(), peer, memra::check(peer.zeros(8)).data(), 8));
  const auto& n = dev.counters();
  REQUIRE(n.allocations() == 2);
  REQUIRE(n.bytes(DevOp::alloc) == 1000);
  REQUIRE(n.bytes(DevOp::zeros) == 500);
  REQUIRE(n.copies() == 4);
  REQUIRE(n.copied_bytes() == 100 + 10 + 50 + 8);
  REQUIRE(n.bytes(DevOp::fill) == 7);
  REQUIRE(n.host_copies() == 2);
  REQUIRE(n.host_copied_bytes() == 67);
  REQUIRE(n.calls(DevOp::store_i32) == 1);
  REQUIRE(n.bytes(DevOp::store_i32) == 8);
  REQUIRE(n.calls(DevOp::synchronize) == 1);
  REQUIRE(n.calls(DevOp::publish) == 1);
  REQUIRE(n.calls(DevOp::wait) == 1);
  REQUIRE(n.calls(DevOp::launch) == 4);
  REQUIRE(n.launched("one") == 2);
  REQUIRE(n.launched("two") == 1);
  REQUIRE(n.launched("copy_rows") == 1);
  REQUIRE(n.launched("three") == 0);
  REQUIRE(n.frees == 1);
  REQUIRE(n.live == 1);
  REQUIRE(n.live_bytes == 1000);
  REQUIRE(n.peak_bytes == 1500);

  const memra::DevCounters before = n;  // a value
  dev.reset();
  REQUIRE(before.total_calls() == 17);
  REQUIRE(dev.counters().total_calls() == 0);
  REQUIRE(dev.counters().launched("one") == 0);
  REQUIRE(dev.counters().live_bytes == 1000);
  REQUIRE(dev.counters().peak_bytes == 1000);
  a.reset();
  REQUIRE(dev.counters().live_bytes == 0);

  std::optional<Dev> gone(std::in_place);  // its counts may be asked when it is gone
  const auto left = gone->shared_counters();
  std::optional<Dev::Buffer> kept(memra::check(gone->alloc(7)));
  gone.reset();
  REQUIRE((left->live == 1 && left->frees == 0));
  kept.reset();
  REQUIRE((left->live == 0 && left->frees == 1));
}

TEST_CASE("CountingDev counts what went well only, and a full table of names loses names, not calls", "[wrappers]") {
  memra::CountingDev<memra::FaultDev<memra::HostDev>> dev;
  memra::Fault f;
  f.forever = true;
  dev.inner().arm(f);
  REQUIRE_FALSE(dev.alloc(10).ok());
  REQUIRE_FALSE(dev.synchronize().ok());
  REQUIRE(dev.counters().total_calls() == 0);
  REQUIRE(dev.counters().live == 0);
  dev.inner().disarm();
  std::vector<std::string> names;
  for (int i = 0; i < 70; ++i) names.push_back(std::string("k").append(std::to_string(i)));
  for (const auto& name : names) memra::check(memra::launch(dev, name.c_str(), memra::Grid{}, Nothing{}));
  REQUIRE(dev.counters().calls(DevOp::launch) == 70);
  REQUIRE(dev.counters().launched("k63") == 1);
  REQUIRE(dev.counters().launched("k64") == 0);
}

}  // namespace
}  // namespace wrappers_counting_cpp
