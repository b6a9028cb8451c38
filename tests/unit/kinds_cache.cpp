// Caches of every kind of layer: straight runs, rollbacks, prefixes and rounds through rings that wrap, shared K and V,
// latent rows and states in 16 bits; and what rings refuse.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memra/any_dev.hpp>
#include <memra/cache.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/plan.hpp>
#include <support/catch.hpp>
#include <support/op_model.hpp>
#include <support/placements.hpp>
#include <support/rounds.hpp>
#include <support/says.hpp>
#include <support/stand_in.hpp>
#include <vector>

namespace kinds_cache_cpp {
namespace {

using memra::ErrorKind;
using memra::Format;
using memra::HostDev;
using memra::Layout;
using memra::Strategy;
using memra_test::all_rounds;
using memra_test::Devices;
using memra_test::difference;
using memra_test::feed;
using memra_test::feed_by;
using memra_test::image;
using memra_test::join;
using memra_test::kinds_model;
using memra_test::OpModel;
using memra_test::part;
using memra_test::placements;
using memra_test::ring_model;
using memra_test::says;
using memra_test::straight;
using memra_test::stream;
using memra_test::TestDev;
using memra_test::Tokens;
using Cache = memra::Cache<HostDev>;

/// Without the rule that keeps no stash.
memra::ModelConfig stash_model() {
  auto cfg = kinds_model();
  cfg.layers[5] = memra::no_state();
  return cfg;
}

#define REQUIRE_STRAIGHT(cache, tokens)                     \
  do {                                                      \
    const auto got = image(cache);                          \
    const auto want = straight((cache).config(), (tokens)); \
    INFO(difference(got, want));                            \
    REQUIRE(got == want);                                   \
  } while (false)

TEST_CASE("C1 C3 every kind of layer, in every placement: the plan is what is allocated, the state that of its tokens",
          "[kinds]") {
  const Tokens t = stream(150);
  for (const Layout layout : {Layout::blocks, Layout::split}) {
    for (const Format f : {Format::q4_0, Format::bf16}) {
      const auto cfg = kinds_model(f, Format::q5_1, layout);
      for (const auto& place : placements(cfg.layers.size())) {
        for (const std::size_t step : {1U, 7U, 25U}) {
          CAPTURE(place.name, step);
          Devices d;
          auto c = memra::check(d.create(place, cfg, 200));
          REQUIRE(d.live_bytes() == c.plan().totals.total_bytes);
          REQUIRE(c.plan().max_rows == 25);               // the ring of 64 rows with a window of 40
          for (std::size_t at = 0; at < 150; at += 50) {  // rings of 64 rows: two of the three wrap
            REQUIRE(feed_by(c, part(t, at, 50), step).ok());
            REQUIRE_STRAIGHT(c, part(t, 0, at + 50));
          }
          auto spoilt = straight(cfg, t);  // red arm
          spoilt.parts[0][0] ^= std::byte{1};
          REQUIRE_FALSE(image(c) == spoilt);
        }
      }
    }
  }
}

TEST_CASE("C2 a call that a ring cannot take is refused with the rows that it takes, and moves nothing",
          "[kinds][ring]") {
  HostDev dev;
  auto c = memra::check(Cache::create(dev, kinds_model(), 200));
  const Tokens t = stream(100);
  REQUIRE(feed_by(c, part(t, 0, 70), 25).ok());
  REQUIRE(says(c.begin_step(26).status(), ErrorKind::bad_argument, "takes 25 in a call"));
  REQUIRE(says(c.begin_device_step(26).status(), ErrorKind::bad_argument, "takes 25 in a call"));
  REQUIRE_STRAIGHT(c, part(t, 0, 70));
  REQUIRE(feed(c, part(t, 70, 25)).ok());
  REQUIRE_STRAIGHT(c, part(t, 0, 95));
  // A context that the ring holds whole takes any call.
  auto small = memra::check(Cache::create(dev, kinds_model(), 64));
  REQUIRE(small.plan().max_rows == 64);
  REQUIRE(feed(small, part(t, 0, 64)).ok());
  REQUIRE_STRAIGHT(small, part(t, 0, 64));
}

TEST_CASE("C6 rings go back as far as they hold the window there, to the row", "[kinds][ring]") {
  // 64 rows, a window of 40: after row 99 was written the oldest is 36. Position p needs rows from p - 39 on.
  for (const bool recurrent : {false, true}) {
    const auto cfg = recurrent ? kinds_model() : ring_model();
    for (std::size_t at = 60; at <= 90; ++at) {
      for (const std::size_t accept : {0U, 1U, 9U}) {
        CAPTURE(recurrent, at, accept);
        HostDev dev;
        auto c = memra::check(Cache::create(dev, cfg, 200));
        const Tokens t = stream(100);
        REQUIRE(feed_by(c, part(t, 0, at), 20).ok());
        const auto snap = memra::check(c.snapshot());
        REQUIRE(feed_by(c, part(t, at, 100 - at), 10).ok());
        const std::size_t pos = recurrent ? at : at + accept;  // where the next query will stand
        const bool held = pos >= 36 + 39;
        const auto back = c.rollback(snap, accept);
        if (!held) {
          REQUIRE(says(back.status(), ErrorKind::bad_state, "the ring of layer 1 holds them from 36 on"));
          REQUIRE_STRAIGHT(c, t);  // nothing moved, and it may go on
          REQUIRE(feed(c, stream(3, 8)).ok());
          REQUIRE_STRAIGHT(c, join(t, stream(3, 8)));
          continue;
        }
        REQUIRE(back.ok());
        REQUIRE(c.pos() == pos);
        Tokens now = part(t, 0, at + accept);
        if (back->replay != 0) REQUIRE(feed(c, part(t, at, accept)).ok());
        REQUIRE_STRAIGHT(c, now);
        // What was given up may have taken a row's place for good: further back stays refused.
        const Tokens other = stream(20, 5);
        REQUIRE(feed_by(c, other, 10).ok());
        REQUIRE_STRAIGHT(c, join(now, other));
      }
    }
  }
}

TEST_CASE("C6 accepted rows that a ring has lost are not accepted, though a replay would write them again",
          "[kinds][ring]") {
  HostDev dev;
  auto c = memra::check(Cache::create(dev, kinds_model(), 200));
  const auto start = memra::check(c.snapshot());
  const Tokens t = stream(80);
  REQUIRE(feed_by(c, t, 20).ok());
  REQUIRE(says(c.rollback(start, 1).status(), ErrorKind::bad_state, "needs rows from 0 on"));
  REQUIRE_STRAIGHT(c, t);
  REQUIRE(c.rollback(start, 0).ok());  // needs none
  REQUIRE(feed_by(c, part(t, 0, 30), 10).ok());
  const auto again = memra::check(c.snapshot());
  REQUIRE(feed_by(c, part(t, 30, 20), 10).ok());
  REQUIRE(memra::check(c.rollback(again, 7)).replay == 7);
  REQUIRE(feed(c, part(t, 30, 7)).ok());
  REQUIRE_STRAIGHT(c, part(t, 0, 37));
}

TEST_CASE("C6 a ring starts again at position 0, by rollback or reset", "[kinds][ring]") {
  HostDev dev;
  for (const bool by_reset : {false, true}) {
    auto c = memra::check(Cache::create(dev, ring_model(), 200));
    const auto start = memra::check(c.snapshot());
    REQUIRE(feed_by(c, stream(120), 20).ok());
    if (by_reset) {
      REQUIRE(c.reset().ok());
    } else {
      REQUIRE(c.rollback(start, 0).ok());
    }
    REQUIRE(c.kv(0)->first == 0);
    const Tokens t = stream(110, 4);
    REQUIRE(feed_by(c, t, 11).ok());
    REQUIRE_STRAIGHT(c, t);
    REQUIRE(c.kv(0)->first == 110 - 64);
  }
}

TEST_CASE("views and layers of a ring say what it holds", "[kinds][ring]") {
  HostDev dev;
  auto c = memra::check(Cache::create(dev, kinds_model(Format::f32, Format::f32), 200));
  REQUIRE(feed_by(c, stream(100), 20).ok());
  const auto layer = *c.kv(0);
  REQUIRE((layer.k.ring && layer.k.phys_rows() == 64 && layer.first == 36 && layer.k.base == 36));
  REQUIRE((layer.k.phys(36) == 36 && layer.k.phys(64) == 0 && layer.k.phys(99) == 35));
  // read_rows counts stream rows and knows which are there.
  const memra::ops_for<HostDev> ops(dev);
  std::vector<float> rows(64 * 64);
  REQUIRE(ops.read_rows(layer.k, 36, 64, rows.data()).ok());
  REQUIRE(rows[0] == memra_test::stand_in::row(memra_test::stand_in::kind_k, 0, 0, 64, stream(100)[36], 36)[0]);
  REQUIRE(rows[63 * 64] == memra_test::stand_in::row(memra_test::stand_in::kind_k, 0, 0, 64, stream(100)[99], 99)[0]);
  REQUIRE_FALSE(ops.read_rows(layer.k, 35, 1, rows.data()).ok());
  REQUIRE_FALSE(ops.read_rows(layer.k, 99, 2, rows.data()).ok());
  // A step's own rows take places: what they cover is not there any more.
  auto step = memra::check(c.begin_step(4));
  const auto w = memra::check(step.kv_write(0));
  REQUIRE((w.k.ring && w.k.base == 40 && w.v.base == 40));
  REQUIRE(memra::check(step.kv_read(0)).window == 5);
}

TEST_CASE("shared layers own nothing and resolve to their donor everywhere", "[kinds][shared]") {
  HostDev dev;
  auto cfg = kinds_model();
  auto c = memra::check(Cache::create(dev, cfg, 100));
  for (const auto& p : c.plan().planes) REQUIRE(p.layer != 3);
  auto step = memra::check(c.begin_step(3));
  REQUIRE(says(step.kv_write(3).status(), ErrorKind::bad_argument, "shares"));
  REQUIRE(says(step.kv_write(4, 1).status(), ErrorKind::bad_argument, "shares"));
  REQUIRE(says(step.kv_read(3).status(), ErrorKind::bad_state, "append before attending"));
  const auto w = memra::check(step.kv_write(1));
  for (const auto& r : {step.kv_read(3), step.kv_read(4, 1)}) {
    REQUIRE(r.ok());
    REQUIRE((r->k.data == w.k.data && r->v.data == w.v.data && r->window == 40 && r->k.ring));
    REQUIRE((r->at.pos_d == w.at.pos_d && r->at.rows == 3));
  }
  REQUIRE_FALSE(step.kv_read(4, 3).ok());
  const auto donor = *c.kv(1);
  const auto borrower = *c.kv(3);
  REQUIRE((borrower.k.data == donor.k.data && borrower.spec == donor.spec && borrower.len == donor.len));
  REQUIRE((borrower.k_row_bytes() == donor.k_row_bytes() && borrower.v_row_bytes() == donor.v_row_bytes()));
  REQUIRE(&c.dev(3) == &c.dev(1));
  REQUIRE((c.kv(4, 2)->v_row_bytes() == 0 && c.kv(4, 0)->v_row_bytes() == 0 && !c.kv(4, 2)->v));  // K only
  REQUIRE_FALSE(c.kv(4, 3).has_value());

  // A donor that is none, later, of another kind, or elsewhere.
  const auto refused = [&](memra::SharedKvSpec s, const char* words) {
    auto other = cfg;
    other.layers[3] = {{s}};
    return says(memra::plan(other, 100).status(), ErrorKind::bad_argument, words);
  };
  REQUIRE(refused({3, 0, 0}, "an earlier layer"));
  REQUIRE(refused({4, 0, 0}, "an earlier layer"));
  REQUIRE(refused({2, 0, 0}, "an earlier layer"));  // recurrent
  REQUIRE(refused({1, 1, 0}, "an earlier layer"));  // one attention state only
  REQUIRE(refused({99, 0, 0}, "an earlier layer"));
  REQUIRE(refused({1, 0, 3}, "n_kv_heads"));
  auto chain = cfg;
  chain.layers[4] = memra::shared_attention(3);
  REQUIRE(says(memra::plan(chain, 100).status(), ErrorKind::bad_argument, "an earlier layer that owns one"));
  HostDev second;
  REQUIRE(says(Cache::create_pp2(dev, second, 2, cfg, 100).status(), ErrorKind::bad_argument, "on another device"));
  REQUIRE(Cache::create_pp2(dev, dev, 2, cfg, 100).ok());
}

TEST_CASE("a prefix takes the window of every ring; a cache made from it goes on as the first did", "[kinds][prefix]") {
  const Tokens t = stream(150);
  const auto cfg = kinds_model(Format::q4_0, Format::q8_0, Layout::split);
  for (const std::size_t at : {1U, 5U, 40U, 64U, 65U, 100U, 128U}) {
    for (const auto& place : placements(cfg.layers.size())) {
      for (const auto& [slack, ctx] : {std::pair{24U, 200U}, std::pair{100U, 180U}, std::pair{24U, 150U}}) {
        CAPTURE(at, place.name, slack, ctx);
        Devices d;
        auto c = memra::check(d.create(place, cfg, 200));
        REQUIRE(feed_by(c, part(t, 0, at), 13).ok());
        const auto snap = memra::check(c.snapshot());
        REQUIRE(feed_by(c, stream(7, 3), 7).ok());  // the cache may have moved on
        const auto prefix = memra::check(c.export_prefix(snap));
        // Another placement, and rings of another size.
        auto bigger = cfg;
        std::get<memra::AttentionSpec>(bigger.layers[1].states[0]).ring_slack = slack;
        const auto there = placements(cfg.layers.size())[(at + slack) % 6];
        auto made = memra::check(memra::Cache<TestDev>::from_prefix_ppn(d.of(there), there.fence, bigger, ctx, prefix));
        REQUIRE_STRAIGHT(made, part(t, 0, at));
        REQUIRE(made.kv(1)->first == (at < 40 ? 0 : at - 39));
        const auto again = memra::check(made.snapshot());
        REQUIRE(feed_by(made, stream(20, 6), 10).ok());
        REQUIRE(made.rollback(again, 0).ok());
        REQUIRE(feed_by(made, part(t, at, 22), 11).ok());
        REQUIRE_STRAIGHT(made, part(t, 0, at + 22));
        // What was restored can be published again.
        const auto second = memra::check(made.export_prefix(memra::check(made.snapshot())));
        REQUIRE(second.pos() == at + 22);
      }
    }
  }
}

TEST_CASE("an export whose window the ring has lost is refused; so is a prefix for planes of another kind",
          "[kinds][prefix]") {
  HostDev dev;
  const auto cfg = ring_model();
  auto c = memra::check(Cache::create(dev, cfg, 200));
  const Tokens t = stream(120);
  REQUIRE(feed_by(c, part(t, 0, 70), 20).ok());
  const auto snap = memra::check(c.snapshot());
  REQUIRE(feed_by(c, part(t, 70, 25), 25).ok());
  REQUIRE(memra::check(c.export_prefix(snap)).pos() == 70);  // rows from 31 on are needed and there
  REQUIRE(feed(c, part(t, 95, 1)).ok());
  REQUIRE(says(c.export_prefix(snap).status(), ErrorKind::bad_state, "the ring of layer 1 holds them from 32 on"));
  REQUIRE_STRAIGHT(c, part(t, 0, 96));
  const auto prefix = memra::check(c.export_prefix(memra::check(c.snapshot())));
  const auto refused = [&](auto change) {
    auto other = cfg;
    change(other);
    const auto s = Cache::from_prefix(dev, other, 200, prefix).status();
    return s.kind() == ErrorKind::bad_argument;
  };
  const auto attention = [](memra::ModelConfig& m, std::size_t il) -> memra::AttentionSpec& {
    return std::get<memra::AttentionSpec>(m.layers[il].states[0]);
  };
  REQUIRE_FALSE(refused([](auto&) {}));
  REQUIRE(refused([&](auto& m) { attention(m, 0).window = 6; }));
  REQUIRE(refused([&](auto& m) { attention(m, 0).ring_slack = 0; }));  // would have rows missing
  REQUIRE(refused([&](auto& m) { attention(m, 4).v_in_k = false; }));
  REQUIRE(refused([&](auto& m) { m.layers[3] = memra::no_state(); }));
  REQUIRE(refused([&](auto& m) { m.layers[3] = memra::shared_attention(0); }));
  auto recurrent = kinds_model();
  auto live = memra::check(Cache::create(dev, recurrent, 100));
  REQUIRE(feed(live, part(t, 0, 9)).ok());
  const auto whole = memra::check(live.export_prefix(memra::check(live.snapshot())));
  const auto other_state = [&](auto change) {
    auto other = recurrent;
    change(std::get<memra::RecurrentSpec>(other.layers[2].states[0]));
    return Cache::from_prefix(dev, other, 100, whole).status().kind() == ErrorKind::bad_argument;
  };
  REQUIRE_FALSE(other_state([](auto&) {}));
  REQUIRE(other_state([](auto& r) { r.ssm_format = Format::f16; }));  // the same bytes, other numbers
  REQUIRE(other_state([](auto& r) { r.rule = memra::ScanRule::gated_delta; }));
}

TEST_CASE("R1 rounds by every strategy over every kind that keeps a stash, through rings that wrap", "[kinds][round]") {
  const OpModel m(stash_model());
  const Tokens t = stream(150);
  for (std::size_t place = 0; place < 6; ++place) {
    Devices d;
    auto c = memra::check(d.create(placements(m.config().layers.size())[place], m.config(), 200, all_rounds(9)));
    REQUIRE(d.live_bytes() == c.plan().totals.total_bytes);
    TestDev plain_dev;
    auto plain = memra::check(memra::Cache<TestDev>::create(plain_dev, m.config(), 200));
    std::size_t at = 0;
    for (std::size_t turn = 0; at < 130; ++turn) {
      const Strategy by = memra_test::rounds::strategies[turn % 3];
      const std::size_t accept = turn % 10;
      CAPTURE(place, turn, at, memra::to_string(by), accept);
      auto r = memra::check(c.begin_round(9, by));
      const Tokens block = join(part(t, at, accept), stream(9 - accept, static_cast<std::uint32_t>(turn + 50)));
      std::vector<float> got, want, one;
      REQUIRE(m.forward(c, r.step(), block, got).ok());
      memra_test::rounds::commit(c, m, r, accept, block);
      for (std::size_t i = 0; i < accept; ++i) {
        REQUIRE(m.feed(plain, part(t, at + i, 1), one).ok());
        want.insert(want.end(), one.begin(), one.end());
      }
      got.resize(want.size());
      REQUIRE(memra_test::same_bits(got, want));
      at += accept;
      const auto a = image(c);
      const auto b = image(plain);
      INFO(difference(a, b));
      REQUIRE(a == b);
    }
  }
}

TEST_CASE("R1 a strategy that a kind has not is refused by the plan, which says which work", "[kinds][round]") {
  HostDev dev;
  REQUIRE(says(Cache::create(dev, kinds_model(), 200, all_rounds(4)).status(), ErrorKind::unsupported,
               "rounds by planes or replay work"));
  memra::CacheOptions o;
  o.rounds.rows = 26;
  REQUIRE(says(Cache::create(dev, ring_model(), 200, o).status(), ErrorKind::bad_argument, "more ring_slack"));
  // Left to choose, the plan takes one that works.
  o.rounds.rows = 16;
  const OpModel m(kinds_model());
  auto c = memra::check(Cache::create(dev, m.config(), 200, o));
  REQUIRE(c.plan().round.automatic == Strategy::planes);
  auto plain = memra::check(Cache::create(dev, m.config(), 200));
  const Tokens t = stream(40);
  for (std::size_t at = 0; at < 40; at += 8) {
    auto r = memra::check(c.begin_round(16));
    std::vector<float> out;
    REQUIRE(m.forward(c, r.step(), join(part(t, at, 8), stream(8, 9)), out).ok());
    REQUIRE(memra::check(r.commit(8)).replay == 0);
    REQUIRE(m.feed(plain, part(t, at, 8)).ok());
    REQUIRE(image(c) == image(plain));
  }
  REQUIRE(says(c.begin_round(4, Strategy::stash).status(), ErrorKind::bad_argument, "not paid for"));
}

TEST_CASE("T rows in one call are T calls for a model of every kind", "[kinds][identity]") {
  const OpModel m(kinds_model());
  HostDev dev;
  auto a = memra::check(Cache::create(dev, m.config(), 200));
  auto b = memra::check(Cache::create(dev, m.config(), 200));
  const Tokens t = stream(120);
  std::vector<float> one, many, row;
  for (std::size_t at = 0; at < 120; at += 24) {
    REQUIRE(m.feed(a, part(t, at, 24), many).ok());
    one.clear();
    for (std::size_t i = 0; i < 24; ++i) {
      REQUIRE(m.feed(b, part(t, at + i, 1), row).ok());
      one.insert(one.end(), row.begin(), row.end());
    }
    REQUIRE(memra_test::same_bits(one, many));
    REQUIRE(image(a) == image(b));
  }
}

TEST_CASE("every kind behind AnyDev is what it is on the device itself", "[kinds][any_dev]") {
  const OpModel m(kinds_model());
  HostDev dev;
  HostDev inner;
  memra::AnyDev any(inner);
  auto a = memra::check(Cache::create(dev, m.config(), 100));
  auto b = memra::check(memra::Cache<memra::AnyDev>::create(any, m.config(), 100));
  const Tokens t = stream(90);
  std::vector<float> x, y;
  for (std::size_t at = 0; at < 90; at += 18) {
    REQUIRE(m.feed(a, part(t, at, 18), x).ok());
    REQUIRE(m.feed(b, part(t, at, 18), y).ok());
    REQUIRE(memra_test::same_bits(x, y));
  }
  REQUIRE(image(a) == image(b));
}

TEST_CASE("positions that only the device knows: a ring wraps under device steps, and rollbacks know it",
          "[kinds][ring][device]") {
  HostDev dev;
  const OpModel m(ring_model());
  auto c = memra::check(Cache::create(dev, m.config(), 200));
  auto rounds = memra::check(Cache::create(dev, m.config(), 200, all_rounds(10)));
  auto plain = memra::check(Cache::create(dev, m.config(), 200));
  const Tokens t = stream(140);
  REQUIRE(m.feed(c, part(t, 0, 20)).ok());
  const auto snap = memra::check(c.snapshot());
  std::vector<float> out;
  for (std::size_t at = 20; at < 100; at += 5) {
    auto step = memra::check(c.begin_device_step(5));
    REQUIRE(m.forward(c, step, part(t, at, 5), out).ok());
    REQUIRE(c.advance_d().ok());
  }
  // As the library counts, a call of 5 rows may have run at 100: rows from 41 on are there. The prompt's 20 count not.
  REQUIRE(says(c.rollback(snap, 59).status(), ErrorKind::bad_state, "the ring of layer 1 holds them from 41 on"));
  REQUIRE(c.pos() == 100);
  REQUIRE(c.rollback(snap, 60).ok());
  for (std::size_t i = 0; i < 80; ++i) REQUIRE(m.feed(plain, part(t, i, 1)).ok());
  REQUIRE(image(c) == image(plain));
  for (std::size_t i = 80; i < 97; ++i) REQUIRE(m.feed(plain, part(t, i, 1)).ok());
  // Rounds that the device commits: what was verified and not accepted took places, too.
  for (std::size_t i = 0; i < 97; ++i) REQUIRE(m.feed(rounds, part(t, i, 1)).ok());
  const auto before = memra::check(rounds.snapshot());
  for (std::size_t at = 97; at < 118; at += 3) {
    auto r = memra::check(rounds.begin_round(10, Strategy::planes));
    const std::int32_t accept = 3;
    REQUIRE(m.forward(rounds, r.step(), join(part(t, at, 3), stream(7, 9)), out).ok());
    REQUIRE(r.commit_d(&accept).ok());
  }
  REQUIRE(rounds.catch_up().ok());
  REQUIRE(rounds.kv(1)->first == 118 + 10 - 64);
  REQUIRE(says(rounds.rollback(before, 5).status(), ErrorKind::bad_state, "from 64 on"));  // 102: from 63 on
  REQUIRE(rounds.rollback(before, 6).ok());
  REQUIRE(m.feed(rounds, part(t, 103, 15)).ok());
  for (std::size_t i = 97; i < 118; ++i) REQUIRE(m.feed(plain, part(t, i, 1)).ok());
  REQUIRE(image(rounds) == image(plain));
}

}  // namespace
}  // namespace kinds_cache_cpp
