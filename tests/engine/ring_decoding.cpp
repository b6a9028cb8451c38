// D8 in the engine: with the drafter's KV in a ring every draft, every round and every token is that of the flat one.
#include <cstring>
#include <engine/sequence.hpp>
#include <utility>

namespace ring_decoding_cpp {
namespace {

using memra::DraftArm;
using memra::Format;
using memra::Strategy;
using seq::block_rows;
using seq::same_bits;

constexpr std::size_t ctx = 1024;

/// Several times the 152 rows of the ring (window 64, block 8: 2 * 72 + 8).
std::vector<std::int32_t> long_prompt() {
  std::string text;
  for (const char* verse :
       {"Ge1:1 In the beginning God created the heaven and the earth.\n",
        "Ge1:2 And the earth was without form, and void; and darkness was upon the face of the deep. And the Spirit of "
        "God moved upon the face of the waters.\n",
        "Ge1:3 And God said, Let there be light: and there was light.\n",
        "Ps23:1 The LORD is my shepherd; I shall not want.\n",
        "Ps23:2 He maketh me to lie down in green pastures: he leadeth me beside the still waters.\n",
        "Ps23:3 He restoreth my soul: he leadeth me in the paths of righteousness for his name's sake.\n"}) {
    text += verse;
  }
  return rig::bytes_of(text);
}

/// Both end where they must, hold the same rows, and the ring is no larger than it says.
void require_equal(seq::Sequence& ring, seq::Sequence& flat) {
  const auto& kv = ring.drafter->kv();
  REQUIRE(kv.plan().phys_rows == 152);
  REQUIRE(kv.len() - kv.base() <= 152);
  REQUIRE(kv.len() - kv.base() >= 63);  // all that a query sees
  CHECK(seq::difference(*ring.cache, *flat.cache).empty());
  CHECK(seq::difference(ring.drafter->kv(), flat.drafter->kv()).empty());
}

TEST_CASE("D8 a prompt of several rings and a long text: the flat drafter's tokens, rounds and bits",
          "[engine][identity]") {
  const std::vector<std::int32_t> ids = long_prompt();
  REQUIRE(ids.size() > 3 * 152);
  const std::size_t n = rig::tokens(40);
  for (const std::size_t chunk : {std::size_t{0}, std::size_t{7}}) {
    seq::Sequence flat(Format::q8_0, Format::q5_1, 1, ctx);
    seq::Sequence ring(Format::q8_0, Format::q5_1, 1, ctx, memra::Layout::blocks, true);
    flat.decoder->prime(ids, chunk);
    ring.decoder->prime(ids, chunk);
    require_equal(ring, flat);
    REQUIRE(ring.drafter->kv().base() > 152);
    for (const Strategy by : {Strategy::planes, Strategy::stash, Strategy::replay}) {
      if (chunk != 0 && by != Strategy::replay) continue;
      for (const DraftArm arm : {DraftArm::clip, DraftArm::full_scan}) {
        const tiny::Generated want = flat.speculative(n, DraftArm::clip, by);
        const tiny::Generated got = ring.speculative(n, arm, by);
        REQUIRE(want.tokens.size() == n);
        CHECK(got.tokens == want.tokens);
        CHECK(got.rounds == want.rounds);  // the same drafts were accepted, so they were the same drafts
        CHECK(same_bits(block_rows(ring, arm), block_rows(flat, DraftArm::clip)));
        require_equal(ring, flat);
      }
    }
  }
}

TEST_CASE("D8 a ring's drafts hang on the rows it kept", "[engine]") {  // red arm
  seq::Sequence flat(Format::q8_0, Format::q5_1, 1, ctx);
  seq::Sequence ring(Format::q8_0, Format::q5_1, 1, ctx, memra::Layout::blocks, true);
  flat.decoder->prime(long_prompt());
  ring.decoder->prime(long_prompt());
  auto& kv = ring.drafter->kv();
  const auto want = block_rows(flat, DraftArm::clip);
  REQUIRE(same_bits(block_rows(ring, DraftArm::clip), want));
  auto* oldest_seen = const_cast<float*>(kv.v(0)) + (kv.len() - 63 - kv.base()) * kv.row_bytes() / sizeof(float);
  oldest_seen[3] += 0.5F;
  REQUIRE(!same_bits(block_rows(ring, DraftArm::clip), want));
  REQUIRE(!seq::difference(kv, flat.drafter->kv()).empty());
}

TEST_CASE("D4 D5 D8 a prompt pinned in a ring is published after the ring has lapped it", "[engine][identity]") {
  const std::vector<std::int32_t> ids = long_prompt();
  const std::size_t p = ids.size();
  seq::Sequence first(Format::q8_0, Format::q5_1, 1, ctx, memra::Layout::blocks, true);
  first.decoder->prime(ids);
  const std::int32_t next = first.decoder->next();
  auto snap = memra::check(first.cache->snapshot());
  memra::check(first.drafter->kv().pin(p));
  const std::vector<std::int32_t> straight = first.speculative(300).tokens;
  REQUIRE(first.drafter->kv().base() > p);
  auto prefix = memra::check(first.cache->export_prefix(snap));
  const auto tail = first.drafter->kv().export_tail(p);
  REQUIRE((tail && tail->base == p - 72 && tail->len == p));
  REQUIRE(!first.drafter->kv().export_tail(p));

  for (const bool into_ring : {true, false}) {
    seq::Sequence second(Format::q8_0, Format::q5_1, 1, ctx, memra::Layout::blocks, into_ring);
    *second.cache = memra::check(
        seq::Cache::from_prefix(*second.devs[0], second.config, ctx, prefix, rig::all_rounds(seq::model())));
    auto kv = memra::DflashKv<memra::HostDev>::from_tail(*second.devs[0], second.drafter->kv().config(), ctx, *tail);
    REQUIRE(kv.has_value());
    second.drafter->replace_kv(*std::move(kv));
    second.decoder->set_next(next);
    CHECK(second.speculative(300).tokens == straight);
    CHECK(seq::difference(*second.cache, *first.cache).empty());
    CHECK(seq::difference(second.drafter->kv(), first.drafter->kv()).empty());
  }
}

}  // namespace
}  // namespace ring_decoding_cpp
