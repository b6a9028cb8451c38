// What the codec tests share: files, random bit patterns, planes with memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memra/codec.hpp>
#include <random>
#include <string>
#include <vector>

namespace codec_test {

inline std::vector<std::byte> read_bytes(const std::string& name) {
  std::ifstream file(std::string(MEMRA_TEST_FIXTURES) + "/blocks/" + name, std::ios::binary);
  const std::vector<char> chars{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::byte> bytes(chars.size());
  if (!chars.empty()) std::memcpy(bytes.data(), chars.data(), chars.size());
  return bytes;
}
inline std::vector<float> read_floats(const std::string& name) {
  const std::vector<std::byte> bytes = read_bytes(name);
  std::vector<float> floats(bytes.size() / 4);
  if (!floats.empty()) std::memcpy(floats.data(), bytes.data(), floats.size() * 4);
  return floats;
}

inline bool same_bits(const float* a, const float* b, std::size_t n) {
  return std::memcmp(a, b, n * sizeof(float)) == 0;
}
/// As same_bits, but any NaN equals any NaN.
inline bool same_values(const float* a, const float* b, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    if (std::memcmp(a + i, b + i, sizeof(float)) != 0 && (a[i] == a[i] || b[i] == b[i])) return false;
  }
  return true;
}

/// Blocks of 32 inputs of very different kinds: any bits at all, one binade, tiny, huge, few distinct values, zeros of
/// both signs, with now and then a NaN or an infinity among them.
inline std::vector<float> hostile_inputs(std::size_t n_blocks, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> x(32 * n_blocks);
  for (std::size_t b = 0; b < n_blocks; ++b) {
    const auto kind = static_cast<std::uint32_t>(random() % 8);
    const auto exponent = static_cast<std::uint32_t>(random() % 255);
    for (std::size_t i = 0; i < 32; ++i) {
      auto u = static_cast<std::uint32_t>(random());
      switch (kind) {
        case 0:  // any bits
          break;
        case 1:  // one binade
          u = (u & 0x807FFFFFU) | exponent << 23;
          break;
        case 2:  // subnormals
          u &= 0x807FFFFFU;
          break;
        case 3:  // a few values of equal magnitude, and zeros
          u = (u & 0x80000000U) | (u % 3 == 0 ? 0U : 0x40400000U);
          break;
        case 4:  // zeros of both signs
          u &= 0x80000000U;
          break;
        case 5:  // never negative, many zeros of both signs
          u = u % 2 == 0 ? u & 0x80000000U : (u & 0x007FFFFFU) | 0x3F000000U;
          break;
        case 6:  // multiples of a half: ties of every rounding
          u = memra::detail::f32_bits(static_cast<float>(static_cast<std::int32_t>(u % 509) - 254) * 0.5F);
          break;
        default:  // near 1, one value far away
          u = i == exponent % 32 ? u : (u & 0x807FFFFFU) | 0x3F800000U;
          break;
      }
      x[32 * b + i] = memra::detail::f32_from_bits(u);
    }
    if (random() % 8 == 0) x[32 * b + random() % 32] = memra::detail::f32_from_bits(0x7FC12345U);
    if (random() % 8 == 0) x[32 * b + random() % 32] = memra::detail::f32_from_bits(0xFF800000U);
  }
  return x;
}

/// A plane in host memory whose bytes start as 0xEE.
struct HostPlane {
  explicit HostPlane(const memra::PlaneShape& shape)
      : bytes(memra::sub_planes(shape).bytes, std::byte{0xEE}), view{bytes.data(), shape, 0} {}
  HostPlane(const HostPlane&) = delete;
  HostPlane& operator=(const HostPlane&) = delete;

  std::vector<std::byte> bytes;
  memra::PlaneView view;
};

}  // namespace codec_test
