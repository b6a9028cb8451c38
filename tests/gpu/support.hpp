// What the tests on a CUDA device share.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memra/cuda/device.hpp>
#include <memra/portable_ops.hpp>
#include <thread>
#include <utility>

namespace memra_test {

inline memra::CudaDev make_cuda() {
  return memra::check(memra::CudaDev::create());
}

/// A CUDA device for those who make devices without arguments.
struct DefaultCuda : memra::CudaDev {
  DefaultCuda() : memra::CudaDev(make_cuda()) {}
};

/// A CUDA device that runs the portable kernels only.
struct PortableCuda : memra::CudaDev {
  using kernels = memra::PortableKernels;
  PortableCuda() : memra::CudaDev(make_cuda()) {}
};

/// Holds a stream: what is queued behind it has certainly not run until release(). One at a time, and what runs on
/// other streams meanwhile must have run before, since the runtime may wait for all of them to load a kernel.
class Hold {
 public:
  explicit Hold(cudaStream_t stream) : held_(cudaLaunchHostFunc(stream, &wait, this) == cudaSuccess) {}
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() {
    release();
    while (held_ && !done_.load()) std::this_thread::yield();
  }
  bool held() const noexcept { return held_; }
  void release() noexcept { open_.store(true); }

 private:
  static void CUDART_CB wait(void* self) {
    auto* hold = static_cast<Hold*>(self);
    while (!hold->open_.load()) std::this_thread::yield();
    hold->done_.store(true);
  }

  std::atomic<bool> open_{false};
  std::atomic<bool> done_{false};
  bool held_;
};

}  // namespace memra_test
