// Matrix instructions, matrix loads and asynchronous copies, as attend uses them: sm_80 and later.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

namespace memra::detail {

/// D[16][8] += A[16][16] * B[16][8], f32 sums. Lane 4 g + t holds of A rows g and g + 8, columns 2 t, 2 t + 1 and those
/// plus 8; of B the same rows of column g; of D rows g and g + 8, columns 2 t and 2 t + 1. A column of D depends on
/// that column of B and on A alone.
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

/// The same product by a warpgroup (four warps, 64 rows of A of which each warp has 16), B for all four at once from
/// shared memory as core matrices of 8 columns by 8 rows, 128 bytes: per 8 columns, rows 0 to 7, then rows 8 to 15.
/// Asynchronous: A and D are free after group_wait. For sm_90a.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MEMRA_DETAIL_GROUPS() 1
#else
#define MEMRA_DETAIL_GROUPS() 0
#endif

/// Before the first product of a batch, and whenever ordinary code wrote A or D.
__device__ inline void group_begin() {
#if MEMRA_DETAIL_GROUPS()
  asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
#endif
}
__device__ inline void group_commit() {
#if MEMRA_DETAIL_GROUPS()
  asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
#endif
}
__device__ inline void group_wait() {
#if MEMRA_DETAIL_GROUPS()
  asm volatile("wgmma.wait_group.sync.aligned 0;" : : : "memory");
#endif
}
/// How the tensor cores find B at `address`, as the low word; 16 bytes further is one more.
__device__ inline std::uint32_t group_operand(std::uint32_t address) {
  return (address >> 4) | 128U >> 4 << 16;
}
/// The high word: 256 bytes from 8 columns to the next.
inline constexpr std::uint64_t group_operand_high = std::uint64_t{256 >> 4} << 32;

#define MEMRA_DETAIL_D4(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define MEMRA_DETAIL_GROUP_MMA(shape, outputs, in, ...)                                                  \
  if constexpr (Bf16) {                                                                                  \
    asm volatile("wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 " outputs ", " in ", 1, 1, 1, 0;" \
                 : __VA_ARGS__                                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                  \
  } else {                                                                                               \
    asm volatile("wgmma.mma_async.sync.aligned." shape ".f32.f16.f16 " outputs ", " in ", 1, 1, 1, 0;"   \
                 : __VA_ARGS__                                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                  \
  }

template <bool Bf16>
__device__ inline void group_mma([[maybe_unused]] float (&d)[1][4], [[maybe_unused]] const std::uint32_t (&a)[4],
                                 [[maybe_unused]] std::uint64_t b) {
#if MEMRA_DETAIL_GROUPS()
  MEMRA_DETAIL_GROUP_MMA("m64n8k16", "{%0,%1,%2,%3}", "{%4,%5,%6,%7}, %8", MEMRA_DETAIL_D4(0))
#endif
}
template <bool Bf16>
__device__ inline void group_mma([[maybe_unused]] float (&d)[4][4], [[maybe_unused]] const std::uint32_t (&a)[4],
                                 [[maybe_unused]] std::uint64_t b) {
#if MEMRA_DETAIL_GROUPS()
  MEMRA_DETAIL_GROUP_MMA("m64n32k16", "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}",
                         "{%16,%17,%18,%19}, %20", MEMRA_DETAIL_D4(0), MEMRA_DETAIL_D4(1), MEMRA_DETAIL_D4(2),
                         MEMRA_DETAIL_D4(3))
#endif
}
template <bool Bf16>
__device__ inline void group_mma([[maybe_unused]] float (&d)[8][4], [[maybe_unused]] const std::uint32_t (&a)[4],
                                 [[maybe_unused]] std::uint64_t b) {
#if MEMRA_DETAIL_GROUPS()
  MEMRA_DETAIL_GROUP_MMA("m64n64k16",
                         "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
                         "%25,%26,%27,%28,%29,%30,%31}",
                         "{%32,%33,%34,%35}, %36", MEMRA_DETAIL_D4(0), MEMRA_DETAIL_D4(1), MEMRA_DETAIL_D4(2),
                         MEMRA_DETAIL_D4(3), MEMRA_DETAIL_D4(4), MEMRA_DETAIL_D4(5), MEMRA_DETAIL_D4(6),
                         MEMRA_DETAIL_D4(7))
#endif
}
#undef MEMRA_DETAIL_D4
#undef MEMRA_DETAIL_GROUP_MMA

/// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8 and gets of each the
/// elements [g][2 t], [g][2 t + 1], or transposed [2 t][g], [2 t + 1][g].
__device__ inline void load_matrices(std::uint32_t address, std::uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
/// The first two of them: lanes 0 to 15 give the addresses.
__device__ inline void load_matrices_2(std::uint32_t address, std::uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_turned(std::uint32_t address, std::uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
/// Where B is, for either kind of product: set once, then moved on by multiples of 16 bytes.
template <bool Group>
struct AttendOperand {
  static constexpr bool group = Group && MEMRA_DETAIL_GROUPS() != 0;
  std::uint32_t at;

  __device__ AttendOperand(std::uint32_t address, unsigned lane)
      : at(group ? group_operand(address) : address + lane * 16) {}
  /// What to add to `at` for `bytes` further on.
  __device__ static constexpr std::uint32_t step(unsigned bytes) { return group ? bytes / 16 : bytes; }
};

/// D[i] += A * B for tiles of 8 columns, B in shared memory as core matrices. A warpgroup's product if `Group` and the
/// target has it (then D is there after group_wait), else warp by warp.
/// @param b  AttendOperand::at, moved on
template <bool Group, bool Bf16, unsigned Tiles>
__device__ inline void multiply(float (&d)[Tiles][4], const std::uint32_t (&a)[4], std::uint32_t b) {
  if constexpr (AttendOperand<Group>::group) {
    group_mma<Bf16>(d, a, group_operand_high | b);
  } else {
#pragma unroll
    for (unsigned i = 0; i < Tiles; i += 2) {
      std::uint32_t r[4];
      if constexpr (Tiles == 1) {
        load_matrices_2(b, r);  // four would reach behind the operand
      } else {
        load_matrices(b + i * 256, r);
      }
      mma_16x8x16<Bf16>(d[i], a, r[0], r[1]);
      if constexpr (Tiles > 1) mma_16x8x16<Bf16>(d[i + 1], a, r[2], r[3]);
    }
  }
}

/// Stores D's tile as two core matrices: 8 columns by 16 bytes of rows 0 to 7, then of rows 8 to 15. `low` is the
/// lane's row g, `high` row g + 8, columns 2 t and 2 t + 1.
__device__ inline void store_turned(std::uint32_t address, std::uint32_t low, std::uint32_t high, unsigned lane) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};"
               :
               : "r"(address + lane % 16 * 16), "r"(low), "r"(high)
               : "memory");
#else
  std::uint32_t turned[2];
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned[0]) : "r"(low));
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned[1]) : "r"(high));
  asm volatile("st.shared.u32 [%0], %1;" : : "r"(address + lane * 4), "r"(turned[0]) : "memory");
  asm volatile("st.shared.u32 [%0], %1;" : : "r"(address + 128 + lane * 4), "r"(turned[1]) : "memory");
#endif
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
__device__ inline std::uint32_t load_shared_4(std::uint32_t address) {
  std::uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
__device__ inline std::uint32_t load_shared_byte(std::uint32_t address) {
  std::uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
__device__ inline void store_shared(std::uint32_t address, std::uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" : : "r"(address), "r"(v) : "memory");
}
__device__ inline void store_shared_byte(std::uint32_t address, std::uint32_t v) {
  asm volatile("st.shared.u8 [%0], %1;" : : "r"(address), "r"(v) : "memory");
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

// The copy engine: sm_90 and later. Its callers see to it that other devices never get there.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define MEMRA_DETAIL_COPY_ENGINE() 1
#else
#define MEMRA_DETAIL_COPY_ENGINE() 0
#endif

/// Threads that a multiprocessor of the target holds at a time.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
inline constexpr unsigned multiprocessor_threads = 1536;
#else
inline constexpr unsigned multiprocessor_threads = 2048;
#endif

/// Waits for what the kernel before this one wrote, where this one may have begun early. Before it nothing is written
/// to global memory, and of what kernels write nothing read but by `load_now`. Every block of a kernel that lets the
/// next one begin comes here, whether it has something to do or not: so what a kernel two before wrote is there, too.
__device__ inline void wait_for_previous() {
#if MEMRA_DETAIL_COPY_ENGINE()
  asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}
/// Lets the kernel behind this one begin, when every block has come here.
__device__ inline void let_next_begin() {
#if MEMRA_DETAIL_COPY_ENGINE()
  asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}

/// A value that all lanes have, which the compiler can only know after this: what is made of it, and branches by it,
/// take the uniform registers and no thought of lanes that go apart.
template <class T>
__device__ inline T uniform(T v) {
  return __shfl_sync(0xffffffffU, v, 0);
}
/// A lane's value that stays in its register: what is a few instructions away the compiler would sooner make again in
/// every step than keep, and this it cannot.
__device__ inline std::uint32_t kept(std::uint32_t v) {
  return __shfl_sync(0xffffffffU, v, static_cast<int>(threadIdx.x % 32));
}
/// Whether `x` of any thread of the block: a barrier.
__device__ inline bool block_any(bool x) {
  return __any_sync(0xffffffffU, __syncthreads_or(x) != 0) != 0;
}

/// What is at `p` now. Before wait_for_previous another kernel may be writing it: then it is a guess, to be held
/// against a read behind that. Not from the first cache, nor left there.
__device__ inline std::int32_t load_now(const std::int32_t* p) {
  std::int32_t v;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
#else
  v = *static_cast<const volatile std::int32_t*>(p);
#endif
  return v;
}

/// A barrier in shared memory for `threads` arrivals and the bytes that one of them announces.
__device__ inline void barrier_make([[maybe_unused]] std::uint32_t barrier, [[maybe_unused]] unsigned threads) {
#if MEMRA_DETAIL_COPY_ENGINE()
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(barrier), "r"(threads) : "memory");
#endif
}
/// Makes barriers just made, and ordinary writes to shared memory, visible to the copy engine.
__device__ inline void barrier_publish() {
#if MEMRA_DETAIL_COPY_ENGINE()
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
#endif
}
__device__ inline void barrier_expect([[maybe_unused]] std::uint32_t barrier, [[maybe_unused]] unsigned bytes) {
#if MEMRA_DETAIL_COPY_ENGINE()
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(barrier), "r"(bytes) : "memory");
#endif
}
/// Waits for the end of the barrier's phase of parity `parity`.
__device__ inline void barrier_wait([[maybe_unused]] std::uint32_t barrier, [[maybe_unused]] unsigned parity) {
#if MEMRA_DETAIL_COPY_ENGINE()
  std::uint32_t done = 0;
  while (done == 0) {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
  }
#endif
}
/// Before a block's first copy by a map in memory that the host has written; a barrier between, for other threads'.
__device__ inline void map_acquire([[maybe_unused]] const void* map) {
#if MEMRA_DETAIL_COPY_ENGINE()
  asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" : : "l"(map) : "memory");
#endif
}
/// Copies the box whose first byte is `x` of row `y`.
__device__ inline void copy_box_async([[maybe_unused]] std::uint32_t to, [[maybe_unused]] const void* map,
                                      [[maybe_unused]] int x, [[maybe_unused]] int y,
                                      [[maybe_unused]] std::uint32_t barrier) {
#if MEMRA_DETAIL_COPY_ENGINE()
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               :
               : "r"(to), "l"(map), "r"(x), "r"(y), "r"(barrier)
               : "memory");
#endif
}

/// 2^x by the hardware: relative error below 2^-22, results below the smallest normal number are 0.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// (x & mask) ^ with, and (x & mask) | with, in one instruction: given two constants the compiler takes two.
__device__ inline std::uint32_t and_xor(std::uint32_t x, std::uint32_t mask, std::uint32_t with) {
  std::uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(r) : "r"(x), "r"(mask), "r"(with));
  return r;
}
__device__ inline std::uint32_t and_or(std::uint32_t x, std::uint32_t mask, std::uint32_t with) {
  std::uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(r) : "r"(x), "r"(mask), "r"(with));
  return r;
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

#undef MEMRA_DETAIL_COPY_ENGINE
#undef MEMRA_DETAIL_GROUPS
