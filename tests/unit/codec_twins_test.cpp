// The wide codecs against their scalar twins, for every register width this build can run, on hostile bit patterns.
#include <cstddef>
#include <cstdint>
#include <memra/codec.hpp>
#include <memra/detail/simd.hpp>
#include <random>
#include <support/catch.hpp>
#include <vector>

#include "codec_support.hpp"

namespace codec_twins_test_cpp {
namespace {

using memra::Format;
namespace detail = memra::detail;

/// Number of blocks for which the wide codec and its twin agree on the bytes and on the decoded values.
template <Format F, class Simd>
void compare_twins(std::uint32_t seed) {
  constexpr memra::FormatFacts f = memra::facts(F);
  constexpr std::size_t n_blocks = 3000;
  // Odd element counts exercise the tails of formats without blocks.
  const std::vector<float> x = codec_test::hostile_inputs(n_blocks, seed);
  const std::size_t n = f.block_elems == 1 ? x.size() - 5 : x.size();
  const std::size_t blocks = n / f.block_elems;
  std::vector<std::byte> wide(memra::row_bytes(F, n));
  std::vector<std::byte> scalar(wide.size());
  detail::encode_blocks<F, Simd>(x.data(), blocks, detail::blocks_cursor<detail::BlockCursor>(F, wide.data()));
  detail::scalar_encode_blocks<F>(x.data(), blocks, detail::blocks_cursor<detail::BlockCursor>(F, scalar.data()));
  std::size_t first = 0;
  while (first < wide.size() && wide[first] == scalar[first]) ++first;
  INFO(memra::to_string(F) << " byte " << first % f.block_bytes << " of block " << first / f.block_bytes);
  REQUIRE(first == wide.size());

  // Stored bytes of our own, then any bytes at all.
  std::mt19937 random(seed + 1);
  for (int round = 0; round < 2; ++round) {
    std::vector<float> a(n);
    std::vector<float> b(n);
    detail::decode_blocks<F, Simd>(detail::blocks_cursor<detail::ConstBlockCursor>(F, wide.data()), blocks, a.data());
    detail::scalar_decode_blocks<F>(detail::blocks_cursor<detail::ConstBlockCursor>(F, wide.data()), blocks, b.data());
    if (round == 0 || f.block_elems == 1) {
      REQUIRE(codec_test::same_bits(a.data(), b.data(), n));
    } else {  // scales that are NaN: the payload is unspecified
      REQUIRE(codec_test::same_values(a.data(), b.data(), n));
    }
    for (std::byte& v : wide) v = static_cast<std::byte>(random() & 0xFFU);
  }
}

template <class Simd>
void compare_all(std::uint32_t seed) {
  compare_twins<Format::f32, Simd>(seed);
  compare_twins<Format::f16, Simd>(seed);
  compare_twins<Format::bf16, Simd>(seed);
  compare_twins<Format::q8_0, Simd>(seed);
  compare_twins<Format::q5_1, Simd>(seed);
  compare_twins<Format::q4_0, Simd>(seed);
  compare_twins<Format::fp8_e4m3, Simd>(seed);
}

}  // namespace

TEST_CASE("wide codecs equal their scalar twins: native registers", "[codec][identity]") {
  compare_all<detail::NativeSimd>(1);
  compare_all<detail::NativeSimd>(2);
}
TEST_CASE("wide codecs equal their scalar twins: plain arrays", "[codec][identity]") {
  compare_all<detail::PortableSimd>(3);
}
#if defined(__GNUC__)
TEST_CASE("wide codecs equal their scalar twins: 16-byte registers", "[codec][identity]") {
  compare_all<detail::VectorSimd<16>>(4);
}
#if defined(__AVX2__)
TEST_CASE("wide codecs equal their scalar twins: 32-byte registers", "[codec][identity]") {
  compare_all<detail::VectorSimd<32>>(5);
}
#endif
#endif

TEST_CASE("the hostile inputs reach what they are for", "[codec]") {
  const std::vector<float> x = codec_test::hostile_inputs(3000, 1);
  std::size_t nans = 0;
  std::size_t infinities = 0;
  std::size_t subnormals = 0;
  std::size_t negative_zeros = 0;
  for (const float v : x) {
    const std::uint32_t u = detail::f32_bits(v);
    nans += (u & 0x7FFFFFFFU) > 0x7F800000U ? 1 : 0;
    infinities += (u & 0x7FFFFFFFU) == 0x7F800000U ? 1 : 0;
    subnormals += (u & 0x7F800000U) == 0 && (u & 0x7FFFFFU) != 0 ? 1 : 0;
    negative_zeros += u == 0x80000000U ? 1 : 0;
  }
  CHECK(nans > 100);
  CHECK(infinities > 100);
  CHECK(subnormals > 1000);
  CHECK(negative_zeros > 1000);
}
}  // namespace codec_twins_test_cpp
