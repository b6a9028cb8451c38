// What the tests on a GPU share. With MEMRA_TEST_HIP they run on HipDev, else on CudaDev.
#pragma once

#if defined(MEMRA_TEST_HIP)
#include <memra/hip/device.hpp>
#else
#include <cuda_runtime_api.h>

#include <memra/cuda/device.hpp>
#endif

#include <atomic>
#include <cstddef>
#include <memra/portable_ops.hpp>
#include <thread>
#include <utility>

namespace memra_test {

#if defined(MEMRA_TEST_HIP)
using Gpu = memra::HipDev;
using GpuApi = memra::HipApi;

/// What the tests ask of the runtime by themselves. True: it went well.
struct Native {
  static bool count(int* n) { return hipGetDeviceCount(n) == hipSuccess; }
  static bool memory(std::size_t* free, std::size_t* total) { return hipMemGetInfo(free, total) == hipSuccess; }
  static bool allocate(void** p, std::size_t n) { return hipMalloc(p, n) == hipSuccess; }
  static void release(void* p) { (void)hipFree(p); }
  static bool device_of(const void* p, int* ordinal) {
    hipPointerAttribute_t a{};
    if (hipPointerGetAttributes(&a, p) != hipSuccess) return false;
    *ordinal = a.device;
    return true;
  }
  static bool busy(hipStream_t s) { return hipStreamQuery(s) == hipErrorNotReady; }
  /// F(x) on the host, in the order of the stream. ROCm 5.2 declares hipLaunchHostFunc and does not have it.
  template <void (*F)(void*)>
  static bool call(hipStream_t s, void* x) {
    const auto f = [](hipStream_t, hipError_t, void* p) { F(p); };
    return hipStreamAddCallback(s, f, x, 0) == hipSuccess;
  }
};
#else
using Gpu = memra::CudaDev;
using GpuApi = memra::CudaApi;

/// What the tests ask of the runtime by themselves. True: it went well.
struct Native {
  static bool count(int* n) { return cudaGetDeviceCount(n) == cudaSuccess; }
  static bool memory(std::size_t* free, std::size_t* total) { return cudaMemGetInfo(free, total) == cudaSuccess; }
  static bool allocate(void** p, std::size_t n) { return cudaMalloc(p, n) == cudaSuccess; }
  static void release(void* p) { (void)cudaFree(p); }
  static bool device_of(const void* p, int* ordinal) {
    cudaPointerAttributes a{};
    if (cudaPointerGetAttributes(&a, p) != cudaSuccess || a.type != cudaMemoryTypeDevice) return false;
    *ordinal = a.device;
    return true;
  }
  static bool busy(cudaStream_t s) { return cudaStreamQuery(s) == cudaErrorNotReady; }
  template <void (*F)(void*)>
  static bool call(cudaStream_t s, void* x) {
    return cudaLaunchHostFunc(s, F, x) == cudaSuccess;
  }
};

inline memra::CudaDev make_cuda() {
  return memra::check(memra::CudaDev::create());
}
#endif

/// Every lane is a fiber of the host, every call done when it returns: fewer rounds of the same kind must do.
#if defined(MEMRA_TEST_HIP_ON_HOST)
inline constexpr bool emulated = true;
#else
inline constexpr bool emulated = false;
#endif

/// Holds a stream: what is queued behind it has certainly not run until release(). One at a time, and what runs on
/// other streams meanwhile must have run before, since the runtime may wait for all of them to load a kernel.
class Hold {
 public:
  explicit Hold(GpuApi::Stream stream) : held_(Native::call<&wait>(stream, this)) {}
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() {
    release();
    while (held_ && !done_.load()) std::this_thread::yield();
  }
  bool held() const noexcept { return held_; }
  void release() noexcept { open_.store(true); }

 private:
  static void wait(void* self) {
    auto* hold = static_cast<Hold*>(self);
    while (!hold->open_.load()) std::this_thread::yield();
    hold->done_.store(true);
  }

  std::atomic<bool> open_{false};
  std::atomic<bool> done_{false};
  bool held_;
};

inline Gpu make_gpu_with(const Gpu::Options& options) {
  return memra::check(Gpu::create(options));
}
inline Gpu make_gpu() {
  return make_gpu_with({});
}

/// draft_attend has a class of its own for some head dimensions, which draft.cu tests.
#if defined(MEMRA_TEST_HIP)
inline constexpr bool draft_class = false;
#else
inline constexpr bool draft_class = true;
#endif

/// A GPU for those who make devices without arguments.
struct DefaultGpu : Gpu {
  DefaultGpu() : Gpu(make_gpu()) {}
};

/// A GPU that runs the portable kernels only.
struct PortableGpu : Gpu {
  using kernels = memra::PortableKernels;
  PortableGpu() : Gpu(make_gpu()) {}
};

}  // namespace memra_test
