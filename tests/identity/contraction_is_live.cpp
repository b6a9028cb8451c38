// The red arm of every [identity] test: in this build unprotected arithmetic does come out differently.
// If this fails, the flags no longer allow contraction and the identity tests prove nothing.
#include <cmath>
#include <support/catch.hpp>

#if !defined(__FMA__) || !defined(__AVX2__)
#error "the identity tests need -march=x86-64-v3"
#endif

namespace {

__attribute__((noinline)) float unprotected(float a, float b, float c) {
  return a * b + c;
}

}  // namespace

TEST_CASE("unprotected arithmetic is contracted in this build", "[identity]") {
  // a*b = 1 + 2^-11 + 2^-24 exactly; rounded to f32 the last term is lost, fused it survives.
  volatile float x = 1.0F + 0x1p-12F;
  volatile float product = x * x;
  const float rounded = product - (1.0F + 0x1p-11F);
  const float fused = unprotected(x, x, -(1.0F + 0x1p-11F));
  REQUIRE(rounded == 0.0F);
  REQUIRE(fused == 0x1p-24F);
  REQUIRE(fused == std::fma(x, x, -(1.0F + 0x1p-11F)));
}
