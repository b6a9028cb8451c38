// C8 for rounds: the n-th device call of a round fails, for every n.
#include <cstddef>
#include <memra/cache.hpp>
#include <optional>
#include <support/catch.hpp>
#include <support/op_model.hpp>
#include <support/placements.hpp>
#include <support/rounds.hpp>
#include <support/stand_in.hpp>
#include <utility>
#include <vector>

namespace round_failure_cpp {
namespace {

using memra::ErrorKind;
using memra_test::attention_model;
using memra_test::Devices;
using memra_test::OpModel;
using memra_test::part;
using memra_test::placements;
using memra_test::round_hybrid;
using memra_test::stream;
using memra_test::Tokens;
using namespace memra_test::rounds;  // NOLINT(google-build-using-namespace): helpers written for these tests

/// One round that may fail anywhere. @return true if its commit was reported as done
bool try_round(Cache& c, const OpModel& m, const Tokens& block, std::size_t accept, Strategy by) {
  auto r = c.begin_round(block.size(), by);
  if (!r) return false;
  std::vector<float> out;
  if (!m.forward(c, r->step(), block, out)) return false;
  const auto left = r->commit(accept);
  if (!left) return false;
  return left->replay == 0 || m.feed(c, part(block, 0, left->replay)).ok();
}

TEST_CASE("C8 R7 a round whose n-th device call fails leaves the state before it, or a taint that rollback repairs",
          "[round]") {
  const Tokens t = stream(40);
  std::size_t taints = 0;
  std::size_t clean = 0;
  for (const auto& cfg : {round_hybrid(), attention_model()}) {
    const OpModel m(cfg);
    for (const std::size_t place : {0U, 2U, 3U}) {
      if (cfg.layers.size() < 4 && place == 3) continue;
      for (const Strategy by : strategies) {
        for (std::size_t n = 1;; ++n) {
          CAPTURE(cfg.layers.size(), place, to_string(by), n);
          Devices d;
          Cache c = make(d, m, 8, place);
          REQUIRE(m.feed(c, part(t, 0, 6)).ok());
          const auto snap = memra::check(c.snapshot());
          Round away = verify(c, m, part(t, 6, 4), Strategy::planes);  // the current plane is not at home
          REQUIRE(away.commit(2).ok());
          d.arm(n);
          const bool done = try_round(c, m, part(t, 8, 5), 3, by);
          const bool fired = d.fired();
          d.arm(0);
          REQUIRE(done == !fired);
          if (c.tainted()) {
            ++taints;
            REQUIRE(c.begin_round(1, by).status().kind() == ErrorKind::bad_state);
            REQUIRE(c.snapshot().status().kind() == ErrorKind::bad_state);
          }
          if (c.tainted() || c.replay_owed() != 0) {  // or the replay's own forward died
            REQUIRE(c.rollback(snap, 0).ok());
            require_straight(c, m, part(t, 0, 6));
            REQUIRE(m.feed(c, part(t, 6, 2)).ok());
          } else if (!done) {
            ++clean;
          }
          if (!done) {
            require_straight(c, m, part(t, 0, 8));
            REQUIRE(try_round(c, m, part(t, 8, 5), 3, by));
          }
          require_straight(c, m, part(t, 0, 11));
          if (!fired) break;
        }
      }
    }
  }
  REQUIRE(taints > 10);
  REQUIRE(clean > 50);
}

TEST_CASE("C8 R7 giving a round up: planes and stash cannot fail, a replay's copy can", "[round]") {
  const OpModel m(round_hybrid());
  const Tokens t = stream(40);
  for (const Strategy by : strategies) {
    Devices d;
    Cache c = make(d, m, 8, 2);
    REQUIRE(m.feed(c, part(t, 0, 6)).ok());
    const auto snap = memra::check(c.snapshot());
    {
      Round r = verify(c, m, stream(5, 4), by);
      d.arm(1);
    }
    const bool fired = d.fired();
    d.arm(0);
    REQUIRE(fired == (by == Strategy::replay));
    REQUIRE(c.tainted() == fired);
    if (fired) REQUIRE(c.rollback(snap, 0).ok());
    require_straight(c, m, part(t, 0, 6));
  }
}

TEST_CASE("C8 R4 bringing the current plane home can fail and be done again", "[round]") {
  const OpModel m(round_hybrid());
  const Tokens t = stream(40);
  std::size_t taints = 0;
  for (std::size_t n = 1;; ++n) {
    Devices d;
    Cache c = make(d, m, 8, 2);
    REQUIRE(m.feed(c, part(t, 0, 6)).ok());
    auto snap = memra::check(c.snapshot());
    Round r = verify(c, m, part(t, 6, 4), Strategy::planes);
    REQUIRE(r.commit(2).ok());
    d.arm(n);
    const bool done = c.snapshot_into(snap).ok();
    REQUIRE(done == !d.fired());
    d.arm(0);
    if (c.tainted()) {
      ++taints;
      REQUIRE(c.rollback(snap, 0).ok());
      REQUIRE(m.feed(c, part(t, 6, 2)).ok());
    }
    require_straight(c, m, part(t, 0, 8));
    REQUIRE(c.snapshot_into(snap).ok());
    REQUIRE(try_round(c, m, part(t, 8, 4), 3, Strategy::planes));
    require_straight(c, m, part(t, 0, 11));
    if (done) break;
  }
  REQUIRE(taints == 2);  // one store per stage
}

TEST_CASE("C8 creating a cache with rounds: any failure leaves nothing allocated", "[round]") {
  const OpModel m(round_hybrid());
  for (std::size_t n = 1;; ++n) {
    Devices d;
    d.arm(n);
    const auto made = d.create(placements(m.config().layers.size())[3], m.config(), ctx, memra_test::all_rounds(8));
    REQUIRE(made.ok() == !d.fired());
    if (made.ok()) break;
    REQUIRE(d.live() == 0);
  }
}

}  // namespace
}  // namespace round_failure_cpp
