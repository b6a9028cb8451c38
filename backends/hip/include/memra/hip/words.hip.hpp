// Loads and stores as wide as the address allows, of bytes that are floats, blocks or anything else.
#pragma once

#include <hip/hip_runtime.h>

#include <cstddef>
#include <cstdint>

namespace memra::detail {

/// N words that are read or written at once; the address is a multiple of their size.
template <unsigned N>
struct __attribute__((may_alias, aligned(4 * N))) Words {
  std::uint32_t at[N];
};
template <unsigned N>
struct __attribute__((may_alias, aligned(4 * N))) Floats {
  float at[N];
};
struct __attribute__((may_alias, aligned(2))) HalfWord {
  std::uint16_t at;
};

__device__ inline std::uint16_t load_half_word(const std::byte* p) {
  return reinterpret_cast<const HalfWord*>(p)->at;
}
__device__ inline void store_half_word(std::byte* p, std::uint16_t v) {
  reinterpret_cast<HalfWord*>(p)->at = v;
}

/// N words; `Aligned`: the address is a multiple of their size, up to sixteen bytes, else of two.
template <unsigned N, bool Aligned>
__device__ inline void load_words(const std::byte* p, std::uint32_t (&w)[N]) {
  if constexpr (Aligned) {
    constexpr unsigned at_once = N < 4 ? N : 4;
    for (unsigned i = 0; i < N; i += at_once) {
      const Words<at_once> v = *reinterpret_cast<const Words<at_once>*>(p + 4 * i);
      for (unsigned j = 0; j < at_once; ++j) w[i + j] = v.at[j];
    }
  } else {
    for (unsigned i = 0; i < N; ++i) {
      w[i] = std::uint32_t{load_half_word(p + 4 * i)} | std::uint32_t{load_half_word(p + 4 * i + 2)} << 16;
    }
  }
}

}  // namespace memra::detail
