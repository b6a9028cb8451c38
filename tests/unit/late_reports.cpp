// Work that failed after its call had returned is reported by whatever call comes next: for every public call that may
// be that one, who is tainted.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <memra/attend_batch.hpp>
#include <memra/cache.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/fault_dev.hpp>
#include <memra/handover.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/ordered_dev.hpp>
#include <memra/round_batch.hpp>
#include <memra/speculation.hpp>
#include <memra/workspace.hpp>
#include <optional>
#include <string>
#include <support/catch.hpp>
#include <support/says.hpp>
#include <support/stand_in.hpp>
#include <support/tape.hpp>
#include <utility>
#include <vector>

namespace late_reports_cpp {
namespace {

using memra::Status;
using memra::Strategy;
using Late = memra::OrderedDev<memra::FaultDev<memra::HostDev>>;
using Dev = memra::FaultDev<Late>;  // calls that fail at once, around a queue of work that fails later
using Cache = memra::Cache<Dev>;
using Draft = memra::DflashKv<Dev>;
using Spec = memra::Speculation<Dev>;
using Attend = memra::AttendBatch<Dev>;
using Rounds = memra::RoundBatch<Dev>;

constexpr std::size_t rows = 17;  // behind which a ring of 20 rows has no room for 4
constexpr std::size_t ctx = 40;

/// Caches a and b, a drafter k beside a, and what was made of them, at one position on one device. No kernel writes
/// anything: what counts is who hears of it.
struct Rig {
  Dev dev;
  Dev other;
  memra::ModelConfig cfg = memra_test::hybrid_model();
  std::optional<Cache> a = cache();
  std::optional<Cache> b = cache();
  std::optional<Draft> k;
  memra::CacheSnapshot<Dev> snap = memra::check(a->snapshot());
  memra::CachePrefix<Dev> prefix = memra::check(a->export_prefix(snap));
  std::optional<memra::DflashKvTail<Dev>> tail;
  memra_test::Bytes tape;
  Dev::Buffer memory = memra::check(dev.zeros(4096));
  std::optional<memra::Round<Dev>> round_a, round_b;
  std::optional<Spec> spec;
  std::optional<Rounds> rounds;
  std::optional<Attend> attend;

  Rig() {
    k.emplace(memra::check(Draft::create(dev, drafter(), ctx)));
    for (std::size_t at = 0; at < rows; ++at) {
      memra::check(k->begin_rows(1));
      memra::check(k->commit());
    }
    tail = k->export_tail(rows);
    memra_test::TapeWriter w;
    memra::check(memra::send_state(w, prefix, {}));
    tape = w.tape;
  }
  static memra::DflashCfg drafter() {
    memra::DflashCfg d;
    d.n_layer = d.n_kv = 1;
    d.head_dim = d.block_size = d.sliding_window = 4;
    d.ring = true;
    return d;
  }
  Cache cache() {
    memra::CacheOptions options;
    options.rounds.rows = 4;
    options.rounds.replay = options.rounds.planes = options.rounds.stash = true;
    Cache c = memra::check(Cache::create(dev, cfg, ctx, options));
    memra::check(memra_test::feed_by(c, memra_test::stream(rows), 4));
    return c;
  }

  std::vector<Cache*> both() { return {&*a, &*b}; }
  const std::int32_t* words() const { return reinterpret_cast<const std::int32_t*>(memory.data()); }
  /// Every layer's view is taken, as if it had been written.
  void write(memra::Step<Dev>& step) const {
    for (std::size_t il = 0; il < cfg.layers.size(); ++il) {
      for (std::size_t nth = 0; step.kv_write(il, nth); ++nth) {
      }
      for (std::size_t nth = 0; step.recur(il, nth); ++nth) {
      }
    }
  }
  void step() {
    auto s = memra::check(a->begin_step(2));
    write(s);
  }
  memra::Round<Dev> round(Cache& c, Strategy by) {
    auto r = memra::check(c.begin_round(3, by));
    write(r.step());
    return r;
  }
  void open(Strategy by) { round_a.emplace(round(*a, by)); }
  void open_both() {
    rounds.emplace(memra::check(Rounds::create(both())));
    open(Strategy::planes);
    round_b.emplace(round(*b, Strategy::planes));
  }
  void speculate() { spec.emplace(memra::check(Spec::create(*a, *k, {1}, 8, 4))); }
  /// An open round of the speculation, its draft rows opened.
  void speculative(Strategy by) {
    speculate();
    auto s = memra::check(spec->begin_round(3, by));
    write(s);
    memra::check(spec->open_rows(2));
  }
  void speculative_step(std::size_t n, bool opens = true) {
    speculate();
    auto s = memra::check(spec->begin_step(n));
    write(s);
    if (opens) memra::check(spec->open_rows(n));
  }
  /// The n-th store from now on fails at once, in the call that does it.
  void fail_store(std::size_t n) {
    memra::Fault f;
    f.nth = n;
    f.op = memra::DevOp::store_i32;
    dev.arm(f);
  }

  /// A copy of nobody's fails, and nobody is told.
  void fail_unheard() {
    REQUIRE(dev.synchronize().ok());
    Late& queue = dev.inner();
    memra::Fault f;
    f.op = memra::DevOp::copy;
    queue.inner().arm(f);
    memra::check(queue.copy(memory.data() + 1024, memory.data() + 2048, 4));
    Late::Event here;
    memra::check(queue.publish(here));
    memra::check(other.inner().wait(here));
    memra::check(other.inner().synchronize());
    REQUIRE(queue.inner().fired() == 1);
    queue.inner().disarm();
  }
  std::string tainted() const {
    return std::string(a && a->tainted() ? "a" : "") + (b && b->tainted() ? "b" : "") + (k && k->tainted() ? "k" : "");
  }
};

enum class Says { status, nothing };  // whether the caller gets a Status

struct Call {
  const char* name;
  std::function<void(Rig&)> before;
  std::function<Status(Rig&)> call;
  const char* taints;
  Says says = Says::status;
};

void nothing(Rig&) {}

std::vector<Call> calls_of_caches() {
  return {
      {"begin_step, a plane comes home",
       [](Rig& r) {
         r.open(Strategy::planes);
         memra::check(r.round_a->commit(2));
       },
       [](Rig& r) { return r.a->begin_step(1).status(); }, "a"},
      {"begin_step, catching up", [](Rig& r) { r.a->replayed(0); }, [](Rig& r) { return r.a->begin_step(1).status(); },
       "a"},
      {"advance", [](Rig& r) { r.step(); }, [](Rig& r) { return r.a->advance(); }, "a"},
      {"advance_d",
       [](Rig& r) {
         auto s = memra::check(r.a->begin_device_step(2));
         r.write(s);
       },
       [](Rig& r) { return r.a->advance_d(); }, "a"},
      {"catch_up", [](Rig& r) { r.a->replayed(0); }, [](Rig& r) { return r.a->catch_up(); }, "a"},
      {"begin_round", nothing, [](Rig& r) { return r.a->begin_round(2, Strategy::replay).status(); }, "a"},
      {"Round::commit, replay", [](Rig& r) { r.open(Strategy::replay); },
       [](Rig& r) { return r.round_a->commit(1).status(); }, "a"},
      {"Round::commit, planes", [](Rig& r) { r.open(Strategy::planes); },
       [](Rig& r) { return r.round_a->commit(1).status(); }, "a"},
      {"Round::commit, stash", [](Rig& r) { r.open(Strategy::stash); },
       [](Rig& r) { return r.round_a->commit(1).status(); }, "a"},
      {"Round::commit_d", [](Rig& r) { r.open(Strategy::planes); },
       [](Rig& r) { return r.round_a->commit_d(r.words()); }, "a"},
      {"Round::abandon", [](Rig& r) { r.open(Strategy::replay); }, [](Rig& r) { return r.round_a->abandon(); }, "a"},
      {"~Round", [](Rig& r) { r.open(Strategy::replay); },
       [](Rig& r) {
         r.round_a.reset();
         return Status();
       },
       "a", Says::nothing},
      {"snapshot", nothing, [](Rig& r) { return r.a->snapshot().status(); }, "a"},
      {"snapshot_into", nothing, [](Rig& r) { return r.a->snapshot_into(r.snap); }, "a"},
      {"rollback", nothing, [](Rig& r) { return r.a->rollback(r.snap, 0).status(); }, "a"},
      {"reset", nothing, [](Rig& r) { return r.a->reset(); }, "a"},
      {"park_logits", nothing, [](Rig& r) { return r.a->park_logits(reinterpret_cast<const float*>(r.memory.data())); },
       "a"},
      {"arm_taps, catching up", [](Rig& r) { r.a->replayed(0); },
       [](Rig& r) {
         auto sink = memra::check(memra::DflashTapSink<Dev>::create(r.other, {1}, 8, 4));
         return r.a->arm_taps(std::move(sink));
       },
       "a"},
      {"take_taps, catching up",
       [](Rig& r) {
         memra::check(r.a->arm_taps(memra::check(memra::DflashTapSink<Dev>::create(r.other, {1}, 8, 4))));
         r.a->replayed(0);
       },
       [](Rig& r) {
         static_cast<void>(r.a->take_taps());
         return Status();
       },
       "a", Says::nothing},
      {"export_prefix", nothing, [](Rig& r) { return r.a->export_prefix(r.snap).status(); }, "a"},
      {"send_state", nothing,
       [](Rig& r) {
         memra_test::TapeWriter w;
         return memra::send_state(w, *r.a, {});
       },
       "a"},
  };
}

std::vector<Call> calls_of_batches() {
  const auto attend = [](Rig& r) { r.attend.emplace(memra::check(Attend::create(r.both(), 2))); };
  const auto set_rows = [](Rig& r) { return r.attend->set_rows(std::vector<std::size_t>{1, 2}); };
  const auto both = [](Rig& r) { return std::vector<memra::Round<Dev>*>{&*r.round_a, &*r.round_b}; };
  return {
      {"AttendBatch::create", nothing, [](Rig& r) { return Attend::create(r.both(), 2).status(); }, "ab"},
      {"AttendBatch::set_rows", attend, set_rows, "ab"},
      {"AttendBatch::set_rows, a cache is gone",
       [attend](Rig& r) {
         attend(r);
         r.b.reset();
       },
       set_rows, "a"},
      {"RoundBatch::create", nothing, [](Rig& r) { return Rounds::create(r.both()).status(); }, "ab"},
      {"RoundBatch::commit", [](Rig& r) { r.open_both(); },
       [both](Rig& r) {
         return r.rounds->commit(both(r), std::vector<std::size_t>{1, 2});
       },
       "ab"},
      {"RoundBatch::commit, catching up",
       [](Rig& r) {
         r.open_both();
         r.a->replayed(0);
       },
       [both](Rig& r) {
         return r.rounds->commit(both(r), std::vector<std::size_t>{1, 2});
       },
       "ab"},
      {"RoundBatch::commit, one sits out", [](Rig& r) { r.open_both(); },
       [](Rig& r) {
         return r.rounds->commit(std::vector<memra::Round<Dev>*>{&*r.round_a, nullptr}, std::vector<std::size_t>{1, 0});
       },
       "ab"},
      {"RoundBatch::commit_d", [](Rig& r) { r.open_both(); },
       [both](Rig& r) { return r.rounds->commit_d(both(r), std::vector<const std::int32_t*>{r.words()}); }, "ab"},
  };
}

std::vector<Call> calls_of_drafters() {
  return {
      {"DflashKv::begin_rows, a ring moves", nothing, [](Rig& r) { return r.k->begin_rows(4).status(); }, "k"},
      {"DflashKv::begin_block, a ring moves", nothing, [](Rig& r) { return r.k->begin_block(4).status(); }, "k"},
      {"DflashKv::commit", [](Rig& r) { memra::check(r.k->begin_rows(2)); }, [](Rig& r) { return r.k->commit(); }, "k"},
      {"DflashKv::truncate", nothing, [](Rig& r) { return r.k->truncate(rows - 1); }, "k"},
      {"DflashKv::export_tail", nothing,
       [](Rig& r) {
         static_cast<void>(r.k->export_tail(rows));
         return Status();
       },
       "k", Says::nothing},
      {"Speculation::create", nothing, [](Rig& r) { return Spec::create(*r.a, *r.k, {1}, 8, 4).status(); }, "ak"},
      {"Speculation::begin_step, its sink is made again",
       [](Rig& r) {
         r.speculative_step(1);
         static_cast<void>(r.a->take_taps());
         memra::check(r.a->rollback(r.snap, 0));
       },
       [](Rig& r) { return r.spec->begin_step(1).status(); }, "ak"},
      {"Speculation::begin_step, the trunk catches up",
       [](Rig& r) {
         r.speculate();
         r.a->replayed(0);
       },
       [](Rig& r) { return r.spec->begin_step(1).status(); }, "ak"},
      {"Speculation::begin_step, a plane comes home",
       [](Rig& r) {
         r.speculative(Strategy::planes);
         memra::check(r.spec->commit(2, 0));
       },
       [](Rig& r) { return r.spec->begin_step(1).status(); }, "ak"},
      {"Speculation::begin_round", [](Rig& r) { r.speculate(); },
       [](Rig& r) { return r.spec->begin_round(2, Strategy::replay).status(); }, "ak"},
      {"Speculation::open_rows, a ring moves", [](Rig& r) { r.speculative_step(4, false); },
       [](Rig& r) { return r.spec->open_rows(4).status(); }, "ak"},
      {"Speculation::advance", [](Rig& r) { r.speculative_step(2); }, [](Rig& r) { return r.spec->advance(); }, "ak"},
      {"Speculation::commit", [](Rig& r) { r.speculative(Strategy::planes); },
       [](Rig& r) { return r.spec->commit(2, 0).status(); }, "ak"},
      {"Speculation::abandon", [](Rig& r) { r.speculative(Strategy::replay); },
       [](Rig& r) { return r.spec->abandon(); }, "ak"},
      {"Speculation::rollback", [](Rig& r) { r.speculate(); },
       [](Rig& r) { return r.spec->rollback(r.snap, 0, 0).status(); }, "ak"},
      {"Speculation::repair, rows that are owed",
       [](Rig& r) {
         r.speculative_step(2);
         r.fail_store(2);  // the trunk's goes well, the draft's does not
         REQUIRE_FALSE(r.spec->advance().ok());
         r.dev.disarm();
       },
       [](Rig& r) { return r.spec->repair(); }, "ak"},
      {"~Speculation", [](Rig& r) { r.speculative(Strategy::replay); },
       [](Rig& r) {
         r.spec.reset();  // only the round has something to give up
         return Status();
       },
       "a", Says::nothing},
  };
}

/// What makes a thing has none to taint, and neither has what reads one that is no cache.
std::vector<Call> calls_of_nobody() {
  return {
      {"Cache::create", nothing, [](Rig& r) { return Cache::create(r.dev, r.cfg, ctx).status(); }, ""},
      {"Cache::from_prefix", nothing, [](Rig& r) { return Cache::from_prefix(r.dev, r.cfg, ctx, r.prefix).status(); },
       ""},
      {"DflashKv::create", nothing, [](Rig& r) { return Draft::create(r.dev, Rig::drafter(), ctx).status(); }, ""},
      {"DflashKv::create_cold_at", nothing,
       [](Rig& r) { return Draft::create_cold_at(r.dev, Rig::drafter(), ctx, 5).status(); }, ""},
      {"DflashKv::from_tail", nothing,
       [](Rig& r) {
         Status why;
         static_cast<void>(Draft::from_tail(r.dev, Rig::drafter(), ctx, *r.tail, &why));
         return why;
       },
       ""},
      {"DflashTapSink::create", nothing,
       [](Rig& r) { return memra::DflashTapSink<Dev>::create(r.dev, {1}, 8, 4).status(); }, ""},
      {"Workspace::create", nothing, [](Rig& r) { return memra::Workspace<Dev>::create(r.dev, 256).status(); }, ""},
      {"send_state of a prefix", nothing,
       [](Rig& r) {
         memra_test::TapeWriter w;
         return memra::send_state(w, r.prefix, {});
       },
       ""},
      {"receive_state", nothing,
       [](Rig& r) {
         memra_test::TapeReader t(r.tape);
         memra::HandoverTarget<Dev> target;
         target.stages = {&r.dev};
         target.config = r.cfg;
         target.max_ctx = ctx;
         return memra::receive_state(t, target).status();
       },
       ""},
  };
}

void every(const std::vector<Call>& calls) {
  for (const Call& c : calls) {
    CAPTURE(c.name);
    {
      Rig r;  // red arm: nothing has failed
      c.before(r);
      REQUIRE(r.dev.synchronize().ok());
      const std::string already = r.tainted();
      REQUIRE(c.call(r).ok());
      REQUIRE((r.tainted().empty() || r.tainted() == already));
    }
    Rig r;
    c.before(r);
    r.fail_unheard();
    const Status s = c.call(r);
    REQUIRE(s.asynchronous() == (c.says == Says::status));
    REQUIRE(r.tainted() == c.taints);
    REQUIRE(r.dev.synchronize().ok());  // it was reported: once
  }
}

TEST_CASE("S5 C8 a call of a cache that reports a late failure taints it", "[failure]") {
  every(calls_of_caches());
}
TEST_CASE("S5 C8 a call of a batch that reports a late failure taints all of its caches", "[failure][round]") {
  every(calls_of_batches());
}
TEST_CASE("S5 C8 a call of a drafter that reports a late failure taints it, one of a speculation both caches",
          "[failure][speculation]") {
  every(calls_of_drafters());
}
TEST_CASE("S5 C8 what stands for no cache reports a late failure and taints nobody", "[failure]") {
  every(calls_of_nobody());
}

TEST_CASE("S5 calls that ask nothing of a device leave a late failure to be reported", "[failure]") {
  const std::vector<std::function<bool(Rig&)>> calls = {
      [](Rig& r) { return r.a->begin_step(1).ok(); },
      [](Rig& r) { return r.a->begin_device_step(1).ok(); },
      [](Rig& r) { return r.a->begin_round(1, Strategy::planes).ok(); },
      [](Rig& r) { return r.a->begin_device_round(1, Strategy::stash).ok(); },
      [](Rig& r) { return r.a->take_taps() == std::nullopt; },
      [](Rig& r) { return r.a->last_logits_dev() == std::nullopt; },
      [](Rig& r) { return r.k->begin_rows(1).ok(); },
      [](Rig& r) { return r.k->may_truncate(rows).ok(); },
      [](Rig& r) { return r.k->pin(rows).ok(); },
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    CAPTURE(i);
    Rig r;
    r.fail_unheard();
    REQUIRE(calls[i](r));
    REQUIRE(r.tainted().empty());
    REQUIRE(r.dev.synchronize().asynchronous());
    REQUIRE(r.dev.synchronize().ok());
  }
}

TEST_CASE("S5 C8 a late failure that a speculation reports is taken back in both caches", "[failure][speculation]") {
  Rig r;
  r.speculative_step(2);
  r.fail_unheard();
  REQUIRE(r.spec->advance().asynchronous());
  REQUIRE(r.spec->begin_step(1).status().kind() == memra::ErrorKind::bad_state);
  REQUIRE(r.spec->repair().kind() == memra::ErrorKind::bad_state);
  REQUIRE(r.spec->open_rows(2).status().kind() == memra::ErrorKind::bad_state);
  REQUIRE(r.spec->repair().kind() == memra::ErrorKind::bad_state);  // a refused call has not made the rows sound
  REQUIRE(r.tainted() == "ak");
  memra::check(r.spec->rollback(r.snap, 0, 0));
  REQUIRE(r.tainted().empty());
  REQUIRE(r.spec->level());
  REQUIRE(r.spec->begin_step(1).ok());
}

TEST_CASE("S5 C8 a repair that reports a late failure leaves what is in doubt to a rollback",
          "[failure][speculation]") {
  Rig r;
  r.speculate();
  auto step = memra::check(r.spec->begin_step(4));
  r.write(step);
  memra::Fault f;
  f.op = memra::DevOp::copy;
  r.dev.arm(f);
  REQUIRE_FALSE(r.spec->open_rows(4).ok());  // the ring is half moved
  r.dev.disarm();
  REQUIRE(r.tainted() == "k");
  r.fail_unheard();
  REQUIRE(r.spec->repair().asynchronous());
  REQUIRE(memra_test::says(r.spec->repair(), memra::ErrorKind::bad_state, "work queued before has failed; roll both"));
  REQUIRE(r.tainted() == "ak");
  memra::check(r.spec->rollback(r.snap, 0, 0));
  REQUIRE(r.tainted().empty());
  REQUIRE(r.spec->begin_step(4).ok());
  REQUIRE(r.spec->open_rows(4).ok());
}

TEST_CASE("C8 a drafter that was tainted beside an open step is noticed before the trunk moves",
          "[failure][speculation]") {
  for (const bool round : {false, true}) {
    Rig r;
    if (round) {
      r.speculative(Strategy::planes);
    } else {
      r.speculative_step(2);
    }
    r.fail_unheard();
    REQUIRE_FALSE(r.k->export_tail(rows).has_value());
    REQUIRE(r.tainted() == "k");
    const Status s = round ? r.spec->commit(2, 0).status() : r.spec->advance();
    REQUIRE(s.kind() == memra::ErrorKind::bad_state);
    REQUIRE(r.a->pos() == rows);
    REQUIRE(r.spec->level());
  }
}

}  // namespace
}  // namespace late_reports_cpp
