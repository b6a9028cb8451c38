// The chunked scan on tensor cores: against float64 within the class's bound, split on the grid, captured, and as a
// cache's prompt.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memra/cache.hpp>
#include <memra/cuda/ops.cuh>
#include <memra/host_ops.hpp>
#include <memra/workspace.hpp>
#include <support/catch.hpp>
#include <support/chunk_layer.hpp>
#include <vector>

#include "support.hpp"

namespace chunked_cu {
namespace {

using memra::CudaDev;
using memra::ScanClass;
using memra_test::ChunkLayer;
using memra_test::ChunkOracle;
using memra_test::ChunkShape;
using memra_test::same_bits;

/// The class's bound: largest error by the largest number there is.
constexpr double bound = 1e-5;

struct On {
  CudaDev::Buffer buffer;
  std::size_t n;

  On(CudaDev& dev, const std::vector<float>& x) : buffer(memra::check(dev.alloc(x.size() * 4))), n(x.size()) {
    memra::check(dev.upload(buffer.data(), reinterpret_cast<const std::byte*>(x.data()), x.size() * 4));
  }
  float* data() const { return reinterpret_cast<float*>(buffer.data()); }
  std::vector<float> get(CudaDev& dev) const {
    std::vector<float> x(n);
    memra::check(dev.download(reinterpret_cast<std::byte*>(x.data()), buffer.data(), n * 4));
    return x;
  }
};

struct Result {
  std::vector<float> out, ssm;
  bool operator==(const Result& b) const { return same_bits(out, b.out) && same_bits(ssm, b.ssm); }
};

enum class How { stream, captured, shifted };

/// The layer's tokens in calls that end at `cuts`. `shifted`: q and k where no 16 bytes may be read at a time.
Result run(CudaDev& dev, const ChunkLayer& l, const std::vector<std::size_t>& cuts, How how = How::stream) {
  const ChunkShape& s = l.shape;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::size_t shift = how == How::shifted ? 1 : 0;
  const auto moved = [&](std::vector<float> x) {
    x.insert(x.begin(), shift, nan);
    return x;
  };
  const On q(dev, moved(l.q)), k(dev, moved(l.k)), v(dev, l.v), g(dev, l.g), beta(dev, l.beta), ssm(dev, l.ssm);
  const On out(dev, std::vector<float>(cuts.back() * s.n_v * s.d_v, nan));
  // Its contents are undefined: NaN shows what is read before it is written.
  const On ws(dev, std::vector<float>(memra::detail::chunk_scan_bytes(s.n_v, cuts.back()) / 4, nan));
  const memra::ops_for<CudaDev> ops(dev);
  if (how == How::captured) memra::check(dev.begin_capture());
  std::size_t first = 0;
  for (const std::size_t end : cuts) {
    ChunkLayer on = l;
    memra::RecurView r = on.view(end - first, ScanClass::chunked);
    r.ssm = ssm.data();
    memra::ScanArgs a;
    a.q = q.data() + shift + first * s.n_k * s.d_k;
    a.k = k.data() + shift + first * s.n_k * s.d_k;
    a.v = v.data() + first * s.n_v * s.d_v;
    a.g = g.data() + first * s.n_v;
    a.beta = beta.data() + first * s.n_v;
    a.out = out.data() + first * s.n_v * s.d_v;
    memra::check(ops.delta_scan(r, a, {ws.buffer.data(), ws.n * 4}));
    first = end;
  }
  if (how == How::captured) {
    const auto graph = memra::check(dev.end_capture());
    memra::check(dev.replay(graph));
    memra::check(dev.synchronize());
  }
  return {out.get(dev), ssm.get(dev)};
}

std::vector<ChunkShape> shapes() {
  return {{2, 4, 128, 128, {}}, {2, 4, 64, 48, {memra::KeyHeadMode::interleaved}}, {1, 3, 128, 80, {}}};
}

TEST_CASE("the chunked scan against float64, for all decays and sizes of numbers", "[ops]") {
  CudaDev dev = memra_test::make_cuda();
  double worst = 0;
  for (const float decay : std::array{0.001F, 0.02F, 0.5F, 20.0F}) {
    for (const float size : std::array{1.0F, 1e-20F, 1e6F}) {
      for (const ChunkShape& shape : shapes()) {
        CAPTURE(decay, size, shape.d_k, shape.d_v);
        ChunkLayer l(shape, 64 * 5 + 9, decay);
        for (float& x : l.v) x *= size;
        for (float& x : l.ssm) x *= size;
        const ChunkOracle truth(l);
        const Result got = run(dev, l, {l.rows});
        CHECK(truth.out_error(got.out) < bound);
        CHECK(truth.state_error(got.ssm) < bound);
        worst = std::max({worst, truth.out_error(got.out), truth.state_error(got.ssm)});
        // Red arm: a rate that is a little off is noticed.
        ChunkLayer wrong = l;
        wrong.beta[3] += 0.01F;
        CHECK(truth.out_error(run(dev, wrong, {l.rows}).out) > bound);
      }
    }
  }
  std::printf("chunked scan: largest error against float64 %.2e of the largest number (bound %.0e)\n", worst, bound);
}

TEST_CASE("tokens that nothing of the past reaches, and rates of nothing", "[ops]") {
  CudaDev dev = memra_test::make_cuda();
  ChunkLayer l(shapes()[0], 200, 0.1F);
  for (std::size_t i = 0; i < l.g.size(); i += 7) l.g[i] = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < l.beta.size(); i += 5) l.beta[i] = 0.0F;
  std::fill(l.ssm.begin(), l.ssm.begin() + 4096, 0.0F);
  const ChunkOracle truth(l);
  const Result got = run(dev, l, {200});
  CHECK(truth.out_error(got.out) < bound);
  CHECK(truth.state_error(got.ssm) < bound);
}

TEST_CASE("a chunked call is any calls that it may be split into on the grid, bit for bit", "[ops]") {
  CudaDev dev = memra_test::make_cuda();
  for (const ChunkShape& shape : shapes()) {
    // Of one shape more chunks than have their factors held at a time.
    const ChunkLayer l(shape, 64 * (shape.n_v == 3 ? memra::detail::scan_group_chunks + 1 : 17) + 9, 0.1F);
    const Result whole = run(dev, l, {l.rows});
    CHECK(run(dev, l, {l.rows}) == whole);
    CHECK(run(dev, l, {64, 192, 1024, l.rows}) == whole);
    CHECK(run(dev, l, {640, 704, l.rows}) == whole);
    CHECK(run(dev, l, {l.rows}, How::captured) == whole);
    CHECK(run(dev, l, {128, l.rows}, How::captured) == whole);
    CHECK(run(dev, l, {l.rows}, How::shifted) == whole);
    CHECK(!(run(dev, l, {100, l.rows}) == whole));  // red arm: off the grid, where without a position nobody looks
  }
}

TEST_CASE("shapes without a kernel of their own, and a position off the grid", "[ops]") {
  CudaDev dev = memra_test::make_cuda();
  const ChunkLayer l({2, 4, 32, 24, {}}, 150, 0.1F);
  ChunkLayer on_host = l;
  memra::HostDev host;
  const auto want = on_host.run(host, 0, 150, ScanClass::chunked);
  const Result got = run(dev, l, {150});
  CHECK(same_bits(got.out, want));  // the portable bodies: the host's bits
  CHECK(same_bits(got.ssm, on_host.ssm));

  ChunkLayer still(shapes()[0], 64, 0.1F);
  const On in(dev, still.q), ssm(dev, still.ssm), v(dev, still.v), g(dev, still.g);
  const On ws(dev, std::vector<float>(memra::detail::chunk_scan_bytes(4, 64) / 4));
  auto word = memra::check(dev.zeros(64));
  auto* pos = reinterpret_cast<std::int32_t*>(word.data());
  memra::RecurView r = still.view(64, ScanClass::chunked);
  r.ssm = ssm.data();
  r.at = {pos, 64, 0, 1000};
  const memra::ScanArgs a{in.data(), in.data(), v.data(), g.data(), g.data(), v.data()};
  const memra::ops_for<CudaDev> ops(dev);
  for (const std::int32_t p : std::array{1, 63, -1, 960}) {
    memra::check(dev.store_i32(pos, &p, 1));
    memra::check(ops.delta_scan(r, a, {ws.buffer.data(), ws.n * 4}));
    CHECK(same_bits(ssm.get(dev), still.ssm));
  }
}

TEST_CASE("a cache's prompt in chunks: the state, its class, and rounds after it", "[ops]") {
  CudaDev dev = memra_test::make_cuda();
  memra::ModelConfig cfg;
  cfg.layers = {memra::recurrent(memra::gated_delta(2, 4, 128, 128, 1))};
  memra::CacheOptions options;
  options.rounds.rows = 4;
  options.rounds.planes = true;
  const ChunkLayer l({2, 4, 128, 128, {}}, 204, 0.1F);
  ChunkLayer zero = l;
  std::fill(zero.ssm.begin(), zero.ssm.end(), 0.0F);
  const ChunkOracle truth(zero);
  const On q(dev, l.q), k(dev, l.k), v(dev, l.v), g(dev, l.g), beta(dev, l.beta);
  const On out(dev, std::vector<float>(l.v.size()));
  auto cache = memra::check(memra::Cache<CudaDev>::create(dev, cfg, 400, options));
  const auto ws =
      memra::check(memra::Workspace<CudaDev>::create(dev, cache.plan().workspace_bytes(200, 1, ScanClass::chunked)));
  const memra::ops_for<CudaDev> ops(dev);
  const auto scan = [&](const memra::RecurView& r, std::size_t at) {
    memra::check(ops.delta_scan(r,
                                {q.data() + at * 256, k.data() + at * 256, v.data() + at * 512, g.data() + at * 4,
                                 beta.data() + at * 4, out.data() + at * 512},
                                ws.view()));
  };
  std::size_t done = 0;
  for (const std::size_t rows : std::array<std::size_t, 2>{128, 72}) {
    auto step = memra::check(cache.begin_step(rows, ScanClass::chunked));
    scan(memra::check(step.recur(0)), done);
    memra::check(cache.advance());
    done += rows;
  }
  CHECK(cache.scan_class() == ScanClass::chunked);
  CHECK(!cache.begin_step(64, ScanClass::chunked));
  {
    auto round = memra::check(cache.begin_round(4, memra::Strategy::planes));
    scan(memra::check(round.recur(0)), done);
    memra::check(round.commit(4));
  }
  const auto snap = memra::check(cache.snapshot());
  CHECK(snap.scan_class() == ScanClass::chunked);
  std::vector<float> ssm(zero.ssm.size());
  memra::check(dev.download(reinterpret_cast<std::byte*>(ssm.data()),
                            reinterpret_cast<const std::byte*>(cache.recur(0)->ssm), ssm.size() * 4));
  CHECK(truth.out_error(out.get(dev)) < bound);
  CHECK(truth.state_error(ssm) < bound);
}

}  // namespace
}  // namespace chunked_cu
