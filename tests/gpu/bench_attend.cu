// Times of attention on this GPU, beside the read ceiling of the same run; checked against the portable kernels first.
// Hidden: run with the tag [.bench].
#include <cmath>
#include <cstdio>
#include <memra/cache.hpp>
#include <memra/cuda/ops.cuh>
#include <memra/portable_ops.hpp>
#include <memra/workspace.hpp>
#include <support/catch.hpp>
#include <vector>

#include "support.hpp"
#include "timing.hpp"

namespace memra_bench {

using memra::Format;
using memra::Layout;

struct AttendShape {
  std::size_t heads, kv, d;
};

struct AttendFormats {
  Format k, v;
  Layout layout;
};

/// One layer with 131,099 rows written, NaN behind them, and what attend needs beside it.
struct AttendLayer {
  static constexpr std::size_t most = 131072;
  static constexpr std::size_t more = 27;  ///< rows of a step that is not full
  static constexpr std::size_t most_rows = 16;

  AttendShape shape;
  AttendFormats formats;
  memra::Cache<CudaDev> cache;
  memra::Workspace<CudaDev> ws;
  CudaDev::Buffer pos;
  Filled q, out, expected;
  memra::KvReadView view;

  AttendLayer(CudaDev& dev, const AttendShape& s, const AttendFormats& f)
      : shape(s),
        formats(f),
        cache(memra::check(memra::Cache<CudaDev>::create(dev, config(s, f), most + 64))),
        ws(memra::check(memra::Workspace<CudaDev>::create(dev, cache.plan().workspace_bytes(most_rows)))),
        pos(memra::check(dev.zeros(64))),
        q(dev, most_rows * s.heads * s.d, 7, 2.0F),
        out(dev, most_rows * s.heads * s.d, 8),
        expected(dev, most_rows * s.heads * s.d, 9) {
    const Filled in(dev, 4096 * s.kv * s.d, 3, 2.0F);
    auto step = memra::check(cache.begin_step(1));
    auto w = memra::check(step.kv_write(0));
    view = memra::check(step.kv_read(0));
    w.at.pos_d = view.at.pos_d = reinterpret_cast<std::int32_t*>(pos.data());
    w.at.rows = 4096;
    memra::check(dev.fill(w.k.data, std::byte{0xFF}, memra::detail::checked_plane_bytes(w.k.shape).value()));
    memra::check(dev.fill(w.v.data, std::byte{0xFF}, memra::detail::checked_plane_bytes(w.v.shape).value()));
    for (std::size_t at = 0; at < most + more; at += w.at.rows) {
      if (at == most) w.at.rows = more;
      move_to(dev, at);
      memra::check(memra::ops_for<CudaDev>(dev).append(w, in.x, in.x));
    }
  }

  static memra::ModelConfig config(const AttendShape& s, const AttendFormats& f) {
    memra::AttentionSpec spec;
    spec.n_heads = s.heads;
    spec.n_kv_heads = s.kv;
    spec.head_dim_k = spec.head_dim_v = s.d;
    spec.k_format = f.k;
    spec.v_format = f.v;
    spec.k_layout = spec.v_layout = f.layout;
    memra::ModelConfig cfg;
    cfg.layers = {memra::full_attention(spec)};
    return cfg;
  }

  void move_to(CudaDev& dev, std::size_t at) {
    const auto p = static_cast<std::int32_t>(at);
    memra::check(dev.store_i32(reinterpret_cast<std::int32_t*>(pos.data()), &p, 1));
  }
  void last_rows(CudaDev& dev, std::size_t len, std::size_t rows) {
    move_to(dev, len - rows);
    view.at.rows = rows;
    view.at.pos_bound = len - rows;
  }
  memra::AttendArgs args(const Filled& to) const {
    return {q.x, to.x, shape.heads, 1.0F / std::sqrt(static_cast<float>(shape.d))};
  }
  void run(CudaDev& dev) { memra::check(memra::ops_for<CudaDev>(dev).attend(view, args(out), ws.view())); }

  /// Relative distance of the rows just computed to the portable kernels'.
  double distance(CudaDev& dev) {
    run(dev);
    memra::check(memra::PortableKernels::attend(dev, view, args(expected), ws.view()));
    const std::size_t n = view.at.rows * shape.heads * shape.d;
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

  double bytes(std::size_t len) const {
    const std::size_t width = shape.kv * shape.d;
    return static_cast<double>(len * (memra::row_bytes(formats.k, width) + memra::row_bytes(formats.v, width)));
  }
};

constexpr std::pair<std::size_t, std::size_t> attend_points[] = {
    {4096, 1},   {4096, 8},   {32768, 1},   {131072, 1},
    {131072, 4}, {131072, 8}, {131072, 16}, {AttendLayer::most + AttendLayer::more, 1}};

TEST_CASE("times of attention", "[.bench]") {
  CudaDev dev = memra_test::make_cuda();
  Timer timer(dev);
  const double ceiling = read_ceiling(dev, timer);
  std::printf("read ceiling %.0f GB/s\n", ceiling);
  const AttendFormats formats[] = {
      {Format::bf16, Format::bf16, Layout::blocks},         {Format::f16, Format::f16, Layout::blocks},
      {Format::q8_0, Format::q5_1, Layout::split},          {Format::q8_0, Format::q8_0, Layout::split},
      {Format::q8_0, Format::q4_0, Layout::split},          {Format::q4_0, Format::q4_0, Layout::split},
      {Format::fp8_e4m3, Format::fp8_e4m3, Layout::blocks}, {Format::q8_0, Format::q5_1, Layout::blocks}};
  std::printf("attend, keys/rows us: GB/s of K and V once, of the read ceiling, times as fast as bf16\n");
  for (const AttendShape s : {AttendShape{64, 8, 128}, AttendShape{16, 2, 256}, AttendShape{24, 4, 256},
                              AttendShape{32, 8, 128}, AttendShape{64, 8, 64}}) {
    double bf16[std::size(attend_points)] = {};
    for (const AttendFormats& f : formats) {
      if (s.d != 128 && f.layout == Layout::blocks && f.k == Format::q8_0) continue;
      AttendLayer layer(dev, s, f);
      layer.last_rows(dev, 4096, 8);
      const double many = layer.distance(dev);
      layer.last_rows(dev, 16384, 1);
      const double one = layer.distance(dev);
      std::printf("%2zu/%zu d%zu %s/%s %s, distance %.1e %.1e:", s.heads, s.kv, s.d, memra::to_string(f.k).data(),
                  memra::to_string(f.v).data(), memra::to_string(f.layout).data(), many, one);
      const double most = f.k == Format::bf16 ? 1e-2 : 2e-3;
      CHECK(many < most);
      CHECK(one < most);
      for (std::size_t i = 0; i < std::size(attend_points); ++i) {
        const auto [len, rows] = attend_points[i];
        layer.last_rows(dev, len, rows);
        const double us = timer.us([&] { layer.run(dev); });
        if (f.k == Format::bf16) bf16[i] = us;
        std::printf("  %zu/%zu %.1f: %.0f, %.0f%%, %.2f", len, rows, us, layer.bytes(len) / us / 1e3,
                    100.0 * layer.bytes(len) / us / 1e3 / ceiling, bf16[i] / us);
      }
      std::printf("\n");
    }
  }
  REQUIRE(cudaGetLastError() == cudaSuccess);
}

}  // namespace memra_bench
