// Publishing a prompt and starting from it: across placements, after further rounds, and every refusal.
#include <cstddef>
#include <cstring>
#include <memra/cache.hpp>
#include <optional>
#include <string>
#include <support/catch.hpp>
#include <support/placements.hpp>
#include <support/require_eq.hpp>
#include <support/says.hpp>
#include <support/stand_in.hpp>
#include <utility>
#include <vector>

namespace cache_prefix_cpp {
namespace {

using memra::ErrorKind;
using memra::Format;
using memra::Layout;
using memra_test::attention_model;
using memra_test::attention_spec;
using memra_test::Devices;
using memra_test::feed;
using memra_test::feed_by;
using memra_test::hybrid_model;
using memra_test::image;
using memra_test::Image;
using memra_test::part;
using memra_test::placements;
using memra_test::recurrent_model;
using memra_test::require_eq;
using memra_test::says;
using memra_test::spoil;
using memra_test::straight;
using memra_test::stream;
using memra_test::TestDev;
using memra_test::Tokens;
using Cache = memra::Cache<TestDev>;
using Snapshot = memra::CacheSnapshot<TestDev>;
using Prefix = memra::CachePrefix<TestDev>;

struct Published {
  Devices d;
  std::optional<Cache> cache;
  std::optional<Prefix> prefix;

  Published(const memra::ModelConfig& cfg, const Tokens& t, std::size_t n) {
    cache.emplace(memra::check(Cache::create(d.dev[0], cfg, 40)));
    memra::check(feed(*cache, part(t, 0, n)));
    const Snapshot s = memra::check(cache->snapshot());
    prefix.emplace(memra::check(cache->export_prefix(s)));
  }
};

TEST_CASE("B37 B40 a prefix goes from every placement to every other", "[prefix]") {
  const Tokens t = stream(20);
  for (const auto& cfg :
       {hybrid_model(Format::q5_1, Format::f16, Layout::split), attention_model(), recurrent_model()}) {
    for (const auto& from : placements(cfg.layers.size())) {
      for (const auto& to : placements(cfg.layers.size())) {
        CAPTURE(from.name, to.name);
        Devices d;
        Devices e;
        std::optional<Prefix> prefix;
        {
          Cache c = memra::check(d.create(from, cfg, 40));
          REQUIRE(feed_by(c, part(t, 0, 11), 4).ok());
          const Snapshot s = memra::check(c.snapshot());
          REQUIRE(feed(c, stream(6, 3)).ok());  // the server has moved on
          prefix.emplace(memra::check(c.export_prefix(s)));
          require_eq(image(c), straight(cfg, memra_test::join(part(t, 0, 11), stream(6, 3))));
        }  // the prefix outlives its cache
        REQUIRE((prefix->pos() == 11 && prefix->config() == cfg));
        const auto devs = e.of(to);
        for (const std::size_t max_ctx : {20U, 64U}) {
          Cache c = memra::check(Cache::from_prefix_ppn(devs, to.fence, cfg, max_ctx, *prefix));
          require_eq(image(c), straight(cfg, part(t, 0, 11)));
          REQUIRE(feed_by(c, part(t, 11, 9), 2).ok());
          require_eq(image(c), straight(cfg, t));
          REQUIRE(c.reset().ok());
          require_eq(image(c), straight(cfg, {}));
        }
      }
    }
  }
}

TEST_CASE("B37 every pair of formats in both layouts travels, at lengths around the sub-plane alignment", "[prefix]") {
  for (const Format k : memra::all_formats) {
    for (const Format v : memra::all_formats) {
      for (const Layout layout : {Layout::blocks, Layout::split}) {
        const auto cfg = hybrid_model(k, v, layout);
        for (const std::size_t n : {1U, 3U, 8U}) {
          CAPTURE(memra::to_string(k), memra::to_string(v), memra::to_string(layout), n);
          const Tokens t = stream(12);
          Published p(cfg, t, n);
          Devices e;
          Cache c = memra::check(Cache::from_prefix(e.dev[0], cfg, 13, *p.prefix));
          require_eq(image(c), straight(cfg, part(t, 0, n)));
          REQUIRE(feed(c, part(t, n, 12 - n)).ok());
          require_eq(image(c), straight(cfg, t));
        }
      }
    }
  }
}

TEST_CASE("B36 red arm: a restore without the recurrent part, or with another row, is seen", "[prefix]") {
  const auto cfg = hybrid_model();
  const Tokens t = stream(10);
  Published p(cfg, t, 10);
  Devices e;
  Cache c = memra::check(Cache::from_prefix(e.dev[0], cfg, 13, *p.prefix));
  REQUIRE(image(c) == straight(cfg, t));
  std::memset(const_cast<float*>(c.recur(6)->ssm), 0, c.recur(6)->ssm_elems() * sizeof(float));
  REQUIRE(image(c) != straight(cfg, t));
  Cache again = memra::check(Cache::from_prefix(e.dev[0], cfg, 13, *p.prefix));
  spoil(e.dev[0], again.kv(2)->v.data + 9 * again.kv(2)->v_row_bytes());
  REQUIRE(image(again) != straight(cfg, t));
}

TEST_CASE("a prefix can be taken at a snapshot while a replay is owed, and after a rollback to it", "[prefix]") {
  const auto cfg = hybrid_model();
  const Tokens t = stream(20);
  Devices d;
  Cache c = memra::check(Cache::create(d.dev[0], cfg, 40));
  REQUIRE(feed(c, part(t, 0, 6)).ok());
  const Snapshot early = memra::check(c.snapshot());
  REQUIRE(feed(c, part(t, 6, 4)).ok());
  const Snapshot s = memra::check(c.snapshot());
  REQUIRE(feed(c, part(t, 10, 5)).ok());
  REQUIRE(c.rollback(early, 6).ok());  // rows end at 12, the replay stands at 6, below s
  for (int turn = 0; turn < 2; ++turn) {
    const Prefix p = memra::check(c.export_prefix(s));
    Cache fresh = memra::check(Cache::from_prefix(d.dev[1], cfg, 16, p));
    require_eq(image(fresh), straight(cfg, part(t, 0, 10)));
    REQUIRE(feed(c, part(t, c.pos(), 2)).ok());
  }
  REQUIRE(c.rollback(early, 3).ok());
  REQUIRE(says(c.export_prefix(s).status(), ErrorKind::bad_state, "stale"));
}

TEST_CASE("from_prefix starts its own line: snapshots of the source are foreign to it", "[prefix]") {
  const auto cfg = hybrid_model();
  const Tokens t = stream(12);
  Published p(cfg, t, 8);
  const Snapshot s = memra::check(p.cache->snapshot());
  Cache c = memra::check(Cache::from_prefix(p.d.dev[0], cfg, 16, *p.prefix));
  REQUIRE(says(c.rollback(s, 0).status(), ErrorKind::bad_argument, "another cache"));
  const Snapshot own = memra::check(c.snapshot());
  REQUIRE(own.pos() == 8);
  REQUIRE(feed(c, stream(4, 3)).ok());
  REQUIRE(c.rollback(own, 0).ok());
  REQUIRE(feed(c, part(t, 8, 4)).ok());
  require_eq(image(c), straight(cfg, t));
}

TEST_CASE("B37 export_prefix refuses position 0; from_prefix refuses one by one, also what has the same bytes",
          "[prefix]") {
  const auto cfg = hybrid_model();
  const Tokens t = stream(12);
  Published p(cfg, t, 8);
  Devices e;
  Cache empty = memra::check(Cache::create(e.dev[0], cfg, 8));
  const Snapshot at0 = memra::check(empty.snapshot());
  REQUIRE(says(empty.export_prefix(at0).status(), ErrorKind::bad_argument, "position 0"));
  const std::size_t held = e.live();

  const auto refused = [&](const memra::ModelConfig& other, std::size_t max_ctx, const char* words) {
    const auto made = Cache::from_prefix(e.dev[0], other, max_ctx, *p.prefix);
    INFO(made.status().text());
    REQUIRE(!made);
    REQUIRE(says(made.status(), ErrorKind::bad_argument, words));
    REQUIRE(e.live() == held);
  };
  refused(cfg, 7, "8 rows, max_ctx is 7");
  {
    auto other = cfg;
    other.layers.pop_back();
    refused(other, 16, "a layer count of 8, this model 7");
  }
  {
    auto other = cfg;
    std::swap(other.layers[0], other.layers[1]);
    refused(other, 16, "layer 0, state 0: the prefix has a state of kind recurrent, this model attention");
  }
  const auto with_attention = [&](auto change, const char* words) {
    auto other = cfg;
    change(std::get<memra::AttentionSpec>(other.layers[1].states[0]));
    refused(other, 16, words);
  };
  with_attention([](auto& a) { a.k_format = Format::f16; }, "k_format q8_0, this model f16");
  with_attention([](auto& a) { a.v_format = Format::q4_0; }, "v_format q5_1, this model q4_0");
  with_attention([](auto& a) { a.v_layout = Layout::split; }, "v_layout blocks, this model split");
  with_attention([](auto& a) { a.head_dim_v = 64; }, "head_dim_v 32, this model 64");
  // The same bytes, but another meaning: size equality is not enough (B37).
  with_attention([](auto& a) { a.n_kv_heads = 1, a.head_dim_k = a.head_dim_v = 64; }, "n_kv_heads 2, this model 1");
  with_attention([](auto& a) { a.window = 3; }, "window 0, this model 3");
  const auto with_recurrent = [&](auto change, const char* words) {
    auto other = cfg;
    change(std::get<memra::RecurrentSpec>(other.layers[0].states[0]));
    refused(other, 16, words);
  };
  with_recurrent([](auto& r) { r.d_conv = 3; }, "d_conv 4, this model 3");
  with_recurrent([](auto& r) { r.n_v_heads = 3; }, "n_v_heads");
  with_recurrent([](auto& r) { r.d_k = 2, r.n_k_heads = 2, r.n_v_heads = 4; }, "n_k_heads");
  with_recurrent([](auto& r) { r.map.mode = memra::KeyHeadMode::interleaved; },
                 "map.mode grouped, this model interleaved");
  {
    auto other = cfg;
    other.n_vocab = 17;
    refused(other, 16, "n_vocab 16, this model 17");
  }
  {
    Prefix taken = std::move(*p.prefix);
    REQUIRE((p.prefix->pos() == 0 && !p.prefix->has_logits()));  // NOLINT(bugprone-use-after-move)
    refused(cfg, 16, "moved-from");
    *p.prefix = std::move(taken);
  }
  const Cache c = memra::check(Cache::from_prefix(e.dev[0], cfg, 8, *p.prefix));
  require_eq(image(c), straight(cfg, part(t, 0, 8)));
}

TEST_CASE("B38 flags that are in no stored byte do not refuse a restore", "[prefix]") {
  const Tokens t = stream(12);
  const auto cfg = hybrid_model();
  auto other = cfg;
  std::get<memra::AttentionSpec>(other.layers[1].states[0]).n_heads = 2;
  std::get<memra::RecurrentSpec>(other.layers[0].states[0]).second_buffer = true;
  std::get<memra::RecurrentSpec>(other.layers[6].states[0]).second_buffer = false;
  for (const bool swap : {false, true}) {
    const auto& from = swap ? other : cfg;
    const auto& to = swap ? cfg : other;
    Published p(from, t, 8);
    Devices e;
    Cache c = memra::check(Cache::from_prefix(e.dev[0], to, 16, *p.prefix));
    require_eq(image(c), straight(to, part(t, 0, 8)));
    REQUIRE(feed(c, part(t, 8, 4)).ok());
    require_eq(image(c), straight(to, t));
  }
}

TEST_CASE("a prefix carries the logits parked at its end, and no others", "[prefix]") {
  const auto cfg = hybrid_model();
  const Tokens t = stream(12);
  std::vector<float> logits(cfg.n_vocab);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i) - 3.5F;
  for (const bool at_snap : {true, false}) {
    Devices d;
    Cache c = memra::check(d.create(placements(cfg.layers.size())[2], cfg, 20));
    REQUIRE(feed(c, part(t, 0, 8)).ok());
    const Snapshot s = memra::check(c.snapshot());
    if (at_snap) REQUIRE(c.park_logits(logits.data()).ok());
    REQUIRE(feed(c, part(t, 8, 1)).ok());
    if (!at_snap) REQUIRE(c.park_logits(logits.data()).ok());
    const Prefix p = memra::check(c.export_prefix(s));
    REQUIRE(p.has_logits() == at_snap);
    Devices e;
    Cache fresh = memra::check(Cache::from_prefix(e.dev[0], cfg, 20, p));
    const auto parked = fresh.last_logits_dev();
    REQUIRE(parked.has_value() == at_snap);
    if (parked) {
      REQUIRE((parked->pos == 8 && parked->n == cfg.n_vocab));
      REQUIRE(std::memcmp(parked->data, logits.data(), logits.size() * sizeof(float)) == 0);
    }
    REQUIRE(feed(fresh, part(t, 8, 1)).ok());
    REQUIRE(!fresh.last_logits_dev());
  }
}

TEST_CASE("B30 the n-th call fails: export_prefix and from_prefix are all or nothing", "[prefix][failure]") {
  const auto cfg = hybrid_model();
  const Tokens t = stream(12);
  const std::vector<float> logits(cfg.n_vocab, 0.5F);
  for (const auto& place : placements(cfg.layers.size())) {
    CAPTURE(place.name);
    Devices d;
    Cache c = memra::check(d.create(place, cfg, 20));
    REQUIRE(feed(c, part(t, 0, 8)).ok());
    const Snapshot s = memra::check(c.snapshot());
    REQUIRE(c.park_logits(logits.data()).ok());
    const Image want = straight(cfg, part(t, 0, 8));
    std::size_t held = d.live();
    std::optional<Prefix> p;
    std::size_t n = 1;
    for (;; ++n) {
      d.arm(n);
      auto made = c.export_prefix(s);
      const bool fired = d.fired();
      d.arm(0);
      if (!fired) {
        p.emplace(memra::check(std::move(made)));
        break;
      }
      REQUIRE(!made);
      REQUIRE(d.live() == held);
      REQUIRE((!c.tainted() && s.valid() && c.last_logits_dev()));
      require_eq(image(c), want);
    }
    REQUIRE(n > 5);
    held = d.live();
    for (n = 1;; ++n) {
      d.arm(n);
      auto made = Cache::from_prefix(d.dev[1], cfg, 16, *p);
      const bool fired = d.fired();
      d.arm(0);
      if (!fired) {
        require_eq(image(*made), want);
        break;
      }
      REQUIRE(!made);
      REQUIRE(d.live() == held);
    }
    REQUIRE(n > 5);
  }
}

}  // namespace
}  // namespace cache_prefix_cpp
