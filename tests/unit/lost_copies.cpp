// Copies that fail after the call which queued them went well: what was made by them says so, and nothing believes it.
#include <cstddef>
#include <cstdint>
#include <memra/any_dev.hpp>
#include <memra/attend_batch.hpp>
#include <memra/cache.hpp>
#include <memra/counting_dev.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/fault_dev.hpp>
#include <memra/handover.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/ordered_dev.hpp>
#include <memra/poison_dev.hpp>
#include <memra/round_batch.hpp>
#include <support/catch.hpp>
#include <support/says.hpp>
#include <support/stand_in.hpp>
#include <support/tape.hpp>
#include <utility>
#include <vector>

namespace lost_copies_cpp {
namespace {

using memra::ErrorKind;
using memra_test::image;
using memra_test::join;
using memra_test::says;
using memra_test::straight;
using memra_test::stream;
using memra_test::Tokens;

using Below = memra::FaultDev<memra::PoisonDev<memra::HostDev>>;
using Late = memra::OrderedDev<Below>;
using Wrapped = memra::CountingDev<memra::FaultDev<Late>>;

static_assert(memra::WorkLogDev<Late> && memra::WorkLogDev<Wrapped>);
static_assert(!memra::WorkLogDev<memra::HostDev> && !memra::WorkLogDev<memra::CountingDev<memra::HostDev>>);

/// The n-th call of an operation from now on fails when its turn comes.
void arm(Below& below, std::size_t n, memra::DevOp op = memra::DevOp::copy) {
  memra::Fault f;
  f.nth = n;
  f.op = op;
  below.arm(f);
}
/// Waits for what was queued, some of which fails.
template <class Dev>
void fail_now(Dev& dev, Below& below) {
  const memra::Status s = dev.synchronize();
  REQUIRE((!s.ok() && s.asynchronous()));  // a call of the engine's: the cache does not hear of it
  below.disarm();
  REQUIRE(dev.synchronize().ok());
}

template <class Dev>
void snapshots(Dev& dev, Below& below) {
  const auto cfg = memra_test::hybrid_model();
  const Tokens t = stream(5);
  auto c = memra::check(memra::Cache<Dev>::create(dev, cfg, 20));
  memra::check(memra_test::feed(c, t));
  const auto early = memra::check(c.snapshot());
  REQUIRE(dev.synchronize().ok());
  memra::check(memra_test::feed(c, stream(2, 2)));
  REQUIRE(dev.synchronize().ok());
  arm(below, 1);
  auto late = memra::check(c.snapshot());
  REQUIRE(late.valid());  // as far as is known
  fail_now(dev, below);
  REQUIRE_FALSE(c.tainted());
  REQUIRE_FALSE(late.valid());
  const auto before = image(c);
  REQUIRE(says(c.rollback(late, 0).status(), ErrorKind::bad_state, "lost"));
  REQUIRE(says(c.export_prefix(late).status(), ErrorKind::bad_state, "lost"));
  REQUIRE(image(c) == before);
  REQUIRE(early.valid());  // it was waited for
  memra::check(c.snapshot_into(late));
  REQUIRE(late.valid());
  REQUIRE(dev.synchronize().ok());
  arm(below, 1);
  memra::check(c.snapshot_into(late));
  auto moved = std::move(late);
  fail_now(dev, below);
  REQUIRE_FALSE(moved.valid());
  memra::check(c.snapshot_into(moved));
  REQUIRE(dev.synchronize().ok());
  memra::check(memra_test::feed(c, stream(3, 3)));
  memra::check(c.rollback(moved, 0));
  REQUIRE(image(c) == before);
  memra::check(c.rollback(early, 0));
  REQUIRE(image(c) == straight(cfg, t));
}

TEST_CASE("S5 a snapshot whose copy failed later says that it is lost; one that was waited for is not", "[wrappers]") {
  {
    Late dev;
    snapshots(dev, dev.inner());
  }
  {
    Wrapped dev;
    snapshots(dev, dev.inner().inner().inner());
  }
  {
    memra::OrderedDev<Late> dev;  // a queue on a queue
    snapshots(dev, dev.inner().inner());
  }
  Late dev;
  memra::AnyDev any(dev);
  snapshots(any, dev.inner());
}

TEST_CASE("S5 a snapshot is lost with work that was queued before it on any of its cache's devices", "[wrappers]") {
  const auto cfg = memra_test::attention_model();  // no state to copy: rows alone can fail
  Late a, b;
  auto c = memra::check(memra::Cache<Late>::create_pp2(a, b, 1, cfg, 20));
  memra::check(memra_test::feed(c, stream(3)));
  const auto early = memra::check(c.snapshot());
  REQUIRE((a.synchronize().ok() && b.synchronize().ok()));
  arm(b.inner(), 1, memra::DevOp::upload);
  memra::check(memra_test::feed(c, stream(2, 2)));  // rows of the second layer will not be there
  const auto late = memra::check(c.snapshot());
  REQUIRE(a.synchronize().ok());
  REQUIRE(late.valid());
  fail_now(b, b.inner());
  REQUIRE_FALSE(late.valid());
  REQUIRE(early.valid());
  memra::check(c.rollback(early, 0));
  REQUIRE(image(c) == straight(cfg, stream(3)));

  // The same when the rows have failed before the snapshot, and nobody was told.
  arm(b.inner(), 1, memra::DevOp::upload);
  memra::check(memra_test::feed(c, stream(2, 2)));
  Late other;
  Late::Event here;
  memra::check(b.publish(here));
  memra::check(other.wait(here));
  memra::check(other.synchronize());
  REQUIRE(b.inner().fired() == 1);
  const auto blind = memra::check(c.snapshot());
  fail_now(b, b.inner());
  REQUIRE_FALSE(blind.valid());
  memra::check(c.rollback(early, 0));
  REQUIRE(image(c) == straight(cfg, stream(3)));
}

/// Snapshots at 3 and 5 of a cache that stands at 7, all of it waited for, and then back at 3 with a replay of 4 owed.
struct Replaying {
  memra::ModelConfig cfg = memra_test::hybrid_model();
  Late dev;
  memra::Cache<Late> cache = memra::check(memra::Cache<Late>::create(dev, cfg, 20));
  Tokens tokens = stream(7);
  memra::CacheSnapshot<Late> below = fed_to(3);
  memra::CacheSnapshot<Late> above = fed_to(5);

  Replaying() {
    fed_to(7);
    REQUIRE(dev.synchronize().ok());
    back();
  }
  memra::CacheSnapshot<Late> fed_to(std::size_t n) {
    memra::check(memra_test::feed(cache, memra_test::part(tokens, cache.pos(), n - cache.pos())));
    return memra::check(cache.snapshot());
  }
  void back() { REQUIRE(memra::check(cache.rollback(below, 4)).replay == 4); }
  /// Feeds `n` rows that are there already. An upload of theirs fails, which a call of the engine's own reports.
  void torn(std::size_t n) {
    arm(dev.inner(), 1, memra::DevOp::upload);
    const memra::Status fed = memra_test::feed(cache, memra_test::part(tokens, cache.pos(), n));
    const memra::Status waited = dev.synchronize();
    dev.inner().disarm();
    REQUIRE((fed.asynchronous() || (fed.ok() && waited.asynchronous())));
    REQUIRE(dev.synchronize().ok());
    REQUIRE_FALSE(cache.tainted());
  }
  /// A copy of the engine's own, which has nothing to do with this cache, fails.
  void other_work_fails() {
    auto b = memra::check(dev.zeros(8));
    REQUIRE(dev.synchronize().ok());
    arm(dev.inner(), 1);
    memra::check(dev.copy(b.data(), b.data() + 4, 4));
    fail_now(dev, dev.inner());
  }
  bool lost() {
    if (above.valid()) return false;
    const auto before = image(cache);
    REQUIRE(says(cache.rollback(above, 0).status(), ErrorKind::bad_state, "lost"));
    REQUIRE(says(cache.rollback(above, 0).status(), ErrorKind::bad_state, "wrote its rows again"));
    REQUIRE(image(cache) == before);
    REQUIRE(below.valid());
    memra::check(cache.rollback(below, 0));
    REQUIRE(image(cache) == straight(cfg, stream(3)));
    return true;
  }
  bool whole() {
    if (!above.valid()) return false;
    memra::check(cache.rollback(above, 0));
    REQUIRE(image(cache) == straight(cfg, stream(5)));
    memra::check(memra_test::feed(cache, memra_test::part(tokens, 5, 2)));
    REQUIRE(dev.synchronize().ok());
    return true;
  }
};

TEST_CASE("S5 a snapshot whose rows a replay wrote again is lost with that replay, and is not once it went well",
          "[wrappers]") {
  {
    Replaying r;
    r.torn(2);  // rows 3 and 4
    REQUIRE(r.lost());
  }
  {
    Replaying r;
    memra::check(memra_test::feed(r.cache, memra_test::part(r.tokens, 3, 2)));
    REQUIRE(r.dev.synchronize().ok());
    r.torn(2);  // rows 5 and 6, which it does not count on
    REQUIRE(r.whole());
  }
  {
    Replaying r;
    memra::check(memra_test::feed(r.cache, memra_test::part(r.tokens, 3, 1)));
    REQUIRE(r.dev.synchronize().ok());
    r.torn(1);  // row 4, in another batch than row 3
    REQUIRE(r.lost());
  }
  {
    Replaying r;
    memra::check(memra_test::feed(r.cache, memra_test::part(r.tokens, 3, 4)));
    REQUIRE(r.dev.synchronize().ok());
    r.other_work_fails();
    REQUIRE(r.whole());
    r.back();  // what failed once stays failed, whatever goes well later
    r.torn(3);
    memra::check(r.cache.rollback(r.below, 4));
    REQUIRE(r.dev.synchronize().ok());
    memra::check(memra_test::feed(r.cache, memra_test::part(r.tokens, 3, 4)));
    REQUIRE(r.dev.synchronize().ok());
    REQUIRE(r.lost());
    memra::check(memra_test::feed(r.cache, memra_test::part(r.tokens, 3, 2)));
    memra::check(r.cache.snapshot_into(r.above));
    REQUIRE(r.whole());
  }
}

TEST_CASE("S5 a step that writes rows again is in doubt from its begin to its end, whatever is waited for between",
          "[wrappers]") {
  {
    Replaying r;
    memra::check(memra::check(r.cache.begin_step(2)).kv_write(1));
    REQUIRE(r.dev.synchronize().ok());
    r.other_work_fails();  // its kernels', for all that is known
    REQUIRE(r.lost());
  }
  {
    Replaying r;
    memra::check(r.cache.begin_step(2));
    REQUIRE(r.dev.synchronize().ok());
    r.back();  // it has ended
    REQUIRE(r.dev.synchronize().ok());
    r.other_work_fails();
    REQUIRE(r.whole());
  }
  {
    Replaying r;
    REQUIRE(r.dev.synchronize().ok());
    r.cache.replayed(0);
    memra::check(r.cache.begin_device_step(2));
    memra::check(r.cache.catch_up());  // the step is open still
    REQUIRE(r.dev.synchronize().ok());
    r.other_work_fails();
    REQUIRE(r.lost());
  }
  {
    Replaying r;
    REQUIRE(r.dev.synchronize().ok());
    r.cache.replayed(0);  // of a graph that was queued again, at a position that the device knows
    memra::check(r.cache.catch_up());
    r.other_work_fails();
    REQUIRE(r.whole());
    r.back();
    REQUIRE(r.dev.synchronize().ok());
    auto b = memra::check(r.dev.zeros(8));
    arm(r.dev.inner(), 1);
    memra::check(r.dev.copy(b.data(), b.data() + 4, 4));
    r.cache.replayed(2);
    fail_now(r.dev, r.dev.inner());
    REQUIRE(r.lost());
  }
}

TEST_CASE("S5 kernels write where pos_d says: a snapshot above it is lost with the store that would have moved it",
          "[wrappers]") {
  Replaying r;
  REQUIRE(r.dev.synchronize().ok());  // pos_d is 3
  arm(r.dev.inner(), 1, memra::DevOp::store_i32);
  memra::check(r.cache.rollback(r.above, 0));
  fail_now(r.dev, r.dev.inner());
  std::int32_t pos = 0;
  memra::check(r.dev.download(reinterpret_cast<std::byte*>(&pos), reinterpret_cast<const std::byte*>(r.cache.pos_d(0)),
                              sizeof pos));
  REQUIRE(pos == 3);
  REQUIRE(r.lost());
}

TEST_CASE("S5 the log of a device that goes on failing, or is lost, stays short", "[wrappers]") {
  for (const auto kind : {ErrorKind::device_failure, ErrorKind::device_lost}) {
    Late dev;
    const auto log = dev.work_log();
    auto b = memra::check(dev.zeros(8));
    REQUIRE(dev.synchronize().ok());
    memra::Fault f;
    f.forever = true;
    f.kind = kind;
    dev.inner().arm(f);
    for (int i = 0; i < 100; ++i) static_cast<void>(dev.copy(b.data(), b.data() + 4, 4).ok());
    REQUIRE(dev.synchronize().asynchronous());
    REQUIRE(log->failed.size() <= 2);
    for (int i = 0; i < 100; ++i) REQUIRE(dev.fill(b.data(), std::byte{0}, 8).ok() == (kind != ErrorKind::device_lost));
    REQUIRE_FALSE(dev.synchronize().ok());
    REQUIRE(log->failed.size() <= 4);
    REQUIRE((kind != ErrorKind::device_lost || log->failed.back() == log->batch));  // whatever is made now is lost, too
  }
}

TEST_CASE("S5 who meets an asynchronous failure of a cache's work taints it: a hand-over, a batch that is made",
          "[wrappers][handover][round]") {
  const auto cfg = memra_test::hybrid_model();
  memra::CacheOptions options;
  options.rounds.rows = 2;
  options.rounds.planes = true;
  const auto meets = [&](const auto& what) {
    Late dev;
    auto c = memra::check(memra::Cache<Late>::create(dev, cfg, 20, options));
    memra::check(memra_test::feed(c, stream(5)));
    const auto early = memra::check(c.snapshot());
    REQUIRE(dev.synchronize().ok());
    REQUIRE(what(c).ok());  // red arm: nothing has failed
    REQUIRE_FALSE(c.tainted());
    arm(dev.inner(), 1);
    const auto late = memra::check(c.snapshot());
    REQUIRE(what(c).asynchronous());
    REQUIRE(c.tainted());
    dev.inner().disarm();
    REQUIRE(dev.synchronize().ok());
    memra::check(c.rollback(early, 0));
    REQUIRE(image(c) == straight(cfg, stream(5)));
  };
  meets([](auto& c) {
    memra_test::TapeWriter w;
    return memra::send_state(w, c, {});
  });
  meets([](auto& c) {
    Late other;  // what is queued is run, and nobody asks how that went
    Late::Event here;
    memra::check(c.stage_dev(0).publish(here));
    memra::check(other.wait(here));
    memra::check(other.synchronize());
    return memra::RoundBatch<Late>::create(std::vector<memra::Cache<Late>*>{&c}).status();
  });
  meets([](auto& c) { return memra::AttendBatch<Late>::create(std::vector<memra::Cache<Late>*>{&c}, 2).status(); });
}

TEST_CASE("S5 tables that kernels follow are there when what made them says so", "[wrappers][handover][round]") {
  const auto cfg = memra_test::hybrid_model();
  memra::CacheOptions options;
  options.rounds.rows = 2;
  options.rounds.planes = true;
  // An upload that fails when its turn comes: the call that asked for it says so, as it says all else that went wrong.
  const auto fails = [&](const auto& what) {
    Late dev;
    auto c = memra::check(memra::Cache<Late>::create(dev, cfg, 20, options));
    memra::check(memra_test::feed(c, stream(5)));
    REQUIRE(dev.synchronize().ok());
    REQUIRE(what(c).ok());  // red arm: nothing fails
    arm(dev.inner(), 1, memra::DevOp::upload);
    const memra::Status s = what(c);
    REQUIRE((s.asynchronous() && s.kind() == ErrorKind::device_failure));
    dev.inner().disarm();
    REQUIRE(dev.synchronize().ok());
  };
  fails([&](auto& c) { return memra::Cache<Late>::create(c.stage_dev(0), cfg, 20, options).status(); });
  fails([](auto& c) { return memra::RoundBatch<Late>::create(std::vector<memra::Cache<Late>*>{&c}).status(); });
  fails([](auto& c) { return memra::AttendBatch<Late>::create(std::vector<memra::Cache<Late>*>{&c}, 2).status(); });
  fails([](auto& c) {
    memra_test::TapeWriter w;
    return memra::send_state(w, c, {});
  });
}

TEST_CASE("S5 a prefix whose copies failed later becomes no cache, and is not sent", "[wrappers]") {
  const auto cfg = memra_test::hybrid_model();
  for (const memra::DevOp op : {memra::DevOp::copy, memra::DevOp::copy_batch}) {  // the state; rows
    Late dev;
    auto c = memra::check(memra::Cache<Late>::create(dev, cfg, 20));
    memra::check(memra_test::feed(c, stream(5)));
    const auto snap = memra::check(c.snapshot());
    const auto good = memra::check(c.export_prefix(snap));
    REQUIRE(dev.synchronize().ok());
    arm(dev.inner(), 1, op);
    auto bad = memra::check(c.export_prefix(snap));
    fail_now(dev, dev.inner());
    REQUIRE(says(memra::Cache<Late>::from_prefix(dev, cfg, 20, bad).status(), ErrorKind::bad_state, "lost"));
    memra_test::TapeWriter tape;
    REQUIRE(says(memra::send_state(tape, bad, {}), ErrorKind::bad_state, "lost"));
    REQUIRE(tape.tape.empty());
    const auto made = memra::check(memra::Cache<Late>::from_prefix(dev, cfg, 20, good));
    REQUIRE(image(made) == straight(cfg, stream(5)));
  }
}

TEST_CASE("S5 a tail whose copies failed later becomes no draft cache, and is not sent", "[wrappers]") {
  memra::DflashCfg cfg;
  cfg.n_layer = cfg.n_kv = cfg.block_size = 1;
  cfg.head_dim = cfg.sliding_window = 4;
  Late dev;
  auto kv = memra::check(memra::DflashKv<Late>::create(dev, cfg, 8));
  memra::check(kv.begin_rows(3));
  memra::check(kv.commit());
  const auto good = kv.export_tail(3);
  REQUIRE(dev.synchronize().ok());
  arm(dev.inner(), 2);
  const auto bad = kv.export_tail(3);
  REQUIRE(bad.has_value());
  fail_now(dev, dev.inner());
  memra::Status why;
  REQUIRE_FALSE(memra::DflashKv<Late>::from_tail(dev, cfg, 8, *bad, &why).has_value());
  REQUIRE(says(why, ErrorKind::bad_state, "lost"));
  REQUIRE(memra::DflashKv<Late>::from_tail(dev, cfg, 8, *good).has_value());
  auto trunk = memra::check(memra::Cache<Late>::create(dev, memra_test::attention_model(), 8));
  memra::check(memra_test::feed(trunk, stream(3)));
  memra_test::TapeWriter tape;
  REQUIRE(says(memra::send_state(tape, trunk, {}, &*bad), ErrorKind::bad_state, "lost"));
  REQUIRE(tape.tape.empty());
}

}  // namespace
}  // namespace lost_copies_cpp
