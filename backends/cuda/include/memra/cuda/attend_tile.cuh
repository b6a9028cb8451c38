// From packed bytes to operands of the matrix instructions.
//
// Which element of a 32-element group is which column or row of an operand is free, as long as Q and K, or V and the
// output, agree on it. The choices here make each lane's elements come out of the words that a matrix load gives it.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstddef>
#include <cstdint>
#include <memra/cuda/attend_mma.cuh>
#include <memra/format.hpp>

namespace memra::detail {

/// What attend knows of a format, at compile time.
template <Format F>
struct AttendFormat {
  static constexpr bool bf16 = F == Format::bf16;
  static constexpr bool blocks = F == Format::q8_0 || F == Format::q5_1 || F == Format::q4_0;
  static constexpr bool nibbles = F == Format::q5_1 || F == Format::q4_0;
  static constexpr bool bytes = F == Format::q8_0 || F == Format::fp8_e4m3;
  /// Bytes of the quants, or elements, of 32 elements.
  static constexpr unsigned group_bytes = nibbles ? 16 : bytes ? 32 : 64;
  /// Scales, and offsets, up to which every value of a block fits into a half.
  static constexpr float most_scale = F == Format::q8_0 ? 511.0F : F == Format::q4_0 ? 8000.0F : 1000.0F;
  static constexpr float most_offset = 32000.0F;

  /// Whether a word of elements holds an infinity or NaN.
  __device__ static bool wild(std::uint32_t w) {
    if constexpr (F == Format::fp8_e4m3) {
      return (w & 0x7FU) == 0x7FU || (w >> 8 & 0x7FU) == 0x7FU || (w >> 16 & 0x7FU) == 0x7FU ||
             (w >> 24 & 0x7FU) == 0x7FU;
    } else {
      constexpr std::uint32_t exponent = F == Format::bf16 ? 0x7F80U : 0x7C00U;
      return (w & exponent) == exponent || (w >> 16 & exponent) == exponent;
    }
  }
};

/// Lower and upper half of a pair as half2, exactly `pair`'s integers less `bias`.
__device__ inline std::uint32_t half2_bits(__half2 h) {
  return *reinterpret_cast<std::uint32_t*>(&h);
}
__device__ inline __half2 half2_of(std::uint32_t bits) {
  return *reinterpret_cast<__half2*>(&bits);
}
__device__ inline __half2 half2_twice(float x) {
  return __float2half2_rn(x);
}

/// Bytes 0 and 2 of a word of int8 as halves, exact: 1024 + (q + 128) is a half whose last bits are the byte with its
/// sign bit turned over.
__device__ inline __half2 int8_pair(std::uint32_t w) {
  return __hsub2(half2_of(and_xor(w, 0x00FF00FFU, 0x64806480U)), half2_twice(1152.0F));
}
/// Bytes 0 and 1 of a word of e4m3 as halves, exact.
__device__ inline std::uint32_t fp8_pair(std::uint32_t w) {
  const __half2_raw h = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(w & 0xFFFFU), __NV_E4M3);
  return std::uint32_t{h.x} | std::uint32_t{h.y} << 16;
}
/// Nibbles 0 and 4 (bits 0..3 and 16..19) of a word less 8, exact.
__device__ inline __half2 low_nibbles(std::uint32_t w) {
  return __hsub2(half2_of(and_or(w, 0x000F000FU, 0x64006400U)), half2_twice(1032.0F));
}
/// Nibbles 1 and 5 less 8: they come as 1024 + 16 q.
__device__ inline __half2 high_nibbles(std::uint32_t w) {
  return __hfma2(half2_of(and_or(w, 0x00F000F0U, 0x64006400U)), half2_twice(0.0625F), half2_twice(-72.0F));
}

/// K as left operand: 16 keys by 64 elements of a head (two groups, two steps of 16 each), without the blocks' scales.
template <Format F>
struct AttendKeys {
  using Facts = AttendFormat<F>;

  /// Element of the group at place `half` of register `reg` of Q's fragment for step `step` of 16, lane part t.
  __device__ static unsigned element(unsigned step, unsigned t, unsigned reg, unsigned half) {
    if constexpr (F == Format::fp8_e4m3) return 16 * step + 4 * t + 2 * reg + half;
    if constexpr (Facts::blocks) return 16 * step + 4 * t + reg + 2 * half;
    return 16 * step + 2 * t + 8 * reg + half;
  }

  /// Two of the four elements d .. d + 3 of 16 (d a multiple of 4) that are neighbours in a lane's register, and where.
  struct Pair {
    unsigned t, reg, first, second;
  };
  __device__ static Pair place(unsigned d, unsigned n) {
    if constexpr (F == Format::fp8_e4m3) return {d / 4, n, 2 * n, 2 * n + 1};
    if constexpr (Facts::blocks) return {d / 4, n, n, n + 2};
    return {d % 8 / 2 + n, d / 8, 2 * n, 2 * n + 1};
  }

  /// @param at  address of this lane's row for matrix loads of 32 bytes of 16 keys: lane l has piece l / 16 of key
  ///            l % 16, counted from the pair's first
  __device__ static void load(std::uint32_t at, std::uint32_t (&a)[2][2][4]) {
    if constexpr (Facts::nibbles) {
      std::uint32_t r[4];
      load_matrices(at, r);
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        a[i / 2][0][i % 2] = half2_bits(low_nibbles(r[i]));
        a[i / 2][0][i % 2 + 2] = half2_bits(low_nibbles(r[i] >> 8));
        a[i / 2][1][i % 2] = half2_bits(high_nibbles(r[i]));
        a[i / 2][1][i % 2 + 2] = half2_bits(high_nibbles(r[i] >> 8));
      }
    } else if constexpr (Facts::bytes) {
#pragma unroll
      for (unsigned group = 0; group < 2; ++group) {
        std::uint32_t r[4];
        load_matrices(at ^ (group * 32), r);
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          if constexpr (F == Format::q8_0) {
            a[group][i / 2][i % 2] = half2_bits(int8_pair(r[i]));
            a[group][i / 2][i % 2 + 2] = half2_bits(int8_pair(r[i] >> 8));
          } else {
            a[group][i / 2][i % 2] = fp8_pair(r[i]);
            a[group][i / 2][i % 2 + 2] = fp8_pair(r[i] >> 16);
          }
        }
      }
    } else {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) load_matrices(at ^ (i * 32), a[i / 2][i % 2]);
    }
  }
};

/// V as left operand, turned: 32 elements of a head (two tiles of 16 rows) by 32 keys (two steps of 16), decoded.
template <Format F>
struct AttendValues {
  using Facts = AttendFormat<F>;

  /// Element of the group that D's row g + 8 * half of tile `tile` stands for.
  __host__ __device__ static constexpr unsigned element(unsigned tile, unsigned g, unsigned half) {
    return Facts::blocks || Facts::bytes ? 16 * tile + 2 * g + half : 16 * tile + 8 * half + g;
  }

  /// The piece of a key's quants that a lane's address for matrix loads is of, and the key, of group `group`.
  __device__ static unsigned lane_piece(unsigned lane, unsigned group) {
    return Facts::nibbles ? group : group * (Facts::group_bytes / 16) + lane / 16;
  }
  __device__ static unsigned lane_key(unsigned lane) { return Facts::nibbles ? lane : lane % 16; }

  /// Of fifth bits, which bytes of two keys' words have a lane's, and by how much those are too high.
  __device__ static uint2 lane_bits(unsigned lane) { return {lane < 16 ? 0x6420U : 0x7531U, lane / 4 % 4 * 2}; }

  /// @param quants  address of this lane's row for the first of the 32 keys
  /// @param width   bytes from key to key
  /// @param scales  address of key 2 t's word; keys are Wide bytes apart; fifths likewise
  /// @param upper   whether the scale is the word's upper half
  /// @param bits    lane_bits
  template <unsigned Wide>
  __device__ static void load(std::uint32_t quants, unsigned width, std::uint32_t scales, std::uint32_t fifths,
                              bool upper, uint2 bits, std::uint32_t (&a)[2][2][4]) {
    if constexpr (Facts::nibbles) {
      std::uint32_t r[4];
      load_matrices_turned(quants, r);
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {  // eight keys at a time
        const std::uint32_t s0 = load_shared_4(scales + i * 8 * Wide);
        const std::uint32_t s1 = load_shared_4(scales + i * 8 * Wide + Wide);
        if constexpr (F == Format::q5_1) {
          const std::uint32_t f0 = load_shared_4(fifths + i * 8 * Wide);
          const std::uint32_t f1 = load_shared_4(fifths + i * 8 * Wide + Wide);
          q5_1(r[i], s0, s1, f0, f1, bits, a[i / 2], i % 2 * 2);
        } else {
          q4_0(r[i], scale_pair(s0, s1, upper), a[i / 2], i % 2 * 2);
        }
      }
    } else if constexpr (Facts::bytes) {
#pragma unroll
      for (unsigned step = 0; step < 2; ++step) {
        std::uint32_t r[4];
        load_matrices_turned(quants + step * 16 * width, r);
        if constexpr (F == Format::q8_0) {
          __half2 d[2];
#pragma unroll
          for (unsigned i = 0; i < 2; ++i) {
            d[i] = scale_pair(load_shared_4(scales + (2 * step + i) * 8 * Wide),
                              load_shared_4(scales + (2 * step + i) * 8 * Wide + Wide), upper);
          }
#pragma unroll
          for (unsigned i = 0; i < 4; ++i) {
            a[step][i / 2][i % 2 * 2] = half2_bits(__hmul2(int8_pair(r[i]), d[i % 2]));
            a[step][i / 2][i % 2 * 2 + 1] = half2_bits(__hmul2(int8_pair(r[i] >> 8), d[i % 2]));
          }
        } else {
#pragma unroll
          for (unsigned i = 0; i < 4; ++i) {  // bytes 0 and 2, then 1 and 3
            const std::uint32_t w = __byte_perm(r[i], 0, 0x3120);
            a[step][i / 2][i % 2 * 2] = fp8_pair(w);
            a[step][i / 2][i % 2 * 2 + 1] = fp8_pair(w >> 16);
          }
        }
      }
    } else {
#pragma unroll
      for (unsigned step = 0; step < 2; ++step) {
#pragma unroll
        for (unsigned tile = 0; tile < 2; ++tile) {
          std::uint32_t r[4];
          load_matrices_turned((quants + step * 16 * width) ^ (tile * 32), r);
          a[step][tile][0] = r[0];
          a[step][tile][1] = r[2];
          a[step][tile][2] = r[1];
          a[step][tile][3] = r[3];
        }
      }
    }
  }

 private:
  /// Scales of two keys, from words that hold those of two groups.
  __device__ static __half2 scale_pair(std::uint32_t first, std::uint32_t second, bool upper) {
    return half2_of(__byte_perm(first, second, upper ? 0x7632 : 0x5410));
  }

  /// A word of turned nibbles: of two keys (low and high half), bytes 2 g and 2 g + 1 of a block.
  __device__ static void q4_0(std::uint32_t w, __half2 d, std::uint32_t (&a)[2][4], unsigned at) {
    a[0][at] = half2_bits(__hmul2(low_nibbles(w), d));
    a[0][at + 1] = half2_bits(__hmul2(low_nibbles(w >> 8), d));
    a[1][at] = half2_bits(__hmul2(high_nibbles(w), d));
    a[1][at + 1] = half2_bits(__hmul2(high_nibbles(w >> 8), d));
  }

  __device__ static void q5_1(std::uint32_t w, std::uint32_t s0, std::uint32_t s1, std::uint32_t f0, std::uint32_t f1,
                              uint2 bits, std::uint32_t (&a)[2][4], unsigned at) {
    const __half2 d = half2_of(__byte_perm(s0, s1, 0x5410));
    const __half2 m = half2_of(__byte_perm(s0, s1, 0x7632));
    // Of each key the fifth bits of elements 2 g, 2 g + 1 (bits 0, 1 of its half) and those plus 16 (bits 8, 9).
    const std::uint32_t f = __byte_perm(f0, f1, bits.x) >> bits.y;
    // Where a nibble and its fifth bit are neighbours: 1024 plus the integer, twice that, 16 times and 32 times it.
    const std::uint32_t v = w >> 7;
    const std::uint32_t f4 = f << 4;
    constexpr std::uint32_t one = 0x64006400U;  // 1024
    const __half2 q00 = half2_of(and_or(w, 0x000F000FU, and_or(f4, 0x00100010U, one)));
    const __half2 q01 = half2_of(and_or(v, 0x001E001EU, and_or(f4, 0x00200020U, one)));
    const __half2 q10 = half2_of(and_or(w, 0x00F000F0U, and_or(f, 0x01000100U, one)));
    const __half2 q11 = half2_of(and_or(v, 0x01E001E0U, and_or(f, 0x02000200U, one)));
    const auto integer = [](__half2 x, float part) { return __hfma2(x, half2_twice(part), half2_twice(-1024 * part)); };
    a[0][at] = half2_bits(__hfma2(__hadd2(q00, half2_twice(-1024.0F)), d, m));
    a[0][at + 1] = half2_bits(__hfma2(integer(q01, 0.5F), d, m));
    a[1][at] = half2_bits(__hfma2(integer(q10, 0.0625F), d, m));
    a[1][at + 1] = half2_bits(__hfma2(integer(q11, 0.03125F), d, m));
  }
};

}  // namespace memra::detail
