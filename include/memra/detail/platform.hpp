// The four macros every other header relies on, and the compiler checks that numeric identity needs.
#pragma once

#if defined(__FAST_MATH__)
#error "memra: -ffast-math is set; results would no longer be defined to the last bit. Build without it."
#elif defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__)
#error "memra: -funsafe-math-optimizations, or a part of it, is set; results would not be defined. Build without it."
#endif

/// Marks a function callable from host and device code.
#if defined(__CUDACC__) || defined(__HIPCC__)
#define MEMRA_HD __host__ __device__
#else
#define MEMRA_HD
#endif

/// 1 when this translation unit is read by a compiler that can emit device code.
#if defined(__CUDACC__) || defined(__HIPCC__)
#define MEMRA_DEVICE_COMPILE() 1
#else
#define MEMRA_DEVICE_COMPILE() 0
#endif

/// 1 inside the device pass of such a compiler.
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define MEMRA_ON_DEVICE() 1
#else
#define MEMRA_ON_DEVICE() 0
#endif

/// Pointer qualifier: the pointee is reached through no other pointer of the function.
#define MEMRA_RESTRICT __restrict__
