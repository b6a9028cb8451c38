// snapshot_into of a 48-layer model: one copy per device object, timed against a contiguous copy of the same run.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memra/cache.hpp>
#include <memra/cuda/ops.cuh>
#include <support/catch.hpp>
#include <support/stand_in.hpp>
#include <vector>

#include "support.hpp"

namespace snapshot_cu {
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

TEST_CASE("snapshot_into of 48 layers is one contiguous copy", "[snapshot][.bench]") {
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

/// Median of `n` runs of `f` until the device is done, microseconds on the host.
template <class F>
double median_host_us(CudaDev& dev, int n, const F& f) {
  std::vector<double> us;
  for (int i = 0; i < n + 3; ++i) {
    memra::check(dev.synchronize());
    const auto start = std::chrono::steady_clock::now();
    f();
    memra::check(dev.synchronize());
    if (i >= 3) {
      us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    }
  }
  std::sort(us.begin(), us.end());
  return us[us.size() / 2];
}

TEST_CASE("a prefix of 48 layers is a few strided copies", "[snapshot][.bench]") {
  memra::ModelConfig cfg;
  for (int i = 0; i < 48; ++i) {
    memra::AttentionSpec a;
    a.n_heads = 16;
    a.n_kv_heads = 8;
    a.head_dim_k = a.head_dim_v = 128;
    a.k_layout = a.v_layout = memra::Layout::split;
    cfg.layers.push_back(memra::full_attention(a));
  }
  constexpr std::size_t rows = 300;
  CudaDev dev = memra_test::make_cuda();
  auto cache = memra::check(memra::Cache<CudaDev>::create(dev, cfg, 4096));
  std::vector<memra::CopyItem> items;
  {
    auto step = memra::check(cache.begin_step(rows));
    for (std::size_t il = 0; il < 48; ++il) {
      const memra::KvWriteView w = memra::check(step.kv_write(il));
      for (const memra::PlaneView* plane : std::array{&w.k, &w.v}) {
        const memra::Segments runs = memra::segments(plane->shape, 0, rows);
        for (std::size_t r = 0; r < runs.count; ++r) {
          std::vector<std::byte> host(runs[r].bytes);
          for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<std::byte>((i * 7 + il * 31 + r) >> 2);
          memra::check(dev.upload(plane->data + runs[r].offset, host.data(), host.size()));
          items.push_back({nullptr, plane->data + runs[r].offset, host.size()});
        }
      }
    }
    memra::check(cache.advance());
  }
  const auto snap = memra::check(cache.snapshot());
  const auto prefix = memra::check(cache.export_prefix(snap));
  const auto restored = memra::check(memra::Cache<CudaDev>::from_prefix(dev, cfg, 512, prefix));
  REQUIRE((memra_test::image(restored) == memra_test::image(cache)));
  memra_test::spoil(dev, cache.kv(31)->v.data + 5);
  REQUIRE_FALSE((memra_test::image(restored) == memra_test::image(cache)));
  // The same pieces, a copy each.
  std::size_t bytes = 0;
  for (const memra::CopyItem& i : items) bytes += i.bytes;
  auto to = memra::check(dev.alloc(bytes));
  std::size_t at = 0;
  for (memra::CopyItem& i : items) {
    i.dst = to.data() + at;
    at += i.bytes;
  }
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamBeginCapture(dev.stream(), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  memra::check(dev.copy_batch(items.data(), items.size()));
  REQUIRE(cudaStreamEndCapture(dev.stream(), &graph) == cudaSuccess);
  std::size_t nodes = 0;
  REQUIRE(cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess);
  cudaGraphDestroy(graph);
  CHECK(nodes == items.size() / 48);  // each column of a layer once, for all layers
  const double each = median_host_us(dev, 20, [&] {
    for (const memra::CopyItem& i : items) memra::check(dev.copy(i.dst, i.src, i.bytes));
  });
  const double ours = median_host_us(dev, 20, [&] { memra::check(cache.export_prefix(snap)); });
  std::printf("export_prefix, %zu pieces of 48 layers, %.1f MB: %.1f us with its allocations; a copy each: %.1f us\n",
              items.size(), static_cast<double>(bytes) / 1e6, ours, each);
}

}  // namespace
}  // namespace snapshot_cu
