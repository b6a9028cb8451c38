// Many copies as few strided ones: pieces of equal planes lie at equal distances, and one call moves all of those.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>

namespace memra::detail {

/// The first period * height items of a batch: item j of them, j < period, begins a strided copy of `height` pieces
/// that are `period` items apart. height 1: items that form no pattern.
struct CopyBlock {
  std::size_t period = 1;
  std::size_t height = 1;
};

/// Distance of two addresses; huge if the second one is not the later.
inline std::size_t pitch_between(const std::byte* a, const std::byte* b) noexcept {
  return static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(b) - reinterpret_cast<std::uintptr_t>(a));
}

/// The block that saves most calls at the start of a batch. K and V planes and the columns of their sub-planes, layer
/// after layer, are a period: 22 for eight heads of 128 in q8_0 and q5_1, and twice that for two kinds of layers in
/// turn.
/// @param longest  bytes that a pitch may have
/// @pre n != 0
inline CopyBlock copy_block(const CopyItem* items, std::size_t n, std::size_t longest) noexcept {
  constexpr std::size_t longest_period = 64;
  CopyBlock best;
  for (std::size_t p = 1; p <= longest_period && 2 * p <= n; ++p) {
    const auto continues = [&](std::size_t row) {
      for (std::size_t j = 0; j < p; ++j) {
        const CopyItem& before = items[(row - 1) * p + j];
        const CopyItem& now = items[row * p + j];
        const std::size_t dst = pitch_between(before.dst, now.dst);
        const std::size_t src = pitch_between(before.src, now.src);
        if (now.bytes != before.bytes || dst < now.bytes || src < now.bytes || dst > longest || src > longest ||
            dst != pitch_between(items[j].dst, items[p + j].dst) ||
            src != pitch_between(items[j].src, items[p + j].src)) {
          return false;
        }
      }
      return true;
    };
    std::size_t height = 1;
    while ((height + 1) * p <= n && continues(height)) ++height;
    if (p * (height - 1) > best.period * (best.height - 1)) best = {p, height};
  }
  return best;
}

/// Every item, in one call where the device has one. @pre no item touches what another one writes
template <class Dev>
Status copy_all(Dev& dev, const CopyItem* items, std::size_t n) noexcept {
  if constexpr (BatchedCopyDev<Dev>) {
    return dev.copy_batch(items, n);
  } else {
    for (std::size_t i = 0; i < n; ++i) {
      if (Status s = dev.copy(items[i].dst, items[i].src, items[i].bytes); !s) return s;
    }
    return {};
  }
}

}  // namespace memra::detail
