// product() and quotient() inside the device pass of a GPU compiler. Included by <memra/detail/strict_fp.hpp> only.
#pragma once

namespace memra::detail {

#if defined(__CUDA_ARCH__)
/// ptxas may merge a plain mul.f32; it never merges the explicitly rounded one.
__device__ inline float gpu_product(float a, float b) noexcept {
  return __fmul_rn(a, b);
}
__device__ inline float gpu_quotient(float a, float b) noexcept {
  return __fdiv_rn(a, b);
}
#else
/// HIP's __fmul_rn is a plain product: hide the result in a vector register instead.
__device__ inline float gpu_product(float a, float b) noexcept {
  float r = a * b;
  __asm__("" : "+v"(r));
  return r;
}
__device__ inline float gpu_quotient(float a, float b) noexcept {
  return __fdiv_rn(a, b);
}
#endif

}  // namespace memra::detail
