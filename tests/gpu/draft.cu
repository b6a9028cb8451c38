// Draft attention on the GPU: its class against the host, whose bits are whose, captured blocks, rings.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memra/dflash_kv.hpp>
#include <memra/host_ops.hpp>
#include <memra/workspace.hpp>
#include <support/catch.hpp>
#include <support/distance.hpp>
#include <support/op_cases.hpp>

#include "gpu_ops.hpp"
#include "support.hpp"

namespace draft_cu {
namespace {

using namespace memra_test;
using memra::DraftArm;

/// The class of draft_tile.cuh.
constexpr double tolerance = 1e-4;

struct Shape {
  std::size_t dim = 128, n_heads = 8, n_kv = 2, block = 8, window = 0, floor = 0, len = 300;
  std::size_t base = 0;  ///< stream row of the planes' first
  bool ring = false;     ///< the device has the base, the view another one
  float spread = 2.0F;
};

/// One layer whose rows are functions of their stream row, whatever the base; rows that no query may see are NaN if
/// `poison`.
template <class Dev>
struct Layer {
  Shape s;
  std::size_t rows;
  Dev* dev;
  OnDev<Dev> k, v, q, out, ints, scratch;

  Layer(Dev& device, const Shape& shape, bool poison = false)
      : s(shape),
        rows(s.len + s.block - s.base + 3),
        dev(&device),
        k(device, plane(1, poison)),
        v(device, plane(2, poison)),
        q(device, queries()),
        out(device, s.block * s.n_heads * s.dim * 4),
        ints(device, std::vector<std::int32_t>{static_cast<std::int32_t>(s.len), static_cast<std::int32_t>(s.base)}),
        scratch(device, memra::detail::draft_scratch_bytes(s.n_heads, s.n_kv, s.dim, s.block, std::min(s.len, rows))) {}

  /// Draws for row r are of a generator of r's own.
  std::vector<float> plane(std::uint32_t which, bool poison) const {
    const std::size_t width = s.n_kv * s.dim;
    std::vector<float> x(rows * width, std::numeric_limits<float>::quiet_NaN());
    const std::size_t first = std::max(s.floor, s.window == 0 || s.len < s.window ? 0 : s.len - (s.window - 1));
    for (std::size_t r = s.base; r < s.len + s.block; ++r) {
      if (poison && r < std::min(first, s.len)) continue;
      Rng rng(1000 * r + which);
      const std::vector<float> row = rng.vector(width, s.spread);
      std::copy(row.begin(), row.end(), x.begin() + static_cast<std::ptrdiff_t>((r - s.base) * width));
    }
    return x;
  }
  std::vector<float> queries() const {
    Rng rng(5);
    return rng.vector(s.block * s.n_heads * s.dim, s.spread);
  }
  memra::DraftView view() const {
    memra::DraftView d;
    d.k = k.floats();
    d.v = v.floats();
    d.n_kv = s.n_kv;
    d.head_dim = s.dim;
    d.window = s.window;
    d.floor = s.floor;
    d.base = s.ring ? s.base + 7 : s.base;
    d.phys_rows = rows;
    d.len_d = ints.ints();
    d.len_bound = s.len;
    d.block_rows = s.block;
    if (s.ring) d.base_d = ints.ints() + 1;
    return d;
  }
  Bytes run(DraftArm arm = DraftArm::clip) const { return run_view(view(), q.floats(), arm); }
  Bytes run_view(const memra::DraftView& d, const float* queries, DraftArm arm) const {
    memra::check(dev->fill(out.data(), std::byte{0xFF}, s.block * s.n_heads * s.dim * 4));
    const float scale = 1.0F / std::sqrt(static_cast<float>(s.dim));
    memra::check(memra::ops_for<Dev>(*dev).draft_attend(
        d, {queries, out.floats(), s.n_heads, scale, arm},
        {scratch.data(),
         memra::detail::draft_scratch_bytes(s.n_heads, s.n_kv, s.dim, s.block, std::min(s.len, rows))}));
    const Bytes all = out.bytes();
    for (std::size_t i = all.size() - 64; i < all.size(); ++i) REQUIRE(all[i] == std::byte{0xFF});
    return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(d.block_rows * s.n_heads * s.dim * 4)};
  }
};

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  const auto add = [&](auto... change) {
    Shape s;
    (change(s), ...);
    all.push_back(s);
  };
  for (const std::size_t dim : {32U, 64U, 128U}) {
    for (const std::size_t window : {0U, 1U, 9U, 64U, 200U}) {
      for (const std::size_t len : {0U, 1U, 63U, 64U, 127U, 300U}) {
        add([&](Shape& s) { s.dim = dim, s.window = window, s.len = len; });
      }
    }
    for (const std::size_t heads : {2U, 6U, 16U, 20U}) {
      for (const std::size_t block : {1U, 5U, 16U, 33U}) {
        add([&](Shape& s) { s.dim = dim, s.n_heads = heads, s.block = block, s.window = 100; });
      }
    }
    add([&](Shape& s) { s.dim = dim, s.floor = 130, s.window = 250; });
    add([&](Shape& s) { s.dim = dim, s.floor = 300; });
    add([&](Shape& s) { s.dim = dim, s.base = 77, s.window = 100; });
    add([&](Shape& s) { s.dim = dim, s.base = 77, s.window = 100, s.ring = true; });
    add([&](Shape& s) { s.dim = dim, s.spread = 12.0F, s.window = 150; });  // one key has nearly all weight
    add([&](Shape& s) { s.dim = dim, s.spread = 1e-4F; });
  }
  if (!emulated) {
    add([](Shape& s) { s.n_heads = 16, s.block = 16, s.window = 2048, s.len = 5000; });
    add([](Shape& s) { s.n_heads = 8, s.n_kv = 1, s.block = 16, s.len = 9000; });  // beyond 64 pieces of 128
  }
  return all;
}

TEST_CASE("draft_attend is within its class of the host, both arms give the same bits, every run does", "[draft]") {
  Gpu dev = make_gpu();
  memra::HostDev host;
  double worst = 0;
  for (const Shape& s : shapes()) {
    CAPTURE(s.dim, s.n_heads, s.block, s.window, s.floor, s.len, s.base, s.spread);
    const Layer<Gpu> a(dev, s);
    const Layer<memra::HostDev> b(host, s);
    const Bytes clip = a.run();
    const double d = distance(clip, b.run());
    CHECK(d < tolerance);
    worst = std::max(worst, d);
    CHECK((a.run(DraftArm::full_scan) == clip));
    CHECK((a.run() == clip));
    CHECK((Layer<Gpu>(dev, s, true).run() == clip));  // NaN where no query looks
  }
  std::printf("draft_attend: largest relative distance to the host %.2e\n", worst);
  // Red arms: the oldest visible row of V, and a row of K in the middle.
  Shape s;
  s.window = 150;
  const Layer<Gpu> a(dev, s);
  const Bytes clean = a.run();
  const std::size_t width = s.n_kv * s.dim * 4;
  memra::check(dev.fill(a.v.data() + (s.len - (s.window - 1)) * width, std::byte{0x3F}, width));
  CHECK_FALSE((a.run() == clean));
  CHECK(distance(a.run(), clean) > tolerance);
  const Layer<Gpu> c(dev, s);
  memra::check(c.dev->fill(c.k.data() + 250 * width, std::byte{0x3F}, width));
  CHECK(distance(c.run(), clean) > tolerance);
  // A NaN that no query sees reaches the full scan.
  CHECK_FALSE((Layer<Gpu>(dev, s, true).run(DraftArm::full_scan) == clean));
}

TEST_CASE("small draft blocks under the sanitizer", "[draft][sanitize]") {
  Gpu dev = make_gpu();
  memra::HostDev host;
  for (const std::size_t dim : {32U, 64U, 128U}) {
    for (const std::size_t heads : {4U, 20U}) {
      Shape s;
      s.dim = dim;
      s.n_heads = heads;
      s.window = 150;
      const Layer<Gpu> a(dev, s);
      const Layer<memra::HostDev> b(host, s);
      for (const DraftArm arm : {DraftArm::clip, DraftArm::full_scan}) CHECK(distance(a.run(arm), b.run()) < tolerance);
    }
  }
}

TEST_CASE("a row's bits are its own: those of a block of one row that sees as much", "[draft]") {
  Gpu dev = make_gpu();
  for (const std::size_t dim : {32U, 64U, 128U}) {
    for (const std::size_t window : {0U, 100U, 1000U}) {
      for (const std::size_t heads : {2U, 8U, 16U}) {
        Shape s;
        s.dim = dim;
        s.window = window;
        s.n_heads = heads;
        s.block = 16;
        s.len = 1200;
        CAPTURE(dim, window, heads);
        const Layer<Gpu> a(dev, s);
        const Bytes together = a.run();
        Bytes single;
        for (std::size_t i = 0; i < s.block; ++i) {
          // One row at the block's last position, with a window that reaches as far back.
          memra::DraftView d = a.view();
          d.block_rows = 1;
          d.len_bound += s.block - 1;
          if (window != 0) d.window += s.block - 1 - i;
          const auto len = static_cast<std::int32_t>(s.len + s.block - 1);
          memra::check(dev.store_i32(a.ints.ints(), &len, 1));
          join(single, a.run_view(d, a.q.floats() + i * heads * dim, DraftArm::clip));
        }
        CHECK((together == single));
      }
    }
  }
}

TEST_CASE("a ring's block has the bits of a flat cache's, wherever its rows are", "[draft]") {
  Gpu dev = make_gpu();
  for (const std::size_t dim : {64U, 128U}) {
    Shape flat;
    flat.dim = dim;
    flat.window = 90;
    flat.len = 1000;
    const Bytes want = Layer<Gpu>(dev, flat).run();
    for (const std::size_t base : {1U, 500U, 777U, 911U}) {
      Shape s = flat;
      s.base = base;
      s.ring = true;
      CHECK((Layer<Gpu>(dev, s).run() == want));
      CHECK((Layer<Gpu>(dev, s).run(DraftArm::full_scan) == want));
    }
    flat.len = 1001;
    CHECK_FALSE((Layer<Gpu>(dev, flat).run() == want));
  }
}

TEST_CASE("a view that breaks its own bounds reads nothing outside and gives zeros", "[draft][sanitize]") {
  Gpu dev = make_gpu();
  Shape s;
  s.len = 100;
  const Layer<Gpu> a(dev, s);
  memra::DraftView d = a.view();
  d.base = 500;  // behind the block
  const Bytes none = a.run_view(d, a.q.floats(), DraftArm::clip);
  CHECK(std::all_of(none.begin(), none.end(), [](std::byte b) { return b == std::byte{0}; }));
  const std::int32_t beyond = 1000000;
  const Bytes want = a.run();
  memra::check(dev.store_i32(a.ints.ints(), &beyond, 1));
  CHECK((a.run() == want));  // clamped to its bound
}

/// A draft cache whose rows the kernels write, of two windowed layers.
struct Block {
  static constexpr std::size_t heads = 8;
  static constexpr std::size_t cap = 700;
  memra::DflashCfg cfg;
  Gpu dev = make_gpu();
  memra::DflashKv<Gpu> kv;
  memra::Workspace<Gpu> ws;
  OnDev<Gpu> k, v, q, out;

  static memra::DflashCfg config(bool ring) {
    memra::DflashCfg c;
    c.n_layer = 2, c.n_kv = 2, c.head_dim = 128, c.block_size = 8, c.sliding_window = 70, c.ring = ring;
    return c;
  }
  static std::vector<float> draws(std::size_t n, std::uint32_t seed) {
    Rng rng(seed);
    return rng.vector(n, 2.0F);
  }
  explicit Block(bool ring)
      : cfg(config(ring)),
        kv(memra::check(memra::DflashKv<Gpu>::create(dev, cfg, cap))),
        ws(memra::check(memra::Workspace<Gpu>::create(
            dev, memra::detail::draft_scratch_bytes(heads, cfg.n_kv, cfg.head_dim, cfg.block_size, cap)))),
        k(dev, draws(8 * 256, 1)),
        v(dev, draws(8 * 256, 2)),
        q(dev, draws(8 * heads * 128, 3)),
        out(dev, std::size_t{2} * 8 * heads * 128 * 4) {}

  void refill(std::uint32_t seed) {
    for (const OnDev<Gpu>* x : {&k, &v}) {
      const std::vector<float> draw = draws(8 * 256, seed++);
      memra::check(dev.upload(x->data(), reinterpret_cast<const std::byte*>(draw.data()), draw.size() * 4));
    }
  }
  void commit(std::size_t n, std::uint32_t seed) {
    refill(seed);
    const auto rows = memra::check(kv.begin_rows(n));
    for (std::size_t l = 0; l < 2; ++l) {
      memra::check(memra::ops_for<Gpu>(dev).draft_write(rows.view(l), k.floats(), v.floats()));
    }
    memra::check(kv.commit());
  }
  /// The kernels of a block: both layers' rows and attention.
  void kernels(const std::array<memra::DraftView, 2>& views, DraftArm arm) {
    for (std::size_t l = 0; l < 2; ++l) {
      const memra::ops_for<Gpu> ops(dev);
      memra::check(ops.draft_write(views[l], k.floats(), v.floats()));
      memra::check(
          ops.draft_attend(views[l], {q.floats(), out.floats() + l * 8 * heads * 128, heads, 0.09F, arm}, ws.view()));
    }
  }
  std::array<memra::DraftView, 2> begin() {
    const auto rows = memra::check(kv.begin_block(8));
    return {rows.view(0), rows.view(1)};
  }
};

TEST_CASE("a captured draft block replays at other lengths, and over a ring that has moved", "[draft][graph]") {
  for (const bool ring : {false, true}) {
    for (const DraftArm arm : {DraftArm::clip, DraftArm::full_scan}) {
      Block captured(ring);
      Block plain(false);
      auto views = captured.begin();
      for (memra::DraftView& d : views) d.len_bound = Block::cap;
      memra::check(captured.dev.begin_capture());
      captured.kernels(views, arm);
      const auto graph = memra::check(captured.dev.end_capture());
      std::size_t moves = 0;
      std::size_t base = 0;
      for (std::uint32_t round = 0; captured.kv.len() + 8 <= Block::cap; ++round) {
        captured.begin();  // in a ring this may move rows
        plain.refill(100000 + round);
        captured.refill(100000 + round);
        memra::check(captured.dev.replay(graph));
        plain.kernels(plain.begin(), DraftArm::clip);
        const Bytes want = plain.out.bytes();
        CAPTURE(ring, round, captured.kv.len(), captured.kv.base());
        REQUIRE((captured.out.bytes() == want));
        if (round != 0 && round % 16 == 0) {  // red arm: the graph is of this round's rows
          captured.refill(5);
          memra::check(captured.dev.replay(graph));
          REQUIRE_FALSE((captured.out.bytes() == want));
        }
        const std::size_t n = 1 + round * 5 % 8;
        captured.commit(n, round);
        plain.commit(n, round);
        moves += captured.kv.base() != base ? 1 : 0;
        base = captured.kv.base();
      }
      REQUIRE((moves > 2) == ring);
    }
  }
}

}  // namespace
}  // namespace draft_cu
