// Batches of rounds: what each cache gets alone, or nothing.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memra/cache.hpp>
#include <memra/round_batch.hpp>
#include <support/catch.hpp>
#include <support/op_model.hpp>
#include <support/placements.hpp>
#include <support/rounds.hpp>
#include <support/says.hpp>
#include <support/stand_in.hpp>
#include <utility>
#include <vector>

namespace round_batch_cpp {
namespace {

using memra::ErrorKind;
using memra_test::Devices;
using memra_test::OpModel;
using memra_test::part;
using memra_test::round_hybrid;
using memra_test::says;
using memra_test::stream;
using memra_test::TestDev;
using memra_test::Tokens;
using namespace memra_test::rounds;  // NOLINT(google-build-using-namespace): helpers written for these tests
using Batch = memra::RoundBatch<TestDev>;

/// Three sequences of different lengths on the same two devices, and their rounds.
struct Three {
  OpModel m{round_hybrid()};
  Devices d;
  std::vector<Cache> caches;
  std::vector<Tokens> tokens;
  std::vector<Round> rounds;
  std::vector<Round*> all;
  std::vector<Batch> batch;  // one, made after the caches

  explicit Three(Strategy by) {
    for (std::size_t i = 0; i < 3; ++i) {
      tokens.push_back(stream(30, 5 + static_cast<std::uint32_t>(i)));
      caches.push_back(make(d, m, 8, 2));
      memra::check(m.feed(caches[i], part(tokens[i], 0, 3 + i)));
    }
    batch.push_back(memra::check(Batch::create(pointers())));
    begin(by);
  }
  std::vector<Cache*> pointers() { return {&caches[0], &caches[1], &caches[2]}; }
  void begin(Strategy by) {
    rounds.clear();
    for (std::size_t i = 0; i < 3; ++i) {
      rounds.push_back(verify(caches[i], m, part(tokens[i], caches[i].pos(), 4 + i), by));
    }
    all = {&rounds[0], &rounds[1], &rounds[2]};
  }
  memra::Status commit(const std::vector<Round*>& r, const std::vector<std::size_t>& accept) {
    return batch[0].commit(r, accept);
  }
};

TEST_CASE("R8 a batch commits to every cache what it would get alone", "[round]") {
  for (const Strategy by : {Strategy::planes, Strategy::stash}) {
    Three x(by);
    const std::vector<std::size_t> accept = {0, 5, 2};
    x.d.reset();
    REQUIRE(x.commit(x.all, accept).ok());
    for (std::size_t i = 0; i < 3; ++i) {
      REQUIRE_FALSE(x.rounds[i].open());
      require_straight(x.caches[i], x.m, part(x.tokens[i], 0, 3 + i + accept[i]));
    }
    x.begin(by);
    const std::vector<std::int32_t> accept_d = {3, 0, 6};
    const std::vector<const std::int32_t*> at = {accept_d.data(), accept_d.data()};
    x.d.reset();
    REQUIRE(x.batch[0].commit_d(x.all, at).ok());
    REQUIRE(x.d.host_copies() == 0);  // numbers only: the table is there
    REQUIRE(x.d.allocations() == 0);
    for (std::size_t i = 0; i < 3; ++i) {
      REQUIRE(x.caches[i].catch_up().ok());
      require_straight(x.caches[i], x.m,
                       part(x.tokens[i], 0, 3 + i + accept[i] + static_cast<std::size_t>(accept_d[i])));
    }
  }
}

TEST_CASE("R8 a cache that takes no part stays as it is; moved ones go on", "[round]") {
  for (const Strategy by : {Strategy::planes, Strategy::stash}) {
    Three x(by);
    const std::vector<Round*> some = {x.all[0], nullptr, x.all[2]};
    REQUIRE(x.commit(some, {2, 99, 4}).ok());
    REQUIRE(x.rounds[1].open());
    REQUIRE_FALSE(x.caches[1].tainted());
    REQUIRE(memra::check(x.rounds[1].commit(3)).pos == 7);
    std::vector<Cache> moved(std::make_move_iterator(x.caches.begin()), std::make_move_iterator(x.caches.end()));
    x.caches = std::move(moved);
    require_straight(x.caches[0], x.m, part(x.tokens[0], 0, 5));
    require_straight(x.caches[1], x.m, part(x.tokens[1], 0, 7));
    require_straight(x.caches[2], x.m, part(x.tokens[2], 0, 9));
    x.begin(by);
    REQUIRE(x.commit(x.all, {1, 1, 1}).ok());
    // An accept length on the device that its round does not have: that cache says so, the others do not.
    x.begin(by);
    const std::vector<std::int32_t> accept_d = {1, 6, -1};
    const std::vector<const std::int32_t*> at = {accept_d.data(), accept_d.data()};
    REQUIRE(x.batch[0].commit_d(x.all, at).ok());
    REQUIRE(x.caches[0].catch_up().ok());
    REQUIRE(x.caches[1].catch_up().kind() == ErrorKind::bad_state);
    REQUIRE(x.caches[1].pos() == 8 + 5);  // clamped to its own five rows
    REQUIRE(x.caches[2].catch_up().kind() == ErrorKind::bad_state);
    require_straight(x.caches[0], x.m, part(x.tokens[0], 0, 7));
  }
}

TEST_CASE("rounds at device positions, committed by a batch", "[round]") {
  for (const Strategy by : {Strategy::planes, Strategy::stash}) {
    Three x(by);
    for (Round& r : x.rounds) REQUIRE(r.abandon().ok());
    std::vector<Round> rounds;
    std::vector<float> out;
    for (std::size_t i = 0; i < 3; ++i) {
      rounds.push_back(memra::check(x.caches[i].begin_device_round(4, by)));
      REQUIRE(x.m.forward(x.caches[i], rounds[i].step(), part(x.tokens[i], 3 + i, 4), out).ok());
    }
    const std::vector<std::int32_t> accept_d = {4, 0, 2};
    const std::vector<const std::int32_t*> at = {accept_d.data(), accept_d.data()};
    REQUIRE(x.batch[0].commit_d(std::vector<Round*>{&rounds[0], &rounds[1], &rounds[2]}, at).ok());
    for (std::size_t i = 0; i < 3; ++i) {
      REQUIRE(x.caches[i].catch_up().ok());
      require_straight(x.caches[i], x.m, part(x.tokens[i], 0, 3 + i + static_cast<std::size_t>(accept_d[i])));
    }
  }
}

TEST_CASE("R8 what cannot be a batch", "[round]") {
  Three x(Strategy::stash);
  const auto refused = [](const memra::Result<Batch>& r) { return r.status().kind() == ErrorKind::bad_argument; };
  REQUIRE(refused(Batch::create({})));
  REQUIRE(refused(Batch::create(std::vector<Cache*>{&x.caches[0], nullptr})));
  REQUIRE(refused(Batch::create(std::vector<Cache*>{&x.caches[0], &x.caches[1], &x.caches[0]})));
  Cache other = make(x.d, x.m, 8, 0);
  REQUIRE(refused(Batch::create(std::vector<Cache*>{&x.caches[0], &other})));  // one stage, not two
  Devices elsewhere;
  Cache far = make(elsewhere, x.m, 8, 2);
  REQUIRE(refused(Batch::create(std::vector<Cache*>{&x.caches[0], &far})));
  Cache plain = memra::check(x.d.create(memra_test::placements(x.m.config().layers.size())[2], x.m.config(), ctx));
  REQUIRE(refused(Batch::create(std::vector<Cache*>{&x.caches[0], &plain})));
  Cache gone = std::move(other);
  REQUIRE(refused(Batch::create(std::vector<Cache*>{&other})));  // NOLINT(bugprone-use-after-move): the point
  for (std::size_t n = 1; n <= 4; ++n) {                         // an allocation and an upload per stage
    x.d.arm(n);
    REQUIRE_FALSE(Batch::create(x.pointers()).ok());
    x.d.arm(0);
  }
  REQUIRE(Batch::create(x.pointers()).ok());
}

TEST_CASE("R8 a batch with one wrong member changes nothing", "[round]") {
  Three x(Strategy::stash);
  const std::vector<std::size_t> accept = {1, 2, 3};
  const auto refused = [&](const memra::Status& s) { return s.kind() == ErrorKind::bad_argument; };
  REQUIRE(refused(x.commit(x.all, {1, 2})));
  REQUIRE(refused(x.commit(x.all, {1, 2, 7})));
  REQUIRE(refused(x.commit({}, {})));
  REQUIRE(refused(x.commit({nullptr, nullptr, nullptr}, accept)));
  REQUIRE(refused(x.commit({x.all[0], x.all[1]}, {1, 2})));
  REQUIRE(refused(x.commit({x.all[0], x.all[1], x.all[0]}, accept)));
  REQUIRE(refused(x.commit({x.all[1], x.all[0], x.all[2]}, accept)));
  const std::int32_t one[3] = {1, 1, 1};
  REQUIRE(refused(x.batch[0].commit_d(x.all, std::vector<const std::int32_t*>{one})));
  REQUIRE(refused(x.batch[0].commit_d(x.all, std::vector<const std::int32_t*>{one, nullptr})));
  REQUIRE(x.rounds[1].abandon().ok());
  REQUIRE(x.commit(x.all, accept).kind() == ErrorKind::bad_state);
  x.rounds[1] = verify(x.caches[1], x.m, part(x.tokens[1], 4, 2), Strategy::planes);
  REQUIRE(refused(x.commit(x.all, accept)));
  for (Round& r : x.rounds) REQUIRE(r.open());
  x.rounds.clear();
  for (std::size_t i = 0; i < 3; ++i) require_straight(x.caches[i], x.m, part(x.tokens[i], 0, 3 + i));
}

TEST_CASE("R5 R8 a batch commits no round at a device position whose rows do not all fit", "[round]") {
  Three x(Strategy::planes);
  x.rounds.clear();
  const Tokens more = stream(ctx, 9);
  REQUIRE(x.m.feed(x.caches[1], part(more, 4, ctx - 6)).ok());
  for (std::size_t i = 0; i < 3; ++i) {
    x.rounds.push_back(memra::check(x.caches[i].begin_device_round(4, Strategy::planes)));
    std::vector<float> out;
    REQUIRE(x.m.forward(x.caches[i], x.rounds[i].step(), part(x.tokens[i], 3 + i, 4), out).ok());
  }
  x.all = {&x.rounds[0], &x.rounds[1], &x.rounds[2]};
  REQUIRE(says(x.commit(x.all, {2, 1, 3}), ErrorKind::bad_state, "4 rows at position 62; 2 fit below max_ctx 64"));
  for (Round& r : x.rounds) REQUIRE(r.open());
  x.all[1] = nullptr;
  REQUIRE(x.commit(x.all, {2, 0, 3}).ok());
  REQUIRE(x.rounds[1].abandon().ok());
  REQUIRE((x.caches[0].pos() == 5 && x.caches[1].pos() == ctx - 2 && x.caches[2].pos() == 8));
}

TEST_CASE("C8 R8 a batch that fails half way taints every cache in it", "[round]") {
  for (const Strategy by : {Strategy::planes, Strategy::stash}) {
    for (std::size_t n = 1;; ++n) {
      Three x(by);
      x.d.arm(n);
      const bool done = x.commit(x.all, {1, 2, 3}).ok();
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
}  // namespace round_batch_cpp
