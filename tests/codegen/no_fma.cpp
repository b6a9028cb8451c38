// Compiled at flags that allow contraction; no_fma.sh then looks for fused instructions outside of `user_code`.
#include <cstddef>
#include <memra/codec.hpp>
#include <memra/detail/math.hpp>
#include <memra/detail/simd.hpp>
#include <memra/detail/strict_fp.hpp>

namespace {
using memra::detail::F32x16;
}

void every_codec(memra::Format f, const float* x, std::byte* b, float* y, std::size_t n) {
  memra::encode(f, x, b, n);
  memra::decode(f, b, y, n);
}
template <class Simd>
void codecs_of(const float* x, std::byte* b, float* y, std::size_t n) {
  using memra::Format;
  using memra::detail::BlockCursor;
  using memra::detail::blocks_cursor;
  using memra::detail::ConstBlockCursor;
  memra::detail::encode_blocks<Format::q8_0, Simd>(x, n, blocks_cursor<BlockCursor>(Format::q8_0, b));
  memra::detail::encode_blocks<Format::q5_1, Simd>(x, n, blocks_cursor<BlockCursor>(Format::q5_1, b));
  memra::detail::encode_blocks<Format::q4_0, Simd>(x, n, blocks_cursor<BlockCursor>(Format::q4_0, b));
  memra::detail::decode_blocks<Format::q5_1, Simd>(blocks_cursor<ConstBlockCursor>(Format::q5_1, b), n, y);
}
void portable_codecs(const float* x, std::byte* b, float* y, std::size_t n) {
  codecs_of<memra::detail::PortableSimd>(x, b, y, n);
}
float scalar_math(float x) {
  return memra::detail::silu_f32(x) + memra::detail::sigmoid_f32(x);
}
void wide_math(const float* x, float* y) {
  silu_f32(F32x16<>::load(x)).store(y);
}
// Through a template and a lambda, inlined into a function of the user's own flags.
template <class T>
T dot_step(const T& a, const T& b, const T& c) {
  const auto step = [&](const T& sum) { return a * b + sum; };
  return step(c);
}
float dot(const float* a, const float* b, std::size_t n) {
  F32x16<> s = F32x16<>::zero();
  for (std::size_t i = 0; i < n; i += 16) s = dot_step(F32x16<>::load(a + i), F32x16<>::load(b + i), s);
  return sum(s);
}
float scalar_dot(const float* a, const float* b, std::size_t n) {
  float s = 0;
  for (std::size_t i = 0; i < n; ++i) s += memra::detail::product(a[i], b[i]);
  return s;
}

// The user's own arithmetic after our headers keeps the user's options: this one must be fused.
extern "C" float user_code(float a, float b, float c) {
  return a * b + c;
}
