// Speculative decoding against PyTorch's lists: tokens and committed counts with f32 KV, acceptance with quantised KV.
#include <cstddef>
#include <cstdint>
#include <engine/spec_reference.hpp>
#include <memra/error.hpp>
#include <numeric>
#include <support/catch.hpp>
#include <vector>

namespace spec_reference_cpp {
using memra::check;
using spec::Reference;
using spec::references;
using spec::run;
using spec::tokens_agree;

TEST_CASE("f32 KV reproduces the reference's tokens and every round") {
  const auto files = check(tiny::load_model(rig::fixture("tiny")));
  for (const Reference& ref : references()) {
    rig::Rig r(files, {});
    const tiny::Generated g = run(r, ref, ref.total());
    INFO(ref.prompt);
    bool tie = false;
    REQUIRE(tokens_agree(files, ref, g.tokens, tie));
    if (!tie) REQUIRE(g.rounds == ref.rounds);
    const std::size_t fed = ref.prompt.size() + g.tokens.size();
    REQUIRE(r.cache->pos() == fed);
    REQUIRE(r.cache->len() == fed);
    REQUIRE(r.drafter->kv().len() == fed);
  }
}

TEST_CASE("red arm: a wrong token and a wrong round are seen") {
  const auto files = check(tiny::load_model(rig::fixture("tiny")));
  const Reference ref = references()[0];
  bool tie = false;
  std::vector<std::int32_t> tokens = ref.tokens;
  REQUIRE(tokens_agree(files, ref, tokens, tie));
  tokens[100] ^= 1;
  REQUIRE_FALSE(tokens_agree(files, ref, tokens, tie));
  tokens = ref.tokens;
  tokens.pop_back();
  REQUIRE_FALSE(tokens_agree(files, ref, tokens, tie));

  // A drafter that looks at a stale row proposes something else: the text stays, the rounds do not.
  rig::Rig r(files, {});
  auto d = r.decoder();
  d.prime(rig::bytes_of(ref.prompt));
  const std::size_t row = r.drafter->kv().len() - 1;
  auto* v = const_cast<float*>(r.drafter->kv().v(0));
  const std::size_t width = r.drafter->kv().row_bytes() / sizeof(float);
  for (std::size_t i = 0; i < width; ++i) v[row * width + i] = 30.0F;
  tiny::GenerateOptions o;
  o.max_tokens = ref.total();
  o.ignore_eos = true;
  const tiny::Generated g = d.speculative(o);
  REQUIRE(tokens_agree(files, ref, g.tokens, tie));
  REQUIRE_FALSE(g.rounds == ref.rounds);
}

TEST_CASE("q8_0/q5_1 KV keeps nine tenths of the acceptance") {
  const auto files = check(tiny::load_model(rig::fixture("tiny")));
  std::size_t committed = 0;
  std::size_t rounds = 0;
  std::size_t ref_committed = 0;
  std::size_t ref_rounds = 0;
  for (const Reference& ref : references()) {
    rig::Options o;
    o.k = memra::Format::q8_0;
    o.v = memra::Format::q5_1;
    rig::Rig r(files, o);
    const tiny::Generated g = run(r, ref, 160);
    REQUIRE(g.tokens.size() == 160);
    committed += std::accumulate(g.rounds.begin(), g.rounds.end(), std::size_t{0});
    rounds += g.rounds.size();
    ref_committed += ref.total();
    ref_rounds += ref.rounds.size();
  }
  const double ours = static_cast<double>(committed) / static_cast<double>(rounds);
  const double theirs = static_cast<double>(ref_committed) / static_cast<double>(ref_rounds);
  INFO(ours << " committed per round; the reference has " << theirs);
  REQUIRE(ours >= 0.9 * theirs);
}
}  // namespace spec_reference_cpp
