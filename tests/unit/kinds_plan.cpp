// Bytes of every kind of layer by hand: the operands of each kind's formula, at the geometry of a published model.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <memra/plan.hpp>
#include <string>
#include <support/catch.hpp>
#include <support/says.hpp>
#include <support/stand_in.hpp>
#include <vector>

namespace kinds_plan_cpp {
namespace {

using memra::ErrorKind;
using memra::Format;
using memra::ModelConfig;
using memra_test::says;

constexpr std::size_t most = std::numeric_limits<std::size_t>::max();

memra::PlanTotals totals(const memra::LayerSpec& layer, std::size_t max_ctx = 1000) {
  ModelConfig cfg;
  cfg.layers = {layer};
  return memra::check(memra::plan(cfg, max_ctx)).totals;
}
memra::PlanTotals totals(const memra::RecurrentSpec& r) {
  return totals(memra::recurrent(r));
}

TEST_CASE("C3 recurrent kinds: one copy of the state by hand", "[plan][kinds]") {
  // conv: channels * (taps - 1) * bytes; ssm: heads * rows * columns * bytes.
  const auto nemotron = totals(memra::mamba2(64, 64, 8, 128, 4));
  REQUIRE(nemotron.conv_bytes == (64 * 64 + 2 * 8 * 128) * 3 * 4);
  REQUIRE(nemotron.ssm_bytes == 64 * 64 * 128 * 4);
  const auto jamba = totals(memra::mamba1(2 * 4096, 16, 4));
  REQUIRE(jamba.conv_bytes == 8192 * 3 * 4);
  REQUIRE(jamba.ssm_bytes == 8192 * 16 * 4);
  const auto kimi = totals(memra::kda(96, 128, 128, 4));
  REQUIRE(kimi.conv_bytes == 3 * (96 * 128) * 3 * 4);  // three convolutions of as many channels
  REQUIRE(kimi.ssm_bytes == 96 * 128 * 128 * 4);
  const auto minimax = totals(memra::lightning(64, 128, 128));
  REQUIRE((minimax.conv_bytes == 0 && minimax.ssm_bytes == 64 * 128 * 128 * 4));
  const auto lfm2 = totals(memra::short_conv(2048, 3));
  REQUIRE((lfm2.conv_bytes == 2048 * 2 * 4 && lfm2.ssm_bytes == 0));
  const auto next = totals(memra::gated_delta(16, 32, 128, 128, 4));
  REQUIRE(next.conv_bytes == (2 * 16 * 128 + 32 * 128) * 3 * 4);
  REQUIRE(next.ssm_bytes == 32 * 128 * 128 * 4);

  // The same in 16 bits, each by itself.
  const auto half = totals(memra::stored_as(memra::mamba2(64, 64, 8, 128, 4), Format::f32, Format::bf16));
  REQUIRE((half.conv_bytes == nemotron.conv_bytes && half.ssm_bytes * 2 == nemotron.ssm_bytes));
  const auto both = totals(memra::stored_as(memra::kda(96, 128, 128, 4), Format::f16, Format::f16));
  REQUIRE((both.conv_bytes * 2 == kimi.conv_bytes && both.ssm_bytes * 2 == kimi.ssm_bytes));
  REQUIRE(both.snapshot_bytes * 2 == kimi.snapshot_bytes);
  auto doubled = memra::stored_as(memra::lightning(64, 128, 128), Format::f32, Format::bf16);
  doubled.second_buffer = true;
  REQUIRE(totals(doubled).second_buffer_bytes == 64 * 128 * 128 * 2);
}

TEST_CASE("C3 attention kinds: rows by hand", "[plan][kinds]") {
  // Latent: 512 + 64 elements, no V. q8_0 has 34 bytes per 32.
  const auto deepseek = totals(memra::LayerSpec{{memra::latent_rows(128, 512, 64)}});
  REQUIRE((deepseek.bytes_per_token == 612 && deepseek.k_bytes == 612 * 1000 && deepseek.v_bytes == 0));
  REQUIRE(deepseek.tail_pad_bytes == 8);  // one plane
  REQUIRE(totals(memra::LayerSpec{{memra::latent_rows(128, 512, 64, Format::bf16)}}).bytes_per_token == 1152);
  REQUIRE(totals(memra::LayerSpec{{memra::latent_rows(128, 512, 64, Format::q4_0)}}).bytes_per_token == 324);
  // An indexer's keys beside it.
  REQUIRE(totals(memra::LayerSpec{{memra::latent_rows(64, 512, 64), memra::index_rows(128)}}).bytes_per_token ==
          612 + 136);
  // K of 4 * 192, V of 4 * 128.
  memra::AttentionSpec mimo;
  mimo.n_heads = 64;
  mimo.n_kv_heads = 4;
  mimo.head_dim_k = 192;
  mimo.head_dim_v = 128;
  REQUIRE(totals(memra::full_attention(mimo)).bytes_per_token == 816 + 384);
  // Both kinds in one layer.
  const auto hybrid = totals(memra::LayerSpec{{mimo, memra::mamba2(64, 64, 8, 128, 4)}});
  REQUIRE((hybrid.bytes_per_token == 1200 && hybrid.ssm_bytes == 64 * 64 * 128 * 4));
  REQUIRE(totals(memra::no_state()).total_bytes == 256);  // the position
}

TEST_CASE("C3 rings: the window, the slack, and where they begin to matter", "[plan][kinds]") {
  memra::AttentionSpec a = memra_test::attention_spec();  // K 2 * 32 in q8_0: 68, V in q5_1: 48
  const std::size_t row = 68 + 48;
  for (const std::size_t ctx : {1U, 99U, 100U, 101U, 191U, 192U, 193U, 5000U}) {
    const auto t = totals(memra::sliding_attention(a, 100, 70), ctx);
    const std::size_t rows = std::min<std::size_t>(ctx, 192);  // 170 rounded up to tiles of 64
    CAPTURE(ctx);
    REQUIRE(t.k_bytes + t.v_bytes == row * rows);
    REQUIRE(t.ring_slack_bytes == row * (rows - std::min<std::size_t>(rows, 100)));
    REQUIRE((t.ring_cap_bytes == row * 100 && t.bytes_per_token == 0));
  }
  const auto planes = totals(memra::sliding_attention(a, 100, 0), 5000);  // no ring
  REQUIRE(
      (planes.k_bytes + planes.v_bytes == row * 5000 && planes.bytes_per_token == row && planes.ring_cap_bytes == 0));
  REQUIRE(memra::ring_rows(memra::windowed(a, 100, 70), 5000) == 192);
  REQUIRE(memra::call_rows(memra::windowed(a, 100, 70), 5000) == 192 - 99);
  REQUIRE(memra::call_rows(memra::windowed(a, 100, 70), 192) == 192);
  ModelConfig cfg;
  cfg.layers = {memra::sliding_attention(a, 100, 70), memra::sliding_attention(a, 500, 10)};
  REQUIRE(memra::check(memra::plan(cfg, 5000)).max_rows == 512 - 499);
}

TEST_CASE("C3 blocks past the trunk are counted apart", "[plan][kinds]") {
  ModelConfig cfg;
  for (int i = 0; i < 62; ++i) cfg.layers.push_back({{memra::latent_rows(128, 512, 64)}});
  REQUIRE(memra::check(memra::plan(cfg, 100)).totals.bytes_per_token == 62 * 612);
  cfg.n_mtp = 1;
  const auto t = memra::check(memra::plan(cfg, 100)).totals;
  REQUIRE((t.bytes_per_token == 61 * 612 && t.mtp_bytes_per_token == 612 && t.k_bytes == 62 * 612 * 100));
  cfg.n_mtp = 63;
  REQUIRE(says(memra::plan(cfg, 100).status(), ErrorKind::bad_argument, "n_mtp is 63 of 62"));
}

TEST_CASE("C3 the scratch of attend covers latent and shared layers", "[plan][kinds]") {
  ModelConfig cfg;
  cfg.layers = {{{memra::latent_rows(16, 64, 32), memra::index_rows(128)}}};
  const auto own = memra::check(memra::plan(cfg, 64)).workspace_bytes(4);
  REQUIRE(own == memra::detail::attend_scratch_bytes(16, 1, 96, 64, 4));  // none for the keys of an indexer
  cfg.layers.push_back(memra::shared_attention(0, 48));
  REQUIRE(memra::check(memra::plan(cfg, 64)).workspace_bytes(4) ==
          memra::detail::attend_scratch_bytes(48, 1, 96, 64, 4));
}

TEST_CASE("C13 specifications of every kind are refused by name", "[plan][kinds]") {
  const auto refused = [](const memra::LayerSpec& layer, const char* words) {
    ModelConfig cfg;
    cfg.layers = {memra::no_state(), layer};
    const auto s = memra::plan(cfg, 100).status();
    return says(s, ErrorKind::bad_argument, words) && says(s, ErrorKind::bad_argument, "layer 1");
  };
  const memra::AttentionSpec a = memra_test::attention_spec();
  REQUIRE(refused(memra::sliding_attention(a, 0, 10), "without a window"));
  REQUIRE(refused(memra::sliding_attention(a, most, 1), "does not fit"));
  REQUIRE(refused(memra::sliding_attention(a, most - 200, 10), "does not fit"));
  auto latent = memra::latent_rows(4, 64, 32);
  latent.head_dim_v = 97;
  REQUIRE(refused({{latent}}, "which has fewer"));
  REQUIRE(refused({{memra::latent_rows(4, 64, 16)}}, "multiple of 32"));
  REQUIRE_FALSE(refused({{memra::latent_rows(4, 64, 16, Format::f16)}}, ""));
  REQUIRE_FALSE(refused({{memra::latent_rows(4, 48, 16)}}, ""));  // a whole row of blocks is enough
  REQUIRE(
      refused(memra::recurrent(memra::stored_as(memra::kda(1, 8, 8, 4), Format::q8_0, Format::f32)), "f32, f16 or"));
  REQUIRE(refused(memra::recurrent(memra::stored_as(memra::kda(1, 8, 8, 4), Format::f32, Format::fp8_e4m3)), "bf16"));
  REQUIRE(refused(memra::recurrent(memra::short_conv(0, 3)), "conv_channels"));
  REQUIRE(refused(memra::recurrent(memra::short_conv(8, 0)), "d_conv"));
  REQUIRE(refused(memra::recurrent(memra::short_conv(most / 2, 3)), "does not fit"));
  auto conv = memra::short_conv(8, 3);
  conv.n_v_heads = 1;
  REQUIRE(refused(memra::recurrent(conv), "no heads"));
  auto mamba = memra::mamba1(64, 16, 4);
  mamba.n_v_heads = 2;
  REQUIRE(refused(memra::recurrent(mamba), "one head"));
  REQUIRE(refused(memra::recurrent(memra::mamba2(6, 8, 4, 16, 4)), "map"));  // 4 groups do not divide 6 heads
  REQUIRE(refused(memra::recurrent(memra::mamba1(most / 8, 16, 4)), "does not fit"));
  REQUIRE(refused(memra::recurrent(memra::lightning(0, 8, 8)), "at least 1"));
}

TEST_CASE("rounds of every kind cost what their rows cost", "[plan][kinds][round]") {
  const auto with = [](const memra::RecurrentSpec& r, bool planes, bool stash) {
    ModelConfig cfg;
    cfg.layers = {memra::recurrent(r)};
    memra::RoundOptions o;
    o.rows = 8;
    o.planes = planes;
    o.stash = stash;
    return memra::check(memra::plan(cfg, 100, memra::Placement::single(1), o)).round;
  };
  const auto half = memra::stored_as(memra::mamba2(4, 8, 2, 16, 4), Format::bf16, Format::bf16);
  REQUIRE(with(half, true, false).plane_bytes == 8 * 4 * 8 * 16 * 2);               // planes are kept as the state is
  REQUIRE(with(half, true, false).conv_row_bytes == 8 * (4 * 8 + 2 * 2 * 16) * 4);  // raw inputs are f32
  REQUIRE(with(half, false, true).stash_bytes == 8 * (2 * 16 + 4 * 8 + 4) * 4);
  REQUIRE(with(memra::kda(4, 16, 8, 4), false, true).stash_bytes == 8 * (4 * 16 + 4 * 8 + 4 * 16) * 4);
  const auto conv = with(memra::short_conv(64, 3), true, true);
  REQUIRE((conv.plane_bytes == 0 && conv.stash_bytes == 0 && conv.conv_row_bytes == 8 * 64 * 4));
}

}  // namespace
}  // namespace kinds_plan_cpp
