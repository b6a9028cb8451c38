// Hostile streams of every kind of layer, and states that are hardly any: cut and changed at every byte, numbers of the
// header at their extremes behind a checksum that agrees, models without layers, targets without stages.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memra/cache.hpp>
#include <memra/handover.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <span>
#include <support/catch.hpp>
#include <support/op_model.hpp>
#include <support/placements.hpp>
#include <support/says.hpp>
#include <support/stand_in.hpp>
#include <support/tape.hpp>
#include <vector>

namespace hostile_cpp {
namespace {

using namespace memra_test;
using memra::ErrorKind;
using memra::Format;
using memra::HostDev;
using Cache = memra::Cache<HostDev>;

/// Small, and with a ring that has wrapped, latent rows, a shared layer, rows of several tokens, and states in 16 bits.
memra::ModelConfig small_model() {
  memra::ModelConfig cfg;
  cfg.layers = {{{memra::windowed(attention_spec(Format::q4_0, Format::q4_0), 2, 9)}},
                {{memra::latent_rows(1, 2, 1, Format::fp8_e4m3), memra::SharedKvSpec{0, 0, 0}}},
                {{memra::stored_as(memra::kda(1, 2, 2, 2), Format::f16, Format::bf16),
                  memra::grouped_rows(3, 4, Format::fp8_e4m3)}}};
  return cfg;
}

memra::HandoverTarget<TestDev> target(Devices& d, const memra::ModelConfig& cfg) {
  memra::HandoverTarget<TestDev> t;
  t.stages = {&d.dev[0], &d.dev[1]};
  t.fence = {0, 2, cfg.layers.size()};
  t.config = cfg;
  t.max_ctx = 90;
  return t;
}

Bytes taped(const memra::ModelConfig& cfg, std::size_t rows) {
  HostDev dev;
  Cache c = memra::check(Cache::create(dev, cfg, 80));
  memra::check(feed_by(c, stream(rows), 5));
  TapeWriter w;
  memra::check(memra::send_state(w, c, {}));
  return w.tape;
}

Bytes sealed(Bytes bytes, std::size_t header) {
  const std::span<const std::byte> h = std::span<const std::byte>(bytes).subspan(32, header);
  const std::uint64_t sum = memra::detail::checksum(h);
  std::memcpy(bytes.data() + 24, &sum, sizeof sum);
  return bytes;
}

TEST_CASE("H4 H6 a stream of every kind, cut at every byte and changed in every byte, leaves nothing behind",
          "[handover][kinds]") {
  const auto cfg = small_model();
  const Bytes whole = taped(cfg, 70);
  Devices d;
  {
    TapeReader r(whole);
    const auto got = memra::check(memra::receive_state(r, target(d, cfg)));
    REQUIRE(image(got.cache) == straight(cfg, stream(70)));
  }
  const std::size_t held = d.live();
  for (std::size_t n = 0; n < whole.size(); ++n) {
    TapeReader cut(std::span<const std::byte>(whole).first(n));
    REQUIRE(memra::receive_state(cut, target(d, cfg)).status().kind() == ErrorKind::link_failure);
    Bytes harmed = whole;
    harmed[n] ^= std::byte{0x10};
    TapeReader r(harmed);
    const auto got = memra::receive_state(r, target(d, cfg));
    if (got) FAIL("byte " << n << " was changed and taken");
    REQUIRE(d.live() == held);
  }
}

TEST_CASE("H4 numbers of a header at their extremes, behind a checksum that agrees, are refused or mean what they say",
          "[handover][kinds]") {
  const auto cfg = small_model();
  const Bytes whole = taped(cfg, 70);
  std::uint64_t header = 0;
  std::memcpy(&header, whole.data() + 16, 8);
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t values[] = {0,
                                  1,
                                  2,
                                  3,
                                  64,
                                  0x7fffffff,
                                  0x80000000,
                                  most / 2,
                                  most / 2 + 1,
                                  most - 63,
                                  most - 1,
                                  most,
                                  most / 34,
                                  std::uint64_t{1} << 40};
  Devices d;
  std::size_t taken = 0;
  const auto want = straight(cfg, stream(70));
  for (std::size_t at = 32; at < 32 + header; ++at) {
    for (const std::size_t width : {1U, 4U, 8U}) {
      if (at + width > 32 + header) continue;
      for (const std::uint64_t v : values) {
        Bytes b = whole;
        std::memcpy(b.data() + at, &v, width);
        if (std::memcmp(b.data() + at, whole.data() + at, width) == 0) continue;
        const Bytes crooked = sealed(std::move(b), header);
        TapeReader r(crooked);
        const auto got = memra::receive_state(r, target(d, cfg));
        if (got) {  // messages of another length, formats of what is not there, 0 for what the heads say
          ++taken;
          REQUIRE(image(got->cache) == want);
        }
        REQUIRE((got || std::strlen(got.status().text()) > 10));
      }
    }
  }
  REQUIRE(taken > 20);
  REQUIRE(d.live() == 0);
}

TEST_CASE("a model without layers, and one whose states have no bytes, step, round, go back and travel",
          "[handover][kinds]") {
  memra::ModelConfig none;
  memra::ModelConfig empty;
  empty.layers = {memra::no_state(),
                  memra::recurrent(memra::short_conv(3, 1)),
                  {{memra::windowed(attention_spec(Format::q4_0, Format::q4_0), 1, 1)}}};
  for (const auto& cfg : {none, empty}) {
    const OpModel m(cfg);
    HostDev dev, there;
    auto c = memra::check(Cache::create(dev, cfg, 100, all_rounds(4)));
    const Tokens t = stream(100);
    CAPTURE(cfg.layers.size());
    const memra::Status fed = m.feed(c, part(t, 0, 64));
    INFO(fed.text());
    REQUIRE(fed.ok());
    const auto snap = memra::check(c.snapshot());
    for (const auto by : {memra::Strategy::planes, memra::Strategy::stash, memra::Strategy::replay}) {
      auto r = memra::check(c.begin_round(4, by));
      std::vector<float> out;
      REQUIRE(m.forward(c, r.step(), part(t, c.pos(), 4), out).ok());
      const auto left = memra::check(r.commit(2));
      if (left.replay != 0) REQUIRE(m.feed(c, part(t, c.pos(), left.replay)).ok());
    }
    REQUIRE(c.pos() == 70);
    const auto back = memra::check(c.rollback(snap, 3));
    if (back.replay != 0) REQUIRE(m.feed(c, part(t, 64, back.replay)).ok());
    REQUIRE(c.pos() == 67);
    TapeWriter w;
    REQUIRE(memra::send_state(w, c, {}).ok());
    memra::HandoverTarget<HostDev> target;
    target.stages = {&there};
    target.config = cfg;
    target.max_ctx = 67;
    TapeReader r(w.tape);
    auto got = memra::check(memra::receive_state(r, target));
    REQUIRE((got.cache.pos() == 67 && got.cache.len() == 67));
    REQUIRE_FALSE(got.cache.begin_step(1).ok());
    REQUIRE(image(got.cache) == image(c));
  }
}

TEST_CASE("H5 a target that is none is refused in a sentence, and the sender is told", "[handover]") {
  const auto cfg = small_model();
  const Bytes whole = taped(cfg, 70);
  const auto refused = [&](auto change, const char* words) {
    HostDev dev;
    memra::HandoverTarget<HostDev> t;
    t.stages = {&dev};
    t.config = cfg;
    t.max_ctx = 90;
    change(t);
    TapeReader r(whole);
    REQUIRE(says(memra::receive_state(r, t).status(), ErrorKind::bad_argument, words));
    REQUIRE((r.said.size() == 256 && r.said[0] != std::byte{0}));
  };
  refused([](auto& t) { t.stages.clear(); }, "stages");
  refused([](auto& t) { t.stages = {nullptr}; }, "null");
  refused([](auto& t) { t.fence = {0, 9}; }, "fence");
  refused([](auto& t) { t.fence = {0}; }, "fence");
  refused([](auto& t) { t.max_ctx = 0; }, "max_ctx is 0");
  refused([](auto& t) { t.max_ctx = 69; }, "max_ctx is 69");
  refused([](auto& t) { t.max_ctx = std::size_t{1} << 40; }, "max_ctx is 1099511627776");
  refused([](auto& t) { t.options.rounds.rows = 65; }, "65");
  refused([](auto& t) { t.config.n_mtp = 4; }, "n_mtp");
}

TEST_CASE("sums of windows that do not fit are refused, not wrapped", "[plan][ring]") {
  memra::ModelConfig cfg;
  const auto wide = memra::windowed(attention_spec(Format::f32, Format::f32), std::size_t{1} << 53, 1);
  for (int i = 0; i < 64; ++i) cfg.layers.push_back({{wide}});
  const auto p = memra::plan(cfg, 100);
  if (p) REQUIRE(p->totals.ring_cap_bytes / (std::size_t{1} << 53) == 64 * 64 * 8);
  REQUIRE((p || p.status().kind() == ErrorKind::bad_argument));
}

}  // namespace
}  // namespace hostile_cpp
