// States of every kind of layer over a recorded stream: rings of any size and position, shared K and V, 16-bit states.
#include <cstddef>
#include <memra/cache.hpp>
#include <memra/handover.hpp>
#include <memra/host_dev.hpp>
#include <support/catch.hpp>
#include <support/placements.hpp>
#include <support/says.hpp>
#include <support/stand_in.hpp>
#include <support/tape.hpp>
#include <variant>
#include <vector>

namespace {

using namespace memra_test;
using memra::ErrorKind;
using memra::Format;
using memra::HostDev;
using memra::Layout;
using Cache = memra::Cache<HostDev>;

memra::HandoverTarget<HostDev> target(HostDev& dev, const memra::ModelConfig& cfg, std::size_t max_ctx) {
  memra::HandoverTarget<HostDev> t;
  t.stages = {&dev};
  t.config = cfg;
  t.max_ctx = max_ctx;
  return t;
}

TEST_CASE("H1 rings travel as the window that ends at the position, into rings of any size", "[handover][kinds]") {
  const Tokens t = stream(150);
  for (const Layout layout : {Layout::blocks, Layout::split}) {
    const auto cfg = kinds_model(Format::q8_0, Format::bf16, layout);
    for (const std::size_t at : {1U, 39U, 64U, 90U, 128U}) {
      for (const std::size_t slack : {24U, 300U}) {
        CAPTURE(at, slack);
        HostDev a, b;
        Cache sender = memra::check(Cache::create(a, cfg, 200));
        REQUIRE(feed_by(sender, part(t, 0, at), 13).ok());
        TapeWriter writer;
        REQUIRE(memra::send_state(writer, sender, {}).ok());
        auto there = cfg;  // sizes of rings, like head counts, are each side's own
        std::get<memra::AttentionSpec>(there.layers[1].states[0]).ring_slack = slack;
        TapeReader reader(writer.tape);
        auto got = memra::check(memra::receive_state(reader, target(b, there, 180)));
        REQUIRE(image(got.cache) == straight(there, part(t, 0, at)));
        REQUIRE(got.cache.kv(1)->first == (at < 40 ? 0 : at - 39));
        REQUIRE(feed_by(got.cache, part(t, at, 22), 11).ok());
        REQUIRE(image(got.cache) == straight(there, part(t, 0, at + 22)));
        // A prefix of the same position is the same stream.
        const auto prefix = memra::check(sender.export_prefix(memra::check(sender.snapshot())));
        TapeWriter again;
        REQUIRE(memra::send_state(again, prefix, {}).ok());
        REQUIRE(again.tape == writer.tape);
      }
    }
  }
}

TEST_CASE("H5 a receiver of another kind of layer refuses", "[handover][kinds]") {
  const auto cfg = kinds_model();
  HostDev a, b;
  Cache sender = memra::check(Cache::create(a, cfg, 100));
  REQUIRE(feed_by(sender, stream(20), 5).ok());
  TapeWriter writer;
  REQUIRE(memra::send_state(writer, sender, {}).ok());
  const auto refused = [&](std::size_t il, std::size_t nth, auto change) {
    auto other = cfg;
    change(other.layers[il].states[nth]);
    TapeReader reader(writer.tape);
    return memra::receive_state(reader, target(b, other, 100)).status().kind() == ErrorKind::bad_argument;
  };
  const auto attention = [](memra::StateSpec& s) -> memra::AttentionSpec& { return std::get<memra::AttentionSpec>(s); };
  const auto recurrent = [](memra::StateSpec& s) -> memra::RecurrentSpec& { return std::get<memra::RecurrentSpec>(s); };
  REQUIRE_FALSE(refused(0, 0, [](auto&) {}));
  REQUIRE_FALSE(refused(0, 0, [&](auto& s) { attention(s).ring_slack = 90; }));
  REQUIRE(refused(0, 0, [&](auto& s) { attention(s).window = 6; }));
  REQUIRE(refused(0, 0, [&](auto& s) { attention(s).ring_slack = 0; }));
  REQUIRE(refused(4, 0, [&](auto& s) { attention(s).head_dim_v = 16; }));
  REQUIRE(refused(4, 1, [&](auto& s) { std::get<memra::SharedKvSpec>(s).donor = 0; }));
  REQUIRE(refused(2, 0, [&](auto& s) { recurrent(s).rule = memra::ScanRule::gated_delta; }));
  REQUIRE(refused(2, 0, [&](auto& s) { recurrent(s).ssm_format = Format::f16; }));
  REQUIRE(refused(7, 0, [&](auto& s) { recurrent(s).conv_format = Format::bf16; }));
}

}  // namespace
