// C9: parked logits belong to one position of one branch.
#include <cstddef>
#include <cstring>
#include <limits>
#include <memra/cache.hpp>
#include <memra/host_dev.hpp>
#include <support/catch.hpp>
#include <support/placements.hpp>
#include <support/stand_in.hpp>
#include <utility>
#include <vector>

namespace parked_logits_cpp {
namespace {

using memra::ErrorKind;
using memra_test::attention_model;
using memra_test::Devices;
using memra_test::feed;
using memra_test::hybrid_model;
using memra_test::part;
using memra_test::placements;
using memra_test::stream;
using memra_test::TestDev;
using memra_test::Tokens;
using Cache = memra::Cache<TestDev>;
using Snapshot = memra::CacheSnapshot<TestDev>;

TEST_CASE("C9 parked logits are there at their position and absent at any other", "[parked]") {
  const Tokens t = stream(30);
  for (const auto& cfg : {hybrid_model(), attention_model()}) {
    Devices d;
    Cache c = memra::check(d.create(placements(cfg.layers.size())[2], cfg, 40));
    const std::vector<float> a(cfg.n_vocab, 1.5F);
    const std::vector<float> b(cfg.n_vocab, 2.5F);
    const auto holds = [&](const std::vector<float>& row) {
      const auto p = c.last_logits_dev();
      return p && p->pos == c.pos() && p->n == cfg.n_vocab &&
             std::memcmp(p->data, row.data(), row.size() * sizeof(float)) == 0;
    };
    REQUIRE(!c.last_logits_dev());
    REQUIRE(c.park_logits(nullptr).kind() == ErrorKind::bad_argument);
    REQUIRE(feed(c, part(t, 0, 8)).ok());
    const Snapshot s = memra::check(c.snapshot());
    REQUIRE(c.park_logits(a.data()).ok());
    REQUIRE(holds(a));
    const float* const at = c.last_logits_dev()->data;

    REQUIRE(feed(c, part(t, 8, 5)).ok());
    REQUIRE(!c.last_logits_dev());
    REQUIRE(c.rollback(s, 0).ok());
    REQUIRE(holds(a));  // the same position of the same branch

    REQUIRE(feed(c, part(t, 8, 5)).ok());
    REQUIRE(c.park_logits(b.data()).ok());
    REQUIRE(holds(b));
    REQUIRE(c.last_logits_dev()->data == at);  // overwritten in place

    // Accepted whole: absent while the replay is owed, back when it ends there.
    REQUIRE(c.rollback(s, 5).ok());
    if (c.replay_owed() != 0) {
      REQUIRE(!c.last_logits_dev());
      REQUIRE(feed(c, part(t, 8, 4)).ok());
      REQUIRE(!c.last_logits_dev());
      REQUIRE(feed(c, part(t, 12, 1)).ok());
    }
    REQUIRE(holds(b));

    // The same position on another branch.
    REQUIRE(c.rollback(s, 4).ok());
    REQUIRE(feed(c, memra_test::join(part(t, c.pos(), 12 - c.pos()), stream(1, 9))).ok());
    REQUIRE(c.pos() == 13);
    REQUIRE(!c.last_logits_dev());

    REQUIRE(c.park_logits(a.data()).ok());
    {
      REQUIRE(c.begin_step(1).ok());
      REQUIRE(c.park_logits(b.data()).kind() == ErrorKind::bad_state);
      REQUIRE(holds(a));
    }
    REQUIRE(c.reset().ok());
    REQUIRE(!c.last_logits_dev());
    REQUIRE(feed(c, part(t, 0, 13)).ok());
    REQUIRE(!c.last_logits_dev());
  }
}

TEST_CASE("C9 parking that fails leaves no logits, and a refusal leaves the old ones", "[parked]") {
  const auto cfg = hybrid_model();
  Devices d;
  Cache c = memra::check(d.create(placements(cfg.layers.size())[0], cfg, 40));
  const std::vector<float> a(cfg.n_vocab, 1.5F);
  REQUIRE(feed(c, stream(3)).ok());
  d.arm(1);  // the allocation
  REQUIRE(c.park_logits(a.data()).kind() == ErrorKind::out_of_memory);
  d.arm(0);
  REQUIRE((!c.last_logits_dev() && !c.tainted()));
  REQUIRE(c.park_logits(a.data()).ok());
  const auto parked = *c.last_logits_dev();
  REQUIRE(c.park_logits(parked.data).kind() == ErrorKind::bad_argument);
  REQUIRE(c.park_logits(parked.data + 1).kind() == ErrorKind::bad_argument);
  REQUIRE(c.last_logits_dev());
  d.arm(1);  // the copy: half of it lands
  REQUIRE(c.park_logits(a.data()).kind() == ErrorKind::device_failure);
  d.arm(0);
  REQUIRE(!c.last_logits_dev());
  REQUIRE(c.park_logits(a.data()).ok());
  REQUIRE(c.last_logits_dev());
}

TEST_CASE("a model without a vocabulary parks nothing, one with an absurd one is refused", "[parked]") {
  auto cfg = hybrid_model();
  cfg.n_vocab = 0;
  memra::HostDev dev;
  auto c = memra::check(memra::Cache<memra::HostDev>::create(dev, cfg, 4));
  const float x = 1;
  REQUIRE(c.park_logits(&x).kind() == ErrorKind::bad_argument);
  cfg.n_vocab = std::numeric_limits<std::size_t>::max() / 4 + 2;
  REQUIRE(memra::Cache<memra::HostDev>::create(dev, cfg, 4).status().kind() == ErrorKind::bad_argument);
}

}  // namespace
}  // namespace parked_logits_cpp
