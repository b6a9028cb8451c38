// Integers as bytes: little-endian, of fixed width, and read only where there are enough bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace memra::detail {

class WireWriter {
 public:
  void u8(std::uint8_t v) { number(v, 1); }
  void u32(std::uint32_t v) { number(v, 4); }
  void u64(std::uint64_t v) { number(v, 8); }
  void bytes(std::span<const std::byte> b) { out_.insert(out_.end(), b.begin(), b.end()); }
  std::vector<std::byte> take() noexcept { return std::move(out_); }

 private:
  void number(std::uint64_t v, unsigned width) {
    for (unsigned i = 0; i < width; ++i) out_.push_back(static_cast<std::byte>(v >> (8 * i) & 0xff));
  }
  std::vector<std::byte> out_;
};

/// Once something was missing, ok() is false and every number is 0: read everything, ask once, use nothing before.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> in) noexcept : in_(in) {}

  bool ok() const noexcept { return ok_; }
  std::size_t left() const noexcept { return in_.size(); }
  std::uint8_t u8() noexcept { return static_cast<std::uint8_t>(number(1)); }
  std::uint32_t u32() noexcept { return static_cast<std::uint32_t>(number(4)); }
  std::uint64_t u64() noexcept { return number(8); }
  void bytes(std::span<std::byte> to) noexcept {
    if (!has(to.size())) return;
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = in_[i];
    in_ = in_.subspan(to.size());
  }
  /// A count of things that take at least `each` bytes; more than there can be is as if they were missing.
  std::size_t count(std::uint64_t n, std::size_t each) noexcept {
    if (n <= in_.size() / each) return static_cast<std::size_t>(n);
    ok_ = false;
    return 0;
  }

 private:
  bool has(std::size_t n) noexcept {
    ok_ = ok_ && n <= in_.size();
    return ok_;
  }
  std::uint64_t number(std::size_t width) noexcept {
    if (!has(width)) return 0;
    std::uint64_t v = 0;
    for (std::size_t i = 0; i < width; ++i) v |= std::to_integer<std::uint64_t>(in_[i]) << (8 * i);
    in_ = in_.subspan(width);
    return v;
  }
  std::span<const std::byte> in_;
  bool ok_ = true;
};

}  // namespace memra::detail
