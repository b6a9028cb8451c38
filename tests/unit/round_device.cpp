// Accept lengths that only the device knows: rounds queued one after another, and the host that catches up.
#include <cstddef>
#include <cstdint>
#include <memra/cache.hpp>
#include <string>
#include <support/catch.hpp>
#include <support/op_model.hpp>
#include <support/placements.hpp>
#include <support/rounds.hpp>
#include <support/says.hpp>
#include <support/stand_in.hpp>
#include <utility>
#include <vector>

namespace round_device_cpp {
namespace {

using memra::ErrorKind;
using memra_test::attention_model;
using memra_test::Devices;
using memra_test::join;
using memra_test::OpModel;
using memra_test::part;
using memra_test::round_hybrid;
using memra_test::round_recurrent;
using memra_test::says;
using memra_test::stream;
using memra_test::TestDev;
using memra_test::Tokens;
using namespace memra_test::rounds;  // NOLINT(google-build-using-namespace): helpers written for these tests

constexpr Strategy by_kernel[] = {Strategy::planes, Strategy::stash};

/// One accept word per stage, all the same.
struct Accepts {
  std::vector<std::int32_t> words;
  std::vector<const std::int32_t*> at;
  Accepts(std::size_t stages, std::size_t accept) : words(stages, static_cast<std::int32_t>(accept)) {
    for (const std::int32_t& w : words) at.push_back(&w);
  }
};

TEST_CASE("R5 rounds follow each other without the host; it catches up when asked", "[round]") {
  const Tokens t = stream(60);
  for (const auto& cfg : {round_hybrid(), attention_model(), round_recurrent()}) {
    const OpModel m(cfg);
    for (std::size_t place = 0; place < 6; ++place) {
      if (cfg.layers.size() < 4 && place != 0) continue;
      for (const Strategy by : by_kernel) {
        for (const bool mixed : {false, true}) {
          CAPTURE(cfg.layers.size(), place, to_string(by), mixed);
          Devices d;
          Cache c = make(d, m, 8, place);
          REQUIRE(m.feed(c, part(t, 0, 6)).ok());
          d.reset();
          std::size_t at = 6;
          for (const std::size_t accept : {3U, 0U, 5U, 1U, 4U}) {
            const Accepts a(c.n_stages(), accept);
            Round r = verify(c, m, join(part(t, at, accept), stream(5 - accept, 8)),
                             mixed && accept % 2 == 1 ? by_kernel[by == by_kernel[0]] : by);
            REQUIRE(r.commit_d(a.at).ok());
            REQUIRE_FALSE(r.open());
            REQUIRE(r.commit(0).status().kind() == ErrorKind::bad_state);
            at += accept;
            REQUIRE(c.pos() == 6);
            REQUIRE(c.pos_bound() >= at);
          }
          REQUIRE(d.host_copies() == 0);
          REQUIRE(c.pos_bound() == 6 + 5 * 5);
          REQUIRE_FALSE(c.last_logits_dev());
          REQUIRE(c.catch_up().ok());
          REQUIRE((c.pos() == at && c.pos_bound() == at));
          require_straight(c, m, part(t, 0, at));
          REQUIRE(m.feed(c, part(t, at, 3)).ok());
          require_straight(c, m, part(t, 0, at + 3));
        }
      }
    }
  }
}

TEST_CASE("R5 what needs the host's word catches up by itself", "[round]") {
  const OpModel m(round_hybrid());
  const Tokens t = stream(80);
  for (const Strategy by : by_kernel) {
    for (int what = 0; what < 8; ++what) {
      CAPTURE(to_string(by), what);
      Devices d;
      Cache c = make(d, m, 8, 2);
      REQUIRE(m.feed(c, part(t, 0, 6)).ok());
      auto snap = memra::check(c.snapshot());
      const Accepts a(c.n_stages(), 3);
      Round r = verify(c, m, part(t, 6, 5), by);
      REQUIRE(r.commit_d(a.at).ok());
      std::size_t end = 9;
      switch (what) {
        case 0:
          REQUIRE(c.snapshot_into(snap).ok());
          REQUIRE(snap.pos() == 9);
          break;
        case 1: {
          REQUIRE(c.rollback(snap, 4).status().kind() == ErrorKind::bad_argument);  // 3 were committed
          REQUIRE(memra::check(c.rollback(snap, 2)).replay == 2);
          REQUIRE(m.feed(c, part(t, 6, 2)).ok());
          end = 8;
          break;
        }
        case 2:
          REQUIRE(m.feed(c, part(t, 9, 1)).ok());
          end = 10;
          break;
        case 3: {
          Round by_value = verify(c, m, part(t, 9, 4), by);
          REQUIRE(memra::check(by_value.commit(2)).pos == 11);
          end = 11;
          break;
        }
        case 4: {
          Round replay = verify(c, m, part(t, 9, 4), Strategy::replay);
          commit(c, m, replay, 1, part(t, 9, 4));
          end = 10;
          break;
        }
        case 5: {
          const std::vector<float> logits(16, 2.0F);
          REQUIRE(c.park_logits(logits.data()).ok());
          REQUIRE(memra::check(c.export_prefix(snap)).pos() == 6);
          break;
        }
        case 6: {
          auto sink = memra::check(memra::DflashTapSink<TestDev>::create(d.dev[0], {5}, OpModel::width, 12));
          REQUIRE(c.arm_taps(std::move(sink)).ok());
          REQUIRE(c.dflash_taps()->origin() == 9);
          Round tapped = verify(c, m, part(t, 9, 4), by);
          const Accepts two(c.n_stages(), 2);
          REQUIRE(tapped.commit_d(two.at).ok());
          REQUIRE(c.take_taps()->rows() == 2);
          end = 11;
          break;
        }
        default:
          REQUIRE(c.reset().ok());
          end = 0;
      }
      REQUIRE(c.pos() == end);
      require_straight(c, m, part(t, 0, end));
      // Near the end of the context the bound is not enough.
      REQUIRE(c.reset().ok());
      REQUIRE(m.feed(c, part(t, 0, ctx - 12)).ok());
      const Accepts one(c.n_stages(), 1);
      for (std::size_t i = 0; i < 4; ++i) {
        Round last = verify(c, m, part(t, ctx - 12 + i, 5), by);
        REQUIRE(last.commit_d(one.at).ok());
      }
      REQUIRE(c.catch_up().ok());
      require_straight(c, m, part(t, 0, ctx - 8));
    }
  }
}

TEST_CASE("R6 an accept out of range is clamped, reported, and repaired by a rollback", "[round]") {
  const OpModel m(round_hybrid());
  const Tokens t = stream(40);
  for (const Strategy by : by_kernel) {
    for (const std::int32_t wrong : {-1, 6}) {
      Devices d;
      Cache c = make(d, m, 8);
      REQUIRE(m.feed(c, part(t, 0, 6)).ok());
      const auto snap = memra::check(c.snapshot());
      Round r = verify(c, m, part(t, 6, 5), by);
      REQUIRE(r.commit_d(&wrong).ok());
      const auto said = c.catch_up();
      REQUIRE(said.kind() == ErrorKind::bad_state);
      REQUIRE(c.tainted());
      REQUIRE(c.pos() == (wrong < 0 ? 6 : 11));
      const memra::Status refused = c.begin_round(1, by).status();
      REQUIRE(refused.kind() == ErrorKind::bad_state);
      REQUIRE(std::string(refused.text()).find("tainted by an accept length") != std::string::npos);
      REQUIRE(c.rollback(snap, 0).ok());
      require_straight(c, m, part(t, 0, 6));
      r = verify(c, m, part(t, 6, 5), by);
      commit(c, m, r, 2, part(t, 6, 5));
      REQUIRE(c.catch_up().ok());
      require_straight(c, m, part(t, 0, 8));
    }
  }
}

TEST_CASE("R6 a stage that missed a round, or applied another accept, is detected and not averaged in", "[round]") {
  const OpModel m(round_hybrid());
  const Tokens t = stream(40);
  for (const Strategy by : by_kernel) {
    for (const bool missed : {true, false}) {
      Devices d;
      Cache c = make(d, m, 8, 2);
      REQUIRE(m.feed(c, part(t, 0, 6)).ok());
      const auto snap = memra::check(c.snapshot());
      Accepts a(c.n_stages(), missed ? 0 : 3);
      if (!missed) a.words[1] = 2;
      Round r = memra::check(c.begin_round(5, by));
      std::vector<float> out;
      // The words of the first stage, where its kernels find the current plane.
      const auto view = memra::check(r.recur(0));
      auto* words = const_cast<memra::RoundWords*>(reinterpret_cast<const memra::RoundWords*>(view.round.plane_d));
      REQUIRE(r.abandon().ok());
      r = verify(c, m, part(t, 6, 5), by);
      REQUIRE(r.commit_d(a.at).ok());
      if (missed) --words->generation;  // as if its launch had never been replayed: nothing else tells with accept 0
      const auto said = c.catch_up();
      REQUIRE(said.kind() == ErrorKind::bad_state);
      REQUIRE(c.tainted());
      REQUIRE(std::string(c.begin_step(1).status().text()).find("tainted by stages") != std::string::npos);
      REQUIRE(c.rollback(snap, 0).ok());
      require_straight(c, m, part(t, 0, 6));
      r = verify(c, m, part(t, 6, 5), by);
      const Accepts good(c.n_stages(), 4);
      REQUIRE(r.commit_d(good.at).ok());
      REQUIRE(c.catch_up().ok());
      require_straight(c, m, part(t, 0, 10));
    }
  }
}

TEST_CASE("R5 accept pointers that cannot be are refused and leave the round open", "[round]") {
  const OpModel m(round_hybrid());
  const Tokens t = stream(40);
  Devices d;
  Cache c = make(d, m, 8, 2);
  REQUIRE(m.feed(c, part(t, 0, 6)).ok());
  Accepts a(c.n_stages(), 2);
  Round r = memra::check(c.begin_round(5, Strategy::planes));
  REQUIRE(r.commit_d(a.at).kind() == ErrorKind::bad_state);  // nothing was written
  REQUIRE(r.abandon().ok());
  r = verify(c, m, part(t, 6, 5), Strategy::planes);
  REQUIRE(r.commit_d(a.at[0]).kind() == ErrorKind::bad_argument);  // two stages
  a.at[1] = nullptr;
  REQUIRE(r.commit_d(a.at).kind() == ErrorKind::bad_argument);
  commit(c, m, r, 2, part(t, 6, 5));
  a.at[1] = a.at[0];
  r = verify(c, m, part(t, 8, 5), Strategy::replay);
  REQUIRE(r.commit_d(a.at).kind() == ErrorKind::bad_argument);
  commit(c, m, r, 2, part(t, 8, 5));
  require_straight(c, m, part(t, 0, 10));
}

TEST_CASE("R5 rounds at device positions: what a graph holds, without a graph", "[round]") {
  const OpModel m(round_hybrid());
  const Tokens t = stream(80);
  for (const Strategy by : by_kernel) {
    for (const std::size_t place : {0U, 2U}) {
      CAPTURE(to_string(by), place);
      Devices d;
      Cache c = make(d, m, 8, place);
      REQUIRE(m.feed(c, part(t, 0, 5)).ok());
      const auto snap = memra::check(c.snapshot());
      std::vector<float> out;
      d.reset();
      std::size_t at = 5;
      const auto run = [&](std::size_t accept) {
        const Accepts a(c.n_stages(), accept);
        Round r = memra::check(c.begin_device_round(8, by));
        REQUIRE(memra::check(r.kv_write(1)).at.pos_bound == ctx);
        REQUIRE(r.abandon().ok());
        r = memra::check(c.begin_device_round(8, by));
        REQUIRE(m.forward(c, r.step(), join(part(t, at, accept), stream(8 - accept, 9)), out).ok());
        REQUIRE(r.commit_d(a.at).ok());
      };
      for (const std::size_t accept : {3U, 0U, 8U, 8U, 8U, 8U, 8U, 8U}) {  // the host's bound runs far ahead
        run(accept);
        at += accept;
      }
      REQUIRE(d.host_copies() == 0);
      REQUIRE(c.catch_up().ok());
      REQUIRE(c.pos() == at);
      require_straight(c, m, part(t, 0, at));
      // 8 rows at 56 are the last that fit; those after them end the stream, whatever was accepted of them.
      run(0);
      REQUIRE(c.catch_up().ok());
      run(1);
      REQUIRE(c.catch_up().ok());
      at += 1;
      const auto end = memra::check(c.snapshot());
      run(1);
      run(0);
      const auto said = c.catch_up();
      REQUIRE(said.kind() == ErrorKind::bad_state);
      REQUIRE((c.tainted() && c.pos() == at));
      REQUIRE(c.rollback(end, 0).ok());
      require_straight(c, m, part(t, 0, at));
      REQUIRE(memra::check(c.rollback(snap, 2)).replay == 2);
      REQUIRE(c.begin_device_round(4, by).status().kind() == ErrorKind::bad_state);  // a replay is owed
    }
  }
}

TEST_CASE("R5 the host commits no round at a device position whose rows do not all fit", "[round]") {
  const Tokens t = stream(ctx + 2);
  const OpModel m(round_hybrid());
  for (const Strategy by : {Strategy::planes, Strategy::stash}) {
    Devices d;
    Cache c = make(d, m, 8);
    REQUIRE(m.feed(c, part(t, 0, ctx - 2)).ok());
    auto r = memra::check(c.begin_device_round(4, by));
    std::vector<float> out;
    REQUIRE(m.forward(c, r.step(), part(t, ctx - 2, 4), out).ok());
    for (const std::size_t accept : {0U, 1U, 2U, 4U}) {
      REQUIRE(says(r.commit(accept).status(), ErrorKind::bad_state, "4 rows at position 62; 2 fit below max_ctx 64"));
      REQUIRE((r.open() && c.pos() == ctx - 2));
    }
    REQUIRE(r.abandon().ok());
    require_straight(c, m, part(t, 0, ctx - 2));
    auto fits = memra::check(c.begin_device_round(2, by));
    REQUIRE(m.forward(c, fits.step(), part(t, ctx - 2, 2), out).ok());
    REQUIRE(fits.commit(2).ok());
    require_straight(c, m, part(t, 0, ctx));
    REQUIRE(c.begin_step(1).status().kind() == ErrorKind::bad_argument);
  }
}

TEST_CASE("R5 device steps follow each other where rounds by planes were paid for, until there was one", "[round]") {
  const Tokens t = stream(12);
  for (const bool recurrent : {true, false}) {
    const OpModel m(recurrent ? round_hybrid() : memra_test::round_attention());
    Devices d;
    Cache c = make(d, m, 8);
    std::vector<float> out;
    for (std::size_t at = 0; at < 3; ++at) {
      auto step = memra::check(c.begin_device_step(1));
      REQUIRE(m.forward(c, step, part(t, at, 1), out).ok());
      REQUIRE(c.advance_d().ok());
    }
    auto r = memra::check(c.begin_round(3, Strategy::planes));
    REQUIRE(m.forward(c, r.step(), part(t, 3, 3), out).ok());
    const Accepts two(c.n_stages(), 2);
    REQUIRE(r.commit_d(two.at).ok());
    if (!recurrent) {
      REQUIRE(c.begin_device_step(1).ok());
      continue;
    }
    REQUIRE(says(c.begin_device_step(1).status(), ErrorKind::bad_state, "may have left the state in another plane"));
    REQUIRE(c.catch_up().ok());
    REQUIRE(says(c.begin_device_step(1).status(), ErrorKind::bad_state, "rounds by planes left the state"));
    REQUIRE(c.snapshot().ok());
    REQUIRE(c.begin_device_step(1).ok());
    REQUIRE(c.reset().ok());
    c.replayed(1);  // it may have been a round
    REQUIRE(says(c.begin_device_step(1).status(), ErrorKind::bad_state, "may have left the state in another plane"));
  }
}

TEST_CASE("R5 rounds at device positions that cannot be", "[round]") {
  const OpModel m(round_hybrid());
  Devices d;
  Cache c = make(d, m, 8);
  REQUIRE(c.begin_device_round(4, Strategy::replay).status().kind() == ErrorKind::bad_argument);
  REQUIRE(c.begin_device_round(9, Strategy::planes).status().kind() == ErrorKind::bad_argument);
  REQUIRE(c.begin_device_round(0, Strategy::planes).status().kind() == ErrorKind::bad_argument);
  auto open = memra::check(c.begin_device_round(4, Strategy::automatic));
  REQUIRE(c.begin_device_round(4, Strategy::planes).status().kind() == ErrorKind::bad_state);
  REQUIRE(open.abandon().ok());
  auto sink = memra::check(memra::DflashTapSink<TestDev>::create(d.dev[0], {5}, OpModel::width, 12));
  REQUIRE(c.arm_taps(std::move(sink)).ok());
  REQUIRE(c.begin_device_round(4, Strategy::planes).status().kind() == ErrorKind::bad_state);
  Cache gone = std::move(c);
  REQUIRE(c.begin_device_round(4).status().kind() == ErrorKind::bad_state);  // NOLINT(bugprone-use-after-move)
}

}  // namespace
}  // namespace round_device_cpp
