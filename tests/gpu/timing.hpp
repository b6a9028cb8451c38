// What the benchmarks on a CUDA device share: a timer, device memory filled with numbers that look random, the ceiling
// of reading.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <memra/cuda/device.hpp>
#include <memra/launch.hpp>
#include <vector>

#include <support/kernel_model.hpp>

// Not unnamed: nvcc 13.0 cannot name a kernel's body type that shares an unnamed namespace with Catch's.
namespace memra_bench {

using memra::CudaDev;

class Timer {
 public:
  explicit Timer(CudaDev& dev) : dev_(&dev) {
    cudaEventCreate(&start_);
    cudaEventCreate(&stop_);
  }
  ~Timer() {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  /// Median over 15 captured graphs' replays of 10 calls each, microseconds a call: launch gaps of the host are out.
  template <class F>
  double us(const F& f) {
    f();
    memra::check(dev_->synchronize());
    memra::check(dev_->begin_capture());
    for (int i = 0; i < calls; ++i) f();
    const auto graph = memra::check(dev_->end_capture());
    std::vector<float> ms;
    for (int i = 0; i < 17; ++i) {
      cudaEventRecord(start_, dev_->stream());
      memra::check(dev_->replay(graph));
      cudaEventRecord(stop_, dev_->stream());
      cudaEventSynchronize(stop_);
      float t = 0;
      cudaEventElapsedTime(&t, start_, stop_);
      if (i >= 2) ms.push_back(t);
    }
    std::sort(ms.begin(), ms.end());
    return 1000.0 * static_cast<double>(ms[ms.size() / 2]) / calls;
  }

  /// Median of 15 calls in the stream.
  template <class F>
  double plain_us(const F& f) {
    std::vector<float> ms;
    for (int i = 0; i < 17; ++i) {
      cudaEventRecord(start_, dev_->stream());
      f();
      cudaEventRecord(stop_, dev_->stream());
      cudaEventSynchronize(stop_);
      float t = 0;
      cudaEventElapsedTime(&t, start_, stop_);
      if (i >= 2) ms.push_back(t);
    }
    std::sort(ms.begin(), ms.end());
    return 1000.0 * static_cast<double>(ms[ms.size() / 2]);
  }

 private:
  static constexpr int calls = 10;
  CudaDev* dev_;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
};

struct Filled {
  CudaDev::Buffer buffer;
  float* x;
  Filled(CudaDev& dev, std::size_t n, std::uint32_t seed, float scale = 1.0F, bool negative = false)
      : buffer(memra::check(dev.alloc(n * 4))), x(reinterpret_cast<float*>(buffer.data())) {
    auto zero = memra::check(dev.zeros(64));
    const auto* z = reinterpret_cast<const std::int32_t*>(zero.data());
    memra::check(
        memra::launch(dev, "input", memra::Grid{n, 1, 1}, memra_test::InputBody{x, n, z, z, seed, scale, negative}));
  }
};

/// Read-only kernel of the ceiling: 16-byte loads.
struct ReadBody {
  static constexpr unsigned block_threads = 512;
  const uint4* p;
  std::size_t n;
  std::uint32_t* out;
  __device__ void block(const memra::Item& item) const {
    std::uint32_t x = 0;
    const std::size_t step = std::size_t{gridDim.x} * block_threads;
#pragma unroll 8
    for (std::size_t i = item.x * block_threads + threadIdx.x; i < n; i += step) {
      const uint4 v = p[i];
      x ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (x == 0x12345678U) *out = x;
  }
};

/// GB/s of reading 4 GiB.
inline double read_ceiling(CudaDev& dev, Timer& timer) {
  const std::size_t n = std::size_t{4} << 30;
  const Filled a(dev, n / 4, 1);
  auto out = memra::check(dev.zeros(64));
  const ReadBody body{reinterpret_cast<const uint4*>(a.buffer.data()), n / 16,
                      reinterpret_cast<std::uint32_t*>(out.data())};
  return static_cast<double>(n) / 1e3 / timer.us([&] {
    memra::check(memra::launch(dev, "read", memra::Grid{132 * 16, 1, 1}, body));
  });
}

}  // namespace memra_bench
