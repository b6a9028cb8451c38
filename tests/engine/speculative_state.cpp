// Speculative decoding equals plain decoding, token for token, and leaves the state that one-by-one feeding leaves.
#include <cstring>
#include <engine/sequence.hpp>

namespace speculative_state_cpp {
namespace {

using memra::Format;
using memra::Strategy;

struct Pair {
  Format k;
  Format v;
};
constexpr Pair pairs[] = {{Format::f32, Format::f32},   {Format::f16, Format::f16},
                          {Format::bf16, Format::bf16}, {Format::q8_0, Format::q8_0},
                          {Format::q8_0, Format::q5_1}, {Format::q8_0, Format::q4_0},
                          {Format::q4_0, Format::q4_0}, {Format::fp8_e4m3, Format::fp8_e4m3}};

void same_as_plain(const char* prompt, Pair p, std::size_t stages, std::size_t tokens, memra::Layout layout,
                   Strategy by = Strategy::replay) {
  INFO(prompt << ", " << memra::to_string(p.k) << "/" << memra::to_string(p.v) << ", stages " << stages << ", by "
              << memra::to_string(by));
  tokens = rig::tokens(tokens);
  const std::vector<std::int32_t> ids = rig::bytes_of(prompt);
  const std::size_t ctx = ids.size() + tokens + 7;
  seq::Sequence plain(p.k, p.v, 1, ctx);
  plain.decoder->prime(ids);
  const tiny::Generated straight = plain.plain(tokens);
  seq::Sequence spec(p.k, p.v, stages, ctx, layout);
  spec.decoder->prime(ids);
  const tiny::Generated got = spec.speculative(tokens, memra::DraftArm::clip, by);

  REQUIRE(straight.tokens.size() == tokens);
  REQUIRE(got.tokens == straight.tokens);
  // The evidence: drafts were accepted, and drafts were taken back.
  REQUIRE(got.rounds.size() < tokens);
  REQUIRE((got.replayed > 0) == (by == Strategy::replay));
  REQUIRE(got.strategy == by);
  REQUIRE(spec.cache->pos() == ids.size() + tokens);
  REQUIRE(spec.drafter->kv().len() == spec.cache->pos());

  const auto oracle = seq::one_by_one(p.k, p.v, seq::joined(ids, got.tokens), ctx, layout);
  CHECK(seq::difference(*spec.cache, *oracle->cache) == "");
  CHECK(seq::difference(spec.drafter->kv(), plain.drafter->kv()) == "");
  if (layout == memra::Layout::blocks) CHECK(seq::difference(*plain.cache, *oracle->cache) == "");
}

TEST_CASE("C6 C10: speculative equals plain in tokens and in state, every KV format pair", "[engine][identity]") {
  for (const Pair p : pairs) same_as_plain(seq::prompts[0], p, 1, 300, memra::Layout::blocks);
}

TEST_CASE("speculative equals plain in tokens and in state, by every strategy", "[engine][identity][round]") {
  for (const Strategy by : {Strategy::planes, Strategy::stash, Strategy::replay}) {
    for (std::size_t i = 0; i < 4; ++i) {
      same_as_plain(seq::prompts[i], {Format::q8_0, Format::q5_1}, 1 + i % 3, 200, memra::Layout::blocks, by);
    }
    same_as_plain(seq::prompts[1], {Format::f32, Format::f32}, 2, 120, memra::Layout::blocks, by);
    same_as_plain(seq::prompts[2], {Format::q4_0, Format::q5_1}, 1, 120, memra::Layout::split, by);
  }
}

TEST_CASE("strategies mixed in one text, with plain tokens between", "[engine][identity][round]") {
  const std::vector<std::int32_t> ids = rig::bytes_of(seq::prompts[1]);
  seq::Sequence spec(Format::q8_0, Format::q5_1, 2, 300);
  spec.decoder->prime(ids);
  std::vector<std::int32_t> tokens;
  constexpr Strategy all[] = {Strategy::planes, Strategy::stash, Strategy::replay, Strategy::automatic};
  for (std::size_t i = 0; tokens.size() < rig::tokens(200); ++i) {
    tokens = seq::joined(tokens, spec.speculative(1 + i % 11, memra::DraftArm::clip, all[i % 4]).tokens);
    if (i % 5 == 0) tokens = seq::joined(tokens, spec.plain(2).tokens);
  }
  seq::Sequence plain(Format::q8_0, Format::q5_1, 1, 300);
  plain.decoder->prime(ids);
  CHECK(plain.plain(tokens.size()).tokens == tokens);
  CHECK(seq::difference(*spec.cache, *plain.cache) == "");
  CHECK(seq::difference(spec.drafter->kv(), plain.drafter->kv()) == "");
}

TEST_CASE("C6 C10: speculative equals plain on every prompt over 1, 2 and 3 stages", "[engine][identity]") {
  for (const char* prompt : seq::prompts) {
    for (const std::size_t stages : {1U, 2U, 3U}) {
      same_as_plain(prompt, {Format::q8_0, Format::q5_1}, stages, 300, memra::Layout::blocks);
    }
  }
}

TEST_CASE("C10: the split layout decodes to the same tokens", "[engine][identity]") {
  same_as_plain(seq::prompts[1], {Format::q8_0, Format::q5_1}, 2, 120, memra::Layout::split);
  same_as_plain(seq::prompts[2], {Format::q4_0, Format::q5_1}, 1, 120, memra::Layout::split);
}

TEST_CASE("red arm: the state gate sees what a token gate may miss", "[engine]") {
  const std::vector<std::int32_t> ids = rig::bytes_of(seq::prompts[0]);
  seq::Sequence spec(Format::q8_0, Format::q5_1, 2, 256);
  spec.decoder->prime(ids);
  const tiny::Generated got = spec.speculative(60);
  const std::vector<std::int32_t> fed = seq::joined(ids, got.tokens);
  const auto oracle = seq::one_by_one(Format::q8_0, Format::q5_1, fed, 256);
  REQUIRE(seq::difference(*spec.cache, *oracle->cache) == "");

  const memra::RecurLayer layer = *spec.cache->recur(0);
  auto* conv = const_cast<float*>(layer.conv);
  auto* ssm = const_cast<float*>(layer.ssm);
  const std::vector<float> conv_before(conv, conv + layer.conv_elems());
  const std::vector<float> ssm_before(ssm, ssm + layer.ssm_elems());
  const auto restore = [&] {
    std::copy(conv_before.begin(), conv_before.end(), conv);
    std::copy(ssm_before.begin(), ssm_before.end(), ssm);
    REQUIRE(seq::difference(*spec.cache, *oracle->cache) == "");
  };

  SECTION("one conv column off") {
    for (std::size_t i = 0; i + 1 < layer.conv_elems(); ++i) conv[i] = conv_before[i + 1];
    CHECK(seq::difference(*spec.cache, *oracle->cache) == "0.conv");
    restore();
  }
  SECTION("a scaled state") {
    for (std::size_t i = 0; i < layer.ssm_elems(); ++i) ssm[i] *= 1.001F;
    CHECK(seq::difference(*spec.cache, *oracle->cache) == "0.ssm");
    restore();
  }
  SECTION("one replayed token twice, positions and rows right") {
    auto snap = memra::check(spec.cache->snapshot());
    spec.trunk->forward(*spec.cache, {&fed.back(), 1}, 1);
    const std::vector<float> conv_after(conv, conv + layer.conv_elems());
    const std::vector<float> ssm_after(ssm, ssm + layer.ssm_elems());
    memra::check(spec.cache->rollback(snap, 0));
    REQUIRE(seq::difference(*spec.cache, *oracle->cache) == "");
    std::copy(conv_after.begin(), conv_after.end(), conv);
    std::copy(ssm_after.begin(), ssm_after.end(), ssm);
    CHECK(seq::difference(*spec.cache, *oracle->cache) == "0.conv");
    std::copy(conv_before.begin(), conv_before.end(), conv);
    CHECK(seq::difference(*spec.cache, *oracle->cache) == "0.ssm");
    restore();
  }
  SECTION("a K row of a rejected draft left in place") {
    const memra::KvLayer kv = *spec.cache->kv(2);
    auto* row = const_cast<std::byte*>(kv.k.data) + 40 * kv.k_row_bytes();
    row[5] ^= std::byte{1};
    CHECK(seq::difference(*spec.cache, *oracle->cache) == "2.k0");
    row[5] ^= std::byte{1};
  }
  SECTION("a draft row computed from a rejected token") {
    seq::Sequence plain(Format::q8_0, Format::q5_1, 1, 256);
    plain.decoder->prime(ids);
    plain.plain(60);
    REQUIRE(seq::difference(spec.drafter->kv(), plain.drafter->kv()) == "");
    auto* k = const_cast<float*>(spec.drafter->kv().k(1)) + 70 * 128;
    k[3] = -k[3];
    CHECK(seq::difference(spec.drafter->kv(), plain.drafter->kv()) == "draft K of layer 1");
  }
}

TEST_CASE("red arm: a conv column off in the middle of decoding changes the state at the end", "[engine]") {
  const std::vector<std::int32_t> ids = rig::bytes_of(seq::prompts[0]);
  seq::Sequence spec(Format::q8_0, Format::q5_1, 1, 256);
  spec.decoder->prime(ids);
  std::vector<std::int32_t> tokens = spec.speculative(40).tokens;
  const memra::RecurLayer layer = *spec.cache->recur(1);
  auto* conv = const_cast<float*>(layer.conv);
  std::memmove(conv, conv + 1, (layer.conv_elems() - 1) * sizeof(float));
  tokens = seq::joined(tokens, spec.speculative(40).tokens);
  const auto oracle = seq::one_by_one(Format::q8_0, Format::q5_1, seq::joined(ids, tokens), 256);
  CHECK(seq::difference(*spec.cache, *oracle->cache) != "");
}

}  // namespace
}  // namespace speculative_state_cpp
