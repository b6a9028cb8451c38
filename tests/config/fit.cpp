// state_cost as a constant expression, and the longest context that fits, against a search that tries every length.
#include <array>
#include <config/support.hpp>
#include <cstddef>
#include <limits>
#include <memra/dflash_cfg.hpp>
#include <memra/placement.hpp>
#include <memra/plan_fit.hpp>
#include <memra/state_cost.hpp>
#include <support/catch.hpp>

namespace fit_cpp {
using namespace loaded;

namespace {

constexpr memra::AttentionSpec plain = {.n_heads = 8, .n_kv_heads = 8, .head_dim_k = 128, .head_dim_v = 128};
constexpr memra::RecurrentSpec linear = memra::gated_delta(16, 48, 128, 128, 4);

// Known before the program runs: Qwen3.5-27B's layers, DeepSeek's latent row, Gemma's ring.
static_assert(memra::state_cost(plain, 1).bytes_per_token == kv(8, 128));
static_assert(memra::state_cost(memra::latent_rows(128, 512, 64), 1).bytes_per_token == q8(576));
static_assert(memra::state_cost(memra::index_rows(128, memra::Format::q8_0), 1).bytes_per_token == q8(128));
static_assert(memra::state_cost(linear, 1).fixed_bytes == 4 * (10240 * 3 + 48 * 128 * 128));
static_assert(memra::state_cost(memra::windowed(plain, 1024, 64), 5000).ring_bytes == kv(8, 128) * 1088);
static_assert(memra::state_cost(memra::windowed(plain, 1024, 64), 700).ring_bytes == kv(8, 128) * 700);
static_assert(memra::state_cost(memra::windowed(plain, 1024, 64), 700).ring_cap_bytes == kv(8, 128) * 1024);
static_assert(memra::state_cost(memra::windowed(plain, 1024, 0), 700).bytes_per_token == kv(8, 128));
static_assert(memra::state_cost(memra::SharedKvSpec{}, 9) == memra::StateCost{});
static_assert(memra::state_cost(memra::stored_as(linear, memra::Format::f16, memra::Format::bf16), 1).fixed_bytes ==
              2 * (10240 * 3 + 48 * 128 * 128));

memra::ModelConfig small() {
  memra::ModelConfig m;
  m.layers = {memra::full_attention({.n_kv_heads = 1, .head_dim_k = 32, .head_dim_v = 32}),
              memra::recurrent(memra::gated_delta(1, 1, 8, 8, 4)),
              memra::sliding_attention({.n_kv_heads = 1, .head_dim_k = 32, .head_dim_v = 32}, 100, 20),
              memra::full_attention({.n_kv_heads = 2, .head_dim_k = 32, .head_dim_v = 32})};
  m.n_mtp = 1;
  return m;
}

memra::FitRequest on_one(std::size_t budget) {
  return {.placement = memra::Placement::single(4), .budget_bytes = {budget}};
}

/// By trying.
std::size_t longest_by_hand(const memra::ModelConfig& m, const memra::FitRequest& r, std::size_t most) {
  std::size_t longest = 0;
  for (std::size_t ctx = 1; ctx <= most; ++ctx) {
    const auto bytes = memra::check(memra::device_bytes(m, ctx, r));
    bool fits = true;
    for (std::size_t d = 0; d < bytes.size(); ++d) fits = fits && bytes[d] * r.sequences <= r.budget_bytes[d];
    if (fits) longest = ctx;
  }
  return longest;
}

}  // namespace

TEST_CASE("the longest context is the last that fits, for budgets around every step") {
  const memra::ModelConfig m = small();
  for (std::size_t budget = 0; budget < 120000; budget += 777) {
    INFO(budget);
    REQUIRE(memra::check(memra::longest_ctx(m, on_one(budget))) == longest_by_hand(m, on_one(budget), 700));
  }
  // A budget that is exactly a plan's total holds that plan, one byte less does not.
  for (const std::size_t ctx : std::array<std::size_t, 8>{1, 99, 100, 101, 127, 128, 129, 500}) {
    const std::size_t total = memra::check(memra::plan(m, ctx)).totals.total_bytes;
    const std::size_t longest = memra::check(memra::longest_ctx(m, on_one(total)));
    REQUIRE(longest >= ctx);
    REQUIRE(memra::check(memra::plan(m, longest)).totals.total_bytes <= total);
    REQUIRE(memra::check(memra::longest_ctx(m, on_one(total - 1))) < longest + 1);
    REQUIRE(memra::check(memra::plan(m, longest + 1)).totals.total_bytes > total);
  }
}

TEST_CASE("several sequences, several devices, a draft cache beside the last stage") {
  const memra::ModelConfig m = small();
  memra::FitRequest r = on_one(300000);
  r.sequences = 3;
  REQUIRE(memra::check(memra::longest_ctx(m, r)) == longest_by_hand(m, r, 1500));
  r = {.placement = {memra::pp_cuts(3, 2), {0, 1}, {}}, .budget_bytes = {40000, 60000}};
  const std::size_t alone = memra::check(memra::longest_ctx(m, r));
  REQUIRE(alone == longest_by_hand(m, r, 1500));
  const memra::DflashCfg draft = {.n_layer = 1, .n_kv = 1, .head_dim = 8, .block_size = 4, .sliding_window = 0};
  r.draft = &draft;
  REQUIRE(memra::check(memra::longest_ctx(m, r)) == longest_by_hand(m, r, 1500));
  REQUIRE(memra::check(memra::longest_ctx(m, r)) < alone);
  r.rounds = {.rows = 8, .planes = true};
  REQUIRE(memra::check(memra::longest_ctx(m, r)) == longest_by_hand(m, r, 1500));
  memra::DflashCfg ring = draft;
  ring.sliding_window = 60;
  ring.ring = true;  // 132 rows
  r.rounds = {};
  const std::size_t flat = memra::check(memra::longest_ctx(m, r));
  r.draft = &ring;
  REQUIRE(memra::check(memra::longest_ctx(m, r)) == longest_by_hand(m, r, 1500));
  REQUIRE(memra::check(memra::longest_ctx(m, r)) > flat);
  const std::size_t with = memra::check(memra::device_bytes(m, 5000, r)).back();
  r.draft = nullptr;
  const std::size_t plane = 17 * 256;  // 132 rows of 32 bytes are 4,224
  REQUIRE(with - memra::check(memra::device_bytes(m, 5000, r)).back() == 256 + 2 * plane);
  r.draft = &ring;
}

TEST_CASE("nothing fits, everything fits, and requests that are wrong") {
  const memra::ModelConfig m = small();
  REQUIRE(memra::check(memra::longest_ctx(m, on_one(0))) == 0);
  REQUIRE(memra::check(memra::longest_ctx(m, on_one(1000))) == 0);
  REQUIRE(memra::check(memra::longest_ctx(m, on_one(std::numeric_limits<std::size_t>::max()))) == 2147483647);
  memra::FitRequest r = on_one(std::numeric_limits<std::size_t>::max());
  r.most_ctx = 4096;
  REQUIRE(memra::check(memra::longest_ctx(m, r)) == 4096);
  r.budget_bytes = {1, 2};
  REQUIRE_FALSE(memra::longest_ctx(m, r).ok());
  r.budget_bytes = {1};
  r.sequences = 0;
  REQUIRE_FALSE(memra::longest_ctx(m, r).ok());
  r.sequences = std::numeric_limits<std::size_t>::max();  // does not wrap
  REQUIRE(memra::check(memra::longest_ctx(m, r)) == 0);
  memra::ModelConfig wrong = m;
  std::get<memra::AttentionSpec>(wrong.layers[0].states[0]).head_dim_k = 33;
  REQUIRE_FALSE(memra::longest_ctx(wrong, on_one(100000)).ok());
}

TEST_CASE("red arm: a byte of another geometry shows in every sum") {
  const auto with = [](const char* kv_heads, const char* window, const char* taps) {
    return model(std::string(R"({"model_type":"gemma3_text","num_hidden_layers":6,"num_attention_heads":8,"head_dim":64,
      "num_key_value_heads":)") +
                 kv_heads + R"(,"sliding_window":)" + window + R"(,"sliding_window_pattern":)" + taps + "}");
  };
  const auto sums = [](const memra::config::Model& m) {
    const memra::PlanTotals t = plan(m, 5000).totals;
    return std::array{t.bytes_per_token, t.ring_cap_bytes, t.total_bytes};
  };
  const auto right = sums(with("4", "512", "6"));
  REQUIRE(right[0] == kv(4, 64));
  for (const auto& other : {with("2", "512", "6"), with("4", "512", "3")}) {
    REQUIRE(sums(other)[0] != right[0]);
    REQUIRE(sums(other)[1] != right[1]);
    REQUIRE(sums(other)[2] != right[2]);
  }
  REQUIRE(sums(with("4", "513", "6"))[1] == right[1] + 5 * kv(4, 64));
}
}  // namespace fit_cpp
