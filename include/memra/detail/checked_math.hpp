// Arithmetic on sizes that come from outside: a sum or product that does not fit is reported, never wrapped.
#pragma once

#include <cstddef>
#include <limits>

namespace memra::detail {

/// Accumulates one flag over a chain of operations: compute everything, ask once.
class CheckedSize {
 public:
  constexpr CheckedSize(std::size_t value) noexcept : value_(value) {}  // NOLINT(google-explicit-constructor)

  constexpr bool valid() const noexcept { return valid_; }
  /// Only meaningful while valid().
  constexpr std::size_t value() const noexcept { return value_; }

  friend constexpr CheckedSize operator+(CheckedSize a, CheckedSize b) noexcept {
    CheckedSize r(a.value_ + b.value_);
    r.valid_ = a.valid_ && b.valid_ && a.value_ <= std::numeric_limits<std::size_t>::max() - b.value_;
    return r;
  }
  friend constexpr CheckedSize operator*(CheckedSize a, CheckedSize b) noexcept {
    CheckedSize r(a.value_ * b.value_);
    r.valid_ =
        a.valid_ && b.valid_ && (b.value_ == 0 || a.value_ <= std::numeric_limits<std::size_t>::max() / b.value_);
    return r;
  }

 private:
  std::size_t value_;
  bool valid_ = true;
};

/// Rounds up to a multiple of `unit` (a power of two).
constexpr CheckedSize align_up(CheckedSize n, std::size_t unit) noexcept {
  const CheckedSize raised = n + (unit - 1);
  return raised.valid() ? CheckedSize(raised.value() & ~(unit - 1)) : raised;
}

}  // namespace memra::detail
