// How lanes of a wave exchange values: within rows of sixteen, by data-parallel primitives (DPP).
//
// A row is the same on every generation from gfx9 on and costs no more than the instruction that uses the value. A wave
// of 32 has two rows, one of 64 has four: kernels that keep to rows do not know which, and give the same bits on both.
// All sixteen lanes must take part.
#pragma once

#include <hip/hip_runtime.h>

#include <cstdint>
#include <memra/detail/half.hpp>

namespace memra::detail {

inline constexpr unsigned row_lanes = 16;

template <int Control>
__device__ inline std::uint32_t row_move(std::uint32_t x) {
  return static_cast<std::uint32_t>(__builtin_amdgcn_update_dpp(0, static_cast<int>(x), Control, 0xF, 0xF, true));
}
template <int Control>
__device__ inline float row_move(float x) {
  return f32_from_bits(row_move<Control>(f32_bits(x)));
}

/// What lane (i - n) mod 16 of the row has.
template <int N, class T>
__device__ inline T row_rotate(T x) {
  return row_move<0x120 + N>(x);
}

/// What lane i xor Distance has.
template <unsigned Distance, class T>
__device__ inline T row_partner(T x) {
  static_assert(Distance == 1 || Distance == 2 || Distance == 4);
  constexpr int quad_1032 = 0xB1;
  constexpr int quad_2301 = 0x4E;
  constexpr int quad_3210 = 0x1B;
  constexpr int half_mirror = 0x141;  // lane 7 - i of the eight
  if constexpr (Distance == 1) return row_move<quad_1032>(x);
  if constexpr (Distance == 2) return row_move<quad_2301>(x);
  if constexpr (Distance == 4) return row_move<quad_3210>(row_move<half_mirror>(x));
}

/// Lane i takes the sum of lanes i and i + 8, then + 4, + 2, + 1: the host's order of every horizontal sum, in all
/// lanes.
__device__ inline float row_sum(float x) {
  x = x + row_rotate<8>(x);
  x = x + row_rotate<4>(x);
  x = x + row_rotate<2>(x);
  return x + row_rotate<1>(x);
}

}  // namespace memra::detail
