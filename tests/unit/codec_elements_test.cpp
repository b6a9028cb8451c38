// f16, bf16 and fp8 e4m3fn against an oracle in double arithmetic and against hand vectors.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memra/codec.hpp>
#include <memra/detail/fp8.hpp>
#include <memra/detail/half.hpp>
#include <random>
#include <support/catch.hpp>
#include <utility>
#include <vector>

#include "codec_support.hpp"

namespace codec_elements_test_cpp {
namespace {

using memra::detail::f32_bits;
using memra::detail::f32_from_bits;

/// Nearest representable value, ties to even, of a format with `mantissa` stored bits and smallest normal 2^lowest;
/// no upper end.
double nearest(double x, int mantissa, int lowest) {
  if (x == 0 || std::isinf(x)) return x;
  const int exponent = std::max(std::ilogb(x), lowest);
  return std::ldexp(std::nearbyint(std::ldexp(x, mantissa - exponent)), exponent - mantissa);
}

/// Every 251st float: all exponents, all rounding cases.
template <class Fn>
void for_many_floats(const Fn& fn) {
  for (std::uint64_t u = 0; u < (std::uint64_t{1} << 32); u += 4093) fn(f32_from_bits(static_cast<std::uint32_t>(u)));
  for (std::uint32_t high = 0; high < 0x10000U; ++high) {  // ties and their neighbours at every exponent
    for (const std::uint32_t low : {0x0FFFU, 0x1000U, 0x1001U, 0x7FFFU, 0x8000U, 0x8001U}) {
      fn(f32_from_bits(high << 16 | low));
    }
  }
}

}  // namespace

TEST_CASE("f16 is IEEE binary16, nearest even", "[codec][identity]") {
  for (std::uint32_t h = 0; h < 0x10000U; ++h) {
    const float x = memra::detail::f16_to_f32(static_cast<std::uint16_t>(h));
    const std::uint32_t exponent = (h >> 10) & 31U;
    const double mantissa = h & 1023U;
    if (exponent == 31 && mantissa != 0) {
      REQUIRE(std::isnan(x));
      REQUIRE(std::signbit(x) == (h >= 0x8000U));
      continue;
    }
    double expected =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024.0 + mantissa, static_cast<int>(exponent) - 25);
    if (exponent == 31) expected = std::numeric_limits<double>::infinity();
    REQUIRE(static_cast<double>(x) == (h >= 0x8000U ? -expected : expected));
    REQUIRE(std::signbit(x) == (h >= 0x8000U));
    REQUIRE(memra::detail::f32_to_f16(x) == h);
  }
  std::size_t wrong = 0;
  for_many_floats([&](float x) {
    const std::uint16_t h = memra::detail::f32_to_f16(x);
    if (std::isnan(x)) {
      wrong += h != (std::signbit(x) ? 0xFE00 : 0x7E00) ? 1 : 0;
      return;
    }
    double expected = nearest(static_cast<double>(x), 10, -14);
    if (std::fabs(expected) >= 65536) expected = std::copysign(std::numeric_limits<double>::infinity(), expected);
    wrong += static_cast<double>(memra::detail::f16_to_f32(h)) != expected ? 1 : 0;
    wrong += (h >= 0x8000) != std::signbit(x) ? 1 : 0;
  });
  CHECK(wrong == 0);
  static_assert(memra::detail::f32_to_f16(65519.0F) == 0x7BFF && memra::detail::f32_to_f16(65520.0F) == 0x7C00);
  static_assert(memra::detail::f32_to_f16(-0.0F) == 0x8000 && memra::detail::f16_to_f32(0x3C00) == 1.0F);
}

TEST_CASE("bf16 is the upper half of f32, nearest even", "[codec][identity]") {
  std::size_t wrong = 0;
  for_many_floats([&](float x) {
    const std::uint16_t h = memra::detail::f32_to_bf16(x);
    if (std::isnan(x)) {
      wrong += h != (std::signbit(x) ? 0xFFC0 : 0x7FC0) ? 1 : 0;
      return;
    }
    double expected = nearest(static_cast<double>(x), 7, -126);
    if (std::fabs(expected) >= 0x1p128) expected = std::copysign(std::numeric_limits<double>::infinity(), expected);
    wrong += static_cast<double>(memra::detail::bf16_to_f32(h)) != expected ? 1 : 0;
    wrong += (h >= 0x8000) != std::signbit(x) ? 1 : 0;
  });
  CHECK(wrong == 0);
  for (std::uint32_t h = 0; h < 0x10000U; ++h) {
    REQUIRE(f32_bits(memra::detail::bf16_to_f32(static_cast<std::uint16_t>(h))) == h << 16);
  }
}

TEST_CASE("fp8 is OCP e4m3fn, saturating", "[codec][identity]") {
  constexpr float inf = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const std::array<std::pair<float, int>, 16> vectors = {{{0.0F, 0x00},
                                                          {0x1p-10F, 0x00},
                                                          {0x1p-9F, 0x01},
                                                          {0x1.8p-9F, 0x02},
                                                          {1.0F, 0x38},
                                                          {240.0F, 0x77},
                                                          {256.0F, 0x78},
                                                          {288.0F, 0x79},
                                                          {448.0F, 0x7E},
                                                          {464.0F, 0x7E},
                                                          {465.0F, 0x7E},
                                                          {1000.0F, 0x7E},
                                                          {inf, 0x7E},
                                                          {-inf, 0xFE},
                                                          {nan, 0x7F},
                                                          {-0.0F, 0x80}}};
  for (const auto& [x, byte] : vectors) CHECK(memra::detail::f32_to_fp8(x) == byte);
  CHECK(memra::detail::f32_to_fp8(-nan) == 0xFF);
  for (std::uint32_t b = 0; b < 256; ++b) {
    const float x = memra::detail::fp8_to_f32(static_cast<std::uint8_t>(b));
    REQUIRE(std::signbit(x) == (b >= 0x80U));
    if ((b & 0x7FU) == 0x7FU) {
      REQUIRE(std::isnan(x));
      continue;
    }
    const int exponent = static_cast<int>((b >> 3) & 15U);
    const double mantissa = b & 7U;
    const double expected = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8.0 + mantissa, exponent - 10);
    REQUIRE(static_cast<double>(std::fabs(x)) == expected);
    REQUIRE(memra::detail::f32_to_fp8(x) == b);
  }
  std::size_t wrong = 0;
  for_many_floats([&](float x) {
    const std::uint8_t b = memra::detail::f32_to_fp8(x);
    wrong += (b >= 0x80) != std::signbit(x) ? 1 : 0;
    if (std::isnan(x)) {
      wrong += (b & 0x7F) != 0x7F ? 1 : 0;
      return;
    }
    const double expected = std::fmin(std::fabs(nearest(static_cast<double>(x), 3, -6)), 448.0);
    wrong += std::fabs(static_cast<double>(memra::detail::fp8_to_f32(b))) != expected ? 1 : 0;
  });
  CHECK(wrong == 0);
}

TEST_CASE("f32 planes keep every bit", "[codec][identity]") {
  const std::vector<float> x = codec_test::hostile_inputs(64, 3);
  std::vector<std::byte> bytes(x.size() * 4);
  std::vector<float> y(x.size());
  memra::encode(memra::Format::f32, x.data(), bytes.data(), x.size());
  memra::decode(memra::Format::f32, bytes.data(), y.data(), y.size());
  CHECK(codec_test::same_bits(x.data(), y.data(), x.size()));
}

TEST_CASE("no elements are no work", "[codec]") {
  for (const memra::Format f : memra::all_formats) {
    memra::encode(f, nullptr, nullptr, 0);
    memra::decode(f, nullptr, nullptr, 0);
    // Nor in the rows of a plane that has none: keys that are values, too, have no plane for them.
    for (const memra::Layout layout : {memra::Layout::blocks, memra::Layout::split}) {
      const memra::PlaneShape shape{f, layout, 3, 0};
      memra::encode_row(memra::PlaneView{nullptr, shape, 0}, 2, nullptr);
      memra::decode_row(memra::ConstPlaneView{nullptr, shape, 0}, 2, 0, 0, nullptr);
    }
  }
}
}  // namespace codec_elements_test_cpp
