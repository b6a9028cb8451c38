// exp, sigmoid, silu and the sixteen lanes under them.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memra/detail/math.hpp>
#include <memra/detail/simd.hpp>
#include <random>
#include <support/catch.hpp>
#include <vector>

#include "codec_support.hpp"

namespace codec_math_test_cpp {
namespace {

using memra::detail::exp_f32;
using memra::detail::f32_bits;
using memra::detail::f32_from_bits;
using memra::detail::F32x16;
using memra::detail::I32x16;
using memra::detail::PortableSimd;

/// Distance from the true value in units of the last place of a float of that size.
double error_in_ulps(float got, double want) {
  const double ulp = std::ldexp(1.0, std::max(std::ilogb(want), -126) - 23);
  return std::fabs(static_cast<double>(got) - want) / ulp;
}

/// Runs fn on sixteen floats at a time, over bit patterns `step` apart.
template <class Fn>
void for_float_lanes(std::uint32_t step, const Fn& fn) {
  std::array<float, 16> x{};
  std::uint64_t u = 0;
  while (u < (std::uint64_t{1} << 32)) {
    for (float& v : x) {
      v = f32_from_bits(static_cast<std::uint32_t>(u));
      u += step;
    }
    fn(x);
  }
}

template <class Simd>
void compare_with_scalar() {
  std::size_t wrong = 0;
  for_float_lanes(10007, [&](const std::array<float, 16>& x) {
    std::array<float, 16> e{};
    std::array<float, 16> s{};
    std::array<float, 16> l{};
    const auto v = F32x16<Simd>::load(x.data());
    exp_f32(v).store(e.data());
    sigmoid_f32(v).store(s.data());
    silu_f32(v).store(l.data());
    for (std::size_t i = 0; i < 16; ++i) {
      wrong += f32_bits(e[i]) != f32_bits(exp_f32(x[i])) ? 1 : 0;
      const float sigmoid = memra::detail::sigmoid_f32(x[i]);
      wrong += f32_bits(s[i]) != f32_bits(sigmoid) ? 1 : 0;
      const float silu = memra::detail::silu_f32(x[i]);
      wrong += !codec_test::same_values(&l[i], &silu, 1) ? 1 : 0;
    }
  });
  CHECK(wrong == 0);
}

/// The results of every lane operation on `a` and `b`, one after another.
template <class Simd>
std::vector<std::uint32_t> all_operations(const std::array<float, 16>& a, const std::array<float, 16>& b) {
  using F = F32x16<Simd>;
  using I = I32x16<Simd>;
  std::vector<std::uint32_t> out;
  const auto keep = [&](const F& v) {
    std::array<float, 16> lanes{};
    v.store(lanes.data());
    for (const float x : lanes) out.push_back(x == x ? f32_bits(x) : 0x7FC00000U);  // any NaN is a NaN
  };
  const auto keep_int = [&](const I& v) {
    std::array<std::uint32_t, 16> lanes{};
    std::memcpy(&lanes, &v, sizeof lanes);
    out.insert(out.end(), lanes.begin(), lanes.end());
  };
  const F x = F::load(a.data());
  const F y = F::load(b.data());
  keep(x + y);
  keep(x - y);
  keep(x * y);
  keep(x / y);
  keep(x * y + x);
  keep(negate(x));
  keep(max(x, y));
  keep(min(x, y));
  keep(select(less(x, y), x, y));
  keep(F::broadcast(a[3]));
  keep(F::broadcast(-0.0F));
  keep(F::zero());
  const float sums[] = {sum(x), max_lane(x), min_lane(x)};
  for (const float s : sums) out.push_back(s == s ? f32_bits(s) : 0x7FC00000U);
  const I i = bits(x);
  const I j = bits(y);
  keep_int(i & j);
  keep_int(i | j);
  keep_int(i ^ j);
  keep_int(i + j);
  keep_int(i - j);
  keep_int(i << 7);
  keep_int(i >> 7);
  keep_int(shift_right_signed(i, 7));
  keep_int(less(i, j));
  keep_int(equal(i & I::broadcast(1), j & I::broadcast(1)));
  keep_int(select(less(i, j), i, j));
  keep_int(max(i, j));
  keep_int(min(i, j));
  keep(F::from_int(i));
  out.push_back(static_cast<std::uint32_t>(max_lane(i)));
  out.push_back(static_cast<std::uint32_t>(min_lane(i)));
  return out;
}

template <class Simd>
void compare_lanes(std::uint32_t seed) {
  const std::vector<float> x = codec_test::hostile_inputs(500, seed);
  std::array<float, 16> a{};
  std::array<float, 16> b{};
  for (std::size_t i = 0; i < x.size(); i += 32) {
    std::memcpy(&a, &x[i], sizeof a);
    std::memcpy(&b, &x[i + 16], sizeof b);
    REQUIRE(all_operations<Simd>(a, b) == all_operations<PortableSimd>(a, b));
  }
}

}  // namespace

TEST_CASE("exp_f32 is within one unit in the last place", "[math][identity]") {
  constexpr float inf = std::numeric_limits<float>::infinity();
  static_assert(exp_f32(0.0F) == 1.0F && exp_f32(-0.0F) == 1.0F);
  CHECK(exp_f32(-inf) == 0.0F);
  CHECK(exp_f32(inf) == inf);
  CHECK(exp_f32(-104.0F) == 0.0F);
  CHECK(exp_f32(-103.5F) == 0x1p-149F);  // gradual
  CHECK(exp_f32(88.72283F) < inf);
  CHECK(exp_f32(88.72284F) == inf);
  CHECK(f32_bits(exp_f32(f32_from_bits(0xFFC12345U))) == 0x7FC00000U);
  double worst = 0;
  double worst_if_cut = 0;  // red arm: an exp of one term less is noticed
  for_float_lanes(4099, [&](const std::array<float, 16>& lanes) {
    for (const float x : lanes) {
      const double want = std::exp(static_cast<double>(x));
      if (std::isnan(x) || want > 0x1.fffffefp127 || want < 0x1p-151) continue;
      worst = std::max(worst, error_in_ulps(exp_f32(x), want));
      if (std::fabs(x) < 0.34F) {
        const double cut = want - std::pow(static_cast<double>(x), 6) / 720;
        worst_if_cut = std::max(worst_if_cut, error_in_ulps(static_cast<float>(cut), want));
      }
    }
  });
  CHECK(worst < 1.0);
  CHECK(worst_if_cut > 10.0);
}

TEST_CASE("exp_f32 never falls as its argument rises, near 0 and where the exponent changes", "[math]") {
  for (const float from : {-1.0F, -0.4F, -0.35F, 0.34F, 0.35F, 1.0F, 10.0F}) {
    float x = from;
    for (int i = 0; i < 20000; ++i) {
      const float next = std::nextafter(x, 100.0F);
      REQUIRE(exp_f32(x) <= std::nextafter(exp_f32(next), 1e30F));  // up to the last place
      x = next;
    }
  }
}

TEST_CASE("sigmoid and silu", "[math][identity]") {
  using memra::detail::sigmoid_f32;
  using memra::detail::silu_f32;
  CHECK(sigmoid_f32(0.0F) == 0.5F);
  CHECK(sigmoid_f32(100.0F) == 1.0F);
  CHECK(sigmoid_f32(-100.0F) == 0.0F);
  CHECK(std::isnan(sigmoid_f32(std::nanf(""))));
  CHECK(silu_f32(0.0F) == 0.0F);
  CHECK(silu_f32(200.0F) == 200.0F);
  CHECK(f32_bits(silu_f32(-200.0F)) == 0x80000000U);
  double worst = 0;
  for (float x = -80.0F; x < 80.0F; x += 0.0137F) {
    const double want = 1.0 / (1.0 + std::exp(-static_cast<double>(x)));
    worst = std::max(worst, error_in_ulps(sigmoid_f32(x), want));
    worst = std::max(worst, error_in_ulps(silu_f32(x), static_cast<double>(x) * want));
  }
  CHECK(worst < 3.0);
}

TEST_CASE("wide exp, sigmoid and silu have the scalar bits", "[math][identity]") {
  compare_with_scalar<memra::detail::NativeSimd>();
  compare_with_scalar<PortableSimd>();
#if defined(__GNUC__)
  compare_with_scalar<memra::detail::VectorSimd<16>>();
#if defined(__AVX2__)
  compare_with_scalar<memra::detail::VectorSimd<32>>();
#endif
#endif
  std::vector<float> x(37);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) * 0.7F - 11.0F;
  std::vector<float> y = x;
  exp_f32(y.data(), y.data(), y.size());  // in place, with a tail
  for (std::size_t i = 0; i < x.size(); ++i) REQUIRE(f32_bits(y[i]) == f32_bits(exp_f32(x[i])));
}

TEST_CASE("lane operations do not depend on the register width", "[simd][identity]") {
  compare_lanes<memra::detail::NativeSimd>(21);
#if defined(__GNUC__)
  compare_lanes<memra::detail::VectorSimd<16>>(22);
#if defined(__AVX2__)
  compare_lanes<memra::detail::VectorSimd<32>>(23);
#endif
#endif
}

TEST_CASE("a sum folds lanes at distance 8, 4, 2, 1", "[simd][identity]") {
  std::array<float, 16> x{};
  std::mt19937 random(9);
  for (float& v : x) v = std::ldexp(static_cast<float>(random() % 4096), static_cast<int>(random() % 24)) - 3.0F;
  std::array<float, 16> fold = x;
  for (const std::size_t half : {8U, 4U, 2U, 1U}) {
    for (std::size_t i = 0; i < half; ++i) fold[i] = fold[i] + fold[i + half];
  }
  CHECK(f32_bits(sum(F32x16<>::load(x.data()))) == f32_bits(fold[0]));
  // Red arm: another order gives other bits for these lanes.
  float ascending = 0;
  for (const float v : x) ascending += v;
  CHECK(f32_bits(ascending) != f32_bits(fold[0]));
}

TEST_CASE("a product is rounded before it is added to", "[math][identity]") {
  // (1 + 2^-12)^2 - (1 + 2^-11) is 2^-24 if the product is kept exact, 0 if it is rounded first.
  volatile float a = 1.0F + 0x1p-12F;
  volatile float c = -(1.0F + 0x1p-11F);
  CHECK(memra::detail::product(a, a) + c == 0.0F);
  CHECK(std::fma(a, a, c) == 0x1p-24F);  // red arm
  const auto v = F32x16<>::broadcast(a);
  CHECK(max_lane(v * v + F32x16<>::broadcast(c)) == 0.0F);
}
}  // namespace codec_math_test_cpp
