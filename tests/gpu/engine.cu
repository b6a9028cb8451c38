// The tiny engine on a GPU: transformers' values, PyTorch's token lists, and stages that change no bit.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <engine/golden.hpp>
#include <engine/spec_reference.hpp>
#include <numeric>
#include <span>
#include <string>
#include <support/catch.hpp>
#include <support/planes.hpp>
#include <tiny_engine/norms.hpp>
#include <vector>

#include "gpu_ops.hpp"
#include "support.hpp"

namespace engine_cu {
namespace {

using memra::check;
using GpuRig = rig::RigOn<memra_test::Gpu>;

/// The golden text on a GPU, f32 K and V: their attention is the portable one, so that nothing but the engine's own
/// arithmetic is between these values and the host's.
golden::Observed observe(const tiny::ModelFiles& files, const std::vector<std::int32_t>& ids, std::size_t chunk,
                         const std::vector<std::size_t>& layers, std::size_t stages = 1) {
  GpuRig r(files, golden::options(ids, chunk, stages), memra_test::make_gpu);
  return golden::observe(r, ids, layers);
}

/// Every norm of the engine over 3 rows of 2 heads of `dim`, one after the other in one buffer: its bits.
template <class Dev>
std::vector<std::byte> norms(Dev& dev, std::size_t dim, const std::vector<float>& x) {
  const std::size_t n = 6 * dim;
  std::vector<float> host(4 * n + n + dim + 5 * dim);  // four results, gates, weights, the table of rotations
  for (std::size_t part = 0; part < 5; ++part) std::copy(x.begin(), x.begin() + n, host.begin() + part * n);
  std::copy(x.begin(), x.begin() + 6 * dim, host.begin() + 5 * n);
  const std::int32_t pos = 1;
  auto buffer = check(dev.alloc(host.size() * 4 + 4));
  check(dev.upload(buffer.data(), reinterpret_cast<const std::byte*>(host.data()), host.size() * 4));
  check(dev.upload(buffer.data() + host.size() * 4, reinterpret_cast<const std::byte*>(&pos), 4));
  auto* f = reinterpret_cast<float*>(buffer.data());
  const float* z = f + 4 * n;
  const float* w = f + 5 * n;
  const tiny::RopeView rope{w + dim, 5, dim / 2 / 2 * 2};  // positions 1, 2, 3 of 5
  const auto* pos_d = reinterpret_cast<const std::int32_t*>(f + host.size());
  check(memra::launch(dev, "rms", {6, 1, 1}, tiny::RmsNormBody{z, w, f, dim, 1e-6F}));
  check(memra::launch(dev, "rope", {3, 2, 1},
                      tiny::HeadNormRopeBody{z, 2 * dim, dim, w, f + n, 2, dim, 1e-6F, rope, pos_d}));
  check(memra::launch(dev, "l2", {3, 2, 1}, tiny::L2NormBody{f + 2 * n, 2 * dim, dim}));
  check(memra::launch(dev, "gated", {3, 2, 1}, tiny::GatedRmsNormBody{f + 3 * n, w, z, 2, dim, 1e-6F}));
  std::vector<std::byte> out(4 * n * 4);
  check(dev.download(out.data(), buffer.data(), out.size()));
  return out;
}

TEST_CASE("a block of threads normalises a vector to the host's bits", "[engine][sanitize]") {
  auto dev = memra_test::make_gpu();
  memra::HostDev host;
  memra_test::Rng rng(3);
  for (const std::size_t dim : {1, 4, 15, 16, 17, 100, 128, 1000, 1024, 1040, 2560, 4099}) {
    std::vector<float> x = rng.vector(6 * dim, 3.0F);
    const auto want = norms(host, dim, x);
    INFO("vectors of " << dim);
    REQUIRE((norms(dev, dim, x) == want));
    x[dim / 2] += 0.25F;
    REQUIRE_FALSE((norms(dev, dim, x) == want));
  }
}

// The tolerances are the host's: logits within 2e-4, taps and states within 2e-5 (golden.hpp).
TEST_CASE("golden values on a GPU, and no bit changes with chunks or with stages on two streams", "[engine]") {
  for (const golden::Case& one : golden::cases) {
    const auto files = check(tiny::load_model(rig::fixture(one.folder)));
    const auto gold = check(tiny::SafeTensors::open(rig::fixture(one.folder + "/golden.safetensors")));
    const auto ids = rig::read<std::int32_t>(gold, "ids");
    const golden::Observed whole = observe(files, ids, 64, one.layers);
    const auto worst = golden::errors(whole, files, gold, one.layers);
    INFO(one.folder << ": " << golden::shown(worst));
    REQUIRE(golden::within(worst));
    REQUIRE(worst.size() == (one.folder == "tiny" ? 5U : 4U));
    const golden::Observed host = golden::observe(files, ids, 64, one.layers);
    std::printf("golden: %s on a GPU: %s(%s the host's bits)\n", one.folder.c_str(), golden::shown(worst).c_str(),
                whole == host ? "all" : "not all");
    const golden::Observed chunks = observe(files, ids, 7, one.layers);
    REQUIRE(chunks == whole);
    for (const std::size_t stages : {std::size_t{2}, std::size_t{3}}) {
      const golden::Observed staged = observe(files, ids, 7, one.layers, stages);
      INFO(rig::first_difference(whole.state, staged.state));
      REQUIRE(staged == whole);
    }
    // Red arms: another token in the text, a value off by little.
    auto other = ids;
    other[3] += 1;
    const golden::Observed wrong = observe(files, other, 64, one.layers);
    REQUIRE_FALSE(golden::within(golden::errors(wrong, files, gold, one.layers)));
    REQUIRE_FALSE(wrong == whole);
    golden::Observed nudged = whole;
    nudged.logits[777] += 5e-4F;
    REQUIRE_FALSE(golden::within(golden::errors(nudged, files, gold, one.layers)));
  }
}

TEST_CASE("f32 K and V on a GPU reproduce the reference's tokens and every round", "[engine]") {
  const auto files = check(tiny::load_model(rig::fixture("tiny")));
  for (const spec::Reference& ref : spec::references()) {
    GpuRig r(files, {}, memra_test::make_gpu);
    const tiny::Generated g = spec::run(r, ref, ref.total());
    INFO(ref.prompt);
    bool tie = false;
    REQUIRE(spec::tokens_agree(files, ref, g.tokens, tie));
    if (!tie) REQUIRE(g.rounds == ref.rounds);
    REQUIRE(r.cache->pos() == ref.prompt.size() + g.tokens.size());
    std::vector<std::int32_t> wrong = g.tokens;
    wrong[100] ^= 1;
    REQUIRE_FALSE(spec::tokens_agree(files, ref, wrong, tie));
  }
}

TEST_CASE("quantised K and V on a GPU: the host's tokens, and nine tenths of the acceptance", "[engine]") {
  const auto files = check(tiny::load_model(rig::fixture("tiny")));
  rig::Options o;
  o.k = memra::Format::q8_0;
  o.v = memra::Format::q5_1;
  std::size_t committed = 0;
  std::size_t rounds = 0;
  std::size_t ref_committed = 0;
  std::size_t ref_rounds = 0;
  std::size_t same = 0;
  for (const spec::Reference& ref : spec::references()) {
    GpuRig r(files, o, memra_test::make_gpu);
    const tiny::Generated g = spec::run(r, ref, 160);
    rig::Rig host(files, o);
    const tiny::Generated h = spec::run(host, ref, 160);
    INFO(ref.prompt);
    REQUIRE(g.tokens.size() == 160);
    // Attention is of its own class on a GPU: a tie may fall the other way, a token that is no tie may not.
    const spec::Reference hosts{ref.prompt, h.tokens, h.rounds};
    bool tie = false;
    REQUIRE(spec::tokens_agree(files, hosts, g.tokens, tie, o));
    same += g.tokens == h.tokens ? 1U : 0U;
    std::vector<std::int32_t> wrong = g.tokens;
    wrong[50] ^= 1;
    REQUIRE_FALSE(spec::tokens_agree(files, hosts, wrong, tie, o));
    committed += std::accumulate(g.rounds.begin(), g.rounds.end(), std::size_t{0});
    rounds += g.rounds.size();
    ref_committed += ref.total();
    ref_rounds += ref.rounds.size();
  }
  const double ours = static_cast<double>(committed) / static_cast<double>(rounds);
  const double theirs = static_cast<double>(ref_committed) / static_cast<double>(ref_rounds);
  std::printf(
      "spec_reference: q8_0/q5_1 on a GPU: %.2f committed per round (reference %.2f), %zu of %zu token lists "
      "the host's\n",
      ours, theirs, same, spec::references().size());
  REQUIRE(ours >= 0.9 * theirs);
}

TEST_CASE("speculation equals plain decoding to the last byte of state, by every strategy", "[engine]") {
  const auto files = check(tiny::load_model(rig::fixture("tiny")));
  rig::Options o;
  o.k = memra::Format::q8_0;
  o.v = memra::Format::q5_1;
  o.layout = memra::Layout::split;
  o.stages = 2;
  const std::vector<std::int32_t> prompt = rig::bytes_of("Ge1:1 In the beginning");
  tiny::GenerateOptions how;
  how.max_tokens = 60;
  how.ignore_eos = true;
  GpuRig plain(files, o, memra_test::make_gpu);
  auto decoder = plain.decoder(false);
  decoder.prime(prompt);
  const std::vector<std::int32_t> tokens = decoder.plain(how).tokens;
  const rig::State want = rig::look(*plain.cache);
  for (const memra::Strategy by :
       std::array{memra::Strategy::replay, memra::Strategy::planes, memra::Strategy::stash}) {
    GpuRig r(files, o, memra_test::make_gpu);
    auto d = r.decoder();
    d.prime(prompt);
    how.strategy = by;
    const tiny::Generated g = d.speculative(how);
    rig::State got = rig::look(*r.cache);
    INFO(memra::to_string(by) << ": " << rig::first_difference(want, got));
    REQUIRE(g.tokens == tokens);
    REQUIRE(g.rounds.size() < 60);
    REQUIRE(got == want);
    got.at("0.ssm")[5] ^= std::byte{1};
    REQUIRE(rig::first_difference(want, got) == "0.ssm");
  }
}

}  // namespace
}  // namespace engine_cu
