// DeepSeek V4: windows, rows of several tokens and what makes them, at contexts around the edges of both.
#include <algorithm>
#include <array>
#include <config/gguf_writer.hpp>
#include <config/support.hpp>
#include <cstddef>
#include <cstdint>
#include <memra/config/gguf.hpp>
#include <string>
#include <support/catch.hpp>
#include <variant>
#include <vector>

namespace compressed_cpp {
using namespace loaded;

namespace {

/// Flash's layers: two windows alone, then sparse and heavy in turn, and the block past the trunk.
std::vector<std::int64_t> flash() {
  std::vector<std::int64_t> ratios = {0, 0, 4};
  for (int i = 0; i < 20; ++i) ratios.insert(ratios.end(), {128, 4});
  ratios.push_back(0);
  return ratios;
}

std::string json(const std::vector<std::int64_t>& ratios) {
  std::string all = "[";
  for (const std::int64_t r : ratios) all += (all.size() == 1 ? "" : ",") + std::to_string(r);
  return all + "]";
}

const std::string head = R"({"architectures":["DeepseekV4ForCausalLM"],"model_type":"deepseek_v4","hidden_size":4096,
    "num_hidden_layers":43,"num_attention_heads":64,"num_key_value_heads":1,"head_dim":512,"qk_rope_head_dim":64,
    "q_lora_rank":1024,"o_lora_rank":1024,"o_groups":8,"sliding_window":128,"index_head_dim":128,"index_n_heads":64,
    "index_topk":512,"hc_mult":4,"num_hash_layers":3,"n_routed_experts":256,"max_position_embeddings":1048576,
    "compress_rope_theta":160000,"swiglu_limit":10.0,"scoring_func":"sqrtsoftplus","vocab_size":129280,
    "quantization_config":{"quant_method":"fp8"},"num_nextn_predict_layers":)";

/// f32 inputs that the next row needs, keys and weights: of two groups but the last token, or of one.
constexpr std::size_t history(std::size_t dim, std::size_t stride, bool overlapping) {
  return overlapping ? 4 * (2 * 2 * dim) * (2 * stride - 1) : 4 * (2 * dim) * (stride - 1);
}

/// What Flash keeps at `ctx`, `n_windows` of its layers counted: those of the trunk, or the block past it, too.
void require_flash(const memra::config::Model& m, std::size_t n_windows) {
  const std::size_t fixed = 21 * (history(512, 4, true) + history(128, 4, true)) + 20 * history(512, 128, false);
  require_totals(m, 0, 0, n_windows * 128 * q8(512), fixed);
  for (const std::size_t ctx :
       std::array<std::size_t, 14>{1, 3, 4, 5, 127, 128, 129, 191, 192, 193, 255, 256, 257, 131072}) {
    const memra::Plan p = plan(m, ctx);
    INFO("at " << ctx);
    REQUIRE(kv_bytes(p) == n_windows * q8(512) * std::min<std::size_t>(ctx, 192));  // 128 + 64 rows: three tiles
    REQUIRE(p.totals.grouped_bytes == 21 * (q8(512) + q8(128)) * (ctx / 4) + 20 * q8(512) * (ctx / 128));
    const memra::ModelCost c = memra::state_cost(m.state, ctx);
    REQUIRE(c.trunk.grouped_bytes + c.mtp.grouped_bytes == p.totals.grouped_bytes);
  }
}

}  // namespace

TEST_CASE("DeepSeek-V4-Flash: a window in every layer, one row for 4 or for 128 tokens in most") {
  const auto m = model(head + R"(1,"compress_ratios":)" + json(flash()) + "}");
  REQUIRE((m.max_positions == 1048576 && m.state.n_mtp == 1 && m.state.layers.size() == 44));
  require_flash(m, 44);
  REQUIRE(m.state.layers[0].states.size() == 1);   // a window alone
  REQUIRE(m.state.layers[2].states.size() == 5);   // rows, an indexer's rows, what makes each
  REQUIRE(m.state.layers[3].states.size() == 3);   // rows and what makes them
  REQUIRE(m.state.layers[43].states.size() == 1);  // past the trunk
  const auto& window = std::get<memra::AttentionSpec>(m.state.layers[3].states[0]);
  REQUIRE((window.v_in_k && window.head_dim_k == 512 && window.head_dim_v == 512 && window.window == 128));
  REQUIRE(std::get<memra::GroupedRowsSpec>(m.state.layers[3].states[1]) ==
          memra::grouped_rows(512, 128, memra::Format::q8_0));
  // Without the block past the trunk; the list may name it or not.
  std::vector<std::int64_t> trunk = flash();
  trunk.pop_back();
  require_flash(model(head + R"(0,"compress_ratios":)" + json(trunk) + "}"), 43);
  require_flash(model(head + R"(1,"compress_ratios":)" + json(trunk) + "}"), 44);
  std::vector<std::int64_t> longer = flash();
  longer.push_back(0);
  require_flash(model(head + R"(1,"compress_ratios":)" + json(longer) + "}"), 44);
  // The newer spelling, alone and beside the other.
  std::string types;
  for (const std::int64_t r : trunk) {
    types += (types.empty() ? "[\"" : ",\"") +
             std::string(r == 0   ? "sliding_attention"
                         : r == 4 ? "compressed_sparse_attention"
                                  : "heavily_compressed_attention") +
             "\"";
  }
  types += "]";
  require_flash(model(head + R"(1,"layer_types":)" + types + "}"), 44);
  require_flash(model(head + R"(1,"compress_rates":{"compressed_sparse_attention":4,
    "heavily_compressed_attention":128},"layer_types":)" +
                      types + R"(,"compress_ratios":)" + json(flash()) + "}"),
                44);
  // Rates of its own: both spellings of the layers mean them.
  for (const std::string how : {R"("compress_ratios":[4,128])",
                                R"("layer_types":["compressed_sparse_attention","heavily_compressed_attention"])"}) {
    const auto other = model(R"({"model_type":"deepseek_v4","num_hidden_layers":2,"num_attention_heads":4,
      "compress_rates":{"compressed_sparse_attention":8,"heavily_compressed_attention":64},)" +
                             how + "}");
    const memra::PlanTotals t = plan(other, 1000).totals;
    REQUIRE(t.grouped_bytes == (q8(512) + q8(128)) * (1000 / 8) + q8(512) * (1000 / 64));
    REQUIRE(t.conv_bytes == history(512, 8, true) + history(128, 8, true) + history(512, 64, false));
  }
  // Other formats: rows in 16 bits, the inputs too.
  memra::config::Storage s = f16();
  s.conv = memra::Format::bf16;
  const auto half = model(head + R"(1,"compress_ratios":)" + json(flash()) + "}", s);
  const memra::PlanTotals t = plan(half, 1000).totals;
  REQUIRE(t.grouped_bytes == 2 * (21 * (512 + 128) * 250 + 20 * 512 * 7));
  REQUIRE(t.conv_bytes == (21 * (history(512, 4, true) + history(128, 4, true)) + 20 * history(512, 128, false)) / 2);
}

TEST_CASE("DeepSeek-V4 in GGUF: the list goes on behind the last block") {
  gguf::Writer w;
  w.string("general.architecture", "deepseek4").u("deepseek4.block_count", 44);
  w.u("deepseek4.attention.head_count", 64).u("deepseek4.attention.head_count_kv", 1);
  w.u("deepseek4.attention.key_length", 512).u("deepseek4.attention.value_length", 512);
  w.u("deepseek4.attention.sliding_window", 128).u("deepseek4.nextn_predict_layers", 1);
  w.u("deepseek4.attention.indexer.key_length", 128).u("deepseek4.attention.indexer.head_count", 64);
  const auto with = [&](std::vector<std::int64_t> ratios) {
    gguf::Writer one = w;
    return one.list("deepseek4.attention.compress_ratios", gguf::u32, 4, ratios).file();
  };
  std::vector<std::int64_t> longer = flash();
  longer.insert(longer.end(), 20, 0);
  for (const auto& ratios : {flash(), longer}) {
    const auto m = memra::check(memra::config::parse_gguf(gguf::bytes_of(with(ratios))));
    REQUIRE(m.state.n_mtp == 1);
    require_flash(m, 44);
  }
  const auto says = [](const std::string& file) {
    return std::string(memra::config::parse_gguf(gguf::bytes_of(file)).status().text());
  };
  std::vector<std::int64_t> wrong = flash();
  wrong[7] = 8;
  REQUIRE(says(with(wrong)) == "key deepseek4.attention.compress_ratios holds 8 for layer 7; expected 0, 4 or 128");
  longer.back() = 8;  // nor behind the last block
  REQUIRE(says(with(longer)) == "key deepseek4.attention.compress_ratios holds 8 for layer " +
                                    std::to_string(longer.size() - 1) + "; expected 0, 4 or 128");
  wrong.resize(43);
  const std::string missing =
      "key deepseek4.attention.compress_ratios is missing or too short; expected 0, 4 or 128 for 44 layers";
  REQUIRE(says(with(wrong)) == missing);
  REQUIRE(says(w.file()) == missing);
  gguf::Writer flags = w;
  REQUIRE(
      says(flags.list("deepseek4.attention.compress_ratios", gguf::boolean, 1, std::vector<std::int64_t>(44)).file()) ==
      missing);
}

TEST_CASE("DeepSeek-V4 files that say something else are refused by the field") {
  const auto says = [](const std::string& rest) { return refusal(head + rest + "}"); };
  REQUIRE(says("0") == "field compress_ratios is missing; expected 0, 4 or 128 for every layer, or layer_types");
  REQUIRE(says(R"(0,"compress_ratios":[0,4])") ==
          "field compress_ratios is a list of 2; expected a list of at least num_hidden_layers = 43 values");
  REQUIRE(says(R"(1,"compress_ratios":7)") ==
          "field compress_ratios is 7; expected a list of at least num_hidden_layers = 43 values");
  std::vector<std::int64_t> ratios = flash();
  ratios[5] = 16;
  REQUIRE(says(R"(1,"compress_ratios":)" + json(ratios)) ==
          "field compress_ratios holds 16; expected 0, 4 or 128 for every layer");
  const std::string tiny = R"({"model_type":"deepseek_v4","num_hidden_layers":2,"num_attention_heads":4)";
  REQUIRE(refusal(tiny + R"(,"layer_types":["sliding_attention","full_attention"]})") ==
          "field layer_types holds 'full_attention'; expected sliding_attention, compressed_sparse_attention or "
          "heavily_compressed_attention");
  REQUIRE(refusal(tiny + R"(,"layer_types":["sliding_attention","sliding_attention"],"compress_ratios":[0,4]})") ==
          "field compress_ratios and layer_types name different layers; expected them to agree");
  REQUIRE(refusal(tiny + R"(,"layer_types":["sliding_attention","sliding_attention"],"compress_rates":3})") ==
          "field compress_rates is 3; expected an object");
  REQUIRE(refusal(tiny + R"(,"num_key_value_heads":2,"compress_ratios":[0,4]})") ==
          "field num_key_value_heads is 2; expected a whole number from 1 to 1");
  REQUIRE(refusal(R"({"model_type":"llama","hidden_size":256,"num_hidden_layers":2,"num_attention_heads":4,
    "compress_ratios":[0,4]})") ==
          "field compress_ratios is a list, which 'llama' models are not known to use; expected it to be absent");
}

TEST_CASE("red arm: a row for one token more, or one group less to remember, shows in the sums") {
  const auto sums = [](const std::string& ratios) {
    const auto m = model(R"({"model_type":"deepseek_v4","num_hidden_layers":2,"num_attention_heads":4,
      "compress_ratios":)" +
                         ratios + "}");
    const memra::PlanTotals t = plan(m, 1000).totals;
    return std::array{t.grouped_bytes, t.conv_bytes, t.total_bytes};
  };
  const auto right = sums("[0,4]");
  REQUIRE(right[0] == (q8(512) + q8(128)) * 250);
  for (const char* const other : {"[0,128]", "[0,0]", "[4,4]"}) {
    for (std::size_t i = 0; i < 3; ++i) REQUIRE(sums(other)[i] != right[i]);
  }
}

}  // namespace compressed_cpp
