// Batches of rounds: what each cache gets alone, or nothing.
#include <cstddef>
#include <cstdint>
#include <memra/cache.hpp>
#include <memra/round_batch.hpp>
#include <memra/workspace.hpp>
#include <support/catch.hpp>
#include <support/op_model.hpp>
#include <support/placements.hpp>
#include <support/rounds.hpp>
#include <support/stand_in.hpp>
#include <utility>
#include <vector>

namespace {

using memra::ErrorKind;
using memra_test::Devices;
using memra_test::OpModel;
using memra_test::part;
using memra_test::round_hybrid;
using memra_test::stream;
using memra_test::TestDev;
using memra_test::Tokens;
using namespace memra_test::rounds;  // NOLINT(google-build-using-namespace): helpers written for these tests
using Batch = memra::RoundBatch<TestDev>;

/// Three sequences of different lengths on the same two devices, their rounds, and scratch for them.
struct Three {
  OpModel m{round_hybrid()};
  Devices d;
  std::vector<Cache> caches;
  std::vector<Tokens> tokens;
  std::vector<Round> rounds;
  std::vector<Round*> all;
  std::vector<memra::Workspace<TestDev>> memory;
  std::vector<memra::WorkspaceView> scratch;

  explicit Three(Strategy by) {
    for (std::size_t i = 0; i < 3; ++i) {
      tokens.push_back(stream(30, 5 + static_cast<std::uint32_t>(i)));
      caches.push_back(make(d, m, 8, 2));
      memra::check(m.feed(caches[i], part(tokens[i], 0, 3 + i)));
    }
    for (std::size_t s = 0; s < 2; ++s) {
      memory.push_back(
          memra::check(memra::Workspace<TestDev>::create(caches[0].stage_dev(s), Batch::scratch_bytes(3))));
      scratch.push_back(memory.back().view());
    }
    begin(by);
  }
  void begin(Strategy by) {
    rounds.clear();
    for (std::size_t i = 0; i < 3; ++i) {
      rounds.push_back(verify(caches[i], m, part(tokens[i], caches[i].pos(), 4 + i), by));
    }
    all = {&rounds[0], &rounds[1], &rounds[2]};
  }
};

TEST_CASE("a batch commits to every cache what it would get alone", "[round]") {
  for (const Strategy by : {Strategy::planes, Strategy::stash}) {
    Three x(by);
    const std::vector<std::size_t> accept = {0, 5, 2};
    REQUIRE(Batch::commit(x.all, accept, x.scratch).ok());
    for (std::size_t i = 0; i < 3; ++i) {
      REQUIRE_FALSE(x.rounds[i].open());
      require_straight(x.caches[i], x.m, part(x.tokens[i], 0, 3 + i + accept[i]));
    }
    x.begin(by);
    const std::vector<std::int32_t> accept_d = {3, 0, 6};
    const std::vector<const std::int32_t*> at = {accept_d.data(), accept_d.data()};
    REQUIRE(Batch::commit_d(x.all, at, x.scratch).ok());
    for (std::size_t i = 0; i < 3; ++i) {
      REQUIRE(x.caches[i].catch_up().ok());
      require_straight(x.caches[i], x.m,
                       part(x.tokens[i], 0, 3 + i + accept[i] + static_cast<std::size_t>(accept_d[i])));
    }
  }
}

TEST_CASE("a batch with one wrong member changes nothing", "[round]") {
  Three x(Strategy::stash);
  const std::vector<std::size_t> accept = {1, 2, 3};
  const auto refused = [&](const memra::Status& s) { return s.kind() == ErrorKind::bad_argument; };
  REQUIRE(refused(Batch::commit(x.all, std::vector<std::size_t>{1, 2}, x.scratch)));
  REQUIRE(refused(Batch::commit(x.all, std::vector<std::size_t>{1, 2, 7}, x.scratch)));
  REQUIRE(refused(Batch::commit({}, {}, x.scratch)));
  const std::vector<Round*> twice = {x.all[0], x.all[1], x.all[0]};
  REQUIRE(refused(Batch::commit(twice, accept, x.scratch)));
  const std::vector<Round*> null = {x.all[0], nullptr, x.all[2]};
  REQUIRE(refused(Batch::commit(null, accept, x.scratch)));
  auto small = x.scratch;
  small[1].bytes -= 1;
  REQUIRE(refused(Batch::commit(x.all, accept, small)));
  small.pop_back();
  REQUIRE(refused(Batch::commit(x.all, accept, small)));
  const std::int32_t one = 1;
  REQUIRE(refused(Batch::commit_d(x.all, std::vector<const std::int32_t*>{&one}, x.scratch)));
  REQUIRE(x.rounds[1].abandon().ok());
  REQUIRE(Batch::commit(x.all, accept, x.scratch).kind() == ErrorKind::bad_state);
  x.rounds[1] = verify(x.caches[1], x.m, part(x.tokens[1], 4, 2), Strategy::planes);
  REQUIRE(refused(Batch::commit(x.all, accept, x.scratch)));
  for (Round& r : x.rounds) REQUIRE(r.open());
  x.rounds.clear();
  for (std::size_t i = 0; i < 3; ++i) require_straight(x.caches[i], x.m, part(x.tokens[i], 0, 3 + i));
}

TEST_CASE("C8 a batch that fails half way taints every cache in it", "[round]") {
  for (const Strategy by : {Strategy::planes, Strategy::stash}) {
    for (std::size_t n = 1;; ++n) {
      Three x(by);
      x.d.arm(n);
      const bool done = Batch::commit(x.all, std::vector<std::size_t>{1, 2, 3}, x.scratch).ok();
      REQUIRE(done == !x.d.fired());
      x.d.arm(0);
      for (Cache& c : x.caches) REQUIRE(c.tainted() == !done);
      if (done) break;
      for (std::size_t i = 0; i < 3; ++i) {
        REQUIRE(x.caches[i].reset().ok());
        REQUIRE(x.m.feed(x.caches[i], part(x.tokens[i], 0, 7)).ok());
        require_straight(x.caches[i], x.m, part(x.tokens[i], 0, 7));
      }
    }
  }
}

}  // namespace
