// config.json that is wrong, contradicts itself or is not understood: one sentence that names the field.
#include <array>
#include <config/support.hpp>
#include <cstddef>
#include <memra/config/draft.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <support/catch.hpp>

namespace hf_refusals_cpp {
namespace {

using loaded::refusal;
using nlohmann::json;

json qwen() {
  return json::parse(R"({"model_type":"qwen3_5_text","num_hidden_layers":4,"num_attention_heads":4,"head_dim":64,
    "num_key_value_heads":2,"linear_num_key_heads":2,"linear_num_value_heads":4,"linear_key_head_dim":64,
    "linear_value_head_dim":64,"linear_conv_kernel_dim":4})");
}

json kimi() {
  return json::parse(R"({"model_type":"kimi_linear","num_hidden_layers":4,"num_attention_heads":4,"kv_lora_rank":512,
    "qk_rope_head_dim":64,"linear_attn_config":{"head_dim":64,"num_heads":4,"short_conv_kernel_size":4,
    "kda_layers":[1,2,3],"full_attn_layers":[4]}})");
}

/// The sentence for `base` with one field set to the JSON `value`; "-" removes it.
std::string with(json base, const char* field, const std::string& value) {
  if (value == "-") {
    base.erase(field);
  } else {
    base[field] = json::parse(value);
  }
  return refusal(base.dump());
}

void says(const std::string& sentence, const std::string& expected) {
  INFO("said: " << sentence);
  REQUIRE(sentence == expected);
}

}  // namespace

TEST_CASE("text that is no JSON object") {
  says(refusal(""), "it is not JSON at byte 1");
  says(refusal("{\"model_type\":"), "it is not JSON at byte 15");
  says(refusal("[1,2]"), "it is JSON, but not an object");
  says(refusal("{} {}"), "it is not JSON at byte 4");
  says(refusal(R"({"model_type":"llama","model_type":"jamba"})"), "the key 'model_type' appears twice");
  says(refusal(std::string(100, '[')), "it is nested deeper than 64 levels");
  // Nothing behind a zero byte goes unread.
  const std::string whole = R"({"model_type":"llama","hidden_size":64,"num_hidden_layers":1,"num_attention_heads":1})";
  REQUIRE(refusal(whole).empty());
  says(refusal(whole + std::string(1, '\0') + "{}"), "it is not JSON at byte " + std::to_string(whole.size() + 1));
  says(refusal(R"({"text_config":7})"), "field text_config is 7; expected an object");
}

TEST_CASE("the model_type") {
  says(refusal("{}"), "field model_type is missing; expected a string");
  says(refusal(R"({"model_type":12})"), "field model_type is 12; expected a string");
  says(refusal(R"({"model_type":"bert"})"),
       "field model_type is 'bert'; expected one of the 61 in hf_families, from llama to nemotron_h");
  says(refusal("{\"model_type\":\"be\\u0007t\"}"),
       "field model_type is 'be?t'; expected one of the 61 in hf_families, from llama to nemotron_h");
}

TEST_CASE("numbers: missing, null, negative, fractional, huge, of another type, out of range") {
  REQUIRE(refusal(qwen().dump()).empty());
  for (const char* field :
       {"num_hidden_layers", "num_attention_heads", "linear_num_key_heads", "linear_num_value_heads",
        "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"}) {
    const std::string name = std::string("field ") + field + " is ";
    says(with(qwen(), field, "-"), name + "missing; expected a whole number");
    says(with(qwen(), field, "null"), name + "missing; expected a whole number");
    const std::array<std::array<const char*, 2>, 8> wrong = {{{"-1", "-1"},
                                                              {"0", "0"},
                                                              {"2.5", "2.5"},
                                                              {"1e30", "1e+30"},
                                                              {"99999999999999999999", "1e+20"},
                                                              {"\"4\"", "'4'"},
                                                              {"[4]", "a list"},
                                                              {"true", "true"}}};
    for (const auto& [value, shown] : wrong) {
      const std::string sentence = with(qwen(), field, value);
      INFO(sentence);
      REQUIRE(sentence.substr(0, sentence.find(" to ")) == name + shown + "; expected a whole number from 1");
    }
  }
  // Python's Infinity is a value like any other: refused where it matters, and only there.
  std::string text = qwen().dump();
  text.insert(1, R"("time_step_limit":[0.0,Infinity,-Infinity,NaN],)");
  REQUIRE(refusal(text).empty());
  text.insert(1, R"("head_dim_of_something":Infinity,)");
  REQUIRE(refusal(text).empty());
  text.replace(text.find("\"head_dim\":64"), 13, "\"head_dim\":Infinity");
  says(refusal(text), "field head_dim is 'Infinity'; expected a whole number from 1 to 65536");
}

TEST_CASE("heads that do not divide") {
  says(with(qwen(), "num_key_value_heads", "3"),
       "field num_attention_heads is 4; expected a multiple of num_key_value_heads = 3");
  says(with(qwen(), "linear_num_key_heads", "3"),
       "field linear_num_value_heads is 4; expected a multiple of linear_num_key_heads = 3");
  says(refusal(R"({"model_type":"llama","hidden_size":100,"num_hidden_layers":2,"num_attention_heads":3})"),
       "field hidden_size is 100; expected a multiple of num_attention_heads = 3, or a head_dim");
}

TEST_CASE("layer lists: shorter or longer than the layers, other names, other types") {
  says(with(qwen(), "layer_types", R"(["full_attention"])"),
       "field layer_types is a list of 1; expected a list of num_hidden_layers = 4 values");
  says(with(qwen(), "layer_types", "3"), "field layer_types is 3; expected a list of num_hidden_layers = 4 values");
  says(with(qwen(), "layer_types", R"(["full_attention","full_attention","full_attention","sliding_attention"])"),
       "field layer_types holds 'sliding_attention'; expected one of full_attention, attention, indexed_attention, "
       "deepseek_sparse_attention, linear_attention, lightning_attention, kda, mamba, mamba2");
  says(with(qwen(), "layer_types", R"(["full_attention","full_attention",1,"full_attention"])").substr(0, 43),
       "field layer_types holds 1; expected one of ");
  const json nemotron = json::parse(R"({"model_type":"nemotron_h","num_hidden_layers":4,"num_attention_heads":4,
    "num_key_value_heads":4,"mamba_num_heads":4,"mamba_head_dim":64,"n_groups":2,"ssm_state_size":64,"conv_kernel":4})");
  REQUIRE(with(nemotron, "hybrid_override_pattern", "\"M*-E\"").empty());
  says(with(nemotron, "hybrid_override_pattern", "\"M*-\""),
       "field hybrid_override_pattern has 3 letters; expected num_hidden_layers = 4");
  says(with(nemotron, "hybrid_override_pattern", "\"M*-A\""),
       "field hybrid_override_pattern holds 'A' at layer 3; expected one of M, *, -, E");
  says(with(nemotron, "hybrid_override_pattern", "-"), "field hybrid_override_pattern is missing; expected a string");
  const json blocks = json::parse(R"({"model_type":"nemotron_h","num_attention_heads":4,"num_key_value_heads":4,
    "num_nextn_predict_layers":1,"layers_block_type":["attention"],"mtp_layers_block_type":["attention","moe"]})");
  REQUIRE(refusal(blocks.dump()).empty());
  for (const char* field : {"layers_block_type", "mtp_layers_block_type"}) {
    const std::string name = std::string("field ") + field + " is ";
    says(with(blocks, field, "[]"), name + "a list of 0; expected a list of 1 to 4096 layers");
    says(with(blocks, field, "3"), name + "3; expected a list of 1 to 4096 layers");
  }
  const json lfm = json::parse(R"({"model_type":"lfm2","num_hidden_layers":4,"num_attention_heads":4,
    "num_key_value_heads":4,"hidden_size":256})");
  says(refusal(lfm.dump()),
       "field layer_types is missing; expected full_attention or conv for every layer, or full_attn_idxs");
  says(with(lfm, "full_attn_idxs", "[1,4]"), "field full_attn_idxs holds 4; expected layers from 0 to 3");
  says(with(lfm, "full_attn_idxs", "[1,1]"), "field full_attn_idxs names layer 1 twice");
  says(with(lfm, "full_attn_idxs", "[-1]"), "field full_attn_idxs holds -1; expected layers from 0 to 3");
  says(with(lfm, "full_attn_idxs", "{}"), "field full_attn_idxs is an object; expected a list of layers");
  says(refusal(R"({"model_type":"minimax_m1","num_hidden_layers":2,"num_attention_heads":2,"head_dim":64,
    "num_key_value_heads":2,"attn_type_list":[0,2]})"),
       "field attn_type_list holds 2; expected 0 or 1 for every layer");
}

TEST_CASE("Kimi: layers counted from one, each in one of the lists") {
  REQUIRE(refusal(kimi().dump()).empty());
  json j = kimi();
  j["linear_attn_config"]["kda_layers"] = {0, 1, 2};
  says(refusal(j.dump()), "field linear_attn_config.kda_layers holds 0; expected layers from 1 to 4");
  j["linear_attn_config"]["kda_layers"] = {1, 2};
  says(refusal(j.dump()),
       "layer 3 is in neither of linear_attn_config.kda_layers and full_attn_layers; expected one of them");
  j["linear_attn_config"]["kda_layers"] = {1, 2, 3, 4};
  says(refusal(j.dump()),
       "layer 4 is in both of linear_attn_config.kda_layers and full_attn_layers; expected one of them");
  says(with(kimi(), "linear_attn_config", "[]"), "field linear_attn_config is a list; expected an object");
  says(with(kimi(), "linear_attn_config", "-"),
       "field linear_attn_config names no kda_layers and no full_attn_layers; expected lists of layers");
  j = kimi();
  j["linear_attn_config"].erase("num_heads");
  says(refusal(j.dump()), "field linear_attn_config.num_heads is missing; expected a whole number");
  says(with(kimi(), "layer_types", R"(["full_attention","linear_attention","linear_attention","full_attention"])"),
       "field linear_attn_config.kda_layers and layer_types name different layers; expected them to agree");
}

TEST_CASE("the first layer has no indexer before it whose choice it could share") {
  const json glm = json::parse(R"({"model_type":"glm_moe_dsa","num_hidden_layers":4,"num_attention_heads":4,
    "kv_lora_rank":64,"qk_rope_head_dim":32,"index_head_dim":32,"index_skip_topk_offset":0})");
  REQUIRE(with(glm, "index_topk_pattern", "\"FSSF\"").empty());
  REQUIRE(with(glm, "index_topk_freq", "1").empty());
  const std::string none =
      "layer 0 takes the choice of an indexer before it, as indexer_types, index_topk_pattern or index_topk_freq say, "
      "and there is none; expected one of its own";
  says(with(glm, "index_topk_pattern", "\"SFFF\""), none);
  says(with(glm, "indexer_types", R"(["full",3,"full","full"])"),
       "field indexer_types holds 3 at layer 1; expected full or shared");
  says(with(glm, "indexer_types", R"(["shared","full","full","full"])"), none);
  says(with(glm, "index_topk_freq", "3"), none);
}

TEST_CASE("fields that contradict each other, and fields that are not understood") {
  const std::string mimo = R"({"model_type":"mimo_v2_flash","num_hidden_layers":1,"num_attention_heads":4,
    "hybrid_layer_pattern":[1],"sliding_window":128,"sliding_window_size":)";
  REQUIRE(refusal(mimo + "128}").empty());
  says(refusal(mimo + "256}"), "field sliding_window_size is 256 and sliding_window is 128; expected one value");
  says(refusal(R"({"model_type":"lfm2","hidden_size":256,"num_hidden_layers":2,"num_attention_heads":4,
    "num_key_value_heads":4,"full_attn_idxs":[0],"layer_types":["conv","full_attention"]})"),
       "field full_attn_idxs and layer_types name different layers; expected them to agree");
  says(refusal(R"({"model_type":"nemotron_h","num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":4,
    "hybrid_override_pattern":"*-","layers_block_type":["mlp","attention"]})"),
       "field hybrid_override_pattern and layers_block_type name different layers; expected them to agree");
  const json llama = json::parse(R"({"model_type":"llama","hidden_size":256,"num_hidden_layers":2,
    "num_attention_heads":4})");
  REQUIRE(refusal(llama.dump()).empty());
  says(with(llama, "sliding_window", "4096"),
       "field sliding_window is 4096, which 'llama' models are not known to use; expected it to be absent");
  says(with(llama, "kv_lora_rank", "512"),
       "field kv_lora_rank is 512, which 'llama' models are not known to use; expected it to be absent");
  says(with(llama, "block_configs", "[]"),
       "field block_configs is a list, which 'llama' models are not known to use; expected it to be absent");
  REQUIRE(with(llama, "sliding_window", "null").empty());
  REQUIRE(with(llama, "is_encoder_decoder", "false").empty());
  says(with(llama, "layer_types", R"(["sliding_attention","full_attention"])"),
       "field layer_types names sliding layers, but sliding_window is absent, null or switched off; expected a window");
  says(refusal(R"({"model_type":"gemma3_text","num_hidden_layers":2,"use_bidirectional_attention":true})"),
       "field use_bidirectional_attention is true; expected a causal model");
  says(refusal(R"({"model_type":"gemma3n_text","num_hidden_layers":4,"num_kv_shared_layers":4})"),
       "field num_kv_shared_layers is 4: layer 0 borrows from the last layer of its kind before layer 0, and there is "
       "none");
  says(refusal(R"({"model_type":"falcon_h1","hidden_size":256,"num_hidden_layers":1,"num_attention_heads":4,
    "num_key_value_heads":4,"mamba_d_ssm":256,"mamba_n_heads":4,"mamba_d_head":32,"mamba_n_groups":1,"mamba_d_state":16,"mamba_d_conv":4})"),
       "field mamba_n_heads * mamba_d_head is 4 * 32; expected a width of 256");
  says(refusal(R"({"model_type":"jamba","hidden_size":256,"num_hidden_layers":2,"num_attention_heads":4,
    "num_key_value_heads":4,"attn_layer_period":4,"attn_layer_offset":4})"),
       "field attn_layer_offset is 4; expected less than attn_layer_period = 4");
  says(refusal(R"({"model_type":"nemotron-nas","hidden_size":256,"num_hidden_layers":1,"num_attention_heads":4,
    "block_configs":[{"attention":{"n_heads_in_group":3}}]})"),
       "field block_configs[0].attention.n_heads_in_group is 3; expected a divisor of num_attention_heads = 4");
  says(refusal(R"({"model_type":"nemotron-nas","hidden_size":256,"num_hidden_layers":1,"num_attention_heads":4,
    "block_configs":[{"attention":{"num_key_value_heads":3}}]})"),
       "field block_configs[0].attention.num_key_value_heads is 3; expected a divisor of num_attention_heads = 4");
  says(refusal(R"({"model_type":"gemma4_text","num_hidden_layers":6,"num_attention_heads":8,
    "per_layer_config":{"05":{"head_dim":128},"5":{"head_dim":256}}})"),
       "field per_layer_config names layer 5 twice");
  says(refusal(R"({"model_type":"nemotron-nas","hidden_size":256,"num_hidden_layers":1,"num_attention_heads":4,
    "block_configs":[{"attention":{"n_heads_in_group":4,"window_length":64}}]})"),
       "field block_configs[0].attention.window_length is 64; expected null");
  says(refusal(R"({"model_type":"nemotron-nas","hidden_size":256,"num_hidden_layers":1,"num_attention_heads":4,
    "block_configs":[{"attention":{"n_heads_in_group":4,"mamba":{"state_dim":128}}}]})"),
       "field block_configs[0].attention.mamba is an object; expected null");
  says(refusal(R"({"model_type":"nemotron-nas","hidden_size":256,"num_hidden_layers":1,"num_attention_heads":4,
    "block_configs":[{"attention":{"n_heads_in_group":4,"llama4":{"attention_chunk_size":64}}}]})"),
       "field block_configs[0].attention.llama4 is an object; expected null");
  says(refusal(R"({"model_type":"nemotron-nas","hidden_size":256,"num_hidden_layers":1,"num_attention_heads":4,
    "block_configs":[{"attention":{"n_heads_in_group":4},"parallel_blocks":[{}]}]})"),
       "field block_configs[0].parallel_blocks is a list; expected null");
  says(refusal(R"({"model_type":"nemotron-nas","hidden_size":256,"num_hidden_layers":1,"num_attention_heads":4,
    "block_configs":[{}]})"),
       "field block_configs[0].attention is missing; expected an object");
}

TEST_CASE("one thing said under two names: both must say the same") {
  const json jamba = json::parse(R"({"model_type":"jamba","hidden_size":256,"num_hidden_layers":2,
    "num_attention_heads":4,"num_key_value_heads":4,"layers_block_type":["mamba","attention"]})");
  REQUIRE(with(jamba, "layer_types", R"(["mamba","attention"])").empty());
  says(with(jamba, "layer_types", R"(["attention","mamba"])"),
       "field layer_types and layers_block_type name different layers; expected them to agree");
  const json granite = json::parse(R"({"model_type":"granitemoehybrid","hidden_size":256,"num_hidden_layers":2,
    "num_attention_heads":4,"layer_types":["attention","attention"]})");
  REQUIRE(with(granite, "layers_block_type", R"(["attention","attention"])").empty());
  says(with(granite, "layers_block_type", R"(["attention","mamba"])"),
       "field layers_block_type and layer_types name different layers; expected them to agree");
  json bamba = granite;
  bamba["layers_block_type"] = bamba["layer_types"];
  bamba.erase("layer_types");
  says(with(bamba, "attn_layer_indices", "[0]"),
       "field attn_layer_indices and layers_block_type name different layers; expected them to agree");
  json nemotron = json::parse(R"({"model_type":"nemotron_h","num_hidden_layers":2,"num_attention_heads":4,
    "num_key_value_heads":4,"num_nextn_predict_layers":1,"layers_block_type":["mlp","attention"],
    "mtp_layers_block_type":["attention","moe"]})");
  REQUIRE(with(nemotron, "layer_types", R"(["moe","attention"])").empty());
  says(with(nemotron, "layer_types", R"(["attention","moe"])"),
       "field layer_types and layers_block_type name different layers; expected them to agree");
  REQUIRE(with(nemotron, "mtp_hybrid_override_pattern", R"("*E")").empty());
  says(with(nemotron, "mtp_hybrid_override_pattern", R"("**")"),
       "field mtp_hybrid_override_pattern and mtp_layers_block_type name different layers; expected them to agree");
  const json lfm = json::parse(R"({"model_type":"lfm2","hidden_size":256,"num_hidden_layers":2,
    "num_attention_heads":4,"num_key_value_heads":4,"full_attn_idxs":[0]})");
  REQUIRE(with(lfm, "full_attention_idxs", "[0]").empty());
  says(with(lfm, "full_attention_idxs", "[1]"),
       "field full_attention_idxs and full_attn_idxs name different layers; expected them to agree");
  const json glm = json::parse(R"({"model_type":"glm_moe_dsa","num_hidden_layers":3,"num_attention_heads":4,
    "kv_lora_rank":64,"qk_rope_head_dim":64,"index_head_dim":64,"indexer_types":["full","full","shared"]})");
  REQUIRE(with(glm, "index_topk_pattern", R"("FFS")").empty());
  says(with(glm, "index_topk_pattern", R"("FSS")"),
       "field index_topk_pattern and indexer_types name different layers; expected them to agree");
  REQUIRE(with(kimi(), "linear_head_dim", "64").empty());
  says(with(kimi(), "linear_head_dim", "32"),
       "field linear_head_dim is 32 and linear_attn_config.head_dim is 64; expected one value");
  says(with(kimi(), "linear_num_heads", "2"),
       "field linear_num_heads is 2 and linear_attn_config.num_heads is 4; expected one value");
  const json m2 = json::parse(R"({"model_type":"minimax_m2","num_hidden_layers":1,"num_attention_heads":8,
    "num_mtp_modules":3})");
  REQUIRE(memra::check(memra::config::parse_hf_config(R"({"model_type":"minimax_m2","num_hidden_layers":1,
    "num_attention_heads":8,"num_mtp_modules":3,"num_nextn_predict_layers":3})"))
              .state.n_mtp == 3);
  says(with(m2, "num_nextn_predict_layers", "1"),
       "field num_mtp_modules says that 3 blocks are past the trunk and num_nextn_predict_layers, or another name of "
       "it, 1; expected one value");
  const json v4 = json::parse(R"({"model_type":"deepseek_v4","num_hidden_layers":1,"num_attention_heads":4,
    "compress_ratios":[128],"compress_rates":{"heavily_compressed_attention":64}})");
  REQUIRE(with(v4, "compress_rate_hca", "64").empty());
  says(with(v4, "compress_rate_hca", "128"),
       "field compress_rates.heavily_compressed_attention is 64 and compress_rate_hca is 128; expected one value");
  const auto nas = [](const char* attention) {
    return refusal(R"({"model_type":"nemotron-nas","hidden_size":256,"num_hidden_layers":1,"num_attention_heads":8,
    "block_configs":[{"attention":)" +
                   std::string(attention) + "}]}");
  };
  REQUIRE(nas(R"({"num_key_value_heads":2,"n_heads_in_group":4})").empty());
  says(nas(R"({"num_key_value_heads":8,"n_heads_in_group":4})"),
       "field block_configs[0].attention.n_heads_in_group is 4 and num_key_value_heads is 8; expected a product of "
       "num_attention_heads = 8");
}

TEST_CASE("a model inside another one: what stands beside it is not read over") {
  const std::string llama = R"({"model_type":"llama","hidden_size":256,"num_hidden_layers":2,"num_attention_heads":4)";
  const auto beside = [&](const std::string& outer, const std::string& inner = "") {
    return refusal(R"({"model_type":"sees",)" + outer + R"("text_config":)" + llama + inner + "}}");
  };
  REQUIRE(beside("").empty());
  REQUIRE(beside(R"("num_hidden_layers":7,"sliding_window":null,"num_nextn_predict_layers":0,)").empty());
  REQUIRE(beside(R"("num_nextn_predict_layers":1,)", R"(,"num_nextn_predict_layers":1)").empty());
  says(beside(R"("num_nextn_predict_layers":1,)"),
       "field num_nextn_predict_layers is 1 beside text_config and absent in it; expected one value");
  says(beside(R"("num_nextn_predict_layers":1,)", R"(,"num_nextn_predict_layers":2)"),
       "field num_nextn_predict_layers is 1 beside text_config and 2 in it; expected one value");
  REQUIRE(beside(R"("llm_config":)" + llama + "},").empty());
  says(beside(R"("llm_config":)" + llama + R"(,"head_dim":32},)"),
       "fields text_config and llm_config describe different models; expected one of them");
}

TEST_CASE("sizes that a plan cannot hold are refused by the plan, not wrapped") {
  const auto m = loaded::model(R"({"model_type":"llama","num_hidden_layers":4096,"num_attention_heads":65536,
    "head_dim":65536})");
  const auto p = memra::plan(m.state, 2147483647);
  REQUIRE_FALSE(p.ok());
}

TEST_CASE("a drafter's config, in both spellings") {
  using memra::config::parse_draft_config;
  const auto tiny = memra::check(parse_draft_config(R"({"block_size":8,"sliding_window":64,"n_layer":2,"n_head":4,
    "n_kv":2,"head_dim":64})"));
  REQUIRE((tiny.n_layer == 2 && tiny.n_kv == 2 && tiny.head_dim == 64 && tiny.block_size == 8));
  REQUIRE((tiny.window(0) == 64 && tiny.window(1) == 64));
  const auto five = memra::check(parse_draft_config(R"({"num_hidden_layers":5,"num_attention_heads":64,
    "num_key_value_heads":8,"head_dim":128,"block_size":16,"sliding_window":2048,"layer_types":["sliding_attention",
    "sliding_attention","sliding_attention","sliding_attention","full_attention"]})"));
  REQUIRE((five.window(3) == 2048 && five.window(4) == 0));
  // K and V of 5 layers in f32, [cap + block][8 * 128]; every plane on its own 256 bytes, the length in front.
  REQUIRE(memra::check(memra::plan(five, 1000)).total_bytes == 256 + 5 * 2 * std::size_t{1016} * 8 * 128 * 4);
  const auto off = memra::check(parse_draft_config(R"({"num_hidden_layers":1,"num_attention_heads":4,"head_dim":64,
    "block_size":4,"sliding_window":2048,"use_sliding_window":false})"));
  REQUIRE(off.window(0) == 0);
  const auto bad = parse_draft_config(R"({"num_hidden_layers":1,"num_attention_heads":4,"head_dim":64})");
  REQUIRE_FALSE(bad.ok());
  says(bad.status().text(), "field block_size is missing; expected a whole number");
  // As everywhere: heads that divide, a window where a list wants one, nothing that is not understood.
  const json draft = json::parse(R"({"num_hidden_layers":1,"num_attention_heads":4,"head_dim":64,"block_size":4})");
  const auto drafts = [&](const char* field, const std::string& value) {
    json one = draft;
    one[field] = json::parse(value);
    const auto r = parse_draft_config(one.dump());
    return r ? std::string() : r.status().text();
  };
  REQUIRE(drafts("num_key_value_heads", "2").empty());
  says(drafts("num_key_value_heads", "3"),
       "field num_attention_heads is 4; expected a multiple of num_key_value_heads = 3");
  REQUIRE(drafts("layer_types", R"(["full_attention"])").empty());
  says(drafts("layer_types", R"(["sliding_attention"])"),
       "field layer_types names sliding layers, but sliding_window is absent, null or switched off; expected a window");
  REQUIRE(drafts("kv_lora_rank", "null").empty());
  says(drafts("kv_lora_rank", "512"),
       "field kv_lora_rank is 512, which drafters are not known to use; expected it to be absent");
}
}  // namespace hf_refusals_cpp
