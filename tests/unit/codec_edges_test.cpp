// Where ggml's routines are undefined or easily got wrong: hand-computed blocks.
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memra/codec.hpp>
#include <support/catch.hpp>
#include <vector>

#include "codec_support.hpp"

namespace codec_edges_test_cpp {
namespace {

using memra::Format;
constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();
constexpr float largest = std::numeric_limits<float>::max();

using Block = std::array<float, 32>;

std::vector<std::byte> encoded(Format f, const Block& x) {
  std::vector<std::byte> b(memra::facts(f).block_bytes);
  memra::encode(f, x.data(), b.data(), x.size());
  return b;
}
std::uint16_t half_at(const std::vector<std::byte>& b, std::size_t at) {
  return memra::detail::load_bytes<std::uint16_t>(b.data() + at);
}
int q8(const std::vector<std::byte>& b, std::size_t i) {
  return memra::detail::load_bytes<std::int8_t>(b.data() + 2 + i);
}
unsigned nibble(const std::vector<std::byte>& b, std::size_t quants, std::size_t i) {
  const auto v = std::to_integer<unsigned>(b[quants + i % 16]);
  return i < 16 ? v & 15U : v >> 4;
}
bool quants_are(const std::vector<std::byte>& b, std::size_t from, std::byte v) {
  for (std::size_t i = from; i < b.size(); ++i) {
    if (b[i] != v) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("blocks of zeros", "[codec][identity]") {
  for (const float zero : {0.0F, -0.0F}) {
    Block x;
    x.fill(zero);
    const auto q8_0 = encoded(Format::q8_0, x);
    CHECK(half_at(q8_0, 0) == 0);
    CHECK(quants_are(q8_0, 2, std::byte{0}));
    const auto q5_1 = encoded(Format::q5_1, x);
    CHECK(half_at(q5_1, 0) == 0);
    CHECK(half_at(q5_1, 2) == (memra::detail::f32_bits(zero) >> 16));
    CHECK(quants_are(q5_1, 4, std::byte{0}));
    const auto q4_0 = encoded(Format::q4_0, x);
    CHECK(half_at(q4_0, 0) == 0x8000);
    CHECK(quants_are(q4_0, 2, std::byte{0x88}));
  }
}

TEST_CASE("q8_0 rounds halves away from zero", "[codec][identity]") {
  Block x{};
  x[0] = 127.0F;  // d = 1
  x[1] = 0.5F;
  x[2] = -0.5F;
  x[3] = 2.5F;
  x[4] = -2.5F;
  x[5] = 0.49999997F;
  x[6] = -126.5F;
  const auto b = encoded(Format::q8_0, x);
  CHECK(half_at(b, 0) == 0x3C00);
  CHECK(q8(b, 0) == 127);
  CHECK(q8(b, 1) == 1);
  CHECK(q8(b, 2) == -1);
  CHECK(q8(b, 3) == 3);
  CHECK(q8(b, 4) == -3);
  CHECK(q8(b, 5) == 0);
  CHECK(q8(b, 6) == -127);
}

TEST_CASE("the first zero's sign is the sign of q5_1's min", "[codec][identity]") {
  Block x{};
  x.fill(3.0F);
  x[7] = -0.0F;
  x[8] = 0.0F;
  CHECK(half_at(encoded(Format::q5_1, x), 2) == 0x8000);
  x[6] = 0.0F;
  CHECK(half_at(encoded(Format::q5_1, x), 2) == 0x0000);
}

TEST_CASE("the first of equal magnitudes sets q4_0's scale", "[codec][identity]") {
  Block x{};
  x[3] = -8.0F;
  x[20] = 8.0F;
  const auto minus = encoded(Format::q4_0, x);
  CHECK(half_at(minus, 0) == 0x3C00);  // d = 1
  CHECK(nibble(minus, 2, 3) == 0);
  CHECK(nibble(minus, 2, 20) == 15);  // 16 does not fit
  x[2] = 8.0F;
  const auto plus = encoded(Format::q4_0, x);
  CHECK(half_at(plus, 0) == 0xBC00);  // d = -1
  CHECK(nibble(plus, 2, 2) == 0);
  CHECK(nibble(plus, 2, 3) == 15);
  CHECK(nibble(plus, 2, 0) == 8);
}

TEST_CASE("block formats read NaN as 0 and infinity as the largest float", "[codec][identity]") {
  for (const Format f : {Format::q8_0, Format::q5_1, Format::q4_0}) {
    INFO(memra::to_string(f));
    Block x{};
    Block y{};
    for (std::size_t i = 0; i < 32; ++i) x[i] = y[i] = 1.0F + static_cast<float>(i);
    x[4] = quiet_nan;
    x[5] = -quiet_nan;
    y[4] = y[5] = 0.0F;
    CHECK(encoded(f, x) == encoded(f, y));
    x[9] = inf;
    y[9] = largest;
    CHECK(encoded(f, x) == encoded(f, y));
    x[10] = -inf;
    y[10] = -largest;
    CHECK(encoded(f, x) == encoded(f, y));
    x.fill(quiet_nan);
    y.fill(0.0F);
    CHECK(encoded(f, x) == encoded(f, y));
  }
}

TEST_CASE("scales beyond f16 are stored as 65504, quants still come from the f32 scale", "[codec][identity]") {
  Block x{};
  x[0] = largest;
  x[1] = -largest / 4;
  const auto q8_0 = encoded(Format::q8_0, x);
  CHECK(half_at(q8_0, 0) == 0x7BFF);
  CHECK(q8(q8_0, 0) == 127);
  CHECK(q8(q8_0, 1) == -32);  // -31.75
  const auto q4_0 = encoded(Format::q4_0, x);
  CHECK(half_at(q4_0, 0) == 0xFBFF);
  CHECK(nibble(q4_0, 2, 0) == 0);
  CHECK(nibble(q4_0, 2, 1) == 10);

  Block wide{};
  for (std::size_t i = 0; i < 32; ++i) wide[i] = 4.0e6F * static_cast<float>(i);  // d = 4e6, min = 0
  const auto q5_1 = encoded(Format::q5_1, wide);
  CHECK(half_at(q5_1, 0) == 0x7BFF);
  CHECK(nibble(q5_1, 8, 13) == 13);

  // The min is not clamped, as ggml's is not.
  for (float& v : wide) v -= 1.0e7F;
  CHECK(half_at(encoded(Format::q5_1, wide), 2) == 0xFC00);
}

TEST_CASE("unusable scales give quants of 0", "[codec][identity]") {
  // max - min overflows: d is infinite.
  Block x{};
  x[0] = largest;
  x[1] = -largest;
  const auto overflow = encoded(Format::q5_1, x);
  CHECK(half_at(overflow, 0) == 0x7BFF);
  CHECK(quants_are(overflow, 4, std::byte{0}));

  // 1 / d overflows: the block is far below what the formats can hold.
  Block tiny{};
  tiny[0] = 0x1p-127F;
  tiny[1] = -0x1p-128F;
  const auto q8_0 = encoded(Format::q8_0, tiny);
  CHECK(half_at(q8_0, 0) == 0);
  CHECK(quants_are(q8_0, 2, std::byte{0}));
  const auto q5_1 = encoded(Format::q5_1, tiny);
  CHECK(quants_are(q5_1, 4, std::byte{0}));
  const auto q4_0 = encoded(Format::q4_0, tiny);
  CHECK(half_at(q4_0, 0) == 0x8000);
  CHECK(quants_are(q4_0, 2, std::byte{0}));
}

TEST_CASE("encode and decode accept any alignment", "[codec]") {
  const std::vector<float> x = codec_test::hostile_inputs(8, 11);
  for (const Format f : memra::all_formats) {
    const std::size_t n = memra::row_bytes(f, x.size());
    std::vector<std::byte> at0(n);
    std::vector<std::byte> at3(n + 3);
    memra::encode(f, x.data(), at0.data(), x.size());
    memra::encode(f, x.data(), at3.data() + 3, x.size());
    CHECK(std::memcmp(at0.data(), at3.data() + 3, n) == 0);
    std::vector<float> a(x.size());
    std::vector<float> b(x.size());
    memra::decode(f, at0.data(), a.data(), a.size());
    memra::decode(f, at3.data() + 3, b.data(), b.size());
    CHECK(codec_test::same_bits(a.data(), b.data(), a.size()));
  }
}
}  // namespace codec_edges_test_cpp
