// Matrix instructions, matrix loads and asynchronous copies, as attend uses them: sm_80 and later.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

namespace memra::detail {

/// D[16][8] += A[16][16] * B[16][8], f32 sums. Lane 4 g + t holds of A rows g and g + 8, columns 2 t, 2 t + 1 and those
/// plus 8; of B the same rows of column g; of D rows g and g + 8, columns 2 t and 2 t + 1. A column of D depends on that
/// column of B and on A alone.
template <bool Bf16>
__device__ inline void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  if constexpr (Bf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8 and gets of each the
/// elements [g][2 t], [g][2 t + 1], or transposed [2 t][g], [2 t + 1][g].
__device__ inline void load_matrices(std::uint32_t address, std::uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_turned(std::uint32_t address, std::uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
/// Two matrices: lanes 0 to 15 give addresses.
__device__ inline void load_two_matrices(std::uint32_t address, std::uint32_t (&r)[2]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

__device__ inline uint4 load_shared_16(std::uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
__device__ inline float load_shared_half(std::uint32_t address) {
  std::uint16_t h;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(h) : "r"(address) : "memory");
  return __half2float(__ushort_as_half(h));
}
__device__ inline void store_shared(std::uint32_t address, std::uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" : : "r"(address), "r"(v) : "memory");
}
__device__ inline void store_shared_half(std::uint32_t address, std::uint16_t v) {
  asm volatile("st.shared.u16 [%0], %1;" : : "r"(address), "h"(v) : "memory");
}

/// Copies 16 or 4 bytes to shared memory without waiting; zeros if not `valid`: then `from` is not read.
__device__ inline void copy_16_async(std::uint32_t to, const std::byte* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
__device__ inline void copy_4_async(std::uint32_t to, const std::byte* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" : : "r"(to), "l"(from), "r"(valid ? 4 : 0) : "memory");
}
__device__ inline void copies_commit() {
  asm volatile("cp.async.commit_group;" : : : "memory");
}
/// Waits until at most `Pending` of this thread's newest groups are on their way.
template <unsigned Pending>
__device__ inline void copies_wait() {
  asm volatile("cp.async.wait_group %0;" : : "n"(Pending) : "memory");
}

/// 2^x by the hardware: relative error below 2^-22, results below the smallest normal number are 0.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Two floats, each rounded to nearest even; the first in the low half.
template <bool Bf16>
__device__ inline std::uint32_t pack_halves(float low, float high) {
  std::uint32_t r;
  if constexpr (Bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  }
  return r;
}

}  // namespace memra::detail
