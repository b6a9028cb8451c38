// The red arm of isa.awk: kernels that do what tuned ones must not. Compiled, never run.
#include <hip/hip_runtime.h>

#include <cstddef>
#include <cstdint>

/// Registers indexed by a number that is not known: memory of its own.
__global__ void HipRedScratch(float* out, const int* which) {
  float x[64];
  for (int i = 0; i < 64; ++i) x[i] = out[i * 7];
  for (int i = 0; i < 64; ++i) x[which[i] & 63] += 1.0F;
  for (int i = 0; i < 64; ++i) out[i] = x[which[i + 64] & 63];
}

/// A portable kernel that runs in every step and does the same.
struct PortableConv {
  float* out;
  const int* which;
};
template <class Body>
__global__ void gpu_items(Body b) {
  float x[64];
  for (int i = 0; i < 64; ++i) x[i] = b.out[i * 7];
  for (int i = 0; i < 64; ++i) x[b.which[i] & 63] += 1.0F;
  for (int i = 0; i < 64; ++i) b.out[i] = x[b.which[i + 64] & 63];
}
template __global__ void gpu_items<PortableConv>(PortableConv);

/// A scan that does not know its neighbours, and counts in 32 bits.
__global__ void HipRedHipScan(float* out) {
  out[threadIdx.x] = 1.0F;
}

/// Draft attention whose lanes do not either.
__global__ void HipRedHipDraft(float* out) {
  out[threadIdx.x] = 2.0F;
}

/// A row number times a stride in 32 bits.
__global__ void HipRedNarrow(float* out, std::uint32_t stride) {
  out[threadIdx.x * stride] = 1.0F;
}

/// Lanes that exchange values through shared memory.
__global__ void HipRedPermute(float* out) {
  out[threadIdx.x] = __shfl_xor(out[threadIdx.x], 1);
}

/// A pointer that may be to anything.
__global__ void HipRedGeneric(float* out, const int* which) {
  __shared__ float mine[64];
  mine[threadIdx.x] = out[threadIdx.x + 64];
  __syncthreads();
  float* p = which[0] != 0 ? mine : out;
  p[which[threadIdx.x]] = 1.0F;
  out[threadIdx.x] = mine[threadIdx.x ^ 1];
}
