// attend against float64, and its numeric identity: a row's bits depend on that row only.
#include <array>
#include <cstddef>
#include <cstring>
#include <support/attend_case.hpp>
#include <support/catch.hpp>
#include <vector>

namespace ops_attend_cpp {
namespace {

using memra::Format;
using memra::Layout;
using memra_test::AttendCase;
using memra_test::AttendShape;
using memra_test::max_error;
using memra_test::same_bits;

// f32 sums of up to a few hundred products of size one against float64: well inside 2e-5 relative to max(1, |out|).
constexpr double tolerance = 2e-5;

constexpr std::size_t spare_rows = 5;  // poisoned rows behind the stream

void check_rows(const AttendCase& c, std::size_t pos, std::size_t rows) {
  const std::vector<float> together = c.run(pos, rows);
  REQUIRE(max_error(together, c.oracle(pos, rows)) < tolerance);
  REQUIRE(same_bits(together, c.run_single(pos, rows)));
}

TEST_CASE("attend gives a row the same bits alone and among any others", "[ops][attend][identity]") {
  AttendShape shapes[3];
  shapes[1].n_heads = shapes[1].n_kv = 3;  // neighbours in a group of queries belong to different rows
  shapes[1].k_format = Format::f16;
  shapes[1].v_format = Format::q4_0;
  shapes[1].window = 65;
  shapes[2].n_heads = 8;
  shapes[2].dk = 96;
  shapes[2].layout = Layout::split;
  shapes[2].window = 5;
  for (const AttendShape& s : shapes) {
    const AttendCase c(s, 270, spare_rows, 1);
    const std::vector<float> all = c.run_single(0, c.total);
    const std::size_t row = s.n_heads * s.dv;
    for (const std::size_t pos : {0U, 1U, 62U, 63U, 64U, 65U, 66U, 127U, 128U, 129U, 130U}) {
      for (const std::size_t rows : {1U, 2U, 3U, 7U, 8U, 16U, 17U, 64U, 139U}) {
        CAPTURE(s.n_heads, pos, rows);
        const std::vector<float> got = c.run(pos, rows);
        REQUIRE(std::memcmp(got.data(), all.data() + pos * row, got.size() * sizeof(float)) == 0);
      }
    }
    REQUIRE(max_error(all, c.oracle(0, c.total)) < tolerance);
  }
}

TEST_CASE("attend decodes every pair of formats in both layouts", "[ops][attend][identity]") {
  for (const Format kf : memra::all_formats) {
    for (const Format vf : memra::all_formats) {
      AttendShape s;
      s.k_format = kf;
      s.v_format = vf;
      CAPTURE(memra::to_string(kf), memra::to_string(vf));
      const AttendCase blocks(s, 70, spare_rows, 2);
      s.layout = Layout::split;
      const AttendCase split(s, 70, spare_rows, 2);
      check_rows(blocks, 59, 11);
      REQUIRE(same_bits(blocks.run(59, 11), split.run(59, 11)));
    }
  }
}

TEST_CASE("attend keeps to its window", "[ops][attend][identity]") {
  for (const std::size_t window : {1U, 5U, 63U, 64U, 65U}) {
    AttendShape s;
    s.window = window;
    s.k_format = s.v_format = Format::f16;
    const AttendCase c(s, 150, spare_rows, 3);
    for (const std::size_t pos : {0U, 1U, 62U, 64U, 66U, 127U, 130U}) {
      CAPTURE(window, pos);
      check_rows(c, pos, 17);
    }
  }
}

TEST_CASE("attend serves every group size and head size", "[ops][attend][identity]") {
  for (const std::size_t group : {1U, 2U, 8U, 16U}) {
    for (const std::size_t dim : {32U, 64U, 96U, 128U, 256U}) {
      AttendShape s;
      s.n_kv = 2;
      s.n_heads = 2 * group;
      s.dk = s.dv = dim;
      CAPTURE(group, dim);
      const AttendCase c(s, 69, spare_rows, 4);
      check_rows(c, 62, 7);
    }
  }
}

TEST_CASE("attend takes K and V heads of different and odd sizes", "[ops][attend][identity]") {
  for (const auto& [dk, dv] : {std::array<std::size_t, 2>{64, 32}, {32, 160}, {7, 21}, {1, 3}, {18, 5}}) {
    AttendShape s;
    s.n_heads = 6;
    s.n_kv = 2;
    s.dk = dk;
    s.dv = dv;
    s.k_format = Format::f32;
    s.v_format = Format::bf16;
    CAPTURE(dk, dv);
    const AttendCase c(s, 140, spare_rows, 5);
    check_rows(c, 0, 20);
    check_rows(c, 123, 17);
  }
}

TEST_CASE("attend reads planes whose first row is not row 0", "[ops][attend][identity]") {
  AttendShape s;
  s.window = 20;
  const AttendCase whole(s, 160, spare_rows, 6);
  s.base = 75;
  AttendCase part(s, 160, spare_rows, 6);
  part.q = whole.q;
  for (std::size_t r = s.base; r < part.total; ++r) {
    for (auto plane : {0, 1}) {
      const memra_test::Plane& from = plane == 0 ? whole.k : whole.v;
      memra_test::Plane& to = plane == 0 ? part.k : part.v;
      const memra::Segments a = memra::segments(from.view().shape, r, 1);
      const memra::Segments b = memra::segments(to.view().shape, r - s.base, 1);
      std::memcpy(to.bytes().data() + b[0].offset, from.bytes().data() + a[0].offset, a[0].bytes);
    }
  }
  REQUIRE(same_bits(whole.run(120, 40), part.run(120, 40)));
  REQUIRE(same_bits(whole.run(94, 5), part.run(94, 5)));
}

TEST_CASE("B113 attend lets no hidden row take part", "[ops][attend][identity]") {
  AttendShape s;
  s.window = 10;
  const AttendCase clean(s, 150, spare_rows, 7);
  for (const std::size_t pos : {20U, 63U, 70U, 128U}) {
    AttendCase c = clean;
    for (std::size_t r = 0; r < c.total; ++r) {
      if (r + s.window <= pos || r > pos) {
        c.k.poison_row(r);
        c.v.poison_row(r);
      }
    }
    CAPTURE(pos);
    REQUIRE(same_bits(c.run(pos, 1), clean.run(pos, 1)));
    // Red arm: one row inside the window is poison as well, and the same comparison notices.
    c.v.poison_row(pos - s.window + 1);
    REQUIRE_FALSE(same_bits(c.run(pos, 1), clean.run(pos, 1)));
  }
  // Rows of the same call are hidden from the rows before them.
  AttendCase c = clean;
  for (std::size_t r = 81; r < c.total; ++r) {
    c.k.poison_row(r);
    c.v.poison_row(r);
  }
  std::vector<float> got = c.run(75, 10);
  std::vector<float> want = clean.run(75, 10);
  got.resize(6 * s.n_heads * s.dv);
  want.resize(got.size());
  REQUIRE(same_bits(got, want));
}

TEST_CASE("the attend checks notice a wrong window, position, scale or row", "[ops][attend]") {
  AttendShape s;
  s.window = 16;
  AttendCase c(s, 100, spare_rows, 8);
  const std::vector<double> want = c.oracle(90, 4);
  REQUIRE(max_error(c.run(90, 4), want) < tolerance);
  c.shape.window = 17;
  REQUIRE(max_error(c.run(90, 4), want) > tolerance);
  c.shape.window = 16;
  REQUIRE(max_error(c.run(89, 4), want) > tolerance);
  c.scale *= 1.01F;
  REQUIRE(max_error(c.run(90, 4), want) > tolerance);
  // The last bit of one output element is enough for the identity check.
  std::vector<float> one = c.run(90, 4);
  const std::vector<float> other = c.run(90, 4);
  one[37] = std::nextafter(one[37], 1e9F);
  REQUIRE_FALSE(same_bits(one, other));
}

TEST_CASE("attend survives scores that climb and large scores", "[ops][attend][identity]") {
  AttendShape s;
  s.k_format = s.v_format = Format::f32;
  s.n_heads = 1;
  s.dk = 1;
  s.dv = 32;
  AttendCase c(s, 300, 0, 9);
  for (float& q : c.q) q = 1.0F;
  c.scale = 1.0F;
  for (std::size_t r = 0; r < c.total; ++r) {  // every tile raises the maximum
    const float k = static_cast<float>(r) * 0.125F - 1000.0F;
    memra::encode_row(c.k.view(), r, &k);
  }
  check_rows(c, 250, 40);
}

TEST_CASE("attend writes zeros for a row that sees nothing and stays inside the planes", "[ops][attend]") {
  const AttendShape s;
  const AttendCase c(s, 40, 0, 10);
  std::int32_t pos = 0;
  memra::KvReadView view = c.view(&pos, 1);
  std::vector<float> out(s.n_heads * s.dv, 7.0F);
  memra_test::Scratch scratch(memra::detail::attend_scratch_bytes(s.n_heads, s.n_kv, s.dk, s.dv, 1));
  memra::HostDev dev;
  const memra::ops_for<memra::HostDev> ops(dev);
  const memra::AttendArgs a{c.q.data(), out.data(), s.n_heads, c.scale};
  pos = -3;
  REQUIRE(ops.attend(view, a, scratch.view()).ok());
  REQUIRE(out == std::vector<float>(out.size(), 0.0F));
  pos = 1000;  // a position beyond the plane reads the rows that exist
  REQUIRE(ops.attend(view, a, scratch.view()).ok());
  for (const float x : out) REQUIRE(x == x);
}

}  // namespace
}  // namespace ops_attend_cpp
