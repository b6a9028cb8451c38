// Times of the ops on this GPU, attention aside, beside ceilings measured in the same run. Hidden: tag [.bench].
#include <cstdio>
#include <memra/cache.hpp>
#include <memra/workspace.hpp>
#include <support/catch.hpp>
#include <tuple>

#include "timing.hpp"

namespace memra_bench {

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
}

TEST_CASE("times", "[.bench]") {
  CudaDev dev = memra_test::make_cuda();
  Timer timer(dev);
  const Ceilings ceilings = measure_ceilings(dev, timer);
  append_table(dev, timer, ceilings.copy);
  scan_table(dev, timer);
  small_table(dev, timer);
  REQUIRE(cudaGetLastError() == cudaSuccess);
}

}  // namespace memra_bench
