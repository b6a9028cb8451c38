// attend_batch: what many sequences get in one launch is what each gets alone.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memra/any_dev.hpp>
#include <memra/attend_batch.hpp>
#include <memra/cache.hpp>
#include <memra/counting_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/ordered_dev.hpp>
#include <memra/portable_ops.hpp>
#include <memra/workspace.hpp>
#include <support/attend_case.hpp>
#include <support/batch_case.hpp>
#include <support/catch.hpp>
#include <support/placements.hpp>
#include <support/says.hpp>
#include <support/stand_in.hpp>
#include <utility>
#include <vector>

namespace attend_batch_cpp {
namespace {

using namespace memra_test;  // NOLINT(google-build-using-namespace): helpers written for these tests
using memra::AttendBatch;
using memra::ErrorKind;
using memra::HostDev;

struct PortableHost : HostDev {
  using kernels = memra::PortableKernels;
};

const std::vector<Turn>& turns() {
  static const std::vector<Turn> all = {{88, 1}, {0, 5}, {60, 0}, {-3, 2}, {49, 17}};
  return all;
}
const std::vector<std::size_t>& lens() {
  static const std::vector<std::size_t> all = {89, 5, 70, 40, 66};
  return all;
}

TEST_CASE("C10 sequences in one launch get the bits of a call each, on every kernel set", "[attend_batch][identity]") {
  for (const KvShape& s : kv_shapes()) {
    CAPTURE(memra::to_string(s.k_format), memra::to_string(s.v_format), s.dv, s.window, s.base, s.ring, s.v_in_k);
    std::vector<std::size_t> n = lens();
    std::vector<Turn> t = turns();
    for (std::size_t& x : n) x += s.base;
    for (Turn& x : t) x.pos += x.pos < 0 ? 0 : static_cast<std::int32_t>(s.base);
    HostDev host;
    const BatchOn<HostDev> a(host, s, n, 3);
    const Bytes want = a.alone(host, t);
    CHECK((a.together(host, t) == want));
    PortableHost portable;
    const BatchOn<PortableHost> b(portable, s, n, 3);
    CHECK((b.together(portable, t) == want));
    std::reverse(n.begin(), n.end());  // the first one's planes are not the longest
    std::swap(n[0], n[3]);
    std::reverse(t.begin(), t.end());
    std::swap(t[0], t[3]);
    const BatchOn<HostDev> c(host, s, n, 4);
    const BatchOn<PortableHost> d(portable, s, n, 4);
    const Bytes other = c.alone(host, t);
    CHECK((c.together(host, t) == other));
    CHECK((d.together(portable, t) == other));
    // Red arm: another position of one sequence is seen.
    t[3].pos -= 1;
    CHECK((c.together(host, t) != other));
  }
}

TEST_CASE("sequences in one launch against float64", "[attend_batch]") {
  AttendShape s;
  s.n_heads = 6;
  s.n_kv = 2;
  s.window = 30;
  const AttendCase long_one(s, 150, 5, 1);
  const AttendCase short_one(s, 9, 5, 2);
  const std::int32_t pos[2] = {140, 6};
  HostDev dev;
  auto batch = memra::check(AttendBatch<HostDev>::create(
      dev, std::vector<memra::KvReadView>{long_one.view(pos, 4), short_one.view(pos + 1, 3)}, 4));
  REQUIRE(batch.set_rows(std::vector<std::size_t>{4, 3}).ok());
  const std::size_t row = s.n_heads * s.dk;
  std::vector<float> q(long_one.q.begin() + static_cast<std::ptrdiff_t>(140 * row),
                       long_one.q.begin() + static_cast<std::ptrdiff_t>(144 * row));
  q.insert(q.end(), short_one.q.begin() + static_cast<std::ptrdiff_t>(6 * row), short_one.q.end());
  std::vector<float> out(7 * s.n_heads * s.dv);
  Scratch scratch(batch.workspace_bytes(s.n_heads));
  const memra::AttendArgs args{q.data(), out.data(), s.n_heads, long_one.scale};
  REQUIRE(memra::ops_for<HostDev>(dev).attend_batch(memra::check(batch.layer(0)), args, scratch.view()).ok());
  std::vector<double> want = long_one.oracle(140, 4);
  const std::vector<double> more = short_one.oracle(6, 3);
  want.insert(want.end(), more.begin(), more.end());
  REQUIRE(max_error(out, want) < 2e-5);
  want[5] += 1e-3;  // red arm
  REQUIRE_FALSE(max_error(out, want) < 2e-5);
}

TEST_CASE("C10 neighbours change no bit: their number, order, length and NaN", "[attend_batch]") {
  HostDev dev;
  const KvShape s;
  const BatchOn<HostDev> b(dev, s, {80, 50}, 5);
  const Bytes alone = b.members[0].run(dev, 70, 3);
  const auto first = [&](Bytes all) {
    all.resize(alone.size());
    return all;
  };
  REQUIRE((first(b.together(dev, {{70, 3}, {40, 1}})) == alone));
  REQUIRE((first(b.together(dev, {{70, 3}, {10, 16}})) == alone));
  REQUIRE((first(b.together(dev, {{70, 3}, {-1, 1}})) == alone));
  // A sequence of its own, and last of a batch whose first is all NaN.
  for (const std::size_t before : {0U, 1U}) {
    std::vector<memra::KvReadView> views = {b.view(0)};
    const BatchOn<HostDev> nan(dev, s, {50}, 6);
    REQUIRE(dev.fill(nan.members[0].k.data(), std::byte{0xFF}, 100).ok());
    REQUIRE(dev.fill(nan.members[0].v.data(), std::byte{0xFF}, 100).ok());
    if (before != 0) views.insert(views.begin(), nan.view(0));
    nan.move_to(dev, {{20, 2}});
    b.move_to(dev, {{70, 3}});
    auto batch = memra::check(AttendBatch<HostDev>::create(dev, views, 3));
    std::vector<std::size_t> rows = {3};
    if (before != 0) rows.insert(rows.begin(), 2);
    REQUIRE(batch.set_rows(rows).ok());
    const std::size_t row = s.n_heads * s.dk;
    std::vector<float> q(2 * before * row, std::nanf(""));
    q.insert(q.end(), b.members[0].q_host.begin() + static_cast<std::ptrdiff_t>(70 * row),
             b.members[0].q_host.begin() + static_cast<std::ptrdiff_t>(73 * row));
    std::vector<float> out((2 * before + 3) * s.n_heads * s.dv, 1.0F);
    Scratch scratch(batch.workspace_bytes(s.n_heads));
    const memra::AttendArgs args{q.data(), out.data(), s.n_heads, 0.125F};
    REQUIRE(memra::ops_for<HostDev>(dev).attend_batch(memra::check(batch.layer(0)), args, scratch.view()).ok());
    const float* own = out.data() + 2 * before * s.n_heads * s.dv;
    REQUIRE(std::memcmp(own, alone.data(), alone.size()) == 0);
    if (before != 0) REQUIRE(out[0] != out[0]);  // NaN where it belongs
    // Red arm: NaN in a row of its own is seen.
    const AttendOn<HostDev>& mine = b.members[0];
    const Bytes kept = mine.v.bytes();
    REQUIRE(dev.fill(mine.v.data(), std::byte{0xFF}, 24).ok());
    REQUIRE(memra::ops_for<HostDev>(dev).attend_batch(memra::check(batch.layer(0)), args, scratch.view()).ok());
    REQUIRE(std::memcmp(own, alone.data(), alone.size()) != 0);
    REQUIRE(dev.upload(mine.v.data(), kept.data(), kept.size()).ok());
  }
}

/// Runs launches when told to, and again when told again: what a captured graph does.
class Recorder : public HostDev {
 public:
  using kernels = memra::HostKernels;
  template <class Body>
  memra::Status launch(const char*, memra::Grid grid, const Body& body) noexcept {
    work_ = [grid, body] {
      for (std::size_t z = grid.z; z-- > 0;) {
        for (std::size_t y = grid.y; y-- > 0;) {
          for (std::size_t x = grid.x; x-- > 0;) body(memra::Item{x, y, z});
        }
      }
    };
    return {};
  }
  void replay() const { work_(); }

 private:
  std::function<void()> work_;
};

TEST_CASE("a recorded call is replayed at other positions and with other row counts", "[attend_batch]") {
  Recorder dev;
  HostDev host;
  const KvShape s;
  const BatchOn<Recorder> b(dev, s, {80, 50, 64}, 5);
  const BatchOn<HostDev> single(host, s, {80, 50, 64}, 5);
  auto batch = memra::check(AttendBatch<Recorder>::create(dev, b.views(), 6));
  REQUIRE(batch.set_rows(std::vector<std::size_t>{4, 4, 4}).ok());
  std::vector<float> q(12 * s.n_heads * s.dk);
  std::vector<float> out(12 * s.n_heads * s.dv);
  Scratch scratch(batch.workspace_bytes(s.n_heads));
  REQUIRE(memra::ops_for<Recorder>(dev)
              .attend_batch(memra::check(batch.layer(0)), {q.data(), out.data(), s.n_heads, 0.125F}, scratch.view())
              .ok());
  const std::vector<std::vector<Turn>> calls = {
      {{0, 4}, {40, 4}, {60, 4}}, {{70, 1}, {49, 1}, {3, 1}}, {{76, 4}, {9, 0}, {30, 2}}, {{76, 0}, {9, 4}, {-7, 1}}};
  for (const std::vector<Turn>& t : calls) {
    b.move_to(dev, t);
    REQUIRE(batch.set_rows(BatchOn<Recorder>::rows(t)).ok());
    const std::vector<float> now = b.queries(t);
    std::copy(now.begin(), now.end(), q.begin());
    dev.replay();
    const Bytes want = single.alone(host, t);
    REQUIRE(std::memcmp(out.data(), want.data(), want.size() - 64) == 0);
  }
  // More rows than the call was launched for: it takes those it was launched for.
  b.move_to(dev, {{70, 6}, {9, 0}, {30, 1}});
  REQUIRE(batch.set_rows(std::vector<std::size_t>{6, 0, 1}).ok());
  const std::vector<float> now = b.queries({{70, 6}, {9, 0}, {30, 1}});
  std::copy(now.begin(), now.end(), q.begin());
  std::fill(out.begin(), out.end(), 5.0F);
  dev.replay();
  Bytes want = single.alone(host, {{70, 6}});
  const std::size_t row = s.n_heads * s.dv;
  REQUIRE(std::memcmp(out.data(), want.data(), 4 * row * 4) == 0);
  REQUIRE((out[4 * row] == 5.0F && out[6 * row - 1] == 5.0F));
  want = single.alone(host, {{0, 0}, {0, 0}, {30, 1}});
  REQUIRE(std::memcmp(out.data() + 6 * row, want.data(), row * 4) == 0);
}

template <class Dev>
void through(Dev& dev, const Bytes& want) {
  const BatchOn<Dev> b(dev, KvShape{}, lens(), 3);
  REQUIRE((b.together(dev, turns()) == want));
}

TEST_CASE("through wrappers and AnyDev it is one launch of its name, and the same bits", "[attend_batch]") {
  HostDev host;
  const Bytes want = BatchOn<HostDev>(host, KvShape{}, lens(), 3).together(host, turns());
  memra::CountingDev<HostDev> counting;
  through(counting, want);
  REQUIRE(counting.counters().launched("attend_batch") == 1);
  REQUIRE(counting.counters().launched("attend") == 0);
  memra::OrderedDev<PortableHost> late;
  through(late, want);
  TestDev inner;
  memra::AnyDev any(inner);
  through(any, want);
}

TEST_CASE("numbers only: a call of a batch stores row counts and launches", "[attend_batch]") {
  memra::CountingDev<HostDev> dev;
  const BatchOn<memra::CountingDev<HostDev>> b(dev, KvShape{}, std::vector<std::size_t>(200, 4), 3);
  auto batch = memra::check(AttendBatch<memra::CountingDev<HostDev>>::create(dev, b.views(), 2));
  dev.reset();
  REQUIRE(batch.set_rows(std::vector<std::size_t>(200, 2)).ok());
  REQUIRE(dev.counters().total_calls() == 4);  // 201 numbers, 64 at a time
  REQUIRE(dev.counters().calls(memra::DevOp::store_i32) == 4);
}

/// The rows of two layers and more, in caches: appended and attended step by step, the batch beside single calls.
template <class Dev>
void caches_decode(const std::vector<memra::Cache<Dev>*>& caches, std::size_t most_rows) {
  auto batch = memra::check(AttendBatch<Dev>::create(caches, most_rows));
  REQUIRE((batch.size() == caches.size() && batch.most_rows() == most_rows));
  Rng rng(4);
  std::size_t attended = 0;
  for (std::size_t turn = 0; turn < 12; ++turn) {
    std::vector<std::size_t> rows;
    std::vector<memra::Step<Dev>> steps;
    for (std::size_t i = 0; i < caches.size(); ++i) {
      rows.push_back(1 + (turn * 3 + i) % most_rows);
      steps.push_back(memra::check(caches[i]->begin_step(rows[i])));
    }
    REQUIRE(batch.set_rows(rows, turn % 2 == 0 ? caches[0]->max_ctx() : batch.anywhere).ok());
    std::size_t all = 0;
    for (const std::size_t r : rows) all += r;
    for (std::size_t il = 0; il < caches[0]->n_layer(); ++il) {
      for (std::size_t nth = 0; caches[0]->kv(il, nth); ++nth) {
        Dev& dev = caches[0]->dev(il);
        const memra::ops_for<Dev> ops(dev);
        const memra::AttentionSpec spec = caches[0]->kv(il, nth)->spec;
        if (spec.head_dim_v == 0) {  // keys of an indexer
          REQUIRE_FALSE(batch.layer(il, nth).ok());
          for (memra::Step<Dev>& s : steps) memra::check(s.kv_write(il, nth));
          continue;
        }
        const std::size_t heads = spec.n_heads == 0 ? spec.n_kv_heads : spec.n_heads;
        const OnDev<Dev> q(dev, rng.vector(all * heads * spec.head_dim_k, 2.0F));
        const OnDev<Dev> out(dev, all * heads * spec.head_dim_v * 4);
        const OnDev<Dev> expected(dev, all * heads * spec.head_dim_v * 4);
        auto ws = memra::check(memra::Workspace<Dev>::create(dev, batch.workspace_bytes(heads)));
        REQUIRE(ws.bytes() <= caches[0]->plan().workspace_bytes(most_rows, caches.size()));
        auto single = memra::check(memra::Workspace<Dev>::create(dev, caches[0]->plan().workspace_bytes(most_rows)));
        std::size_t row = 0;
        for (std::size_t i = 0; i < caches.size(); ++i) {
          const auto write = steps[i].kv_write(il, nth);  // refused where the layer shares another's
          if (write.ok()) {
            const OnDev<Dev> k(dev, rng.vector(rows[i] * spec.n_kv_heads * spec.head_dim_k, 2.0F));
            const OnDev<Dev> v(dev, rng.vector(rows[i] * spec.n_kv_heads * spec.head_dim_v, 2.0F));
            REQUIRE(ops.append(*write, k.floats(), v.floats()).ok());
          }
          const memra::AttendArgs a{q.floats() + row * heads * spec.head_dim_k,
                                    expected.floats() + row * heads * spec.head_dim_v, heads, 0.2F};
          memra::check(ops.attend(memra::check(steps[i].kv_read(il, nth)), a, single.view()));
          row += rows[i];
        }
        const memra::AttendArgs a{q.floats(), out.floats(), heads, 0.2F};
        REQUIRE(ops.attend_batch(memra::check(batch.layer(il, nth)), a, ws.view()).ok());
        REQUIRE((out.bytes() == expected.bytes()));
        ++attended;
      }
    }
    for (std::size_t i = 0; i < caches.size(); ++i) {
      for (std::size_t il = 0; il < caches[i]->n_layer(); ++il) {
        for (std::size_t nth = 0; caches[i]->recur(il, nth); ++nth) memra::check(steps[i].recur(il, nth));
        for (std::size_t nth = 0; caches[i]->grouped(il, nth); ++nth) memra::check(steps[i].grouped(il, nth));
      }
      REQUIRE(caches[i]->advance().ok());
    }
  }
  REQUIRE(attended >= 12);
  REQUIRE(says(batch.layer(99).status(), ErrorKind::bad_argument, "layer 99 has no attention state 0"));
}

TEST_CASE("caches of every kind of layer, in every placement, attend together", "[attend_batch]") {
  for (const memra::ModelConfig& cfg : {hybrid_model(), kinds_model()}) {
    for (const PlacedOn& p : placements(cfg.layers.size())) {
      Devices d;
      std::vector<memra::Cache<TestDev>> all;
      for (const std::size_t ctx : {90U, 80U, 130U}) all.push_back(memra::check(d.create(p, cfg, ctx)));
      caches_decode<TestDev>({&all[0], &all[1], &all[2]}, 3);
    }
  }
}

TEST_CASE("what cannot be a batch says why", "[attend_batch]") {
  HostDev dev;
  using Batch = AttendBatch<HostDev>;
  const BatchOn<HostDev> b(dev, KvShape{}, {20, 20}, 1);
  const auto refused = [&](const std::vector<memra::KvReadView>& v, const char* words, std::size_t rows = 4) {
    return says(Batch::create(dev, v, rows).status(), ErrorKind::bad_argument, words);
  };
  const auto changed = [&](auto change) {
    std::vector<memra::KvReadView> v = b.views();
    change(v[1]);
    return v;
  };
  CHECK(refused({}, "no sequence"));
  CHECK(refused(b.views(), "0 rows", 0));
  CHECK(refused(changed([](auto& v) { v.k.data = nullptr; }), "sequence 1, layer 0: a plane or pos_d is null"));
  CHECK(refused(changed([](auto& v) { v.v.data = nullptr; }), "a plane or pos_d is null"));
  CHECK(refused(changed([](auto& v) { v.at.pos_d = nullptr; }), "a plane or pos_d is null"));
  CHECK(refused(changed([](auto& v) { v.n_kv_heads = 1; }), "other heads or head dimensions"));
  CHECK(refused(changed([](auto& v) { v.head_dim_k = 32; }), "other heads or head dimensions"));
  CHECK(refused(changed([](auto& v) { v.head_dim_v = 64; }), "other heads or head dimensions"));
  CHECK(refused(changed([](auto& v) { v.k.shape.width *= 2; }), "other heads or head dimensions"));
  CHECK(refused(changed([](auto& v) { v.v_in_k = true; }), "other heads or head dimensions"));
  CHECK(refused(changed([](auto& v) { v.k.shape.format = memra::Format::f16; }), "other formats or layouts"));
  CHECK(refused(changed([](auto& v) { v.v.shape.layout = memra::Layout::split; }), "other formats or layouts"));
  CHECK(refused(changed([](auto& v) { v.k.data += 1; }), "begin at a multiple of 16"));
  CHECK(refused(changed([](auto& v) { v.window = 5; }), "another window"));
  CHECK(refused(changed([](auto& v) { v.k.ring = true; }), "a ring"));
  const auto rings = [&](std::size_t rows) {
    std::vector<memra::KvReadView> v = b.views();
    for (auto& x : v) x.k.ring = x.v.ring = true, x.k.shape.rows = x.v.shape.rows = 64;
    v[1].k.shape.rows = v[1].v.shape.rows = rows;
    return v;
  };
  CHECK(refused(rings(65), "whole tiles of 64 rows"));
  CHECK(refused(rings(64), "for all of the call", 65));
  CHECK(Batch::create(dev, rings(128), 64).ok());
  CHECK(Batch::create(dev, b.views(), 4).ok());

  Devices d;
  const memra::ModelConfig cfg = attention_model();
  const auto make_cache = [&](std::size_t device, const memra::ModelConfig& c) {
    return memra::check(memra::Cache<TestDev>::create(d.dev[device], c, 30));
  };
  auto one = make_cache(0, cfg);
  auto two = make_cache(0, cfg);
  auto far = make_cache(1, cfg);
  auto other = make_cache(0, attention_model(memra::Format::f16));
  memra::ModelConfig shorter = cfg;
  shorter.layers.pop_back();
  auto less = make_cache(0, shorter);
  memra::ModelConfig lacking = cfg;
  lacking.layers[1] = memra::recurrent(recurrent_spec());
  auto without = make_cache(0, lacking);
  memra::ModelConfig none;
  none.layers = {memra::recurrent(recurrent_spec())};
  auto bare = make_cache(0, none);
  using Caches = std::vector<memra::Cache<TestDev>*>;
  const auto no = [&](const Caches& c, const char* words, std::size_t rows = 2) {
    return says(AttendBatch<TestDev>::create(c, rows).status(), ErrorKind::bad_argument, words);
  };
  CHECK(no({}, "no cache"));
  CHECK(no({&one, nullptr}, "null or moved-from"));
  CHECK(no({&one, &two, &one}, "comes twice"));
  CHECK(no({&one, &far}, "different devices"));
  CHECK(no({&one, &other}, "sequence 1, layer 0: it has other formats"));
  CHECK(no({&one, &less}, "different numbers of layers"));
  CHECK(no({&one, &without}, "lacks an attention layer"));
  CHECK(no({&bare}, "no attention layer"));
  CHECK(no({&one}, "0 rows", 0));
  CHECK(no({&one}, "a step of cache 0 takes at most 30", 31));
  auto gone = std::move(other);
  CHECK(no({&other}, "null or moved-from"));  // NOLINT(bugprone-use-after-move): the point
  for (std::size_t n = 1; n <= 3; ++n) {      // memory, tables, row counts
    d.arm(n);
    CHECK_FALSE(AttendBatch<TestDev>::create(Caches{&one, &two}, 2).ok());
    d.arm(0);
  }
  const std::size_t live = d.live();
  { CHECK(AttendBatch<TestDev>::create(Caches{&one, &two}, 2).ok()); }
  CHECK(d.live() == live);

  auto batch = memra::check(AttendBatch<TestDev>::create(Caches{&one, &two}, 2));
  const auto rows = [&](const std::vector<std::size_t>& r, const char* words) {
    return says(batch.set_rows(r), ErrorKind::bad_argument, words);
  };
  CHECK(rows({1}, "another number of row counts"));
  CHECK(rows({1, 3}, "3 rows of a sequence; the batch was made for 2"));
  auto many = memra::check(Batch::create(dev, b.views(), std::size_t{1} << 40));
  CHECK(says(many.set_rows(std::vector<std::size_t>(2, std::size_t{1} << 31)), ErrorKind::bad_argument, "2147483647"));
  d.arm(1);
  CHECK(batch.set_rows(std::vector<std::size_t>{2, 1}).kind() == ErrorKind::device_failure);
  d.arm(0);
  CHECK(batch.set_rows(std::vector<std::size_t>{2, 1}).ok());
}

TEST_CASE("S8 a call that is refused launches nothing", "[attend_batch]") {
  using Dev = memra::CountingDev<HostDev>;
  Dev dev;
  const KvShape s;
  const BatchOn<Dev> b(dev, s, {20, 20}, 1);
  auto batch = memra::check(AttendBatch<Dev>::create(dev, b.views(), 4));
  REQUIRE(batch.set_rows(std::vector<std::size_t>{4, 1}).ok());
  const memra::AttendBatchView view = memra::check(batch.layer(0));
  const std::size_t bytes = batch.workspace_bytes(s.n_heads);
  REQUIRE(bytes == memra::detail::attend_batch_scratch_bytes(s.n_heads, s.n_kv, s.dk, s.dv, 2, 4, 24));
  REQUIRE(bytes <= 2 * memra::detail::attend_scratch_bytes(s.n_heads, s.n_kv, s.dk, s.dv, 4));
  Scratch scratch(bytes);
  std::vector<float> q(5 * s.n_heads * s.dk);
  std::vector<float> out(5 * s.n_heads * s.dv);
  const memra::AttendArgs a{q.data(), out.data(), s.n_heads, 1.0F};
  const memra::ops_for<Dev> ops(dev);
  dev.reset();
  const auto refused = [&](const memra::AttendBatchView& v, const memra::AttendArgs& args, std::size_t ws,
                           const char* words) {
    return says(ops.attend_batch(v, args, {scratch.view().data, ws}), ErrorKind::bad_argument, words);
  };
  CHECK(refused(view, a, bytes - 1, "this call needs"));
  memra::AttendBatchView v = view;
  v.table = nullptr;
  CHECK(refused(v, a, bytes, "expected a layer of an AttendBatch"));
  v = view;
  v.starts = nullptr;
  CHECK(refused(v, a, bytes, "expected a layer of an AttendBatch"));
  CHECK(refused(view, {nullptr, out.data(), s.n_heads, 1.0F}, bytes, "q, out or pos_d is null"));
  CHECK(refused(view, {q.data(), nullptr, s.n_heads, 1.0F}, bytes, "q, out or pos_d is null"));
  CHECK(refused(view, {q.data(), out.data(), 3, 1.0F}, bytes, "3 query heads over 2 kv heads"));
  // Nothing to do: a table of none, every sequence sits it out.
  REQUIRE(ops.attend_batch({}, a, {}).ok());
  REQUIRE(batch.set_rows(std::vector<std::size_t>{0, 0}).ok());
  dev.reset();
  REQUIRE(ops.attend_batch(memra::check(batch.layer(0)), {}, {}).ok());
  REQUIRE(dev.counters().total_calls() == 0);
  REQUIRE(ops.attend_batch(view, a, {scratch.view().data, bytes}).ok());
  REQUIRE(dev.counters().total_calls() == 1);
}

TEST_CASE("scratch of a batch is bounded by the keys there are, and never wraps", "[attend_batch]") {
  using memra::detail::attend_batch_scratch_bytes;
  using memra::detail::attend_scratch_bytes;
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  // 64/8 d128, 32 sequences of 4,096 keys: 32 pieces of each row, 130 floats a head and piece.
  REQUIRE(attend_batch_scratch_bytes(64, 8, 128, 128, 32, 1, 4096) == 32U * 64 * 32 * 130 * 4 + 64);
  REQUIRE(attend_batch_scratch_bytes(64, 8, 128, 128, 32, 16, 4096) == 16U * 32 * 64 * 32 * 130 * 4 + 64);
  // 3/1 d20: 66 floats, of which whole lines are 80; on the host 11,360 bytes.
  REQUIRE(attend_batch_scratch_bytes(3, 1, 20, 20, 90, 1, 128) == (89U * 80 + 66) * 4 + 64);
  for (const std::size_t n : {1U, 2U, 32U}) {
    for (const std::size_t rows : {1U, 5U, 16U, 40U}) {
      for (const std::size_t keys : {std::size_t{0}, std::size_t{1}, std::size_t{257}, std::size_t{131072}, most}) {
        REQUIRE(attend_batch_scratch_bytes(64, 8, 128, 128, n, rows, keys) <=
                n * attend_scratch_bytes(64, 8, 128, 128, rows));
        REQUIRE(attend_batch_scratch_bytes(3, 1, 20, 21, n, rows, keys) <=
                n * attend_scratch_bytes(3, 1, 20, 21, rows));
      }
      REQUIRE(attend_batch_scratch_bytes(64, 8, 128, 128, 1, rows, most) ==
              attend_scratch_bytes(64, 8, 128, 128, rows));
    }
  }
  REQUIRE(attend_batch_scratch_bytes(64, 8, 128, 128, most, 16, most) == most);
  REQUIRE(attend_batch_scratch_bytes(most, 8, 128, 128, 2, 16, 100) == most);
  REQUIRE(attend_batch_scratch_bytes(64, 8, most, 128, 2, 16, 100) == most);
}

}  // namespace
}  // namespace attend_batch_cpp
