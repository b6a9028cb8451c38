// The C rules of the cache, one test each, over a stand-in model and against an oracle that has no cache.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <memra/cache.hpp>
#include <memra/counting_dev.hpp>
#include <string>
#include <support/catch.hpp>
#include <support/placements.hpp>
#include <support/require_eq.hpp>
#include <support/says.hpp>
#include <support/stand_in.hpp>
#include <type_traits>
#include <utility>
#include <vector>

namespace cache_rules_cpp {
namespace {

using memra::ErrorKind;
using memra::Format;
using memra::Layout;
using memra_test::attention_model;
using memra_test::Devices;
using memra_test::feed;
using memra_test::feed_by;
using memra_test::hybrid_model;
using memra_test::image;
using memra_test::Image;
using memra_test::join;
using memra_test::make;
using memra_test::part;
using memra_test::placements;
using memra_test::recurrent_model;
using memra_test::require_eq;
using memra_test::says;
using memra_test::spoil;
using memra_test::straight;
using memra_test::stream;
using memra_test::TestDev;
using memra_test::Tokens;
using Cache = memra::Cache<TestDev>;
using Snapshot = memra::CacheSnapshot<TestDev>;

TEST_CASE("C1 pos, len and every stage's pos_d move together", "[cache]") {
  for (const auto& cfg : {hybrid_model(), attention_model(), recurrent_model()}) {
    const Tokens t = stream(23);
    for (const auto& p : placements(cfg.layers.size())) {
      CAPTURE(p.name);
      Devices d;
      Cache c = memra::check(d.create(p, cfg, 24));
      REQUIRE(c.n_stages() == p.devices.size());
      require_eq(image(c), straight(cfg, {}));
      for (const std::size_t rows : {1U, 2U, 5U, 15U}) {
        REQUIRE(feed(c, part(t, c.pos(), rows)).ok());
        REQUIRE(c.len() == c.pos());
        require_eq(image(c), straight(cfg, part(t, 0, c.pos())));
      }
    }
  }
}

TEST_CASE("C1 red arms: EQ sees one byte of a row, one conv column, one token twice, one stale mirror", "[cache]") {
  const auto cfg = hybrid_model();
  const Tokens t = stream(12);
  Devices d;
  Cache c = make(d, cfg, 24);
  REQUIRE(feed_by(c, t, 4).ok());
  const Image want = straight(cfg, t);
  REQUIRE(image(c) == want);
  for (const void* at : {static_cast<const void*>(c.kv(1)->k.data + 11 * c.kv(1)->k_row_bytes()),
                         static_cast<const void*>(c.kv(7)->v.data), static_cast<const void*>(c.kv(4, 1)->v.data),
                         static_cast<const void*>(c.recur(0)->conv + 2), static_cast<const void*>(c.recur(5, 1)->ssm),
                         static_cast<const void*>(c.pos_d(0))}) {
    spoil(d.dev[0], at);
    REQUIRE(image(c) != want);
    spoil(d.dev[0], at);
    REQUIRE(image(c) == want);
  }
  Tokens twice = t;
  twice[7] = twice[6];
  REQUIRE(straight(cfg, twice) != want);
  Tokens swapped = t;
  std::swap(swapped[3], swapped[4]);
  REQUIRE(straight(cfg, swapped) != want);
}

TEST_CASE("C2 a step is opened, written once per layer and committed", "[cache]") {
  const auto cfg = hybrid_model();
  const Tokens t = stream(8);
  Devices d;
  Cache c = make(d, cfg, 8);
  REQUIRE(says(c.begin_step(0).status(), ErrorKind::bad_argument, "0 rows"));
  REQUIRE(says(c.begin_step(9).status(), ErrorKind::bad_argument, "8 fit"));
  REQUIRE(says(c.begin_step(std::numeric_limits<std::size_t>::max()).status(), ErrorKind::bad_argument, "8 fit"));
  REQUIRE(says(c.advance(), ErrorKind::bad_state, "no step is open"));

  auto step = memra::check(c.begin_step(3));
  REQUIRE(says(c.begin_step(3).status(), ErrorKind::bad_state, "a step is open"));
  REQUIRE(says(c.advance(), ErrorKind::bad_state, "layer 0"));
  REQUIRE(says(step.kv_read(1).status(), ErrorKind::bad_state, "append before"));
  REQUIRE(says(step.kv_write(0).status(), ErrorKind::bad_argument, "no such attention"));
  REQUIRE(says(step.kv_write(3).status(), ErrorKind::bad_argument, "no such"));
  REQUIRE(says(step.kv_write(4, 2).status(), ErrorKind::bad_argument, "no such"));
  REQUIRE(says(step.recur(1).status(), ErrorKind::bad_argument, "no such recurrent"));
  REQUIRE(says(step.recur(99).status(), ErrorKind::bad_argument, "layer 99 of 8"));
  REQUIRE(memra_test::stand_in::forward(c, step, part(t, 0, 3), 6).ok());
  REQUIRE(says(c.advance(), ErrorKind::bad_state, "layer 6"));
  REQUIRE(says(step.kv_write(1).status(), ErrorKind::bad_state, "already written"));
  REQUIRE(says(step.recur(0).status(), ErrorKind::bad_state, "already written"));
  REQUIRE(step.kv_read(1).ok());
  REQUIRE(c.pos() == 0);
  // A forward that died is repaired by reset, and the step is over then.
  REQUIRE(c.reset().ok());
  REQUIRE(says(step.kv_read(1).status(), ErrorKind::bad_state, "has ended"));
  REQUIRE(says(step.recur(6).status(), ErrorKind::bad_state, "has ended"));
  REQUIRE(feed(c, part(t, 0, 3)).ok());
  REQUIRE(says(step.kv_write(1).status(), ErrorKind::bad_state, "has ended"));
  require_eq(image(c), straight(cfg, part(t, 0, 3)));
  REQUIRE(says(c.begin_step(6).status(), ErrorKind::bad_argument, "5 fit"));
  REQUIRE(feed(c, part(t, 3, 5)).ok());  // exactly max_ctx
  require_eq(image(c), straight(cfg, t));
  REQUIRE(says(c.begin_step(1).status(), ErrorKind::bad_argument, "0 fit"));
  REQUIRE(feed(c, t).kind() == ErrorKind::bad_argument);
  require_eq(image(c), straight(cfg, t));
}

TEST_CASE("C2 without recurrent state a second begin gives the first one up", "[cache]") {
  const auto cfg = attention_model();
  const Tokens t = stream(6);
  const Tokens other = stream(6, 2);
  Devices d;
  Cache c = make(d, cfg, 8);
  REQUIRE(feed(c, part(t, 0, 2)).ok());
  auto first = memra::check(c.begin_step(4));
  REQUIRE(memra_test::stand_in::forward(c, first, part(other, 0, 4), 1).ok());
  auto second = memra::check(c.begin_step(1));
  REQUIRE(first.kv_write(1).status().kind() == ErrorKind::bad_state);
  REQUIRE(first.kv_read(0).status().kind() == ErrorKind::bad_state);
  REQUIRE(memra_test::stand_in::forward(c, second, part(t, 2, 1)).ok());
  REQUIRE(c.advance().ok());
  require_eq(image(c), straight(cfg, part(t, 0, 3)));
}

TEST_CASE("C3 create allocates what the plan says, to the byte", "[cache]") {
  for (const std::size_t gap : {0U, 64U, 4096U}) {
    TestDev dev(gap);
    const Cache c = memra::check(Cache::create(dev, hybrid_model(), 33));
    REQUIRE(dev.inner().counters().live_bytes == c.plan().totals.total_bytes);
    REQUIRE(dev.inner().counters().allocations() == 3);
  }
}

TEST_CASE("C4 a snapshot is a copy: later steps do not reach it, restoring does not change it", "[cache]") {
  for (const auto& cfg : {hybrid_model(), recurrent_model()}) {
    for (const auto& p : placements(cfg.layers.size())) {
      CAPTURE(p.name);
      const Tokens t = stream(30);
      Devices d;
      Cache c = memra::check(d.create(p, cfg, 40));
      REQUIRE(feed_by(c, part(t, 0, 10), 3).ok());
      const Snapshot s = memra::check(c.snapshot());
      REQUIRE(s.pos() == 10);
      REQUIRE(s.bytes() == c.plan().totals.snapshot_bytes);
      for (int turn = 0; turn < 3; ++turn) {
        REQUIRE(feed_by(c, stream(20, 7U + static_cast<unsigned>(turn)), 4).ok());
        const auto r = memra::check(c.rollback(s, 0));
        REQUIRE((r.pos == 10 && r.replay == 0));
        require_eq(image(c), straight(cfg, part(t, 0, 10)));
        REQUIRE(feed_by(c, part(t, 10, 20), 4).ok());
        require_eq(image(c), straight(cfg, t));
        REQUIRE(c.rollback(s, 0).ok());
      }
    }
  }
}

TEST_CASE("C5 stale for ever, foreign, half-written and moved-from snapshots are refused and move nothing", "[cache]") {
  for (const auto& cfg : {hybrid_model(), attention_model()}) {
    const Tokens t = stream(20);
    Devices d;
    Cache c = make(d, cfg, 40);
    Cache twin = make(d, cfg, 40);
    REQUIRE(feed(twin, part(t, 0, 5)).ok());
    REQUIRE(feed(c, part(t, 0, 5)).ok());
    Snapshot at5 = memra::check(c.snapshot());
    REQUIRE(feed(c, part(t, 5, 3)).ok());
    Snapshot at8 = memra::check(c.snapshot());
    REQUIRE(feed(c, part(t, 8, 3)).ok());
    Snapshot at11 = memra::check(c.snapshot());
    const Snapshot foreign = memra::check(twin.snapshot());
    REQUIRE(says(c.rollback(foreign, 0).status(), ErrorKind::bad_argument, "another cache"));
    REQUIRE(says(twin.snapshot_into(at5), ErrorKind::bad_argument, "another cache"));
    REQUIRE(says(c.export_prefix(foreign).status(), ErrorKind::bad_argument, "another cache"));
    require_eq(image(c), straight(cfg, part(t, 0, 11)));

    // Rows end at 8 (replay included): what was taken at 8 lives, what was taken at 11 does not.
    const auto back = memra::check(c.rollback(at5, 3));
    REQUIRE((back.replay == c.replay_owed() && back.pos + back.replay == 8));
    REQUIRE(at8.valid());
    REQUIRE(!at11.valid());
    REQUIRE(feed_by(c, part(t, c.pos(), 8 - c.pos())).ok());
    require_eq(image(c), straight(cfg, part(t, 0, 8)));
    REQUIRE(feed(c, part(t, 8, 6)).ok());  // past 11 again: at11 stays stale
    REQUIRE(says(c.rollback(at11, 0).status(), ErrorKind::bad_state, "stale"));
    REQUIRE(says(c.export_prefix(at11).status(), ErrorKind::bad_state, "stale"));
    require_eq(image(c), straight(cfg, part(t, 0, 14)));
    REQUIRE(c.rollback(at8, 0).ok());
    require_eq(image(c), straight(cfg, part(t, 0, 8)));

    // Refreshing makes a stale one whole; a reset makes all but position 0 stale.
    REQUIRE(c.snapshot_into(at11).ok());
    REQUIRE((at11.valid() && at11.pos() == 8));
    REQUIRE(c.reset().ok());
    REQUIRE((!at5.valid() && !at8.valid() && !at11.valid()));
    REQUIRE(says(c.rollback(at5, 0).status(), ErrorKind::bad_state, "stale"));
    require_eq(image(c), straight(cfg, {}));

    // Half-written: the refresh failed.
    if (c.plan().totals.snapshot_bytes != 0) {
      REQUIRE(feed(c, part(t, 0, 9)).ok());
      d.arm(1);
      REQUIRE(c.snapshot_into(at5).kind() == ErrorKind::device_failure);
      d.arm(0);
      REQUIRE(!c.tainted());
      REQUIRE(!at5.valid());
      REQUIRE(says(c.rollback(at5, 0).status(), ErrorKind::bad_state, "half-written"));
      REQUIRE(says(c.export_prefix(at5).status(), ErrorKind::bad_state, "half-written"));
      require_eq(image(c), straight(cfg, part(t, 0, 9)));
      REQUIRE(c.snapshot_into(at5).ok());
      REQUIRE(c.rollback(at5, 0).ok());
    }

    Snapshot taken = std::move(at5);
    REQUIRE((at5.pos() == 0 && !at5.valid() && at5.bytes() == 0));  // NOLINT(bugprone-use-after-move)
    REQUIRE(says(c.rollback(at5, 0).status(), ErrorKind::bad_argument, "moved-from"));
    REQUIRE(says(c.snapshot_into(at5), ErrorKind::bad_argument, "moved-from"));
    REQUIRE(says(c.export_prefix(at5).status(), ErrorKind::bad_argument, "moved-from"));
    Snapshot& self = taken;
    taken = std::move(self);
    REQUIRE(taken.bytes() == c.plan().totals.snapshot_bytes);
    if (taken.valid()) {
      REQUIRE(c.rollback(taken, 0).ok());
    }
  }
}

TEST_CASE("C5 identity is no address: a snapshot outlives its cache and fits no later one", "[cache]") {
  const auto cfg = hybrid_model();
  std::shared_ptr<const memra::DevCounters> left;
  {
    TestDev dev;
    left = dev.inner().shared_counters();
    for (int i = 0; i < 50; ++i) {  // the heap is bound to hand an address out again
      auto first = std::make_unique<Cache>(memra::check(Cache::create(dev, cfg, 8)));
      const Snapshot s = memra::check(first->snapshot());
      first.reset();
      Cache second = memra::check(Cache::create(dev, cfg, 8));
      REQUIRE(says(second.rollback(s, 0).status(), ErrorKind::bad_argument, "another cache"));
    }
  }
  REQUIRE(left->live == 0);
}

TEST_CASE("C6 accept is bounded by what was committed since and not given up since", "[cache]") {
  for (const auto& cfg : {hybrid_model(), attention_model()}) {
    const Tokens t = stream(20);
    Devices d;
    Cache c = make(d, cfg, 40);
    REQUIRE(feed(c, part(t, 0, 6)).ok());
    const Snapshot s = memra::check(c.snapshot());
    REQUIRE(says(c.rollback(s, 1).status(), ErrorKind::bad_argument, "0 rows are committed"));
    REQUIRE(c.rollback(s, static_cast<std::size_t>(-1)).status().kind() == ErrorKind::bad_argument);
    REQUIRE(feed(c, part(t, 6, 5)).ok());
    {
      auto open = memra::check(c.begin_step(4));  // written, not advanced: does not count
      REQUIRE(memra_test::stand_in::forward(c, open, stream(4, 9)).ok());
    }
    REQUIRE(says(c.rollback(s, 6).status(), ErrorKind::bad_argument, "5 rows are committed"));
    REQUIRE(c.rollback(s, 5).ok());
    REQUIRE(feed_by(c, part(t, c.pos(), 11 - c.pos())).ok());
    require_eq(image(c), straight(cfg, part(t, 0, 11)));
    REQUIRE(c.rollback(s, 3).ok());
    REQUIRE(c.len() == 9);
    REQUIRE(says(c.rollback(s, 4).status(), ErrorKind::bad_argument, "3 rows are committed"));
    REQUIRE(c.rollback(s, 3).ok());
    REQUIRE(c.rollback(s, 2).ok());
    REQUIRE(feed_by(c, part(t, c.pos(), 8 - c.pos()), 2).ok());
    require_eq(image(c), straight(cfg, part(t, 0, 8)));
  }
}

TEST_CASE("C6 without recurrent state nothing is replayed, and no row moves whatever the context", "[cache]") {
  std::size_t moved[2] = {0, 0};
  for (const std::size_t i : {0U, 1U}) {
    const std::size_t n = i == 0 ? 20 : 900;
    const auto cfg = attention_model();
    const Tokens t = stream(n + 8);
    Devices d;
    Cache c = make(d, cfg, n + 8);
    REQUIRE(feed_by(c, part(t, 0, n), 100).ok());
    const Snapshot s = memra::check(c.snapshot());
    REQUIRE(feed(c, part(t, n, 8)).ok());
    d.reset();
    const auto r = memra::check(c.rollback(s, 3));
    REQUIRE((r.pos == n + 3 && r.replay == 0));
    moved[i] = d.copied_bytes();
    REQUIRE(d.allocations() == 0);
    require_eq(image(c), straight(cfg, part(t, 0, n + 3)));
  }
  REQUIRE((moved[0] == 0 && moved[1] == 0));
}

TEST_CASE("C7 a replay rewrites its rows in place, in pieces or past len, and snapshots wait for it", "[cache]") {
  const auto cfg = hybrid_model();
  const Tokens t = stream(30);
  for (const std::size_t piece : {1U, 2U, 3U, 4U, 7U}) {
    Devices d;
    Cache c = make(d, cfg, 30);
    REQUIRE(feed_by(c, part(t, 0, 10), 5).ok());
    Snapshot s = memra::check(c.snapshot());
    REQUIRE(feed(c, join(part(t, 10, 4), stream(3, 5))).ok());
    const auto r = memra::check(c.rollback(s, 4));
    REQUIRE((r.pos == 10 && r.replay == 4));
    REQUIRE((c.pos() == 10 && c.len() == 14 && c.replay_owed() == 4));
    REQUIRE(says(c.snapshot().status(), ErrorKind::bad_state, "4 rows is owed"));
    REQUIRE(says(c.snapshot_into(s), ErrorKind::bad_state, "owed"));
    REQUIRE(s.valid());
    auto step = memra::check(c.begin_step(piece));
    const auto w = memra::check(step.kv_write(1));
    REQUIRE((w.at.pos_bound == 10 && w.at.rows == piece));
    REQUIRE(c.rollback(s, 4).ok());
    // The rows that the replay has not reached hold what the verify wrote, all the while.
    for (std::size_t at = 10; at < 14; at += piece) {
      REQUIRE(feed(c, part(t, at, piece)).ok());
      REQUIRE(c.len() == std::max<std::size_t>(14, at + piece));
      Image want = straight(cfg, part(t, 0, c.len()));
      const Image got = image(c);
      REQUIRE(got.parts[2] == want.parts[2]);  // layer 1, K: all len rows
    }
    require_eq(image(c), straight(cfg, part(t, 0, c.pos())));
    REQUIRE(c.snapshot_into(s).ok());
  }
}

TEST_CASE("C8 a failure after the first write taints: only rollback, reset and destruction are left", "[cache]") {
  const auto cfg = hybrid_model();
  const Tokens t = stream(12);
  for (const bool by_reset : {false, true}) {
    Devices d;
    auto p = placements(cfg.layers.size())[2];
    Cache c = memra::check(d.create(p, cfg, 20));
    REQUIRE(feed(c, part(t, 0, 4)).ok());
    Snapshot s = memra::check(c.snapshot());
    auto step = memra::check(c.begin_step(3));
    REQUIRE(memra_test::stand_in::forward(c, step, part(t, 4, 3)).ok());
    d.arm(2);  // the second stage's mirror
    REQUIRE(c.advance().kind() == ErrorKind::device_failure);
    d.arm(0);
    REQUIRE(c.tainted());
    REQUIRE((c.pos() == 4 && c.len() == 4));
    std::vector<float> logits(cfg.n_vocab);
    REQUIRE(says(c.begin_step(1).status(), ErrorKind::bad_state, "tainted"));
    REQUIRE(says(c.advance(), ErrorKind::bad_state, "tainted"));
    REQUIRE(says(c.snapshot().status(), ErrorKind::bad_state, "tainted"));
    REQUIRE(says(c.snapshot_into(s), ErrorKind::bad_state, "tainted"));
    REQUIRE(says(c.export_prefix(s).status(), ErrorKind::bad_state, "tainted"));
    REQUIRE(says(c.park_logits(logits.data()), ErrorKind::bad_state, "tainted"));
    REQUIRE(says(step.kv_read(1).status(), ErrorKind::bad_state, "tainted"));
    REQUIRE(!c.last_logits_dev());
    if (by_reset) {
      REQUIRE(c.reset().ok());
      require_eq(image(c), straight(cfg, {}));
      REQUIRE(feed(c, part(t, 0, 4)).ok());
    } else {
      REQUIRE(says(c.rollback(s, 1).status(), ErrorKind::bad_argument, "0 rows"));
      REQUIRE(c.tainted());
      REQUIRE(c.rollback(s, 0).ok());
    }
    REQUIRE(!c.tainted());
    REQUIRE(feed(c, part(t, 4, 3)).ok());
    require_eq(image(c), straight(cfg, part(t, 0, 7)));
  }
}

TEST_CASE("C10 rows per step, stages and rollbacks change no bit of the state, in every format and layout", "[cache]") {
  const Tokens t = stream(21);
  for (const Format k : memra::all_formats) {
    for (const Format v : memra::all_formats) {
      for (const Layout layout : {Layout::blocks, Layout::split}) {
        CAPTURE(memra::to_string(k), memra::to_string(v), memra::to_string(layout));
        const auto cfg = hybrid_model(k, v, layout);
        const auto all = placements(cfg.layers.size());
        const auto& p = all[(static_cast<std::size_t>(k) + static_cast<std::size_t>(v)) % all.size()];
        Devices d;
        Cache c = memra::check(d.create(p, cfg, 32));
        REQUIRE(feed_by(c, part(t, 0, 9), 9).ok());
        const Snapshot s = memra::check(c.snapshot());
        REQUIRE(feed(c, join(part(t, 9, 2), stream(3, 4))).ok());
        REQUIRE(c.rollback(s, 2).ok());
        REQUIRE(feed_by(c, part(t, 9, 12), 5).ok());
        require_eq(image(c), straight(cfg, t));
      }
    }
  }
}

TEST_CASE("C11 one copy per device takes a snapshot, and state is contiguous", "[cache]") {
  const auto cfg = hybrid_model();
  for (const auto& p : placements(cfg.layers.size())) {
    CAPTURE(p.name);
    Devices d;
    Cache c = memra::check(d.create(p, cfg, 16));
    REQUIRE(feed(c, stream(5)).ok());
    Snapshot s = memra::check(c.snapshot());
    std::size_t with_state = 0;
    for (const auto& dp : c.plan().devices) with_state += dp.state_bytes != 0 ? 1 : 0;
    d.reset();
    REQUIRE(c.snapshot_into(s).ok());
    REQUIRE(d.copies() == with_state);
    REQUIRE(c.rollback(s, 0).ok());
    REQUIRE(d.copies() == 2 * with_state);
    REQUIRE(d.stores() == c.n_stages());  // one int per stage
    REQUIRE((d.allocations() == 0 && d.host_copies() == 0));
  }
}

TEST_CASE("C12 views carry base and phys_rows, and addresses stay for life", "[cache]") {
  const auto cfg = hybrid_model();
  Devices d;
  Cache c = make(d, cfg, 64);
  const Cache* where = &c;
  const auto k = c.kv(1)->k.data;
  const auto conv = c.recur(0)->conv;
  const auto pos_d = c.pos_d(0);
  Snapshot s = memra::check(c.snapshot());
  for (int i = 0; i < 100; ++i) {
    REQUIRE(feed(c, stream(6, static_cast<unsigned>(i))).ok());
    auto step = memra::check(c.begin_step(1));
    const auto w = memra::check(step.kv_write(1));
    const auto r = memra::check(step.recur(0));
    REQUIRE((w.k.data == k && w.k.base == 0 && w.k.phys_rows() == 64 && w.at.capacity == 64));
    REQUIRE((w.at.pos_d == pos_d && r.conv == conv && r.rows == 1));
    REQUIRE(memra::check(step.kv_read(1)).k.phys_rows() == 64);
    REQUIRE(c.rollback(s, static_cast<std::size_t>(i % 3)).ok());
    REQUIRE(c.rollback(s, 0).ok());
    REQUIRE(c.snapshot_into(s).ok());
  }
  Cache moved = std::move(c);
  REQUIRE((moved.kv(1)->k.data == k && moved.pos_d(0) == pos_d && where != &moved));
  auto step = memra::check(moved.begin_step(2));
  const memra::KvReadView view = [&] {
    REQUIRE(step.kv_write(2).ok());
    return memra::check(step.kv_read(2));
  }();
  REQUIRE(view.window == 5);
  REQUIRE(memra::check(step.recur(6)).ssm_alt != nullptr);
  REQUIRE(memra::check(step.recur(0)).ssm_alt == nullptr);
}

TEST_CASE("C13 a moved-from cache refuses everything but assignment and destruction", "[cache]") {
  static_assert(!std::is_copy_constructible_v<Cache> && std::is_nothrow_move_constructible_v<Cache>);
  static_assert(!std::is_copy_constructible_v<Snapshot> && std::is_nothrow_move_assignable_v<Snapshot>);
  const auto cfg = hybrid_model();
  Devices d;
  Cache c = make(d, cfg, 16);
  REQUIRE(feed(c, stream(3)).ok());
  Snapshot s = memra::check(c.snapshot());
  auto step = memra::check(c.begin_step(2));
  Cache other = std::move(c);
  // NOLINTBEGIN(bugprone-use-after-move)
  std::vector<float> logits(cfg.n_vocab);
  REQUIRE(says(c.begin_step(1).status(), ErrorKind::bad_state, "moved-from"));
  REQUIRE(says(c.advance(), ErrorKind::bad_state, "moved-from"));
  REQUIRE(says(c.snapshot().status(), ErrorKind::bad_state, "moved-from"));
  REQUIRE(says(c.snapshot_into(s), ErrorKind::bad_state, "moved-from"));
  REQUIRE(says(c.rollback(s, 0).status(), ErrorKind::bad_state, "moved-from"));
  REQUIRE(says(c.reset(), ErrorKind::bad_state, "moved-from"));
  REQUIRE(says(c.export_prefix(s).status(), ErrorKind::bad_state, "moved-from"));
  REQUIRE(says(c.park_logits(logits.data()), ErrorKind::bad_state, "moved-from"));
  REQUIRE((c.pos() == 0 && c.len() == 0 && c.max_ctx() == 0 && c.n_layer() == 0 && c.n_stages() == 0));
  REQUIRE((!c.kv(1) && !c.recur(0) && !c.last_logits_dev() && !c.take_taps() && c.dflash_taps() == nullptr));
  REQUIRE((c.pos_d(0) == nullptr && !c.tainted()));
  // NOLINTEND(bugprone-use-after-move)
  // The step belongs to what was moved, not to the empty shell.
  REQUIRE(memra_test::stand_in::forward(other, step, part(stream(5), 3, 2)).ok());
  REQUIRE(other.advance().ok());
  require_eq(image(other), straight(cfg, stream(5)));
  Cache& self = other;
  other = std::move(self);
  require_eq(image(other), straight(cfg, stream(5)));
  c = std::move(other);
  REQUIRE(c.rollback(s, 0).ok());
  require_eq(image(c), straight(cfg, stream(3)));
}

}  // namespace
}  // namespace cache_rules_cpp
