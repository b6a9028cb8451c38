// snapshot_into of a 48-layer model: one copy per device object, timed against a contiguous copy of the same run.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <memra/cache.hpp>
#include <memra/cuda/ops.cuh>
#include <support/catch.hpp>
#include <vector>

#include "support.hpp"

namespace {

using memra::CudaDev;

/// Median of `n` runs of `f`, microseconds by device events.
template <class F>
double median_us(CudaDev& dev, int n, const F& f) {
  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
  cudaEventCreate(&start);
  cudaEventCreate(&stop);
  std::vector<float> ms;
  for (int i = 0; i < n + 5; ++i) {
    cudaEventRecord(start, dev.stream());
    f();
    cudaEventRecord(stop, dev.stream());
    cudaEventSynchronize(stop);
    float t = 0;
    cudaEventElapsedTime(&t, start, stop);
    if (i >= 5) ms.push_back(t);
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  std::sort(ms.begin(), ms.end());
  return 1000.0 * static_cast<double>(ms[ms.size() / 2]);
}

memra::ModelConfig linear_48() {
  memra::RecurrentSpec r;
  r.n_k_heads = 16;
  r.n_v_heads = 48;
  r.d_k = r.d_v = 128;
  r.d_conv = 4;
  memra::ModelConfig cfg;
  for (int i = 0; i < 48; ++i) cfg.layers.push_back(memra::recurrent(r));
  return cfg;
}

TEST_CASE("snapshot_into of 48 layers is one contiguous copy", "[snapshot]") {
  CudaDev dev = memra_test::make_cuda();
  auto cache = memra::check(memra::Cache<CudaDev>::create(dev, linear_48(), 16));
  auto snap = memra::check(cache.snapshot());
  REQUIRE(snap.bytes() >= std::size_t{48} * (10240 * 3 + 48 * 128 * 128) * 4);
  auto from = memra::check(dev.zeros(snap.bytes()));
  auto to = memra::check(dev.alloc(snap.bytes()));
  // One copy: what a capture of it holds.
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamBeginCapture(dev.stream(), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  memra::check(cache.snapshot_into(snap));
  REQUIRE(cudaStreamEndCapture(dev.stream(), &graph) == cudaSuccess);
  std::size_t nodes = 0;
  REQUIRE(cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess);
  cudaGraphDestroy(graph);
  CHECK(nodes == 1);
  for (int round = 0; round < 2; ++round) {
    const double plain = median_us(dev, 40, [&] { memra::check(dev.copy(to.data(), from.data(), snap.bytes())); });
    const double ours = median_us(dev, 40, [&] { memra::check(cache.snapshot_into(snap)); });
    std::printf("snapshot_into, 48 layers, %.1f MB: %.1f us; one contiguous copy: %.1f us; ratio %.3f\n",
                static_cast<double>(snap.bytes()) / 1e6, ours, plain, ours / plain);
  }
  REQUIRE(cudaGetLastError() == cudaSuccess);
}

}  // namespace
