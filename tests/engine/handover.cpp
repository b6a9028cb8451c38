// Prefill here, decode there: a trained model's state and its drafter's go over a stream, and the text goes on.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <engine/sequence.hpp>
#include <memra/handover.hpp>
#include <support/tape.hpp>
#include <vector>

namespace handover_cpp {
namespace {

using memra::Format;
using memra_test::TapeReader;
using memra_test::TapeWriter;

const char* const text =
    "Ps23:1 The LORD is my shepherd; I shall not want.\nPs23:2 He maketh me to lie down in green pastures: he leadeth "
    "me ";

memra::HandoverTarget<memra::HostDev> target_of(seq::Sequence& s) {
  memra::HandoverTarget<memra::HostDev> t;
  t.stages = s.stage_devs;
  t.fence = s.fence;
  t.config = s.config;
  t.max_ctx = 512;
  t.options = rig::all_rounds(seq::model());
  t.draft = s.drafter->kv().config();
  return t;
}

/// Puts what was received into a sequence that was never fed, and the greedy choice of the parked logits in its mouth.
void take_over(seq::Sequence& s, memra::HandedOver<memra::HostDev> got) {
  *s.cache = std::move(got.cache);
  auto kv = memra::DflashKv<memra::HostDev>::from_tail(*got.tail->dev, s.drafter->kv().config(), 512, *got.tail);
  REQUIRE(kv.has_value());
  s.drafter->replace_kv(*std::move(kv));
  const auto parked = s.cache->last_logits_dev();
  REQUIRE(parked.has_value());
  s.decoder->set_next(
      static_cast<std::int32_t>(std::max_element(parked->data, parked->data + parked->n) - parked->data));
}

void over(std::size_t stages_here, std::size_t stages_there, memra::Layout layout, bool ring_here = false,
          bool ring_there = false) {
  INFO("stages " << stages_here << " -> " << stages_there << ", layout " << memra::to_string(layout) << ", draft rings "
                 << ring_here << " -> " << ring_there);
  const std::vector<std::int32_t> ids = rig::bytes_of(text);
  seq::Sequence prefill(Format::q8_0, Format::q5_1, stages_here, 256, layout, ring_here);
  prefill.decoder->prime(ids);
  memra::check(prefill.cache->park_logits(prefill.trunk->logits_dev() + (prefill.trunk->n_logits() - 1) * 260));
  const auto tail = prefill.drafter->kv().export_tail(ids.size());
  REQUIRE(tail.has_value());
  TapeWriter writer;
  memra::check(memra::send_state(writer, *prefill.cache, {}, &*tail));

  seq::Sequence decode(Format::q8_0, Format::q5_1, stages_there, 512, layout, ring_there);
  TapeReader reader(writer.tape);
  take_over(decode, memra::check(memra::receive_state(reader, target_of(decode))));

  const std::vector<std::int32_t> straight = prefill.speculative(rig::tokens(120)).tokens;
  CHECK(decode.speculative(rig::tokens(120)).tokens == straight);
  CHECK(seq::difference(*decode.cache, *prefill.cache) == "");
  CHECK(seq::difference(decode.drafter->kv(), prefill.drafter->kv(), tail->base) == "");
}

TEST_CASE("H1: what was prefilled elsewhere decodes as the straight run", "[engine][identity]") {
  over(1, 1, memra::Layout::blocks);
  over(3, 2, memra::Layout::split);
}

TEST_CASE("H1 D8: drafters in rings and flat ones take over from each other", "[engine][identity]") {
  over(1, 1, memra::Layout::blocks, true, false);
  over(1, 1, memra::Layout::blocks, false, true);
  over(1, 1, memra::Layout::blocks, true, true);
}

TEST_CASE("red arm of the hand-over: one bit of the state, with a checksum that agrees, changes the text", "[engine]") {
  const std::vector<std::int32_t> ids = rig::bytes_of(text);
  seq::Sequence prefill(Format::q8_0, Format::q5_1, 1, 256);
  prefill.decoder->prime(ids);
  memra::check(prefill.cache->park_logits(prefill.trunk->logits_dev() + (prefill.trunk->n_logits() - 1) * 260));
  const auto tail = prefill.drafter->kv().export_tail(ids.size());
  const memra::RecurLayer layer = *prefill.cache->recur(4);
  const_cast<float*>(layer.ssm)[7] += 1.0F;
  TapeWriter writer;
  memra::check(memra::send_state(writer, *prefill.cache, {}, &*tail));
  const_cast<float*>(layer.ssm)[7] -= 1.0F;
  seq::Sequence decode(Format::q8_0, Format::q5_1, 1, 512);
  TapeReader reader(writer.tape);
  take_over(decode, memra::check(memra::receive_state(reader, target_of(decode))));
  CHECK(seq::difference(*decode.cache, *prefill.cache) == "4.ssm");
}

}  // namespace
}  // namespace handover_cpp
