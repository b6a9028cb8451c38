// A state goes over a recorded stream: whole, between all placements and devices; and every way in which it may not.
#include <cstddef>
#include <cstring>
#include <handover/prefilled.hpp>
#include <memra/any_dev.hpp>
#include <memra/handover.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/ordered_dev.hpp>
#include <memra/poison_dev.hpp>
#include <string>
#include <support/catch.hpp>
#include <support/placements.hpp>
#include <support/require_eq.hpp>
#include <support/says.hpp>
#include <support/stand_in.hpp>
#include <support/tape.hpp>
#include <support/test_dev.hpp>
#include <utility>
#include <vector>

namespace stream_cpp {
namespace {

using namespace memra_test;
using memra::ErrorKind;
using memra::Format;
using memra::HandoverHeader;
using memra::HostDev;
using memra::Layout;

template <class Dev>
std::vector<Dev*> on(Dev (&devs)[3], const PlacedOn& p) {
  std::vector<Dev*> all;
  for (const std::size_t d : p.devices) all.push_back(&devs[d]);
  return all;
}

/// Sends from one placement and receives in every one.
template <class Dev, class Other>
void across(Dev (&from)[3], Other (&to)[3], const memra::ModelConfig& cfg, std::size_t message) {
  const auto places = placements(cfg.layers.size());
  for (const PlacedOn& p : places) {
    Prefilled<Dev> sender(on(from, p), p.fence, cfg);
    TapeWriter writer;
    REQUIRE(memra::send_state(writer, sender.cache, tag_of(), &*sender.tail, message).ok());
    require_eq(image(sender.cache), straight(cfg, part(sender.tokens, 0, handed_rows)));  // it stays as it was
    for (const PlacedOn& q : places) {
      INFO(p.name << " to " << q.name);
      TapeReader reader(writer.tape);
      auto target = target_of<Other>(on(to, q), q.fence, cfg);
      auto got = memra::check(memra::receive_state(reader, target));
      REQUIRE(reader.at == writer.tape.size());
      REQUIRE((reader.said == Bytes(512)));  // go on, taken
      REQUIRE(wrong_with(got, cfg, sender.tokens, sender.logits, true) == "");
    }
  }
}

TEST_CASE("H1 a received state continues as the sender's, whatever the formats, layouts and placements", "[handover]") {
  HostDev a[3];
  HostDev b[3];
  across(a, b, hybrid_model(), std::size_t{64} << 20);
  across(a, b, hybrid_model(Format::q8_0, Format::q5_1, Layout::split), HandoverHeader::least_message);
  across(a, b, hybrid_model(Format::fp8_e4m3, Format::f16), HandoverHeader::least_message);
  across(a, b, attention_model(), HandoverHeader::least_message);
  across(a, b, recurrent_model(), HandoverHeader::least_message);
}

TEST_CASE("H1 devices whose memory no transport reaches, late ones, and different ones at the two ends", "[handover]") {
  const auto cfg = hybrid_model();
  HostDev host[3];
  Devices failing;
  across(host, failing.dev, cfg, HandoverHeader::least_message);
  across(failing.dev, host, cfg, std::size_t{64} << 20);
  memra::OrderedDev<HostDev> late[3];
  across(late, host, cfg, HandoverHeader::least_message);
  across(host, late, cfg, HandoverHeader::least_message);
  memra::PoisonDev<HostDev> poison[3];
  across(poison, poison, cfg, HandoverHeader::least_message);
  memra::AnyDev any[3] = {memra::AnyDev(host[0]), memra::AnyDev(failing.dev[1]), memra::AnyDev(host[2])};
  across(any, any, cfg, HandoverHeader::least_message);
}

/// One sender's tape, and receivers of it.
struct Taped {
  memra::ModelConfig cfg = hybrid_model();
  HostDev dev;
  Prefilled<HostDev> sender{{&dev}, {0, cfg.layers.size()}, cfg};
  TapeWriter writer;

  explicit Taped(std::size_t message = HandoverHeader::least_message) {
    memra::check(memra::send_state(writer, sender.cache, tag_of(), &*sender.tail, message));
  }
  memra::HandoverTarget<HostDev> target() { return target_of<HostDev>({&dev}, {0, cfg.layers.size()}, cfg); }

  /// What becomes of a tape; that the sender is told the same (unless the link broke), and nothing is left allocated.
  memra::Status play(const Bytes& tape, const memra::HandoverTarget<HostDev>& t) {
    TapeReader reader(tape);
    const auto got = memra::receive_state(reader, t);
    if (got) {
      REQUIRE((reader.said == Bytes(512)));
      return {};
    }
    const memra::Status s = got.status();
    if (s.kind() != ErrorKind::link_failure) {
      REQUIRE(reader.said.size() % 256 == 0);
      REQUIRE(reader.said.size() >= 256);
      const std::byte* last = reader.said.data() + reader.said.size() - 256;
      REQUIRE(std::to_integer<int>(last[0]) == static_cast<int>(s.kind()));
      REQUIRE(std::string(reinterpret_cast<const char*>(last + 8)) == s.text());
    }
    return s;
  }
  memra::Status play(const Bytes& tape) { return play(tape, target()); }
};

TEST_CASE("H2 a prefix is sent as the cache would have been at its position", "[handover]") {
  Taped t;
  auto snap = memra::check(t.sender.cache.snapshot());
  const Tokens more = part(t.sender.tokens, handed_rows, 3);
  memra::check(feed(t.sender.cache, more));
  auto prefix = memra::check(t.sender.cache.export_prefix(snap));
  TapeWriter writer;
  REQUIRE(memra::send_state(writer, prefix, tag_of(), &*t.sender.tail, HandoverHeader::least_message).ok());
  REQUIRE((writer.tape == t.writer.tape));
  TapeWriter later;
  auto tail = t.sender.draft.export_tail(handed_rows);
  REQUIRE(says(memra::send_state(later, t.sender.cache, tag_of(), &*tail), ErrorKind::bad_argument,
               "the draft tail ends at row 9, the state at 12"));
  REQUIRE(later.tape.empty());
  REQUIRE(memra::send_state(later, t.sender.cache, tag_of()).ok());  // the logits are parked elsewhere
  TapeReader reader(later.tape);
  auto got = memra::check(memra::receive_state(reader, t.target()));
  REQUIRE(got.cache.pos() == 12);
  REQUIRE(!got.cache.last_logits_dev());
  REQUIRE(!got.tail);
  require_eq(image(got.cache), image(t.sender.cache));
}

TEST_CASE("H3 few long pieces: one per sub-plane, one for all states, cut only at the message size", "[handover]") {
  HostDev dev;
  memra::ModelConfig cfg;
  cfg.layers = {memra::full_attention(attention_spec()), memra::recurrent(recurrent_spec())};
  cfg.n_vocab = 16;
  Prefilled<HostDev> sender({&dev}, {0, 2}, cfg, 200, 256);
  TapeWriter writer;
  REQUIRE(memra::send_state(writer, sender.cache, tag_of(), nullptr).ok());
  // prelude, header, K of 200 * 68, V of 200 * 48, conv of 14 * 3 floats and ssm of 2 * 3 * 4, logits of 16
  REQUIRE((std::vector<std::size_t>(writer.messages.begin() + 2, writer.messages.end()) ==
           std::vector<std::size_t>{13600, 9600, 264, 64}));
  TapeWriter small;
  REQUIRE(memra::send_state(small, sender.cache, tag_of(), nullptr, 4096).ok());
  REQUIRE((std::vector<std::size_t>(small.messages.begin() + 2, small.messages.end()) ==
           std::vector<std::size_t>{4096, 4096, 4096, 1312, 4096, 4096, 1408, 264, 64}));
  REQUIRE(says(memra::send_state(small, sender.cache, tag_of(), nullptr, 4097), ErrorKind::bad_argument, "4 KiB"));
}

TEST_CASE("H3 the columns of a sub-plane travel in one run", "[handover]") {
  HostDev dev;
  memra::AttentionSpec wide = attention_spec(Format::q8_0, Format::q5_1, Layout::split);
  wide.head_dim_k = wide.head_dim_v = 128;
  memra::ModelConfig cfg;
  cfg.layers = {memra::full_attention(wide), memra::full_attention(memra::windowed(wide, 40, 24))};
  cfg.n_vocab = 16;
  Prefilled<HostDev> sender({&dev}, {0, 2}, cfg, 200, 256);
  TapeWriter writer;
  REQUIRE(memra::send_state(writer, sender.cache, tag_of(), nullptr).ok());
  // A row is 256 bytes of K's quants and 16 of scales, one column; 128 of V's quants, 32 of fifth bits and of scales,
  // two columns each. The ring has rows 161 to 199: 31 of one tile and 8 of the next.
  REQUIRE((std::vector<std::size_t>(writer.messages.begin() + 2, writer.messages.end()) ==
           std::vector<std::size_t>{51200, 3200, 25600, 6400, 6400, 7936, 2048, 496, 128, 3968, 1024, 1248, 1248, 64}));
  TapeReader reader(writer.tape);
  auto target = target_of<HostDev>({&dev}, {0, 2}, cfg);
  target.max_ctx = 512;  // columns lie further apart there
  const auto got = memra::check(memra::receive_state(reader, target));
  require_eq(image(got.cache), image(sender.cache));
  memra_test::spoil(dev,
                    got.cache.kv(1)->v.data + memra::sub_planes(got.cache.kv(1)->v.shape).part[2].offset + 16 * 40);
  REQUIRE_FALSE((image(got.cache) == image(sender.cache)));
}

TEST_CASE("H7 a header that no receiver takes is not sent", "[handover]") {
  HostDev dev;
  const auto cfg = hybrid_model();
  Prefilled<HostDev> sender({&dev}, {0, cfg.layers.size()}, cfg);
  memra::DflashKvTail<HostDev> tail;  // of many layers without rows
  tail.dev = &dev;
  tail.base = tail.len = handed_rows;
  tail.row_bytes = 4;
  tail.layers.resize(1000);
  TapeWriter writer;
  REQUIRE(memra::send_state(writer, sender.cache, tag_of(), &tail).ok());  // red arm
  REQUIRE_FALSE(writer.tape.empty());
  tail.layers.resize(HandoverHeader::most_bytes / 32);
  TapeWriter silent;
  REQUIRE(says(memra::send_state(silent, sender.cache, tag_of(), &tail), ErrorKind::bad_argument, "make a header of"));
  REQUIRE(silent.tape.empty());
}

TEST_CASE("H4 a stream cut anywhere is refused", "[handover]") {
  Taped t;
  const Bytes& whole = t.writer.tape;
  REQUIRE(t.play(whole).ok());
  for (std::size_t n = 0; n < whole.size(); n += n < 2000 ? 1 : 37) {
    const memra::Status s = t.play(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n)));
    REQUIRE(s.kind() == ErrorKind::link_failure);
  }
}

TEST_CASE("H4 every flipped bit is refused, wherever it is", "[handover]") {
  Taped t;
  Bytes tape = t.writer.tape;
  for (std::size_t i = 0; i < tape.size(); i += i < 2200 ? 1 : 41) {
    tape[i] ^= static_cast<std::byte>(1U << (i % 8));
    const memra::Status s = t.play(tape);
    INFO("byte " << i << ": " << s.text());
    // A length that grew makes the receiver wait for bytes that never come.
    REQUIRE(
        (s.kind() == ErrorKind::corrupt || s.kind() == ErrorKind::unsupported || s.kind() == ErrorKind::link_failure));
    if (i >= HandoverHeader::prelude_bytes) REQUIRE(s.kind() == ErrorKind::corrupt);
    tape[i] ^= static_cast<std::byte>(1U << (i % 8));
  }
  REQUIRE(t.play(tape).ok());
}

TEST_CASE("H4 pieces in another order are refused", "[handover]") {
  Taped t(std::size_t{64} << 20);
  const auto& messages = t.writer.messages;
  std::size_t swaps = 0;
  for (std::size_t i = 2; i < messages.size(); ++i) {
    for (std::size_t j = i + 1; j < messages.size(); ++j) {
      Bytes tape;
      std::size_t at = 0;
      std::vector<Bytes> parts;
      for (const std::size_t n : messages) {
        parts.emplace_back(t.writer.tape.begin() + static_cast<std::ptrdiff_t>(at),
                           t.writer.tape.begin() + static_cast<std::ptrdiff_t>(at + n));
        at += n;
      }
      if (parts[i] == parts[j]) continue;
      std::swap(parts[i], parts[j]);
      for (const Bytes& p : parts) tape.insert(tape.end(), p.begin(), p.end());
      REQUIRE(says(t.play(tape), ErrorKind::corrupt, "arrived with other bytes than were sent"));
      ++swaps;
    }
  }
  REQUIRE(swaps > 100);
}

TEST_CASE("H5 a state of another kind is refused by name before anything is allocated", "[handover]") {
  Taped t;
  const auto refused = [&](auto change, ErrorKind kind, const char* words) {
    auto target = t.target();
    change(target);
    Devices counted;
    memra::HandoverTarget<TestDev> there = target_of<TestDev>({&counted.dev[0]}, target.fence, target.config);
    there.max_ctx = target.max_ctx;
    there.tag = target.tag;
    there.draft = target.draft;
    TapeReader reader(t.writer.tape);
    const auto got = memra::receive_state(reader, there);
    INFO(got.status().text());
    REQUIRE(says(got.status(), kind, words));
    REQUIRE(counted.allocations() == 0);
    REQUIRE(reader.at < t.writer.tape.size() / 2);  // the header only
    REQUIRE(reader.said.size() == 256);
    REQUIRE(says(t.play(t.writer.tape, target), kind, words));
  };
  using Target = memra::HandoverTarget<HostDev>;
  const auto attention = [](Target& x) -> memra::AttentionSpec& {
    return std::get<memra::AttentionSpec>(x.config.layers[1].states[0]);
  };
  const auto recurrent = [](Target& x) -> memra::RecurrentSpec& {
    return std::get<memra::RecurrentSpec>(x.config.layers[0].states[0]);
  };
  const ErrorKind bad = ErrorKind::bad_argument;
  refused([](Target& x) { x.tag = tag_of(2); }, bad, "another fingerprint");
  refused([](Target& x) { x.tag.numeric_class = 3; }, bad, "numeric class 0, this receiver continues in 3");
  refused([](Target& x) { x.max_ctx = handed_rows - 1; }, bad, "the stream has 9 rows, max_ctx is 8");
  refused([&](Target& x) { attention(x).k_format = Format::q4_0; }, bad,
          "layer 1, state 0: the stream has k_format q8_0");
  refused([&](Target& x) { attention(x).v_layout = Layout::split; }, bad, "v_layout blocks, this model split");
  refused([&](Target& x) { attention(x).n_kv_heads = attention(x).n_heads = 1; }, bad, "n_kv_heads 2, this model 1");
  refused([&](Target& x) { attention(x).window = 7; }, bad, "window 0, this model 7");
  refused([&](Target& x) { recurrent(x).d_conv = 3; }, bad, "d_conv 4, this model 3");
  refused([&](Target& x) { recurrent(x).map.mode = memra::KeyHeadMode::interleaved; }, bad, "map.mode");
  refused([](Target& x) { x.config.n_vocab = 17; }, bad, "n_vocab 16, this model 17");
  refused(
      [](Target& x) {
        x.config.layers.pop_back(), x.fence = {0, x.config.layers.size()};
      },
      bad, "a layer count of");
  refused([](Target& x) { x.draft.reset(); }, bad, "this receiver no drafter");
  refused([](Target& x) { x.draft->n_layer = 3; }, bad, "draft tail has 2 layers");
  refused([](Target& x) { x.draft->head_dim = 8; }, bad, "this drafter 2, at most 7 of 64");
  refused([](Target& x) { x.draft->sliding_window = 3; }, bad, "at most 6");
  // What only sizes scratch may differ.
  auto target = t.target();
  attention(target).n_heads = 8;
  recurrent(target).second_buffer = true;
  REQUIRE(t.play(t.writer.tape, target).ok());
}

TEST_CASE("H5 a version of the future is named", "[handover]") {
  Taped t;
  Bytes tape = t.writer.tape;
  tape[8] = std::byte{2};
  REQUIRE(says(t.play(tape), ErrorKind::unsupported, "version 2; this build reads 1"));
}

TEST_CASE("H6 the n-th device call of a receiver fails: nothing is left, and the next attempt succeeds",
          "[handover][failure]") {
  Taped t;
  const auto places = placements(t.cfg.layers.size());
  for (const PlacedOn& p : {places[0], places[3]}) {
    Devices d;
    for (std::size_t n = 1;; ++n) {
      d.arm(n);
      TapeReader reader(t.writer.tape);
      auto target = target_of<TestDev>(d.of(p), p.fence, t.cfg);
      auto got = memra::receive_state(reader, target);
      const bool fired = d.fired();
      d.arm(0);
      if (!fired) {
        REQUIRE(wrong_with(*got, t.cfg, t.sender.tokens, t.sender.logits, true) == "");
        REQUIRE(n > 40);
        break;
      }
      REQUIRE(!got);
      REQUIRE(d.live() == 0);
    }
  }
}

TEST_CASE("H6 the n-th device call of a sender fails: the cache is as it was", "[handover][failure]") {
  const auto cfg = hybrid_model();
  Devices d;
  const PlacedOn p = placements(cfg.layers.size())[2];
  Prefilled<TestDev> sender(d.of(p), p.fence, cfg);
  const std::size_t held = d.live();
  for (std::size_t n = 1;; ++n) {
    d.arm(n);
    TapeWriter writer;
    const memra::Status s = memra::send_state(writer, sender.cache, tag_of(), &*sender.tail);
    const bool fired = d.fired();
    d.arm(0);
    REQUIRE(d.live() == held);
    require_eq(image(sender.cache), straight(cfg, part(sender.tokens, 0, handed_rows)));
    REQUIRE(s.ok() == !fired);
    if (!fired) {
      REQUIRE(n > 20);
      break;
    }
  }
}

TEST_CASE("who may not send", "[handover]") {
  Taped t;
  TapeWriter writer;
  const auto refused = [&](memra::Cache<HostDev>& c, ErrorKind kind, const char* words) {
    REQUIRE(says(memra::send_state(writer, c, tag_of()), kind, words));
    REQUIRE(writer.tape.empty());
  };
  auto fresh = memra::check(memra::Cache<HostDev>::create(t.dev, t.cfg, 16));
  refused(fresh, ErrorKind::bad_argument, "position 0");
  auto snap = memra::check(t.sender.cache.snapshot());
  memra::check(feed(t.sender.cache, part(t.sender.tokens, handed_rows, 3)));
  memra::check(t.sender.cache.rollback(snap, 2).status());
  refused(t.sender.cache, ErrorKind::bad_state, "a replay of 2 rows is owed");
  memra::check(feed(t.sender.cache, part(t.sender.tokens, handed_rows, 2)));
  memra::check(t.sender.cache.begin_step(1).status());
  refused(t.sender.cache, ErrorKind::bad_state, "a step is open");
  const memra::Cache<HostDev> taken = std::move(t.sender.cache);
  refused(t.sender.cache, ErrorKind::bad_state, "moved-from");  // NOLINT(bugprone-use-after-move)
  auto tail = t.sender.draft.export_tail(handed_rows);
  tail->rows -= 1;
  TapeWriter other;
  memra::Cache<HostDev> again = memra::check(memra::Cache<HostDev>::create(t.dev, t.cfg, 16));
  memra::check(feed(again, part(t.sender.tokens, 0, handed_rows)));
  REQUIRE(says(memra::send_state(other, again, tag_of(), &*tail), ErrorKind::bad_argument, "draft K of layer 0"));
}

}  // namespace
}  // namespace stream_cpp
