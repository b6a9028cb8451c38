// Ways in which other engines lost their state over a rollback, as operations on our cache. The names carry the cases.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memra/cache.hpp>
#include <memra/canary_dev.hpp>
#include <memra/counting_dev.hpp>
#include <memra/fault_dev.hpp>
#include <memra/host_dev.hpp>
#include <memra/poison_dev.hpp>
#include <string>
#include <support/catch.hpp>
#include <support/placements.hpp>
#include <support/require_eq.hpp>
#include <support/stand_in.hpp>
#include <support/test_dev.hpp>
#include <utility>
#include <vector>

namespace cache_rollback_cpp {
namespace {

using memra::ErrorKind;
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
using memra_test::straight;
using memra_test::stream;
using memra_test::TestDev;
using memra_test::Token;
using memra_test::Tokens;
using Cache = memra::Cache<TestDev>;
using Snapshot = memra::CacheSnapshot<TestDev>;

/// Rolls back and feeds what is owed.
memra::Status take_back(Cache& c, const Snapshot& s, std::size_t accept, const Tokens& truth) {
  auto r = c.rollback(s, accept);
  if (!r) return r.status();
  return r->replay == 0 ? memra::Status() : feed(c, part(truth, r->pos, r->replay));
}

TEST_CASE("B01 accept 0 of a multi-token step is exactly the snapshot", "[rollback]") {
  const Tokens t = stream(308);
  for (const auto& cfg : {hybrid_model(), attention_model(), recurrent_model()}) {
    Devices d;
    Cache c = make(d, cfg, 308);
    REQUIRE(feed_by(c, part(t, 0, 300), 64).ok());
    const Snapshot s = memra::check(c.snapshot());
    REQUIRE(feed(c, part(t, 300, 8)).ok());
    REQUIRE(c.rollback(s, 0).ok());
    require_eq(image(c), straight(cfg, part(t, 0, 300)));
    REQUIRE(feed(c, part(t, 300, 8)).ok());
    require_eq(image(c), straight(cfg, t));
  }
}

TEST_CASE("B03 B12 B32 two hundred rounds: no drift, no allocation, nothing through the host", "[rollback]") {
  const auto cfg = hybrid_model();
  const auto where = placements(cfg.layers.size());
  for (const auto& p : where) {
    CAPTURE(p.name);
    const Tokens t = stream(600);
    Devices d;
    Cache c = memra::check(d.create(p, cfg, 600));
    REQUIRE(feed_by(c, part(t, 0, 15), 15).ok());
    Snapshot s = memra::check(c.snapshot());
    const std::size_t allocations = d.allocations();
    for (std::size_t round = 0; round < 200; ++round) {
      const std::size_t accept = round % 6;
      std::size_t through_host = d.host_copies();
      REQUIRE(c.snapshot_into(s).ok());
      REQUIRE(d.host_copies() == through_host);
      const std::size_t at = c.pos();
      REQUIRE(feed(c, join(part(t, at, accept), stream(5 - accept, 3))).ok());
      through_host = d.host_copies();
      REQUIRE(c.rollback(s, accept).ok());
      REQUIRE(d.host_copies() == through_host);
      if (accept != 0) REQUIRE(feed(c, part(t, at, accept)).ok());
      if (round % 20 == 5 || round == 199) require_eq(image(c), straight(cfg, part(t, 0, c.pos())));
    }
    REQUIRE(d.allocations() == allocations);
  }
}

TEST_CASE("B03 red arm: one replayed token twice, or one fewer, is seen", "[rollback]") {
  const auto cfg = hybrid_model();
  const Tokens t = stream(20);
  for (const bool twice : {true, false}) {
    Devices d;
    Cache c = make(d, cfg, 40);
    REQUIRE(feed(c, part(t, 0, 10)).ok());
    const Snapshot s = memra::check(c.snapshot());
    REQUIRE(feed(c, part(t, 10, 5)).ok());
    REQUIRE(c.rollback(s, 3).ok());
    REQUIRE(feed(c, twice ? join(part(t, 10, 3), part(t, 12, 1)) : part(t, 10, 2)).ok());
    REQUIRE(image(c) != straight(cfg, part(t, 0, 13)));
    REQUIRE(image(c).parts[0] != straight(cfg, part(t, 0, 13)).parts[0]);  // conv alone shows it, too
    REQUIRE(image(c).parts[1] != straight(cfg, part(t, 0, 13)).parts[1]);  // and ssm alone
  }
}

TEST_CASE("B05 accept is taken by value and two caches do not meet", "[rollback]") {
  const auto cfg = hybrid_model();
  const Tokens tx = stream(30, 1);
  const Tokens ty = stream(30, 2);
  Devices d;
  Cache x = make(d, cfg, 40);
  Cache y = make(d, cfg, 40);
  REQUIRE((feed(x, part(tx, 0, 10)).ok() && feed(y, part(ty, 0, 12)).ok()));
  const Snapshot sx = memra::check(x.snapshot());
  const Snapshot sy = memra::check(y.snapshot());
  REQUIRE((feed(x, part(tx, 10, 4)).ok() && feed(y, part(ty, 12, 4)).ok()));
  std::vector<std::size_t> accepted = {4, 1};
  REQUIRE(x.rollback(sx, accepted[0]).ok());
  accepted[0] = 0;
  REQUIRE(y.rollback(sy, accepted[1]).ok());
  accepted.assign(2, 99);
  REQUIRE((x.replay_owed() == 4 && y.replay_owed() == 1));
  REQUIRE((feed(y, part(ty, 12, 1)).ok() && feed(x, part(tx, 10, 4)).ok()));
  require_eq(image(x), straight(cfg, part(tx, 0, 14)));
  require_eq(image(y), straight(cfg, part(ty, 0, 13)));
}

TEST_CASE("B07 accept 0 is a normal value, -1 a refusal", "[rollback]") {
  const auto cfg = hybrid_model();
  const Tokens t = stream(16);
  Devices d;
  Cache c = make(d, cfg, 20);
  REQUIRE(feed(c, part(t, 0, 10)).ok());
  const Snapshot s = memra::check(c.snapshot());
  REQUIRE(feed(c, stream(5, 8)).ok());
  const Image before = image(c);
  const int minus_one = -1;
  REQUIRE(c.rollback(s, static_cast<std::size_t>(minus_one)).status().kind() == ErrorKind::bad_argument);
  require_eq(image(c), before);
  REQUIRE(c.rollback(s, 0).ok());
  require_eq(image(c), straight(cfg, part(t, 0, 10)));
  REQUIRE(feed(c, part(t, 10, 1)).ok());
  require_eq(image(c), straight(cfg, part(t, 0, 11)));
}

TEST_CASE("B08 a rollback affects one resume only", "[rollback]") {
  const auto cfg = hybrid_model();
  const Tokens t = stream(40);
  Devices d;
  Cache c = make(d, cfg, 40);
  REQUIRE(feed(c, part(t, 0, 10)).ok());
  const Snapshot s = memra::check(c.snapshot());
  REQUIRE(feed(c, part(t, 10, 5)).ok());
  REQUIRE(take_back(c, s, 2, t).ok());
  for (std::size_t i = 12; i < 32; ++i) REQUIRE(feed(c, part(t, i, 1)).ok());
  require_eq(image(c), straight(cfg, part(t, 0, 32)));
}

TEST_CASE("B11 a rollback that cannot be honoured moves nothing", "[rollback]") {
  const Tokens t = stream(30);
  for (const auto& cfg : {hybrid_model(), attention_model()}) {
    Devices d;
    Cache c = make(d, cfg, 40);
    REQUIRE(feed(c, part(t, 0, 8)).ok());
    const Snapshot s = memra::check(c.snapshot());
    REQUIRE(feed(c, part(t, 8, 4)).ok());
    const Snapshot newer = memra::check(c.snapshot());
    const Image before = image(c);
    for (const std::size_t accept : {5U, 6U, 1000U}) {
      d.arm(1);
      REQUIRE(c.rollback(s, accept).status().kind() == ErrorKind::bad_argument);
      REQUIRE(d.seen() == 0);  // the refusal precedes the first device call
      d.arm(0);
      require_eq(image(c), before);
    }
    REQUIRE(c.rollback(s, 1).ok());
    const Image after = image(c);
    REQUIRE(c.rollback(newer, 0).status().kind() == ErrorKind::bad_state);
    require_eq(image(c), after);
  }
}

TEST_CASE("B13 B17 every conv buffer of a layer comes back, for every accept, in age order", "[rollback]") {
  const auto cfg = hybrid_model();  // layer 5 has two, of width 3 and 1; layer 6 has a second buffer
  const Tokens t = stream(30);
  for (std::size_t accept = 0; accept <= 6; ++accept) {
    CAPTURE(accept);
    Devices d;
    Cache c = make(d, cfg, 40);
    REQUIRE(feed_by(c, part(t, 0, 15), 4).ok());
    const Snapshot s = memra::check(c.snapshot());
    REQUIRE(feed(c, join(part(t, 15, accept), stream(6 - accept, 9))).ok());
    REQUIRE(take_back(c, s, accept, t).ok());
    require_eq(image(c), straight(cfg, part(t, 0, 15 + accept)));
    const auto r = *c.recur(5, 0);
    for (std::size_t i = 0; i < 3; ++i) {  // channel 0: inputs of positions p-3..p-1
      const Token at = t[15 + accept - 3 + i];
      REQUIRE(r.conv[i] == memra_test::stand_in::value(memra_test::stand_in::kind_conv, 5, 0, 0, at, 0));
    }
  }
}

TEST_CASE("B14 after a rollback every position agrees", "[rollback]") {
  const auto cfg = hybrid_model();
  const Tokens t = stream(30);
  Devices d;
  Cache c = make(d, cfg, 40);
  REQUIRE(feed(c, part(t, 0, 10)).ok());
  std::vector<float> logits(cfg.n_vocab, 1.0F);
  const Snapshot s = memra::check(c.snapshot());
  REQUIRE(feed(c, part(t, 10, 5)).ok());
  REQUIRE(c.park_logits(logits.data()).ok());
  REQUIRE(c.rollback(s, 2).ok());
  REQUIRE((c.pos() == 10 && c.len() == 12));
  for (std::size_t il = 0; il < c.n_layer(); ++il) {
    if (const auto kv = c.kv(il)) REQUIRE((kv->len == 12 && *kv->pos_d == 10));
    if (const auto r = c.recur(il)) REQUIRE(r->pos == 10);
  }
  REQUIRE(!c.last_logits_dev());
  REQUIRE(s.pos() == 10);
}

TEST_CASE("B15 a later, smaller accept on the same snapshot works", "[rollback]") {
  const Tokens t = stream(30);
  for (const auto& cfg : {hybrid_model(), attention_model()}) {
    Devices d;
    Cache c = make(d, cfg, 40);
    REQUIRE(feed(c, part(t, 0, 10)).ok());
    const Snapshot s = memra::check(c.snapshot());
    REQUIRE(feed(c, part(t, 10, 5)).ok());
    REQUIRE(take_back(c, s, 5, t).ok());
    REQUIRE(take_back(c, s, 3, t).ok());
    require_eq(image(c), straight(cfg, part(t, 0, 13)));
    REQUIRE(c.rollback(s, 3).ok());
    REQUIRE(take_back(c, s, 1, t).ok());  // while a replay is owed
    require_eq(image(c), straight(cfg, part(t, 0, 11)));
  }
}

TEST_CASE("B19 B20 chunks and prompts shorter than the convolution", "[rollback]") {
  const auto cfg = hybrid_model();
  for (std::size_t n = 1; n <= 3; ++n) {
    const Tokens t = stream(n);
    Devices d;
    Cache at_once = make(d, cfg, 8);
    Cache one_by_one = make(d, cfg, 8);
    REQUIRE((feed(at_once, t).ok() && feed_by(one_by_one, t).ok()));
    require_eq(image(at_once), straight(cfg, t));
    require_eq(image(one_by_one), straight(cfg, t));
    const auto r = *at_once.recur(0);
    for (std::size_t i = 0; i + n < 3; ++i) REQUIRE(r.conv[i] == 0.0F);
    const Snapshot s = memra::check(at_once.snapshot());
    REQUIRE(feed(at_once, stream(4, 6)).ok());
    REQUIRE(at_once.rollback(s, 0).ok());
    require_eq(image(at_once), straight(cfg, t));
  }
}

TEST_CASE("B22 B31 reset and re-creation leave nothing of the former sequence", "[rollback]") {
  const auto cfg = hybrid_model();
  const Tokens other = stream(10, 2);
  Devices d;
  {
    Cache c = make(d, cfg, 40);
    REQUIRE(feed_by(c, stream(30), 7).ok());
    REQUIRE(c.reset().ok());
    require_eq(image(c), straight(cfg, {}));
    REQUIRE(feed(c, other).ok());
    require_eq(image(c), straight(cfg, other));
  }
  std::vector<Cache> live;
  std::vector<Snapshot> held;
  for (int i = 0; i < 4; ++i) {
    live.push_back(make(d, cfg, 40));
    REQUIRE(feed_by(live.back(), stream(10, 2), 3).ok());
    held.push_back(memra::check(live.back().snapshot()));
  }
  const auto& totals = live[0].plan().totals;
  REQUIRE(d.live_bytes() == 4 * (totals.total_bytes + totals.snapshot_bytes));
  live.erase(live.begin(), live.begin() + 2);
  live.push_back(make(d, cfg, 40));
  require_eq(image(live.back()), straight(cfg, {}));
  REQUIRE(live[0].rollback(held[2], 0).ok());
  require_eq(image(live[0]), straight(cfg, other));
  live.clear();
  held.clear();
  REQUIRE(d.live() == 0);
}

TEST_CASE("B23 a snapshot's bytes never change, restore after restore", "[rollback]") {
  const auto cfg = hybrid_model();
  const Tokens t = stream(30);
  Devices d;
  Cache c = make(d, cfg, 40);
  REQUIRE(feed(c, part(t, 0, 10)).ok());
  const Snapshot s = memra::check(c.snapshot());
  const Image at10 = image(c);
  for (int turn = 0; turn < 3; ++turn) {
    REQUIRE(feed_by(c, part(t, 10, 20), 6).ok());
    require_eq(image(c), straight(cfg, t));
    REQUIRE(c.rollback(s, 0).ok());
    require_eq(image(c), at10);
  }
}

TEST_CASE("B26 state comes back bit for bit: -0, denormals, NaN payloads, 1 + 2^-12", "[rollback]") {
  const auto cfg = hybrid_model();
  Devices d;
  Cache c = make(d, cfg, 8);
  const std::uint32_t bits[] = {0x80000000U, 0x00000001U, 0x7FC12345U, 0xFFABCDEFU, 0x3F800800U, 0x7F800000U};
  auto* ssm = const_cast<float*>(c.recur(0)->ssm);
  auto* conv = const_cast<float*>(c.recur(6)->conv);
  std::memcpy(ssm, bits, sizeof bits);
  std::memcpy(conv, bits, sizeof bits);
  const Snapshot s = memra::check(c.snapshot());
  REQUIRE(feed(c, stream(3)).ok());
  REQUIRE(std::memcmp(ssm, bits, sizeof bits) != 0);
  REQUIRE(c.rollback(s, 0).ok());
  REQUIRE(std::memcmp(ssm, bits, sizeof bits) == 0);
  REQUIRE(std::memcmp(conv, bits, sizeof bits) == 0);
}

TEST_CASE("B27 checkpoints at any position hold that position's state", "[rollback]") {
  const auto cfg = hybrid_model();
  const Tokens t = stream(140);
  Devices d;
  Cache c = make(d, cfg, 140);
  std::vector<Snapshot> at;
  std::size_t fed = 0;
  for (const std::size_t n : {63U, 64U, 65U, 70U, 127U, 128U, 129U}) {
    REQUIRE(feed(c, part(t, fed, n - fed)).ok());
    fed = n;
    at.push_back(memra::check(c.snapshot()));
  }
  for (std::size_t i = at.size(); i-- > 0;) {
    REQUIRE(c.rollback(at[i], 0).ok());
    require_eq(image(c), straight(cfg, part(t, 0, at[i].pos())));
  }
}

TEST_CASE("B30 the n-th call fails: create, snapshot and snapshot_into leave all as it was and leak nothing",
          "[rollback][failure]") {
  const auto cfg = hybrid_model();
  const Tokens t = stream(12);
  for (const auto& p : placements(cfg.layers.size())) {
    CAPTURE(p.name);
    std::size_t n = 1;
    for (;; ++n) {
      // Guarded, as nothing else in this file is: create is what lays the slabs out.
      using Guarded = memra::FaultDev<memra::CountingDev<memra::PoisonDev<memra::CanaryDev<memra::HostDev>>>>;
      std::array<Guarded, 3> d;
      std::vector<Guarded*> of;
      for (Guarded& g : d) g.share(d[0].plan());
      for (const std::size_t i : p.devices) of.push_back(&d[i]);
      d[0].arm(memra_test::torn(n));
      auto made = memra::Cache<Guarded>::create_ppn(of, p.fence, cfg, 16);
      const bool fired = d[0].fired() != 0;
      for (Guarded& g : d) {
        if (fired) REQUIRE(g.inner().counters().live == 0);
        REQUIRE(g.inner().inner().inner().violations() == 0);
      }
      if (!fired) break;
      REQUIRE(!made);
    }
    REQUIRE(n > 3);

    Devices d;
    Cache c = memra::check(d.create(p, cfg, 16));
    REQUIRE(feed(c, part(t, 0, 5)).ok());
    const Image want = straight(cfg, part(t, 0, 5));
    Snapshot spare = memra::check(c.snapshot());
    const std::size_t held = d.live();
    for (n = 1;; ++n) {
      d.arm(n);
      auto s = c.snapshot();
      const bool fired = d.fired();
      d.arm(0);
      if (!fired) break;
      REQUIRE(!s);
      REQUIRE(d.live() == held);
      REQUIRE(!c.tainted());
      require_eq(image(c), want);
    }
    REQUIRE(feed(c, part(t, 5, 2)).ok());
    for (n = 1;; ++n) {
      d.arm(n);
      const memra::Status s = c.snapshot_into(spare);
      const bool fired = d.fired();
      d.arm(0);
      if (!fired) break;
      REQUIRE(!s);
      REQUIRE((!spare.valid() && !c.tainted()));
      REQUIRE(c.rollback(spare, 0).status().kind() == ErrorKind::bad_state);
      require_eq(image(c), straight(cfg, part(t, 0, 7)));
    }
    REQUIRE(n > 1);
    REQUIRE(spare.valid());
    REQUIRE(feed(c, stream(3, 4)).ok());
    REQUIRE(c.rollback(spare, 0).ok());
    require_eq(image(c), straight(cfg, part(t, 0, 7)));
  }
}

TEST_CASE("B30 the n-th call fails: advance, rollback and reset taint, and are repaired", "[rollback][failure]") {
  const Tokens t = stream(12);
  enum class Op { advance, rollback, reset };
  for (const auto& cfg : {hybrid_model(), attention_model(), recurrent_model()}) {
    for (const auto& p : placements(cfg.layers.size())) {
      for (const Op op : {Op::advance, Op::rollback, Op::reset}) {
        for (const int repair : {0, 1, 2, 3}) {
          std::size_t n = 1;
          for (;; ++n) {
            CAPTURE(p.name, static_cast<int>(op), repair, n);
            Devices d;
            Cache c = memra::check(d.create(p, cfg, 16));
            REQUIRE(feed(c, part(t, 0, 3)).ok());
            const Snapshot early = memra::check(c.snapshot());
            REQUIRE(feed(c, part(t, 3, 2)).ok());
            const Snapshot s = memra::check(c.snapshot());
            REQUIRE(feed(c, part(t, 5, 4)).ok());
            if (op == Op::advance) {
              auto step = memra::check(c.begin_step(2));
              REQUIRE(memra_test::stand_in::forward(c, step, part(t, 9, 2)).ok());
            }
            d.arm(n);
            const memra::Status failed = op == Op::advance    ? c.advance()
                                         : op == Op::rollback ? c.rollback(s, 2).status()
                                                              : c.reset();
            const bool fired = d.fired();
            d.arm(0);
            if (!fired) break;
            REQUIRE(failed.kind() == ErrorKind::device_failure);
            REQUIRE(c.tainted());
            REQUIRE(c.begin_step(1).status().kind() == ErrorKind::bad_state);
            REQUIRE((c.pos() == 9 && c.len() == 9));
            std::size_t end = 0;
            if (repair == 0) {
              REQUIRE(take_back(c, s, 2, t).ok());  // the same rollback again
              end = 7;
            } else if (repair == 1) {
              REQUIRE(take_back(c, early, 1, t).ok());
              end = 4;
            } else if (repair == 2) {
              REQUIRE(take_back(c, early, 6, t).ok());
              end = 9;
            } else {
              REQUIRE(c.reset().ok());
            }
            REQUIRE(!c.tainted());
            require_eq(image(c), straight(cfg, part(t, 0, end)));
            REQUIRE(feed_by(c, part(t, end, 12 - end), 3).ok());
            require_eq(image(c), straight(cfg, t));
          }
          REQUIRE(n > 1);
        }
      }
    }
  }
}

TEST_CASE("B44 rollback of an emptied cache is refused; order of destruction is free", "[rollback]") {
  const auto cfg = hybrid_model();
  std::shared_ptr<const memra::DevCounters> left;
  {
    TestDev dev;
    left = dev.inner().shared_counters();
    auto c = std::make_unique<Cache>(memra::check(Cache::create(dev, cfg, 16)));
    REQUIRE(feed(*c, stream(4)).ok());
    auto s = std::make_unique<Snapshot>(memra::check(c->snapshot()));
    auto c2 = std::make_unique<Cache>(std::move(*c));
    REQUIRE(c->rollback(*s, 0).status().kind() == ErrorKind::bad_state);
    REQUIRE(c2->rollback(*s, 0).ok());
    require_eq(image(*c2), straight(cfg, stream(4)));
    c2.reset();
    c.reset();
    REQUIRE(s->bytes() != 0);
    s.reset();
    auto c3 = std::make_unique<Cache>(memra::check(Cache::create(dev, cfg, 16)));
    const Snapshot later = memra::check(c3->snapshot());
    c3.reset();
  }
  REQUIRE(left->live == 0);
}

TEST_CASE("snapshots taken at several positions survive each other's rollbacks as long as their rows do",
          "[rollback]") {
  const Tokens t = stream(40);
  const Tokens other = stream(40, 5);
  for (const auto& cfg : {hybrid_model(), attention_model()}) {
    Devices d;
    Cache c = make(d, cfg, 40);
    REQUIRE(feed(c, part(t, 0, 4)).ok());
    Snapshot a = memra::check(c.snapshot());
    REQUIRE(feed(c, part(t, 4, 4)).ok());
    Snapshot b = memra::check(c.snapshot());
    REQUIRE(feed(c, part(t, 8, 4)).ok());
    // Back to a, keeping 4: b is at the very end of what is kept. Straight on to b, without the replay.
    REQUIRE(c.rollback(a, 4).ok());
    REQUIRE(b.valid());
    REQUIRE(c.rollback(b, 0).ok());
    require_eq(image(c), straight(cfg, part(t, 0, 8)));
    // Half a replay, then b: its rows were kept.
    REQUIRE(c.rollback(a, 4).ok());
    if (c.replay_owed() != 0) REQUIRE(feed(c, part(t, 4, 2)).ok());
    REQUIRE(c.rollback(b, 0).ok());
    require_eq(image(c), straight(cfg, part(t, 0, 8)));
    // A replay that runs past len with another continuation: b's branch is still a prefix of it.
    REQUIRE(c.rollback(a, 4).ok());
    REQUIRE(feed(c, join(part(t, c.pos(), 8 - c.pos()), part(other, 8, 3))).ok());
    require_eq(image(c), straight(cfg, join(part(t, 0, 8), part(other, 8, 3))));
    REQUIRE(c.rollback(b, 1).ok());
    REQUIRE(c.len() == 9);
    // One below: b is gone, and stays gone on another branch that is longer.
    REQUIRE(c.rollback(a, 3).ok());
    REQUIRE(!b.valid());
    REQUIRE(feed_by(c, join(part(t, c.pos(), 7 - c.pos()), part(other, 7, 9))).ok());
    REQUIRE(!b.valid());
    REQUIRE(c.rollback(b, 0).status().kind() == ErrorKind::bad_state);
    require_eq(image(c), straight(cfg, join(part(t, 0, 7), part(other, 7, 9))));
    // Refreshed below its old place, then cut between the two.
    REQUIRE(c.snapshot_into(b).ok());
    REQUIRE(b.pos() == 16);
    REQUIRE(c.rollback(a, 0).ok());
    REQUIRE((!b.valid() && a.valid()));
  }
}

TEST_CASE("a rollback ends an open step, and the step cannot write afterwards", "[rollback]") {
  const auto cfg = hybrid_model();
  const Tokens t = stream(20);
  Devices d;
  Cache c = make(d, cfg, 20);
  REQUIRE(feed(c, part(t, 0, 5)).ok());
  const Snapshot s = memra::check(c.snapshot());
  auto step = memra::check(c.begin_step(3));
  REQUIRE(memra_test::stand_in::forward(c, step, stream(3, 8), 2).ok());
  REQUIRE(c.snapshot().status().kind() == ErrorKind::bad_state);
  REQUIRE(c.rollback(s, 0).ok());
  REQUIRE(step.kv_write(2).status().kind() == ErrorKind::bad_state);
  REQUIRE(step.recur(2).status().kind() == ErrorKind::bad_state);
  REQUIRE(!step.tap(0));
  REQUIRE(c.advance().kind() == ErrorKind::bad_state);
  require_eq(image(c), straight(cfg, part(t, 0, 5)));
  // A later step of the same size does not revive it.
  auto next = memra::check(c.begin_step(3));
  REQUIRE(step.kv_write(2).status().kind() == ErrorKind::bad_state);
  REQUIRE(memra_test::stand_in::forward(c, next, part(t, 5, 3)).ok());
  REQUIRE(c.advance().ok());
  require_eq(image(c), straight(cfg, part(t, 0, 8)));
}

}  // namespace
}  // namespace cache_rollback_cpp
