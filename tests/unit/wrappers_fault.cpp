// FaultDev: the call that is meant fails, nothing else does, and a failed call leaves no trace.
#include <concepts/minimal_dev.hpp>
#include <cstddef>
#include <memory>
#include <memra/cache.hpp>
#include <memra/canary_dev.hpp>
#include <memra/counting_dev.hpp>
#include <memra/fault_dev.hpp>
#include <memra/guard_planes.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/kv_dev.hpp>
#include <memra/launch.hpp>
#include <memra/placement.hpp>
#include <memra/plan.hpp>
#include <string>
#include <support/catch.hpp>
#include <support/stand_in.hpp>
#include <vector>

namespace wrappers_fault_cpp {
namespace {

using memra::DevOp;
using memra::ErrorKind;
using memra::Fault;
using Dev = memra::FaultDev<memra::CountingDev<memra::HostDev>>;

Fault nth(std::size_t n) {
  Fault f;
  f.nth = n;
  return f;
}
struct Nothing {
  void operator()(const memra::Item&) const noexcept {}
};

TEST_CASE("FaultDev fails the n-th call of all and no other", "[wrappers]") {
  for (std::size_t n = 1; n <= 4; ++n) {
    Dev dev;
    dev.arm(nth(n));
    auto a = dev.zeros(64);
    REQUIRE(a.ok() == (n != 1));
    if (!a) continue;
    REQUIRE(dev.fill(a->data(), std::byte{1}, 64).ok() == (n != 2));
    REQUIRE(dev.copy(nullptr, nullptr, 0).ok());  // does nothing, counts for nothing
    REQUIRE(dev.move(a->data(), a->data() + 1, 8).ok() == (n != 3));
    REQUIRE(dev.synchronize().ok() == (n != 4));
    REQUIRE(dev.synchronize().ok());
    REQUIRE(dev.fired() == 1);
    REQUIRE(dev.calls() == 5);
    REQUIRE(dev.calls(DevOp::synchronize) == 2);
  }
}

TEST_CASE("FaultDev objects that share a plan have one count of calls, and what is lost is one device", "[wrappers]") {
  std::shared_ptr<memra::FaultPlan> plan;
  {
    Dev a;
    memra::FaultDev<memra::HostDev> b;  // of another type
    b.share(a.plan());
    plan = a.plan();
    for (std::size_t n = 1; n <= 4; ++n) {
      a.arm(nth(n));
      REQUIRE(a.synchronize().ok() == (n != 1));
      REQUIRE(b.synchronize().ok() == (n != 2));
      REQUIRE(b.synchronize().ok() == (n != 3));
      REQUIRE(a.synchronize().ok() == (n != 4));
      REQUIRE((b.fired() == 1 && b.matched() == 4));
    }
    REQUIRE((a.calls() == 8 && b.calls() == 8));  // each its own
    Fault lost = nth(2);
    lost.kind = ErrorKind::device_lost;
    b.arm(lost);
    REQUIRE(a.synchronize().ok());
    REQUIRE(b.synchronize().kind() == ErrorKind::device_lost);
    REQUIRE(a.synchronize().ok());
    REQUIRE(b.synchronize().kind() == ErrorKind::device_lost);
    REQUIRE(plan->fired() == 2);
    a.disarm();
    REQUIRE(b.synchronize().ok());
    b.share(std::make_shared<memra::FaultPlan>());  // and on its own again
    a.arm(nth(1));
    REQUIRE((b.synchronize().ok() && !a.synchronize().ok()));
  }
  REQUIRE(plan->fired() == 1);  // may be asked when the devices are gone
}

TEST_CASE("FaultDev fails one kind of call, a launch by name, once or for ever", "[wrappers]") {
  Dev dev;
  Fault f = nth(2);
  f.op = DevOp::fill;
  f.forever = true;
  f.native = 77;
  dev.arm(f);
  auto a = dev.zeros(64);
  REQUIRE(a.ok());
  REQUIRE(dev.fill(a->data(), std::byte{1}, 64).ok());
  REQUIRE(dev.copy(a->data(), a->data() + 32, 32).ok());
  for (int i = 0; i < 2; ++i) {
    const memra::Status s = dev.fill(a->data(), std::byte{2}, 64);
    REQUIRE(s.kind() == ErrorKind::device_failure);
    REQUIRE(std::string(s.operation()) == "fill");
    REQUIRE(s.native() == 77);
    REQUIRE(s.bytes() == 64);
  }
  std::vector<std::byte> seen(64);
  REQUIRE(dev.download(seen.data(), a->data(), 64).ok());
  REQUIRE(seen == std::vector<std::byte>(64, std::byte{1}));  // the failed fills wrote nothing
  REQUIRE(dev.fired() == 2);

  Fault launch = nth(1);
  launch.launch = "mine";
  dev.arm(launch);
  REQUIRE(memra::launch(dev, "other", memra::Grid{}, Nothing{}).ok());
  REQUIRE_FALSE(memra::launch(dev, "mine", memra::Grid{}, Nothing{}).ok());
  REQUIRE(memra::launch(dev, "mine", memra::Grid{}, Nothing{}).ok());
  REQUIRE(dev.inner().counters().launched("mine") == 1);  // the failed one was never passed on
  dev.disarm();
  REQUIRE(dev.fired() == 0);
}

TEST_CASE("FaultDev tears a call: it fails and has done its first half", "[wrappers]") {
  memra::FaultDev<memra::HostDev> dev;
  const auto a = memra::check(dev.zeros(8));
  memra::Fault f;
  const auto ones = [&] {
    std::size_t n = 0;
    for (std::size_t i = 0; i < 8; ++i) n += a.data()[i] == std::byte{1} ? 1 : 0;
    return n;
  };
  for (const bool torn : {false, true}) {
    f.torn = torn;
    dev.arm(f);
    REQUIRE_FALSE(dev.fill(a.data(), std::byte{1}, 8).ok());
    REQUIRE(ones() == (torn ? 4U : 0U));
    const std::int32_t all[2] = {0x01010101, 0x01010101};
    dev.arm(f);
    memra::check(dev.inner().fill(a.data(), std::byte{0}, 8));
    REQUIRE_FALSE(dev.store_i32(reinterpret_cast<std::int32_t*>(a.data()), all, 2).ok());
    REQUIRE(ones() == (torn ? 4U : 0U));
    memra::check(dev.inner().fill(a.data(), std::byte{0}, 8));
    const auto* from = reinterpret_cast<const std::byte*>(all);
    const memra::CopyItem items[2] = {{a.data(), from, 4}, {a.data() + 4, from, 4}};
    dev.arm(f);
    REQUIRE_FALSE(dev.copy_batch(items, 2).ok());
    REQUIRE(ones() == (torn ? 4U : 0U));  // the first of two
    memra::check(dev.inner().fill(a.data(), std::byte{0}, 8));
  }
}

TEST_CASE("FaultDev: out of memory comes from allocations only, a lost device stays lost", "[wrappers]") {
  Dev dev;
  Fault f = nth(1);
  f.kind = ErrorKind::out_of_memory;
  dev.arm(f);
  REQUIRE(dev.synchronize().ok());
  REQUIRE(dev.alloc(8).status().kind() == ErrorKind::out_of_memory);
  REQUIRE(dev.alloc(8).ok());

  f.kind = ErrorKind::device_lost;
  f.op = DevOp::synchronize;
  dev.arm(f);
  auto a = dev.zeros(8);
  REQUIRE(a.ok());
  REQUIRE(dev.synchronize().kind() == ErrorKind::device_lost);
  REQUIRE(dev.fill(a->data(), std::byte{1}, 8).kind() == ErrorKind::device_lost);
  REQUIRE(dev.zeros(8).status().kind() == ErrorKind::device_lost);
  dev.disarm();
  REQUIRE(dev.synchronize().ok());
}

TEST_CASE("FaultDev fails ops by their name", "[wrappers]") {
  Dev dev;
  auto x = memra::check(dev.zeros(64));
  Fault f = nth(1);
  f.launch = "copy_rows";
  dev.arm(f);
  const memra::ops_for<Dev> ops(dev);
  REQUIRE_FALSE(ops.copy_rows(x.data(), 8, x.data() + 32, 8, 8, 2).ok());
  REQUIRE(ops.copy_rows(x.data(), 8, x.data() + 32, 8, 8, 2).ok());
  REQUIRE(dev.inner().counters().launched("copy_rows") == 1);
}

/// Tries every place where `operation` can fail. @return how many there were; `look` judges the state after each.
template <class D, class Operation, class Look>
std::size_t sweep(D& dev, Operation operation, Look look) {
  for (std::size_t n = 1;; ++n) {
    dev.arm(nth(n));
    const memra::Status s = operation();
    if (dev.fired() == 0) return n - 1;
    dev.disarm();
    REQUIRE_FALSE(s.ok());
    look();
  }
}

TEST_CASE("a sweep over create finds no leak, and finds one that is planted", "[wrappers]") {
  memra::FaultDev<memra::CountingDev<memra::CanaryDev<memra::HostDev>>> guarded;
  auto& guards = guarded.inner().inner();
  const auto cfg = memra_test::hybrid_model();
  const auto on_dev = memra::Placement::single(cfg.layers.size(), memra::plane_gap_of(guarded));
  memra::check(memra::guard_planned(guarded, memra::check(memra::plan(cfg, 8, on_dev)), cfg));
  const auto create = [&] { return memra::Cache<decltype(guarded)>::create(guarded, cfg, 8).status(); };
  const std::size_t places = sweep(guarded, create, [&] {
    REQUIRE(guarded.inner().counters().live == 0);
    REQUIRE(guards.violations() == 0);
  });
  REQUIRE(places >= 4);  // three slabs and the position
  REQUIRE(guards.violations() == 0);
  // Red arm: an operation that keeps its first buffer when its second fails.
  Dev dev;
  std::vector<Dev::Buffer> leaked;
  std::size_t seen = 0;
  sweep(
      dev,
      [&] {
        auto first = dev.alloc(8);
        if (!first) return first.status();
        leaked.push_back(*std::move(first));
        return dev.alloc(8).status();
      },
      [&] { seen += dev.inner().counters().live != 0 ? 1 : 0; });
  REQUIRE(seen == 1);
}

TEST_CASE("a sweep over snapshot_into and rollback: refused or tainted, and a rollback brings all back", "[wrappers]") {
  Dev dev;
  const auto cfg = memra_test::hybrid_model();
  auto cache = memra::check(memra::Cache<Dev>::create(dev, cfg, 32));
  const auto tokens = memra_test::stream(6);
  memra::check(memra_test::feed_by(cache, tokens));
  const auto keep = memra::check(cache.snapshot());
  auto work = memra::check(cache.snapshot());
  REQUIRE(sweep(
              dev, [&] { return cache.snapshot_into(work); },
              [&] {
                REQUIRE_FALSE(work.valid());
                REQUIRE_FALSE(cache.tainted());
                REQUIRE(memra_test::image(cache) == memra_test::straight(cfg, tokens));
              }) >= 1);
  REQUIRE(work.valid());
  REQUIRE(sweep(
              dev, [&] { return cache.rollback(work, 0).status(); },
              [&] {
                REQUIRE(cache.tainted());
                REQUIRE_FALSE(cache.begin_step(1).ok());
                memra::check(cache.rollback(keep, 0));
                REQUIRE(memra_test::image(cache) == memra_test::straight(cfg, tokens));
              }) >= 2);
}

}  // namespace
}  // namespace wrappers_fault_cpp
