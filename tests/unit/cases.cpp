// Cases that other engines failed on and that no other file has. See docs/cases.md for all of them.
#include <sys/mman.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memra/cache.hpp>
#include <memra/codec.hpp>
#include <memra/counting_dev.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/ordered_dev.hpp>
#include <memra/plan.hpp>
#include <memra/poison_dev.hpp>
#include <memra/workspace.hpp>
#include <optional>
#include <string>
#include <support/catch.hpp>
#include <support/stand_in.hpp>
#include <utility>
#include <variant>
#include <vector>

namespace cases_cpp {
namespace {

using memra_test::feed;
using memra_test::feed_by;
using memra_test::hybrid_model;
using memra_test::image;
using memra_test::join;
using memra_test::part;
using memra_test::straight;
using memra_test::stream;
using memra_test::Tokens;
/// Late, with undefined memory full of NaN: an order that is only lucky does not hold here.
using Dev = memra::CountingDev<memra::OrderedDev<memra::PoisonDev<memra::HostDev>>>;
using Cache = memra::Cache<Dev>;
using Snapshot = memra::CacheSnapshot<Dev>;
using Draft = memra::DflashKv<Dev>;

Cache made(Dev& dev, const memra::ModelConfig& cfg, std::size_t max_ctx) {
  return memra::check(Cache::create(dev, cfg, max_ctx));
}

TEST_CASE("B10 a snapshot of another cache or of none is refused aloud, never a silent no-op", "[cases]") {
  Dev dev;
  Cache c = made(dev, hybrid_model(), 20);
  Cache same = made(dev, hybrid_model(), 20);
  Cache other = made(dev, memra_test::recurrent_model(), 20);
  const Tokens t = stream(6);
  for (Cache* x : {&c, &same, &other}) REQUIRE(feed_by(*x, t, 3).ok());
  const Snapshot of_same = memra::check(same.snapshot());
  const Snapshot of_other = memra::check(other.snapshot());
  Snapshot gone = memra::check(c.snapshot());
  const Snapshot kept = std::move(gone);
  for (const Snapshot* s : {&of_same, &of_other, static_cast<const Snapshot*>(&gone)}) {
    REQUIRE(c.rollback(*s, 0).status().kind() == memra::ErrorKind::bad_argument);
    REQUIRE(image(c) == straight(hybrid_model(), t));
  }
  REQUIRE(c.rollback(kept, 0).ok());
}

TEST_CASE("B25 a snapshot never meets a layout it was not taken from", "[cases]") {
  Dev dev;
  auto plain = hybrid_model();
  auto doubled = plain;
  for (auto& layer : doubled.layers) {
    for (auto& s : layer.states) {
      if (auto* r = std::get_if<memra::RecurrentSpec>(&s)) r->second_buffer = true;
    }
  }
  const Tokens t = stream(7);
  for (const auto& [from, to] : {std::pair{plain, doubled}, std::pair{doubled, plain}}) {
    Cache a = made(dev, from, 20);
    Cache b = made(dev, to, 20);
    REQUIRE(feed(a, t).ok());
    REQUIRE(feed(b, t).ok());
    const Snapshot s = memra::check(a.snapshot());
    REQUIRE_FALSE(b.rollback(s, 0).ok());  // the state of one does not go into the other by a snapshot ...
    REQUIRE(image(b) == straight(to, t));
    const auto prefix = memra::check(a.export_prefix(s));  // ... but by a prefix, which knows what it holds
    REQUIRE(image(memra::check(Cache::from_prefix(dev, to, 20, prefix))) == straight(to, t));
  }
}

TEST_CASE("B42 after a rollback every view ends at len", "[cases]") {
  Dev dev;
  const auto cfg = memra_test::attention_model();
  Cache c = made(dev, cfg, 60);
  const Tokens t = stream(50);
  REQUIRE(feed_by(c, part(t, 0, 10), 10).ok());
  const Snapshot s = memra::check(c.snapshot());
  REQUIRE(feed_by(c, part(t, 10, 40), 12).ok());
  REQUIRE(c.rollback(s, 0).ok());
  for (std::size_t il = 0; il < c.n_layer(); ++il) REQUIRE(c.kv(il)->len == 10);
  auto step = memra::check(c.begin_step(2));
  for (std::size_t il = 0; il < c.n_layer(); ++il) {
    const auto w = memra::check(step.kv_write(il));
    const auto r = memra::check(step.kv_read(il));
    REQUIRE((w.at.pos_d == r.at.pos_d && r.at.rows == 2 && r.at.pos_bound == 10));
  }
  std::int32_t pos = -1;
  REQUIRE(dev.download(reinterpret_cast<std::byte*>(&pos), reinterpret_cast<const std::byte*>(c.pos_d(0)), 4).ok());
  REQUIRE(pos == 10);  // what bounds a kernel is on the device, not in a view somebody kept
}

TEST_CASE("B45 B55 a snapshot, prefix or tail holds what was true when it was asked for, on late devices too",
          "[cases]") {
  Dev a;
  Dev b;
  const auto cfg = hybrid_model();
  Cache c = made(a, cfg, 30);
  const Tokens t = stream(9);
  REQUIRE(feed_by(c, t, 3).ok());
  const Snapshot s = memra::check(c.snapshot());
  const auto prefix = memra::check(c.export_prefix(s));
  REQUIRE(feed_by(c, stream(8, 5), 4).ok());  // later work of the source, queued behind the export
  REQUIRE(c.reset().ok());
  REQUIRE(feed_by(c, stream(9, 6), 3).ok());
  REQUIRE(image(memra::check(Cache::from_prefix(b, cfg, 30, prefix))) == straight(cfg, t));

  memra::DflashCfg draft;
  draft.n_layer = draft.n_kv = 1;
  draft.head_dim = draft.block_size = 2;
  draft.sliding_window = 3;
  Draft d = memra::check(Draft::create(a, draft, 8));
  const std::array<float, 4> rows[2] = {{1, 2, 3, 4}, {-1, -2, -3, -4}};
  const auto put = [&](const std::array<float, 4>& x) {
    auto r = memra::check(d.begin_rows(2));
    const auto* bytes = reinterpret_cast<const std::byte*>(x.data());
    const std::size_t at = r.first() * 2;
    REQUIRE(a.upload(reinterpret_cast<std::byte*>(r.view(0).k + at), bytes, sizeof x).ok());
    REQUIRE(a.upload(reinterpret_cast<std::byte*>(r.view(0).v + at), bytes, sizeof x).ok());
    REQUIRE(d.commit().ok());
  };
  put(rows[0]);
  const auto tail = d.export_tail(2);
  REQUIRE(d.truncate(0).ok());
  put(rows[1]);
  REQUIRE(tail.has_value());
  std::array<float, 4> got{};
  REQUIRE(a.download(reinterpret_cast<std::byte*>(got.data()), tail->layers[0].k.data(), sizeof got).ok());
  REQUIRE(got == rows[0]);
}

TEST_CASE("B50 a draft cache that starts at a restored position holds zeros, not whatever was there", "[cases]") {
  Dev dev;
  memra::DflashCfg cfg;
  cfg.n_layer = 2;
  cfg.n_kv = 1;
  cfg.head_dim = 4;
  cfg.block_size = 3;
  cfg.sliding_window = 6;
  const Draft d = memra::check(Draft::create_cold_at(dev, cfg, 20, 11));
  REQUIRE((d.len() == 11 && d.floor() == 11));  // and none of them is ever visible
  for (std::size_t l = 0; l < 2; ++l) {
    for (const float* plane : {d.k(l), d.v(l)}) {
      std::vector<float> got(11 * 4, 1.0F);
      REQUIRE(dev.download(reinterpret_cast<std::byte*>(got.data()), reinterpret_cast<const std::byte*>(plane),
                           got.size() * sizeof(float))
                  .ok());
      for (const float x : got) REQUIRE((x == 0.0F && !std::signbit(x)));
    }
  }
  REQUIRE_FALSE(d.export_tail(11).has_value());
}

TEST_CASE("B54 every cache says its formats, and none takes another's", "[cases]") {
  Dev dev;
  for (const memra::Format k : memra::all_formats) {
    const memra::Format v = k == memra::Format::f32 ? memra::Format::q4_0 : memra::Format::f32;
    const Cache c = made(dev, hybrid_model(k, v), 4);
    REQUIRE((c.kv(1)->spec.k_format == k && c.kv(1)->spec.v_format == v));
    REQUIRE((c.kv(1)->k.shape.format == k && c.kv(1)->v.shape.format == v));
    REQUIRE(c.kv(1)->k_row_bytes() == memra::row_bytes(k, 64));
    REQUIRE((c.kv(4, 0)->spec.k_format == v && c.kv(4, 1)->spec.k_format == k));  // two in one layer differ
  }
  memra::DflashCfg cfg;
  cfg.n_layer = cfg.n_kv = cfg.block_size = 1;
  cfg.head_dim = 8;
  REQUIRE(memra::check(Draft::create(dev, cfg, 4)).row_bytes() == 32);  // f32, whatever the trunk has
}

TEST_CASE("B65 B66 B68 B69 B71 B72 a window bounds what is seen, and every row stays where it is", "[cases]") {
  Dev dev;
  auto windowed = memra_test::attention_spec();
  windowed.window = 8;
  memra::ModelConfig cfg;
  cfg.layers = {memra::full_attention(windowed), memra::full_attention(memra_test::attention_spec())};
  for (std::size_t first = 1; first <= 24; ++first) {
    Cache c = made(dev, cfg, 64);
    const Tokens t = stream(48);
    REQUIRE(feed_by(c, part(t, 0, first), 1).ok());
    const Snapshot s = memra::check(c.snapshot());
    const std::size_t chunk = 1 + first % 5;
    REQUIRE(feed_by(c, part(t, first, 20), chunk).ok());  // past the window in steps of several rows
    REQUIRE(image(c) == straight(cfg, part(t, 0, first + 20)));
    REQUIRE(memra::check(c.rollback(s, 3)).pos == first + 3);  // to any depth: all layers, none refused
    REQUIRE(image(c) == straight(cfg, part(t, 0, first + 3)));
    auto step = memra::check(c.begin_step(4));
    REQUIRE(memra::check(step.kv_write(0)).k.phys_rows() == 64);
    REQUIRE(memra::check(step.kv_read(0)).window == 8);
  }
}

/// Appends `t` rows whose V is their position and attends with a query of zeros: every row of the result is the mean of
/// the positions it saw.
std::vector<float> means_seen(Dev& dev, Cache& c, std::size_t il, memra::Step<Dev>& step,
                              const memra::Workspace<Dev>& ws) {
  const std::size_t t = step.rows();
  const auto upload = [&](const std::vector<float>& x) {
    auto b = memra::check(dev.alloc(x.size() * sizeof(float)));
    memra::check(dev.upload(b.data(), reinterpret_cast<const std::byte*>(x.data()), b.size()));
    return b;
  };
  const auto at = [](const Dev::Buffer& b) { return reinterpret_cast<float*>(b.data()); };
  std::vector<float> positions(t * 32);
  for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<float>(step.pos() + i / 32);
  const auto v = upload(positions);
  const auto q = upload(std::vector<float>(t * 32, 0.0F));
  const auto out = memra::check(dev.alloc(t * 32 * sizeof(float)));
  const memra::ops_for<Dev> ops(dev);
  memra::check(ops.append(memra::check(step.kv_write(il)), at(v), at(v)));
  memra::check(ops.attend(memra::check(step.kv_read(il)), {at(q), at(out), 1, 1.0F}, ws.view()));
  std::vector<float> all(t * 32);
  memra::check(dev.download(reinterpret_cast<std::byte*>(all.data()), out.data(), out.size()));
  std::vector<float> first;
  for (std::size_t i = 0; i < t; ++i) first.push_back(all[i * 32]);
  REQUIRE(c.pos() == step.pos());
  return first;
}

TEST_CASE("B65 B66 B68 B71 attention through a window sees the last W positions, in steps of any size", "[cases]") {
  constexpr std::size_t window = 8;
  memra::AttentionSpec spec;
  spec.n_kv_heads = 1;
  spec.head_dim_k = spec.head_dim_v = 32;
  spec.k_format = spec.v_format = memra::Format::f32;
  memra::ModelConfig cfg;
  cfg.layers = {memra::full_attention(spec), memra::full_attention(spec)};
  std::get<memra::AttentionSpec>(cfg.layers[0].states[0]).window = window;
  for (std::size_t first = 1; first <= 3 * window; ++first) {
    for (const std::size_t chunk : {1U, 3U, 4U, 9U}) {
      Dev dev;
      Cache c = made(dev, cfg, 64);
      const auto ws = memra::check(memra::Workspace<Dev>::create(dev, c.plan().workspace_bytes(24)));
      for (std::size_t n = first; c.pos() + n <= 48; n = chunk) {
        auto step = memra::check(c.begin_step(n));
        const auto sliding = means_seen(dev, c, 0, step, ws);
        const auto full = means_seen(dev, c, 1, step, ws);
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

TEST_CASE("B76 K and V are planes of their own, also where the projections are one", "[cases]") {
  Dev dev;
  for (const memra::Format f : {memra::Format::q8_0, memra::Format::bf16}) {
    const auto cfg = memra_test::attention_model(f, f);
    Cache c = made(dev, cfg, 8);
    REQUIRE(feed(c, stream(5)).ok());
    const auto got = image(c);
    REQUIRE(got == straight(cfg, stream(5)));
    REQUIRE(got.parts[0] != got.parts[1]);
  }
}

TEST_CASE("B77 B96 every layer has its own heads and widths; a window alone saves no byte", "[cases]") {
  memra::ModelConfig cfg;
  memra::AttentionSpec sliding;  // 50 of 16 heads of 256, 10 of 4 heads of 512, in 16 bits
  sliding.n_kv_heads = 16;
  sliding.head_dim_k = sliding.head_dim_v = 256;
  sliding.k_format = sliding.v_format = memra::Format::bf16;
  sliding.window = 1024;
  memra::AttentionSpec full = sliding;
  full.n_kv_heads = 4;
  full.head_dim_k = full.head_dim_v = 512;
  full.window = 0;
  for (int i = 0; i < 60; ++i) cfg.layers.push_back(memra::full_attention(i % 6 == 5 ? full : sliding));
  for (const std::size_t rows : {1000U, 1024U, 1025U, 32768U}) {
    const auto t = memra::check(memra::plan(cfg, rows, memra::Placement::single(60))).totals;
    REQUIRE(t.k_bytes + t.v_bytes == rows * (50 * 16384 + 10 * 8192));
    REQUIRE(t.bytes_per_token == 50 * 16384 + 10 * 8192);
  }
}

TEST_CASE("B78 a block's range is that of its values, and a width that needs padding is refused", "[cases]") {
  std::vector<float> x(96);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 5.0F + static_cast<float>(i % 32) / 31.0F;
  std::vector<std::byte> row(memra::row_bytes(memra::Format::q5_1, x.size()));
  memra::encode(memra::Format::q5_1, x.data(), row.data(), x.size());
  std::vector<float> y(x.size());
  memra::decode(memra::Format::q5_1, row.data(), y.data(), y.size());
  for (std::size_t i = 0; i < x.size(); ++i) REQUIRE(std::fabs(x[i] - y[i]) <= 0.5F / 31.0F + 0.004F);  // 1/31 a step
  for (const std::size_t width : {16U, 48U, 80U}) {
    auto spec = memra_test::attention_spec();
    spec.head_dim_k = width;
    memra::ModelConfig cfg;
    cfg.layers = {memra::full_attention(spec)};
    REQUIRE_FALSE(memra::plan(cfg, 4, memra::Placement::single(1)).ok());
  }
}

TEST_CASE("B80 B83 every format: rolled back, continued, and fed in any step size, the bytes are the same", "[cases]") {
  Dev dev;
  const Tokens t = join(stream(17), stream(27, 3));
  for (const memra::Format f : memra::all_formats) {
    const auto cfg = memra_test::attention_model(f, memra::Format::f16);
    Cache c = made(dev, cfg, 260);
    REQUIRE(feed_by(c, part(t, 0, 17), 5).ok());
    const Snapshot s = memra::check(c.snapshot());
    REQUIRE(feed_by(c, stream(236, 2), 59).ok());
    REQUIRE(c.len() == 253);
    REQUIRE(memra::check(c.rollback(s, 0)).pos == 17);
    REQUIRE(feed_by(c, part(t, 17, 27), f == memra::Format::q4_0 ? 1 : 9).ok());
    REQUIRE(c.len() == 44);
    REQUIRE(image(c) == straight(cfg, t));
  }
}

TEST_CASE("B83 append writes the same bytes whether the rows come alone or together", "[cases]") {
  Dev dev;
  const memra::ops_for<Dev> ops(dev);
  const std::size_t n = 12;
  auto x = memra::check(dev.alloc(n * 64 * sizeof(float)));
  std::vector<float> values(n * 64);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = memra_test::stand_in::value(9, 9, 9, i, 9, 9);
  memra::check(dev.upload(x.data(), reinterpret_cast<const std::byte*>(values.data()), x.size()));
  for (const memra::Format f : memra::all_formats) {
    for (const memra::Layout layout : {memra::Layout::blocks, memra::Layout::split}) {
      memra::ModelConfig cfg;
      cfg.layers = {memra::full_attention(memra_test::attention_spec(f, f, layout))};
      const auto fed = [&](std::size_t chunk) {
        Cache c = made(dev, cfg, n);
        for (std::size_t at = 0; at < n; at += chunk) {
          auto step = memra::check(c.begin_step(std::min(chunk, n - at)));
          const auto* rows = reinterpret_cast<const float*>(x.data()) + at * 64;
          memra::check(ops.append(memra::check(step.kv_write(0)), rows, rows));
          memra::check(c.advance());
        }
        return image(c);
      };
      const auto alone = fed(1);
      for (const std::size_t chunk : {2U, 5U, 12U}) REQUIRE(fed(chunk) == alone);
      REQUIRE(alone.parts[0].size() == n * memra::row_bytes(f, 64));
    }
  }
}

TEST_CASE("B82 a layer of keys only is refused when it is planned", "[cases]") {
  for (const memra::Format f : memra::all_formats) {
    auto spec = memra_test::attention_spec(f, f);
    spec.n_kv_heads = 1;
    spec.head_dim_k = 576;
    spec.head_dim_v = 0;
    memra::ModelConfig cfg;
    cfg.layers = {memra::full_attention(spec)};
    const auto planned = memra::plan(cfg, 4, memra::Placement::single(1));
    REQUIRE(planned.status().kind() == memra::ErrorKind::bad_argument);
    REQUIRE(std::string(planned.status().text()).find("head_dim_v") != std::string::npos);
  }
}

TEST_CASE("B87 B89 B90 fp8 is one encoding everywhere: OCP e4m3fn, saturating, NaN is NaN", "[cases]") {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::pair<float, unsigned> encoded[] = {{0.0F, 0x00},
                                                {-0.0F, 0x80},
                                                {std::ldexp(1.0F, -10), 0x00},
                                                {std::ldexp(1.0F, -9), 0x01},
                                                {1.0F, 0x38},
                                                {240.0F, 0x77},
                                                {256.0F, 0x78},
                                                {std::ldexp(1.5F, -9), 0x02},
                                                {288.0F, 0x79},
                                                {448.0F, 0x7e},
                                                {464.0F, 0x7e},
                                                {465.0F, 0x7e},
                                                {inf, 0x7e},
                                                {-inf, 0xfe},
                                                {1000.0F, 0x7e},
                                                {nan, 0x7f},
                                                {std::copysign(nan, -1.0F), 0xff}};
  for (const auto& [x, code] : encoded) {
    std::byte b{};
    memra::encode(memra::Format::fp8_e4m3, &x, &b, 1);
    INFO(x);
    REQUIRE(std::to_integer<unsigned>(b) == code);
  }
  for (unsigned code = 0; code < 256; ++code) {
    const auto b = static_cast<std::byte>(code);
    float x = 0;
    memra::decode(memra::Format::fp8_e4m3, &b, &x, 1);
    REQUIRE(std::isnan(x) == ((code & 0x7f) == 0x7f));
    std::byte again{};
    memra::encode(memra::Format::fp8_e4m3, &x, &again, 1);
    if (!std::isnan(x)) REQUIRE(again == b);
  }
}

TEST_CASE("B102 every operation on a layer runs on the device of its stage", "[cases]") {
  Dev dev[3];
  const auto cfg = hybrid_model();
  const std::array<Dev*, 3> devs = {&dev[0], &dev[1], &dev[2]};
  const std::array<std::size_t, 4> fence = {0, 3, 5, cfg.layers.size()};
  auto c = memra::check(Cache::create_ppn(devs, fence, cfg, 16));
  REQUIRE(feed(c, stream(5)).ok());
  auto s = memra::check(c.snapshot());
  for (int what = 0; what < 3; ++what) {
    for (Dev& d : dev) d.reset();
    const bool ok = what == 0 ? c.snapshot().ok() : what == 1 ? c.snapshot_into(s).ok() : c.rollback(s, 0).ok();
    REQUIRE(ok);
    for (std::size_t i = 0; i < 3; ++i) {
      const std::size_t own = c.plan().devices[i].state_bytes;
      REQUIRE(dev[i].counters().copied_bytes() == own);
      REQUIRE(dev[i].counters().allocations() == (what == 0 && own != 0 ? 1U : 0U));
      REQUIRE(dev[i].counters().host_copies() == 0);
    }
  }
}

/// Addresses for more memory than there is: only pages that are touched count.
struct Sparse {
  static void* allocate(memra::HostStream, std::size_t bytes, std::size_t) noexcept {
    void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : p;
  }
  static void deallocate(memra::HostStream, void* p, std::size_t bytes, std::size_t) noexcept { ::munmap(p, bytes); }
};

TEST_CASE("B105 rows beyond 2^31 and 2^32 bytes are written and read where they belong", "[cases]") {
  Sparse sparse;
  memra::HostDev dev = memra::HostDev::adopt(sparse);
  const memra::ops_for<memra::HostDev> ops(dev);
  for (const auto& [format, layout] :
       {std::pair{memra::Format::f32, memra::Layout::blocks}, std::pair{memra::Format::q8_0, memra::Layout::split}}) {
    const std::size_t rows = std::size_t{1} << (format == memra::Format::f32 ? 23 : 24);
    memra::ModelConfig cfg;
    auto spec = memra_test::attention_spec(format, format, layout);
    spec.n_kv_heads = 4;
    spec.head_dim_k = spec.head_dim_v = 128;
    spec.window = 2;
    cfg.layers = {memra::full_attention(spec)};
    auto made = memra::Cache<memra::HostDev>::create(dev, cfg, rows);
    REQUIRE(made.ok());
    const std::size_t row_bytes = format == memra::Format::f32 ? 2048 : 512;  // of the largest part: quants
    REQUIRE(rows * row_bytes > std::size_t{1} << 32);
    memra::DflashCfg draft_cfg;
    draft_cfg.n_layer = draft_cfg.n_kv = draft_cfg.block_size = 1;
    draft_cfg.head_dim = 128;
    auto draft = memra::check(memra::DflashKv<memra::HostDev>::create(dev, draft_cfg, rows));
    auto step = memra::check(made->begin_step(1));
    auto w = memra::check(step.kv_write(0));
    auto r = memra::check(step.kv_read(0));
    const auto rows_of = memra::check(draft.begin_rows(1));
    auto d = rows_of.view(0);
    auto ws = memra::check(memra::Workspace<memra::HostDev>::create(dev, made->plan().workspace_bytes(1)));
    const std::size_t at_31 = (std::size_t{1} << 31) / row_bytes;
    const std::size_t at_32 = (std::size_t{1} << 32) / row_bytes;
    const std::size_t places[] = {0, 1, at_31, at_31 + 1, at_32, at_32 + 1, rows - 1};
    const auto value = [](std::size_t row) { return static_cast<float>(row % 1021) + 1.0F; };
    for (const std::size_t row : places) {
      const auto pos = static_cast<std::int32_t>(row);
      w.at.pos_d = d.len_d = &pos;
      std::vector<float> x(512, value(row));
      x[510] *= std::array{1.0F, 1.27F, 2.54F}[row % 3];  // the integer beside it differs from row to row: 127, 100, 50
      memra::check(ops.append(w, x.data(), x.data()));
      memra::check(ops.draft_write(d, x.data(), x.data()));
    }
    for (const std::size_t row : places) {
      CAPTURE(row, memra::to_string(format));
      std::vector<float> x(512);
      memra::check(ops.read_rows(made->kv(0)->v, row, 1, x.data()));
      REQUIRE(std::fabs(x[511] - value(row)) < 0.01F * value(row));
      memra::decode_row(made->kv(0)->v, row, 0, 512, x.data());
      REQUIRE(std::fabs(x[511] - value(row)) < 0.01F * value(row));
      REQUIRE(draft.k(0)[row * 128 + 127] == value(row));
      const auto pos = static_cast<std::int32_t>(row);
      r.at.pos_d = &pos;
      const std::vector<float> q(4 * 128, 0.0F);
      std::vector<float> out(4 * 128);
      memra::check(ops.attend(r, {q.data(), out.data(), 4, 1.0F}, ws.view()));
      const bool alone = row == 0;  // else it sees the row before it, too: its own or one never written, which is zero
      const bool pair = row == 1 || row == at_31 + 1 || row == at_32 + 1;
      const float mean = alone ? value(row) : (value(row) + (pair ? value(row - 1) : 0.0F)) / 2.0F;
      REQUIRE(std::fabs(out[0] - mean) < 0.01F * mean);
    }
  }
}

TEST_CASE("B107 memory keeps what was put into it through six hundred rounds of allocating and freeing", "[cases]") {
  Dev a;
  Dev b;
  const auto cfg = memra_test::recurrent_model();
  Cache x = made(a, cfg, 8);
  Cache y = made(b, cfg, 8);
  REQUIRE(feed(x, stream(3)).ok());
  REQUIRE(feed(y, stream(3, 2)).ok());
  for (int round = 0; round < 600; ++round) {
    Snapshot sx = memra::check(x.snapshot());
    Snapshot sy = memra::check(y.snapshot());
    REQUIRE(feed(x, stream(1, 9)).ok());
    REQUIRE(feed(y, stream(2, 9)).ok());
    REQUIRE(x.rollback(sx, 0).ok());
    REQUIRE(y.rollback(sy, 0).ok());
  }
  REQUIRE(image(x) == straight(cfg, stream(3)));
  REQUIRE(image(y) == straight(cfg, stream(3, 2)));
}

TEST_CASE("B109 addresses stay, whatever the cache and its neighbours do", "[cases]") {
  Dev dev;
  const auto cfg = hybrid_model();
  Cache c = made(dev, cfg, 16);
  const auto addresses = [&] {
    std::vector<const void*> at;
    for (std::size_t il = 0; il < c.n_layer(); ++il) {
      if (const auto kv = c.kv(il)) at.insert(at.end(), {kv->k.data, kv->v.data, kv->pos_d});
      if (const auto r = c.recur(il)) at.insert(at.end(), {r->conv, r->ssm});
    }
    return at;
  };
  REQUIRE(feed(c, stream(4)).ok());
  auto s = memra::check(c.snapshot());
  const auto before = addresses();
  for (int round = 0; round < 200; ++round) {
    REQUIRE(feed(c, stream(2, 3)).ok());
    REQUIRE(c.rollback(s, 0).ok());
    REQUIRE(c.snapshot_into(s).ok());
    if (round % 50 == 0) {
      const auto prefix = memra::check(c.export_prefix(s));
      REQUIRE(Cache::from_prefix(dev, cfg, 16, prefix).ok());
      Cache moved(std::move(c));
      c = std::move(moved);
    }
    REQUIRE(addresses() == before);
  }
}

}  // namespace
}  // namespace cases_cpp
