// States of every kind of layer over a recorded stream: rings of any size and position, shared K and V, 16-bit states.
#include <chrono>
#include <cstddef>
#include <memra/cache.hpp>
#include <memra/handover.hpp>
#include <memra/host_dev.hpp>
#include <span>
#include <string>
#include <support/catch.hpp>
#include <support/placements.hpp>
#include <support/says.hpp>
#include <support/stand_in.hpp>
#include <support/tape.hpp>
#include <variant>
#include <vector>

namespace kinds_cpp {
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

/// Every field of a specification that decides what the stored bytes mean, and how it is called.
struct Change {
  const char* name;
  void (*make)(memra::StateSpec&);
};
memra::AttentionSpec& attention(memra::StateSpec& s) {
  return std::get<memra::AttentionSpec>(s);
}
memra::GroupedRowsSpec& grouped(memra::StateSpec& s) {
  return std::get<memra::GroupedRowsSpec>(s);
}
memra::RecurrentSpec& recurrent(memra::StateSpec& s) {
  return std::get<memra::RecurrentSpec>(s);
}
const Change attention_fields[] = {
    {"n_kv_heads", [](auto& s) { attention(s).n_kv_heads *= 2, attention(s).n_heads = 0; }},
    {"head_dim_k", [](auto& s) { attention(s).head_dim_k += 32; }},
    {"head_dim_v", [](auto& s) { attention(s).head_dim_v += 32; }},
    {"k_format", [](auto& s) { attention(s).k_format = Format::fp8_e4m3; }},
    {"v_format", [](auto& s) { attention(s).v_format = Format::fp8_e4m3; }},
    {"k_layout", [](auto& s) { attention(s).k_layout = Layout::split; }},
    {"v_layout", [](auto& s) { attention(s).v_layout = Layout::split; }},
    {"window", [](auto& s) { ++attention(s).window; }},
    {"planes in rings, this model of every row", [](auto& s) { attention(s).ring_slack = 0; }},
    {"values in V planes, this model inside K", [](auto& s) { attention(s).v_in_k = true; }},
};
const Change recurrent_fields[] = {
    {"rule", [](auto& s) { recurrent(s).rule = memra::ScanRule::kda; }},
    {"n_k_heads", [](auto& s) { recurrent(s).n_k_heads = 1; }},
    {"n_v_heads", [](auto& s) { recurrent(s).n_v_heads *= 2; }},
    {"d_k", [](auto& s) { ++recurrent(s).d_k; }},
    {"d_v", [](auto& s) { ++recurrent(s).d_v; }},
    {"d_conv", [](auto& s) { --recurrent(s).d_conv; }},
    {"conv_channels", [](auto& s) { recurrent(s).conv_channels = 9; }},
    {"conv_format", [](auto& s) { recurrent(s).conv_format = Format::f16; }},
    {"ssm_format", [](auto& s) { recurrent(s).ssm_format = Format::bf16; }},
    {"map.mode", [](auto& s) { recurrent(s).map.mode = memra::KeyHeadMode::interleaved; }},
    {"map.first_v",
     [](auto& s) {
       recurrent(s).map = {memra::KeyHeadMode::grouped, 4, 8, 2};
     }},
    {"map.total_v", [](auto& s) { recurrent(s).map.total_v = 8; }},
    {"a state of kind recurrent, this model attention", [](auto& s) { s = memra::index_rows(32); }},
};

const Change grouped_fields[] = {
    {"dim 32, this model 64", [](auto& s) { grouped(s).dim = 64; }},
    {"stride 3, this model 6", [](auto& s) { grouped(s).stride = 6; }},
    {"format f16, this model bf16", [](auto& s) { grouped(s).format = Format::bf16; }},
    {"layout blocks, this model split", [](auto& s) { grouped(s).layout = Layout::split; }},
    {"a state of kind grouped rows, this model attention", [](auto& s) { s = memra::index_rows(32); }},
};

TEST_CASE("H5 a receiver whose model differs in one field says which, and nothing is made", "[handover][kinds]") {
  memra::ModelConfig cfg;
  cfg.layers = {{{memra::windowed(attention_spec(Format::f16, Format::f16), 5, 40)}},
                {{memra::gated_delta(2, 4, 3, 2, 4)}},
                {{attention_spec(Format::f16, Format::f16), memra::SharedKvSpec{0, 0, 0}, memra::index_rows(32)}},
                memra::shared_attention(2),
                {{memra::grouped_rows(32, 3, Format::f16)}}};
  cfg.n_vocab = 16;
  HostDev a;
  Cache sender = memra::check(Cache::create(a, cfg, 100));
  REQUIRE(feed_by(sender, stream(20), 5).ok());
  const auto prefix = memra::check(sender.export_prefix(memra::check(sender.snapshot())));
  TapeWriter writer;
  REQUIRE(memra::send_state(writer, sender, {}).ok());
  const auto refused = [&](std::size_t il, std::size_t nth, auto change, const char* words) {
    auto other = cfg;
    change(other.layers[il].states[nth]);
    CAPTURE(words, memra::plan(other, 100).status().text());
    REQUIRE(memra::plan(other, 100).ok());  // it is the receiver that refuses, not a plan
    Devices counted;
    memra::HandoverTarget<TestDev> there;
    there.stages = {&counted.dev[0]};
    there.config = other;
    there.max_ctx = 100;
    TapeReader reader(writer.tape);
    const auto got = memra::receive_state(reader, there);
    REQUIRE(says(got.status(), ErrorKind::bad_argument, words));
    REQUIRE(says(got.status(), ErrorKind::bad_argument, ("layer " + std::to_string(il)).c_str()));
    REQUIRE((counted.allocations() == 0 && reader.said.size() == 256));
    REQUIRE(says(Cache::from_prefix(a, other, 100, prefix).status(), ErrorKind::bad_argument, words));
  };
  for (const Change& c : attention_fields) refused(0, 0, c.make, c.name);
  for (const Change& c : recurrent_fields) refused(1, 0, c.make, c.name);
  for (const Change& c : grouped_fields) refused(4, 0, c.make, c.name);
  refused(
      3, 0, [](auto& s) { std::get<memra::SharedKvSpec>(s).donor = 0; }, "donor 2, this model 0");
  refused(
      3, 0, [](auto& s) { std::get<memra::SharedKvSpec>(s).nth = 2; }, "nth 0, this model 2");
  refused(
      2, 2, [](auto& s) { s = memra::short_conv(2, 2); }, "a state of kind attention, this model recurrent");
  auto more = cfg;
  more.layers[1].states.emplace_back(memra::short_conv(2, 2));
  REQUIRE(says(Cache::from_prefix(a, more, 100, prefix).status(), ErrorKind::bad_argument,
               "layer 1: the prefix has a state count of 1, this model 2"));
}

TEST_CASE("H5 what means the same may be said in other ways, and what only counts or sizes scratch may differ",
          "[handover][kinds]") {
  memra::ModelConfig cfg;
  cfg.layers = {{{memra::windowed(attention_spec(Format::f16, Format::f16), 5, 40)}},
                {{memra::gated_delta(2, 4, 3, 2, 4), memra::lightning(1, 2, 2)}},
                {{memra::short_conv(3, 3), memra::latent_rows(2, 32, 32)}}};
  auto other = cfg;
  other.n_mtp = 1;
  attention(other.layers[0].states[0]).ring_slack = 100;
  attention(other.layers[0].states[0]).n_heads = 4;
  recurrent(other.layers[1].states[0]).conv_channels = 20;
  recurrent(other.layers[1].states[0]).map = {memra::KeyHeadMode::grouped, 0, 4, 2};
  recurrent(other.layers[1].states[0]).second_buffer = true;
  recurrent(other.layers[1].states[1]).conv_format = Format::bf16;  // no history
  recurrent(other.layers[2].states[0]).ssm_format = Format::bf16;   // no ssm
  attention(other.layers[2].states[1]).v_format = Format::f32;      // no V plane
  attention(other.layers[2].states[1]).v_layout = Layout::split;
  const Tokens t = stream(90);
  for (const bool forth : {true, false}) {
    HostDev a, b;
    Cache sender = memra::check(Cache::create(a, forth ? cfg : other, 100));
    REQUIRE(feed_by(sender, part(t, 0, 70), 5).ok());
    TapeWriter writer;
    REQUIRE(memra::send_state(writer, sender, {}).ok());
    TapeReader reader(writer.tape);
    auto got = memra::check(memra::receive_state(reader, target(b, forth ? other : cfg, 95)));
    REQUIRE(feed_by(got.cache, part(t, 70, 20), 10).ok());
    REQUIRE(image(got.cache) == straight(got.cache.config(), t));
  }
}

TEST_CASE("H4 a small header cannot ask for much work: rings of a whole world, crowds of shared states",
          "[handover][kinds]") {
  const auto refused = [](const memra::HandoverHeader& h, const char* words) {
    const Bytes b = h.encode();
    const auto prelude = memra::check(memra::HandoverHeader::parse_prelude(std::span(b).first(32)));
    const auto start = std::chrono::steady_clock::now();
    REQUIRE(says(memra::HandoverHeader::parse(prelude, std::span(b).subspan(32)).status(), ErrorKind::corrupt, words));
    return std::chrono::steady_clock::now() - start;
  };
  memra::HandoverHeader h;
  h.pos = 0x7fffffff;
  const auto ring = memra::windowed(attention_spec(), 0x7fffffff, 1);
  for (std::size_t i = 0; i < 1000; ++i) h.config.layers.push_back({{ring}});
  // 2^31 rows in tiles of 64, K and V, a thousand times: 1.5 TB of pieces to make, in a header of 52 KB.
  INFO(std::chrono::duration<double>(refused(h, "0 pieces; this state has 67108864000")).count());
  h.config.layers = {{{}}};
  for (std::size_t i = 0; i < 65; ++i) h.config.layers[0].states.emplace_back(attention_spec());
  (void)refused(h, "layer 0 has 65 states; expected at most 64");
}

}  // namespace
}  // namespace kinds_cpp
