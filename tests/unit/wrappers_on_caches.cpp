// The instruments turned on the library: Cache and DflashKv on poisoned, guarded, late and failing devices.
#include <cmath>
#include <conformance/cache_suite.hpp>
#include <conformance/kernel_suite.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/cache.hpp>
#include <memra/canary_dev.hpp>
#include <memra/counting_dev.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/fault_dev.hpp>
#include <memra/guard_planes.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/kv_dev.hpp>
#include <memra/ordered_dev.hpp>
#include <memra/placement.hpp>
#include <memra/plan.hpp>
#include <memra/poison_dev.hpp>
#include <memra/workspace.hpp>
#include <string>
#include <support/catch.hpp>
#include <support/stand_in.hpp>
#include <vector>

namespace wrappers_on_caches_cpp {
namespace {

using memra::DevOp;
using memra_conformance::Bytes;
using memra_conformance::Report;
using memra_test::Tokens;
using Guarded = memra::CanaryDev<memra::HostDev>;
using Late = memra::OrderedDev<memra::PoisonDev<Guarded>>;
using Counted = memra::CountingDev<Late>;
using Dev = memra::FaultDev<Counted>;

Guarded& guards(Dev& dev) {
  return memra::detail::canary_of(dev);
}
memra::Fault nth(std::size_t n) {
  memra::Fault f;
  f.nth = n;
  return f;
}

/// Guards every slab of a cache of `rows` rows on `dev`, or of a prefix at so many, whoever makes it from now on.
memra::Plan guard_all(Dev& dev, const memra::ModelConfig& cfg, std::size_t rows) {
  auto plan =
      memra::check(memra::plan(cfg, rows, memra::Placement::single(cfg.layers.size(), memra::plane_gap_of(dev))));
  memra::check(memra::guard_planned(dev, plan, cfg));
  return plan;
}

TEST_CASE("rounds on a poisoned, guarded, late device: right bytes, no guard touched, nothing left", "[wrappers]") {
  for (const auto& cfg : {memra_test::hybrid_model(), memra_test::hybrid_model(memra::Format::q4_0, memra::Format::f16),
                          memra_test::hybrid_model(memra::Format::q5_1, memra::Format::q8_0, memra::Layout::split),
                          memra_test::attention_model(), memra_test::recurrent_model()}) {
    Dev a, b;
    Report r;
    {
      Dev* const devs[] = {&a, &b, &a};
      const std::size_t fence[] = {0, 1, cfg.layers.size() - 1, cfg.layers.size()};
      auto cache = memra::check(memra::Cache<Dev>::create_ppn(devs, fence, cfg, 40));
      memra::check(memra::guard_planes(cache));
      memra_conformance::detail::speculate(cache, r);
      memra::check(memra::guard_planned(a, cache.plan(), cfg, 0));  // snapshots
      memra::check(memra::guard_planned(b, cache.plan(), cfg, 1));
      const auto snap = memra::check(cache.snapshot());
      const auto layout = memra::check(cache.export_prefix(snap)).plan();
      memra::check(memra::guard_planned(a, layout, cfg, 0));
      memra::check(memra::guard_planned(b, layout, cfg, 1));
      const auto prefix = memra::check(cache.export_prefix(snap));
      guard_all(b, cfg, 30);
      auto other = memra::check(memra::Cache<Dev>::from_prefix(b, cfg, 30, prefix));
      REQUIRE(memra_test::image(other).parts == memra_test::image(cache).parts);
      memra::check(cache.reset());
      memra::check(memra_test::feed_by(cache, memra_test::stream(40), 7));
      memra_conformance::detail::equals(r, cache, memra_test::stream(40), "to the last row");
    }
    INFO(r.text());
    REQUIRE(r.ok());
    for (Dev* d : {&a, &b}) {
      REQUIRE(d->inner().counters().live == 0);
      memra::check(d->synchronize());
      REQUIRE(guards(*d).violations() == 0);
    }
  }
}

TEST_CASE("kernels read nothing that nobody wrote and stay inside their planes", "[wrappers]") {
  memra::HostDev host;
  memra_conformance::detail::KernelModel<memra::HostDev> want(host);
  Dev dev;
  memra_conformance::detail::KernelModel<Dev> got(dev);
  memra::check(memra::guard_planes(got.cache));
  for (const std::size_t rows : {3U, 1U, 13U, 7U}) {  // to the last row of the planes
    memra::check(want.forward(rows));
    memra::check(got.forward(rows));
  }
  const Bytes results = got.results();
  REQUIRE(results == want.results());
  for (std::size_t i = 0; i < results.size(); i += sizeof(float)) {
    float x = 0;
    std::memcpy(&x, results.data() + i, sizeof x);
    REQUIRE(std::isfinite(x));
  }
  REQUIRE(guards(dev).violations() == 0);
}

TEST_CASE("B32 a hundred rounds allocate nothing and copy nothing through the host", "[wrappers]") {
  Dev dev;
  auto cache = memra::check(memra::Cache<Dev>::create(dev, memra_test::hybrid_model(), 16));
  memra::check(memra_test::feed_by(cache, memra_test::stream(5)));
  auto snap = memra::check(cache.snapshot());
  memra::check(dev.synchronize());
  const std::size_t calls_before = dev.calls();
  dev.inner().reset();
  for (int i = 0; i < 100; ++i) {
    memra::check(cache.snapshot_into(snap));
    memra::check(cache.rollback(snap, 0));
  }
  const auto& n = dev.inner().counters();
  REQUIRE(n.allocations() == 0);
  REQUIRE(n.frees == 0);
  REQUIRE(n.host_copies() == 0);
  REQUIRE(n.calls(DevOp::synchronize) == 0);
  REQUIRE(n.copies() == 200);  // C11: one per device object, each way
  REQUIRE(n.copied_bytes() == 200 * cache.plan().totals.snapshot_bytes);
  REQUIRE(n.calls(DevOp::store_i32) == 100);
  REQUIRE(dev.calls() - calls_before == 300);
  const auto fresh = memra::check(cache.snapshot());  // red arm: this one does allocate
  REQUIRE(n.allocations() == 1);
}

TEST_CASE("B33 rollback of attention layers moves no row, whatever the context", "[wrappers]") {
  for (const std::size_t len : {10U, 640U}) {
    Dev dev;
    auto cache = memra::check(memra::Cache<Dev>::create(dev, memra_test::attention_model(), 700));
    memra::check(memra_test::feed_by(cache, memra_test::stream(len), 64));
    const auto snap = memra::check(cache.snapshot());
    memra::check(memra_test::feed_by(cache, memra_test::stream(8, 2), 8));
    memra::check(dev.synchronize());
    dev.inner().reset();
    REQUIRE(memra::check(cache.rollback(snap, 3)).pos == len + 3);
    REQUIRE(dev.inner().counters().total_calls() == 1);  // the position
    REQUIRE(dev.inner().counters().calls(DevOp::store_i32) == 1);
  }
}

/// Fails call n of `operation` for every n; `make` builds what it works on and `look` judges what a failure left.
/// @param keeps  whether the operation leaves a buffer behind that was not there if its call n fails
template <class Make, class Operation, class Look>
std::size_t sweep(
    Make make, Operation operation, Look look, bool (*keeps)(std::size_t n) = [](std::size_t) { return false; }) {
  for (std::size_t n = 1;; ++n) {
    Dev dev;
    Dev other;
    {
      auto thing = make(dev);
      memra::check(dev.synchronize());
      const std::size_t live = dev.inner().counters().live;
      dev.arm(nth(n));
      const bool ok = operation(thing, dev, other);
      const bool fired = dev.fired() != 0;
      dev.disarm();
      if (!fired) {
        REQUIRE(ok);
        return n - 1;
      }
      REQUIRE_FALSE(ok);
      REQUIRE(dev.inner().counters().live == live + (keeps(n) ? 1 : 0));
      look(thing);
    }
    memra::check(dev.synchronize());
    REQUIRE(dev.inner().counters().live == 0);
    REQUIRE(other.inner().counters().live == 0);
    REQUIRE(guards(dev).violations() == 0);
  }
}

struct Fed {
  memra::Cache<Dev> cache;
  memra::CacheSnapshot<Dev> snap;
  Tokens tokens;

  void is_whole() const {
    REQUIRE_FALSE(cache.tainted());
    REQUIRE(memra_test::image(cache) == memra_test::straight(cache.config(), tokens));
  }
  void comes_back() {
    if (!cache.tainted()) return is_whole();
    REQUIRE_FALSE(cache.begin_step(1).ok());
    memra::check(cache.rollback(snap, 0));
    tokens = memra_test::part(tokens, 0, snap.pos());
    is_whole();
  }
};
/// Its slabs are guarded plane by plane, and those of its snapshots, of a prefix at 6 and of a cache made of that.
Fed fed_with(Dev& dev, const memra::ModelConfig& cfg) {
  const auto plan = guard_all(dev, cfg, 20);
  guard_all(dev, cfg, 6);
  auto cache = memra::check(memra::Cache<Dev>::create(dev, cfg, 20));
  REQUIRE(cache.plan().totals.total_bytes == plan.totals.total_bytes);
  memra::check(memra_test::feed_by(cache, memra_test::stream(6), 3));
  auto snap = memra::check(cache.snapshot());
  memra::check(memra_test::feed_by(cache, memra_test::stream(3, 2), 3));
  return {std::move(cache), std::move(snap), memra_test::join(memra_test::stream(6), memra_test::stream(3, 2))};
}

TEST_CASE("a device that fails at every place of every change of a cache", "[wrappers]") {
  const bool kinds = GENERATE(false, true);  // rings, latent, shared and grouped rows, every rule
  const auto fed = [kinds](Dev& dev) {
    return fed_with(dev, kinds ? memra_test::kinds_model() : memra_test::hybrid_model());
  };
  const auto snapshot = [](Fed& f, Dev&, Dev&) { return f.cache.snapshot().ok(); };
  const auto refresh = [](Fed& f, Dev&, Dev&) {
    // A second snapshot, so that the first can still bring the cache back.
    auto second = f.cache.snapshot();
    if (!second) return false;
    const bool ok = f.cache.snapshot_into(*second).ok();
    REQUIRE(second->valid() == ok);
    return ok;
  };
  const auto rollback = [](Fed& f, Dev&, Dev&) { return f.cache.rollback(f.snap, 2).ok(); };
  const auto reset = [](Fed& f, Dev&, Dev&) { return f.cache.reset().ok(); };
  const auto publish = [](Fed& f, Dev&, Dev&) { return f.cache.export_prefix(f.snap).ok(); };
  const auto restore = [](Fed& f, Dev& dev, Dev&) {
    auto prefix = f.cache.export_prefix(f.snap);
    return prefix && memra::Cache<Dev>::from_prefix(dev, f.cache.config(), 20, *prefix).ok();
  };
  const auto step = [](Fed& f, Dev&, Dev&) { return memra_test::feed(f.cache, memra_test::stream(2, 9)).ok(); };
  const auto park = [](Fed& f, Dev&, Dev&) {
    return f.cache.park_logits(reinterpret_cast<const float*>(f.cache.kv(1)->k.data)).ok();
  };
  const auto whole = [](Fed& f) { f.is_whole(); };
  const auto back = [](Fed& f) { f.comes_back(); };
  REQUIRE(sweep(fed, snapshot, whole) == 2);
  REQUIRE(sweep(fed, refresh, whole) == 3);
  REQUIRE(sweep(fed, rollback, back) == 2);
  REQUIRE(sweep(fed, publish, whole) == 4);
  REQUIRE(sweep(fed, restore, whole) == (kinds ? 9 : 10));
  // Once there is memory for parked logits it stays: the first call takes it.
  REQUIRE(sweep(fed, park, whole, [](std::size_t n) { return n > 1; }) == 2);
  REQUIRE(sweep(fed, reset, [](Fed& f) {
            REQUIRE(f.cache.tainted());
            memra::check(f.cache.reset());
            f.tokens.clear();
            f.is_whole();
          }) == 2);
  REQUIRE(sweep(fed, step, [](Fed& f) {  // a forward that died half way is repaired by rollback, never by a retry
            memra::check(f.cache.rollback(f.snap, 0));
            f.tokens = memra_test::part(f.tokens, 0, f.snap.pos());
            f.is_whole();
          }) > 10);
}

using Draft = memra::DflashKv<Dev>;

Draft draft(Dev& dev) {
  Report r;
  auto kv = memra::check(Draft::create(dev, memra_conformance::detail::draft_config(true), 40));
  memra::check(memra::guard_planes(kv));
  memra_conformance::detail::draft_write(kv, memra::check(kv.begin_rows(17)), 1, r);
  memra::check(kv.commit());
  REQUIRE(r.ok());
  return kv;
}

/// All its bytes: len_d, every plane, and what is between.
Bytes bytes_of(const Draft& kv) {
  Bytes all(kv.plan().total_bytes);
  const auto* start = reinterpret_cast<const std::byte*>(kv.k(0)) - kv.plan().k_offset(0);
  memra::check(kv.device().download(all.data(), start, all.size()));
  return all;
}

TEST_CASE("a device that fails at every place of every change of a draft cache", "[wrappers]") {
  Dev untouched;
  const Bytes want = bytes_of(draft(untouched));
  const auto same = [&want](Draft& kv) {
    REQUIRE_FALSE(kv.tainted());
    REQUIRE(kv.len() == 17);
    REQUIRE(bytes_of(kv) == want);
  };
  REQUIRE(sweep(
              draft, [](Draft& kv, Dev&, Dev&) { return kv.export_tail(17).has_value(); }, same) == 8);
  REQUIRE(sweep(
              draft,
              [](Draft& kv, Dev& dev, Dev&) {
                const auto tail = kv.export_tail(17);
                return tail && Draft::from_tail(dev, kv.config(), 20, *tail).has_value();
              },
              same) > 12);
  REQUIRE(sweep(
              draft, [](Draft& kv, Dev& dev, Dev&) { return Draft::create_cold_at(dev, kv.config(), 20, 9).ok(); },
              same) >= 6);
  REQUIRE(sweep(
              draft,
              [](Draft& kv, Dev&, Dev&) {
                memra::check(kv.begin_rows(2));
                return kv.commit().ok();
              },
              [same](Draft& kv) {
                REQUIRE(kv.tainted());
                memra::check(kv.truncate(17));
                same(kv);
              }) == 1);
}

/// Draft attention of a block at `kv`'s end, by one arm.
template <class D>
std::vector<float> draft_attend(memra::DflashKv<D>& kv, memra::DraftArm arm) {
  D& dev = kv.device();
  Report r;
  auto rows = memra::check(kv.begin_block(4));
  memra_conformance::detail::draft_write(kv, rows, 50, r);
  REQUIRE(r.ok());
  auto ws = memra::check(memra::Workspace<D>::create(dev, kv.workspace_bytes(4)));
  const auto q = memra_conformance::Numbers(60).reals(4 * 4 * 8);
  auto q_d = memra::check(dev.alloc(q.size() * sizeof(float)));
  auto out_d = memra::check(dev.alloc(q.size() * sizeof(float)));
  memra::check(dev.upload(q_d.data(), reinterpret_cast<const std::byte*>(q.data()), q_d.size()));
  memra::DraftAttendArgs a;
  a.q = reinterpret_cast<const float*>(q_d.data());
  a.out = reinterpret_cast<float*>(out_d.data());
  a.n_heads = 4;
  a.arm = arm;
  memra::check(memra::ops_for<D>(dev).draft_attend(rows.view(0), a, ws.view()));
  std::vector<float> out(q.size());
  memra::check(dev.download(reinterpret_cast<std::byte*>(out.data()), out_d.data(), out_d.size()));
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_CASE("D5 D6 B111 both draft arms agree on poisoned memory, because rows below a tail are zero", "[wrappers]") {
  Dev dev;
  auto kv = draft(dev);
  const auto tail = kv.export_tail(17);
  REQUIRE(tail.has_value());
  auto back = Draft::from_tail(dev, kv.config(), 30, *tail);
  REQUIRE(back.has_value());
  memra::check(memra::guard_planes(*back));
  auto cold = memra::check(Draft::create_cold_at(dev, kv.config(), 30, 11));
  const auto want = draft_attend(kv, memra::DraftArm::clip);
  for (Draft* d : {&kv, &*back, &cold}) {
    const auto clip = draft_attend(*d, memra::DraftArm::clip);
    for (const float x : clip) REQUIRE(std::isfinite(x));
    REQUIRE(same_bits(clip, draft_attend(*d, memra::DraftArm::full_scan)));
    if (d != &cold) REQUIRE(same_bits(clip, want));
  }
  REQUIRE(guards(dev).violations() == 0);
  // Red arm: a row below the tail that is not finite shows in the full scan.
  auto* row = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(back->v(0)));
  memra::check(dev.fill(row, std::byte{0xff}, back->row_bytes()));
  REQUIRE_FALSE(same_bits(draft_attend(*back, memra::DraftArm::clip), draft_attend(*back, memra::DraftArm::full_scan)));
}

/// Faults below the queue: calls fail after they were accepted, and the next one says so.
TEST_CASE("C8 asynchronous failures of a rollback: some call reports them, and a repeated rollback heals",
          "[wrappers]") {
  using Async = memra::OrderedDev<memra::FaultDev<memra::PoisonDev<memra::HostDev>>>;
  const auto cfg = memra_test::hybrid_model();
  const Tokens tokens = memra_test::stream(6);
  for (std::size_t n = 1;; ++n) {
    Async dev;
    auto cache = memra::check(memra::Cache<Async>::create(dev, cfg, 20));
    memra::check(memra_test::feed_by(cache, tokens, 3));
    const auto snap = memra::check(cache.snapshot());
    memra::check(memra_test::feed_by(cache, memra_test::stream(3, 2), 3));
    memra::check(dev.synchronize());
    dev.inner().arm(nth(n));
    bool ok = cache.rollback(snap, 0).ok();
    ok = memra_test::feed_by(cache, memra_test::stream(2, 3), 2).ok() && ok;
    ok = dev.synchronize().ok() && ok;
    const bool fired = dev.inner().fired() != 0;
    dev.inner().disarm();
    REQUIRE(ok != fired);  // nothing fails in silence
    if (!fired) break;
    memra::check(cache.rollback(snap, 0));
    REQUIRE(memra_test::image(cache) == memra_test::straight(cfg, tokens));
  }
}

/// Lets the queue of `dev` run without asking it how that went.
template <class OrderedDev>
void run_queue(OrderedDev& dev) {
  OrderedDev other;
  typename OrderedDev::Event e;
  memra::check(dev.publish(e));
  memra::check(other.wait(e));
  memra::check(other.synchronize());
}

TEST_CASE("C8 an asynchronous failure taints the cache whichever of its calls reports it", "[wrappers]") {
  using Async = memra::OrderedDev<memra::FaultDev<memra::PoisonDev<memra::HostDev>>>;
  const auto cfg = memra_test::hybrid_model();
  const Tokens tokens = memra_test::stream(6);
  for (int reporter = 0; reporter < 7; ++reporter) {
    CAPTURE(reporter);
    Async dev;
    memra::CacheOptions options;
    options.rounds.rows = 4;
    options.rounds.replay = true;
    auto cache = memra::check(memra::Cache<Async>::create(dev, cfg, 20, options));
    memra::check(memra_test::feed_by(cache, tokens, 3));
    const auto snap = memra::check(cache.snapshot());
    auto work = memra::check(cache.snapshot());
    const auto row = memra::check(dev.zeros(cfg.n_vocab * sizeof(float)));
    memra::check(memra_test::feed(cache, memra_test::stream(2, 5)));
    memra::check(dev.synchronize());
    dev.inner().arm(nth(1));
    memra::check(cache.rollback(snap, 0));  // says that it is done, and its copy will fail
    run_queue(dev);
    REQUIRE(dev.inner().fired() == 1);
    dev.inner().disarm();
    REQUIRE_FALSE(cache.tainted());
    if (reporter == 5) cache.replayed(0);
    const memra::Status s = reporter == 0   ? cache.snapshot().status()
                            : reporter == 1 ? cache.snapshot_into(work)
                            : reporter == 2 ? cache.export_prefix(snap).status()
                            : reporter == 3 ? cache.begin_round(2).status()
                            : reporter == 4 ? cache.park_logits(reinterpret_cast<const float*>(row.data()))
                            : reporter == 5 ? cache.catch_up()
                                            : cache.rollback(snap, 0).status();
    REQUIRE((!s.ok() && s.asynchronous()));
    REQUIRE(cache.tainted());
    REQUIRE(cache.snapshot().status().kind() == memra::ErrorKind::bad_state);
    memra::check(cache.rollback(snap, 0));  // taken before the device was waited for
    REQUIRE(memra_test::image(cache) == memra_test::straight(cfg, tokens));
  }
}

TEST_CASE("D4 an asynchronous failure that an export meets is not lost", "[wrappers]") {
  using Async = memra::OrderedDev<memra::FaultDev<memra::HostDev>>;
  Async dev;
  memra::DflashCfg cfg;
  cfg.n_layer = cfg.n_kv = cfg.block_size = 1;
  cfg.head_dim = cfg.sliding_window = 4;
  auto kv = memra::check(memra::DflashKv<Async>::create(dev, cfg, 8));
  memra::check(kv.begin_rows(3));
  memra::check(kv.commit());
  memra::check(dev.synchronize());
  memra::check(kv.begin_rows(1));
  dev.inner().arm(nth(1));
  memra::check(kv.commit());  // len_d will not be stored
  run_queue(dev);
  dev.inner().disarm();
  REQUIRE_FALSE(kv.export_tail(3).has_value());
  REQUIRE(kv.tainted());
  REQUIRE_FALSE(kv.begin_block(1).ok());
  memra::check(kv.truncate(3));
  REQUIRE(kv.export_tail(3).has_value());
  memra::Fault now = nth(1);  // a failure of the export's own is none of the caller's business
  now.op = DevOp::alloc;
  now.kind = memra::ErrorKind::device_failure;
  dev.inner().arm(now);
  REQUIRE_FALSE(kv.export_tail(3).has_value());
  REQUIRE_FALSE(kv.tainted());
}

}  // namespace
}  // namespace wrappers_on_caches_cpp
