// Cases that other engines failed on, in rings and shared layers. See docs/cases.md for all of them.
#include <algorithm>
#include <cstddef>
#include <memra/cache.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/plan.hpp>
#include <memra/workspace.hpp>
#include <set>
#include <support/catch.hpp>
#include <support/says.hpp>
#include <support/stand_in.hpp>
#include <vector>

namespace kinds_cases_cpp {
namespace {

using memra::Format;
using memra::HostDev;
using memra_test::feed;
using memra_test::feed_by;
using memra_test::image;
using memra_test::part;
using memra_test::says;
using memra_test::straight;
using memra_test::stream;
using memra_test::Tokens;
using Cache = memra::Cache<HostDev>;

memra::AttentionSpec plain(std::size_t heads, std::size_t dim, Format f) {
  memra::AttentionSpec a;
  a.n_kv_heads = heads;
  a.head_dim_k = a.head_dim_v = dim;
  a.k_format = a.v_format = f;
  return a;
}

/// Appends rows whose V is their position and attends with a query of zeros: the mean of the positions each row saw.
std::vector<float> means_seen(HostDev& dev, std::size_t il, memra::Step<HostDev>& step,
                              const memra::Workspace<HostDev>& ws) {
  const std::size_t t = step.rows();
  std::vector<float> positions(t * 32);
  for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<float>(step.pos() + i / 32);
  const std::vector<float> q(t * 32, 0.0F);
  std::vector<float> out(t * 32);
  const memra::ops_for<HostDev> ops(dev);
  memra::check(ops.append(memra::check(step.kv_write(il)), positions.data(), positions.data()));
  memra::check(ops.attend(memra::check(step.kv_read(il)), {q.data(), out.data(), 1, 1.0F}, ws.view()));
  std::vector<float> first;
  for (std::size_t i = 0; i < t; ++i) first.push_back(out[i * 32]);
  return first;
}

TEST_CASE("B65 B66 B68 through a ring every row sees the last W positions, whatever was fed in which pieces",
          "[cases]") {
  constexpr std::size_t window = 8;
  memra::ModelConfig cfg;
  cfg.layers = {memra::sliding_attention(plain(1, 32, Format::f32), window, 56),
                memra::full_attention(plain(1, 32, Format::f32))};
  for (std::size_t first = 1; first <= 3 * window; ++first) {
    for (const std::size_t chunk : {1U, 3U, 4U, 9U, 57U}) {
      HostDev dev;
      Cache c = memra::check(Cache::create(dev, cfg, 300));
      REQUIRE(c.kv(0)->k.phys_rows() == 64);  // B65: whatever comes, it does not grow
      const auto ws = memra::check(memra::Workspace<HostDev>::create(dev, c.plan().workspace_bytes(57)));
      for (std::size_t n = first; c.pos() + n <= 200; n = chunk) {
        auto step = memra::check(c.begin_step(n));
        const auto sliding = means_seen(dev, 0, step, ws);
        const auto full = means_seen(dev, 1, step, ws);
        for (std::size_t i = 0; i < n; ++i) {
          CAPTURE(first, chunk, step.pos(), i);
          const std::size_t p = step.pos() + i;
          const std::size_t oldest = p < window ? 0 : p - window + 1;
          REQUIRE(sliding[i] == static_cast<float>(oldest + p) / 2.0F);
          REQUIRE(full[i] == static_cast<float>(p) / 2.0F);
        }
        memra::check(c.advance());
      }
    }
  }
}

TEST_CASE("B69 a ring goes back to p if row p - W + 1 is there, and says no otherwise", "[cases]") {
  // 64 rows, a window of 8: with rows up to T written, the oldest is T - 64.
  memra::ModelConfig cfg;
  cfg.layers = {memra::sliding_attention(plain(1, 32, Format::f32), 8, 56)};
  const Tokens t = stream(200);
  for (const std::size_t end : {64U, 65U, 100U, 128U}) {
    for (std::size_t p = 1; p < end; ++p) {
      HostDev dev;
      Cache c = memra::check(Cache::create(dev, cfg, 300));
      REQUIRE(feed_by(c, part(t, 0, p), 50).ok());
      const auto snap = memra::check(c.snapshot());
      REQUIRE(feed_by(c, part(t, p, end - p), 50).ok());
      const std::size_t oldest = end < 64 ? 0 : end - 64;
      const std::size_t need = p < 8 ? 0 : p - 7;
      CAPTURE(end, p);
      REQUIRE(c.rollback(snap, 0).ok() == (need >= oldest));
    }
  }
}

TEST_CASE("B71 the rows of one step have positions of their own in a ring, also where it wraps", "[cases]") {
  memra::ModelConfig cfg;
  cfg.layers = {memra::sliding_attention(plain(1, 32, Format::f32), 8, 56)};
  HostDev dev;
  Cache c = memra::check(Cache::create(dev, cfg, 300));
  REQUIRE(feed_by(c, stream(62), 31).ok());
  auto step = memra::check(c.begin_step(4));
  const auto w = memra::check(step.kv_write(0));
  std::set<std::size_t> places;
  for (std::size_t i = 0; i < 4; ++i) places.insert(w.k.phys(62 + i));
  REQUIRE(places == std::set<std::size_t>{62, 63, 0, 1});
}

TEST_CASE("B72 full and sliding layers go back together or not at all", "[cases]") {
  memra::ModelConfig cfg;
  cfg.layers = {memra::full_attention(plain(1, 32, Format::f32)),
                memra::sliding_attention(plain(1, 32, Format::f32), 40, 24)};
  HostDev dev;
  Cache c = memra::check(Cache::create(dev, cfg, 300));
  const Tokens t = stream(120);
  REQUIRE(feed_by(c, part(t, 0, 50), 25).ok());
  const auto snap = memra::check(c.snapshot());
  REQUIRE(feed_by(c, part(t, 50, 70), 25).ok());
  const auto before = image(c);
  REQUIRE(says(c.rollback(snap, 10).status(), memra::ErrorKind::bad_state, "ring of layer 1"));
  REQUIRE((image(c) == before && c.kv(0)->len == 120 && c.kv(1)->len == 120));
  REQUIRE(c.rollback(snap, 45).ok());
  REQUIRE((c.kv(0)->len == 95 && c.kv(1)->len == 95));
  REQUIRE(image(c) == straight(cfg, part(t, 0, 95)));
}

TEST_CASE("B73 B74 a layer that borrows owns nothing, and every accessor resolves to its donor at the step's position",
          "[cases]") {
  HostDev dev;
  memra::ModelConfig cfg;
  for (int i = 0; i < 4; ++i) cfg.layers.push_back(memra::full_attention(memra_test::attention_spec()));
  const std::size_t alone = memra::check(memra::plan(cfg, 16)).totals.total_bytes;
  cfg.layers.push_back(memra::shared_attention(2));
  cfg.layers.push_back(memra::shared_attention(3));
  const auto planned = memra::check(memra::plan(cfg, 16));
  REQUIRE(planned.totals.total_bytes == alone);  // donors are counted once
  Cache c = memra::check(Cache::create(dev, cfg, 16));
  REQUIRE(feed(c, stream(4)).ok());
  const auto own = *c.kv(3);
  const auto shown = *c.kv(5);
  REQUIRE((shown.k.data == own.k.data && shown.v.data == own.v.data && shown.len == own.len));
  REQUIRE((shown.spec.k_format == own.spec.k_format && shown.k_row_bytes() == own.k_row_bytes()));
  REQUIRE((shown.pos_d == own.pos_d && &c.dev(5) == &c.dev(3)));
  auto step = memra::check(c.begin_step(5));
  REQUIRE(step.kv_write(5).status().kind() == memra::ErrorKind::bad_argument);
  REQUIRE(step.kv_write(3).ok());
  const auto r = memra::check(step.kv_read(5));
  REQUIRE((r.k.data == own.k.data && *r.at.pos_d == 4 && r.at.rows == 5 && r.at.pos_bound == 4));
  REQUIRE(feed(c, stream(5, 9)).ok());  // a forward that died is begun again
  const auto snap = memra::check(c.snapshot());
  REQUIRE(feed(c, stream(3, 7)).ok());
  REQUIRE(memra::check(c.rollback(snap, 1)).pos == 10);
  REQUIRE(c.kv(5)->len == 10);
  // A layer of nothing behind one of both kinds shows neither.
  const Cache none = memra::check(Cache::create(dev, memra_test::hybrid_model(), 8));
  REQUIRE((none.recur(2) && none.kv(2)));
  REQUIRE((!none.recur(3) && !none.kv(3)));
}

TEST_CASE("B77 B96 rings are sized layer by layer and stop growing at their window", "[cases]") {
  memra::ModelConfig gemma;  // 50 of 16 heads of 256 with a window of 1024, 10 of 4 heads of 512, in 16 bits
  for (int i = 0; i < 60; ++i) {
    gemma.layers.push_back(i % 6 == 5 ? memra::full_attention(plain(4, 512, Format::bf16))
                                      : memra::sliding_attention(plain(16, 256, Format::bf16), 1024, 64));
  }
  for (const std::size_t rows : {1000U, 1024U, 1025U, 32768U}) {
    const auto t = memra::check(memra::plan(gemma, rows)).totals;
    REQUIRE(t.k_bytes + t.v_bytes - t.ring_slack_bytes ==
            std::size_t{50} * 16384 * std::min<std::size_t>(rows, 1024) + std::size_t{10} * 8192 * rows);
    REQUIRE((t.bytes_per_token == 10 * 8192 && t.ring_cap_bytes == std::size_t{50} * 16384 * 1024));
    REQUIRE(t.ring_slack_bytes ==
            std::size_t{50} * 16384 * (std::min<std::size_t>(rows, 1088) - std::min<std::size_t>(rows, 1024)));
  }
  memra::ModelConfig oss;  // 36 layers of 8 heads of 64, every other one with a window of 128
  for (int i = 0; i < 36; ++i) {
    const auto a = plain(8, 64, Format::bf16);
    oss.layers.push_back(i % 2 == 0 ? memra::sliding_attention(a, 128, 32) : memra::full_attention(a));
  }
  for (const auto& [rows, bytes] : {std::pair<std::size_t, std::size_t>{1, 73728},
                                    {127, 9363456},
                                    {128, 9437184},
                                    {129, 9474048},
                                    {4096, 155713536}}) {
    const auto t = memra::check(memra::plan(oss, rows)).totals;
    REQUIRE(t.k_bytes + t.v_bytes - t.ring_slack_bytes == bytes);
  }
}

}  // namespace
}  // namespace kinds_cases_cpp
