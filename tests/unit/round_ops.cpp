// The kernels of rounds against the plain ones: planes, stash, commits, batches of caches.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memra/host_ops.hpp>
#include <memra/round_types.hpp>
#include <memra/round_views.hpp>
#include <support/catch.hpp>
#include <support/planes.hpp>
#include <vector>

namespace round_ops_cpp {
namespace {

using memra::ErrorKind;
using memra::RecurView;
using memra::RoundCommit;
using memra::RoundMode;
using memra_test::Rng;
using memra_test::same_bits;

struct Shape {
  std::size_t n_k, n_v, d_k, d_v, d_conv;
  memra::KeyHeadMode mode = memra::KeyHeadMode::grouped;
};
// One kind of tail each: columns past groups of 4 and 8, elements past 16, channels past 32 and 256, a column too long
// to go through a stash beside others, no history, more history than rows.
const Shape shapes[] = {{1, 2, 16, 5, 4},   {2, 4, 20, 9, 3, memra::KeyHeadMode::interleaved},
                        {2, 2, 32, 8, 12},  {1, 1, 3, 1, 1},
                        {1, 2, 600, 11, 2}, {3, 3, 48, 16, 4}};

/// A layer's state, the inputs of `tokens` tokens, and room for a round of as many.
struct Layer {
  Shape s;
  std::size_t tokens;
  std::vector<float> conv, ssm, x, weight, q, k, v, g, beta;
  std::vector<float> planes, conv_rows, kept_k, kept_u, kept_decay;
  memra::RoundWords words;
  std::int32_t pos = 100;

  Layer(const Shape& shape, std::size_t n, std::uint64_t seed = 1) : s(shape), tokens(n) {
    Rng rng(seed);
    const std::size_t c = width();
    conv = rng.vector(c * (s.d_conv - 1) + 1);
    ssm = rng.vector(state());
    x = rng.vector(n * c);
    weight = rng.vector(c * s.d_conv);
    const float unit = 1.0F / std::sqrt(static_cast<float>(s.d_k));
    q = rng.vector(n * s.n_k * s.d_k, unit);
    k = rng.vector(n * s.n_k * s.d_k, unit);
    v = rng.vector(n * s.n_v * s.d_v);
    g = rng.vector(n * s.n_v);
    for (float& e : g) e = -std::fabs(e);
    beta = rng.vector(n * s.n_v);
    for (float& e : beta) e = std::fabs(e);
    planes.assign(n * state(), std::nanf(""));
    conv_rows.assign(n * c, std::nanf(""));
    kept_k.assign(k.size(), std::nanf(""));
    kept_u.assign(v.size(), std::nanf(""));
    kept_decay.assign(g.size(), std::nanf(""));
  }

  std::size_t width() const { return 2 * s.d_k * s.n_k + s.d_v * s.n_v; }
  std::size_t state() const { return s.n_v * s.d_v * s.d_k; }

  RecurView view(std::size_t rows, RoundMode mode) {
    RecurView r;
    r.conv = conv.data();
    r.ssm = ssm.data();
    r.n_k_heads = s.n_k;
    r.n_v_heads = s.n_v;
    r.d_k = s.d_k;
    r.d_v = s.d_v;
    r.d_conv = s.d_conv;
    r.map.mode = s.mode;
    r.rows = rows;
    r.round = {mode,          &words.plane,  planes.data(),    tokens + 1, conv_rows.data(),
               kept_k.data(), kept_u.data(), kept_decay.data()};
    return r;
  }

  struct Outputs {
    std::vector<float> y, out;
    friend bool operator==(const Outputs& a, const Outputs& b) {
      return same_bits(a.y, b.y) && same_bits(a.out, b.out);
    }
  };

  /// Tokens [first, first + rows).
  Outputs run(std::size_t first, std::size_t rows, RoundMode mode) {
    Outputs o;
    o.y.assign(rows * width(), std::nanf(""));
    o.out.assign(rows * s.n_v * s.d_v, std::nanf(""));
    memra::HostDev dev;
    const memra::ops_for<memra::HostDev> ops(dev);
    const RecurView r = view(rows, mode);
    memra::check(ops.conv_update(r, {x.data() + first * width(), weight.data(), nullptr, o.y.data(), true}));
    memra::ScanArgs a;
    a.q = q.data() + first * s.n_k * s.d_k;
    a.k = k.data() + first * s.n_k * s.d_k;
    a.v = v.data() + first * s.n_v * s.d_v;
    a.g = g.data() + first * s.n_v;
    a.beta = beta.data() + first * s.n_v;
    a.out = o.out.data();
    memra::check(ops.delta_scan(r, a));
    return o;
  }

  RoundCommit commit(const RecurView& table, std::size_t rows, std::size_t accept, RoundMode mode) {
    RoundCommit c;
    c.layers = &table;
    c.n_layers = 1;
    c.conv_dim = width();
    c.heads = s.n_v;
    c.pos_d = &pos;
    c.words = &words;
    c.accept = static_cast<std::int32_t>(accept);
    c.rows = static_cast<std::int32_t>(rows);
    c.capacity = 1000;
    c.n_planes = static_cast<std::int32_t>(tokens + 1);
    c.mode = mode;
    return c;
  }

  std::vector<float> current() {
    const float* p = view(0, RoundMode::none).plane(static_cast<std::size_t>(words.plane));
    return {p, p + state()};
  }
};

memra::Status finish(const RoundCommit& c, const RoundCommit* many = nullptr, std::size_t n = 1) {
  memra::HostDev dev;
  const memra::ops_for<memra::HostDev> ops(dev);
  if (c.mode == RoundMode::stash) {
    if (auto s = ops.round_apply(c, many, n); !s) return s;
  }
  return ops.round_commit(c, many, n);
}

TEST_CASE("rounds of every length and accept, one after another, against single plain tokens", "[ops][round]") {
  for (const Shape& shape : shapes) {
    for (const RoundMode mode : {RoundMode::planes, RoundMode::stash}) {
      for (std::size_t rows = 1; rows <= 16; rows += rows < 5 ? 1 : 3) {
        for (std::size_t accept = 0; accept <= rows; ++accept) {
          CAPTURE(shape.d_k, shape.d_conv, static_cast<int>(mode), rows, accept);
          Layer l(shape, 16);
          Layer plain(shape, 16);
          // Twice: the second round starts from whatever plane the first one chose.
          for (int turn = 0; turn < 2; ++turn) {
            const std::vector<float> conv = l.conv;
            const std::vector<float> ssm = l.current();
            Layer whole = plain;
            const auto want = whole.run(0, rows, RoundMode::none);
            const auto got = l.run(0, rows, mode);
            REQUIRE(got == want);
            REQUIRE(same_bits(l.conv, conv));
            REQUIRE(same_bits(l.current(), ssm));
            const RecurView table = l.view(rows, mode);
            REQUIRE(finish(l.commit(table, rows, accept, mode)).ok());
            for (std::size_t t = 0; t < accept; ++t) plain.run(t, 1, RoundMode::none);
            REQUIRE(same_bits(l.conv, plain.conv));
            REQUIRE(same_bits(l.current(), plain.ssm));
            REQUIRE(l.pos == static_cast<std::int32_t>(100 + (turn + 1) * static_cast<int>(accept)));
            REQUIRE((l.words.generation == turn + 1 && l.words.status == 0));
          }
        }
      }
    }
  }
}

TEST_CASE("planes too large for caches hold the same bits", "[ops][round]") {
  for (const Shape& shape : {Shape{1, 2, 128, 258, 4}, Shape{1, 1, 252, 301, 1}, Shape{1, 1, 1028, 80, 2}}) {
    Layer l(shape, 16);
    Layer plain(shape, 16);
    REQUIRE(17 * l.state() * sizeof(float) > (std::size_t{4} << 20));
    for (const std::size_t accept : {5U, 11U}) {
      Layer whole = plain;
      const auto want = whole.run(0, 11, RoundMode::none);
      REQUIRE(l.run(0, 11, RoundMode::planes) == want);
      const RecurView table = l.view(11, RoundMode::planes);
      REQUIRE(finish(l.commit(table, 11, accept, RoundMode::planes)).ok());
      plain.run(0, accept, RoundMode::none);
      REQUIRE(same_bits(l.current(), plain.ssm));
    }
  }
}

TEST_CASE("red arms: a kept value that is off shows in the committed state", "[ops][round]") {
  const auto run = [](const auto& spoil, RoundMode mode) {
    Layer l(shapes[0], 8);
    Layer plain(shapes[0], 8);
    l.run(0, 6, mode);
    spoil(l);
    const RecurView table = l.view(6, mode);
    memra::check(finish(l.commit(table, 6, 4, mode)));
    plain.run(0, 4, RoundMode::none);
    return same_bits(l.conv, plain.conv) && same_bits(l.current(), plain.ssm);
  };
  REQUIRE(run([](Layer&) {}, RoundMode::planes));
  REQUIRE(run([](Layer&) {}, RoundMode::stash));
  REQUIRE_FALSE(run([](Layer& l) { l.planes[3 * l.state()] += 1; }, RoundMode::planes));
  REQUIRE_FALSE(run([](Layer& l) { l.conv_rows[3 * l.width()] += 1; }, RoundMode::planes));
  REQUIRE_FALSE(run([](Layer& l) { l.kept_k[3 * 16] += 1; }, RoundMode::stash));
  REQUIRE_FALSE(run([](Layer& l) { l.kept_u[3 * 10] += 1; }, RoundMode::stash));
  REQUIRE_FALSE(run([](Layer& l) { l.kept_decay[3 * 2] += 1; }, RoundMode::stash));
  // What was not accepted does not matter.
  REQUIRE(run([](Layer& l) { l.kept_u[4 * 10] += 1; }, RoundMode::stash));
  REQUIRE(run([](Layer& l) { l.planes[4 * l.state()] += 1; }, RoundMode::planes));
}

TEST_CASE("accept lengths on the device: read when the kernel runs, clamped, reported", "[ops][round]") {
  for (const RoundMode mode : {RoundMode::planes, RoundMode::stash}) {
    for (const std::int32_t asked : {-5, -1, 0, 3, 6, 7, 2147483647}) {
      CAPTURE(asked);
      Layer l(shapes[0], 8);
      Layer plain(shapes[0], 8);
      l.run(0, 6, mode);
      const RecurView table = l.view(6, mode);
      RoundCommit c = l.commit(table, 6, 99, mode);
      c.accept_d = &asked;
      REQUIRE(finish(c).ok());
      const std::size_t accept = asked < 0 ? 0 : asked > 6 ? 6 : static_cast<std::size_t>(asked);
      if (accept != 0) plain.run(0, accept, RoundMode::none);
      REQUIRE(same_bits(l.conv, plain.conv));
      REQUIRE(same_bits(l.current(), plain.ssm));
      REQUIRE(l.pos == 100 + static_cast<std::int32_t>(accept));
      REQUIRE((l.words.status != 0) == (asked < 0 || asked > 6));
    }
    // Past capacity: the position says so and stays there.
    Layer l(shapes[0], 8);
    l.run(0, 6, mode);
    const RecurView table = l.view(6, mode);
    RoundCommit c = l.commit(table, 6, 6, mode);
    c.capacity = 105;
    REQUIRE(finish(c).ok());
    REQUIRE((l.pos == ~100 && l.words.status != 0));
    REQUIRE(finish(c).ok());
    REQUIRE(l.pos == ~100);
  }
}

TEST_CASE("many caches in one launch get what each gets alone", "[ops][round]") {
  for (const RoundMode mode : {RoundMode::planes, RoundMode::stash}) {
    std::vector<Layer> batch, alone;
    for (std::size_t i = 0; i < 5; ++i) {
      // Neither shape nor rows need be the same.
      batch.emplace_back(shapes[i % 3], 8, 7 + i);
      alone.emplace_back(shapes[i % 3], 8, 7 + i);
    }
    std::vector<RecurView> tables;
    std::vector<RoundCommit> many;
    RoundCommit size;
    size.mode = mode;
    size.n_layers = 1;
    for (std::size_t i = 0; i < 5; ++i) {
      batch[i].run(0, 3 + i, mode);
      tables.push_back(batch[i].view(3 + i, mode));
    }
    for (std::size_t i = 0; i < 5; ++i) {
      many.push_back(batch[i].commit(tables[i], 3 + i, i, mode));
      size.conv_dim = std::max(size.conv_dim, many.back().conv_dim);
      size.heads = std::max(size.heads, many.back().heads);
    }
    REQUIRE(finish(size, many.data(), 5).ok());
    for (std::size_t i = 0; i < 5; ++i) {
      alone[i].run(0, 3 + i, mode);
      const RecurView table = alone[i].view(3 + i, mode);
      REQUIRE(finish(alone[i].commit(table, 3 + i, i, mode)).ok());
      REQUIRE(same_bits(batch[i].conv, alone[i].conv));
      REQUIRE(same_bits(batch[i].current(), alone[i].current()));
      REQUIRE(batch[i].pos == alone[i].pos);
    }
  }
}

TEST_CASE("views that a round cannot have are refused before a launch", "[ops][round]") {
  Layer l(shapes[0], 4);
  memra::HostDev dev;
  const memra::ops_for<memra::HostDev> ops(dev);
  std::vector<float> out(1000);
  const memra::ScanArgs a{l.q.data(), l.k.data(), l.v.data(), l.g.data(), l.beta.data(), out.data(), 0, 0, 0};
  const memra::ConvArgs x{l.x.data(), l.weight.data(), nullptr, out.data(), true};
  const auto scan = [&](const auto& change, RoundMode mode) {
    RecurView r = l.view(4, mode);
    change(r);
    return ops.delta_scan(r, a).kind();
  };
  REQUIRE(scan([](RecurView&) {}, RoundMode::planes) == ErrorKind::ok);
  REQUIRE(scan([](RecurView& r) { r.round.planes = nullptr; }, RoundMode::planes) == ErrorKind::bad_argument);
  REQUIRE(scan([](RecurView& r) { r.rows = 5; }, RoundMode::planes) == ErrorKind::bad_argument);
  REQUIRE(scan([](RecurView& r) { r.rows = 65; }, RoundMode::stash) == ErrorKind::bad_argument);
  REQUIRE(scan([](RecurView& r) { r.round.k = nullptr; }, RoundMode::stash) == ErrorKind::bad_argument);
  REQUIRE(scan([](RecurView& r) { r.round.u = nullptr; }, RoundMode::stash) == ErrorKind::bad_argument);
  REQUIRE(scan([](RecurView& r) { r.round.decay = nullptr; }, RoundMode::stash) == ErrorKind::bad_argument);
  REQUIRE(scan([](RecurView& r) { r.d_k = 2049; }, RoundMode::stash) == ErrorKind::bad_argument);
  RecurView r = l.view(4, RoundMode::stash);
  r.round.conv_rows = nullptr;
  REQUIRE(ops.conv_update(r, x).kind() == ErrorKind::bad_argument);
  RoundCommit c = l.commit(r, 4, 1, RoundMode::stash);
  c.words = nullptr;
  REQUIRE(ops.round_commit(c).kind() == ErrorKind::bad_argument);
  REQUIRE(ops.round_apply(c).kind() == ErrorKind::bad_argument);
}

}  // namespace
}  // namespace round_ops_cpp
