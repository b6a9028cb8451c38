// What a caller tries who has not read the contract: absurd sizes, self-assignment, calls after the end.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memra/attend_batch.hpp>
#include <memra/cache.hpp>
#include <memra/detail/window.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/portable_ops.hpp>
#include <memra/round_batch.hpp>
#include <memra/speculation.hpp>
#include <memra/taps.hpp>
#include <memra/workspace.hpp>
#include <optional>
#include <string>
#include <support/catch.hpp>
#include <support/op_model.hpp>
#include <support/placements.hpp>
#include <support/rounds.hpp>
#include <support/stand_in.hpp>
#include <utility>
#include <vector>

namespace hostile_cpp {
namespace {

using memra::ErrorKind;
using memra::HostDev;
using memra_test::attention_model;
using memra_test::feed;
using memra_test::hybrid_model;
using memra_test::image;
using memra_test::OpModel;
using memra_test::part;
using memra_test::recurrent_model;
using memra_test::round_hybrid;
using memra_test::straight;
using memra_test::stream;
using memra_test::TestDev;
using memra_test::Tokens;
using Cache = memra::Cache<HostDev>;

constexpr std::size_t huge = std::numeric_limits<std::size_t>::max();

TEST_CASE("a window of any size shows what its definition says", "[hostile]") {
  for (std::int64_t p = 0; p < 20; ++p) {
    for (std::size_t w = 1; w < 30; ++w) {
      std::int64_t first = p;  // by hand: step back while the window still counts the key
      for (std::size_t seen = 1; first > 0 && seen < w; ++seen) --first;
      REQUIRE(memra::detail::window_start(p, w) == first);
    }
    REQUIRE(memra::detail::window_start(p, 0) == 0);
    REQUIRE(memra::detail::window_start(p, huge) == 0);
    REQUIRE(memra::detail::window_start(p, std::size_t{1} << 63) == 0);
  }
  REQUIRE(memra::detail::window_start(-1, 1) == 0);
}

/// One query over four rows through a window.
template <class Ops>
std::vector<float> attend_through(const Ops& ops, std::size_t window) {
  HostDev dev;
  auto spec = memra_test::attention_spec(memra::Format::f32, memra::Format::f32);
  spec.window = window;
  memra::ModelConfig cfg;
  cfg.layers = {memra::full_attention(spec)};
  auto c = memra::check(Cache::create(dev, cfg, 8));
  memra::check(feed(c, stream(4)));
  auto step = memra::check(c.begin_step(1));
  const std::vector<float> row(64, 0.5F);
  memra::check(ops(dev).append(memra::check(step.kv_write(0)), row.data(), row.data()));
  auto ws = memra::check(memra::Workspace<HostDev>::create(dev, c.plan().workspace_bytes(1)));
  const std::vector<float> q(4 * 32, 0.25F);
  std::vector<float> out(4 * 32);
  memra::check(ops(dev).attend(memra::check(step.kv_read(0)), {q.data(), out.data(), 4, 1.0F}, ws.view()));
  return out;
}

TEST_CASE("a window beyond every position is no window, in attention and in the draft", "[hostile]") {
  const auto ops = [](HostDev& d) { return memra::ops_for<HostDev>(d); };
  const auto all = attend_through(ops, 0);
  REQUIRE(all != attend_through(ops, 3));  // red arm
  for (const std::size_t w : {std::size_t{5}, std::size_t{1} << 31, std::size_t{1} << 63, huge}) {
    CAPTURE(w);
    REQUIRE(all == attend_through(ops, w));
  }
  HostDev dev;
  memra::DflashCfg cfg;
  cfg.n_layer = cfg.n_kv = 1;
  cfg.head_dim = 4;
  cfg.block_size = 2;
  const auto draft_through = [&](std::size_t window, memra::DraftArm arm) {
    cfg.sliding_window = window;
    auto kv = memra::check(memra::DflashKv<HostDev>::create(dev, cfg, 8));
    std::vector<float> x(6 * 4);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 5) - static_cast<float>(i) * 0.125F;
    const auto rows = memra::check(kv.begin_rows(6));
    memra::check(ops(dev).draft_write(rows.view(0), x.data(), x.data()));
    memra::check(kv.commit());
    const auto block = memra::check(kv.begin_block(2));
    memra::check(ops(dev).draft_write(block.view(0), x.data(), x.data()));
    auto ws = memra::check(memra::Workspace<HostDev>::create(dev, kv.workspace_bytes(1)));
    std::vector<float> out(2 * 4);
    memra::check(ops(dev).draft_attend(block.view(0), {x.data(), out.data(), 1, 1.0F, arm}, ws.view()));
    return out;
  };
  for (const auto arm : {memra::DraftArm::clip, memra::DraftArm::full_scan}) {
    const auto without = draft_through(0, arm);
    REQUIRE(without != draft_through(2, arm));  // red arm
    for (const std::size_t w : {std::size_t{9}, std::size_t{1} << 63, huge - 2}) {
      REQUIRE(without == draft_through(w, arm));
    }
  }
  cfg.sliding_window = huge;
  REQUIRE(memra::DflashKv<HostDev>::create(dev, cfg, 8).status().kind() == ErrorKind::bad_argument);
}

TEST_CASE("scratch that does not fit is never a few bytes", "[hostile]") {
  using memra::detail::attend_scratch_bytes;
  using memra::detail::draft_scratch_bytes;
  REQUIRE(attend_scratch_bytes(8, 2, 64, 64, 4) < std::size_t{1} << 21);
  for (const std::size_t n : {huge, huge / 2 + 1, std::size_t{1} << 60, std::size_t{1} << 56}) {
    CAPTURE(n);
    REQUIRE(attend_scratch_bytes(n, 2, 64, 64, 4) == huge);
    REQUIRE(attend_scratch_bytes(n, n, 64, 64, 4) == huge);
    REQUIRE(attend_scratch_bytes(8, 2, n, 64, 4) == huge);
    REQUIRE(attend_scratch_bytes(8, 2, 64, n, 4) == huge);
    REQUIRE(draft_scratch_bytes(8, 2, 64, n, 8) == huge);
    REQUIRE(draft_scratch_bytes(8, 2, 64, 8, n - 8) >= n / 8);
  }
  REQUIRE(draft_scratch_bytes(8, 2, 64, std::size_t{1} << 31, std::size_t{1} << 31) == huge);
  HostDev dev;
  auto c = memra::check(Cache::create(dev, attention_model(), 8));
  REQUIRE(c.plan().workspace_bytes(huge) == c.plan().workspace_bytes(64));  // rows share their pieces
  REQUIRE(c.plan().workspace_bytes(1, huge) == huge);
  REQUIRE(memra::Workspace<HostDev>::create(dev, huge).status().kind() == ErrorKind::out_of_memory);
  auto step = memra::check(c.begin_step(1));
  memra::check(step.kv_write(0));
  std::vector<float> x(64);
  std::vector<std::byte> scratch(1 << 20);
  const auto view = memra::check(step.kv_read(0));
  const std::size_t heads = (std::size_t{1} << 62) + 2;  // a multiple of the two kv heads
  REQUIRE(memra::ops_for<HostDev>(dev)
              .attend(view, {x.data(), x.data(), heads, 1.0F}, {scratch.data(), scratch.size()})
              .kind() == ErrorKind::bad_argument);
}

TEST_CASE("models of no layers, of layers without state, and of more stages than layers", "[hostile]") {
  HostDev dev[3];
  const memra::ModelConfig nothing;
  memra::ModelConfig stateless;
  stateless.layers = {memra::no_state(), memra::no_state()};
  for (const auto& cfg : {nothing, stateless}) {
    auto c = memra::check(Cache::create(dev[0], cfg, 8));
    const auto s = memra::check(c.snapshot());
    REQUIRE(s.bytes() == 0);
    REQUIRE(feed(c, stream(5)).ok());
    REQUIRE((c.pos() == 5 && c.len() == 5));
    REQUIRE(c.begin_step(4).status().kind() == ErrorKind::bad_argument);
    const auto left = memra::check(c.rollback(s, 2));
    REQUIRE((left.pos == 2 && left.replay == 0));
    const auto at2 = memra::check(c.snapshot());
    const auto prefix = memra::check(c.export_prefix(at2));
    REQUIRE(memra::check(Cache::from_prefix(dev[1], cfg, 8, prefix)).pos() == 2);
    REQUIRE((!c.kv(0) && !c.recur(0) && !c.kv(huge) && !c.kv(0, huge)));
    REQUIRE(c.reset().ok());
    REQUIRE(image(c) == straight(cfg, {}));
  }
  REQUIRE(Cache::create_ppn({}, {}, attention_model(), 8).status().kind() == ErrorKind::bad_argument);
  for (const auto& cfg : {attention_model(), recurrent_model()}) {  // two layers, seven stages on three devices
    std::vector<HostDev*> devs;
    for (std::size_t i = 0; i < 7; ++i) devs.push_back(&dev[i % 3]);
    memra::CacheOptions o;
    o.rounds.rows = 4;
    o.rounds.planes = o.rounds.stash = o.rounds.replay = true;
    auto c = memra::check(Cache::create_ppn(devs, memra::pp_cuts(2, 7), cfg, 16, o));
    REQUIRE(c.n_stages() == 7);
    REQUIRE(feed(c, stream(5)).ok());
    const auto s = memra::check(c.snapshot());
    REQUIRE(feed(c, stream(3, 2)).ok());
    REQUIRE(c.rollback(s, 0).ok());
    REQUIRE(image(c) == straight(cfg, stream(5)));
    REQUIRE(c.begin_round(huge).status().kind() == ErrorKind::bad_argument);
    REQUIRE(c.begin_round(0).status().kind() == ErrorKind::bad_argument);
  }
}

TEST_CASE("C13 what owns a list survives being assigned to itself", "[hostile]") {
  HostDev dev;
  const auto cfg = hybrid_model();
  auto c = memra::check(Cache::create(dev, cfg, 16));
  REQUIRE(feed(c, stream(6)).ok());
  auto s = memra::check(c.snapshot());
  auto prefix = memra::check(c.export_prefix(s));
  auto sink = memra::check(memra::DflashTapSink<HostDev>::create(dev, {1, 4}, 3, 5));
  const auto to_itself = [](auto& x) {
    auto& same = x;
    x = std::move(same);
  };
  to_itself(c);
  to_itself(s);
  to_itself(prefix);
  to_itself(sink);
  REQUIRE(image(c) == straight(cfg, stream(6)));
  REQUIRE((s.valid() && s.bytes() == c.plan().totals.snapshot_bytes));
  REQUIRE(prefix.pos() == 6);
  REQUIRE(image(memra::check(Cache::from_prefix(dev, cfg, 16, prefix))) == straight(cfg, stream(6)));
  REQUIRE((sink.n_taps() == 2 && sink.hidden() == 3 && sink.cap_rows() == 5 && sink.data() != nullptr));
  REQUIRE(c.arm_taps(std::move(sink)).ok());
  memra::DflashCfg d;
  d.n_layer = d.n_kv = d.head_dim = d.block_size = 1;
  auto kv = memra::check(memra::DflashKv<HostDev>::create(dev, d, 4));
  to_itself(kv);
  REQUIRE(kv.cap() == 4);
  memra::CachePrefix<HostDev> moved = std::move(prefix);
  REQUIRE((prefix.pos() == 0 && !prefix.has_logits()));  // NOLINT(bugprone-use-after-move)
  prefix = std::move(moved);
  REQUIRE(prefix.pos() == 6);
}

TEST_CASE("C13 batches survive being assigned to themselves, and refuse once moved from", "[hostile]") {
  OpModel m{round_hybrid()};
  memra_test::Devices d;
  auto c = memra_test::rounds::make(d, m, 8);
  memra::check(m.feed(c, stream(6)));
  const std::vector<memra::Cache<TestDev>*> caches = {&c};
  auto attend = memra::check(memra::AttendBatch<TestDev>::create(caches, 4));
  auto rounds = memra::check(memra::RoundBatch<TestDev>::create(caches));
  auto& same_attend = attend;
  attend = std::move(same_attend);
  auto& same_rounds = rounds;
  rounds = std::move(same_rounds);
  const std::vector<std::size_t> three = {3};
  REQUIRE((attend.size() == 1 && attend.most_rows() == 4 && attend.set_rows(three).ok()));
  const memra::AttendBatchView view = memra::check(attend.layer(1));
  REQUIRE((view.n == 1 && view.common.at.rows == 3 && view.table != nullptr));
  const auto commits = [&](memra::RoundBatch<TestDev>& batch, std::size_t accept) {
    auto round = memra::check(c.begin_round(3, memra::Strategy::stash));
    std::vector<float> out;
    memra::check(m.forward(c, round.step(), stream(3, 2), out));
    const std::vector<memra::Round<TestDev>*> open = {&round};
    return batch.commit(open, {&accept, 1});
  };
  REQUIRE(commits(rounds, 1).ok());
  REQUIRE(c.pos() == 7);

  const auto kept_attend = std::move(attend);
  auto kept_rounds = std::move(rounds);
  // NOLINTBEGIN(bugprone-use-after-move): the point
  REQUIRE((attend.size() == 0 && attend.most_rows() == 0 && attend.workspace_bytes(4) == 0));
  REQUIRE(attend.set_rows(three).kind() == ErrorKind::bad_state);
  REQUIRE(attend.set_rows({}).kind() == ErrorKind::bad_state);
  REQUIRE(attend.layer(1).status().kind() == ErrorKind::bad_state);
  REQUIRE(commits(rounds, 1).kind() == ErrorKind::bad_state);
  REQUIRE(rounds.commit({}, {}).kind() == ErrorKind::bad_state);
  // NOLINTEND(bugprone-use-after-move)
  REQUIRE(c.pos() == 7);
  REQUIRE(memra::check(kept_attend.layer(1)).common.at.rows == 3);
  REQUIRE(commits(kept_rounds, 2).ok());
  REQUIRE(c.pos() == 9);
}

/// A trunk and a drafter that speculate, both at position 6; the drafter may have come from elsewhere.
struct Pair {
  OpModel m{round_hybrid()};
  memra_test::Devices d;
  memra_test::rounds::Cache trunk = memra_test::rounds::make(d, m, 8);
  std::optional<memra::DflashKv<TestDev>> draft;
  std::optional<memra::Speculation<TestDev>> spec;

  explicit Pair(std::size_t cold_at) {
    memra::DflashCfg c;
    c.n_layer = c.n_kv = 1;
    c.head_dim = OpModel::width;
    c.block_size = 8;
    c.sliding_window = 16;
    draft.emplace(memra::check(memra::DflashKv<TestDev>::create_cold_at(d.dev[0], c, 40, cold_at)));
    if (cold_at != 0) memra::check(m.feed(trunk, stream(cold_at)));
    spec.emplace(memra::check(memra::Speculation<TestDev>::create(trunk, *draft, {5}, OpModel::width, 16)));
  }
  void forward(memra::Step<TestDev>& step, const Tokens& t) {
    std::vector<float> out;
    memra::check(m.forward(trunk, step, t, out));
  }
};

TEST_CASE("Speculation: a step whose draft rows are other rows is refused before either cache moves", "[hostile]") {
  Pair p(6);
  auto step = memra::check(p.spec->begin_step(3));
  p.forward(step, stream(3, 2));
  REQUIRE(p.spec->open_rows(4).status().kind() == ErrorKind::bad_state);  // more than the step has
  REQUIRE(p.spec->open_rows(2).ok());
  REQUIRE(p.spec->advance().kind() == ErrorKind::bad_state);
  REQUIRE((p.trunk.pos() == 6 && p.draft->len() == 6));
  REQUIRE(p.spec->open_rows(3).ok());
  REQUIRE(p.draft->begin_block(2).ok());  // the drafter runs ahead, and gives the rows up
  REQUIRE(p.spec->advance().kind() == ErrorKind::bad_state);
  REQUIRE((p.trunk.pos() == 6 && p.draft->len() == 6));
  REQUIRE(p.spec->open_rows(3).ok());
  REQUIRE(p.spec->advance().ok());
  REQUIRE((p.spec->level() && p.spec->pos() == 9));
  REQUIRE(p.spec->advance().kind() == ErrorKind::bad_state);
}

TEST_CASE("Speculation: a step the drafter has no room for is refused before the trunk moves", "[hostile]") {
  Pair p(0);
  *p.draft = memra::check(memra::DflashKv<TestDev>::create(p.d.dev[0], p.draft->config(), 7));
  const auto feed_step = [&](std::size_t rows) {
    auto step = memra::check(p.spec->begin_step(rows));
    p.forward(step, stream(rows));
    memra::check(p.spec->open_rows(rows));
    memra::check(p.spec->advance());
  };
  feed_step(5);
  const auto before = image(p.trunk);
  const memra::Status full = p.spec->begin_step(3).status();
  REQUIRE(full.kind() == ErrorKind::bad_argument);
  REQUIRE(std::string(full.text()) == "3 rows; 2 fit below the draft's cap 7");
  REQUIRE(image(p.trunk) == before);
  REQUIRE(p.trunk.dflash_taps() == nullptr);
  // Of a round fewer rows may be kept than it has.
  auto round = memra::check(p.spec->begin_round(3, memra::Strategy::stash));
  p.forward(round, stream(3, 2));
  REQUIRE(p.spec->open_rows(3).status().kind() == ErrorKind::bad_argument);
  REQUIRE(p.spec->open_rows(1).ok());
  REQUIRE(p.spec->commit(1, 0).ok());
  feed_step(1);
  REQUIRE((p.spec->level() && p.spec->pos() == 7));
  REQUIRE(p.spec->begin_step(1).status().kind() == ErrorKind::bad_argument);
}

TEST_CASE("Speculation: a rollback the drafter cannot follow is refused before the trunk moves", "[hostile]") {
  Pair p(6);
  REQUIRE(p.spec->rollback(memra::check(p.trunk.snapshot()), huge, 0).status().kind() == ErrorKind::bad_argument);
  Pair q(0);
  const auto start = memra::check(q.trunk.snapshot());
  const auto cold = [&] {  // a drafter without history, put beside a trunk that has one
    memra::check(q.m.feed(q.trunk, stream(6)));
    *q.draft = memra::check(memra::DflashKv<TestDev>::create_cold_at(q.d.dev[0], q.draft->config(), 40, 6));
  };
  cold();
  const auto before = image(q.trunk);
  REQUIRE(q.spec->rollback(start, 2, 0).status().kind() == ErrorKind::bad_argument);
  REQUIRE(image(q.trunk) == before);
  REQUIRE((q.spec->level() && q.draft->may_truncate(6).ok() && !q.draft->may_truncate(5).ok()));
}

TEST_CASE("Speculation: a moved-from one refuses, one assigned to itself stays", "[hostile]") {
  Pair p(6);
  auto step = memra::check(p.spec->begin_step(1));
  p.forward(step, stream(1, 2));
  REQUIRE(p.spec->open_rows(1).ok());
  memra::Speculation<TestDev> other = std::move(*p.spec);
  memra::Speculation<TestDev>& gone = *p.spec;
  const auto snap_refused = [&](const memra::Status& s) { return s.kind() == ErrorKind::bad_state; };
  REQUIRE(snap_refused(gone.advance()));
  REQUIRE(snap_refused(gone.commit(0, 0).status()));
  REQUIRE(snap_refused(gone.begin_step(1).status()));
  REQUIRE(snap_refused(gone.begin_round(1).status()));
  REQUIRE(snap_refused(gone.open_rows(1).status()));
  REQUIRE(snap_refused(gone.abandon()));
  REQUIRE(snap_refused(gone.repair()));
  REQUIRE(gone.strategy() == memra::Strategy::automatic);
  REQUIRE((p.trunk.pos() == 6 && p.draft->len() == 6));
  auto& same = other;
  other = std::move(same);
  REQUIRE(other.advance().ok());
  REQUIRE((other.level() && other.pos() == 7));
}

}  // namespace
}  // namespace hostile_cpp
