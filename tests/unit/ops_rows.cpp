// Ops that move rows: append, read_rows, gather_rows, copy_rows, repack, argmax_rows.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memra/codec.hpp>
#include <memra/host_ops.hpp>
#include <support/catch.hpp>
#include <support/planes.hpp>
#include <vector>

namespace ops_rows_cpp {
namespace {

using memra::Format;
using memra::Layout;
using memra_test::Plane;
using memra_test::Rng;

constexpr std::array<Layout, 2> layouts = {Layout::blocks, Layout::split};

struct Append {
  std::size_t n_kv = 2, dk = 64, dv = 32;
  std::size_t base = 0, phys_rows = 40, capacity = 40;
  Format kf = Format::q8_0, vf = Format::q5_1;
  Layout layout = Layout::blocks;
  Plane k{kf, layout, phys_rows, n_kv* dk, base};
  Plane v{vf, layout, phys_rows, n_kv* dv, base};

  memra::KvWriteView view(const std::int32_t* pos, std::size_t rows) {
    memra::KvWriteView w;
    w.k = k.view();
    w.v = v.view();
    w.n_kv_heads = n_kv;
    w.head_dim_k = dk;
    w.head_dim_v = dv;
    w.at = {pos, rows, capacity, capacity};
    return w;
  }
  void run(std::int32_t pos, std::size_t rows, const float* ks, const float* vs) {
    memra::HostDev dev;
    memra::check(memra::ops_for<memra::HostDev>(dev).append(view(&pos, rows), ks, vs));
  }
};

TEST_CASE("append writes the same bytes in one call and row by row", "[ops][append][identity]") {
  for (const Format kf : memra::all_formats) {
    for (const Format vf : memra::all_formats) {
      for (const Layout layout : layouts) {
        CAPTURE(memra::to_string(kf), memra::to_string(vf), memra::to_string(layout));
        Append many{.kf = kf, .vf = vf, .layout = layout};
        Append single{.kf = kf, .vf = vf, .layout = layout};
        Rng rng(1);
        constexpr std::size_t rows = 17;
        const std::vector<float> k = rng.vector(rows * many.n_kv * many.dk, 3.0F);
        const std::vector<float> v = rng.vector(rows * many.n_kv * many.dv, 3.0F);
        many.run(5, rows, k.data(), v.data());
        for (std::size_t i = 0; i < rows; ++i) {
          single.run(static_cast<std::int32_t>(5 + i), 1, k.data() + i * many.n_kv * many.dk,
                     v.data() + i * many.n_kv * many.dv);
        }
        REQUIRE(many.k.bytes() == single.k.bytes());
        REQUIRE(many.v.bytes() == single.v.bytes());
        // Oracle: the codec's row encoder, row by row, on an equally poisoned plane.
        Plane want(kf, layout, many.phys_rows, many.n_kv * many.dk);
        for (std::size_t i = 0; i < rows; ++i) {
          memra::encode_row(want.view(), 5 + i, k.data() + i * many.n_kv * many.dk);
        }
        REQUIRE(many.k.bytes() == want.bytes());
        // Red arm: one row further is noticed.
        memra::encode_row(want.view(), 4, k.data());
        REQUIRE(many.k.bytes() != want.bytes());
      }
    }
  }
}

TEST_CASE("append stays within f32 error of what it was given", "[ops][append]") {
  Append a{.kf = Format::q8_0, .vf = Format::f16};
  Rng rng(2);
  const std::vector<float> k = rng.vector(3 * a.n_kv * a.dk);
  const std::vector<float> v = rng.vector(3 * a.n_kv * a.dv);
  a.run(0, 3, k.data(), v.data());
  std::vector<float> got(k.size());
  memra::HostDev dev;
  const memra::ops_for<memra::HostDev> ops(dev);
  REQUIRE(ops.read_rows(a.k.view(), 0, 3, got.data()).ok());
  // q8_0: half a step of 1/127 of a block's largest value, plus the f16 rounding of the scale.
  for (std::size_t i = 0; i < k.size(); ++i) REQUIRE(std::fabs(got[i] - k[i]) <= 0.5F / 127.0F + 1e-3F);
  got.resize(v.size());
  REQUIRE(ops.read_rows(a.v.view(), 0, 3, got.data()).ok());
  for (std::size_t i = 0; i < v.size(); ++i) REQUIRE(std::fabs(got[i] - v[i]) <= 1.0F / 2048.0F);
}

TEST_CASE("append reads the position when it runs and writes no row that is not its own", "[ops][append]") {
  Rng rng(3);
  for (const Layout layout : layouts) {
    for (const auto& [base, capacity] : {std::array<std::size_t, 2>{0, 40}, {10, 50}, {10, 30}, {0, 33}, {0, 99}}) {
      for (const std::int32_t pos : {-2, 0, 8, 25, 31, 38, 48, 60}) {
        CAPTURE(base, capacity, pos);
        Append a{.base = base, .capacity = capacity, .layout = layout};
        const std::vector<float> k = rng.vector(6 * a.n_kv * a.dk);
        const std::vector<float> v = rng.vector(6 * a.n_kv * a.dv);
        Plane want_k(a.kf, layout, a.phys_rows, a.n_kv * a.dk, base);
        Plane want_v(a.vf, layout, a.phys_rows, a.n_kv * a.dv, base);
        for (std::int32_t i = 0; i < 6; ++i) {
          const std::int64_t row = std::int64_t{pos} + i;
          if (pos < 0) continue;  // a stream that ran out of rows: nothing is written
          if (row < static_cast<std::int64_t>(base) || row >= static_cast<std::int64_t>(capacity)) continue;
          const std::size_t phys = static_cast<std::size_t>(row) - base;
          if (phys >= a.phys_rows) continue;
          memra::encode_row(want_k.view(), phys, k.data() + static_cast<std::size_t>(i) * a.n_kv * a.dk);
          memra::encode_row(want_v.view(), phys, v.data() + static_cast<std::size_t>(i) * a.n_kv * a.dv);
        }
        a.run(pos, 6, k.data(), v.data());
        REQUIRE(a.k.bytes() == want_k.bytes());
        REQUIRE(a.v.bytes() == want_v.bytes());
      }
    }
  }
}

TEST_CASE("repack moves rows between layouts bit for bit", "[ops][repack][identity]") {
  memra::HostDev dev;
  const memra::ops_for<memra::HostDev> ops(dev);
  Rng rng(4);
  for (const Format f : memra::all_formats) {
    for (const Layout from : layouts) {
      for (const Layout to : layouts) {
        CAPTURE(memra::to_string(f), memra::to_string(from), memra::to_string(to));
        constexpr std::size_t width = 96;
        Plane a(f, from, 9, width);
        for (std::byte& b : a.bytes()) b = static_cast<std::byte>(rng.next());  // any bits, NaN scales included
        Plane b(f, to, 12, width);
        REQUIRE(ops.repack(b.view(), 3, a.view(), 2, 6).ok());
        Plane back(f, from, 9, width);
        REQUIRE(ops.repack(back.view(), 2, b.view(), 3, 6).ok());
        for (std::size_t row = 2; row < 8; ++row) {
          const memra::Segments s = memra::segments(a.view().shape, row, 1);
          for (std::size_t i = 0; i < s.count; ++i) {
            REQUIRE(std::memcmp(a.bytes().data() + s[i].offset, back.bytes().data() + s[i].offset, s[i].bytes) == 0);
          }
        }
        // Rows around the moved ones are untouched.
        Plane clean(f, to, 12, width);
        for (std::size_t row = 3; row < 9; ++row) b.poison_row(row);
        REQUIRE(b.bytes() == clean.bytes());
      }
    }
  }
}

TEST_CASE("repacked rows decode to the same values, and a wrong row is noticed", "[ops][repack]") {
  memra::HostDev dev;
  const memra::ops_for<memra::HostDev> ops(dev);
  Rng rng(5);
  for (const Format f : memra::all_formats) {
    Plane a(f, Layout::blocks, 4, 64);
    for (std::size_t r = 0; r < 4; ++r) memra::encode_row(a.view(), r, rng.vector(64).data());
    Plane b(f, Layout::split, 4, 64);
    REQUIRE(ops.repack(b.view(), 0, a.view(), 0, 4).ok());
    std::vector<float> x(4 * 64), y(4 * 64);
    REQUIRE(ops.read_rows(a.view(), 0, 4, x.data()).ok());
    REQUIRE(ops.read_rows(b.view(), 0, 4, y.data()).ok());
    REQUIRE(memra_test::same_bits(x, y));
    REQUIRE(ops.repack(b.view(), 0, a.view(), 1, 1).ok());
    REQUIRE(ops.read_rows(b.view(), 0, 4, y.data()).ok());
    REQUIRE_FALSE(memra_test::same_bits(x, y));
  }
}

TEST_CASE("read_rows counts stream rows from the plane's base", "[ops][read_rows]") {
  memra::HostDev dev;
  const memra::ops_for<memra::HostDev> ops(dev);
  Rng rng(6);
  Plane p(Format::q4_0, Layout::split, 6, 32, 100);
  for (std::size_t r = 0; r < 6; ++r) memra::encode_row(p.view(), r, rng.vector(32).data());
  std::vector<float> got(2 * 32), want(2 * 32);
  REQUIRE(ops.read_rows(p.view(), 103, 2, got.data()).ok());
  for (std::size_t r = 0; r < 2; ++r) memra::decode_row(p.view(), 3 + r, 0, 32, want.data() + r * 32);
  REQUIRE(memra_test::same_bits(got, want));
  REQUIRE_FALSE(ops.read_rows(p.view(), 99, 1, got.data()).ok());
  REQUIRE_FALSE(ops.read_rows(p.view(), 105, 2, got.data()).ok());
}

TEST_CASE("gather_rows decodes the rows asked for and answers NaN for a bad index", "[ops][gather]") {
  memra::HostDev dev;
  const memra::ops_for<memra::HostDev> ops(dev);
  Rng rng(7);
  for (const Format f : memra::all_formats) {
    constexpr std::size_t width = 64, rows = 5;
    std::vector<std::byte> data(rows * memra::row_bytes(f, width));
    const std::vector<float> x = rng.vector(rows * width);
    memra::encode(f, x.data(), data.data(), rows * width);
    std::vector<float> decoded(rows * width);
    memra::decode(f, data.data(), decoded.data(), rows * width);
    const std::vector<std::int32_t> index = {4, 0, -1, 2, 5, 4, std::numeric_limits<std::int32_t>::min()};
    std::vector<float> out(index.size() * width, 1.0F);
    REQUIRE(ops.gather_rows({data.data(), f, rows, width}, index.data(), index.size(), out.data()).ok());
    for (std::size_t i = 0; i < index.size(); ++i) {
      for (std::size_t d = 0; d < width; ++d) {
        const float got = out[i * width + d];
        if (index[i] < 0 || index[i] >= 5) {
          REQUIRE(got != got);
        } else {
          REQUIRE(got == decoded[static_cast<std::size_t>(index[i]) * width + d]);
        }
      }
    }
  }
}

TEST_CASE("copy_rows copies runs and nothing between them", "[ops][copy_rows]") {
  memra::HostDev dev;
  const memra::ops_for<memra::HostDev> ops(dev);
  std::vector<std::byte> src(64), dst(64, std::byte{9});
  for (std::size_t i = 0; i < src.size(); ++i) src[i] = static_cast<std::byte>(i + 100);
  REQUIRE(ops.copy_rows(dst.data() + 1, 10, src.data(), 7, 5, 4).ok());
  for (std::size_t i = 0; i < dst.size(); ++i) {
    const bool inside = i >= 1 && (i - 1) / 10 < 4 && (i - 1) % 10 < 5;
    REQUIRE(dst[i] == (inside ? src[(i - 1) / 10 * 7 + (i - 1) % 10] : std::byte{9}));
  }
}

std::int32_t argmax(const std::vector<float>& x) {
  memra::HostDev dev;
  std::int32_t out = -7;
  memra::check(memra::ops_for<memra::HostDev>(dev).argmax_rows(x.data(), 1, x.size(), &out));
  return out;
}

TEST_CASE("argmax_rows: the first largest wins, NaN never", "[ops][argmax]") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float inf = std::numeric_limits<float>::infinity();
  REQUIRE(argmax({3}) == 0);
  REQUIRE(argmax({nan}) == -1);
  REQUIRE(argmax({-inf, -inf}) == 0);
  REQUIRE(argmax({nan, -inf}) == 1);
  REQUIRE(argmax({-0.0F, 0.0F}) == 0);
  REQUIRE(argmax({0.0F, -0.0F}) == 0);
  REQUIRE(argmax({1, nan, inf, inf}) == 2);
  REQUIRE(argmax(std::vector<float>(100, nan)) == -1);
  REQUIRE(argmax(std::vector<float>(100, -inf)) == 0);

  Rng rng(8);
  for (const std::size_t n : {1U, 2U, 15U, 16U, 17U, 31U, 33U, 64U, 127U, 1000U}) {
    for (int trial = 0; trial < 20; ++trial) {
      std::vector<float> x(n);
      for (float& v : x) v = static_cast<float>(rng.next() % 50) - 25.0F;  // ties
      for (std::size_t i = 0; i < n / 3; ++i) x[rng.next() % n] = nan;
      std::int32_t want = -1;
      for (std::size_t i = 0; i < n; ++i) {
        if (x[i] == x[i] && (want < 0 || x[i] > x[static_cast<std::size_t>(want)])) want = static_cast<std::int32_t>(i);
      }
      CAPTURE(n, trial);
      REQUIRE(argmax(x) == want);
    }
  }
}

TEST_CASE("argmax_rows takes each row by itself", "[ops][argmax][identity]") {
  memra::HostDev dev;
  Rng rng(9);
  const std::vector<float> x = rng.vector(7 * 37);
  std::vector<std::int32_t> out(7);
  REQUIRE(memra::ops_for<memra::HostDev>(dev).argmax_rows(x.data(), 7, 37, out.data()).ok());
  for (std::size_t r = 0; r < 7; ++r) REQUIRE(out[r] == argmax({x.data() + r * 37, x.data() + r * 37 + 37}));
}

}  // namespace
}  // namespace ops_rows_cpp
