// Speculative decoding against PyTorch's lists: tokens and committed counts with f32 KV, acceptance with quantised KV.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memra/error.hpp>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <support/catch.hpp>
#include <vector>

#include <engine/rig.hpp>

namespace {

using memra::check;

struct Reference {
  std::string prompt;
  std::vector<std::int32_t> tokens;  // the first 160
  std::vector<std::size_t> rounds;
  std::size_t total() const { return std::accumulate(rounds.begin(), rounds.end(), std::size_t{0}); }
};

std::vector<Reference> references() {
  std::ifstream in(rig::fixture("tiny/spec_reference.json"));
  const auto json = nlohmann::json::parse(in);
  std::vector<Reference> all;
  for (const auto& [prompt, r] : json.items()) {
    all.push_back({prompt, r["tokens"].get<std::vector<std::int32_t>>(), r["rounds"].get<std::vector<std::size_t>>()});
  }
  return all;
}

tiny::Generated run(rig::Rig& r, const Reference& ref, std::size_t tokens) {
  auto d = r.decoder();
  d.prime(rig::bytes_of(ref.prompt));
  tiny::GenerateOptions o;
  o.max_tokens = tokens;
  o.ignore_eos = true;
  return d.speculative(o);
}

/// Distance between the two largest logits after prompt + tokens[0, n), in plain decoding.
float top_two_distance(const tiny::ModelFiles& files, const Reference& ref, std::span<const std::int32_t> tokens,
                       std::size_t n) {
  rig::Rig r(files, {});
  std::vector<std::int32_t> ids = rig::bytes_of(ref.prompt);
  ids.insert(ids.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(n));
  std::vector<float> last;
  r.decoder(false).prime(ids, 1, [&](std::span<const float> rows) { last.assign(rows.begin(), rows.end()); });
  std::sort(last.begin(), last.end(), [](float a, float b) { return a > b; });
  return last[0] - last[1];
}

/// Equal, or different for the first time where the model itself cannot tell two tokens apart.
bool tokens_agree(const tiny::ModelFiles& files, const Reference& ref, const std::vector<std::int32_t>& got,
                  bool& tie) {
  tie = false;
  for (std::size_t i = 0; i < ref.tokens.size(); ++i) {
    if (i < got.size() && got[i] == ref.tokens[i]) continue;
    tie = i < got.size() && top_two_distance(files, ref, ref.tokens, i) <= 1e-4F;
    return tie;
  }
  return true;
}

}  // namespace

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
