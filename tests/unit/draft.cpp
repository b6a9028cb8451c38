// The D rules of the draft cache, every refusal of from_tail alone, and the cases of other engines' draft caches.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memra/dflash_kv.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <optional>
#include <string>
#include <support/catch.hpp>
#include <support/says.hpp>
#include <support/stand_in.hpp>
#include <support/test_dev.hpp>
#include <utility>
#include <vector>

namespace draft_cpp {
namespace {

using memra::DflashCfg;
using memra::ErrorKind;
using memra_test::part;
using memra_test::says;
using memra_test::stream;
using memra_test::TestDev;
using memra_test::Tokens;
using memra_test::torn;
using Kv = memra::DflashKv<TestDev>;
using Tail = memra::DflashKvTail<TestDev>;

constexpr std::size_t most = std::numeric_limits<std::size_t>::max();

DflashCfg config(std::size_t window = 8, std::size_t block = 4, std::vector<bool> sliding = {}) {
  DflashCfg c;
  c.n_layer = 2;
  c.n_kv = 2;
  c.head_dim = 3;
  c.block_size = block;
  c.sliding_window = window;
  c.layer_sliding = std::move(sliding);
  return c;
}

using memra_test::stand_in::kind_k;
using memra_test::stand_in::kind_v;

/// What the K or V row of token t at position pos is, whatever wrote it.
std::vector<float> want_row(const Kv& kv, bool k, std::size_t layer, memra_test::Token t, std::size_t pos) {
  return memra_test::stand_in::row(k ? kind_k : kind_v, layer, 0, kv.row_bytes() / 4, t, pos);
}

/// Writes `tokens` into the rows a view stands for, where the device says they go.
memra::Status write(TestDev& dev, const Kv& kv, const Kv::Rows& rows, const Tokens& tokens) {
  for (std::size_t l = 0; l < kv.n_layer(); ++l) {
    const memra::DraftView d = rows.view(l);
    std::int32_t len = -1;
    if (auto s = dev.download(reinterpret_cast<std::byte*>(&len), reinterpret_cast<const std::byte*>(d.len_d), 4); !s) {
      return s;
    }
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::size_t pos = static_cast<std::size_t>(len) + i;
      for (const bool k : {true, false}) {
        const auto x = want_row(kv, k, l, tokens[i], pos);
        auto* at = reinterpret_cast<std::byte*>((k ? d.k : d.v) + pos * x.size());
        if (auto s = dev.upload(at, reinterpret_cast<const std::byte*>(x.data()), kv.row_bytes()); !s) return s;
      }
    }
  }
  return {};
}

memra::Status commit(TestDev& dev, Kv& kv, const Tokens& tokens) {
  auto rows = kv.begin_rows(tokens.size());
  if (!rows) return rows.status();
  if (auto s = write(dev, kv, *rows, tokens); !s) return s;
  return kv.commit();
}

/// Writes a block of guesses and leaves it.
memra::Status draft(TestDev& dev, Kv& kv, const Tokens& tokens) {
  auto rows = kv.begin_block(tokens.size());
  if (!rows) return rows.status();
  return write(dev, kv, *rows, tokens);
}

/// True if rows [first, end) of every layer are those of t[first..end).
bool holds(const Kv& kv, const Tokens& t, std::size_t first, std::size_t end) {
  for (std::size_t l = 0; l < kv.n_layer(); ++l) {
    for (std::size_t r = first; r < end; ++r) {
      for (const bool k : {true, false}) {
        const auto x = want_row(kv, k, l, t[r], r);
        if (std::memcmp((k ? kv.k(l) : kv.v(l)) + r * x.size(), x.data(), kv.row_bytes()) != 0) return false;
      }
    }
  }
  return true;
}

bool zero_below(const Kv& kv, std::size_t end) {
  const std::vector<std::byte> zero(end * kv.row_bytes());
  if (zero.empty()) return true;
  for (std::size_t l = 0; l < kv.n_layer(); ++l) {
    if (std::memcmp(kv.k(l), zero.data(), zero.size()) != 0 || std::memcmp(kv.v(l), zero.data(), zero.size()) != 0) {
      return false;
    }
  }
  return true;
}

std::int32_t len_d(const Kv& kv) {
  std::int32_t n = -1;
  auto& dev = kv.device();
  std::byte* base = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(kv.k(0))) - kv.plan().k_offset(0);
  memra::check(dev.download(reinterpret_cast<std::byte*>(&n), base, sizeof n));
  return n;
}

struct Primed {
  TestDev dev;
  Kv kv;
  Tokens t = stream(64);
  Primed(const DflashCfg& cfg, std::size_t n, std::size_t cap = 64) : kv(memra::check(Kv::create(dev, cfg, cap))) {
    if (n != 0) memra::check(commit(dev, kv, part(t, 0, n)));
  }
};

TEST_CASE("D1 f32 rows [cap + block][n_kv * head_dim] per layer, bytes by hand", "[draft]") {
  DflashCfg c;
  c.n_layer = 5, c.n_kv = 8, c.head_dim = 128, c.block_size = 16, c.sliding_window = 2048;
  REQUIRE((c.row_bytes() == 4096 && c.window_rows() == 2064));
  const auto p = memra::check(memra::plan(c, 1000));
  REQUIRE((p.phys_rows == 1016 && p.plane_bytes == 1016 * 4096));
  REQUIRE(p.total_bytes == 256 + 10 * 1016 * 4096);  // 40,960 bytes per row over 5 layers
  REQUIRE(memra::check(memra::plan(c, 1000, 4096)).total_bytes == 256 + 10 * (1016 * 4096 + 4096));
  for (std::size_t l = 0; l < 5; ++l) REQUIRE(p.v_offset(l) - p.k_offset(l) == p.plane_stride);

  Primed d(config(), 5);
  REQUIRE((d.kv.row_bytes() == 24 && d.kv.n_layer() == 2 && d.kv.cap() == 64 && d.kv.cfg_window_rows() == 12));
  REQUIRE(d.dev.inner().counters().live_bytes == d.kv.plan().total_bytes);
  REQUIRE(holds(d.kv, d.t, 0, 5));
  memra_test::spoil(d.dev, d.kv.v(1) + 4 * 6);  // red arm: one byte of the last row
  REQUIRE(!holds(d.kv, d.t, 0, 5));
  REQUIRE(holds(d.kv, d.t, 0, 4));
}

TEST_CASE("D1 every field of the configuration is checked", "[draft]") {
  const auto kind = [](auto change, std::size_t cap = 8) {
    DflashCfg c = config();
    change(c);
    return memra::plan(c, cap).status().kind();
  };
  REQUIRE(kind([](auto&) {}) == ErrorKind::ok);
  REQUIRE(kind([](auto& c) { c.n_layer = 0; }) == ErrorKind::bad_argument);
  REQUIRE(kind([](auto& c) { c.n_kv = 0; }) == ErrorKind::bad_argument);
  REQUIRE(kind([](auto& c) { c.head_dim = 0; }) == ErrorKind::bad_argument);
  REQUIRE(kind([](auto& c) { c.block_size = 0; }) == ErrorKind::bad_argument);
  REQUIRE(kind([](auto& c) { c.layer_sliding = {true}; }) == ErrorKind::bad_argument);
  REQUIRE(kind([](auto& c) { c.sliding_window = most; }) == ErrorKind::bad_argument);
  REQUIRE(kind([](auto& c) { c.head_dim = most / 4; }) == ErrorKind::bad_argument);
  REQUIRE(kind([](auto& c) { c.n_layer = most / 8; }) == ErrorKind::bad_argument);
  REQUIRE(kind([](auto& c) { c.layer_sliding.clear(), c.ring = true, c.n_layer = most; }) == ErrorKind::bad_argument);
  REQUIRE(kind([](auto& c) { c.block_size = most; }) == ErrorKind::bad_argument);
  REQUIRE(kind([](auto&) {}, 0) == ErrorKind::bad_argument);
  REQUIRE(kind([](auto&) {}, 0x7fffffff - 4) == ErrorKind::ok);
  REQUIRE(kind([](auto&) {}, 0x7fffffff - 3) == ErrorKind::bad_argument);
  REQUIRE(kind([](auto&) {}, most) == ErrorKind::bad_argument);
  REQUIRE(memra::plan(config(), 8, most).status().kind() == ErrorKind::bad_argument);
}

TEST_CASE("D2 block rows are transient, committed rows are counted, capacity comes first", "[draft]") {
  Primed d(config(), 6, 10);
  Kv& kv = d.kv;
  REQUIRE(draft(d.dev, kv, stream(4, 9)).ok());
  REQUIRE((kv.len() == 6 && len_d(kv) == 6));
  REQUIRE(kv.commit().kind() == ErrorKind::bad_state);
  REQUIRE(holds(kv, d.t, 0, 6));
  REQUIRE(says(kv.begin_block(0).status(), ErrorKind::bad_argument, "1 to block_size 4"));
  REQUIRE(says(kv.begin_block(5).status(), ErrorKind::bad_argument, "5 rows"));
  REQUIRE(says(kv.begin_rows(0).status(), ErrorKind::bad_argument, "1 to 4"));
  REQUIRE(says(kv.begin_rows(5).status(), ErrorKind::bad_argument, "1 to 4"));
  REQUIRE(says(kv.begin_rows(most).status(), ErrorKind::bad_argument, "1 to 4"));
  REQUIRE(commit(d.dev, kv, part(d.t, 6, 4)).ok());
  REQUIRE((kv.len() == 10 && len_d(kv) == 10));
  REQUIRE(says(kv.begin_rows(1).status(), ErrorKind::bad_argument, "0"));
  REQUIRE(draft(d.dev, kv, stream(4, 9)).ok());  // a full cache still has room for a block
  REQUIRE(holds(kv, d.t, 0, 10));
  // begin_block gives up what begin_rows opened.
  REQUIRE(kv.truncate(8).ok());
  REQUIRE(kv.begin_rows(2).ok());
  REQUIRE(kv.begin_block(2).ok());
  REQUIRE(kv.commit().kind() == ErrorKind::bad_state);
}

TEST_CASE("D2 rows that are over give no view", "[draft]") {
  Primed d(config(), 6, 20);
  const auto rows = memra::check(d.kv.begin_rows(2));
  REQUIRE((rows.first() == 6 && rows.rows() == 2));
  const memra::DraftView v = rows.view(1);
  REQUIRE((v.k != nullptr && v.block_rows == 2 && v.len_bound == 6 && v.phys_rows == 24 && v.base == 0));
  REQUIRE(rows.view(2).k == nullptr);
  REQUIRE(write(d.dev, d.kv, rows, part(d.t, 6, 2)).ok());
  REQUIRE(d.kv.commit().ok());
  REQUIRE(rows.view(0).k == nullptr);
  const std::vector<float> x(2 * 6);
  const memra::ops_for<TestDev> ops(d.dev);
  const memra::Status over = ops.draft_write(rows.view(0), x.data(), x.data());
  REQUIRE(over.kind() == ErrorKind::bad_argument);  // not a silent no-op
  REQUIRE(std::string(over.text()).find("Rows that are over") != std::string::npos);
  const auto block = memra::check(d.kv.begin_block(3));
  REQUIRE(block.view(0).k != nullptr);
  REQUIRE(d.kv.begin_block(3).ok());
  REQUIRE(block.view(0).k == nullptr);
  const auto again = memra::check(d.kv.begin_rows(1));
  REQUIRE(d.kv.truncate(8).ok());
  REQUIRE(again.view(0).k == nullptr);
  const auto moved_rows = memra::check(d.kv.begin_rows(1));
  const Kv moved = std::move(d.kv);
  REQUIRE(moved_rows.view(0).k == moved.k(0));
}

TEST_CASE("D3 the window is per layer or none, and the floor after a restore follows", "[draft]") {
  struct Case {
    DflashCfg cfg;
    std::size_t floor_after;
  };
  // len 30, window_rows 12: the tail starts at 18.
  for (const auto& [cfg, floor_after] :
       {Case{config(8, 4), 0}, Case{config(8, 4, {true, true}), 0}, Case{config(8, 4, {true, false}), 18},
        Case{config(8, 4, {false, false}), 18}}) {
    Primed d(cfg, 30);
    REQUIRE(d.kv.floor() == 0);
    const auto rows = memra::check(d.kv.begin_block(4));
    REQUIRE(rows.view(0).window == cfg.window(0));
    REQUIRE(rows.view(1).window == cfg.window(1));
    const auto tail = d.kv.export_tail(30);
    REQUIRE(tail);
    REQUIRE((tail->base == 18 && tail->rows == 12 && tail->floor == 0));
    auto kv = Kv::from_tail(d.dev, cfg, 40, *tail);
    REQUIRE(kv);
    REQUIRE((kv->floor() == floor_after && kv->len() == 30 && kv->resident() == 18));
    REQUIRE(memra::check(kv->begin_block(1)).view(0).floor == floor_after);
  }
  // No window at all: window_rows is the block.
  Primed d(config(0, 4), 30);
  REQUIRE(d.kv.cfg_window_rows() == 4);
  const auto tail = d.kv.export_tail(30);
  REQUIRE((tail && tail->base == 26));
  REQUIRE(Kv::from_tail(d.dev, config(0, 4), 40, *tail)->floor() == 26);
  // A cold start's floor is above the tail's base only if the tail reaches down to it.
  Kv cold = memra::check(Kv::create_cold_at(d.dev, config(8, 4), 64, 20));
  REQUIRE(commit(d.dev, cold, part(d.t, 20, 5)).ok());
  const auto young = cold.export_tail(25);
  REQUIRE((young && young->base == 20 && young->rows == 5 && young->floor == 20));
  REQUIRE(Kv::from_tail(d.dev, config(8, 4), 40, *young)->floor() == 20);
}

TEST_CASE("D4 B58 export goes up to the boundary, not to len", "[draft]") {
  Primed d(config(8, 4), 40);
  REQUIRE(!d.kv.export_tail(0));
  REQUIRE(!d.kv.export_tail(41));
  REQUIRE(!d.kv.export_tail(most));
  for (std::size_t upto = 1; upto <= 40; ++upto) {
    CAPTURE(upto);
    const auto tail = d.kv.export_tail(upto);
    REQUIRE(tail);
    REQUIRE((tail->len == upto && tail->base + tail->rows == upto && tail->rows == std::min<std::size_t>(12, upto)));
    REQUIRE((tail->row_bytes == 24 && tail->layers.size() == 2 && tail->layers[1].v.size() == tail->rows * 24));
    memra::Status why;
    const auto kv = Kv::from_tail(d.dev, config(8, 4), 40, *tail, &why);
    INFO(why.text());
    REQUIRE(kv);
    REQUIRE((kv->len() == upto && len_d(*kv) == static_cast<std::int32_t>(upto)));
    REQUIRE(holds(*kv, d.t, tail->base, upto));  // the same absolute positions
    REQUIRE(zero_below(*kv, tail->base));
    // What is below the base is gone: nothing that needs it is published again.
    REQUIRE(kv->export_tail(upto));
    if (tail->base != 0) REQUIRE(!kv->export_tail(upto - 1));
    REQUIRE(!kv->export_tail(upto + 1));
  }
}

TEST_CASE("D4 nothing above the floor, not resident, tainted, moved-from: nullopt", "[draft]") {
  Primed d(config(8, 4), 0);
  REQUIRE(!d.kv.export_tail(0));
  REQUIRE(!d.kv.export_tail(1));
  Kv cold = memra::check(Kv::create_cold_at(d.dev, config(8, 4), 64, 20));
  REQUIRE(!cold.export_tail(20));
  REQUIRE(!cold.export_tail(10));
  REQUIRE(commit(d.dev, cold, part(d.t, 20, 1)).ok());
  REQUIRE(cold.export_tail(21));
  REQUIRE(!cold.export_tail(20));
  Kv moved = std::move(cold);
  REQUIRE(!cold.export_tail(21));  // NOLINT(bugprone-use-after-move)
  REQUIRE(moved.begin_rows(1).ok());
  d.dev.arm(torn(1));
  REQUIRE(moved.commit().kind() == ErrorKind::device_failure);
  d.dev.disarm();
  REQUIRE((moved.tainted() && !moved.export_tail(21)));
}

TEST_CASE("D5 from_tail refuses one by one, says why, and leaves nothing behind", "[draft]") {
  Primed d(config(8, 4), 40);
  const auto refused = [&](const DflashCfg& cfg, std::size_t cap, auto change, const char* words) {
    auto tail = d.kv.export_tail(30);  // rows [18, 30), floor 0
    REQUIRE(tail);
    change(*tail);
    const std::size_t held = d.dev.inner().counters().live;
    memra::Status why;
    const auto kv = Kv::from_tail(d.dev, cfg, cap, *tail, &why);
    REQUIRE(!kv);
    REQUIRE(!why.ok());
    INFO(why.text());
    REQUIRE(std::string(why.text()).find(words) != std::string::npos);
    REQUIRE(!Kv::from_tail(d.dev, cfg, cap, *tail));
    REQUIRE(d.dev.inner().counters().live == held);
  };
  const auto same = [](Tail&) {};
  const DflashCfg cfg = config(8, 4);
  {
    DflashCfg other = cfg;
    other.n_layer = 3;
    refused(other, 40, same, "2 layers, the drafter 3");
    other.n_layer = 1;
    refused(other, 40, same, "2 layers, the drafter 1");
    other = cfg;
    other.head_dim = 4;
    refused(other, 40, same, "24 bytes, the drafter's 32");
    other = cfg;
    other.block_size = 5;  // wants a longer tail
    refused(other, 40, same, "do not cover");
    other = cfg;
    other.sliding_window = 9;
    refused(other, 40, same, "do not cover");
    other = cfg;
    other.layer_sliding = {true};
    refused(other, 40, same, "layer_sliding");
    other = cfg;
    other.sliding_window = most;
    refused(other, 40, same, "");
  }
  refused(cfg, 29, same, "ends at row 30, cap is 29");
  refused(
      cfg, 40, [](Tail& t) { t.dev = nullptr; }, "no device");
  refused(
      cfg, 40, [](Tail& t) { t.layers.pop_back(); }, "1 layers");
  refused(
      cfg, 40, [](Tail& t) { t.row_bytes = 20; }, "20 bytes");
  refused(
      cfg, 40, [](Tail& t) { t.len = 31; }, "is not len 31");
  refused(
      cfg, 40, [](Tail& t) { t.base = 17; }, "is not len");
  refused(
      cfg, 40, [](Tail& t) { t.rows = 11; }, "is not len");
  refused(
      cfg, 40, [](Tail& t) { t.base = most, t.rows = 31; }, "is not len");  // wraps to 30
  refused(
      cfg, 40, [](Tail& t) { t.floor = 19; }, "floor 19 is above base 18");
  refused(
      cfg, 40, [](Tail& t) { t.floor = most; }, "above base");
  refused(
      cfg, 40, [](Tail& t) { t.base = 19, t.rows = 11; }, "do not cover");
  refused(
      cfg, 40, [](Tail& t) { t.base = 30, t.rows = 0; }, "do not cover");
  refused(
      cfg, 40, [](Tail& t) { t.base = 17, t.rows = 13; }, "expected rows * row_bytes = 312");  // too few bytes
  refused(
      cfg, 40, [&](Tail& t) { t.layers[1].v = memra::check(d.dev.alloc(12 * 24 - 1)); }, "287 bytes");
  refused(
      cfg, 40, [&](Tail& t) { t.layers[0].k = memra::check(d.dev.alloc(12 * 24 + 1)); }, "289");
  refused(
      cfg, 40, [&](Tail& t) { t.layers[0].k = TestDev::Buffer(); }, "0 and 288");
  // Shorter than the window is fine if it reaches down to the floor; longer is fine, too.
  auto tail = d.kv.export_tail(30);
  tail->floor = 18;
  DflashCfg wide = config(20, 4);
  REQUIRE(Kv::from_tail(d.dev, wide, 40, *tail));
  tail->floor = 0;
  DflashCfg narrow = config(2, 1);
  REQUIRE(Kv::from_tail(d.dev, narrow, 30, *tail)->len() == 30);
}

TEST_CASE("D5 B61 in poisoned memory rows below base are zero and rows above are the source's", "[draft]") {
  for (const auto& sliding : {std::vector<bool>{}, std::vector<bool>{true, false}}) {
    const DflashCfg cfg = config(8, 4, sliding);
    Primed d(cfg, 40);
    const auto tail = d.kv.export_tail(33);
    TestDev elsewhere;  // another device object
    auto kv = Kv::from_tail(elsewhere, cfg, 50, *tail);
    REQUIRE(kv);
    REQUIRE(zero_below(*kv, 21));
    REQUIRE(!zero_below(*kv, 22));
    REQUIRE(holds(*kv, d.t, 21, 33));
    REQUIRE(commit(elsewhere, *kv, part(d.t, 33, 7)).ok());
    REQUIRE(holds(*kv, d.t, 21, 40));
    REQUIRE(zero_below(*kv, 21));
    const auto next = kv->export_tail(40);
    REQUIRE((next && next->base == 28));
  }
}

TEST_CASE("D6 both arms agree bit for bit after a restore in poisoned memory, and only because of the zeroes",
          "[draft]") {
  for (const auto& sliding : {std::vector<bool>{}, std::vector<bool>{true, false}}) {
    const DflashCfg cfg = config(8, 4, sliding);
    Primed d(cfg, 40);
    const auto tail = d.kv.export_tail(33);
    auto kv = Kv::from_tail(d.dev, cfg, 50, *tail);
    REQUIRE(draft(d.dev, *kv, stream(4, 3)).ok());
    const memra::ops_for<TestDev> ops(d.dev);
    const auto rows = memra::check(kv->begin_block(4));
    std::vector<std::byte> scratch(kv->workspace_bytes(2));
    std::vector<float> q(4 * 2 * 3);
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = memra_test::stand_in::value(kind_k, 9, 9, i, 9, 9);
    const auto attend = [&](std::size_t layer, memra::DraftArm arm) {
      std::vector<float> out(q.size(), -7.0F);
      REQUIRE(ops.draft_attend(rows.view(layer), {q.data(), out.data(), 2, 0.5F, arm}, {scratch.data(), scratch.size()})
                  .ok());
      return out;
    };
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    for (const std::size_t l : {0U, 1U}) {
      REQUIRE(same(attend(l, memra::DraftArm::clip), attend(l, memra::DraftArm::full_scan)));
    }
    auto* below = reinterpret_cast<std::byte*>(const_cast<float*>(kv->v(0)));
    REQUIRE(d.dev.fill(below, std::byte{0xFF}, kv->row_bytes()).ok());  // red arm: row 0 as the allocation left it
    REQUIRE(!same(attend(0, memra::DraftArm::clip), attend(0, memra::DraftArm::full_scan)));
  }
}

TEST_CASE("D7 a cold start stands at pos without history, rows below zero", "[draft]") {
  Primed d(config(8, 4), 0);
  for (const std::size_t pos : {0U, 1U, 20U, 64U}) {
    Kv kv = memra::check(Kv::create_cold_at(d.dev, config(8, 4), 64, pos));
    REQUIRE((kv.len() == pos && kv.floor() == pos && kv.resident() == pos));
    REQUIRE(len_d(kv) == static_cast<std::int32_t>(pos));
    REQUIRE(zero_below(kv, pos));
    REQUIRE(draft(d.dev, kv, stream(4, 5)).ok());
    if (pos < 64) {
      REQUIRE(commit(d.dev, kv, part(d.t, pos, 1)).ok());
      REQUIRE(holds(kv, d.t, pos, pos + 1));
    }
  }
  REQUIRE(says(Kv::create_cold_at(d.dev, config(8, 4), 64, 65).status(), ErrorKind::bad_argument, "beyond cap 64"));
  REQUIRE(Kv::create_cold_at(d.dev, config(8, 4), 64, most).status().kind() == ErrorKind::bad_argument);
}

TEST_CASE("B47 B63 a hundred rounds: a row for every committed token, none from a block", "[draft]") {
  const DflashCfg cfg = config(8, 4);
  const Tokens t = stream(300);
  for (const bool all_accepted : {false, true}) {
    TestDev dev;
    Kv kv = memra::check(Kv::create(dev, cfg, 300));
    Kv one_by_one = memra::check(Kv::create(dev, cfg, 300));
    REQUIRE(commit(dev, kv, part(t, 0, 5)).ok());
    for (std::size_t round = 0; round < (all_accepted ? 50U : 100U); ++round) {
      REQUIRE(draft(dev, kv, stream(4, 100U + static_cast<unsigned>(round))).ok());
      REQUIRE(kv.commit().kind() == ErrorKind::bad_state);  // a block is nothing to be committed
      const std::size_t accepted = all_accepted ? 4 : round % 5;
      const std::size_t at = kv.len();
      if (accepted != 0) REQUIRE(commit(dev, kv, part(t, at, accepted)).ok());
      REQUIRE(kv.len() == at + accepted);
    }
    for (std::size_t i = 0; i < kv.len(); ++i) REQUIRE(commit(dev, one_by_one, part(t, i, 1)).ok());
    REQUIRE(holds(kv, t, 0, kv.len()));
    for (std::size_t l = 0; l < 2; ++l) {
      REQUIRE(std::memcmp(kv.k(l), one_by_one.k(l), kv.len() * kv.row_bytes()) == 0);
      REQUIRE(std::memcmp(kv.v(l), one_by_one.v(l), kv.len() * kv.row_bytes()) == 0);
    }
    Tokens wrong = t;
    wrong[7] ^= 1U;
    REQUIRE(!holds(kv, wrong, 0, kv.len()));  // red arm
  }
}

TEST_CASE("B49 a shared prefix of L tokens proves L draft rows", "[draft]") {
  // A context row depends on its own token and position alone, so the token at L does not matter.
  const Tokens a = stream(40);
  Tokens b = a;
  for (std::size_t i = 25; i < b.size(); ++i) b[i] ^= 0x55U;
  TestDev dev;
  Kv x = memra::check(Kv::create(dev, config(8, 4), 64));
  REQUIRE(commit(dev, x, a).ok());
  const auto tail = x.export_tail(25);
  REQUIRE((tail && tail->len == 25));
  auto y = Kv::from_tail(dev, config(8, 4), 64, *tail);
  REQUIRE(y->len() == 25);
  REQUIRE(commit(dev, *y, part(b, 25, 15)).ok());
  REQUIRE(holds(*y, b, tail->base, 40));
}

TEST_CASE("B56 a restore that does not cover the window is refused and a cold start works", "[draft]") {
  Primed d(config(8, 4), 30);
  Tail empty;  // "N tokens are cached" without a row
  empty.dev = &d.dev;
  empty.len = empty.base = 30;
  empty.row_bytes = 24;
  for (int l = 0; l < 2; ++l) empty.layers.push_back({memra::check(d.dev.alloc(0)), memra::check(d.dev.alloc(0))});
  memra::Status why;
  REQUIRE(!Kv::from_tail(d.dev, config(8, 4), 64, empty, &why));
  REQUIRE(says(why, ErrorKind::bad_argument, "prime cold"));
  Kv cold = memra::check(Kv::create_cold_at(d.dev, config(8, 4), 64, 30));
  REQUIRE(memra::check(cold.begin_block(4)).view(0).floor == 30);
}

TEST_CASE("B62 layers with and without a window keep apart, and row 0 is only row 0", "[draft]") {
  Primed d(config(8, 4, {true, false}), 40);
  const auto tail = d.kv.export_tail(40);
  auto kv = Kv::from_tail(d.dev, config(8, 4, {true, false}), 64, *tail);
  REQUIRE(zero_below(*kv, 28));
  REQUIRE(draft(d.dev, *kv, stream(4, 3)).ok());
  REQUIRE(commit(d.dev, *kv, part(d.t, 40, 4)).ok());
  REQUIRE(zero_below(*kv, 28));  // nothing was written to a row that is not there
  REQUIRE(memra::check(kv->begin_block(1)).view(0).window == 8);
  REQUIRE(memra::check(kv->begin_block(1)).view(1).window == 0);
}

TEST_CASE("truncate gives rows up, refuses what would look at rows that are not there", "[draft]") {
  Primed d(config(8, 4), 40);
  REQUIRE(says(d.kv.truncate(41), ErrorKind::bad_argument, "(len)"));
  REQUIRE(d.kv.truncate(40).ok());
  REQUIRE(d.kv.truncate(30).ok());
  REQUIRE((d.kv.len() == 30 && len_d(d.kv) == 30));
  REQUIRE(!d.kv.export_tail(31));
  REQUIRE(commit(d.dev, d.kv, part(d.t, 30, 10)).ok());
  REQUIRE(holds(d.kv, d.t, 0, 40));
  const auto tail = d.kv.export_tail(40);
  auto kv = Kv::from_tail(d.dev, config(8, 4), 64, *tail);  // resident from 28
  REQUIRE(kv->truncate(35).ok());                           // sees [28, 35)
  REQUIRE(says(kv->truncate(34), ErrorKind::bad_argument, "resident from 28"));
  REQUIRE(kv->len() == 35);
  Kv cold = memra::check(Kv::create_cold_at(d.dev, config(8, 4), 64, 20));
  REQUIRE(commit(d.dev, cold, part(d.t, 20, 3)).ok());
  REQUIRE(cold.truncate(20).ok());
  REQUIRE(says(cold.truncate(19), ErrorKind::bad_argument, "20 (floor)"));
  REQUIRE(d.kv.truncate(0).ok());
  REQUIRE(commit(d.dev, d.kv, part(d.t, 0, 3)).ok());
  REQUIRE(d.kv.export_tail(3));
}

TEST_CASE("the n-th call fails: draft caches are whole or absent, taints are repaired by truncate",
          "[draft][failure]") {
  const DflashCfg cfg = config(8, 4);
  std::size_t n = 1;
  for (;; ++n) {
    TestDev dev;
    dev.arm(torn(n));
    auto kv = Kv::create_cold_at(dev, cfg, 30, 12);
    if (dev.fired() == 0) break;
    REQUIRE(!kv);
    REQUIRE(dev.inner().counters().live == 0);
  }
  REQUIRE(n > 4);

  Primed d(cfg, 20);
  std::optional<Tail> tail;
  for (n = 1;; ++n) {
    const std::size_t held = d.dev.inner().counters().live;
    d.dev.arm(torn(n));
    auto made = d.kv.export_tail(20);
    const bool fired = d.dev.fired() != 0;
    d.dev.disarm();
    if (!fired) {
      tail = std::move(made);
      break;
    }
    REQUIRE(!made);
    REQUIRE(d.dev.inner().counters().live == held);
    REQUIRE((!d.kv.tainted() && holds(d.kv, d.t, 0, 20)));
  }
  REQUIRE((n == 9 && tail));
  for (n = 1;; ++n) {
    const std::size_t held = d.dev.inner().counters().live;
    d.dev.arm(torn(n));
    memra::Status why;
    auto kv = Kv::from_tail(d.dev, cfg, 64, *tail, &why);
    const bool fired = d.dev.fired() != 0;
    d.dev.disarm();
    if (!fired) {
      REQUIRE((kv && holds(*kv, d.t, 8, 20)));
      break;
    }
    REQUIRE((!kv && !why.ok()));
    REQUIRE(d.dev.inner().counters().live == held);
  }
  REQUIRE(n > 8);

  auto rows = memra::check(d.kv.begin_rows(2));
  REQUIRE(write(d.dev, d.kv, rows, part(d.t, 20, 2)).ok());
  for (const bool in_truncate : {false, true}) {
    d.dev.arm(torn(1));
    const memra::Status s = in_truncate ? d.kv.truncate(19) : d.kv.commit();
    d.dev.disarm();
    REQUIRE(s.kind() == ErrorKind::device_failure);
    REQUIRE((d.kv.tainted() && d.kv.len() == 20));
    REQUIRE(says(d.kv.begin_rows(1).status(), ErrorKind::bad_state, "tainted"));
    REQUIRE(says(d.kv.begin_block(1).status(), ErrorKind::bad_state, "tainted"));
    REQUIRE(says(d.kv.commit(), ErrorKind::bad_state, "tainted"));
    REQUIRE(!d.kv.export_tail(20));
    REQUIRE(d.kv.truncate(20).ok());
    REQUIRE((!d.kv.tainted() && holds(d.kv, d.t, 0, 20)));
  }
  REQUIRE(commit(d.dev, d.kv, part(d.t, 20, 2)).ok());
  REQUIRE(holds(d.kv, d.t, 0, 22));
}

TEST_CASE("a moved-from draft cache refuses; addresses stay over moves; tails outlive their cache", "[draft]") {
  TestDev dev;
  std::optional<Tail> tail;
  const Tokens t = stream(30);
  {
    Kv kv = memra::check(Kv::create(dev, config(8, 4), 40));
    const float* k = kv.k(1);
    REQUIRE(commit(dev, kv, part(t, 0, 20)).ok());
    Kv other = std::move(kv);
    REQUIRE((other.k(1) == k && other.len() == 20));
    // NOLINTBEGIN(bugprone-use-after-move)
    REQUIRE((kv.len() == 0 && kv.cap() == 0 && kv.floor() == 0 && kv.n_layer() == 0 && kv.row_bytes() == 0));
    REQUIRE((kv.cfg_window_rows() == 0 && kv.resident() == 0 && !kv.tainted() && kv.workspace_bytes(4) == 0));
    REQUIRE(kv.begin_rows(1).status().kind() == ErrorKind::bad_state);
    REQUIRE(kv.begin_block(1).status().kind() == ErrorKind::bad_state);
    REQUIRE(kv.commit().kind() == ErrorKind::bad_state);
    REQUIRE(kv.truncate(0).kind() == ErrorKind::bad_state);
    REQUIRE(!kv.export_tail(1));
    // NOLINTEND(bugprone-use-after-move)
    tail = other.export_tail(20);
  }
  const auto kv = Kv::from_tail(dev, config(8, 4), 40, *tail);
  REQUIRE((kv && holds(*kv, t, 8, 20)));
  for (int i = 0; i < 3; ++i) REQUIRE(Kv::from_tail(dev, config(8, 4), 40, *tail));  // any number from one tail
}

}  // namespace
}  // namespace draft_cpp
