// The seeds of the fuzzed hand-over: what they are, that they are what senders of this build say, and that its
// receivers take them. `memra_handover_tests '[write-corpus]'` writes them again after a change of the format or of the
// stand-in model.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <fuzz/handover_ends.hpp>
#include <iterator>
#include <map>
#include <memra/cache.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/handover.hpp>
#include <memra/host_dev.hpp>
#include <optional>
#include <span>
#include <string>
#include <support/catch.hpp>
#include <support/stand_in.hpp>
#include <support/tape.hpp>
#include <vector>

namespace fuzz_corpus_cpp {
namespace {

using namespace memra_test;
using fuzz::HandoverInput;
using memra::HostDev;
using memra::ScanClass;
using Cache = memra::Cache<HostDev>;

/// Seeds by name: two bytes, then a stream or an answer.
using Seeds = std::map<std::string, Bytes>;

std::filesystem::path folder() {
  return std::filesystem::path(MEMRA_TEST_FIXTURES) / "../fuzz/corpus/handover";
}

struct Sent {
  memra::ModelConfig model;
  std::size_t pos = 4;
  ScanClass scan = ScanClass::sequential;
  bool logits = false;
  bool tail = false;
};

Bytes sent(const Sent& what) {
  HostDev dev;
  Cache c = memra::check(Cache::create(dev, what.model, 70));
  const Tokens tokens = stream(what.pos);
  const std::size_t by = what.scan == ScanClass::chunked ? what.pos : 4;  // less than a chunk
  for (std::size_t at = 0; at < what.pos; at += by) {
    const Tokens some = part(tokens, at, std::min(by, what.pos - at));
    auto step = memra::check(c.begin_step(some.size(), what.scan));
    memra::check(stand_in::forward(c, step, some));
    memra::check(c.advance());
  }
  const std::array<float, 5> logits = {0, 1, 2, 3, 4};
  if (what.logits) memra::check(c.park_logits(logits.data()));
  std::optional<memra::DflashKvTail<HostDev>> tail;
  auto draft = memra::check(memra::DflashKv<HostDev>::create(dev, fuzz::small_drafter(), 8));
  if (what.tail) {
    memra::check(draft.begin_rows(what.pos).status());
    for (float* const plane : {const_cast<float*>(draft.k(0)), const_cast<float*>(draft.v(0))}) {
      for (std::size_t i = 0; i < what.pos * draft.row_bytes() / sizeof(float); ++i) plane[i] = static_cast<float>(i);
    }
    memra::check(draft.commit());
    tail = draft.export_tail(what.pos);
  }
  TapeWriter w;
  memra::check(memra::send_state(w, c, {}, tail ? &*tail : nullptr));
  return w.tape;
}

/// Behind its number. `sealed`: the header's length and sum are made to fit whatever is done to it.
Bytes seed(HandoverInput input, bool sealed, const Bytes& bytes) {
  std::uint64_t header = 0;
  if (sealed) std::memcpy(&header, bytes.data() + 16, sizeof header);
  Bytes all = {static_cast<std::byte>(header & 0xff),
               static_cast<std::byte>(header >> 8 | static_cast<std::uint64_t>(input) << 6)};
  all.insert(all.end(), bytes.begin(), bytes.end());
  return all;
}

Bytes first(Bytes bytes, std::size_t n) {
  bytes.resize(n);
  return bytes;
}

/// Two verdicts: taken; no.
Bytes verdicts(int kind, const char* text) {
  Bytes all(512);
  all[256] = static_cast<std::byte>(kind);
  std::memcpy(all.data() + 264, text, std::strlen(text));
  return all;
}

/// All of them. Those without "refused" are taken.
Seeds made() {
  const auto small = fuzz::small_model();
  const auto kinds = fuzz::kinds_model();
  const auto to_small = [](bool sealed, const Bytes& b) { return seed(HandoverInput::to_small, sealed, b); };
  const auto to_kinds = [](const Bytes& b) { return seed(HandoverInput::to_kinds, true, b); };
  Bytes version = first(sent({small}), 32);
  version[8] = std::byte{2};
  return {{"small_as_sent", to_small(false, sent({small}))},
          {"small", to_small(true, sent({small}))},
          {"small_logits", to_small(true, sent({.model = small, .logits = true}))},
          {"small_tail", to_small(true, sent({.model = small, .tail = true}))},
          {"small_logits_tail", to_small(true, sent({.model = small, .logits = true, .tail = true}))},
          {"kinds", to_kinds(sent({kinds, 4}))},
          {"kinds_first_token", to_kinds(sent({kinds, 1}))},
          {"kinds_ring_wrapped", to_kinds(sent({kinds, 66}))},
          {"kinds_chunked", to_kinds(sent({kinds, 6, ScanClass::chunked}))},
          {"refused_chunked", to_small(true, sent({small, 4, ScanClass::chunked}))},
          {"refused_model", to_small(true, sent({kinds, 4}))},
          {"refused_cut", to_small(false, first(sent({small}), 400))},
          {"refused_version", to_small(false, version)},
          {"answer_taken", seed(HandoverInput::verdicts, false, verdicts(0, ""))},
          {"answer_no", seed(HandoverInput::verdicts, false, first(verdicts(2, "no"), 300))},
          {"answer_no_at_last", seed(HandoverInput::verdicts, false, verdicts(7, "no"))}};
}

Seeds kept() {
  Seeds all;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    const std::string name = entry.path().filename().string();
    if (name.size() == 40 && name.find_first_not_of("0123456789abcdef") == std::string::npos) continue;  // found
    std::ifstream in(entry.path(), std::ios::binary);
    Bytes& bytes = all[name];
    for (std::istreambuf_iterator<char> c(in), end; c != end; ++c) bytes.push_back(static_cast<std::byte>(*c));
  }
  return all;
}

/// What the receiver that a seed is for makes of it.
memra::Result<memra::HandedOver<HostDev>> received(const Bytes& seed, HostDev (&dev)[2]) {
  TapeReader r(std::span<const std::byte>(seed).subspan(2));
  const bool kinds =
      static_cast<HandoverInput>(std::to_integer<unsigned char>(seed[1]) >> 6) == HandoverInput::to_kinds;
  return memra::receive_state(r, kinds ? fuzz::kinds_target(dev[0], dev[1]) : fuzz::small_target(dev[0]));
}

TEST_CASE("the seeds of the fuzzed hand-over are streams of this build, and its receivers take them", "[handover]") {
  const Seeds seeds = kept();
  REQUIRE(seeds == made());
  for (const auto& [name, bytes] : seeds) {
    if (name.compare(0, 6, "answer") == 0) continue;
    HostDev dev[2];
    auto got = received(bytes, dev);
    INFO(name << ": " << got.status().text());
    REQUIRE(got.ok() == (name.compare(0, 7, "refused") != 0));
    if (!got) continue;
    REQUIRE(image(got->cache) == straight(got->cache.config(), stream(got->cache.pos())));
    REQUIRE(got->cache.last_logits_dev().has_value() == (name.find("logits") != std::string::npos));
    REQUIRE(got->tail.has_value() == (name.find("tail") != std::string::npos));
    REQUIRE((got->cache.scan_class() == ScanClass::chunked) == (name == "kinds_chunked"));
    REQUIRE((got->cache.pos() > memra::ring_tile) == (name == "kinds_ring_wrapped"));
  }
  // Red arm: another byte anywhere behind the number of a stream is not what was sent.
  Seeds other = seeds;
  other["kinds"].back() ^= std::byte{1};
  REQUIRE_FALSE(other == made());
  HostDev dev[2];
  REQUIRE_FALSE(received(other["kinds"], dev).ok());
}

TEST_CASE("writes the seeds of the fuzzed hand-over", "[.][write-corpus]") {
  for (const auto& [name, bytes] : made()) {
    std::ofstream out(folder() / name, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    REQUIRE(out.good());
  }
}

}  // namespace
}  // namespace fuzz_corpus_cpp
