// Encoders round x * id before they add to it, also in builds that may fuse the two (-O3 -march=x86-64-v3).
//
// The golden blocks cannot tell: fusing changes none of their quants, and decoding multiplies an 11-bit scale by at
// most 8 bits, which is exact. So these blocks are made of inputs that lie next to the steps of the quantiser.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memra/codec.hpp>
#include <random>
#include <support/catch.hpp>
#include <vector>

#include "codec_support.hpp"

namespace codec_contraction_test_cpp {
namespace {

using memra::Format;

/// x * y + z with both roundings: nothing fuses with what was read from memory.
float rounded_twice(float x, float y, float z) {
  volatile float p = x * y;
  return p + z;
}

/// Element `i` of the block, as encoded.
unsigned quant(Format f, const std::vector<std::byte>& b, std::size_t i) {
  const std::size_t at = f == Format::q5_1 ? 8 : 2;
  const auto byte = std::to_integer<unsigned>(b[at + i % 16]);
  const unsigned low = i < 16 ? byte & 15U : byte >> 4;
  if (f == Format::q4_0) return low;
  return low | ((memra::detail::load_bytes<std::uint32_t>(b.data() + 4) >> i) & 1U) << 4;
}

}  // namespace

TEST_CASE("encoding does not contract: inputs next to a step", "[codec][identity]") {
  std::mt19937 random(2);
  std::uniform_real_distribution<float> uniform(1.0F, 2.0F);
  for (const Format f : {Format::q5_1, Format::q4_0}) {
    INFO(memra::to_string(f));
    std::size_t fused_differs = 0;
    std::vector<std::byte> bytes(memra::facts(f).block_bytes);
    for (int round = 0; round < 2000; ++round) {
      std::vector<float> x(32);
      float base = 0;
      float d = 0;
      if (f == Format::q5_1) {
        base = x[0] = -uniform(random);
        x[31] = uniform(random);
        d = (x[31] - base) / 31.0F;
      } else {
        x[0] = uniform(random);
        d = x[0] / -8.0F;
        x[31] = 7.0F * d;
      }
      const float id = 1.0F / d;
      for (std::size_t i = 1; i < 31; ++i) {
        // For q5_1 only the first step can tell: above, the sum has no more places than the product.
        const float step = f == Format::q4_0 ? static_cast<float>(i % 15) - 7.5F
                           : i % 8 == 1      ? 0.5F + static_cast<float>(i)
                                             : 0.5F;
        float v = base + step * d;
        for (auto n = random() % 5; n != 0; --n) v = std::nextafter(v, i % 2 == 0 ? 4.0F : -4.0F);
        x[i] = v;
      }
      memra::encode(f, x.data(), bytes.data(), 32);
      const float offset = f == Format::q5_1 ? 0.5F : 8.5F;
      const float most = f == Format::q5_1 ? 31.0F : 15.0F;
      for (std::size_t i = 0; i < 32; ++i) {
        const float from_base = x[i] - base;
        const float twice = std::min(std::trunc(rounded_twice(from_base, id, offset)), most);
        const float fused = std::min(std::trunc(std::fma(from_base, id, offset)), most);
        fused_differs += twice != fused ? 1 : 0;
        REQUIRE(quant(f, bytes, i) == static_cast<unsigned>(twice));
      }
    }
    CHECK(fused_differs > 100);  // red arm: a build that fuses fails above
  }
}
}  // namespace codec_contraction_test_cpp
