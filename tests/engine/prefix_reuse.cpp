// A published prompt: exported after further rounds, restored into fresh objects, continued as if nothing had happened.
#include <cmath>
#include <cstring>
#include <engine/sequence.hpp>
#include <limits>

namespace prefix_reuse_cpp {
namespace {

using memra::DraftArm;
using memra::Format;
using seq::block_rows;
using seq::same_bits;

const char* const text =
    "Ps23:1 The LORD is my shepherd; I shall not want.\nPs23:2 He maketh me to lie down in green pastures: he leadeth "
    "me ";

std::int32_t parked_choice(const seq::Cache& cache) {
  const auto parked = cache.last_logits_dev();
  REQUIRE(parked.has_value());
  const float* best = std::max_element(parked->data, parked->data + parked->n);
  return static_cast<std::int32_t>(best - parked->data);
}

void reuse(std::size_t stages_before, std::size_t stages_after, memra::Layout layout) {
  INFO("stages " << stages_before << " -> " << stages_after << ", layout " << memra::to_string(layout));
  const std::vector<std::int32_t> ids = rig::bytes_of(text);
  const std::size_t p = ids.size();
  REQUIRE(p > 72);  // more than the drafter's window: the tail has a base

  seq::Sequence first(Format::q8_0, Format::q5_1, stages_before, 512, layout);
  first.decoder->prime(ids);
  auto snap = memra::check(first.cache->snapshot());
  memra::check(first.cache->park_logits(first.trunk->logits_dev() + (first.trunk->n_logits() - 1) * 260));
  const std::size_t n = rig::tokens(150);
  const std::vector<std::int32_t> straight = first.speculative(n).tokens;
  REQUIRE(first.cache->pos() == p + n);
  REQUIRE(!first.cache->last_logits_dev().has_value());  // parked elsewhere

  auto prefix = memra::check(first.cache->export_prefix(snap));
  const auto tail = first.drafter->kv().export_tail(p);
  REQUIRE(tail.has_value());
  REQUIRE(tail->len == p);
  REQUIRE(tail->base == p - 72);
  REQUIRE(prefix.pos() == p);
  REQUIRE(prefix.has_logits());

  seq::Sequence second(Format::q8_0, Format::q5_1, stages_after, 512, layout);
  *second.cache = memra::check(seq::Cache::from_prefix_ppn(second.stage_devs, second.fence, second.config, 512, prefix,
                                                           rig::all_rounds(seq::model())));
  auto kv = memra::DflashKv<memra::HostDev>::from_tail(*second.devs.back(), second.drafter->kv().config(), 512, *tail);
  REQUIRE(kv.has_value());
  second.drafter->replace_kv(*std::move(kv));
  second.decoder->set_next(parked_choice(*second.cache));

  const auto primed = seq::one_by_one(Format::q8_0, Format::q5_1, ids, 512, layout);
  CHECK(seq::difference(*second.cache, *primed->cache) == "");
  const std::vector<float> clip = block_rows(second, DraftArm::clip);
  CHECK(same_bits(clip, block_rows(second, DraftArm::full_scan)));

  std::vector<std::int32_t> again = second.speculative(n / 2).tokens;
  again = seq::joined(again, second.speculative(n - n / 2, DraftArm::full_scan).tokens);
  CHECK(again == straight);
  CHECK(seq::difference(*second.cache, *first.cache) == "");
  CHECK(seq::difference(second.drafter->kv(), first.drafter->kv(), tail->base) == "");
}

TEST_CASE("D4 D5 C9: a prompt published after further rounds continues as the straight run", "[engine][identity]") {
  reuse(1, 1, memra::Layout::blocks);
  reuse(1, 3, memra::Layout::split);
  reuse(3, 2, memra::Layout::blocks);
}

TEST_CASE("D6: both draft arms agree bit for bit while decoding", "[engine][identity]") {
  const std::vector<std::int32_t> ids = rig::bytes_of(text);
  seq::Sequence s(Format::q8_0, Format::q5_1, 1, 512);
  s.decoder->prime(ids);
  for (int round = 0; round < 20; ++round) {
    CHECK(same_bits(block_rows(s, DraftArm::clip), block_rows(s, DraftArm::full_scan)));
    s.speculative(1 + static_cast<std::size_t>(round) % 5);
  }
}

TEST_CASE("D7: a cold drafter changes acceptance, never the text", "[engine][identity]") {
  const std::vector<std::int32_t> ids = rig::bytes_of(text);
  seq::Sequence warm(Format::q8_0, Format::q5_1, 1, 512);
  warm.decoder->prime(ids);
  seq::Sequence cold(Format::q8_0, Format::q5_1, 1, 512);
  cold.decoder->prime(ids);
  cold.drafter->replace_kv(memra::check(memra::DflashKv<memra::HostDev>::create_cold_at(
      *cold.devs.front(), cold.drafter->kv().config(), 512, ids.size())));
  CHECK(same_bits(block_rows(cold, DraftArm::clip), block_rows(cold, DraftArm::full_scan)));
  const tiny::Generated a = warm.speculative(rig::tokens(150));
  const tiny::Generated b = cold.speculative(rig::tokens(150));
  CHECK(a.tokens == b.tokens);
  CHECK(seq::difference(*warm.cache, *cold.cache) == "");
}

TEST_CASE("red arms of prefix reuse", "[engine]") {
  const std::vector<std::int32_t> ids = rig::bytes_of(text);
  const std::size_t p = ids.size();
  seq::Sequence s(Format::q8_0, Format::q5_1, 1, 512);
  s.decoder->prime(ids);
  const auto tail = s.drafter->kv().export_tail(p);
  auto kv = memra::DflashKv<memra::HostDev>::from_tail(*s.devs.back(), s.drafter->kv().config(), 512, *tail);
  REQUIRE(kv.has_value());

  SECTION("rows below the tail left as NaN: the arms disagree") {
    const std::size_t below = tail->base * kv->row_bytes() / sizeof(float);
    auto* v = const_cast<float*>(kv->v(0));
    std::fill(v, v + below, std::numeric_limits<float>::quiet_NaN());
    s.drafter->replace_kv(*std::move(kv));
    CHECK(!same_bits(block_rows(s, DraftArm::clip), block_rows(s, DraftArm::full_scan)));
  }
  SECTION("a tail restored one row off: the rows differ") {
    memra::DflashKvTail<memra::HostDev> off;
    off.dev = tail->dev;
    off.base = tail->base + 1;
    off.rows = tail->rows;
    off.len = tail->len + 1;
    off.row_bytes = tail->row_bytes;
    off.floor = tail->floor;
    for (const auto& layer : tail->layers) {
      auto k = memra::check(tail->dev->alloc(layer.k.size()));
      auto v = memra::check(tail->dev->alloc(layer.v.size()));
      std::memcpy(k.data(), layer.k.data(), layer.k.size());
      std::memcpy(v.data(), layer.v.data(), layer.v.size());
      off.layers.push_back({std::move(k), std::move(v)});
    }
    auto shifted = memra::DflashKv<memra::HostDev>::from_tail(*s.devs.back(), s.drafter->kv().config(), 512, off);
    REQUIRE(shifted.has_value());
    memra::check(shifted->truncate(p));
    CHECK(seq::difference(*shifted, s.drafter->kv(), tail->base + 1) == "draft K of layer 0");
  }
  SECTION("recurrent state of another position: the cache differs") {
    auto snap = memra::check(s.cache->snapshot());
    auto prefix = memra::check(s.cache->export_prefix(snap));
    auto restored = memra::check(seq::Cache::from_prefix(*s.devs.front(), s.config, 512, prefix));
    REQUIRE(seq::difference(restored, *s.cache) == "");
    const memra::RecurLayer layer = *restored.recur(4);
    std::memset(const_cast<float*>(layer.ssm), 0, layer.ssm_elems() * sizeof(float));
    CHECK(seq::difference(restored, *s.cache) == "4.ssm");
  }
}

}  // namespace
}  // namespace prefix_reuse_cpp
