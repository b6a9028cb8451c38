// Bytes in and out of a device under test, and numbers that look random.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/error.hpp>
#include <vector>

namespace memra_conformance {

using Bytes = std::vector<std::byte>;

/// xorshift: the same numbers everywhere.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL + 1) {}
  std::size_t below(std::size_t n) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<std::size_t>(state_ >> 11) % n;
  }
  std::byte byte() { return static_cast<std::byte>(below(256)); }
  Bytes bytes(std::size_t n) {
    Bytes b(n);
    for (std::byte& x : b) x = byte();
    return b;
  }
  /// In [-1, 1).
  float real() { return static_cast<float>(below(1U << 24)) / static_cast<float>(1U << 23) - 1.0F; }
  std::vector<float> reals(std::size_t n) {
    std::vector<float> v(n);
    for (float& x : v) x = real();
    return v;
  }

 private:
  std::uint64_t state_;
};

/// Device memory as the host sees it; empty if the download failed.
template <class Dev>
Bytes read(Dev& dev, const std::byte* at, std::size_t n) {
  Bytes b(n);
  if (!dev.download(b.data(), at, n)) b.clear();
  return b;
}

inline bool all(const Bytes& b, std::size_t n, std::byte value) {
  if (b.size() != n) return false;
  for (const std::byte x : b) {
    if (x != value) return false;
  }
  return true;
}

/// AddressSanitizer ends the program instead of refusing an allocation that is far too large, and shadows every page.
constexpr bool under_address_sanitizer() {
#if defined(__SANITIZE_ADDRESS__)
  return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
  return true;
#else
  return false;
#endif
#else
  return false;
#endif
}

}  // namespace memra_conformance
