// The block formats against golden bytes, made by an encoder and decoder that are not ours.
#include <array>
#include <cstddef>
#include <memra/codec.hpp>
#include <string>
#include <support/catch.hpp>
#include <vector>

#include "codec_support.hpp"

namespace codec_golden_test_cpp {
namespace {

using memra::Format;
using memra::Layout;
constexpr std::array<Format, 3> block_formats = {Format::q8_0, Format::q5_1, Format::q4_0};

std::string name_of(Format f) {
  return std::string(memra::to_string(f));
}

}  // namespace

TEST_CASE("block formats give the golden bytes and values in the blocks layout", "[codec][identity]") {
  const std::vector<float> x = codec_test::read_floats("input.f32");
  REQUIRE(x.size() == 16384);
  for (const Format f : block_formats) {
    INFO(name_of(f));
    const std::vector<std::byte> golden = codec_test::read_bytes(name_of(f) + ".bin");
    const std::vector<float> decoded = codec_test::read_floats(name_of(f) + ".decoded.f32");
    REQUIRE(golden.size() == memra::row_bytes(f, x.size()));
    REQUIRE(decoded.size() == x.size());
    std::vector<std::byte> bytes(golden.size());
    memra::encode(f, x.data(), bytes.data(), x.size());
    CHECK(bytes == golden);
    std::vector<float> y(x.size());
    memra::decode(f, golden.data(), y.data(), y.size());
    CHECK(codec_test::same_bits(y.data(), decoded.data(), y.size()));

    // Red arm: one changed input bit and one changed stored bit are noticed.
    std::vector<float> other = x;
    other[100] += 1.0F;
    memra::encode(f, other.data(), bytes.data(), other.size());
    CHECK(bytes != golden);
    bytes = golden;
    bytes[memra::row_bytes(f, 64)] ^= std::byte{1};
    memra::decode(f, bytes.data(), y.data(), y.size());
    CHECK(!codec_test::same_bits(y.data(), decoded.data(), y.size()));
  }
}

TEST_CASE("block formats give the golden bytes and values in the split layout", "[codec][identity]") {
  constexpr std::size_t width = 256;
  const std::vector<float> x = codec_test::read_floats("input.f32");
  const std::size_t rows = x.size() / width;
  for (const Format f : block_formats) {
    INFO(name_of(f));
    const memra::FormatFacts fact = memra::facts(f);
    const std::vector<std::byte> golden = codec_test::read_bytes(name_of(f) + ".bin");
    const std::vector<float> decoded = codec_test::read_floats(name_of(f) + ".decoded.f32");
    codec_test::HostPlane plane({f, Layout::split, rows, width});
    for (std::size_t r = 0; r < rows; ++r) memra::encode_row(plane.view, r, x.data() + r * width);

    // Take the golden blocks apart by hand: scales first, then fifth bits, then quants.
    std::vector<std::byte> expected(plane.bytes.size(), std::byte{0xEE});
    const std::size_t blocks = x.size() / 32;
    const auto up16 = [](std::size_t n) { return (n + 15) / 16 * 16; };
    const std::size_t fifths_at = up16(blocks * fact.quant_bytes);
    const std::size_t scales_at = fact.fifth_bytes == 0 ? fifths_at : up16(fifths_at + blocks * fact.fifth_bytes);
    // Columns of 16 bytes of each row: one of eight scales, two of four fifth bits or pairs.
    const auto in_columns = [&](std::size_t b, std::size_t bytes) {
      const std::size_t byte = b % 8 * bytes;
      return (byte / 16 * rows + b / 8) * 16 + byte % 16;
    };
    for (std::size_t b = 0; b < blocks; ++b) {
      const std::byte* from = golden.data() + b * fact.block_bytes;
      std::memcpy(expected.data() + scales_at + in_columns(b, fact.scale_bytes), from, fact.scale_bytes);
      from += fact.scale_bytes;
      if (fact.fifth_bytes != 0)
        std::memcpy(expected.data() + fifths_at + in_columns(b, fact.fifth_bytes), from, fact.fifth_bytes);
      from += fact.fifth_bytes;
      std::memcpy(expected.data() + b * fact.quant_bytes, from, fact.quant_bytes);
    }
    CHECK(plane.bytes == expected);

    std::vector<float> y(x.size());
    for (std::size_t r = 0; r < rows; ++r) memra::decode_row(plane.view, r, 0, width, y.data() + r * width);
    CHECK(codec_test::same_bits(y.data(), decoded.data(), y.size()));
  }
}
}  // namespace codec_golden_test_cpp
