// Times of draft attention on this GPU, beside the read ceiling of the same run; checked against the portable kernels
// first. Hidden: run with the tag [.bench].
#include <cmath>
#include <cstdio>
#include <memra/cuda/ops.cuh>
#include <memra/dflash_kv.hpp>
#include <memra/portable_ops.hpp>
#include <memra/workspace.hpp>
#include <support/catch.hpp>
#include <vector>

#include "support.hpp"
#include "timing.hpp"

namespace memra_bench {

/// A drafter's layers at one length: as many that their rows do not stay in the second-level cache from one round to
/// the next, as those of a drafter between its other kernels do not.
struct DraftLayers {
  std::size_t heads;
  memra::DflashKv<CudaDev> kv;
  memra::Workspace<CudaDev> ws;
  Filled q, out, expected;
  std::vector<memra::DraftView> views;
  std::size_t at = 0;

  static memra::DflashCfg config(std::size_t layers, std::size_t window, std::size_t block) {
    memra::DflashCfg c;
    c.n_layer = layers, c.n_kv = 8, c.head_dim = 128, c.block_size = block, c.sliding_window = window;
    return c;
  }

  DraftLayers(CudaDev& dev, std::size_t n_heads, std::size_t layers, std::size_t window, std::size_t len,
              std::size_t block)
      : heads(n_heads),
        kv(memra::check(memra::DflashKv<CudaDev>::create(dev, config(layers, window, block), len))),
        ws(memra::check(
            memra::Workspace<CudaDev>::create(dev, memra::detail::draft_scratch_bytes(heads, 8, 128, block, len)))),
        q(dev, block * heads * 128, 7, 2.0F),
        out(dev, block * heads * 128, 8),
        expected(dev, block * heads * 128, 9) {
    const Filled in(dev, (len + block) * 1024, 3, 2.0F);
    const memra::ops_for<CudaDev> ops(dev);
    auto rows = memra::check(kv.begin_rows(len));
    for (std::size_t l = 0; l < layers; ++l) memra::check(ops.draft_write(rows.view(l), in.x, in.x + 1024));
    memra::check(kv.commit());
    rows = memra::check(kv.begin_block(block));
    for (std::size_t l = 0; l < layers; ++l) {
      views.push_back(rows.view(l));
      memra::check(ops.draft_write(views[l], in.x, in.x + 512));
    }
    memra::check(dev.synchronize());
  }
  memra::DraftAttendArgs args(const Filled& to, memra::DraftArm arm) const { return {q.x, to.x, heads, 0.088F, arm}; }
  void run(CudaDev& dev, memra::DraftArm arm) {
    memra::check(memra::ops_for<CudaDev>(dev).draft_attend(views[at++ % views.size()], args(out, arm), ws.view()));
  }
  double distance(CudaDev& dev, memra::DraftArm arm) {
    memra::check(memra::ops_for<CudaDev>(dev).draft_attend(views[0], args(out, arm), ws.view()));
    memra::check(memra::PortableKernels::draft_attend(dev, views[0], args(expected, arm), ws.view()));
    const std::size_t n = views[0].block_rows * heads * 128;
    std::vector<float> a(n);
    std::vector<float> b(n);
    memra::check(dev.download(reinterpret_cast<std::byte*>(a.data()), reinterpret_cast<std::byte*>(out.x), n * 4));
    memra::check(dev.download(reinterpret_cast<std::byte*>(b.data()), reinterpret_cast<std::byte*>(expected.x), n * 4));
    double d = 0;
    double all = 0;
    for (std::size_t i = 0; i < n; ++i) {
      d += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
      all += static_cast<double>(b[i]) * b[i];
    }
    return std::sqrt(d / all);
  }
};

TEST_CASE("times of draft attention", "[.bench]") {
  CudaDev dev = memra_test::make_cuda();
  Timer timer(dev);
  const double ceiling = read_ceiling(dev, timer);
  std::printf("read ceiling %.0f GB/s\n", ceiling);
  std::printf("draft_attend, 8 kv heads d128, us: GB/s of the rows it reads, of the read ceiling\n");
  for (const std::size_t heads : {std::size_t{32}, std::size_t{64}}) {
    for (const std::size_t block : {std::size_t{8}, std::size_t{16}}) {
      std::printf("%zu heads, block of %zu:", heads, block);
      const auto point = [&](DraftLayers& l, const char* what, memra::DraftArm arm, std::size_t rows) {
        CHECK(l.distance(dev, arm) < 1e-4);
        const double us = timer.us([&] { l.run(dev, arm); });
        const double rate = static_cast<double>(rows) * 8192 / us / 1e3;
        std::printf("  %s %.1f: %.0f, %.0f%%", what, us, rate, 100.0 * rate / ceiling);
      };
      {
        DraftLayers l(dev, heads, 10, 2048, 8192, block);
        point(l, "window of 2,048 at 8,192, clip", memra::DraftArm::clip, 2047 + block);
        point(l, "full", memra::DraftArm::full_scan, 8192 + block);
      }
      {
        DraftLayers l(dev, heads, 10, 0, 8192, block);
        point(l, "no window, 8,192", memra::DraftArm::clip, 8192 + block);
      }
      DraftLayers l(dev, heads, 1, 0, 32768, block);
      point(l, "32,768", memra::DraftArm::clip, 32768 + block);
      std::printf("\n");
    }
  }
  REQUIRE(cudaGetLastError() == cudaSuccess);
}

}  // namespace memra_bench
