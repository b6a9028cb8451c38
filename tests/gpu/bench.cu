// Times of the ops on this GPU, beside ceilings measured in the same run. Hidden: run with the tag [.bench].
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <memra/cache.hpp>
#include <memra/cuda/ops.cuh>
#include <memra/workspace.hpp>
#include <support/catch.hpp>
#include <vector>

#include "kernel_model.hpp"
#include "support.hpp"

// Not unnamed: nvcc 13.0 cannot name a kernel's body type that shares an unnamed namespace with Catch's.
namespace memra_bench {

using memra::CudaDev;
using memra::Format;
using memra::Layout;

struct NothingBody {
  MEMRA_HD void operator()(const memra::Item&) const noexcept {}
};

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

struct AttendShape {
  std::size_t heads, kv, d;
};

void attend_table(CudaDev& dev, Timer& timer, double ceiling) {
  std::printf("\nattend, us (and of the read ceiling, bytes of K and V once)\n");
  const struct {
    Format k, v;
    Layout l;
    const char* name;
  } pairs[] = {{Format::q8_0, Format::q5_1, Layout::split, "q8_0/q5_1 split"},
               {Format::q8_0, Format::q5_1, Layout::blocks, "q8_0/q5_1 blocks"},
               {Format::q8_0, Format::q8_0, Layout::split, "q8_0/q8_0 split"},
               {Format::q4_0, Format::q4_0, Layout::split, "q4_0/q4_0 split"},
               {Format::f16, Format::f16, Layout::blocks, "f16"},
               {Format::bf16, Format::bf16, Layout::blocks, "bf16"},
               {Format::fp8_e4m3, Format::fp8_e4m3, Layout::blocks, "fp8"}};
  for (const AttendShape s : {AttendShape{64, 8, 128}, AttendShape{16, 2, 256}, AttendShape{32, 8, 128}}) {
    for (const auto& p : pairs) {
      if (s.heads == 32 && p.k != Format::q8_0) continue;
      const std::size_t rows = 131072 + 64;
      memra::AttentionSpec spec;
      spec.n_heads = s.heads;
      spec.n_kv_heads = s.kv;
      spec.head_dim_k = spec.head_dim_v = s.d;
      spec.k_format = p.k;
      spec.v_format = p.v;
      spec.k_layout = spec.v_layout = p.l;
      memra::ModelConfig cfg;
      cfg.layers = {memra::full_attention(spec)};
      auto cache = memra::check(memra::Cache<CudaDev>::create(dev, cfg, rows));
      auto ws = memra::check(memra::Workspace<CudaDev>::create(dev, cache.plan().workspace_bytes(16)));
      const memra::ops_for<CudaDev> ops(dev);
      const std::size_t width = s.kv * s.d;
      const Filled in(dev, 4096 * width, 3);
      auto pos = memra::check(dev.zeros(64));
      auto* pos_d = reinterpret_cast<std::int32_t*>(pos.data());
      auto step = memra::check(cache.begin_step(1));
      auto w = memra::check(step.kv_write(0));
      auto r = memra::check(step.kv_read(0));
      w.at.pos_d = r.at.pos_d = pos_d;
      for (std::int32_t at = 0; at < 131072; at += 4096) {
        memra::check(dev.store_i32(pos_d, &at, 1));
        w.at.rows = 4096;
        memra::check(ops.append(w, in.x, in.x));
      }
      const Filled q(dev, 16 * s.heads * s.d, 7);
      const Filled out(dev, 16 * s.heads * s.d, 8);
      std::printf("%2zu heads %zu kv d%zu %-17s", s.heads, s.kv, s.d, p.name);
      for (const std::size_t len : {std::size_t{4096}, std::size_t{32768}, std::size_t{131072}}) {
        for (const std::size_t t : {std::size_t{1}, std::size_t{8}}) {
          if (t == 8 && len == 32768) continue;
          const auto at = static_cast<std::int32_t>(len - t);
          memra::check(dev.store_i32(pos_d, &at, 1));
          r.at.rows = t;
          r.at.pos_bound = len - t;
          const double us = timer.us([&] { memra::check(ops.attend(r, {q.x, out.x, s.heads, 0.088F}, ws.view())); });
          const double bytes = static_cast<double>(len * (memra::row_bytes(p.k, width) + memra::row_bytes(p.v, width)));
          std::printf("  %zu/q%zu %7.1f (%2.0f%%)", len, t, us, 100.0 * bytes / us / 1e3 / ceiling);
        }
      }
      std::printf("\n");
    }
  }
}

void append_table(CudaDev& dev, Timer& timer, double copy_ceiling) {
  std::printf("\nappend of K and V (1,024 elements each), one launch, us (GB/s, of the copy ceiling)\n");
  for (const auto& [k, v, l] :
       {std::tuple{Format::q8_0, Format::q5_1, Layout::split}, std::tuple{Format::q8_0, Format::q5_1, Layout::blocks},
        std::tuple{Format::q4_0, Format::q4_0, Layout::split}, std::tuple{Format::f16, Format::f16, Layout::blocks},
        std::tuple{Format::fp8_e4m3, Format::fp8_e4m3, Layout::blocks}}) {
    memra::AttentionSpec spec;
    spec.n_kv_heads = 8;
    spec.head_dim_k = spec.head_dim_v = 128;
    spec.k_format = k;
    spec.v_format = v;
    spec.k_layout = spec.v_layout = l;
    memra::ModelConfig cfg;
    cfg.layers = {memra::full_attention(spec)};
    auto cache = memra::check(memra::Cache<CudaDev>::create(dev, cfg, 32768));
    auto step = memra::check(cache.begin_step(1));
    auto w = memra::check(step.kv_write(0));
    const Filled in(dev, 2 * 32768 * 1024, 3);
    const memra::ops_for<CudaDev> ops(dev);
    std::printf("%-5s/%-5s %-6s", memra::to_string(k).data(), memra::to_string(v).data(), memra::to_string(l).data());
    for (const std::size_t rows : {std::size_t{1}, std::size_t{16}, std::size_t{4096}, std::size_t{32768}}) {
      w.at.rows = rows;
      const double us = timer.us([&] { memra::check(ops.append(w, in.x, in.x + 32768 * 1024)); });
      const double bytes = static_cast<double>(rows * (8192 + memra::row_bytes(k, 1024) + memra::row_bytes(v, 1024)));
      std::printf("  %zu rows %7.2f (%4.0f GB/s, %3.0f%%)", rows, us, bytes / us / 1e3,
                  100.0 * bytes / us / 1e3 / copy_ceiling);
    }
    std::printf("\n");
  }
}

void scan_table(CudaDev& dev, Timer& timer) {
  std::printf("\ndelta_scan d128, and conv_update of 10,240 channels, us\n");
  for (const std::size_t heads : {std::size_t{48}, std::size_t{32}}) {
    memra::RecurView r;
    r.n_k_heads = 16;
    r.n_v_heads = heads;
    r.d_k = r.d_v = 128;
    r.d_conv = 4;
    const Filled state(dev, heads * 128 * 128, 1);
    const Filled ring(dev, r.conv_dim() * 3, 2);
    const std::size_t most = 4096;
    const Filled x(dev, most * r.conv_dim(), 3, 0.1F);
    const Filled y(dev, most * r.conv_dim(), 4, 0.1F);
    const Filled w(dev, r.conv_dim() * 4, 5);
    const Filled g(dev, most * heads, 6, 0.3F, true);
    const Filled out(dev, most * heads * 128, 7);
    r.conv = ring.x;
    r.ssm = state.x;
    const memra::ops_for<CudaDev> ops(dev);
    std::printf("%zu heads:", heads);
    for (const std::size_t t :
         {std::size_t{1}, std::size_t{4}, std::size_t{8}, std::size_t{16}, std::size_t{512}, std::size_t{4096}}) {
      r.rows = t;
      const std::size_t c = r.conv_dim();
      const memra::ScanArgs a{x.x, x.x + 2048, x.x + 4096, g.x, g.x, out.x, c, c, c};
      std::printf("  T=%zu %.1f (conv %.1f)", t, timer.us([&] { memra::check(ops.delta_scan(r, a)); }), timer.us([&] {
        memra::check(ops.conv_update(r, {x.x, w.x, nullptr, y.x, true}));
      }));
    }
    std::printf("\n");
  }
}

void small_table(CudaDev& dev, Timer& timer) {
  const memra::ops_for<CudaDev> ops(dev);
  const Filled logits(dev, 8 * 151936, 1);
  auto index = memra::check(dev.zeros(64));
  auto* ints = reinterpret_cast<std::int32_t*>(index.data());
  std::printf("\nargmax of 151,936: 1 row %.1f us, 8 rows %.1f us\n",
              timer.us([&] { memra::check(ops.argmax_rows(logits.x, 1, 151936, ints)); }),
              timer.us([&] { memra::check(ops.argmax_rows(logits.x, 8, 151936, ints)); }));
  const Filled k(dev, 9000 * 1024, 2);
  const Filled q(dev, 16 * 4096, 3);
  const Filled out(dev, 16 * 4096, 4);
  for (const std::size_t window : {std::size_t{2048}, std::size_t{0}}) {
    memra::DraftView d;
    d.k = d.v = k.x;
    d.n_kv = 8;
    d.head_dim = 128;
    d.window = window;
    d.phys_rows = 9000;
    d.len_bound = 8192;
    d.block_rows = 16;
    const std::int32_t len = 8192;
    memra::check(dev.store_i32(ints, &len, 1));
    d.len_d = ints;
    auto ws = memra::check(dev.alloc(memra::detail::draft_scratch_bytes(32, 8, 128, 16, 8192)));
    for (const memra::DraftArm arm : {memra::DraftArm::clip, memra::DraftArm::full_scan}) {
      std::printf("draft_attend 32 heads 8 kv d128, 16 rows over 8,192, window %zu, %s: %.1f us\n", window,
                  arm == memra::DraftArm::clip ? "clip" : "full scan", timer.us([&] {
                    memra::check(ops.draft_attend(d, {q.x, out.x, 32, 0.088F, arm}, {ws.data(), ws.size()}));
                  }));
    }
  }
}

TEST_CASE("times", "[.bench]") {
  CudaDev dev = memra_test::make_cuda();
  Timer timer(dev);
  const std::size_t n = std::size_t{4} << 30;
  double read = 0;
  double copy = 0;
  {
    auto a = memra::check(dev.zeros(n));
    auto b = memra::check(dev.zeros(n));
    // In the stream, not in a graph: there the runtime may pick another way to copy.
    const double copy_us = timer.plain_us([&] { memra::check(dev.copy(b.data(), a.data(), n)); });
    const ReadBody body{reinterpret_cast<const uint4*>(a.data()), n / 16, reinterpret_cast<std::uint32_t*>(b.data())};
    const double read_us = timer.us([&] {
      memra::check(memra::launch(dev, "read", memra::Grid{132 * 16, 1, 1}, body));
    });
    copy = 2.0 * static_cast<double>(n) / copy_us / 1e3;
    read = static_cast<double>(n) / read_us / 1e3;
  }
  const double nothing = timer.us([&] {
    memra::check(memra::launch(dev, "nothing", memra::Grid{1, 1, 1}, NothingBody{}));
  });
  std::printf("ceilings: read %.0f GB/s, copy %.0f GB/s (read + write), empty kernel in a graph %.2f us\n", read, copy,
              nothing);
  append_table(dev, timer, copy);
  scan_table(dev, timer);
  small_table(dev, timer);
  attend_table(dev, timer, read);
  REQUIRE(cudaGetLastError() == cudaSuccess);
}

}  // namespace memra_bench
