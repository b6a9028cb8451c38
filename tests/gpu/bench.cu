// Times of everything but attention on this GPU, beside ceilings of the same run. Hidden: run with the tag [.bench].
#include <cuda_runtime_api.h>

#include <cstdio>
#include <memra/cache.hpp>
#include <memra/cuda/ops.cuh>
#include <memra/workspace.hpp>
#include <support/catch.hpp>
#include <tuple>
#include <vector>

#include "support.hpp"
#include "timing.hpp"

namespace memra_bench {

using memra::Format;
using memra::Layout;
using memra::Strategy;

struct NothingBody {
  MEMRA_HD void operator()(const memra::Item&) const noexcept {}
};

/// The least a kernel can do that reads and writes: 128 numbers.
struct MoveBody {
  const float* from;
  float* to;
  MEMRA_HD void operator()(const memra::Item& item) const noexcept { to[item.x] = from[item.x]; }
};

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

memra::RecurrentSpec recurrent_spec(std::size_t heads) {
  memra::RecurrentSpec r;
  r.n_k_heads = 16;
  r.n_v_heads = heads;
  r.d_k = r.d_v = 128;
  r.d_conv = 4;
  return r;
}

/// `layers` recurrent layers, able to run rounds of up to 16 rows.
memra::Cache<CudaDev> linear_cache(CudaDev& dev, std::size_t layers, std::size_t heads) {
  memra::ModelConfig cfg;
  for (std::size_t i = 0; i < layers; ++i) cfg.layers.push_back(memra::recurrent(recurrent_spec(heads)));
  memra::CacheOptions options;
  options.rounds.rows = 16;
  options.rounds.planes = options.rounds.stash = true;
  return memra::check(memra::Cache<CudaDev>::create(dev, cfg, 1U << 30, options));
}

/// Inputs of conv and scan that are finite and not all alike, for layers of 16 key heads, d 128.
struct RecurrentInputs {
  std::size_t conv_dim;
  Filled x, y, w, g, out;
  RecurrentInputs(CudaDev& dev, std::size_t heads, std::size_t rows)
      : conv_dim(2 * 128 * 16 + 128 * heads),
        x(dev, rows * conv_dim, 3, 0.1F),
        y(dev, rows * conv_dim, 4, 0.1F),
        w(dev, conv_dim * 4, 5),
        g(dev, rows * heads, 6, 0.3F, true),
        out(dev, rows * heads * 128, 7) {}
  memra::ScanArgs scan() const { return {x.x, x.x + 2048, x.x + 4096, g.x, g.x, out.x, conv_dim, conv_dim, conv_dim}; }
  memra::ConvArgs conv() const { return {x.x, w.x, nullptr, y.x, true}; }
};

/// The chunked class beside the sequential one.
void chunked_line(CudaDev& dev, Timer& timer, memra::Cache<CudaDev>& cache, const RecurrentInputs& in) {
  const memra::ops_for<CudaDev> ops(dev);
  const auto ws = memra::check(
      memra::Workspace<CudaDev>::create(dev, cache.plan().workspace_bytes(4096, 1, memra::ScanClass::chunked)));
  std::printf("\n  chunked:");
  for (const std::size_t t : {std::size_t{64}, std::size_t{512}, std::size_t{4096}}) {
    double us[2] = {};
    for (const memra::ScanClass scan : {memra::ScanClass::sequential, memra::ScanClass::chunked}) {
      auto step = memra::check(cache.begin_step(t, scan));
      const memra::RecurView r = memra::check(step.recur(0));
      us[scan == memra::ScanClass::chunked ? 1 : 0] =
          timer.us([&] { memra::check(ops.delta_scan(r, in.scan(), ws.view())); });
      memra::check(cache.reset());
    }
    std::printf("  T=%zu %.1f (%.1f times as fast)", t, us[1], us[0] / us[1]);
  }
  std::printf("\n");
}

void scan_table(CudaDev& dev, Timer& timer, double copy_ceiling) {
  const memra::ops_for<CudaDev> ops(dev);
  std::printf("\ndelta_scan d128 of one layer, us (K: every state kept, as rounds by planes do; stash: none)\n");
  for (const std::size_t heads : {std::size_t{48}, std::size_t{32}}) {
    const RecurrentInputs in(dev, heads, 4096);
    auto cache = linear_cache(dev, 1, heads);
    std::printf("%zu heads:", heads);
    for (const std::size_t t :
         {std::size_t{1}, std::size_t{4}, std::size_t{8}, std::size_t{16}, std::size_t{512}, std::size_t{4096}}) {
      auto step = memra::check(cache.begin_step(t));
      const memra::RecurView r = memra::check(step.recur(0));
      std::printf("  T=%zu %.1f", t, timer.us([&] { memra::check(ops.delta_scan(r, in.scan())); }));
      memra::check(cache.reset());
    }
    chunked_line(dev, timer, cache, in);
    std::printf("         ");
    for (const Strategy by : {Strategy::planes, Strategy::stash}) {
      for (const std::size_t t : {std::size_t{4}, std::size_t{8}, std::size_t{16}}) {
        auto round = memra::check(cache.begin_round(t, by));
        const memra::RecurView r = memra::check(round.recur(0));
        std::printf("  T=%zu %s %.1f", t, by == Strategy::planes ? "K=T" : "stash",
                    timer.us([&] { memra::check(ops.delta_scan(r, in.scan())); }));
      }
    }
    std::printf("\n");
  }
  std::printf("conv_update of 10,240 channels, d_conv 4, us (of the copy ceiling)\n         ");
  const RecurrentInputs in(dev, 48, 4096);
  auto cache = linear_cache(dev, 1, 48);
  for (const std::size_t t :
       {std::size_t{1}, std::size_t{4}, std::size_t{8}, std::size_t{16}, std::size_t{512}, std::size_t{4096}}) {
    auto step = memra::check(cache.begin_step(t));
    const memra::RecurView r = memra::check(step.recur(0));
    const double us = timer.us([&] { memra::check(ops.conv_update(r, in.conv())); });
    const double bytes = static_cast<double>(2 * t * in.conv_dim * 4);
    std::printf("  T=%zu %.1f (%.0f%%)", t, us, 100.0 * bytes / us / 1e3 / copy_ceiling);
    memra::check(cache.reset());
  }
  std::printf("\n");
}

/// begin and commit alone, then the commit beside the scan it repeats: 48 layers of 48 heads.
void round_table(CudaDev& dev, Timer& timer) {
  constexpr std::size_t layers = 48;
  const memra::ops_for<CudaDev> ops(dev);
  auto cache = linear_cache(dev, layers, 48);
  const RecurrentInputs in(dev, 48, 16);
  const std::int32_t eight = 8;
  auto word = memra::check(dev.zeros(64));
  auto* accept = reinterpret_cast<std::int32_t*>(word.data());
  memra::check(dev.store_i32(accept, &eight, 1));
  std::printf("\nrounds of 16 rows over 48 layers (conv 10240x3, ssm 48x128x128), 8 accepted, us\n");
  double stash = 0;
  for (const Strategy by : {Strategy::planes, Strategy::stash}) {
    const auto round = [&](bool scan) {
      auto r = memra::check(cache.begin_device_round(16, by));
      for (std::size_t il = 0; il < layers; ++il) {
        const auto view = memra::check(r.recur(il));
        if (!scan) continue;
        memra::check(ops.conv_update(view, in.conv()));
        memra::check(ops.delta_scan(view, in.scan()));
      }
      memra::check(r.commit_d(accept));
    };
    round(true);  // what the commits apply
    const double us = timer.us([&] { round(false); });
    if (by == Strategy::stash) stash = us;
    memra::check(cache.catch_up());
    memra::check(cache.reset());
    std::printf("%-7s begin + commit_d, captured %.1f", memra::to_string(by).data(), us);
    // By value the host launches the kernels: one call at a time, in the stream.
    const double plain = timer.plain_us([&] {
      auto r = memra::check(cache.begin_round(16, by));
      for (std::size_t il = 0; il < layers; ++il) memra::check(r.recur(il));
      memra::check(r.commit(8));
    });
    memra::check(cache.reset());
    std::printf(", by value in the stream %.1f", plain);
    std::printf(", with the verify's conv and scan %.1f\n", timer.us([&] { round(true); }));
    memra::check(cache.catch_up());
    memra::check(cache.reset());
  }
  for (const std::size_t t : {std::size_t{8}, std::size_t{16}}) {
    auto step = memra::check(cache.begin_step(t));
    std::vector<memra::RecurView> views;
    for (std::size_t il = 0; il < layers; ++il) views.push_back(memra::check(step.recur(il)));
    const double us = timer.us([&] {
      for (const memra::RecurView& view : views) memra::check(ops.delta_scan(view, in.scan()));
    });
    memra::check(cache.reset());
    std::printf("delta_scan of %zu tokens, 48 launches: %.1f; the stash's commit of 8 is %.2f of it\n", t, us,
                stash / us);
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
}

TEST_CASE("times", "[.bench]") {
  CudaDev dev = memra_test::make_cuda();
  Timer timer(dev);
  const std::size_t n = std::size_t{4} << 30;
  double copy = 0;
  {
    const Filled a(dev, n / 4, 1);
    auto b = memra::check(dev.alloc(n));
    // In the stream, not in a graph: there the runtime may pick another way to copy.
    const double us = timer.plain_us([&] { memra::check(dev.copy(b.data(), a.buffer.data(), n)); });
    copy = 2.0 * static_cast<double>(n) / us / 1e3;
  }
  const double nothing = timer.us([&] {
    memra::check(memra::launch(dev, "nothing", memra::Grid{1, 1, 1}, NothingBody{}));
  });
  const Filled few(dev, 1024, 2);
  const double moves = timer.us([&] {
    memra::check(memra::launch(dev, "move", memra::Grid{128, 1, 1}, MoveBody{few.x, few.x + 512}));
  });
  std::printf(
      "ceilings: copy %.0f GB/s (read + write); a kernel in a graph: empty %.2f us, one load and store %.2f us\n", copy,
      nothing, moves);
  append_table(dev, timer, copy);
  scan_table(dev, timer, copy);
  round_table(dev, timer);
  small_table(dev, timer);
  REQUIRE(cudaGetLastError() == cudaSuccess);
}

}  // namespace memra_bench
