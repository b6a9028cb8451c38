// Rounds: whatever is accepted, by whichever strategy, the cache ends where a straight run ends, bit for bit.
#include <cstddef>
#include <cstdint>
#include <memra/cache.hpp>
#include <optional>
#include <string>
#include <support/catch.hpp>
#include <support/op_model.hpp>
#include <support/placements.hpp>
#include <support/rounds.hpp>
#include <support/stand_in.hpp>
#include <utility>
#include <vector>

namespace round_cache_cpp {
namespace {

using memra::ErrorKind;
using memra_test::attention_model;
using memra_test::Devices;
using memra_test::image;
using memra_test::join;
using memra_test::OpModel;
using memra_test::part;
using memra_test::round_hybrid;
using memra_test::round_recurrent;
using memra_test::stream;
using memra_test::TestDev;
using memra_test::Tokens;
using namespace memra_test::rounds;  // NOLINT(google-build-using-namespace): helpers written for these tests

TEST_CASE("R2 every accept of every round of 1 to 16 rows, by every strategy, is the straight run", "[round]") {
  const Tokens t = stream(40);
  for (const auto& cfg : {round_hybrid(), attention_model(), round_recurrent()}) {
    const OpModel m(cfg);
    for (const Strategy by : strategies) {
      Devices d;
      Cache c = make(d, m, 16);
      const auto prompt = part(t, 0, 5);
      REQUIRE(m.feed(c, prompt).ok());
      const auto start = memra::check(c.snapshot());
      for (const std::size_t rows : {1U, 2U, 3U, 4U, 5U, 8U, 11U, 16U}) {
        const Tokens block = part(t, 5, rows);
        const auto want = straight(m, join(prompt, block)).out;
        for (std::size_t accept = 0; accept <= rows; ++accept) {
          CAPTURE(cfg.layers.size(), to_string(by), rows, accept);
          std::vector<float> out;
          Round r = verify(c, m, block, by, &out);
          REQUIRE(r.rows() == rows);
          REQUIRE(same_rows(out, want));
          commit(c, m, r, accept, block);
          require_straight(c, m, join(prompt, part(block, 0, accept)));
          REQUIRE(m.feed(c, part(t, 30, 2)).ok());
          require_straight(c, m, join(join(prompt, part(block, 0, accept)), part(t, 30, 2)));
          REQUIRE(c.rollback(start, 0).ok());
          require_straight(c, m, prompt);
        }
      }
    }
  }
}

TEST_CASE("red arm: an accept of one more or fewer is another state, in every part", "[round]") {
  const OpModel m(round_hybrid());
  const Tokens t = stream(20);
  for (const Strategy by : strategies) {
    for (const std::size_t wrong : {3U, 5U}) {
      Devices d;
      Cache c = make(d, m, 8);
      REQUIRE(m.feed(c, part(t, 0, 6)).ok());
      Round r = verify(c, m, part(t, 6, 8), by);
      commit(c, m, r, wrong, part(t, 6, 8));
      const auto want = straight(m, part(t, 0, 10)).state;
      const auto got = image(c);
      REQUIRE(got.pos != want.pos);
      REQUIRE(got.parts[0] != want.parts[0]);  // conv
      REQUIRE(got.parts[1] != want.parts[1]);  // ssm
    }
  }
}

TEST_CASE("R3 an abandoned round is as if it had never begun", "[round]") {
  const OpModel m(round_hybrid());
  const Tokens t = stream(30);
  for (std::size_t place = 0; place < 6; ++place) {
    for (const Strategy by : strategies) {
      Devices d;
      Cache c = make(d, m, 8, place);
      REQUIRE(m.feed(c, part(t, 0, 6)).ok());
      // Moves the current plane away from home first.
      Round before = verify(c, m, part(t, 6, 4), Strategy::planes);
      REQUIRE(before.commit(3).ok());
      for (const bool whole : {true, false}) {
        {
          Round r = memra::check(c.begin_round(5, by));
          std::vector<float> out;
          REQUIRE(m.forward(c, r.step(), stream(5, 9), out, whole ? 99 : 4).ok());
          if (!whole) REQUIRE(r.commit(1).status().kind() == ErrorKind::bad_state);
        }
        require_straight(c, m, part(t, 0, 9));
        {
          Round r = memra::check(c.begin_round(5, by));
          REQUIRE(r.abandon().ok());
          REQUIRE_FALSE(r.open());
          REQUIRE(r.commit(0).status().kind() == ErrorKind::bad_state);
        }
        require_straight(c, m, part(t, 0, 9));
      }
      REQUIRE(m.feed(c, part(t, 9, 4)).ok());
      require_straight(c, m, part(t, 0, 13));
    }
  }
}

TEST_CASE("R3 a round that is over, of another turn, moved from or of a dead cache is refused", "[round]") {
  const OpModel m(round_hybrid());
  const Tokens t = stream(30);
  const auto over = [](Round& r) {
    return !r.open() && r.commit(0).status().kind() == ErrorKind::bad_state &&
           r.kv_write(1).status().kind() == ErrorKind::bad_state &&
           r.kv_read(1).status().kind() == ErrorKind::bad_state && r.recur(0).status().kind() == ErrorKind::bad_state &&
           !r.tap(0) && r.abandon().ok();
  };
  for (const Strategy by : strategies) {
    Devices d;
    std::optional<Cache> c(make(d, m, 8));
    REQUIRE(m.feed(*c, part(t, 0, 6)).ok());
    const auto snap = memra::check(c->snapshot());
    Round a = verify(*c, m, part(t, 6, 3), by);
    REQUIRE(c->begin_round(2, by).status().kind() == ErrorKind::bad_state);
    REQUIRE(c->begin_step(1).status().kind() == ErrorKind::bad_state);
    REQUIRE(c->advance().kind() == ErrorKind::bad_state);
    REQUIRE(c->snapshot().status().kind() == ErrorKind::bad_state);
    REQUIRE(a.commit(4).status().kind() == ErrorKind::bad_argument);
    REQUIRE(a.recur(0).status().kind() == ErrorKind::bad_state);  // once
    REQUIRE(a.open());
    REQUIRE(c->rollback(snap, 0).ok());
    Round b = verify(*c, m, part(t, 6, 3), by);
    REQUIRE(over(a));
    REQUIRE(b.open());
    Round moved = std::move(b);
    REQUIRE(over(b));
    REQUIRE(moved.open());
    REQUIRE(c->reset().ok());
    REQUIRE(over(moved));
    moved = verify(*c, m, part(t, 0, 2), by);
    Cache elsewhere = std::move(*c);
    REQUIRE(c->begin_round(1, by).status().kind() == ErrorKind::bad_state);
    REQUIRE(moved.open());
    commit(elsewhere, m, moved, 1, part(t, 0, 2));
    require_straight(elsewhere, m, part(t, 0, 1));
    Round last = verify(elsewhere, m, part(t, 1, 2), by);
    elsewhere = make(d, m, 8);
    REQUIRE(over(last));
  }
}

TEST_CASE("R1 R2 what was not paid for, or does not fit, is refused before anything moves", "[round]") {
  const OpModel m(round_hybrid());
  const Tokens t = stream(70);
  Devices d;
  memra::CacheOptions o;
  o.rounds.rows = 4;
  o.rounds.stash = true;
  Cache c = memra::check(Cache::create(d.dev[0], m.config(), ctx, o));
  REQUIRE(c.plan().round.automatic == Strategy::stash);
  REQUIRE(m.feed(c, part(t, 0, 60)).ok());
  const auto before = image(c);
  for (const Strategy by : {Strategy::replay, Strategy::planes}) {
    REQUIRE(c.begin_round(2, by).status().kind() == ErrorKind::bad_argument);
  }
  REQUIRE(c.begin_round(5).status().kind() == ErrorKind::bad_argument);
  REQUIRE(c.begin_round(0).status().kind() == ErrorKind::bad_argument);
  REQUIRE(memra::check(c.begin_round(4)).strategy() == Strategy::stash);
  REQUIRE(m.feed(c, part(t, 60, 1)).ok());
  const auto full = c.begin_round(4).status();
  REQUIRE(full.kind() == ErrorKind::bad_argument);
  REQUIRE(std::string(full.text()).find("3 fit") != std::string::npos);
  Round r = verify(c, m, part(t, 61, 3), Strategy::automatic);
  commit(c, m, r, 3, part(t, 61, 3));
  require_straight(c, m, part(t, 0, 64));
  REQUIRE(c.begin_round(1).status().kind() == ErrorKind::bad_argument);
  Cache none = memra::check(Cache::create(d.dev[0], m.config(), ctx));
  for (const Strategy by : strategies) REQUIRE(none.begin_round(1, by).status().kind() == ErrorKind::bad_argument);
  REQUIRE(before.pos == 60);
}

TEST_CASE("snapshots stand across rounds; rollback behind a round and on again", "[round]") {
  const OpModel m(round_hybrid());
  const Tokens t = stream(50);
  for (const Strategy by : strategies) {
    for (std::size_t place = 0; place < 6; ++place) {
      Devices d;
      Cache c = make(d, m, 8, place);
      REQUIRE(m.feed(c, part(t, 0, 6)).ok());
      auto early = memra::check(c.snapshot());
      Round r = verify(c, m, part(t, 6, 5), by);
      commit(c, m, r, 4, part(t, 6, 5));
      auto late = memra::check(c.snapshot());
      require_straight(c, m, part(t, 0, 10));
      r = verify(c, m, part(t, 10, 8), by);
      commit(c, m, r, 2, part(t, 10, 8));
      REQUIRE(c.rollback(late, 1).ok());
      REQUIRE(c.replay_owed() == 1);
      REQUIRE(c.begin_round(2, by).status().kind() == ErrorKind::bad_state);
      REQUIRE(m.feed(c, part(t, 10, 1)).ok());
      require_straight(c, m, part(t, 0, 11));
      REQUIRE(c.snapshot_into(early).ok());
      r = verify(c, m, part(t, 11, 3), by);
      commit(c, m, r, 3, part(t, 11, 3));
      REQUIRE(c.rollback(late, 0).ok());
      REQUIRE_FALSE(early.valid());
      REQUIRE(c.rollback(early, 0).status().kind() == ErrorKind::bad_state);
      require_straight(c, m, part(t, 0, 10));
      // A prefix of what a round left.
      r = verify(c, m, part(t, 10, 4), by);
      commit(c, m, r, 3, part(t, 10, 4));
      const auto snap = memra::check(c.snapshot());
      const auto prefix = memra::check(c.export_prefix(snap));
      Cache other = memra::check(Cache::from_prefix(d.dev[0], m.config(), ctx, prefix, memra_test::all_rounds(3)));
      require_straight(other, m, part(t, 0, 13));
      Round on = verify(other, m, part(t, 13, 3), by);
      commit(other, m, on, 2, part(t, 13, 3));
      require_straight(other, m, part(t, 0, 15));
    }
  }
}

TEST_CASE("taps and parked logits across rounds", "[round]") {
  const OpModel m(round_hybrid());
  const Tokens t = stream(50);
  for (const Strategy by : strategies) {
    Devices d;
    Cache c = make(d, m, 8);
    REQUIRE(m.feed(c, part(t, 0, 6)).ok());
    auto sink = memra::check(memra::DflashTapSink<TestDev>::create(d.dev[0], {5, 0}, OpModel::width, 12));
    REQUIRE(c.arm_taps(std::move(sink)).ok());
    const std::vector<float> logits(16, 1.0F);
    REQUIRE(c.park_logits(logits.data()).ok());
    Round r = verify(c, m, part(t, 6, 5), by);
    REQUIRE(c.park_logits(logits.data()).kind() == ErrorKind::bad_state);
    commit(c, m, r, 0, part(t, 6, 5));
    REQUIRE(c.last_logits_dev());
    REQUIRE(c.dflash_taps()->rows() == 0);
    r = verify(c, m, part(t, 6, 5), by);
    REQUIRE(r.commit(3).ok());
    REQUIRE(c.dflash_taps()->rows() == 3);
    REQUIRE(c.last_logits_dev().has_value() == (c.pos() == 6));  // a replay stands at the snapshot again
    if (c.replay_owed() != 0) REQUIRE(m.feed(c, part(t, 6, 3)).ok());
    REQUIRE(c.begin_round(8, by).ok());
    REQUIRE(m.feed(c, part(t, 9, 2)).ok());
    REQUIRE(c.begin_round(8, by).status().kind() == ErrorKind::bad_state);  // no place for taps
    const auto taken = *c.take_taps();
    REQUIRE((taken.origin() == 6 && taken.rows() == 5));
    const auto want = straight(m, part(t, 0, 11)).out;
    for (std::size_t i = 0; i < 5; ++i) {
      for (std::size_t e = 0; e < OpModel::width; ++e) {
        REQUIRE(taken.data()[i * 2 * OpModel::width + e] == want[(6 + i) * OpModel::width + e]);
      }
    }
    REQUIRE(rows_of(want) == 11);
  }
}

TEST_CASE("R4 the host moves nothing and allocates nothing in a round", "[round]") {
  const OpModel m(round_hybrid());
  const Tokens t = stream(60);
  for (const Strategy by : strategies) {
    Devices d;
    Cache c = make(d, m, 8, 3);
    REQUIRE(m.feed(c, part(t, 0, 6)).ok());
    d.reset();
    const std::size_t state = c.plan().totals.snapshot_bytes;
    for (std::size_t i = 0; i < 8; ++i) {
      const Tokens block = part(t, c.pos(), 6);
      Round r = verify(c, m, block, by);
      commit(c, m, r, i % 5, block);
    }
    REQUIRE(d.allocations() == 0);
    REQUIRE(d.host_copies() == 0);
    REQUIRE(d.copied_bytes() == (by == Strategy::replay ? 16 * state : 0));
  }
}

}  // namespace
}  // namespace round_cache_cpp
