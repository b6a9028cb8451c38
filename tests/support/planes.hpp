// Planes over plain vectors, and small helpers that unit tests of ops share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/format.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/layout.hpp>
#include <memra/views.hpp>
#include <vector>

namespace memra_test {

/// Numbers that look random and are the same everywhere.
class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL + 0x2545F4914F6CDD1DULL) {}

  std::uint32_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<std::uint32_t>(state_ >> 32);
  }
  /// Uniform in [-1, 1).
  float uniform() { return static_cast<float>(static_cast<std::int32_t>(next())) * (1.0F / 2147483648.0F); }
  std::vector<float> vector(std::size_t n, float scale = 1.0F) {
    std::vector<float> v(n);
    for (float& x : v) x = uniform() * scale;
    return v;
  }

 private:
  std::uint64_t state_;
};

/// A plane that owns its bytes, with the 8-byte tail pad every plane of the cache has.
///
/// Every byte starts as 0xFF: NaN as an element or a scale in every format, so that a kernel which reads a row nobody
/// wrote shows it.
class Plane {
 public:
  static constexpr std::size_t tail_pad = 8;

  Plane(memra::Format format, memra::Layout layout, std::size_t rows, std::size_t width, std::size_t base = 0)
      : shape_{format, layout, rows, width}, base_(base) {
    bytes_.assign(memra::sub_planes(shape_).bytes + tail_pad, std::byte{0xFF});
  }

  memra::PlaneView view() { return {bytes_.data(), shape_, base_}; }
  memra::ConstPlaneView view() const { return {bytes_.data(), shape_, base_}; }
  std::vector<std::byte>& bytes() { return bytes_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  /// Fills one physical row with 0xFF again.
  void poison_row(std::size_t phys) {
    const memra::Segments s = memra::segments(shape_, phys, 1);
    for (std::size_t i = 0; i < s.count; ++i) std::memset(bytes_.data() + s[i].offset, 0xFF, s[i].bytes);
  }

 private:
  memra::PlaneShape shape_;
  std::size_t base_;
  std::vector<std::byte> bytes_;
};

/// True if both hold the same bits: NaN equals itself, +0 is not -0.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// Largest |a - b| / max(1, |b|); a NaN anywhere gives infinity.
inline double max_error(const std::vector<float>& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0.0 : 1e300;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const double scale = b[i] < 0 ? (b[i] < -1 ? -b[i] : 1.0) : (b[i] > 1 ? b[i] : 1.0);
    const double d = static_cast<double>(a[i]) - b[i];
    const double e = (d < 0 ? -d : d) / scale;
    if (!(e <= worst)) worst = e == e ? e : 1e300;
  }
  return worst;
}

/// Scratch of a given size, filled with NaN.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes) : bytes_(bytes, std::byte{0xFF}) {}
  memra::WorkspaceView view() { return {bytes_.data(), bytes_.size()}; }
  /// The last `n` bytes, NaN again. For many calls: pages of memory that is new for each cost more than the call.
  memra::WorkspaceView fresh(std::size_t n) {
    std::byte* const at = bytes_.data() + (bytes_.size() - n);
    std::fill_n(at, n, std::byte{0xFF});
    return {at, n};
  }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace memra_test
