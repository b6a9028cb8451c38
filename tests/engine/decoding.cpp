// The decoders where texts end: EOS, token budget, end of context, both draft arms, an untied model without a drafter.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memra/error.hpp>
#include <span>
#include <string>
#include <support/catch.hpp>
#include <vector>

#include <engine/rig.hpp>

namespace decoding_cpp {
namespace {

using memra::check;

tiny::ModelFiles tiny_files() {
  return check(tiny::load_model(rig::fixture("tiny")));
}

struct Both {
  tiny::Generated plain, speculative;
  rig::State plain_state, speculative_state;
};

/// Runs plain and speculative decoding from the same prompt, each with a cache of its own.
Both both(const tiny::ModelFiles& files, const rig::Options& o, const std::string& prompt,
          const tiny::GenerateOptions& generate) {
  Both b;
  rig::Rig p(files, o);
  auto dp = p.decoder(false);
  dp.prime(rig::bytes_of(prompt));
  b.plain = dp.plain(generate);
  b.plain_state = rig::look(*p.cache);
  rig::Rig s(files, o);
  auto ds = s.decoder();
  ds.prime(rig::bytes_of(prompt));
  b.speculative = ds.speculative(generate);
  b.speculative_state = rig::look(*s.cache);
  REQUIRE(s.drafter->kv().len() == s.cache->pos());
  REQUIRE(s.cache->len() == s.cache->pos());
  REQUIRE(s.cache->pos() == prompt.size() + b.speculative.tokens.size());
  REQUIRE(ds.next() == dp.next());
  return b;
}

tiny::GenerateOptions tokens(std::size_t n) {
  tiny::GenerateOptions o;
  o.max_tokens = n;
  return o;
}

const std::string prompt = "Joh3:16 For God so";

}  // namespace

TEST_CASE("every budget from 0 to 20 commits exactly that many tokens, in both decoders") {
  const auto files = tiny_files();
  for (std::size_t n = 0; n <= 20; ++n) {
    const Both b = both(files, {}, prompt, tokens(n));
    INFO(n << " tokens: " << rig::first_difference(b.plain_state, b.speculative_state));
    REQUIRE(b.plain.tokens.size() == n);
    REQUIRE(b.speculative.tokens == b.plain.tokens);
    REQUIRE(b.speculative_state == b.plain_state);
  }
}

TEST_CASE("EOS ends the text and the commit, wherever in a block it falls") {
  auto files = tiny_files();
  const Both whole = both(files, {}, prompt, tokens(60));
  // Each token that occurs early stands in for EOS in turn.
  std::vector<std::int32_t> tried;
  for (std::size_t at = 0; at < 40 && tried.size() < 5; ++at) {
    const std::int32_t eos = whole.plain.tokens[at];
    if (std::find(tried.begin(), tried.end(), eos) != tried.end()) continue;
    tried.push_back(eos);
    files.config.eos = {eos};
    const Both b = both(files, {}, prompt, tokens(60));
    INFO("token " << eos << " first at " << at);
    REQUIRE(b.plain.tokens.size() == at + 1);
    REQUIRE(b.speculative.tokens == b.plain.tokens);
    REQUIRE(b.speculative_state == b.plain_state);
    tiny::GenerateOptions on = tokens(60);
    on.ignore_eos = true;
    REQUIRE(both(files, {}, prompt, on).speculative.tokens == whole.plain.tokens);
  }
  REQUIRE(tried.size() == 5);
}

TEST_CASE("the context ends: blocks get shorter, both decoders fill it and stop") {
  const auto files = tiny_files();
  for (const std::size_t room : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{8}, std::size_t{21}}) {
    rig::Options o;
    o.ctx = prompt.size() + room;
    const Both b = both(files, o, prompt, tokens(100));
    INFO("room for " << room);
    REQUIRE(b.plain.tokens.size() == room);
    REQUIRE(b.speculative.tokens == b.plain.tokens);
    REQUIRE(b.speculative_state == b.plain_state);
  }
}

TEST_CASE("a trunk that takes fewer rows than a block still speculates") {
  const auto files = tiny_files();
  rig::Options o;
  o.max_rows = 3;
  const Both b = both(files, o, prompt, tokens(40));
  REQUIRE(b.speculative.tokens == b.plain.tokens);
  REQUIRE(b.speculative_state == b.plain_state);
}

TEST_CASE("both draft arms propose the same and give the same hidden rows") {
  const auto files = tiny_files();
  rig::Rig r(files, {});
  auto d = r.decoder();
  d.prime(rig::bytes_of(prompt + " loved the world, that he gave his only begotten Son, that whosoever believeth"));
  // The full scan multiplies masked rows by zero: they must be finite, and here they are, having all been committed.
  for (const std::size_t b : {std::size_t{2}, std::size_t{5}, std::size_t{8}}) {
    const std::size_t n = b * files.config.hidden;
    const float* x = r.drafter->run_block(d.next(), b, memra::DraftArm::clip);
    const std::vector<float> clip(x, x + n);
    x = r.drafter->run_block(d.next(), b, memra::DraftArm::full_scan);
    const std::vector<float> full(x, x + n);
    REQUIRE(clip == full);
    REQUIRE(r.drafter->propose(d.next(), b, memra::DraftArm::clip) ==
            r.drafter->propose(d.next(), b, memra::DraftArm::full_scan));
  }
}

TEST_CASE("without a drafter there is plain decoding") {
  const auto files = check(tiny::load_model(rig::fixture("next_random")));
  REQUIRE_FALSE(files.draft);
  rig::Rig r(files, {});
  auto d = r.decoder();
  d.prime(std::vector<std::int32_t>{5, 6, 7});
  REQUIRE(d.plain(tokens(12)).tokens.size() == 12);
  REQUIRE(r.cache->pos() == 15);
}

TEST_CASE("tokens outside the vocabulary are refused and move nothing") {
  const auto files = tiny_files();
  rig::Rig r(files, {});
  auto d = r.decoder(false);
  REQUIRE_THROWS_AS(d.prime(std::vector<std::int32_t>{65, 260}), memra::Error);
  REQUIRE_THROWS_AS(d.prime(std::vector<std::int32_t>{-1}), memra::Error);
  REQUIRE(r.cache->pos() == 0);
  d.prime(std::vector<std::int32_t>{65, 259});
  REQUIRE(r.cache->pos() == 2);
}
}  // namespace decoding_cpp
