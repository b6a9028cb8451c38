// Rounds on the GPU: every strategy, committed by the host and by the device, captured, in batches; against a run that
// never speculated.
#include <array>
#include <cstdint>
#include <memory>
#include <memra/counting_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/round_batch.hpp>
#include <string>
#include <support/catch.hpp>
#include <support/op_model.hpp>
#include <support/stand_in.hpp>
#include <vector>

#include <support/kernel_model.hpp>
#include "gpu_ops.hpp"
#include "support.hpp"

// Not unnamed: nvcc 13.0 cannot name a kernel's body type that shares an unnamed namespace with Catch's.
namespace memra_rounds {

using memra::ErrorKind;
using memra::Strategy;
using memra_test::all_rounds;
using memra_test::DefaultGpu;
using memra_test::emulated;
using memra_test::Gpu;
using memra_test::Image;
using memra_test::image;
using memra_test::KernelModel;
using memra_test::PortableGpu;

constexpr std::size_t rows = 8;
constexpr std::array by_kernel = {Strategy::planes, Strategy::stash};

struct CountedGpu : memra::CountingDev<Gpu> {
  CountedGpu() : memra::CountingDev<Gpu>(memra_test::make_gpu()) {}
};

/// As a drafter and a sampler would: how many of the round's tokens are right, and which are not, from the position.
struct DecideBody {
  const std::int32_t* pos_d;
  std::int32_t* accept;
  std::int32_t* salts;  ///< [rows]; 0: the true token
  std::int32_t seed;

  static MEMRA_HD std::int32_t accepted(std::int32_t pos, std::int32_t seed) noexcept {
    const std::uint32_t h = (static_cast<std::uint32_t>(pos) + static_cast<std::uint32_t>(seed) * 977U) * 2654435761U;
    return static_cast<std::int32_t>(1 + (h >> 16) % rows);  // none at all would be none for ever
  }
  MEMRA_HD void operator()(const memra::Item& item) const noexcept {
    const std::int32_t a = accepted(*pos_d, seed);
    const auto i = static_cast<std::int32_t>(item.x);
    salts[i] = i < a ? 0 : 1 + *pos_d % 7 + i;
    if (i == 0) *accept = a;
  }
};

template <class Dev>
struct Run {
  Dev& dev;
  KernelModel<Dev> m;
  typename Dev::Buffer words;

  Run(Dev& d, std::size_t ctx, memra::Layout layout = memra::Layout::split, std::size_t stages = 1)
      : dev(d), m(d, make(d, ctx, layout, stages)), words(memra::check(d.zeros(256))) {}

  static memra::Cache<Dev> make(Dev& d, std::size_t ctx, memra::Layout layout, std::size_t stages) {
    const memra::ModelConfig cfg = memra_test::kernel_config(layout);
    if (stages == 2) return memra::check(memra::Cache<Dev>::create_pp2(d, d, 2, cfg, ctx, all_rounds(rows)));
    return memra::check(memra::Cache<Dev>::create(d, cfg, ctx, all_rounds(rows)));
  }
  std::int32_t* word(std::size_t i = 0) const { return reinterpret_cast<std::int32_t*>(words.data()) + i; }
  void set_word(std::int32_t v, std::size_t i = 0) { memra::check(dev.store_i32(word(i), &v, 1)); }

  /// Rows from `good` on are tokens that will fall.
  void drafts(std::size_t good, std::size_t n, std::size_t turn) {
    std::vector<std::int32_t> salts(n, 0);
    for (std::size_t i = good; i < n; ++i) salts[i] = static_cast<std::int32_t>(turn * 13 + i + 1);
    m.salts(salts);
  }
  /// A round of `n` rows whose first `good` are right.
  memra::Round<Dev> verify(std::size_t n, std::size_t good, Strategy by, std::size_t turn) {
    drafts(good, n, turn);
    auto r = memra::check(m.cache.begin_round(n, by));
    memra::check(m.forward(r.step()));
    m.salts({});
    return r;
  }
  void commit(memra::Round<Dev>& r, std::size_t accept) {
    const auto left = memra::check(r.commit(accept));
    if (r.strategy() != Strategy::replay) REQUIRE(left.replay == 0);
    if (left.replay != 0) memra::check(m.feed(left.replay));
  }
  /// As a kernel decides, at whatever position the device is: what a graph holds.
  void device_round(Strategy by, std::int32_t seed) {
    memra::check(
        memra::launch(dev, "decide", memra::Grid{rows, 1, 1}, DecideBody{m.cache.pos_d(0), word(), m.salts_d(), seed}));
    auto r = memra::check(m.cache.begin_device_round(rows, by));
    memra::check(m.forward(r.step()));
    const std::vector<const std::int32_t*> at(m.cache.n_stages(), word());
    memra::check(r.commit_d(at));
  }
};

template <class Dev>
std::unique_ptr<Run<Dev>> straight(Dev& dev, std::size_t n, std::size_t ctx,
                                   memra::Layout layout = memra::Layout::split) {
  auto run = std::make_unique<Run<Dev>>(dev, ctx, layout);
  for (std::size_t i = 0; i < n; ++i) memra::check(run->m.feed(1));
  return run;
}

template <class Dev>
void require_same(Run<Dev>& got, Run<memra::HostDev>& want) {
  const Image a = image(got.m.cache);
  const Image b = image(want.m.cache);
  INFO(memra_test::difference(a, b));
  REQUIRE((a == b));
}

/// Rounds of all kinds in a mixture with what else may happen to a cache.
/// @param wrong  the turn whose commit takes one token too many; none: 0
/// @return tokens committed
template <class Dev>
std::size_t mixture(Run<Dev>& run, std::size_t turns, std::size_t wrong = 0) {
  constexpr std::array all = {Strategy::replay, Strategy::planes, Strategy::stash, Strategy::automatic};
  auto snap = memra::check(run.m.cache.snapshot());
  std::size_t snap_pos = 0;
  std::size_t at = 0;
  for (std::size_t turn = 1; turn <= turns; ++turn) {
    const Strategy by = all[(turn * 7 + turn / 5) % all.size()];
    const std::size_t n = 1 + turn * 5 % rows;  // 1: no drafts
    const std::size_t good = turn * 3 % (n + 1);
    if (turn % 9 == 0) {  // given up: as if it had never begun
      auto r = run.verify(n, 0, by, turn);
      memra::check(run.m.cache.catch_up());
      REQUIRE(run.m.cache.pos() == at);
    }
    auto r = run.verify(n, good, by, turn);
    std::size_t accept = turn % 6 == 0 && good != 0 ? good - 1 : good;  // a stop token inside what was accepted
    if (turn == wrong) accept = good + 1;
    if (turn % 2 == 0 || r.strategy() == Strategy::replay) {
      run.commit(r, accept);
    } else {
      run.set_word(static_cast<std::int32_t>(accept));
      const std::vector<const std::int32_t*> at_d(run.m.cache.n_stages(), run.word());
      memra::check(r.commit_d(at_d));
    }
    at += accept;
    if (turn % 4 == 0) {
      memra::check(run.m.feed(2));
      at += 2;
    }
    if (turn % 10 == 5) {
      memra::check(run.m.cache.snapshot_into(snap));
      snap_pos = at;
    }
    if (turn % 10 == 8) {  // back, and the first of it again
      const std::size_t keep = (at - snap_pos) / 2;
      const auto left = memra::check(run.m.cache.rollback(snap, keep));
      for (std::size_t i = 0; i < left.replay; ++i) memra::check(run.m.feed(1));
      at = snap_pos + keep;
    }
  }
  memra::check(run.m.cache.catch_up());
  REQUIRE(run.m.cache.pos() == at);
  return at;
}

template <class Dev>
void mixtures() {
  for (const memra::Layout layout : {memra::Layout::blocks, memra::Layout::split}) {
    for (const std::size_t stages : {std::size_t{1}, std::size_t{2}}) {
      Dev dev;
      memra::HostDev host;
      Run<Dev> run(dev, 400, layout, stages);
      const std::size_t n = mixture(run, emulated ? 20 : 60);
      const auto oracle = straight(host, n, 400, layout);
      memra::check(run.m.cache.snapshot());  // brings the planes home
      Image want = image(oracle->m.cache);
      const Image got = image(run.m.cache);
      INFO(memra_test::difference(got, want));
      REQUIRE((got == want));
      // Outputs, attention's too: those of single steps on the same device.
      const auto single = straight(dev, n, 400, layout);
      REQUIRE((run.m.history(n) == single->m.history(n)));
      REQUIRE_FALSE((run.m.history(n) == single->m.history(n + 1)));
    }
  }
}

TEST_CASE("rounds of every strategy, mixed with steps, rollbacks and given-up rounds", "[rounds]") {
  mixtures<DefaultGpu>();
  mixtures<PortableGpu>();
}

TEST_CASE("one token too many in one round of many is noticed", "[rounds]") {
  for (const std::size_t wrong : std::array<std::size_t, 2>{11, 22}) {  // no rollback or replay repairs these
    Gpu dev = memra_test::make_gpu();
    memra::HostDev host;
    Run<Gpu> run(dev, 400);
    const std::size_t n = mixture(run, 24, wrong);
    const auto oracle = straight(host, n, 400);
    memra::check(run.m.cache.snapshot());
    REQUIRE_FALSE((image(run.m.cache) == image(oracle->m.cache)));
  }
}

TEST_CASE("accept lengths on the device: nothing waits, nothing is copied or allocated", "[rounds][sanitize]") {
  for (const Strategy by : by_kernel) {
    for (const std::size_t stages : {std::size_t{1}, std::size_t{2}}) {
      CountedGpu dev;
      memra::HostDev host;
      Run<CountedGpu> run(dev, 128, memra::Layout::split, stages);
      dev.reset();
      std::size_t at = 0;
      for (std::size_t turn = 0; turn < 12; ++turn) {
        const std::size_t good = turn * 3 % 6;
        auto r = run.verify(5, good, by, turn);
        run.set_word(static_cast<std::int32_t>(good));
        const std::vector<const std::int32_t*> at_d(stages, run.word());
        REQUIRE(r.commit_d(at_d).ok());
        REQUIRE_FALSE(r.open());
        at += good;
        REQUIRE(run.m.cache.pos_bound() == 5 * (turn + 1));
      }
      const memra::DevCounters& n = dev.counters();
      REQUIRE(n.calls(memra::DevOp::synchronize) == 0);
      REQUIRE(n.host_copies() == 0);
      REQUIRE(n.copies() == 0);
      REQUIRE(n.allocations() == 0);
      REQUIRE(n.launched("round_commit") == 12 * stages);
      REQUIRE(n.launched("round_apply") == (by == Strategy::stash ? 12 * stages : 0));
      REQUIRE(run.m.cache.catch_up().ok());
      REQUIRE(run.m.cache.pos() == at);
      memra::check(run.m.cache.snapshot());
      require_same(run, *straight(host, at, 128));
    }
  }
}

TEST_CASE("captured rounds: hundreds of replays, across snapshots, rollbacks and rounds of the host", "[rounds]") {
  constexpr std::size_t ctx = 3000;
  for (const std::size_t stages : {std::size_t{1}, std::size_t{2}}) {
    CountedGpu dev;
    memra::HostDev host;
    Run<CountedGpu> run(dev, ctx, memra::Layout::split, stages);
    const auto record = [&](Strategy by) {
      memra::check(dev.inner().begin_capture());
      run.device_round(by, 3);
      return memra::check(dev.inner().end_capture());
    };
    const auto planes = record(Strategy::planes);
    REQUIRE(run.m.cache.catch_up().ok());
    const auto stash = record(Strategy::stash);
    REQUIRE(run.m.cache.catch_up().ok());
    REQUIRE(run.m.cache.pos() == 0);  // recorded, not run
    auto snap = memra::check(run.m.cache.snapshot());
    const float* const conv = run.m.cache.recur(0)->conv;
    const std::byte* const keys = run.m.cache.kv(1)->k.data;
    dev.reset();
    std::int32_t at = 0;
    std::size_t replays = 0;
    std::size_t host_rounds = 0;
    const auto replay = [&](const Gpu::Graph& g) {
      memra::check(dev.inner().replay(g));
      run.m.cache.replayed(rows);
      at += DecideBody::accepted(at, 3);
      ++replays;
    };
    for (std::size_t turn = 0; at < (emulated ? 140 : 1500); ++turn) {
      for (int i = 0; i < 5; ++i) replay(planes);
      for (int i = 0; i < 4; ++i) replay(stash);
      replay(planes);
      if (turn % 4 == 1) {
        REQUIRE(run.m.cache.snapshot_into(snap).ok());  // catches up and brings the planes home by itself
        REQUIRE(snap.pos() == static_cast<std::size_t>(at));
        const std::int32_t before = at;
        for (int i = 0; i < 3; ++i) replay(i == 1 ? stash : planes);
        const auto keep = static_cast<std::size_t>(at - before) / 2;
        const auto left = memra::check(run.m.cache.rollback(snap, keep));
        REQUIRE(left.replay == keep);
        run.m.salts({});
        for (std::size_t i = 0; i < keep; ++i) memra::check(run.m.feed(1));
        at = before + static_cast<std::int32_t>(keep);
      } else if (turn % 4 == 3) {
        auto r = run.verify(6, 4, by_kernel[host_rounds++ % 2], replays);
        run.commit(r, 4);
        at += 4;
      }
    }
    REQUIRE(replays > (emulated ? 30U : 250U));
    REQUIRE(host_rounds > (emulated ? 0U : 4U));
    REQUIRE(run.m.cache.catch_up().ok());
    REQUIRE(run.m.cache.pos() == static_cast<std::size_t>(at));
    REQUIRE(dev.counters().allocations() == 0);
    REQUIRE(run.m.cache.recur(0)->conv == conv);
    REQUIRE(run.m.cache.kv(1)->k.data == keys);
    REQUIRE(run.m.cache.snapshot_into(snap).ok());
    const auto n = static_cast<std::size_t>(at);
    require_same(run, *straight(host, n, ctx));
    const auto single = straight(dev, n, ctx);
    REQUIRE((run.m.history(n) == single->m.history(n)));
    // One replay more than was said is one too many.
    memra::check(dev.inner().replay(stash));
    std::int32_t moved = 0;
    memra::check(dev.download(reinterpret_cast<std::byte*>(&moved),
                              reinterpret_cast<const std::byte*>(run.m.cache.pos_d(0)), 4));
    REQUIRE(moved == at + DecideBody::accepted(at, 3));
  }
}

TEST_CASE("captured rounds past max_ctx end the stream where it was", "[rounds][sanitize]") {
  for (const Strategy by : by_kernel) {
    Gpu dev = memra_test::make_gpu();
    memra::HostDev host;
    Run<Gpu> run(dev, 30);
    memra::check(dev.begin_capture());
    run.device_round(by, 1);
    const auto graph = memra::check(dev.end_capture());
    REQUIRE(run.m.cache.catch_up().ok());
    auto snap = memra::check(run.m.cache.snapshot());
    std::int32_t at = 0;
    for (int i = 0; i < 60; ++i) {
      memra::check(dev.replay(graph));
      run.m.cache.replayed(rows);
      if (at + static_cast<std::int32_t>(rows) <= 30) at += DecideBody::accepted(at, 1);
    }
    REQUIRE(at + rows > 30);
    const memra::Status s = run.m.cache.catch_up();
    REQUIRE(s.kind() == ErrorKind::bad_state);
    REQUIRE(run.m.cache.tainted());
    REQUIRE(run.m.cache.pos() == static_cast<std::size_t>(at));
    REQUIRE(run.m.cache.begin_round(1, by).status().kind() == ErrorKind::bad_state);
    const auto left = memra::check(run.m.cache.rollback(snap, static_cast<std::size_t>(at)));
    run.m.salts({});
    for (std::size_t i = 0; i < left.replay; ++i) memra::check(run.m.feed(1));
    require_same(run, *straight(host, static_cast<std::size_t>(at), 30));
  }
}

TEST_CASE("an accept length out of range, or another one on another stage, is reported", "[rounds][sanitize]") {
  for (const Strategy by : by_kernel) {
    for (const std::int32_t second : {-3, 9, 2}) {
      Gpu dev = memra_test::make_gpu();
      memra::HostDev host;
      Run<Gpu> run(dev, 64, memra::Layout::split, 2);
      memra::check(run.m.feed(6));
      const auto snap = memra::check(run.m.cache.snapshot());
      auto r = run.verify(5, 4, by, 1);
      run.set_word(second == 2 ? 4 : second, 0);
      run.set_word(second, 1);
      const std::array<const std::int32_t*, 2> at = {run.word(0), run.word(1)};
      REQUIRE(r.commit_d(at).ok());
      const memra::Status s = run.m.cache.catch_up();
      REQUIRE(s.kind() == ErrorKind::bad_state);
      REQUIRE(run.m.cache.tainted());
      REQUIRE(run.m.cache.pos() == 6 + (second == 9 ? 5U : second == 2 ? 2U : 0U));
      memra::check(run.m.cache.rollback(snap, 0));
      r = run.verify(5, 4, by, 1);
      run.commit(r, 4);
      REQUIRE(run.m.cache.catch_up().ok());
      memra::check(run.m.cache.snapshot());
      require_same(run, *straight(host, 10, 64));
    }
  }
}

TEST_CASE("a batch of many caches in one launch, captured and not", "[rounds]") {
  constexpr std::size_t n = 70;  // more than travel with one call
  for (const Strategy by : by_kernel) {
    CountedGpu dev;
    memra::HostDev host;
    std::vector<std::unique_ptr<Run<CountedGpu>>> runs;
    std::vector<memra::Cache<CountedGpu>*> caches;
    for (std::size_t i = 0; i < n; ++i) {
      runs.push_back(std::make_unique<Run<CountedGpu>>(dev, 160));
      for (std::size_t j = 0; j < i % 5; ++j) memra::check(runs[i]->m.feed(1));
      caches.push_back(&runs[i]->m.cache);
    }
    auto batch = memra::check(memra::RoundBatch<CountedGpu>::create(caches));
    std::vector<std::int32_t> at(n);
    for (std::size_t i = 0; i < n; ++i) at[i] = static_cast<std::int32_t>(i % 5);
    auto memory = memra::check(dev.zeros(n * 4));
    auto* accepts = reinterpret_cast<std::int32_t*>(memory.data());
    const std::array<const std::int32_t*, 1> accept_d = {accepts};
    const auto batch_round = [&] {
      std::vector<memra::Round<CountedGpu>> rounds;
      std::vector<memra::Round<CountedGpu>*> all;
      rounds.reserve(n);
      for (std::size_t i = 0; i < n; ++i) {
        Run<CountedGpu>& run = *runs[i];
        memra::check(memra::launch(
            dev, "decide", memra::Grid{rows, 1, 1},
            DecideBody{run.m.cache.pos_d(0), accepts + i, run.m.salts_d(), static_cast<std::int32_t>(i)}));
        rounds.push_back(memra::check(run.m.cache.begin_device_round(rows, by)));
        memra::check(run.m.forward(rounds[i].step()));
        all.push_back(&rounds[i]);
      }
      memra::check(batch.commit_d(all, accept_d));
    };
    dev.reset();
    batch_round();
    REQUIRE(dev.counters().launched("round_commit") == 1);
    REQUIRE(dev.counters().launched("round_apply") == (by == Strategy::stash ? 1 : 0));
    REQUIRE(dev.counters().host_copies() == 0);
    REQUIRE(dev.counters().allocations() == 0);
    memra::check(dev.inner().begin_capture());
    batch_round();
    const auto graph = memra::check(dev.inner().end_capture());
    constexpr int replays = emulated ? 2 : 20;
    for (int i = 0; i < replays; ++i) memra::check(dev.inner().replay(graph));
    // By value, and some sit out: rounds of other lengths.
    std::vector<memra::Round<CountedGpu>> rounds;
    std::vector<memra::Round<CountedGpu>*> some;
    std::vector<std::size_t> accept;
    rounds.reserve(n);
    for (std::size_t i = 0; i < n; ++i) {
      for (int j = 0; j < replays + 1; ++j) at[i] += DecideBody::accepted(at[i], static_cast<std::int32_t>(i));
      runs[i]->m.cache.replayed(rows * replays);
      REQUIRE(runs[i]->m.cache.catch_up().ok());
      REQUIRE(runs[i]->m.cache.pos() == static_cast<std::size_t>(at[i]));
      accept.push_back(i % 3);
      some.push_back(nullptr);
      if (i % 4 == 1) continue;
      rounds.push_back(runs[i]->verify(2 + i % 4, i % 3, by, i));
      some[i] = &rounds.back();
      at[i] += static_cast<std::int32_t>(i % 3);
    }
    dev.reset();
    memra::check(batch.commit(some, accept));
    REQUIRE(dev.counters().launched("round_commit") == 1);
    for (std::size_t i = 0; i < n; i += 7) {
      memra::check(runs[i]->m.cache.catch_up());
      memra::check(runs[i]->m.cache.snapshot());
      require_same(*runs[i], *straight(host, static_cast<std::size_t>(at[i]), 160));
    }
  }
}

}  // namespace memra_rounds
