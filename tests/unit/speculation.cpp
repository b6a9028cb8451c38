// Speculation: both caches move together or not at all, whatever is accepted, refused or fails.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <memra/cache.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/host_dev.hpp>
#include <memra/speculation.hpp>
#include <memra/taps.hpp>
#include <optional>
#include <string_view>
#include <support/catch.hpp>
#include <support/op_model.hpp>
#include <support/placements.hpp>
#include <support/rounds.hpp>
#include <support/says.hpp>
#include <support/stand_in.hpp>
#include <utility>
#include <vector>

namespace speculation_cpp {
namespace {

using memra::ErrorKind;
using memra_test::Devices;
using memra_test::join;
using memra_test::OpModel;
using memra_test::part;
using memra_test::round_hybrid;
using memra_test::says;
using memra_test::stream;
using memra_test::TestDev;
using memra_test::Tokens;
using namespace memra_test::rounds;  // NOLINT(google-build-using-namespace): helpers written for these tests
using DraftKv = memra::DflashKv<TestDev>;
using Speculation = memra::Speculation<TestDev>;

/// A drafter whose K and V rows are the taps themselves: what the trunk's last layer gave for the token.
struct Sequence {
  OpModel m;
  Devices d;
  Cache trunk = make(d, m, 8, 2);
  DraftKv draft;
  Speculation spec = memra::check(Speculation::create(trunk, draft, {5}, OpModel::width, 16));

  explicit Sequence(bool ring = false, const memra::ModelConfig& model = round_hybrid())
      : m(model), draft(memra::check(DraftKv::create(d.dev[1], config(ring), ctx))) {}

  static memra::DflashCfg config(bool ring) {
    memra::DflashCfg c;
    c.n_layer = 1;
    c.n_kv = 1;
    c.head_dim = OpModel::width;
    c.block_size = 8;
    c.sliding_window = ring ? 6 : 16;  // a ring of 2 * 14 + 8 = 36 rows
    c.ring = ring;
    return c;
  }

  memra::Status write_rows(std::size_t n) {
    auto open = spec.open_rows(n);
    if (!open) return open.status();
    return memra::ops_for<TestDev>(draft.device()).draft_write(open->rows.view(0), open->taps, open->taps);
  }
  memra::Status feed(const Tokens& t) {
    auto step = spec.begin_step(t.size());
    if (!step) return step.status();
    std::vector<float> out;
    if (auto s = m.forward(trunk, *step, t, out); !s) return s;
    if (auto s = write_rows(t.size()); !s) return s;
    return spec.advance();
  }
  memra::Status round(const Tokens& block, std::size_t keep, Strategy by) {
    auto step = spec.begin_round(block.size(), by);
    if (!step) return step.status();
    std::vector<float> out;
    if (auto s = m.forward(trunk, *step, block, out); !s) return s;
    if (keep != 0) {
      if (auto s = write_rows(keep); !s) return s;
    }
    auto left = spec.commit(keep, static_cast<std::int32_t>(keep));
    if (!left) return left.status();
    return left->replay == 0 ? memra::Status() : m.feed(trunk, part(block, 0, left->replay));
  }

  void require(const Tokens& t) {
    REQUIRE(spec.level());
    REQUIRE(spec.pos() == t.size());
    REQUIRE(trunk.dflash_taps() == nullptr);
    require_straight(trunk, m, t);
    auto want = straight(m, t).out;
    want.erase(want.begin(), want.begin() + static_cast<std::ptrdiff_t>(draft.base() * OpModel::width));
    for (const float* rows : {draft.k(0), draft.v(0)}) {
      REQUIRE(memra_test::same_bits(std::vector<float>(rows, rows + want.size()), want));
    }
  }
};

TEST_CASE("trunk and draft stand at one position after every step and round", "[speculation]") {
  const Tokens t = stream(60);
  for (const Strategy by : strategies) {
    Sequence s;
    REQUIRE(s.feed(part(t, 0, 7)).ok());
    s.require(part(t, 0, 7));
    std::size_t at = 7;
    for (const std::size_t keep : {3U, 0U, 8U, 1U, 5U}) {
      REQUIRE(s.round(join(part(t, at, keep), stream(8 - keep, 9)), keep, by).ok());
      REQUIRE(s.spec.pending() == static_cast<std::int32_t>(keep));
      at += keep;
      s.require(part(t, 0, at));
    }
    REQUIRE(s.feed(part(t, at, 1)).ok());
    s.require(part(t, 0, at + 1));
  }
}

TEST_CASE("refusals move neither cache", "[speculation]") {
  const Tokens t = stream(60);
  for (const Strategy by : strategies) {
    Sequence s;
    REQUIRE(s.feed(part(t, 0, 6)).ok());
    REQUIRE(s.spec.commit(1, 0).status().kind() == ErrorKind::bad_state);
    REQUIRE(s.spec.advance().kind() == ErrorKind::bad_state);
    REQUIRE(s.spec.open_rows(1).status().kind() == ErrorKind::bad_state);
    REQUIRE(s.spec.begin_round(9, by).status().kind() == ErrorKind::bad_argument);
    s.require(part(t, 0, 6));
    {
      auto step = memra::check(s.spec.begin_round(5, by));
      REQUIRE(s.spec.strategy() == by);
      REQUIRE(s.spec.commit(0, 0).status().kind() == ErrorKind::bad_state);  // nothing verified
      std::vector<float> out;
      REQUIRE(s.m.forward(s.trunk, step, stream(5, 3), out).ok());
      REQUIRE(s.spec.commit(2, 0).status().kind() == ErrorKind::bad_state);  // no rows opened
      REQUIRE(s.write_rows(3).ok());
      REQUIRE(s.spec.commit(2, 0).status().kind() == ErrorKind::bad_state);  // other rows
      REQUIRE(s.write_rows(2).ok());
      REQUIRE(s.trunk.pos() == 6);
      REQUIRE(s.draft.len() == 6);
      REQUIRE(s.spec.abandon().ok());
    }
    s.require(part(t, 0, 6));
    // One round at a time; the open one loses nothing.
    REQUIRE(s.spec.begin_round(5, by).ok());
    REQUIRE(s.spec.begin_round(5, by).status().kind() == ErrorKind::bad_state);
    REQUIRE(s.spec.begin_step(1).status().kind() == ErrorKind::bad_state);
    REQUIRE(s.trunk.dflash_taps() != nullptr);
    REQUIRE(s.spec.abandon().ok());
    REQUIRE(s.round(part(t, 6, 4), 2, by).ok());
    s.require(part(t, 0, 8));
    // Moved apart from outside, they are not taken.
    REQUIRE(s.m.feed(s.trunk, part(t, 8, 1)).ok());
    REQUIRE_FALSE(s.spec.level());
    REQUIRE(s.spec.begin_step(1).status().kind() == ErrorKind::bad_state);
    REQUIRE(s.spec.repair().kind() == ErrorKind::bad_state);
    REQUIRE(Speculation::create(s.trunk, s.draft, {5}, OpModel::width, 16).status().kind() == ErrorKind::bad_state);
  }
}

TEST_CASE("a begin over an open step is refused and takes nothing from it", "[speculation]") {
  const Tokens t = stream(60);
  Sequence s;
  REQUIRE(s.feed(part(t, 0, 6)).ok());
  std::vector<float> out;
  auto step = memra::check(s.spec.begin_step(3));
  REQUIRE(s.m.forward(s.trunk, step, part(t, 6, 3), out).ok());
  REQUIRE(s.write_rows(3).ok());
  const auto refused = [&](const char* words) {
    const memra::Status as_step = s.spec.begin_step(2).status();
    const memra::Status as_round = s.spec.begin_round(2).status();
    REQUIRE(std::string_view(as_step.operation()) == "begin_step");
    REQUIRE(std::string_view(as_round.operation()) == "begin_round");
    return says(as_step, ErrorKind::bad_state, words) && says(as_round, ErrorKind::bad_state, words);
  };
  REQUIRE(refused("a step is open"));
  REQUIRE(s.trunk.dflash_taps() != nullptr);
  REQUIRE(s.spec.advance().ok());
  s.require(part(t, 0, 9));
  // Nor may one begin over a step that it cannot follow.
  const auto snap = memra::check(s.trunk.snapshot());
  REQUIRE(s.trunk.begin_step(2).ok());
  REQUIRE(refused("without this speculation's taps; roll back"));
  REQUIRE(s.trunk.dflash_taps() == nullptr);
  REQUIRE(s.spec.rollback(snap, 0, 0).ok());
  REQUIRE(s.feed(part(t, 9, 3)).ok());
  s.require(part(t, 0, 12));
}

TEST_CASE("without recurrent layers a begin over an open step writes the same rows again", "[speculation]") {
  const Tokens t = stream(60);
  Sequence s(false, memra_test::round_attention());
  REQUIRE(s.feed(part(t, 0, 6)).ok());
  const auto die = [&](const Tokens& tokens, std::size_t written) {
    std::vector<float> out;
    auto step = memra::check(s.spec.begin_step(tokens.size()));
    REQUIRE(s.m.forward(s.trunk, step, tokens, out).ok());
    if (written != 0) REQUIRE(s.write_rows(written).ok());
  };
  die(stream(4, 9), 4);
  REQUIRE(s.feed(part(t, 6, 3)).ok());
  s.require(part(t, 0, 9));
  die(part(t, 9, 4), 2);
  REQUIRE(says(s.spec.begin_step(17).status(), ErrorKind::bad_state, "17 rows at 9 do not fit"));
  REQUIRE(says(s.spec.begin_step(0).status(), ErrorKind::bad_argument, "0 rows"));
  REQUIRE(says(s.spec.begin_round(4).status(), ErrorKind::bad_state, "a step is open"));
  REQUIRE(s.write_rows(4).ok());  // it lost nothing
  REQUIRE(s.spec.advance().ok());
  s.require(part(t, 0, 13));
  die(stream(4, 9), 2);
  die(part(t, 13, 2), 0);
  REQUIRE(s.spec.advance().kind() == ErrorKind::bad_state);  // the draft's rows were the former step's
  REQUIRE(s.feed(part(t, 13, 2)).ok());
  s.require(part(t, 0, 15));
  for (const Strategy by : strategies) {
    const std::size_t at = s.spec.pos();
    REQUIRE(s.round(part(t, at, 5), 3, by).ok());
    s.require(part(t, 0, at + 3));
  }
}

TEST_CASE("abandon gives up a round, not a step", "[speculation]") {
  const Tokens t = stream(60);
  Sequence s;
  REQUIRE(s.spec.abandon().ok());  // nothing is open
  std::vector<float> out;
  auto step = memra::check(s.spec.begin_step(3));
  REQUIRE(s.m.forward(s.trunk, step, part(t, 0, 3), out).ok());
  REQUIRE(s.spec.abandon().ok());
  REQUIRE(step.tap(5).has_value());
  REQUIRE(s.write_rows(3).ok());
  REQUIRE(s.spec.abandon().ok());
  REQUIRE(s.spec.advance().ok());
  s.require(part(t, 0, 3));
  const auto snap = memra::check(s.trunk.snapshot());
  REQUIRE(s.spec.begin_round(2, Strategy::replay).ok());
  REQUIRE(s.trunk.rollback(snap, 0).ok());  // from outside: the round is over
  REQUIRE(s.spec.abandon().ok());
  REQUIRE(s.trunk.dflash_taps() == nullptr);
  REQUIRE(s.feed(part(t, 3, 2)).ok());
  s.require(part(t, 0, 5));
}

TEST_CASE("what is open in the trunk, but not by this speculation's last begin, is not counted", "[speculation]") {
  const Tokens t = stream(60);
  std::vector<float> out;
  {
    Sequence s;
    REQUIRE(s.feed(part(t, 0, 6)).ok());
    const auto snap = memra::check(s.trunk.snapshot());
    REQUIRE(s.spec.begin_step(3).ok());
    REQUIRE(s.write_rows(3).ok());
    REQUIRE(s.trunk.rollback(snap, 0).ok());
    auto other = memra::check(s.trunk.begin_step(2));
    REQUIRE(s.m.forward(s.trunk, other, part(t, 6, 2), out).ok());
    REQUIRE(says(s.spec.advance(), ErrorKind::bad_state, "no step of this speculation is open"));
    REQUIRE(s.spec.open_rows(2).status().kind() == ErrorKind::bad_state);
    REQUIRE((s.trunk.pos() == 6 && s.draft.len() == 6));
  }
  {
    Sequence s;
    REQUIRE(s.feed(part(t, 0, 6)).ok());
    auto step = memra::check(s.spec.begin_round(3, Strategy::stash));
    REQUIRE(s.m.forward(s.trunk, step, part(t, 6, 3), out).ok());
    REQUIRE(s.write_rows(3).ok());
    Cache moved = std::move(s.trunk);
    s.trunk = make(s.d, s.m, 8, 2);
    REQUIRE(s.m.feed(s.trunk, part(t, 0, 6)).ok());
    REQUIRE(s.spec.commit(3, 1).status().kind() == ErrorKind::bad_state);
    REQUIRE((moved.pos() == 6 && s.trunk.pos() == 6 && s.draft.len() == 6));
  }
}

TEST_CASE("a block that a device failure stopped where the draft's ring moves is repaired", "[speculation]") {
  const Tokens t = stream(60);
  Sequence s(true);
  for (std::size_t at = 0; at < 35; at += 7) REQUIRE(s.feed(part(t, at, 7)).ok());
  s.d.arm(1);
  REQUIRE(s.draft.begin_block(8).status().kind() == ErrorKind::device_failure);
  s.d.arm(0);
  REQUIRE(says(s.spec.begin_round(4).status(), ErrorKind::bad_state, "repair"));
  REQUIRE(s.spec.repair().ok());
  REQUIRE(s.round(part(t, 35, 5), 3, Strategy::planes).ok());
  s.require(part(t, 0, 38));
}

TEST_CASE("a speculation is made where the device says that the trunk is", "[speculation]") {
  const Tokens t = stream(60);
  Sequence s;
  REQUIRE(s.feed(part(t, 0, 6)).ok());
  auto r = verify(s.trunk, s.m, part(t, 6, 4), Strategy::planes);
  const std::int32_t two = 2;
  REQUIRE(r.commit_d(std::vector<const std::int32_t*>(s.trunk.n_stages(), &two)).ok());
  REQUIRE(s.trunk.pos() == 6);  // stale
  const auto made = [&](std::vector<std::size_t> taps) {
    return Speculation::create(s.trunk, s.draft, std::move(taps), OpModel::width, 16).status();
  };
  REQUIRE(says(made({5}), ErrorKind::bad_state, "trunk at 8 of 8 rows, draft at 6"));
  REQUIRE(says(made({5, 6}), ErrorKind::bad_argument, "the sink taps layer 6 of 6"));
}

/// Gives the block of a size that was freed last: as an engine's allocator may.
struct LastFreed {
  std::vector<std::pair<std::size_t, void*>> freed;

  ~LastFreed() {
    for (const auto& [bytes, p] : freed) std::free(p);
  }
  void* allocate(memra::HostStream, std::size_t n, std::size_t alignment) noexcept {
    for (auto i = freed.rbegin(); i != freed.rend(); ++i) {
      if (i->first != n) continue;
      void* const p = i->second;
      freed.erase(std::next(i).base());
      return p;
    }
    return std::aligned_alloc(alignment, (n + alignment - 1) / alignment * alignment);
  }
  void deallocate(memra::HostStream, void* p, std::size_t n, std::size_t) noexcept { freed.emplace_back(n, p); }
};

TEST_CASE("a sink that has the memory of this speculation's is not its own sink only for that", "[speculation]") {
  using memra::HostDev;
  LastFreed allocator;
  HostDev dev = HostDev::adopt(allocator);
  const OpModel m(round_hybrid());
  auto trunk = memra::check(memra::Cache<HostDev>::create(dev, m.config(), ctx));
  auto draft = memra::check(memra::DflashKv<HostDev>::create(dev, Sequence::config(false), ctx));
  using HostSpeculation = memra::Speculation<HostDev>;
  auto spec = std::make_optional(memra::check(HostSpeculation::create(trunk, draft, {5}, OpModel::width, 16)));
  REQUIRE(spec->begin_step(2).ok());
  const float* const memory = trunk.dflash_taps()->data();
  trunk.take_taps();  // and freed
  REQUIRE(trunk.reset().ok());
  using HostSink = memra::DflashTapSink<HostDev>;
  REQUIRE(trunk.arm_taps(memra::check(HostSink::create(dev, {2}, OpModel::width, 16))).ok());
  REQUIRE(trunk.dflash_taps()->data() == memory);
  REQUIRE(says(spec->begin_step(3).status(), ErrorKind::bad_state, "not this speculation's; take it first"));
  spec.reset();
  REQUIRE(trunk.dflash_taps() != nullptr);
}

TEST_CASE("rollback takes both back, and refuses what the draft does not hold", "[speculation]") {
  const Tokens t = stream(60);
  Sequence s;
  REQUIRE(s.feed(part(t, 0, 6)).ok());
  const auto snap = memra::check(s.trunk.snapshot());
  REQUIRE(s.round(part(t, 6, 8), 6, Strategy::planes).ok());
  const auto left = memra::check(s.spec.rollback(snap, 4, 77));
  REQUIRE(left.replay == 4);
  REQUIRE(s.spec.begin_step(1).status().kind() == ErrorKind::bad_state);
  REQUIRE(s.m.feed(s.trunk, part(t, 6, 4)).ok());
  s.require(part(t, 0, 10));
  REQUIRE(s.spec.pending() == 77);
  REQUIRE(s.spec.rollback(snap, 5, 0).status().kind() == ErrorKind::bad_argument);
  REQUIRE(s.draft.truncate(8).ok());
  REQUIRE(s.spec.rollback(snap, 4, 0).status().kind() == ErrorKind::bad_argument);
  REQUIRE(memra::check(s.spec.rollback(snap, 0, 0)).pos == 6);
  s.require(part(t, 0, 6));
}

TEST_CASE("C8 the n-th device call of a round fails: together, repaired, or taken back together", "[speculation]") {
  const Tokens t = stream(60);
  std::size_t taints = 0;
  std::size_t repairs = 0;
  for (const Strategy by : strategies) {
    for (std::size_t n = 1;; ++n) {
      CAPTURE(to_string(by), n);
      Sequence s;
      REQUIRE(s.feed(part(t, 0, 6)).ok());
      const auto snap = memra::check(s.trunk.snapshot());
      s.d.arm(n);
      const bool done = s.round(part(t, 6, 5), 3, by).ok();
      const bool fired = s.d.fired();
      s.d.arm(0);
      REQUIRE(done == !fired);
      if (done) {
        s.require(part(t, 0, 9));
        break;
      }
      if (s.trunk.tainted()) {
        ++taints;
        REQUIRE(s.draft.len() == s.trunk.len());  // 9 if the replay's own forward died
      } else if (s.draft.tainted()) {
        ++repairs;
        REQUIRE_FALSE(s.spec.level());
        REQUIRE(s.spec.begin_step(1).status().kind() == ErrorKind::bad_state);
        REQUIRE(s.spec.repair().ok());
        if (s.trunk.replay_owed() != 0) REQUIRE(s.m.feed(s.trunk, part(t, 6, s.trunk.replay_owed())).ok());
        s.require(part(t, 0, 9));
      } else if (s.trunk.len() == 6) {
        REQUIRE(s.spec.abandon().ok());
        s.require(part(t, 0, 6));
      }
      REQUIRE(s.spec.rollback(snap, 0, 0).ok());
      s.require(part(t, 0, 6));
      REQUIRE(s.round(part(t, 6, 5), 4, by).ok());
      s.require(part(t, 0, 10));
    }
  }
  REQUIRE(taints >= 6);
  REQUIRE(repairs == 3);
}

TEST_CASE("D8 a trunk and a draft in a ring stand at one position, and what the ring lost is refused before they move",
          "[speculation]") {
  const Tokens t = stream(120);
  Sequence s(true);
  REQUIRE(s.draft.plan().phys_rows == 36);
  REQUIRE(says(s.spec.begin_step(15).status(), ErrorKind::bad_argument, "at most 14"));
  REQUIRE(s.trunk.dflash_taps() == nullptr);
  const auto start = memra::check(s.trunk.snapshot());
  REQUIRE(s.feed(part(t, 0, 14)).ok());
  const auto early = memra::check(s.trunk.snapshot());
  REQUIRE(s.feed(part(t, 14, 14)).ok());
  std::size_t at = 28;
  for (std::size_t turn = 0; at < 48; ++turn) {
    const std::size_t keep = turn * 3 % 8;
    REQUIRE(s.round(join(part(t, at, keep), stream(8 - keep, 9)), keep, strategies[turn % 3]).ok());
    at += keep;
    s.require(part(t, 0, at));
  }
  REQUIRE(s.draft.base() > 9);  // where the window of 6 at row 14 begins
  REQUIRE(says(s.spec.rollback(early, 0, 0).status(), ErrorKind::bad_argument, "are resident from"));
  s.require(part(t, 0, at));
  const auto snap = memra::check(s.trunk.snapshot());
  REQUIRE(s.round(part(t, at, 8), 8, Strategy::replay).ok());
  REQUIRE(s.spec.rollback(snap, 0, 0).ok());
  s.require(part(t, 0, at));
  REQUIRE(s.spec.rollback(start, 0, 0).ok());
  s.require({});
  REQUIRE(s.feed(part(t, 0, 9)).ok());
  s.require(part(t, 0, 9));
}

TEST_CASE("C8 D8 the n-th device call of a round fails in which the draft's ring moves", "[speculation]") {
  const Tokens t = stream(60);
  std::size_t repairs = 0;
  for (const Strategy by : strategies) {
    for (std::size_t n = 1;; ++n) {
      CAPTURE(to_string(by), n);
      Sequence s(true);
      for (std::size_t at = 0; at < 35; at += 7) REQUIRE(s.feed(part(t, at, 7)).ok());
      const auto snap = memra::check(s.trunk.snapshot());
      REQUIRE(s.draft.base() == 0);
      s.d.arm(n);
      const bool done = s.round(part(t, 35, 5), 3, by).ok();
      const bool fired = s.d.fired();
      s.d.arm(0);
      REQUIRE(done == !fired);
      if (done) {
        REQUIRE(s.draft.base() == 21);
        s.require(part(t, 0, 38));
        break;
      }
      if (s.draft.tainted() && s.spec.level()) {  // half moved, in the open round
        ++repairs;
        REQUIRE(s.spec.begin_step(1).status().kind() == ErrorKind::bad_state);
        REQUIRE(s.spec.open_rows(3).status().kind() == ErrorKind::bad_state);
        REQUIRE(s.spec.repair().ok());
        REQUIRE(s.write_rows(3).ok());
        const auto left = memra::check(s.spec.commit(3, 0));
        if (left.replay != 0) REQUIRE(s.m.feed(s.trunk, part(t, 35, left.replay)).ok());
        s.require(part(t, 0, 38));
      }
      REQUIRE(s.spec.rollback(snap, 0, 0).ok());
      s.require(part(t, 0, 35));
      REQUIRE(s.round(part(t, 35, 5), 4, by).ok());
      s.require(part(t, 0, 39));
    }
  }
  REQUIRE(repairs == 3 * 3);  // K, V and the positions
}

/// The sink's memory on the draft's device.
std::size_t draft_memory(Sequence& s) {
  return s.d.dev[1].inner().counters().live;
}

TEST_CASE("a speculation that goes in the middle of a step or round leaves the trunk untapped", "[speculation]") {
  const Tokens t = stream(60);
  enum class Open { step, replay, planes, stash };
  for (const Open open : {Open::step, Open::replay, Open::planes, Open::stash}) {
    for (const bool fails : {false, true}) {
      CAPTURE(static_cast<int>(open), fails);
      Sequence s;
      REQUIRE(s.feed(part(t, 0, 6)).ok());
      const auto snap = memra::check(s.trunk.snapshot());
      const std::size_t memory = draft_memory(s);
      auto spec = std::make_optional(memra::check(Speculation::create(s.trunk, s.draft, {5}, OpModel::width, 5)));
      REQUIRE(draft_memory(s) == memory + 1);
      auto step = memra::check(open == Open::step ? spec->begin_step(5)
                                                  : spec->begin_round(5, strategies[static_cast<int>(open) - 1]));
      REQUIRE(s.trunk.dflash_taps() != nullptr);
      std::vector<float> out;
      REQUIRE(s.m.forward(s.trunk, step, part(t, 6, 5), out).ok());
      if (fails) {  // the trunk is tainted when it goes
        s.d.arm(1);
        REQUIRE_FALSE(s.trunk.rollback(snap, 0).ok());
        s.d.arm(0);
      }
      spec.reset();
      REQUIRE(s.trunk.dflash_taps() == nullptr);
      REQUIRE_FALSE(step.tap(5).has_value());
      REQUIRE(draft_memory(s) == memory);
      REQUIRE(s.trunk.rollback(snap, 0).ok());
      REQUIRE(s.m.feed(s.trunk, part(t, 6, 9)).ok());  // more than the sink had place for
      require_straight(s.trunk, s.m, part(t, 0, 15));
    }
  }
}

TEST_CASE("a speculation takes back its own sink only, wherever the trunk is by then", "[speculation]") {
  const Tokens t = stream(60);
  const auto sink = [](Sequence& s, std::size_t rows) {
    return memra::check(memra::DflashTapSink<TestDev>::create(s.d.dev[1], {5}, OpModel::width, rows));
  };
  {
    Sequence s;
    REQUIRE(s.feed(part(t, 0, 6)).ok());
    const auto snap = memra::check(s.trunk.snapshot());
    REQUIRE(s.spec.begin_step(2).ok());
    REQUIRE(s.trunk.rollback(snap, 0).ok());
    REQUIRE(s.trunk.arm_taps(sink(s, 9)).ok());  // in the place of the speculation's
    const float* const rows = s.trunk.dflash_taps()->data();
    REQUIRE(says(s.spec.begin_step(1).status(), ErrorKind::bad_state, "not this speculation's; take it first"));
    REQUIRE(says(s.spec.begin_round(1).status(), ErrorKind::bad_state, "not this speculation's; take it first"));
    { const auto gone = std::move(s.spec); }
    REQUIRE(s.trunk.dflash_taps()->data() == rows);
    REQUIRE(s.trunk.take_taps()->cap_rows() == 9);
    s.spec = memra::check(Speculation::create(s.trunk, s.draft, {5}, OpModel::width, 16));
    REQUIRE(s.feed(part(t, 6, 3)).ok());
    s.require(part(t, 0, 9));
  }
  {
    Sequence s;  // two of them over one trunk: the second waits for the first
    REQUIRE(s.feed(part(t, 0, 6)).ok());
    const auto snap = memra::check(s.trunk.snapshot());
    auto first = std::make_optional(std::move(s.spec));
    s.spec = memra::check(Speculation::create(s.trunk, s.draft, {5}, OpModel::width, 16));
    REQUIRE(first->begin_step(2).ok());
    REQUIRE(s.spec.begin_step(1).status().kind() == ErrorKind::bad_state);
    first.reset();
    REQUIRE(s.trunk.rollback(snap, 0).ok());
    REQUIRE(s.feed(part(t, 6, 3)).ok());
    s.require(part(t, 0, 9));
  }
  {
    Sequence s;
    REQUIRE(s.feed(part(t, 0, 6)).ok());
    const std::size_t memory = draft_memory(s);
    REQUIRE(s.spec.begin_round(3, Strategy::replay).ok());
    Cache moved(std::move(s.trunk));  // its state goes with it, the armed sink too
    { const auto gone = std::move(s.spec); }
    REQUIRE(moved.dflash_taps() == nullptr);
    REQUIRE(draft_memory(s) == memory - 1);
    REQUIRE(s.m.feed(moved, part(t, 6, 20)).ok());
    require_straight(moved, s.m, part(t, 0, 26));
  }
  {
    Sequence s;
    const std::size_t memory = draft_memory(s);
    REQUIRE(s.spec.begin_round(3, Strategy::planes).ok());
    s.trunk = make(s.d, s.m, 8, 2);  // the one it was armed in is gone, and the sink with it
    REQUIRE(s.feed(part(t, 0, 6)).ok());
    s.require(part(t, 0, 6));
    REQUIRE(draft_memory(s) == memory);
    REQUIRE(s.spec.begin_step(1).ok());
    s.trunk = make(s.d, s.m, 8, 2);
    { const auto gone = std::move(s.spec); }
    REQUIRE(s.trunk.dflash_taps() == nullptr);
  }
}

TEST_CASE("C13 no speculation is made of a moved-from cache", "[speculation]") {
  Sequence s;
  const auto make_one = [&](Cache& trunk, DraftKv& draft) {
    return Speculation::create(trunk, draft, {5}, OpModel::width, 16).status();
  };
  REQUIRE(make_one(s.trunk, s.draft).ok());
  const DraftKv draft = std::move(s.draft);
  REQUIRE(says(make_one(s.trunk, s.draft), ErrorKind::bad_state, "moved-from"));  // NOLINT(bugprone-use-after-move)
  for (const std::size_t n : {0U, 1U}) {
    REQUIRE(says(s.spec.begin_step(n).status(), ErrorKind::bad_state, "the draft cache is empty (moved-from)"));
  }
  const Cache trunk = std::move(s.trunk);
  REQUIRE(says(make_one(s.trunk, s.draft), ErrorKind::bad_state, "moved-from"));  // NOLINT(bugprone-use-after-move)
}

TEST_CASE("greedy acceptance: drafts that agree, cut by budget and stop", "[speculation]") {
  const std::vector<std::int32_t> block = {7, 1, 2, 3};
  const auto run = [&](const std::vector<std::int32_t>& choice, std::size_t budget, std::int32_t stop) {
    return memra::accept_greedy(block, choice, budget, [&](std::int32_t x) { return x == stop; });
  };
  const auto is = [](const memra::Accepted& a, std::size_t keep, std::int32_t next, bool ended) {
    return a.keep == keep && a.next == next && a.ended == ended;
  };
  REQUIRE(is(run({1, 2, 3, 9}, 10, -1), 4, 9, false));
  REQUIRE(is(run({1, 2, 8, 9}, 10, -1), 3, 8, false));
  REQUIRE(is(run({5, 2, 3, 9}, 10, -1), 1, 5, false));
  REQUIRE(is(run({1, 2, 3, 9}, 2, -1), 2, 2, false));
  REQUIRE(is(run({1, 2, 3, 9}, 10, 7), 1, 1, true));   // the pending token stops
  REQUIRE(is(run({1, 2, 3, 9}, 10, 2), 3, 3, true));   // a draft does
  REQUIRE(is(run({1, 2, 3, 9}, 10, 9), 4, 9, false));  // the next one will
  REQUIRE(is(run({1, 5, 3, 9}, 10, 2), 2, 5, false));  // a draft that was not accepted does not
}

}  // namespace
}  // namespace speculation_cpp
