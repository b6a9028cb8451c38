// A checksum that threads can take in any order: every 8 bytes are mixed with where they are, and the results added.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/detail/platform.hpp>
#include <memra/launch.hpp>
#include <span>

namespace memra::detail {

static_assert(std::endian::native == std::endian::little, "memra: state is handed over as little-endian bytes");

/// Word number `at` of a piece. For one `at` no two words give the same (each step can be undone), so that a change
/// within a word is always noticed; the multiplier is a prime-like odd number with its bits well spread, the addend
/// 2^64 over the golden ratio.
MEMRA_HD constexpr std::uint64_t mix_word(std::uint64_t word, std::uint64_t at) noexcept {
  std::uint64_t x = word + (at + 1) * 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93U;
  return (x ^ (x >> 32)) * 0xD6E8FEB86659FD93U;
}

/// `n` bytes, at most 8, as a word, zeroes above.
MEMRA_HD inline std::uint64_t short_word(const std::uint8_t* p, std::size_t n) noexcept {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < n; ++i) word |= static_cast<std::uint64_t>(p[i]) << (8 * i);
  return word;
}

/// Sum over part of a piece, in host memory.
/// @param first_word  number of the part's first word in the piece; parts but the last are whole words
inline std::uint64_t checksum(std::span<const std::byte> part, std::uint64_t first_word = 0) noexcept {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(part.data());
  const std::size_t words = part.size() / 8;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < words; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + 8 * i, 8);
    sum += mix_word(word, first_word + i);
  }
  if (part.size() % 8 != 0) {
    sum += mix_word(short_word(bytes + 8 * words, part.size() % 8), first_word + words);
  }
  return sum;
}

/// Part of a piece on a device.
struct ChecksumSpan {
  const std::uint8_t* data;
  std::uint64_t bytes;
  std::uint64_t first_word;
};

/// Two words, which a device loads at once.
struct alignas(16) WordPair {
  std::uint64_t low;
  std::uint64_t high;
};

/// Words 2 i and 2 i + 1, at the cost of 16 loads where the memory is not 16-byte aligned, as rows of a ring may be.
MEMRA_HD inline WordPair word_pair(const std::uint8_t* p, std::uint64_t i) noexcept {
#if MEMRA_ON_DEVICE()
  if (reinterpret_cast<std::uintptr_t>(p) % sizeof(WordPair) == 0) return reinterpret_cast<const WordPair*>(p)[i];
#endif
  return {short_word(p + 16 * i, 8), short_word(p + 16 * i + 8, 8)};
}

/// Item (lane, span): word pairs lane, lane + lanes, ... of a span, so that neighbouring threads read neighbouring
/// ones.
struct ChecksumBody {
  const ChecksumSpan* spans;
  std::uint64_t* sums;  ///< [spans][lanes]
  std::size_t lanes;

  MEMRA_HD void operator()(const Item& item) const noexcept {
    const ChecksumSpan span = spans[item.y];
    const std::uint64_t pairs = span.bytes / 16;
    std::uint64_t sum = 0;
    for (std::uint64_t i = item.x; i < pairs; i += lanes) {
      const WordPair w = word_pair(span.data, i);
      sum += mix_word(w.low, span.first_word + 2 * i) + mix_word(w.high, span.first_word + 2 * i + 1);
    }
    if (item.x == 0) {  // what is left: up to 15 bytes, as one word or two
      for (std::uint64_t at = 16 * pairs; at < span.bytes; at += 8) {
        const std::uint64_t n = span.bytes - at < 8 ? span.bytes - at : 8;
        sum += mix_word(short_word(span.data + at, n), span.first_word + at / 8);
      }
    }
    sums[item.y * lanes + item.x] = sum;
  }
};

/// Item (lane, span): adds every `keep`-th sum of a span to the first `keep` of them.
struct ChecksumFoldBody {
  std::uint64_t* sums;  ///< [spans][lanes]
  std::uint64_t* out;   ///< [spans][keep]
  std::size_t lanes;
  std::size_t keep;

  MEMRA_HD void operator()(const Item& item) const noexcept {
    std::uint64_t sum = 0;
    for (std::size_t i = item.x; i < lanes; i += keep) sum += sums[item.y * lanes + i];
    out[item.y * keep + item.x] = sum;
  }
};

}  // namespace memra::detail
