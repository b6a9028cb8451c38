// The chunked class of delta_scan: against float64 and the sequential class, split on the grid bit for bit, refused off
// it and in rounds, and the mark that snapshots, rollbacks and prefixes carry.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memra/any_dev.hpp>
#include <memra/cache.hpp>
#include <memra/host_ops.hpp>
#include <memra/portable_ops.hpp>
#include <memra/workspace.hpp>
#include <string>
#include <support/catch.hpp>
#include <support/chunk_layer.hpp>
#include <support/planes.hpp>
#include <support/says.hpp>
#include <utility>
#include <vector>

namespace scan_chunked_cpp {
namespace {

using memra::ErrorKind;
using memra::HostDev;
using memra::ScanClass;
using memra_test::ChunkLayer;
using memra_test::ChunkOracle;
using memra_test::ChunkShape;
using memra_test::same_bits;
using memra_test::says;

struct PortableHost : HostDev {
  using kernels = memra::PortableKernels;
};

/// Heads in both maps, with tails past vectors of 16 and groups of 16 columns.
std::vector<ChunkShape> shapes() {
  return {{2, 4, 64, 32, {}}, {2, 4, 20, 9, {memra::KeyHeadMode::interleaved}}, {1, 1, 128, 17, {}}};
}

TEST_CASE("the chunked scan against float64: the error of the sequential one, within 1e-5", "[scan]") {
  // Bound: u, out and S are sums of products of at most 128 + 64 factors, each rounded to 2^-24 of its size.
  for (const float decay : {0.02F, 0.5F, 20.0F}) {
    for (const ChunkShape& shape : shapes()) {
      CAPTURE(decay, shape.d_k, shape.d_v);
      const ChunkLayer start(shape, 200, decay);
      const ChunkOracle truth(start);
      ChunkLayer chunked = start;
      ChunkLayer sequential = start;
      HostDev dev;
      const auto out = chunked.run(dev, 0, 200, ScanClass::chunked);
      const auto plain = sequential.run(dev, 0, 200, ScanClass::sequential);
      REQUIRE(truth.out_error(out) < 1e-5);
      REQUIRE(truth.state_error(chunked.ssm) < 1e-5);
      REQUIRE(truth.out_error(plain) < 1e-5);
      REQUIRE(!same_bits(out, plain));  // or the two would be one class
      // Red arms: a wrong key, decay or rate is noticed; among decays that leave nothing one more does not matter.
      for (std::vector<float> ChunkLayer::*input : {&ChunkLayer::k, &ChunkLayer::g, &ChunkLayer::beta}) {
        if (input == &ChunkLayer::g && decay > 1) continue;
        ChunkLayer wrong = start;
        (wrong.*input)[(wrong.*input).size() / 2] *= 0.9F;
        REQUIRE(truth.out_error(wrong.run(dev, 0, 200, ScanClass::chunked)) > 1e-5);
      }
    }
  }
}

TEST_CASE("a chunked call is any calls that it may be split into on the grid, bit for bit", "[scan][identity]") {
  for (const ChunkShape& shape : shapes()) {
    const ChunkLayer start(shape, 300, 0.3F);
    ChunkLayer whole = start;
    HostDev dev;
    const auto out = whole.run(dev, 0, 300, ScanClass::chunked);
    for (const std::vector<std::size_t>& cuts :
         {std::vector<std::size_t>{0, 64, 128, 192, 256, 300}, {0, 128, 300}, {0, 256, 300}, {0, 192, 256, 300}}) {
      ChunkLayer pieces = start;
      std::vector<float> all;
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        const auto some = pieces.run(dev, cuts[i], cuts[i + 1] - cuts[i], ScanClass::chunked);
        all.insert(all.end(), some.begin(), some.end());
      }
      REQUIRE(same_bits(all, out));
      REQUIRE(same_bits(pieces.ssm, whole.ssm));
    }
    // A prompt that ends inside a chunk: what it computed is the beginning of the longer one's.
    ChunkLayer shorter = start;
    const auto begin = shorter.run(dev, 0, 201, ScanClass::chunked);
    REQUIRE(same_bits(begin, std::vector<float>(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(begin.size()))));
    // Red arm: cut off the grid, where the op's check does not look (no position), other bits come out.
    ChunkLayer off = start;
    off.run(dev, 0, 100, ScanClass::chunked);
    off.run(dev, 100, 200, ScanClass::chunked);
    REQUIRE(!same_bits(off.ssm, whole.ssm));
  }
}

TEST_CASE("the portable bodies and an erased device give the host's bits", "[scan][identity]") {
  for (const ChunkShape& shape : shapes()) {
    // Of the small shape more chunks than a group holds.
    const std::size_t rows = shape.d_k == 20 ? 64 * (memra::detail::scan_group_chunks + 1) + 5 : 200;
    const ChunkLayer start(shape, rows, 0.3F);
    ChunkLayer host = start;
    ChunkLayer portable = start;
    ChunkLayer erased = start;
    HostDev dev;
    PortableHost other;
    memra::AnyDev any(other);
    const auto out = host.run(dev, 0, rows, ScanClass::chunked);
    REQUIRE(same_bits(portable.run(other, 0, rows, ScanClass::chunked), out));
    REQUIRE(same_bits(portable.ssm, host.ssm));
    REQUIRE(same_bits(erased.run(any, 0, rows, ScanClass::chunked), out));
  }
}

TEST_CASE("every width of registers gives the same bits", "[scan][identity]") {
  const ChunkLayer start(shapes()[1], 100, 0.3F);
  ChunkLayer native = start;
  HostDev dev;
  const auto out = native.run(dev, 0, 100, ScanClass::chunked);
  ChunkLayer plain = start;
  std::vector<float> there(out.size());
  std::vector<float> factors(memra::detail::chunk_scan_bytes(4, 100) / 4);
  const memra::detail::ChunkScanBody<memra::detail::PortableSimd> body{
      plain.view(100, ScanClass::chunked), plain.args(0, there.data(), true), factors.data()};
  for (std::size_t h = 0; h < 4; ++h) body({h, 0, 0});
  REQUIRE(same_bits(there, out));
  REQUIRE(same_bits(plain.ssm, native.ssm));
}

TEST_CASE("strides, and a call that does not fit", "[scan]") {
  const ChunkShape shape{2, 4, 32, 16, {}};
  const ChunkLayer start(shape, 130, 0.3F);
  ChunkLayer dense = start;
  HostDev dev;
  const auto out = dense.run(dev, 0, 130, ScanClass::chunked);
  const std::size_t width = 2 * 64 + 64 + 3;
  std::vector<float> wide(130 * width, std::nanf(""));
  for (std::size_t t = 0; t < 130; ++t) {
    std::copy_n(&start.q[t * 64], 64, &wide[t * width]);
    std::copy_n(&start.k[t * 64], 64, &wide[t * width + 64]);
    std::copy_n(&start.v[t * 64], 64, &wide[t * width + 128]);
  }
  ChunkLayer apart = start;
  std::vector<float> there(out.size());
  memra::ScanArgs a = apart.args(0, there.data(), false);
  a.q = wide.data();
  a.k = wide.data() + 64;
  a.v = wide.data() + 128;
  a.q_stride = a.k_stride = a.v_stride = width;
  const auto ws = memra::check(memra::Workspace<HostDev>::create(dev, memra::detail::chunk_scan_bytes(4, 130)));
  const memra::ops_for<HostDev> ops(dev);
  REQUIRE(ops.delta_scan(apart.view(130, ScanClass::chunked), a, ws.view()).ok());
  REQUIRE(same_bits(there, out));

  // Positions that only the device knows: off the grid, past capacity or ended, nothing moves.
  for (const std::int32_t pos : {-1, 1, 63, 960}) {
    ChunkLayer still = start;
    memra::RecurView r = still.view(130, ScanClass::chunked);
    r.at = {&pos, 130, 0, 1000};
    REQUIRE(ops.delta_scan(r, a, ws.view()).ok());
    REQUIRE(same_bits(still.ssm, start.ssm));
  }
}

TEST_CASE("what delta_scan refuses of the chunked class", "[scan]") {
  const ChunkShape shape{2, 4, 32, 16, {}};
  ChunkLayer l(shape, 64, 0.3F);
  std::vector<float> out(std::size_t{64} * 64);
  HostDev dev;
  const auto ws = memra::check(memra::Workspace<HostDev>::create(dev, memra::detail::chunk_scan_bytes(4, 64)));
  const memra::ops_for<HostDev> ops(dev);
  const memra::RecurView good = l.view(64, ScanClass::chunked);
  const auto a = l.args(0, out.data(), false);
  const auto before = l.ssm;
  memra::RecurView r = good;
  r.at.pos_bound = 65;
  REQUIRE(says(ops.delta_scan(r, a, ws.view()), ErrorKind::bad_argument,
               "a chunked call at position 65; expected a multiple of 64"));
  r = good;
  r.round.mode = memra::RoundMode::stash;
  REQUIRE(says(ops.delta_scan(r, a, ws.view()), ErrorKind::bad_argument, "a round is never chunked"));
  r = good;
  r.rule = memra::ScanRule::kda;
  REQUIRE(says(ops.delta_scan(r, a, ws.view()), ErrorKind::bad_argument, "has a chunked class"));
  r.rule = memra::ScanRule::linear;
  REQUIRE(says(ops.linear_scan(r, a), ErrorKind::bad_argument, "no chunked class"));
  r = good;
  r.ssm_format = memra::Format::bf16;
  REQUIRE(says(ops.delta_scan(r, a, ws.view()), ErrorKind::bad_argument, "has a chunked class"));
  REQUIRE(says(ops.delta_scan(good, a), ErrorKind::bad_argument, "the workspace has 0 bytes"));
  REQUIRE(says(ops.delta_scan(good, a, {ws.view().data, ws.bytes() - 1}), ErrorKind::bad_argument, "needs"));
  REQUIRE(same_bits(l.ssm, before));
  REQUIRE(ops.delta_scan(good, a, ws.view()).ok());
}

// --- the mark ---

memra::ModelConfig model() {
  memra::ModelConfig cfg;
  cfg.layers = {memra::recurrent(memra::gated_delta(1, 2, 8, 4, 4)), memra::recurrent(memra::kda(2, 8, 4, 4)),
                memra::full_attention({.n_heads = 1, .n_kv_heads = 1, .head_dim_k = 32, .head_dim_v = 32})};
  return cfg;
}
memra::RoundOptions two_rows() {
  memra::RoundOptions o;
  o.rows = 2;
  o.planes = o.stash = o.replay = true;
  return o;
}
using Cache = memra::Cache<HostDev>;

/// A step that asks for every view and runs nothing. @return the class of the two recurrent layers' views
std::pair<ScanClass, ScanClass> step(Cache& c, std::size_t rows, ScanClass scan = ScanClass::sequential) {
  auto s = memra::check(c.begin_step(rows, scan));
  const auto first = memra::check(s.recur(0)).scan;
  const auto second = memra::check(s.recur(1)).scan;
  memra::check(s.kv_write(2));
  memra::check(c.advance());
  return {first, second};
}

TEST_CASE("a chunked step: on the grid only, its views say so where the layer has the class", "[scan][cache]") {
  HostDev dev;
  auto c = memra::check(Cache::create(dev, model(), 400, {.rounds = two_rows()}));
  REQUIRE(c.scan_class() == ScanClass::sequential);
  REQUIRE(step(c, 64) == std::pair(ScanClass::sequential, ScanClass::sequential));
  REQUIRE(c.scan_class() == ScanClass::sequential);
  REQUIRE(step(c, 128, ScanClass::chunked) == std::pair(ScanClass::chunked, ScanClass::sequential));
  REQUIRE(c.scan_class() == ScanClass::chunked);
  REQUIRE(step(c, 9, ScanClass::chunked).first == ScanClass::chunked);  // the prompt ends inside a chunk
  REQUIRE(says(c.begin_step(64, ScanClass::chunked).status(), ErrorKind::bad_argument,
               "a chunked step at position 201; expected a multiple of 64: feed 55 rows sequentially"));
  REQUIRE(c.pos() == 201);
  REQUIRE(step(c, 55).first == ScanClass::sequential);
  REQUIRE(c.scan_class() == ScanClass::chunked);  // for good
  // Rounds and steps of the device go token by token.
  for (const auto by : {memra::Strategy::planes, memra::Strategy::stash, memra::Strategy::replay}) {
    auto round = memra::check(c.begin_round(2, by));
    REQUIRE(memra::check(round.recur(0)).scan == ScanClass::sequential);
  }
  {
    auto on_device = memra::check(c.begin_device_step(1));
    REQUIRE(memra::check(on_device.recur(0)).scan == ScanClass::sequential);
  }
  REQUIRE(c.reset().ok());
  REQUIRE(c.scan_class() == ScanClass::sequential);
  REQUIRE(c.plan().workspace_bytes(400, 1, ScanClass::chunked) == memra::detail::chunk_scan_bytes(2, 400));
  REQUIRE(c.plan().workspace_bytes(400) < memra::detail::chunk_scan_bytes(2, 400));

  memra::ModelConfig none = model();
  none.layers.erase(none.layers.begin());
  auto other = memra::check(Cache::create(dev, none, 400));
  REQUIRE(
      says(other.begin_step(64, ScanClass::chunked).status(), ErrorKind::bad_argument, "no layer has a chunked scan"));
}

TEST_CASE("snapshots, rollbacks and prefixes carry the class", "[scan][cache]") {
  HostDev dev;
  auto c = memra::check(Cache::create(dev, model(), 400));
  step(c, 64);
  auto before = memra::check(c.snapshot());
  step(c, 70, ScanClass::chunked);
  auto after = memra::check(c.snapshot());
  REQUIRE(before.scan_class() == ScanClass::sequential);
  REQUIRE(after.scan_class() == ScanClass::chunked);
  const auto prefix = memra::check(c.export_prefix(after));
  const auto plain = memra::check(c.export_prefix(before));
  REQUIRE(prefix.scan_class() == ScanClass::chunked);
  REQUIRE(plain.scan_class() == ScanClass::sequential);  // the live cache is of the other class by now
  auto made = memra::check(Cache::from_prefix(dev, model(), 300, prefix));
  REQUIRE(made.scan_class() == ScanClass::chunked);
  REQUIRE(memra::check(made.snapshot()).scan_class() == ScanClass::chunked);
  REQUIRE(memra::check(Cache::from_prefix(dev, model(), 300, plain)).scan_class() == ScanClass::sequential);
  REQUIRE(c.rollback(before, 0).ok());
  REQUIRE(c.scan_class() == ScanClass::sequential);
  REQUIRE(c.snapshot_into(after).ok());
  REQUIRE(after.scan_class() == ScanClass::sequential);
  // A chunked step that died half way has moved the state.
  step(c, 64);
  memra::check(memra::check(c.begin_step(64, ScanClass::chunked)).recur(0));
  REQUIRE(c.scan_class() == ScanClass::chunked);
  REQUIRE(c.rollback(before, 0).ok());
  REQUIRE(c.scan_class() == ScanClass::sequential);
}

}  // namespace
}  // namespace scan_chunked_cpp
