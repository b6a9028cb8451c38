// Rows that stand for several tokens each (DeepSeek V4): an engine's compressor over its own history, taken back in the
// middle of a group by every means, against every row computed from its group's tokens alone.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/cache.hpp>
#include <memra/codec.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/plan.hpp>
#include <memra/state_cost.hpp>
#include <support/catch.hpp>
#include <support/op_model.hpp>
#include <support/says.hpp>
#include <support/stand_in.hpp>
#include <vector>

namespace kinds_groups_cpp {
namespace {

using memra::ErrorKind;
using memra::Format;
using memra::HostDev;
using memra::Layout;
using memra::Strategy;
using memra_test::all_rounds;
using memra_test::join;
using memra_test::part;
using memra_test::says;
using memra_test::stream;
using memra_test::Token;
using memra_test::Tokens;
using Cache = memra::Cache<HostDev>;

constexpr std::size_t dim = 32;

/// What a token is worth to the rows it is part of.
float input(Token t, std::size_t channel) {
  return memra_test::stand_in::value(7, 0, 0, channel, t, 0);
}

/// Overlapping groups of `stride`, as V4's: a row is made of the first halves of the group before and the second halves
/// of its own, in the order of the tokens; nothing before the first group. The sum stands for a softmax.
std::vector<float> row_of(const Tokens& tokens, std::size_t group, std::size_t stride) {
  std::vector<float> row(dim, 0.0F);
  for (std::size_t e = 0; e < dim; ++e) {
    for (std::size_t i = 0; i < stride && group != 0; ++i) row[e] += input(tokens[(group - 1) * stride + i], e);
    for (std::size_t i = 0; i < stride; ++i) row[e] += input(tokens[group * stride + i], dim + e);
  }
  return row;
}

/// A layer of V4: its rows, and the inputs that the next row still needs.
memra::ModelConfig model(std::size_t stride, Format format = Format::q8_0, Layout layout = Layout::blocks) {
  memra::ModelConfig cfg;
  cfg.layers = {{{memra::windowed(memra::latent_rows(2, 32, 0), 5, 40),
                  memra::grouped_rows(dim, stride, format, layout), memra::short_conv(2 * dim, 2 * stride)}}};
  return cfg;
}

/// The engine's kernel: conv inputs of a token, and a row where one ends a group, from the history alone.
void forward(memra::Step<HostDev>& step, const Tokens& tokens) {
  const memra::KvWriteView window = memra::check(step.kv_write(0));
  const memra::GroupedView groups = memra::check(step.grouped(0));
  const memra::RecurView state = memra::check(step.recur(0));
  const std::int32_t pos = *groups.at.pos_d;
  const std::size_t history = state.d_conv - 1;
  std::vector<float> conv(state.conv, state.conv + 2 * dim * history);  // a round leaves the state as it is
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::vector<float> key(32);
    for (std::size_t e = 0; e < key.size(); ++e) key[e] = input(tokens[i], 100 + e);
    memra::encode_row(window.k, window.k.phys(static_cast<std::size_t>(pos) + i), key.data());
    if (groups.ends(pos, i)) {
      const std::size_t g = groups.seen(pos, i) - 1;
      std::vector<float> row(dim, 0.0F);
      for (std::size_t e = 0; e < dim; ++e) {
        // The oldest 2 * stride - 1 tokens lie in the history, this one is not in it yet.
        const auto past = [&](std::size_t channel, std::size_t back) {
          return conv[channel * history + history - back];
        };
        for (std::size_t j = 0; j < groups.stride && g != 0; ++j) row[e] += past(e, 2 * groups.stride - 1 - j);
        for (std::size_t j = 0; j + 1 < groups.stride; ++j) row[e] += past(dim + e, groups.stride - 1 - j);
        row[e] += input(tokens[i], dim + e);
      }
      memra::encode_row(groups.rows, g, row.data());
    }
    for (std::size_t c = 0; c < 2 * dim; ++c) {
      for (std::size_t j = 0; j + 1 < history; ++j) conv[c * history + j] = conv[c * history + j + 1];
      conv[c * history + history - 1] = input(tokens[i], c);
      if (state.round.mode != memra::RoundMode::none) state.round.conv_rows[i * 2 * dim + c] = input(tokens[i], c);
    }
  }
  if (state.round.mode == memra::RoundMode::none) std::copy(conv.begin(), conv.end(), state.conv);
}

void feed(Cache& c, const Tokens& tokens, std::size_t by) {
  for (std::size_t at = 0; at < tokens.size(); at += by) {
    const Tokens now = part(tokens, at, std::min(by, tokens.size() - at));
    auto step = memra::check(c.begin_step(now.size()));
    forward(step, now);
    memra::check(c.advance());
  }
}

/// Every committed row is that of its group's tokens; and as many as there are whole groups.
bool holds(const Cache& c, const Tokens& tokens) {
  const memra::GroupedLayer layer = *c.grouped(0);
  const std::size_t stride = layer.spec.stride;
  if (c.pos() != tokens.size() || layer.len != tokens.size() / stride) return false;
  for (std::size_t g = 0; g < layer.len; ++g) {
    memra::PlaneShape shape = layer.rows.shape;
    shape.rows = 1;
    std::vector<std::byte> one(memra::sub_planes(shape).bytes);
    memra::encode_row(memra::PlaneView{one.data(), shape, 0}, 0, row_of(tokens, g, stride).data());
    const auto got = memra::segments(layer.rows.shape, g, 1);
    const auto want = memra::segments(shape, 0, 1);
    for (std::size_t i = 0; i < got.count; ++i) {
      if (std::memcmp(layer.rows.data + got[i].offset, one.data() + want[i].offset, want[i].bytes) != 0) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

TEST_CASE("C3 grouped rows by hand: one for every so many tokens, and none for a group that is not full",
          "[kinds][groups]") {
  constexpr memra::GroupedRowsSpec csa = memra::grouped_rows(512, 4);
  static_assert(memra::state_cost(csa, 131072).grouped_bytes == 512 / 32 * 34 * (131072 / 4));
  static_assert(memra::state_cost(csa, 3) == memra::StateCost{});
  for (const std::size_t ctx : {1U, 3U, 4U, 5U, 7U, 8U, 127U, 128U, 129U, 1000U}) {
    memra::ModelConfig cfg;
    cfg.layers = {{{csa, memra::grouped_rows(512, 128, Format::bf16, Layout::split)}}};
    const auto t = memra::check(memra::plan(cfg, ctx)).totals;
    CAPTURE(ctx);
    REQUIRE(t.grouped_bytes == 512 / 32 * 34 * (ctx / 4) + 512 * 2 * (ctx / 128));
    REQUIRE((t.bytes_per_token == 0 && t.k_bytes == 0 && t.tail_pad_bytes == 2 * 8));
    REQUIRE(t.total_bytes == t.grouped_bytes + t.tail_pad_bytes + t.mirror_bytes + t.pad_bytes);
    HostDev dev;
    const Cache c = memra::check(Cache::create(dev, cfg, ctx));
    REQUIRE((c.grouped(0)->rows.phys_rows() == ctx / 4 && c.grouped(0, 1)->rows.phys_rows() == ctx / 128));
    REQUIRE_FALSE(c.grouped(0, 2));
    REQUIRE_FALSE(c.kv(0));
    REQUIRE_FALSE(c.recur(0));
  }
}

TEST_CASE("grouped rows that cannot be are refused by the plan", "[kinds][groups]") {
  const auto refused = [](memra::GroupedRowsSpec g, const char* words) {
    memra::ModelConfig cfg;
    cfg.layers = {{{g}}};
    return says(memra::plan(cfg, 100).status(), ErrorKind::bad_argument, words);
  };
  REQUIRE(refused(memra::grouped_rows(0, 4), "layer 0: grouped rows need dim and stride of at least 1"));
  REQUIRE(refused(memra::grouped_rows(32, 0), "layer 0: grouped rows need dim and stride of at least 1"));
  REQUIRE(refused(memra::grouped_rows(33, 4), "multiple of 32"));
  REQUIRE(refused(memra::grouped_rows(std::size_t{1} << 62U, 4), "does not fit"));
  REQUIRE(refused(memra::grouped_rows(std::size_t{1} << 60U, 1), "do not fit in memory addresses"));
}

TEST_CASE("which tokens write a row, and which rows a token sees", "[kinds][groups]") {
  memra::GroupedView g;
  g.stride = 4;
  g.at.capacity = 10;
  for (std::int32_t pos = 0; pos < 12; ++pos) {
    for (std::size_t i = 0; i < 5; ++i) {
      const std::size_t token = static_cast<std::size_t>(pos) + i;
      CAPTURE(pos, i);
      REQUIRE(g.ends(pos, i) == (token == 3 || token == 7));  // 11 is beyond the capacity
      REQUIRE(g.seen(pos, i) == (token < 3 ? 0U : token < 7 ? 1U : token < 11 ? 2U : token < 15 ? 3U : 4U));
    }
  }
  REQUIRE((g.seen(-1, 3) == 0 && !g.ends(-1, 4)));  // a stream that ran out of rows
}

TEST_CASE("C6 a group that is taken back in its middle is filled again by its own tokens", "[kinds][groups]") {
  const Tokens t = stream(60);
  for (const std::size_t stride : {2U, 4U, 7U}) {
    for (const Layout layout : {Layout::blocks, Layout::split}) {
      for (std::size_t at = 9; at < 9 + 2 * stride; ++at) {
        for (const std::size_t accept : {0U, 1U, 3U, 6U}) {
          CAPTURE(stride, at, accept);
          HostDev dev;
          Cache c = memra::check(Cache::create(dev, model(stride, Format::q5_1, layout), 60));
          feed(c, part(t, 0, at), 5);
          REQUIRE(holds(c, part(t, 0, at)));
          const auto snap = memra::check(c.snapshot());
          Tokens drafts = part(t, at, accept);
          drafts = join(drafts, stream(9 - accept, 5));  // of which the rest is wrong
          feed(c, drafts, 4);
          const auto back = memra::check(c.rollback(snap, accept));
          REQUIRE(back.replay == accept);
          feed(c, part(t, at, accept), 2);
          REQUIRE(holds(c, part(t, 0, at + accept)));
          feed(c, part(t, at + accept, 20), 3);
          REQUIRE(holds(c, part(t, 0, at + accept + 20)));
        }
      }
    }
  }
}

TEST_CASE("R3 R9 rounds of every strategy leave the rows of the straight run, whatever part of a group they keep",
          "[kinds][groups]") {
  for (const Strategy by : {Strategy::replay, Strategy::planes, Strategy::stash}) {
    HostDev dev;
    Cache c = memra::check(Cache::create(dev, model(4), 200, all_rounds(6)));
    Tokens line = stream(10);
    feed(c, line, 3);
    for (std::size_t n = 0; n < 20; ++n) {
      const Tokens drafts = stream(6, static_cast<std::uint32_t>(n + 2));
      auto round = memra::check(c.begin_round(6, by));
      forward(round.step(), drafts);
      const std::size_t accept = n * 5 % 7;
      const auto left = memra::check(round.commit(accept));
      if (left.replay != 0) feed(c, part(drafts, 0, left.replay), 2);
      line = join(line, part(drafts, 0, accept));
      CAPTURE(static_cast<int>(by), n);
      REQUIRE(holds(c, line));
    }
  }
}

TEST_CASE("a prefix holds the rows of whole groups, and the state that finishes the next one", "[kinds][groups]") {
  const Tokens t = stream(80);
  for (std::size_t at = 1; at < 20; ++at) {
    CAPTURE(at);
    HostDev a;
    HostDev b;
    Cache c = memra::check(Cache::create(a, model(4, Format::q4_0, Layout::split), 90));
    feed(c, part(t, 0, at), 3);
    const auto snap = memra::check(c.snapshot());
    feed(c, stream(7, 3), 7);
    const auto prefix = memra::check(c.export_prefix(snap));
    Cache other = memra::check(Cache::from_prefix(b, model(4, Format::q4_0, Layout::split), 70, prefix));
    REQUIRE(holds(other, part(t, 0, at)));
    feed(other, part(t, at, 30), 4);
    REQUIRE(holds(other, part(t, 0, at + 30)));
    REQUIRE(says(Cache::from_prefix(b, model(5, Format::q4_0, Layout::split), 70, prefix).status(),
                 ErrorKind::bad_argument, "layer 0, state 1: the prefix has stride 4, this model 5"));
  }
}

TEST_CASE("C2 grouped rows are written in every step, and once", "[kinds][groups]") {
  HostDev dev;
  Cache c = memra::check(Cache::create(dev, model(4), 60));
  auto step = memra::check(c.begin_step(2));
  memra::check(step.kv_write(0).status());
  memra::check(step.recur(0).status());
  REQUIRE(says(c.advance(), ErrorKind::bad_state, "layer 0 was not written"));
  REQUIRE(says(step.grouped(0, 1).status(), ErrorKind::bad_argument, "has no such grouped state"));
  REQUIRE(step.grouped(0).ok());
  REQUIRE(says(step.grouped(0).status(), ErrorKind::bad_state, "already written"));
  memra::check(c.advance());
  REQUIRE(says(step.grouped(0).status(), ErrorKind::bad_state, "this step has ended"));
}

TEST_CASE("red arms: a row of other tokens, and a history that was not taken back, are seen", "[kinds][groups]") {
  const Tokens t = stream(40);
  HostDev dev;
  Cache c = memra::check(Cache::create(dev, model(4), 60));
  feed(c, part(t, 0, 10), 5);
  REQUIRE(holds(c, part(t, 0, 10)));
  Tokens other = part(t, 0, 10);
  other[7] ^= 1U;  // in a whole group
  REQUIRE_FALSE(holds(c, other));
  other = part(t, 0, 10);
  other[9] ^= 1U;  // in one that is not full: no row knows it yet
  REQUIRE(holds(c, other));
  const auto snap = memra::check(c.snapshot());
  feed(c, stream(1, 4), 1);
  memra::check(c.rollback(snap, 0).status());
  // As an engine that keeps the inputs outside of the cache and forgets them: the next row is wrong.
  const_cast<float*>(c.recur(0)->conv)[0 * 7 + 6] += 1.0F;
  feed(c, part(t, 10, 10), 5);
  REQUIRE_FALSE(holds(c, part(t, 0, 20)));
}

}  // namespace kinds_groups_cpp
