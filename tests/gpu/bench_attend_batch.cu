// Times of attention of many sequences in one launch, beside a call each and the read ceiling of the same run; the bits
// are those of a call each. Hidden: run with the tag [.bench].
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <memra/attend_batch.hpp>
#include <memra/cache.hpp>
#include <memra/cuda/ops.cuh>
#include <memra/workspace.hpp>
#include <support/catch.hpp>
#include <vector>

#include "support.hpp"
#include "timing.hpp"

namespace memra_bench {

struct BatchShape {
  std::size_t heads, kv, d;
};
struct BatchPoint {
  std::size_t sequences, keys, rows;
  bool ragged;  ///< a quarter of the sequences has a quarter of the keys, and so on
};
struct BatchFormats {
  memra::Format k, v;
  memra::Layout layout;
};

/// Caches with one layer and `keys` rows each, the last `rows` of a step that is open.
struct SequencesOf {
  BatchShape shape;
  BatchFormats formats;
  BatchPoint point;
  std::vector<memra::Cache<CudaDev>> caches;
  std::vector<memra::KvReadView> views;
  double bytes = 0;  ///< of K and V, once

  SequencesOf(CudaDev& dev, const BatchShape& s, const BatchFormats& f, const BatchPoint& p)
      : shape(s), formats(f), point(p) {
    memra::AttentionSpec spec;
    spec.n_heads = s.heads;
    spec.n_kv_heads = s.kv;
    spec.head_dim_k = spec.head_dim_v = s.d;
    spec.k_format = f.k;
    spec.v_format = f.v;
    spec.k_layout = spec.v_layout = f.layout;
    memra::ModelConfig cfg;
    cfg.layers = {memra::full_attention(spec)};
    const memra::ops_for<CudaDev> ops(dev);
    const Filled in(dev, 4096 * s.kv * s.d, 3, 2.0F);
    for (std::size_t i = 0; i < p.sequences; ++i) {
      const std::size_t keys = p.ragged ? p.keys * (i % 4 + 1) / 4 : p.keys;
      bytes += static_cast<double>(keys * (memra::row_bytes(f.k, s.kv * s.d) + memra::row_bytes(f.v, s.kv * s.d)));
      caches.push_back(memra::check(memra::Cache<CudaDev>::create(dev, cfg, p.keys + 64)));
      for (std::size_t at = 0; at < keys;) {
        const bool last = at == keys - p.rows;
        const std::size_t t = last ? p.rows : std::min<std::size_t>(4096, keys - p.rows - at);
        auto step = memra::check(caches[i].begin_step(t));
        memra::check(ops.append(memra::check(step.kv_write(0)), in.x, in.x));
        if (last) {
          views.push_back(memra::check(step.kv_read(0)));
        } else {
          memra::check(caches[i].advance());
        }
        at += t;
      }
    }
  }
  std::vector<memra::Cache<CudaDev>*> pointers() {
    std::vector<memra::Cache<CudaDev>*> all;
    for (auto& c : caches) all.push_back(&c);
    return all;
  }
};

std::vector<std::byte> bytes_of(CudaDev& dev, const Filled& x) {
  std::vector<std::byte> b(x.buffer.size());
  memra::check(dev.download(b.data(), x.buffer.data(), b.size()));
  return b;
}

TEST_CASE("times of attention of many sequences in one launch", "[.bench]") {
  CudaDev dev = memra_test::make_cuda();
  Timer timer(dev);
  const double ceiling = read_ceiling(dev, timer);
  std::printf("read ceiling %.0f GB/s\n", ceiling);
  using F = memra::Format;
  using L = memra::Layout;
  constexpr std::array<BatchFormats, 7> formats{{{F::bf16, F::bf16, L::blocks},
                                                 {F::f16, F::f16, L::blocks},
                                                 {F::q8_0, F::q5_1, L::split},
                                                 {F::q8_0, F::q8_0, L::split},
                                                 {F::q8_0, F::q4_0, L::split},
                                                 {F::q4_0, F::q4_0, L::split},
                                                 {F::fp8_e4m3, F::fp8_e4m3, L::blocks}}};
  constexpr std::array<BatchPoint, 4> points{
      {{32, 8192, 1, false}, {32, 8192, 1, true}, {8, 8192, 1, false}, {32, 8192, 4, false}}};
  constexpr std::array<BatchShape, 2> shapes{{{64, 8, 128}, {16, 2, 256}}};
  std::printf("sequences x keys / rows, us: GB/s of K and V once, of the read ceiling; us of a call each\n");
  for (const BatchShape& s : shapes) {
    for (const BatchFormats& f : formats) {
      std::printf("%2zu/%zu d%zu %s/%s:", s.heads, s.kv, s.d, memra::to_string(f.k).data(),
                  memra::to_string(f.v).data());
      for (const BatchPoint& p : points) {
        SequencesOf x(dev, s, f, p);
        auto batch = memra::check(memra::AttendBatch<CudaDev>::create(x.pointers(), p.rows));
        memra::check(batch.set_rows(std::vector<std::size_t>(p.sequences, p.rows), p.keys - p.rows));
        const memra::AttendBatchView layer = memra::check(batch.layer(0));
        auto ws = memra::check(memra::Workspace<CudaDev>::create(dev, batch.workspace_bytes(s.heads)));
        auto single = memra::check(memra::Workspace<CudaDev>::create(dev, x.caches[0].plan().workspace_bytes(p.rows)));
        const std::size_t row = s.heads * s.d;
        const Filled q(dev, p.sequences * p.rows * row, 7, 2.0F);
        const Filled out(dev, p.sequences * p.rows * row, 8);
        const Filled expected(dev, p.sequences * p.rows * row, 9);
        const memra::ops_for<CudaDev> ops(dev);
        const float scale = 1.0F / std::sqrt(static_cast<float>(s.d));
        const auto together = [&] { memra::check(ops.attend_batch(layer, {q.x, out.x, s.heads, scale}, ws.view())); };
        const auto alone = [&] {
          for (std::size_t i = 0; i < p.sequences; ++i) {
            const std::size_t at = i * p.rows * row;
            memra::check(ops.attend(x.views[i], {q.x + at, expected.x + at, s.heads, scale}, single.view()));
          }
        };
        together();
        alone();
        CHECK((bytes_of(dev, out) == bytes_of(dev, expected)));
        const double us = timer.us(together);
        std::printf("  %zux%zu%s/%zu %.1f: %.0f, %.0f%%; %.1f", p.sequences, p.keys, p.ragged ? " ragged" : "", p.rows,
                    us, x.bytes / us / 1e3, 100.0 * x.bytes / us / 1e3 / ceiling, timer.us(alone));
      }
      std::printf("\n");
    }
  }
  REQUIRE(cudaGetLastError() == cudaSuccess);
}

}  // namespace memra_bench
