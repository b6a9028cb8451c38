// attend_batch on a GPU: the bits of a call each, whatever the lengths, row counts and neighbours, captured or not.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/attend_batch.hpp>
#include <memra/cache.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/workspace.hpp>
#include <string>
#include <support/batch_case.hpp>
#include <support/catch.hpp>
#include <utility>
#include <vector>

#include "gpu_ops.hpp"
#include "support.hpp"

namespace attend_batch_cu {
namespace {

using namespace memra_test;
using F = memra::Format;
using L = memra::Layout;

/// Every kernel family: tensor cores in all formats and head dimensions, the one beside them, portable ones.
std::vector<KvShape> shapes() {
  std::vector<KvShape> all;
  const std::array<std::pair<F, F>, 7> pairs{{{F::q8_0, F::q5_1},
                                              {F::q8_0, F::q8_0},
                                              {F::q8_0, F::q4_0},
                                              {F::q4_0, F::q4_0},
                                              {F::f16, F::f16},
                                              {F::bf16, F::bf16},
                                              {F::fp8_e4m3, F::fp8_e4m3}}};
  for (const auto& [k, v] : pairs) {
    for (const std::size_t d :
         {std::size_t{64}, std::size_t{96}, std::size_t{128}, std::size_t{256}, std::size_t{512}}) {
      KvShape s;
      s.k_format = k;
      s.v_format = v;
      s.dk = s.dv = d;
      s.layout = d == 64 ? L::blocks : L::split;
      s.n_heads = d == 64 ? 6 : d == 128 ? 16 : d == 256 ? 20 : 2;
      s.window = d == 256 ? 333 : 0;
      all.push_back(s);
    }
  }
  return all;
}

std::string name_of(const KvShape& s) {
  return std::string(memra::to_string(s.k_format)) + "/" + std::string(memra::to_string(s.v_format)) + " d" +
         std::to_string(s.dk) + " window " + std::to_string(s.window);
}

/// One row each, as plain decoding has them; then of every kind; then around the borders of chunks and steps.
const std::vector<std::vector<Turn>>& calls() {
  static const std::vector<std::vector<Turn>> all = {{{649, 1}, {4, 1}, {1299, 1}, {39, 1}, {128, 1}, {8230, 1}},
                                                     {{640, 8}, {0, 5}, {1250, 0}, {-3, 2}, {100, 29}, {8190, 16}},
                                                     {{0, 1}, {0, 1}, {255, 2}, {0, 0}, {127, 2}, {4095, 3}}};
  return all;
}
const std::vector<std::size_t> lens = {650, 5, 1300, 40, 129, 8231};

TEST_CASE("C10 sequences in one launch get the bits of a call each", "[attend]") {
  Gpu dev = make_gpu();
  for (const KvShape& s : shapes()) {
    INFO(name_of(s));
    const BatchOn<Gpu> b(dev, s, lens, 3);
    for (const std::vector<Turn>& turns : calls()) {
      const Bytes want = b.alone(dev, turns);
      CHECK((b.together(dev, turns) == want));
      CHECK((b.together(dev, turns) == want));
    }
    // Red arm: a neighbour's position is not a sequence's own.
    std::vector<Turn> other = calls()[0];
    other[2].pos -= 1;
    CHECK_FALSE((b.together(dev, other) == b.alone(dev, calls()[0])));
  }
}

TEST_CASE("as many sequences as blocks find room for, and more", "[attend]") {
  Gpu dev = make_gpu();
  KvShape s;
  s.dk = s.dv = 128;
  s.n_heads = 8;
  s.layout = L::split;
  // 2 heads of K: 264 shares at a time of one row, 132 of more. Beyond 512 sequences each is a share.
  for (const std::size_t n : {std::size_t{70}, std::size_t{150}, std::size_t{512}, std::size_t{513}}) {
    INFO(n << " sequences");
    std::vector<std::size_t> lens;
    std::vector<Turn> one;
    std::vector<Turn> several;
    for (std::size_t i = 0; i < n; ++i) {
      lens.push_back(i % 64 == 9 ? 5000 : i % 7 * 41 + 4);
      one.push_back({static_cast<std::int32_t>(lens[i] - 1), 1});
      several.push_back({static_cast<std::int32_t>(lens[i] - 4), i % 5});
    }
    const BatchOn<Gpu> b(dev, s, lens, 11);
    CHECK((b.together(dev, one) == b.alone(dev, one)));
    CHECK((b.together(dev, several) == b.alone(dev, several)));
  }
}

TEST_CASE("a sequence a thousand times as short as its neighbour is not left out", "[attend]") {
  Gpu dev = make_gpu();
  // 16 rows of 320 heads are 160 blocks for each share: a device has no room for two at a time, and as long a share as
  // the longest sequence is the best.
  constexpr std::size_t heads = 320;
  constexpr std::size_t rows = 16;
  constexpr std::size_t d = 64;
  constexpr std::size_t floats = rows * heads * d;
  const std::array<std::size_t, 2> lens = {130000, 100};
  const OnDev<Gpu> k(dev, Bytes(lens[0] * d * 2 + 64, std::byte{0x31}));  // halves that are no zeros
  const OnDev<Gpu> v(dev, Bytes(lens[0] * d * 2 + 64, std::byte{0x32}));
  const OnDev<Gpu> q(dev, Rng(5).vector(2 * floats, 2.0F));
  std::vector<OnDev<Gpu>> pos;
  std::vector<memra::KvReadView> views;
  for (const std::size_t n : lens) {
    const memra::PlaneShape shape{F::f16, L::split, n, d};
    pos.emplace_back(dev, std::vector<std::int32_t>{static_cast<std::int32_t>(n - rows)});
    views.push_back({{k.data(), shape}, {v.data(), shape}, 1, d, d, 0, {pos.back().ints(), rows, n - rows, n}});
  }
  auto batch = memra::check(memra::AttendBatch<Gpu>::create(dev, views, rows));
  memra::check(batch.set_rows(std::vector<std::size_t>{rows, rows}));
  const std::size_t bytes =
      std::max(batch.workspace_bytes(heads), memra::detail::attend_scratch_bytes(heads, 1, d, d, rows));
  const OnDev<Gpu> together(dev, 2 * floats * 4);
  const OnDev<Gpu> alone(dev, 2 * floats * 4);
  const memra::ops_for<Gpu> ops(dev);
  const OnDev<Gpu> scratch(dev, bytes);  // NaN: what nobody computes shows
  memra::check(ops.attend_batch(memra::check(batch.layer(0)), {q.floats(), together.floats(), heads, 0.125F},
                                {scratch.data(), bytes}));
  const OnDev<Gpu> other(dev, bytes);
  for (std::size_t i = 0; i < views.size(); ++i) {
    memra::check(ops.attend(views[i], {q.floats() + i * floats, alone.floats() + i * floats, heads, 0.125F},
                            {other.data(), bytes}));
  }
  CHECK((together.bytes() == alone.bytes()));
}

TEST_CASE("rows of one call whose chunks begin at different keys of a plane", "[attend]") {
  Gpu dev = make_gpu();
  KvShape s;
  s.k_format = s.v_format = F::q4_0;
  s.layout = L::split;
  s.n_heads = s.n_kv = 16;  // 32 chunks: up to 8,192 keys in chunks of 256, then of 384
  s.dk = s.dv = 128;
  // Row 460 is in a chunk of 256 from key 256 on, and in one of 384 from key 384 on; row 600 from 512 and from 384.
  for (const std::size_t base : {std::size_t{460}, std::size_t{600}}) {
    s.base = base;
    const BatchOn<Gpu> b(dev, s, {8210, 700}, 5);
    const std::vector<Turn> turns = {{8186, 16}, {690, 2}};
    CHECK((b.together(dev, turns) == b.alone(dev, turns)));
  }
  s.base = 0;
  s.window = 8000;  // 31 chunks: of 256 up to 7,936 keys
  const BatchOn<Gpu> b(dev, s, {8210, 8000}, 5);
  const std::vector<Turn> turns = {{7928, 16}, {7990, 10}};
  CHECK((b.together(dev, turns) == b.alone(dev, turns)));
}

TEST_CASE("other kernels of a batch: rings, latent rows, planes that begin later", "[attend][sanitize]") {
  Gpu dev = make_gpu();
  for (const KvShape& s : kv_shapes()) {
    if (!s.ring && !s.v_in_k && s.base == 0 && s.dk % 32 == 0) continue;
    const auto at = static_cast<std::int32_t>(s.base);
    const BatchOn<Gpu> b(dev, s, {s.base + 89, s.base + 5, s.base + 70}, 4);
    const std::vector<Turn> turns = {{at + 80, 9}, {at + 4, 1}, {at + 60, 2}};
    CHECK((b.together(dev, turns) == b.alone(dev, turns)));
  }
}

TEST_CASE("neighbours change no bit, be they NaN", "[attend]") {
  Gpu dev = make_gpu();
  for (const std::size_t d : {std::size_t{64}, std::size_t{128}}) {
    KvShape s;
    s.dk = s.dv = d;
    s.n_heads = 16;
    s.layout = L::split;
    const BatchOn<Gpu> b(dev, s, {400, 300, 200}, 3);
    const std::vector<Turn> turns = {{390, 2}, {290, 8}, {190, 1}};
    const Bytes want = b.together(dev, turns);
    const std::size_t first = b.out_bytes(2);
    memra::check(dev.fill(b.members[0].k.data(), std::byte{0xFF}, 4096));
    memra::check(dev.fill(b.members[0].v.data(), std::byte{0xFF}, 4096));
    const Bytes got = b.together(dev, turns);
    CHECK(std::memcmp(got.data(), want.data(), first) != 0);
    CHECK(std::memcmp(got.data() + first, want.data() + first, want.size() - first) == 0);
    // In another order the bits are the same.
    const BatchOn<Gpu> fresh(dev, s, {400, 300, 200}, 3);
    std::vector<memra::KvReadView> views = fresh.views();
    std::swap(views[0], views[2]);
    fresh.move_to(dev, turns);
    auto batch = memra::check(memra::AttendBatch<Gpu>::create(dev, views, 8));
    memra::check(batch.set_rows(std::vector<std::size_t>{1, 8, 2}));
    std::vector<float> q = fresh.queries(turns);
    const std::size_t row = s.n_heads * s.dk;
    std::vector<float> turned(q.begin() + static_cast<std::ptrdiff_t>(10 * row), q.end());
    turned.insert(turned.end(), q.begin() + static_cast<std::ptrdiff_t>(2 * row),
                  q.begin() + static_cast<std::ptrdiff_t>(10 * row));
    turned.insert(turned.end(), q.begin(), q.begin() + static_cast<std::ptrdiff_t>(2 * row));
    const OnDev<Gpu> q_d(dev, turned);
    const OnDev<Gpu> out(dev, fresh.out_bytes(11));
    const OnDev<Gpu> scratch(dev, batch.workspace_bytes(s.n_heads));
    memra::check(memra::ops_for<Gpu>(dev).attend_batch(memra::check(batch.layer(0)),
                                                       {q_d.floats(), out.floats(), s.n_heads, 0.125F},
                                                       {scratch.data(), batch.workspace_bytes(s.n_heads)}));
    const Bytes swapped = out.bytes();
    const std::size_t one = fresh.out_bytes(1);
    CHECK(std::memcmp(swapped.data(), want.data() + 10 * one, one) == 0);
    CHECK(std::memcmp(swapped.data() + one, want.data() + 2 * one, 8 * one) == 0);
    CHECK(std::memcmp(swapped.data() + 9 * one, want.data(), 2 * one) == 0);
  }
}

TEST_CASE("a captured batch replays at other positions and with other row counts", "[attend]") {
  Gpu dev = make_gpu();
  KvShape s;
  s.n_heads = 16;
  s.dk = s.dv = 128;
  s.layout = L::split;
  const BatchOn<Gpu> b(dev, s, {650, 1300, 300}, 5);
  auto batch = memra::check(memra::AttendBatch<Gpu>::create(dev, b.views(), 4));
  memra::check(batch.set_rows(std::vector<std::size_t>{4, 4, 4}));
  const std::size_t bytes = batch.workspace_bytes(s.n_heads);
  const OnDev<Gpu> scratch(dev, bytes);
  const OnDev<Gpu> out(dev, b.out_bytes(12));
  const OnDev<Gpu> q(dev, 12 * s.n_heads * s.dk * 4);
  memra::check(dev.begin_capture());
  memra::check(memra::ops_for<Gpu>(dev).attend_batch(
      memra::check(batch.layer(0)), {q.floats(), out.floats(), s.n_heads, 0.125F}, {scratch.data(), bytes}));
  const auto graph = memra::check(dev.end_capture());
  const std::vector<std::vector<Turn>> turns = {
      {{0, 4}, {255, 4}, {296, 4}}, {{640, 1}, {1299, 1}, {0, 1}}, {{3, 0}, {1000, 3}, {-9, 1}}};
  Bytes before;
  for (const std::vector<Turn>& t : turns) {
    b.move_to(dev, t);
    memra::check(batch.set_rows(BatchOn<Gpu>::rows(t)));
    const std::vector<float> now = b.queries(t);
    memra::check(dev.upload(q.data(), reinterpret_cast<const std::byte*>(now.data()), now.size() * 4));
    memra::check(dev.replay(graph));
    const Bytes got = out.bytes();
    const Bytes want = b.alone(dev, t);
    CHECK(std::memcmp(got.data(), want.data(), want.size() - 64) == 0);
    CHECK_FALSE((got == before));
    before = got;
  }
}

TEST_CASE("caches decode together, their rows appended and positions moved by graphs", "[attend]") {
  Gpu dev = make_gpu();
  memra::AttentionSpec spec;
  spec.n_heads = 16;
  spec.n_kv_heads = 2;
  spec.head_dim_k = spec.head_dim_v = 128;
  spec.k_layout = spec.v_layout = L::split;
  memra::ModelConfig cfg;
  cfg.layers = {memra::full_attention(spec), memra::full_attention(spec)};
  std::vector<memra::Cache<Gpu>> caches;
  std::vector<memra::Cache<Gpu>*> all;
  for (const std::size_t ctx : {600U, 400U, 900U}) {
    caches.push_back(memra::check(memra::Cache<Gpu>::create(dev, cfg, ctx)));
  }
  for (auto& c : caches) all.push_back(&c);
  auto batch = memra::check(memra::AttendBatch<Gpu>::create(all, 1));
  const memra::ops_for<Gpu> ops(dev);
  Rng rng(4);
  const OnDev<Gpu> x(dev, rng.vector(300 * 256, 2.0F));
  for (std::size_t i = 0; i < 3; ++i) {  // prompts of 100, 200, 300 tokens
    auto step = memra::check(caches[i].begin_step(100 * (i + 1)));
    for (const std::size_t il : {std::size_t{0}, std::size_t{1}}) {
      memra::check(ops.append(memra::check(step.kv_write(il)), x.floats(), x.floats()));
    }
    memra::check(caches[i].advance());
  }
  const std::size_t row = spec.n_heads * 128;
  const OnDev<Gpu> q(dev, rng.vector(3 * row, 2.0F));
  const OnDev<Gpu> one(dev, 2 * 3 * row * 4);
  const OnDev<Gpu> many(dev, 2 * 3 * row * 4);
  auto ws = memra::check(memra::Workspace<Gpu>::create(dev, batch.workspace_bytes(spec.n_heads)));
  auto single = memra::check(memra::Workspace<Gpu>::create(dev, caches[0].plan().workspace_bytes(1)));
  memra::check(dev.begin_capture());
  std::vector<memra::Step<Gpu>> steps;
  for (auto& c : caches) steps.push_back(memra::check(c.begin_device_step(1)));
  for (const std::size_t il : {std::size_t{0}, std::size_t{1}}) {
    for (std::size_t i = 0; i < 3; ++i) {
      memra::check(ops.append(memra::check(steps[i].kv_write(il)), x.floats() + i * 256, x.floats() + i * 512));
      const memra::AttendArgs a{q.floats() + i * row, one.floats() + (3 * il + i) * row, spec.n_heads, 0.1F};
      memra::check(ops.attend(memra::check(steps[i].kv_read(il)), a, single.view()));
    }
    const memra::AttendArgs a{q.floats(), many.floats() + 3 * il * row, spec.n_heads, 0.1F};
    memra::check(ops.attend_batch(memra::check(batch.layer(il)), a, ws.view()));
  }
  for (auto& c : caches) memra::check(c.advance_d());
  const auto graph = memra::check(dev.end_capture());
  Bytes before;
  for (int i = 0; i < 40; ++i) {  // over a border of chunks
    memra::check(dev.replay(graph));
    const Bytes got = many.bytes();
    CHECK((got == one.bytes()));
    CHECK_FALSE((got == before));
    before = got;
  }
  for (auto& c : caches) c.replayed(40);
  memra::check(caches[2].catch_up());
  CHECK(caches[2].pos() == 340);
}

}  // namespace
}  // namespace attend_batch_cu
