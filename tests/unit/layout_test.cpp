// Where rows are: hand-computed offsets, public row sizes, and both layouts holding the same blocks.
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memra/codec.hpp>
#include <memra/layout.hpp>
#include <support/catch.hpp>
#include <utility>
#include <vector>

#include "codec_support.hpp"

namespace layout_test_cpp {
namespace {

using memra::Format;
using memra::Layout;
using memra::PlaneShape;
using memra::sub_planes;

}  // namespace

TEST_CASE("row sizes of known models", "[layout]") {
  struct Case {
    std::size_t elems;
    std::size_t f16;
    std::size_t fp8;
    std::size_t q8_0;
    std::size_t q5_1;
    std::size_t q4_0;
  };
  const std::array<Case, 5> cases = {{{256, 512, 256, 272, 192, 144},
                                      {512, 1024, 512, 544, 384, 288},
                                      {576, 1152, 576, 612, 432, 324},
                                      {768, 1536, 768, 816, 576, 432},
                                      {1024, 2048, 1024, 1088, 768, 576}}};
  for (const Case& c : cases) {
    CHECK(memra::row_bytes(Format::f32, c.elems) == 4 * c.elems);
    CHECK(memra::row_bytes(Format::f16, c.elems) == c.f16);
    CHECK(memra::row_bytes(Format::bf16, c.elems) == c.f16);
    CHECK(memra::row_bytes(Format::fp8_e4m3, c.elems) == c.fp8);
    CHECK(memra::row_bytes(Format::q8_0, c.elems) == c.q8_0);
    CHECK(memra::row_bytes(Format::q5_1, c.elems) == c.q5_1);
    CHECK(memra::row_bytes(Format::q4_0, c.elems) == c.q4_0);
  }
  // The default pair: 58 bytes per 32 elements of K and V each.
  CHECK(memra::row_bytes(Format::q8_0, 32) + memra::row_bytes(Format::q5_1, 32) == 58);
  // 61 layers of a 576-wide latent at 32,768 tokens.
  CHECK(61 * memra::row_bytes(Format::q8_0, 576) * 32768 == 1223294976U);
  for (const Format f : memra::all_formats) {
    const memra::FormatFacts facts = memra::facts(f);
    CHECK(facts.block_bytes == facts.quant_bytes + facts.fifth_bytes + facts.scale_bytes);
    CHECK(memra::parse_format(memra::to_string(f)) == f);
  }
  CHECK(!memra::parse_format("q8_1"));
}

TEST_CASE("B79 a row of 80 is two and a half blocks", "[layout]") {
  for (const Format f : {Format::q8_0, Format::q5_1, Format::q4_0}) CHECK(!memra::whole_blocks(f, 80));
  CHECK(memra::whole_blocks(Format::bf16, 80));
  CHECK(memra::row_bytes(Format::bf16, 80) == 160);
  CHECK(memra::whole_blocks(Format::fp8_e4m3, 80));
  CHECK(memra::row_bytes(Format::fp8_e4m3, 80) == 80);
}

TEST_CASE("sub-planes, by hand", "[layout]") {
  const auto blocks = sub_planes({Format::q5_1, Layout::blocks, 3, 64});
  CHECK(blocks.count == 1);
  CHECK(blocks.part[0].offset == 0);
  CHECK(blocks.part[0].row_bytes == 48);
  CHECK(blocks.bytes == 144);

  // 3 rows of 2 blocks: 6 * 16 quants, 6 * 4 fifth bits at 96, then 120 rounded up to 128 for 6 * 4 bytes of scales.
  const auto q5_1 = sub_planes({Format::q5_1, Layout::split, 3, 64});
  CHECK(q5_1.count == 3);
  CHECK(q5_1.part[0].offset == 0);
  CHECK(q5_1.part[0].row_bytes == 32);
  CHECK(q5_1.part[1].offset == 96);
  CHECK(q5_1.part[1].row_bytes == 8);
  CHECK(q5_1.part[2].offset == 128);
  CHECK(q5_1.part[2].row_bytes == 8);
  CHECK(q5_1.bytes == 152);

  CHECK(q5_1.columns == 3);  // rows of 8 bytes stay whole

  // 3 rows of 8 blocks: 384 bytes of quants; 32 bytes a row of fifth bits, two columns of 48; scales likewise.
  const PlaneShape wide{Format::q5_1, Layout::split, 3, 256};
  const auto columns = sub_planes(wide);
  CHECK(columns.columns == 5);
  CHECK(columns.part[0].row_bytes == 128);
  CHECK(columns.part[0].columns == 1);
  CHECK(columns.part[1].offset == 384);
  CHECK(columns.part[1].row_bytes == 16);
  CHECK(columns.part[1].columns == 2);
  CHECK(columns.part[2].offset == 480);
  CHECK(columns.part[2].columns == 2);
  CHECK(columns.bytes == 576);
  const auto runs = memra::segments(wide, 1, 2);
  REQUIRE(runs.count == 5);
  const std::array<std::array<std::size_t, 2>, 5> want{{{128, 256}, {400, 32}, {448, 32}, {496, 32}, {544, 32}}};
  for (std::size_t i = 0; i < want.size(); ++i) {
    CHECK(runs[i].offset == want[i][0]);
    CHECK(runs[i].bytes == want[i][1]);
  }
  // Block 5 of row 2, the only one that is not zeros: bytes 20 to 23 of 32, so the second column.
  codec_test::HostPlane plane(wide);
  std::vector<float> x(256);
  memra::encode_row(plane.view, 2, x.data());
  const auto before = plane.bytes;
  for (std::size_t i = 0; i < 32; ++i)
    x[160 + i] = static_cast<float>(i);  // 0 to 31: scale 1, offset 0, fifth bits of 16..31
  memra::encode_row(plane.view, 2, x.data());
  std::vector<std::size_t> changed;
  for (std::size_t i = 384; i < 576; ++i) {
    if (plane.bytes[i] != before[i]) changed.push_back(i);
  }
  // Fifth bits 16 to 31 are bytes 2 and 3 from 384 + 48 + 2 * 16 + 4 on; f16 1.0 is 0x3C00 at 480 + 48 + 32 + 4.
  CHECK(changed == std::vector<std::size_t>{470, 471, 565});
  CHECK(plane.bytes[565] == std::byte{0x3C});

  const auto q8_0 = sub_planes({Format::q8_0, Layout::split, 5, 32});
  CHECK(q8_0.count == 2);
  CHECK(q8_0.part[1].offset == 160);
  CHECK(q8_0.part[1].row_bytes == 2);
  CHECK(q8_0.bytes == 170);

  const auto q4_0 = sub_planes({Format::q4_0, Layout::split, 1, 96});  // 48 bytes of nibbles
  CHECK(q4_0.part[1].offset == 48);
  CHECK(q4_0.bytes == 54);

  for (const Format f : {Format::f32, Format::f16, Format::bf16, Format::fp8_e4m3}) {
    const auto split = sub_planes({f, Layout::split, 7, 20});
    CHECK(split.count == 1);
    CHECK(split.bytes == 7 * memra::row_bytes(f, 20));
  }
}

TEST_CASE("B105 offsets beyond 32 bits", "[layout]") {
  // 2^23 rows of 1,024 elements: 2^33 bytes of quants, then 2^29 of scales.
  const PlaneShape shape{Format::q8_0, Layout::split, std::size_t{1} << 23, 1024};
  const auto parts = sub_planes(shape);
  CHECK(parts.part[1].offset == 8589934592U);
  CHECK(parts.bytes == 9126805504U);
  const auto run = memra::segments(shape, (std::size_t{1} << 23) - 1, 1);
  CHECK(run[0].offset == 8589933568U);
  CHECK(run[0].bytes == 1024);
  REQUIRE(run.count == 5);  // scales are 64 bytes a row: four columns
  CHECK(run[1].offset == 8724152304U);
  CHECK(run[4].offset == 9126805488U);
  CHECK(run[4].bytes == 16);
  CHECK(memra::detail::checked_plane_bytes(shape).valid());
  CHECK(memra::detail::checked_plane_bytes(shape).value() == parts.bytes);
  // 3,728,270 rows of 576 cross 2^31 elements.
  const auto latent = memra::segments({Format::q8_0, Layout::blocks, 4000000, 576}, 3728270, 2);
  CHECK(latent[0].offset == 2281701240U);

  // The cursor of the last row, computed from a base that stands for memory nobody allocates.
  std::byte base{};
  const memra::PlaneView view{&base, {Format::q8_0, Layout::blocks, std::size_t{1} << 23, 1024}, 0};
  const auto at = reinterpret_cast<std::uintptr_t>(
      memra::detail::row_cursor<memra::detail::BlockCursor>(view, (std::size_t{1} << 23) - 1, 31).scales);
  CHECK(at - reinterpret_cast<std::uintptr_t>(&base) == 8388607ULL * 1088 + 31 * 34);
}

TEST_CASE("a plane that does not fit is reported, not wrapped", "[layout]") {
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  for (const Layout layout : {Layout::blocks, Layout::split}) {
    CHECK(!memra::detail::checked_plane_bytes({Format::f32, layout, most / 2, 4}).valid());
    CHECK(!memra::detail::checked_plane_bytes({Format::q8_0, layout, most / 32, 32}).valid());
    CHECK(!memra::detail::checked_plane_bytes({Format::q5_1, layout, most / 22, 32}).valid());
    for (const Format f : memra::all_formats) {
      for (const std::size_t rows : {0U, 1U, 3U, 17U}) {
        const PlaneShape s{f, layout, rows, 96};
        const auto checked = memra::detail::checked_plane_bytes(s);
        CHECK(checked.valid());
        CHECK(checked.value() == sub_planes(s).bytes);
      }
    }
  }
}

TEST_CASE("segments cover every byte of a row range exactly once", "[layout]") {
  for (const Format f : memra::all_formats) {
    for (const auto& [layout, width] :
         {std::pair<Layout, std::size_t>{Layout::blocks, 96}, {Layout::split, 96}, {Layout::split, 768}}) {
      const PlaneShape shape{f, layout, 11, width};
      INFO(memra::to_string(f) << " " << memra::to_string(layout) << " " << width);
      // Which bytes rows [3, 8) own: those that encoding them changes or may change.
      std::vector<int> owned(sub_planes(shape).bytes, 0);
      const auto runs = memra::segments(shape, 3, 5);
      std::size_t bytes = 0;
      for (std::size_t i = 0; i < runs.count; ++i) {
        bytes += runs[i].bytes;
        for (std::size_t b = 0; b < runs[i].bytes; ++b) ++owned[runs[i].offset + b];
      }
      CHECK(bytes == 5 * memra::row_bytes(f, width));
      std::vector<float> x(width);
      std::vector<bool> written(owned.size(), false);
      for (const std::byte fill : {std::byte{0x00}, std::byte{0xFF}}) {
        codec_test::HostPlane plane(shape);
        plane.bytes.assign(plane.bytes.size(), fill);
        for (std::size_t r = 3; r < 8; ++r) {
          for (std::size_t i = 0; i < width; ++i) x[i] = static_cast<float>(r * width + i) - 500.3F;
          memra::encode_row(plane.view, r, x.data());
        }
        for (std::size_t b = 0; b < owned.size(); ++b) written[b] = written[b] || plane.bytes[b] != fill;
      }
      for (std::size_t b = 0; b < owned.size(); ++b) REQUIRE(owned[b] == (written[b] ? 1 : 0));
      // All rows: everything but the padding between sub-planes.
      const auto all = memra::segments(shape, 0, 11);
      std::size_t sum = 0;
      for (std::size_t i = 0; i < all.count; ++i) sum += all[i].bytes;
      CHECK(sum == 11 * memra::row_bytes(f, width));
      CHECK(memra::segments(shape, 11, 0)[0].bytes == 0);
    }
  }
}

TEST_CASE("both layouts hold the same blocks, read in whole or in part", "[layout][codec][identity]") {
  const std::size_t width = GENERATE(160U, 512U);  // split: rows of scales whole, in columns
  constexpr std::size_t rows = 9;
  const std::vector<float> x = codec_test::hostile_inputs(rows * width / 32, 5);
  for (const Format f : memra::all_formats) {
    INFO(memra::to_string(f));
    codec_test::HostPlane blocks({f, Layout::blocks, rows, width});
    codec_test::HostPlane split({f, Layout::split, rows, width});
    std::vector<std::byte> flat(memra::row_bytes(f, x.size()));
    memra::encode(f, x.data(), flat.data(), x.size());
    for (std::size_t i = 0; i < rows; ++i) {
      const std::size_t r = i * 4 % rows;  // out of order
      memra::encode_row(blocks.view, r, x.data() + r * width);
      memra::encode_row(split.view, r, x.data() + r * width);
    }
    CHECK(blocks.bytes == flat);
    std::vector<float> whole(x.size());
    memra::decode(f, flat.data(), whole.data(), whole.size());
    for (std::size_t r = 0; r < rows; ++r) {
      for (const auto& [first, n] :
           {std::pair<std::size_t, std::size_t>{0, width}, {32, 96}, {128, 32}, {64, 0}, {96, width - 96}}) {
        std::vector<float> a(n + 1, 42.0F);
        std::vector<float> b(n + 1, 42.0F);
        memra::decode_row(blocks.view, r, first, n, a.data());
        memra::decode_row(split.view, r, first, n, b.data());
        REQUIRE(codec_test::same_bits(a.data(), whole.data() + r * width + first, n));
        REQUIRE(codec_test::same_bits(b.data(), a.data(), n + 1));
        REQUIRE(a[n] == 42.0F);
      }
    }
  }
}
}  // namespace layout_test_cpp
