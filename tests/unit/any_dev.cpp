// AnyDev: one cache over devices of several types holds what a cache over HostDev holds; events, buffers, ops.
#include <concepts/minimal_dev.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <memra/any_dev.hpp>
#include <memra/cache.hpp>
#include <memra/counting_dev.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/host_ops.hpp>
#include <memra/workspace.hpp>
#include <optional>
#include <support/catch.hpp>
#include <support/placements.hpp>
#include <support/stand_in.hpp>
#include <support/test_dev.hpp>
#include <utility>
#include <vector>

namespace any_dev_cpp {
namespace {

using memra::AnyDev;
using memra::ErrorKind;
using memra::HostDev;
using memra_test::feed;
using memra_test::feed_by;
using memra_test::hybrid_model;
using memra_test::image;
using memra_test::join;
using memra_test::MinimalDev;
using memra_test::part;
using memra_test::placements;
using memra_test::straight;
using memra_test::stream;
using memra_test::TestDev;
using memra_test::Tokens;
using PlainAny = memra::BasicAnyDev<memra::AnyCaps{.ops = false, .batched_copy = false}>;
using BatchAny = memra::BasicAnyDev<memra::AnyCaps{.ops = true, .batched_copy = true}>;

static_assert(memra::KvDev<PlainAny> && memra::KvDev<BatchAny>);
static_assert(memra::BatchedCopyDev<BatchAny> && !memra::BatchedCopyDev<AnyDev> && !memra::BatchedCopyDev<PlainAny>);
static_assert(!memra::PeerCopyDev<AnyDev>);

TEST_CASE("a cache over AnyDev objects of three types equals one over HostDev", "[any_dev]") {
  const auto cfg = hybrid_model();
  const Tokens t = stream(24);
  for (const auto& p : placements(cfg.layers.size())) {
    CAPTURE(p.name);
    HostDev host;
    TestDev counted(std::size_t{512});  // with a plane gap of its own
    MinimalDev minimal;
    PlainAny any[3] = {PlainAny(host), PlainAny(counted), PlainAny(minimal)};
    std::vector<PlainAny*> devs;
    for (const std::size_t d : p.devices) devs.push_back(&any[d]);
    using Cache = memra::Cache<PlainAny>;
    std::optional<memra::CachePrefix<PlainAny>> prefix;
    {
      Cache c = memra::check(Cache::create_ppn(devs, p.fence, cfg, 32));
      REQUIRE(feed_by(c, part(t, 0, 9), 4).ok());
      auto s = memra::check(c.snapshot());
      REQUIRE(feed(c, join(part(t, 9, 2), stream(3, 8))).ok());
      const auto r = memra::check(c.rollback(s, 2));
      REQUIRE(r.replay == 2);
      REQUIRE(feed_by(c, part(t, 9, 15), 5).ok());
      REQUIRE(image(c) == straight(cfg, t));
      REQUIRE(c.snapshot_into(s).ok());
      prefix.emplace(memra::check(c.export_prefix(s)));
      REQUIRE(c.reset().ok());
      REQUIRE(image(c) == straight(cfg, {}));
    }
    for (auto& dev : any) {  // from every placement onto every type alone
      Cache c = memra::check(Cache::from_prefix(dev, cfg, 25, *prefix));
      REQUIRE(image(c) == straight(cfg, t));
    }
    prefix.reset();
    REQUIRE(counted.inner().counters().live == 0);
  }
}

TEST_CASE("AnyDev passes failures on as they are", "[any_dev]") {
  TestDev dev;
  AnyDev any(dev);
  REQUIRE(any.plane_gap() == 0);
  TestDev gapped(std::size_t{384});
  REQUIRE(AnyDev(gapped).plane_gap() == 384);
  auto a = memra::check(any.alloc(64));
  auto b = memra::check(any.zeros(64));
  const std::int32_t one = 1;
  std::byte host[64] = {};
  const auto fails = [&](auto call) {
    dev.arm(memra_test::torn(1));
    const memra::Status s = call();
    dev.disarm();
    return !s.ok() && s.native() != 0;
  };
  REQUIRE(fails([&] { return any.alloc(4).status(); }));
  REQUIRE(fails([&] { return any.zeros(4).status(); }));
  REQUIRE(fails([&] { return any.copy(a.data(), b.data(), 64); }));
  REQUIRE(fails([&] { return any.move(a.data(), b.data(), 64); }));
  REQUIRE(fails([&] { return any.fill(a.data(), std::byte{1}, 64); }));
  REQUIRE(fails([&] { return any.upload(a.data(), host, 64); }));
  REQUIRE(fails([&] { return any.download(host, a.data(), 64); }));
  REQUIRE(fails([&] { return any.store_i32(reinterpret_cast<std::int32_t*>(a.data()), &one, 1); }));
  REQUIRE(any.copy(a.data(), a.data() + 8, 16).kind() == ErrorKind::bad_argument);
  REQUIRE(dev.inner().counters().live == 2);
  AnyDev::Buffer& self = a;
  a = std::move(self);
  REQUIRE((a.size() == 64 && dev.inner().counters().live == 2));
  a = std::move(b);
  REQUIRE((a.size() == 64 && b.size() == 0 && b.data() == nullptr));  // NOLINT(bugprone-use-after-move)
  REQUIRE(dev.inner().counters().live == 1);
}

TEST_CASE("AnyDev buffers outlive it and the device", "[any_dev]") {
  std::shared_ptr<const memra::DevCounters> left;
  {
    std::optional<AnyDev::Buffer> kept;
    {
      TestDev dev;
      left = dev.inner().shared_counters();
      AnyDev any(dev);
      kept.emplace(memra::check(any.alloc(128)));
    }
    std::memset(kept->data(), 1, kept->size());
    REQUIRE(left->live == 1);
  }
  REQUIRE(left->live == 0);
}

/// A device that says what was asked of its events.
struct EventDev : MinimalDev {
  struct Event {
    int published = 0;
  };
  int waits = 0;
  int last = 0;
  int syncs = 0;
  int count = 0;
  memra::Status publish(Event& e) noexcept {
    e.published = ++count;
    return {};
  }
  memra::Status wait(const Event& e) noexcept {
    ++waits;
    last = e.published;
    return {};
  }
  memra::Status synchronize() noexcept {
    ++syncs;
    return {};
  }
};

TEST_CASE("AnyDev events: in stream order within a type, through the host between types", "[any_dev]") {
  EventDev a;
  EventDev b;
  MinimalDev other;
  PlainAny x(a);
  PlainAny y(b);
  PlainAny z(other);
  PlainAny::Event e;
  REQUIRE(y.wait(e).ok());  // never published: nothing to wait for
  REQUIRE((b.waits == 0 && b.syncs == 0));
  REQUIRE((x.publish(e).ok() && x.publish(e).ok()));
  REQUIRE(y.wait(e).ok());
  REQUIRE((b.waits == 1 && b.last == 2 && a.syncs == 0));
  REQUIRE(z.wait(e).ok());
  REQUIRE((a.syncs == 1 && a.waits == 0));  // the host waited for the publisher
  REQUIRE(z.publish(e).ok());               // another type takes the event over
  REQUIRE(y.wait(e).ok());
  REQUIRE((b.waits == 1 && b.syncs == 0 && a.syncs == 1));
}

TEST_CASE("the ops of what AnyDev wraps give the same bytes through it, and go through its door", "[any_dev]") {
  const auto cfg = memra_test::attention_model();
  TestDev inner;
  HostDev host;
  AnyDev any(inner);
  auto c = memra::check(memra::Cache<AnyDev>::create(any, cfg, 8));
  auto d = memra::check(memra::Cache<HostDev>::create(host, cfg, 8));
  const memra::ops_for<AnyDev> any_ops(any);
  const memra::ops_for<HostDev> host_ops(host);
  std::vector<float> k(3 * 64);
  std::vector<float> v(3 * 64);
  for (std::size_t i = 0; i < k.size(); ++i) {
    k[i] = memra_test::stand_in::value(1, 2, 3, i, 5, 6);
    v[i] = memra_test::stand_in::value(2, 2, 3, i, 5, 6);
  }
  auto s = memra::check(c.begin_step(3));
  auto r = memra::check(d.begin_step(3));
  for (const std::size_t il : {0U, 1U}) {
    REQUIRE(any_ops.append(memra::check(s.kv_write(il)), k.data(), v.data()).ok());
    REQUIRE(host_ops.append(memra::check(r.kv_write(il)), k.data(), v.data()).ok());
  }
  auto ws = memra::check(memra::Workspace<AnyDev>::create(any, c.plan().workspace_bytes(3)));
  std::vector<float> out[2] = {std::vector<float>(3 * 4 * 32), std::vector<float>(3 * 4 * 32)};
  const std::vector<float> q(3 * 4 * 32, 0.25F);
  REQUIRE(any_ops.attend(memra::check(s.kv_read(1)), {q.data(), out[0].data(), 4, 0.5F}, ws.view()).ok());
  REQUIRE(host_ops.attend(memra::check(r.kv_read(1)), {q.data(), out[1].data(), 4, 0.5F}, ws.view()).ok());
  REQUIRE(std::memcmp(out[0].data(), out[1].data(), out[0].size() * sizeof(float)) == 0);
  REQUIRE((c.advance().ok() && d.advance().ok()));
  REQUIRE(image(c) == image(d));
  inner.arm(memra_test::torn(1));
  auto again = memra::check(c.begin_step(1));
  const auto w = memra::check(again.kv_write(0));
  REQUIRE(any_ops.append(w, k.data(), v.data()).kind() == ErrorKind::device_failure);
}

TEST_CASE("batched copies through AnyDev where it was asked for", "[any_dev]") {
  HostDev host;
  BatchAny any(host);
  const auto b = memra::check(any.zeros(64));
  std::memset(b.data(), 5, 16);
  const memra::CopyItem items[] = {{b.data() + 32, b.data(), 8}, {b.data() + 48, b.data() + 8, 8}};
  REQUIRE(any.copy_batch(items, 2).ok());
  REQUIRE((b.data()[39] == std::byte{5} && b.data()[55] == std::byte{5} && b.data()[40] == std::byte{0}));
}

TEST_CASE("a draft tail goes between devices of different types", "[any_dev]") {
  memra::DflashCfg cfg;
  cfg.n_layer = 2, cfg.n_kv = 1, cfg.head_dim = 4, cfg.block_size = 2, cfg.sliding_window = 3;
  TestDev a;
  MinimalDev b;
  PlainAny x(a);
  PlainAny y(b);
  auto kv = memra::check(memra::DflashKv<PlainAny>::create(x, cfg, 20));
  const auto rows = memra::check(kv.begin_rows(9));
  for (std::size_t l = 0; l < 2; ++l) {
    for (std::size_t i = 0; i < 9 * 4; ++i) {
      rows.view(l).k[i] = static_cast<float>(i + 100 * l);
      rows.view(l).v[i] = -static_cast<float>(i + 100 * l);
    }
  }
  REQUIRE(kv.commit().ok());
  const auto tail = kv.export_tail(8);
  REQUIRE(tail);
  const auto there = memra::DflashKv<PlainAny>::from_tail(y, cfg, 20, *tail);
  REQUIRE((there && there->len() == 8));
  for (std::size_t l = 0; l < 2; ++l) {
    for (std::size_t i = 0; i < 8 * 4; ++i) {
      REQUIRE(there->k(l)[i] == (i < 3 * 4 ? 0.0F : static_cast<float>(i + 100 * l)));
    }
  }
}

}  // namespace
}  // namespace any_dev_cpp
