// D8: a draft cache of 2 * window_rows + block rows at any length is the flat one, byte for byte and bit for bit.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memra/dflash_kv.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/ordered_dev.hpp>
#include <memra/portable_ops.hpp>
#include <optional>
#include <string>
#include <support/catch.hpp>
#include <support/draft_rows.hpp>
#include <support/says.hpp>
#include <support/stand_in.hpp>
#include <support/test_dev.hpp>
#include <utility>
#include <vector>

namespace draft_ring_cpp {
namespace {

using memra::DflashCfg;
using memra::DraftArm;
using memra::ErrorKind;
using memra_test::part;
using memra_test::says;
using memra_test::stream;
using memra_test::TestDev;
using memra_test::Token;
using memra_test::Tokens;
using memra_test::torn;
using Kv = memra::DflashKv<TestDev>;
using Rows = memra_test::DraftRows<TestDev>;
using Tail = memra::DflashKvTail<TestDev>;

/// window_rows is 12, and the ring has 2 * 12 + 4 = 28 rows.
DflashCfg config(bool ring, std::size_t window = 8, std::size_t block = 4) {
  DflashCfg c;
  c.n_layer = 2;
  c.n_kv = 2;
  c.head_dim = 3;
  c.block_size = block;
  c.sliding_window = window;
  c.ring = ring;
  return c;
}

constexpr std::size_t cap = 400;
const Tokens text = stream(cap + 64);

/// A flat cache and a ring, each on a device of its own, to which the same is done.
struct Pair {
  TestDev flat_dev, ring_dev;
  Kv flat, ring;
  std::size_t window;

  explicit Pair(std::size_t win = 8, std::size_t block = 4)
      : flat(memra::check(Kv::create(flat_dev, config(false, win, block), cap))),
        ring(memra::check(Kv::create(ring_dev, config(true, win, block), cap))),
        window(win) {}

  void commit(std::size_t n) {
    const std::size_t at = flat.len();
    memra::check(Rows::commit(flat, part(text, at, n)));
    memra::check(Rows::commit(ring, part(text, at, n)));
  }
  void draft(std::size_t b, std::uint32_t seed = 9) {
    memra::check(Rows::draft(flat, stream(b, seed)));
    memra::check(Rows::draft(ring, stream(b, seed)));
  }
  void truncate(std::size_t n) {
    memra::check(flat.truncate(n));
    memra::check(ring.truncate(n));
  }

  /// Bytes of rows [first, end) of both are the same, in every plane.
  bool same(std::size_t first, std::size_t end) const {
    if (first < ring.base() || end > ring.base() + ring.plan().phys_rows) return false;
    const std::size_t width = ring.row_bytes() / sizeof(float);
    for (std::size_t l = 0; l < flat.n_layer(); ++l) {
      for (const bool k : {true, false}) {
        const float* a = (k ? flat.k(l) : flat.v(l)) + first * width;
        const float* b = (k ? ring.k(l) : ring.v(l)) + (first - ring.base()) * width;
        if (std::memcmp(a, b, (end - first) * ring.row_bytes()) != 0) return false;
      }
    }
    return true;
  }

  /// All that a ring promises at rest.
  void require() const {
    CAPTURE(flat.len(), ring.base());
    REQUIRE(ring.len() == flat.len());
    REQUIRE(ring.floor() == flat.floor());
    REQUIRE(!ring.tainted());
    REQUIRE(ring.resident() == ring.base());
    REQUIRE(ring.base() <= std::max(ring.floor(), ring.len() - std::min(ring.len(), window - 1)));
    REQUIRE(Rows::int_d(ring, 0) == static_cast<std::int32_t>(ring.len()));
    REQUIRE(Rows::int_d(ring, 1) == static_cast<std::int32_t>(ring.base()));
    REQUIRE(same(ring.base(), ring.len()));
    REQUIRE(Rows::holds(ring, text, ring.base(), ring.len()));
  }
};

/// Draft attention of layer `l` over the block that is written, on the kernels of `Kernels`.
template <class Kernels>
std::vector<float> attend(TestDev& dev, const memra::DraftView& view, DraftArm arm) {
  const std::size_t heads = 4;
  std::vector<float> q(view.block_rows * heads * view.head_dim);
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = memra_test::stand_in::value(7, 7, 7, i, 7, 7);
  std::vector<float> out(q.size(), -7.0F);
  std::vector<std::byte> scratch(
      memra::detail::draft_scratch_bytes(heads, view.n_kv, view.head_dim, view.block_rows, view.most_keys()));
  memra::check(
      Kernels::draft_attend(dev, view, {q.data(), out.data(), heads, 0.5F, arm}, {scratch.data(), scratch.size()}));
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

template <class Kernels>
void require_same_attention(Pair& p, std::size_t b) {
  p.draft(b, static_cast<std::uint32_t>(p.flat.len()));
  const auto flat = memra::check(p.flat.begin_block(b));
  const auto ring = memra::check(p.ring.begin_block(b));
  for (std::size_t l = 0; l < 2; ++l) {
    const std::vector<float> want = attend<Kernels>(p.flat_dev, flat.view(l), DraftArm::clip);
    CAPTURE(p.flat.len(), p.ring.base(), b, l);
    REQUIRE(same_bits(attend<Kernels>(p.ring_dev, ring.view(l), DraftArm::clip), want));
    REQUIRE(same_bits(attend<Kernels>(p.ring_dev, ring.view(l), DraftArm::full_scan), want));
  }
}

TEST_CASE("D8 2 * window_rows + block rows for any length, bytes by hand", "[draft][ring]") {
  DflashCfg c;
  c.n_layer = 5, c.n_kv = 8, c.head_dim = 128, c.block_size = 8, c.sliding_window = 2048, c.ring = true;
  for (const std::size_t n : {std::size_t{5000}, std::size_t{262144}, std::size_t{0x7fffffff - 8}}) {
    const auto p = memra::check(memra::plan(c, n));
    REQUIRE((p.phys_rows == 4120 && p.max_rows == 2056));           // 2 * (2048 + 8) + 8
    REQUIRE(p.total_bytes == 256 + 10 * std::size_t{4120} * 4096);  // 168.8 MB: 40,960 bytes a row over 5 layers
  }
  // No more than a flat one; where that is no more, nothing is ever moved and a call may be as long as the cache.
  REQUIRE(memra::check(memra::plan(c, 4113)).phys_rows == 4120);
  REQUIRE(memra::check(memra::plan(c, 4112)).phys_rows == 4120);
  REQUIRE(memra::check(memra::plan(c, 4112)).max_rows == 4112);
  REQUIRE(memra::check(memra::plan(c, 4113)).max_rows == 2056);
  REQUIRE(memra::check(memra::plan(c, 1000)).phys_rows == 1008);
  c.ring = false;
  REQUIRE(memra::check(memra::plan(c, 5000)).phys_rows == 5008);

  TestDev dev;
  const Kv kv = memra::check(Kv::create(dev, config(true), cap));
  REQUIRE((kv.plan().phys_rows == 28 && kv.max_rows() == 12 && kv.cap() == cap));
  REQUIRE(dev.inner().counters().live_bytes == kv.plan().total_bytes);
  REQUIRE(kv.plan().total_bytes == 256 + 4 * 768);  // 28 rows of 24 bytes are 672
  const Kv flat = memra::check(Kv::create(dev, config(false), cap));
  REQUIRE(kv.workspace_bytes(4) == (28 + 4) * 4 * 4 + 64);  // scratch does not grow with the length, either
  REQUIRE(flat.workspace_bytes(4) == (cap + 4) * 4 * 4 + 64);
}

TEST_CASE("D8 a ring needs a window in every layer", "[draft][ring]") {
  DflashCfg c = config(true);
  c.layer_sliding = {true, true};
  REQUIRE(memra::plan(c, cap).ok());
  c.layer_sliding = {true, false};
  REQUIRE(says(memra::plan(c, cap).status(), ErrorKind::bad_argument, "a window in every layer"));
  c = config(true);
  c.sliding_window = 0;
  REQUIRE(says(memra::plan(c, cap).status(), ErrorKind::bad_argument, "a window in every layer"));
  c.sliding_window = std::numeric_limits<std::size_t>::max() / 2;  // twice that does not fit: then flat is less
  REQUIRE(memra::check(memra::plan(c, cap)).phys_rows == cap + 4);
}

TEST_CASE("D8 when rows move, from where, and by how many copies, by hand", "[draft][ring]") {
  Pair p;
  Kv& kv = p.ring;
  const float* const k = kv.k(0);
  auto copies = [&, last = std::size_t{0}]() mutable {
    return p.ring_dev.inner().counters().copies() - std::exchange(last, p.ring_dev.inner().counters().copies());
  };
  p.commit(12);
  p.commit(12);
  p.draft(4);  // rows [24, 28): the last that there are
  REQUIRE((kv.base() == 0 && copies() == 0));
  p.commit(1);
  REQUIRE((kv.base() == 0 && copies() == 0));
  p.draft(4);  // 25 + 4 rows: the last 12 go to the front, all at once in each of the 4 planes
  REQUIRE((kv.base() == 13 && copies() == 4));
  REQUIRE(p.ring_dev.inner().counters().copied_bytes() == 4 * 12 * 24);
  p.require();
  p.commit(12);  // 24 rows
  p.commit(4);   // 28 rows: full
  REQUIRE((kv.base() == 13 && kv.len() == 41 && copies() == 0));
  p.commit(1);
  REQUIRE((kv.base() == 29 && copies() == 4));
  p.commit(4);  // 17 rows
  REQUIRE(copies() == 0);
  p.commit(12);  // 29 do not fit. 12 rows go 5 rows down: 5, 5 and 2 in turn
  REQUIRE((kv.base() == 34 && kv.len() == 58 && copies() == 12));
  p.require();
  REQUIRE(kv.k(0) == k);
  REQUIRE(p.ring_dev.inner().counters().allocations() == 1);
}

TEST_CASE("D8 every row of the window is the flat cache's, at any length and in any pieces", "[draft][ring]") {
  for (const auto& [window, block] :
       {std::pair<std::size_t, std::size_t>{8, 4}, {1, 1}, {1, 4}, {5, 8}, {30, 2}, {64, 8}}) {
    for (const std::size_t most : {std::size_t{1}, block, window + block}) {
      Pair p(window, block);
      const std::size_t allocations = p.ring_dev.inner().counters().allocations();
      std::size_t moves = 0;
      for (std::size_t turn = 0; p.flat.len() < cap; ++turn) {
        const std::size_t base = p.ring.base();
        const std::size_t n = std::min(1 + turn * 7 % most, cap - p.flat.len());
        p.draft(1 + turn % block, static_cast<std::uint32_t>(turn));
        REQUIRE(p.same(p.ring.len(), p.ring.len() + 1 + turn % block));
        p.commit(n);
        p.require();
        moves += base == p.ring.base() ? 0 : 1;
      }
      CAPTURE(window, block, most, moves);
      REQUIRE(moves >= cap / (2 * (window + block) + block));
      REQUIRE(p.ring_dev.inner().counters().allocations() == allocations);
      REQUIRE(p.ring.begin_rows(1).status().kind() == ErrorKind::bad_argument);
      p.draft(block);  // a full cache still has room for a block
    }
  }
  // Red arm: one byte of the oldest row that is left.
  Pair p;
  while (p.flat.len() < 100) p.commit(4);
  REQUIRE(p.same(p.ring.base(), 100));
  memra_test::spoil(p.ring_dev, p.ring.v(1));
  REQUIRE(!p.same(p.ring.base(), 100));
  REQUIRE(!Rows::holds(p.ring, text, p.ring.base(), 100));
  REQUIRE(p.same(p.ring.base() + 1, 100));
}

TEST_CASE("D6 D8 draft attention over a ring gives the flat cache's bits, in both arms and on both sets of kernels",
          "[draft][ring][identity]") {
  for (const std::size_t window : {1U, 2U, 8U, 12U}) {
    Pair p(window, 4);
    for (std::size_t turn = 0; p.flat.len() < 120; ++turn) {
      p.commit(1 + turn * 5 % 4);
      require_same_attention<memra::HostKernels>(p, 1 + turn % 4);
      require_same_attention<memra::PortableKernels>(p, 1 + turn % 4);
    }
    REQUIRE(p.ring.base() > 0);
    // Red arm: the oldest row that the first query sees, and the one before it.
    if (window < 2) continue;
    p.draft(4);
    const auto rows = memra::check(p.ring.begin_block(4));
    const auto clean = attend<memra::HostKernels>(p.ring_dev, rows.view(1), DraftArm::clip);
    const std::size_t oldest = p.ring.len() - (window - 1) - p.ring.base();
    auto* v = reinterpret_cast<std::byte*>(rows.view(1).v);
    if (oldest != 0) REQUIRE(p.ring_dev.fill(v + (oldest - 1) * 24, std::byte{0x3f}, 24).ok());
    REQUIRE(same_bits(attend<memra::HostKernels>(p.ring_dev, rows.view(1), DraftArm::clip), clean));
    REQUIRE(p.ring_dev.fill(v + oldest * 24, std::byte{0x3f}, 24).ok());
    REQUIRE(!same_bits(attend<memra::HostKernels>(p.ring_dev, rows.view(1), DraftArm::clip), clean));
  }
}

TEST_CASE("D8 S4 a launch that was captured before a move replays behind it", "[draft][ring]") {
  Pair p;
  p.commit(10);
  memra::DraftView captured = memra::check(p.ring.begin_block(4)).view(0);
  captured.len_bound = cap;  // as one does who captures; the rest is baked
  REQUIRE(captured.base == 0);
  for (std::size_t turn = 0; p.flat.len() < 200; ++turn) {
    p.commit(1 + turn % 12);
    p.draft(4, static_cast<std::uint32_t>(turn));
    const auto want =
        attend<memra::HostKernels>(p.flat_dev, memra::check(p.flat.begin_block(4)).view(0), DraftArm::clip);
    REQUIRE(p.ring.begin_block(4).ok());
    CAPTURE(p.ring.len(), p.ring.base());
    for (const DraftArm arm : {DraftArm::clip, DraftArm::full_scan}) {
      REQUIRE(same_bits(attend<memra::HostKernels>(p.ring_dev, captured, arm), want));
      REQUIRE(same_bits(attend<memra::PortableKernels>(p.ring_dev, captured, arm), want));
    }
    // Rows that it writes go where the stream now stands, too.
    std::vector<float> x(4 * 6, 0.25F);
    REQUIRE(memra::HostKernels::draft_write(p.ring_dev, captured, x.data(), x.data()).ok());
    const float* at = p.ring.v(0) + (p.ring.len() - p.ring.base()) * 6;
    REQUIRE(std::count(at, at + 24, 0.25F) == 24);
    x.assign(x.size(), 0.5F);
    REQUIRE(memra::PortableKernels::draft_write(p.ring_dev, captured, x.data(), x.data()).ok());
    REQUIRE(std::count(at, at + 24, 0.5F) == 24);
    REQUIRE(Rows::holds(p.ring, text, p.ring.base(), p.ring.len()));
  }
  REQUIRE(p.ring.base() > 100);
  // Red arm: with the base baked in, the same launch reads other rows.
  const auto clean = attend<memra::HostKernels>(p.ring_dev, captured, DraftArm::clip);
  captured.base_d = nullptr;
  REQUIRE(!same_bits(attend<memra::HostKernels>(p.ring_dev, captured, DraftArm::clip), clean));
}

TEST_CASE("D8 more rows than a ring takes in a call are refused, and nothing moves", "[draft][ring]") {
  Pair p;
  p.commit(12);
  p.commit(12);
  p.commit(1);
  const auto rows = memra::check(p.ring.begin_rows(3));
  const std::size_t calls = p.ring_dev.calls();
  for (const std::size_t n : {std::size_t{0}, std::size_t{13}, cap, std::numeric_limits<std::size_t>::max()}) {
    REQUIRE(says(p.ring.begin_rows(n).status(), ErrorKind::bad_argument, "expected 1 to 12"));
  }
  REQUIRE(p.ring.begin_block(5).status().kind() == ErrorKind::bad_argument);
  REQUIRE(p.ring.begin_block(0).status().kind() == ErrorKind::bad_argument);
  REQUIRE((p.ring_dev.calls() == calls && p.ring.base() == 0));
  REQUIRE((rows.view(0).k != nullptr && p.ring.open_rows() == 3));
  REQUIRE(p.ring.begin_rows(4).ok());  // those of 4 move it
  REQUIRE((p.ring.base() == 13 && rows.view(0).k == nullptr));
  // As many as there are below cap.
  REQUIRE(p.ring.truncate(0).ok());
  REQUIRE(p.flat.truncate(0).ok());
  while (p.flat.len() + 12 <= cap - 3) p.commit(12);
  while (p.flat.len() < cap - 3) p.commit(1);
  REQUIRE(says(p.ring.begin_rows(4).status(), ErrorKind::bad_argument, "expected 1 to 3 (cap 400"));
  p.commit(3);
  p.require();
}

TEST_CASE("D8 truncate goes back as far as a window is held, and says how far that is", "[draft][ring]") {
  for (std::size_t len = 1; len < 150; ++len) {
    Pair p;
    while (p.flat.len() < len) p.commit(std::min<std::size_t>(1 + p.flat.len() % 4, len - p.flat.len()));
    const std::size_t base = p.ring.base();
    CAPTURE(len, base);
    for (std::size_t n = 0; n <= len; ++n) {
      // The window of 8 at n: rows [n - 7, n).
      const bool held = n == 0 || base == 0 || n >= base + 7;
      REQUIRE(p.ring.may_truncate(n).ok() == held);
      if (n + 5 >= len) REQUIRE(held);  // block_size + 1
      if (held) continue;
      const std::size_t calls = p.ring_dev.calls();
      REQUIRE(says(p.ring.truncate(n), ErrorKind::bad_argument,
                   ("resident from " + std::to_string(base) + " only").c_str()));
      REQUIRE(p.ring_dev.calls() == calls);
    }
    p.require();
    const std::size_t back = base == 0 ? len / 2 : base + 7;
    p.truncate(back);
    p.require();
    while (p.flat.len() < len + 40) p.commit(4);
    p.require();
    p.truncate(0);  // an empty cache needs no rows
    REQUIRE(p.ring.base() == 0);
    p.commit(3);
    p.require();
  }
}

TEST_CASE("D7 D8 a cold ring begins at its position and holds nothing below", "[draft][ring]") {
  for (const std::size_t pos : {0U, 1U, 20U, 399U, 400U}) {
    Pair p;
    p.flat = memra::check(Kv::create_cold_at(p.flat_dev, config(false), cap, pos));
    p.ring = memra::check(Kv::create_cold_at(p.ring_dev, config(true), cap, pos));
    REQUIRE((p.ring.base() == pos && p.ring.len() == pos && p.ring.floor() == pos));
    p.require();
    require_same_attention<memra::HostKernels>(p, 4);
    for (int turn = 0; turn < 40 && p.flat.len() + 3 <= cap; ++turn) {
      p.commit(3);
      p.require();
      require_same_attention<memra::HostKernels>(p, 4);
      require_same_attention<memra::PortableKernels>(p, 4);
    }
    // Back to its floor there is nothing to be seen: a move does not keep that from being reached.
    p.truncate(pos);
    REQUIRE(p.ring.base() == pos);
    if (pos + 2 <= cap) p.commit(2);
    p.require();
  }
  TestDev dev;
  REQUIRE(says(Kv::create_cold_at(dev, config(true), 64, 65).status(), ErrorKind::bad_argument, "beyond cap 64"));
}

bool equal(TestDev& dev_a, const Tail& a, TestDev& dev_b, const Tail& b) {
  if (a.base != b.base || a.rows != b.rows || a.len != b.len || a.floor != b.floor || a.row_bytes != b.row_bytes ||
      a.layers.size() != b.layers.size()) {
    return false;
  }
  const auto bytes = [](TestDev& dev, const TestDev::Buffer& from) {
    std::vector<std::byte> out(from.size());
    memra::check(dev.download(out.data(), from.data(), from.size()));
    return out;
  };
  for (std::size_t l = 0; l < a.layers.size(); ++l) {
    if (bytes(dev_a, a.layers[l].k) != bytes(dev_b, b.layers[l].k)) return false;
    if (bytes(dev_a, a.layers[l].v) != bytes(dev_b, b.layers[l].v)) return false;
  }
  return true;
}

TEST_CASE("D4 D8 a ring exports the flat cache's tail, or nullopt when the rows are gone", "[draft][ring]") {
  Pair p;
  std::size_t given = 0;
  while (p.flat.len() < 150) {
    p.commit(1 + p.flat.len() % 3);
    for (std::size_t upto = 0; upto <= p.flat.len() + 1; ++upto) {
      const auto tail = p.ring.export_tail(upto);
      const auto want = p.flat.export_tail(upto);
      CAPTURE(p.flat.len(), upto, p.ring.base());
      REQUIRE(tail.has_value() == (want && want->base >= p.ring.base()));
      if (upto == p.flat.len()) REQUIRE(tail);  // what a move keeps is a tail
      if (!tail) continue;
      REQUIRE(equal(p.ring_dev, *tail, p.flat_dev, *want));
      ++given;
    }
  }
  REQUIRE(given > 500);
}

TEST_CASE("D5 D8 tails go from rings and flat caches to rings and flat caches", "[draft][ring]") {
  for (const std::size_t len : {3U, 12U, 30U, 100U}) {
    for (const bool from_ring : {false, true}) {
      Pair source;
      while (source.flat.len() < len) source.commit(1);
      auto tail = (from_ring ? source.ring : source.flat).export_tail(len);
      REQUIRE(tail);
      Pair p;
      memra::Status why;
      auto flat = Kv::from_tail(p.flat_dev, config(false), cap, *tail, &why);
      auto ring = Kv::from_tail(p.ring_dev, config(true), cap, *tail, &why);
      REQUIRE((flat && ring));
      p.flat = *std::move(flat);
      p.ring = *std::move(ring);
      REQUIRE((p.ring.base() == tail->base && p.ring.resident() == tail->base));
      for (int turn = 0; turn < 30; ++turn) {
        p.require();
        require_same_attention<memra::HostKernels>(p, 4);
        p.commit(1 + static_cast<std::size_t>(turn) % 5);
      }
    }
  }
  // A tail that is longer than window_rows: its end.
  Pair p;
  while (p.flat.len() < 60) p.commit(4);
  Kv wide = memra::check(Kv::create(p.flat_dev, config(false, 40, 4), cap));
  memra::check(Rows::commit(wide, part(text, 0, 60)));
  const auto tail = wide.export_tail(60);
  REQUIRE((tail && tail->rows == 44));
  auto kv = Kv::from_tail(p.ring_dev, config(true), cap, *tail);
  REQUIRE((kv && kv->base() == 48 && kv->resident() == 48 && kv->len() == 60 && kv->floor() == 0));
  p.ring = *std::move(kv);
  p.require();
  p.commit(12);
  p.require();
  require_same_attention<memra::HostKernels>(p, 4);
  // A ring refuses what a flat cache does.
  memra::Status why;
  REQUIRE(!Kv::from_tail(p.ring_dev, config(true), 59, *tail, &why));
  REQUIRE(says(why, ErrorKind::bad_argument, "ends at row 60"));
  REQUIRE(!Kv::from_tail(p.ring_dev, config(true, 41, 4), cap, *tail, &why));
  REQUIRE(says(why, ErrorKind::bad_argument, "do not cover"));
}

TEST_CASE("D8 a move takes a pinned tail that it would drop, and the export gives it out", "[draft][ring]") {
  for (const std::size_t upto : {1U, 12U, 26U, 40U}) {
    Pair p;
    while (p.flat.len() < upto) p.commit(1);
    REQUIRE(p.ring.pinned() == 0);
    REQUIRE(p.ring.pin(upto).ok());
    REQUIRE(p.ring.pin(upto).ok());
    REQUIRE(p.ring.pinned() == upto);
    REQUIRE(says(p.ring.pin(upto + 1), ErrorKind::bad_state, "is pinned"));
    const std::size_t before = p.ring_dev.inner().counters().allocations();
    while (p.flat.len() < upto + 100) p.commit(3);
    REQUIRE(p.ring.base() > upto);
    REQUIRE(p.ring_dev.inner().counters().allocations() == before + 4);  // K and V of two layers, once
    REQUIRE(p.ring.pinned() == upto);
    p.require();
    REQUIRE(!p.ring.export_tail(upto + 1));
    const auto want = p.flat.export_tail(upto);
    const auto tail = p.ring.export_tail(upto);
    REQUIRE((tail && equal(p.ring_dev, *tail, p.flat_dev, *want)));
    REQUIRE(p.ring.pinned() == 0);
    REQUIRE(!p.ring.export_tail(upto));  // it was the one there was
    auto back = Kv::from_tail(p.ring_dev, config(true), cap, *tail);
    REQUIRE((back && Rows::holds(*back, text, tail->base, upto)));
    REQUIRE(p.ring.pin(p.ring.len()).ok());  // the next one
  }
}

TEST_CASE("D8 pins are refused, ended and kept as they say", "[draft][ring]") {
  Pair p;
  REQUIRE(says(p.ring.pin(0), ErrorKind::bad_argument, "no tail ends at 0"));
  REQUIRE(says(p.ring.pin(1), ErrorKind::bad_argument, "at most len 0"));
  while (p.flat.len() < 60) p.commit(4);
  REQUIRE(says(p.ring.pin(61), ErrorKind::bad_argument, "at most len 60"));
  REQUIRE(says(p.ring.pin(p.ring.base() + 11), ErrorKind::bad_argument,
               ("resident from " + std::to_string(p.ring.base())).c_str()));
  REQUIRE(p.ring.pinned() == 0);
  const std::size_t live = p.ring_dev.inner().counters().live;
  // Exported while its rows are there: an export like any other, and the pin is over.
  REQUIRE(p.ring.pin(60).ok());
  REQUIRE(p.ring.export_tail(59).has_value() == (p.ring.base() <= 47));
  REQUIRE(p.ring.pinned() == 60);
  REQUIRE((p.ring.export_tail(60) && p.ring.pinned() == 0));
  // Given up, with what it had taken.
  REQUIRE(p.ring.pin(60).ok());
  while (p.flat.len() < 120) p.commit(4);
  REQUIRE(p.ring_dev.inner().counters().live == live + 4);
  p.ring.unpin();
  REQUIRE((p.ring.pinned() == 0 && p.ring_dev.inner().counters().live == live && !p.ring.export_tail(60)));
  // The branch is cut off below it; at it, it stays.
  REQUIRE(p.ring.pin(120).ok());
  p.commit(2);
  p.truncate(120);
  REQUIRE(p.ring.pinned() == 120);
  p.truncate(119);
  REQUIRE(p.ring.pinned() == 0);
  // Moves with the cache, which a moved-from one has not; goes with it.
  REQUIRE(p.ring.pin(119).ok());
  while (p.flat.len() < 180) p.commit(4);
  {
    Kv moved = std::move(p.ring);
    // NOLINTBEGIN(bugprone-use-after-move)
    REQUIRE((p.ring.pinned() == 0 && p.ring.pin(119).kind() == ErrorKind::bad_state));
    REQUIRE((p.ring.base() == 0 && p.ring.max_rows() == 0));
    p.ring.unpin();
    // NOLINTEND(bugprone-use-after-move)
    REQUIRE((moved.pinned() == 119 && p.ring_dev.inner().counters().live == live + 4));
    p.ring = std::move(moved);
  }
  const auto tail = p.ring.export_tail(119);
  REQUIRE((tail && equal(p.ring_dev, *tail, p.flat_dev, *p.flat.export_tail(119))));
  // In a flat cache nothing is ever dropped, and a pin is only remembered.
  REQUIRE(p.flat.pin(50).ok());
  const std::size_t flat_live = p.flat_dev.inner().counters().live;
  memra::check(Rows::commit(p.flat, part(text, 180, 40)));
  REQUIRE(p.flat_dev.inner().counters().live == flat_live);
  REQUIRE((p.flat.export_tail(50) && p.flat.pinned() == 0));
}

TEST_CASE("D8 if a pinned tail cannot be taken the move goes on and the export is nullopt", "[draft][ring][failure]") {
  std::size_t n = 1;
  for (;; ++n) {
    Pair p;
    while (p.flat.len() < 28) p.commit(4);
    REQUIRE((p.ring.base() == 0 && p.ring.pin(20).ok()));
    const std::size_t live = p.ring_dev.inner().counters().live;
    p.ring_dev.arm(torn(n));
    const memra::Status s = p.ring.begin_rows(1).status();
    const bool fired = p.ring_dev.fired() != 0;
    p.ring_dev.disarm();
    if (n > 8) break;  // two allocations and two copies for each of the two layers; then it is the move's turn
    REQUIRE(fired);
    REQUIRE((s.ok() && !p.ring.tainted() && p.ring.base() == 16));
    REQUIRE((p.ring.pinned() == 0 && p.ring_dev.inner().counters().live == live));
    REQUIRE(!p.ring.export_tail(20));
    p.commit(1);
    p.require();
  }
  REQUIRE(n == 9);
}

/// A move on a device whose n-th call fails, for every n, repaired by truncate at the second, third, ... attempt.
void sweep(std::size_t committed_before, bool by_block, std::size_t rows, bool pinned, std::size_t least) {
  std::size_t n = 1;
  for (;; ++n) {
    Pair p;
    while (p.flat.len() < committed_before) p.commit(1);
    const std::size_t len = p.ring.len();
    if (pinned) REQUIRE(p.ring.pin(len - 10).ok());
    std::optional<Kv::Rows> open;
    if (len < 28) open.emplace(memra::check(p.ring.begin_block(1)));
    const std::size_t base = p.ring.base();
    const auto begin = [&] { return by_block ? p.ring.begin_block(rows).status() : p.ring.begin_rows(rows).status(); };
    p.ring_dev.arm(torn(n));
    const memra::Status s = begin();
    const bool fired = p.ring_dev.fired() != 0;
    p.ring_dev.disarm();
    CAPTURE(committed_before, by_block, rows, pinned, n, base);
    if (open) REQUIRE(open->view(0).k == nullptr);
    if (!fired) {
      REQUIRE((s.ok() && p.ring.base() > base));
      break;
    }
    if (!s.ok()) {
      REQUIRE(s.kind() == ErrorKind::device_failure);
      REQUIRE((p.ring.tainted() && p.ring.len() == len && p.ring.open_rows() == 0));
      REQUIRE(says(p.ring.begin_rows(1).status(), ErrorKind::bad_state, "tainted"));
      REQUIRE(says(p.ring.commit(), ErrorKind::bad_state, "tainted"));
      REQUIRE(says(p.ring.pin(len), ErrorKind::bad_state, "tainted"));
      REQUIRE(!p.ring.export_tail(len));
      // Every call of the repair fails once, too, and each is where the one before it stopped.
      std::size_t failures = 0;
      for (;; ++failures) {
        p.ring_dev.arm(torn(1 + failures % 2));
        const memra::Status again = p.ring.truncate(len);
        const bool hit = p.ring_dev.fired() != 0;
        p.ring_dev.disarm();
        REQUIRE(again.ok() == !hit);
        if (!hit) break;
        REQUIRE(p.ring.tainted());
        REQUIRE(failures < 50);
      }
      REQUIRE(failures > 0);
    }
    p.require();
    REQUIRE(begin().ok());
    REQUIRE(p.ring.truncate(len).ok());
    while (p.flat.len() < committed_before + 60) p.commit(1 + p.flat.len() % 7);
    p.require();
    require_same_attention<memra::HostKernels>(p, 4);
  }
  REQUIRE(n > least);
}

TEST_CASE("C8 D8 the n-th call of a move fails, half done: truncate ends the move and no row is lost",
          "[draft][ring][failure]") {
  sweep(28, false, 1, false, 4 + 1);  // one piece in each of four planes, and the positions
  sweep(25, true, 4, false, 4 + 1);
  sweep(17, false, 12, false, 4 * 3 + 1);  // three pieces
  sweep(28, false, 1, true, 8 + 4 + 1);    // a pinned tail first
  sweep(17, false, 12, true, 4 * 3 + 1);
}

TEST_CASE("C8 D8 after a half done move truncate may go back as far as ever, or start over", "[draft][ring][failure]") {
  for (const std::size_t to : {28U, 25U, 23U, 0U}) {
    for (std::size_t n = 1; n <= 5; ++n) {
      Pair p;
      while (p.flat.len() < 28) p.commit(1);
      p.ring_dev.arm(torn(n));
      REQUIRE(p.ring.begin_rows(1).status().kind() == ErrorKind::device_failure);
      p.ring_dev.disarm();
      CAPTURE(to, n);
      // What is behind the rows that are kept may be overwritten: it is not gone back to.
      REQUIRE(says(p.ring.truncate(22), ErrorKind::bad_argument, "resident from 16 only"));
      REQUIRE((p.ring.tainted() && p.ring.len() == 28));
      p.truncate(to);
      p.require();
      while (p.flat.len() < 90) p.commit(5);
      p.require();
    }
  }
}

TEST_CASE("S5 D8 an asynchronous failure in a move: done again where it can be, else nothing is believed",
          "[draft][ring][failure]") {
  using Async = memra::OrderedDev<memra::FaultDev<memra::HostDev>>;
  using AsyncRows = memra_test::DraftRows<Async>;
  for (const std::size_t before : {28U, 17U}) {  // one piece; three
    Async dev;
    auto kv = memra::check(memra::DflashKv<Async>::create(dev, config(true), cap));
    for (std::size_t at = 0; at < before; ++at) memra::check(AsyncRows::commit(kv, part(text, at, 1)));
    memra::check(dev.synchronize());
    const auto rows = before == 28 ? kv.begin_rows(1) : kv.begin_rows(12);
    REQUIRE(rows.ok());  // nothing of it has run yet
    REQUIRE(kv.base() == before - 12);
    REQUIRE(kv.truncate(before).ok());
    REQUIRE(dev.synchronize().ok());
    REQUIRE(AsyncRows::holds(kv, text, before - 12, before));
  }
  // The failure of an earlier call is reported by a call of the move.
  for (const std::size_t before : {28U, 17U}) {
    Async dev;
    auto kv = memra::check(memra::DflashKv<Async>::create(dev, config(true), cap));
    for (std::size_t at = 0; at < before; ++at) memra::check(AsyncRows::commit(kv, part(text, at, 1)));
    memra::check(dev.synchronize());
    memra::check(dev.fill(const_cast<std::byte*>(reinterpret_cast<const std::byte*>(kv.k(0))), std::byte{1}, 4));
    dev.inner().arm(memra_test::torn(1));
    Async other;
    Async::Event e;
    memra::check(dev.publish(e));
    memra::check(other.wait(e));
    memra::check(other.synchronize());
    dev.inner().disarm();
    const memra::Status s = kv.begin_rows(before == 28 ? 1 : 12).status();
    REQUIRE((!s.ok() && s.asynchronous() && kv.tainted()));
    if (before == 28) {
      REQUIRE(kv.truncate(28).ok());
      REQUIRE(AsyncRows::holds(kv, text, 16, 28));
    } else {
      REQUIRE(says(kv.truncate(17), ErrorKind::bad_argument, "resident from 17 only"));
      REQUIRE(kv.tainted());
      REQUIRE(kv.truncate(0).ok());
      memra::check(AsyncRows::commit(kv, part(text, 0, 3)));
      REQUIRE(AsyncRows::holds(kv, text, 0, 3));
    }
  }
}

}  // namespace
}  // namespace draft_ring_cpp
