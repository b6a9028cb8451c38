// config.json: what is accepted in which spelling, and that every refusal names its field.
#include <cstddef>
#include <memra/error.hpp>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <support/catch.hpp>
#include <tiny_engine/config.hpp>
#include <tiny_engine/draft_config.hpp>
#include <vector>

namespace config_cpp {
namespace {

using nlohmann::json;

json small() {
  return json::parse(R"({"model_type":"qwen3_5_text","vocab_size":300,"hidden_size":64,"intermediate_size":96,
    "num_hidden_layers":6,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":32,"rms_norm_eps":1e-6,
    "max_position_embeddings":512,"tie_word_embeddings":true,"hidden_act":"silu","eos_token_id":257,
    "linear_conv_kernel_dim":4,"linear_key_head_dim":32,"linear_value_head_dim":32,"linear_num_key_heads":2,
    "linear_num_value_heads":4,"full_attention_interval":3,
    "rope_parameters":{"rope_theta":10000.0,"partial_rotary_factor":0.5,"rope_type":"default"}})");
}

tiny::TrunkConfig accepted(const json& j) {
  return memra::check(tiny::parse_trunk_config(j.dump()));
}

std::string refusal(const json& j) {
  const auto r = tiny::parse_trunk_config(j.dump());
  return r ? "" : r.status().text();
}

}  // namespace

TEST_CASE("B91 B99 layers: the interval, the list that wins over it, and the default") {
  json j = small();
  REQUIRE(accepted(j).full_attention == std::vector<bool>{false, false, true, false, false, true});
  j["layer_types"] = {"full_attention",   "linear_attention", "linear_attention",
                      "linear_attention", "linear_attention", "full_attention"};
  REQUIRE(accepted(j).full_attention == std::vector<bool>{true, false, false, false, false, true});
  j.erase("layer_types");
  j.erase("full_attention_interval");
  REQUIRE(accepted(j).full_attention == std::vector<bool>{false, false, false, true, false, false});
  j["full_attention_interval"] = 1;
  for (const char* name : {"linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim",
                           "linear_num_key_heads", "linear_num_value_heads"}) {
    j.erase(name);  // a model without linear layers need not describe them
  }
  REQUIRE_FALSE(accepted(j).has_linear());
}

TEST_CASE("rope: nested, at the top level, nested wins") {
  json j = small();
  REQUIRE(accepted(j).rot_dim == 16);
  j["partial_rotary_factor"] = 0.25;
  REQUIRE(accepted(j).rot_dim == 16);
  j.erase("rope_parameters");
  j["rope_theta"] = 5e6;
  REQUIRE(accepted(j).rot_dim == 8);
  REQUIRE(accepted(j).rope_theta == 5e6);
  j.erase("partial_rotary_factor");
  REQUIRE(accepted(j).rot_dim == 8);
  j["rope_scaling"] = nullptr;
  REQUIRE(refusal(j).empty());
}

TEST_CASE("a multimodal wrapper, Python's bare literals, several EOS ids") {
  json j = small();
  json wrapped = {{"model_type", "qwen3_5"}, {"text_config", j}, {"vision_config", {{"depth", 3}}}};
  REQUIRE(accepted(wrapped).hidden == 64);
  j["eos_token_id"] = {5, 7};
  REQUIRE(accepted(j).eos == std::vector<std::int32_t>{5, 7});
  REQUIRE(accepted(j).is_eos(7));
  j["eos_token_id"] = nullptr;
  REQUIRE(accepted(j).eos.empty());
  std::string text = j.dump();
  text.insert(1, R"("time_limit":[0.0,Infinity,-Infinity,NaN],"note":"NaN \" Infinity",)");
  REQUIRE(tiny::parse_trunk_config(text).ok());
}

TEST_CASE("Qwen3-Next is dense only if every layer is") {
  json j = small();
  j["model_type"] = "qwen3_next";
  REQUIRE(refusal(j).find("512 experts") != std::string::npos);  // the family's default
  j["num_experts"] = 0;
  REQUIRE(accepted(j).family == tiny::Family::qwen3_next);
  j["num_experts"] = 4;
  j["mlp_only_layers"] = {0, 1, 2, 3, 4, 5};
  REQUIRE(refusal(j).empty());
  j["mlp_only_layers"] = {0, 1, 2, 4, 5};
  REQUIRE(refusal(j).find("layer 3") != std::string::npos);
  j["decoder_sparse_step"] = 3;  // only layers 2 and 5 are sparse then, and both are listed
  REQUIRE(refusal(j).empty());
  j["mlp_only_layers"] = {6};
  REQUIRE(refusal(j).find("mlp_only_layers") != std::string::npos);
}

TEST_CASE("every field is checked and named") {
  const struct {
    const char* field;
    json value;
  } cases[] = {
      {"model_type", "llama"},
      {"model_type", "qwen3_5_moe_text"},
      {"model_type", 5},
      {"vocab_size", 0},
      {"vocab_size", -1},
      {"vocab_size", 2.5},
      {"vocab_size", "300"},
      {"vocab_size", 1ULL << 62},
      {"hidden_size", 0},
      {"intermediate_size", nullptr},
      {"num_hidden_layers", 0},
      {"num_hidden_layers", 100000},
      {"num_attention_heads", 0},
      {"num_attention_heads", 3},
      {"num_key_value_heads", 0},
      {"head_dim", 1},
      {"head_dim", 1ULL << 40},
      {"rms_norm_eps", -1.0},
      {"rms_norm_eps", "small"},
      {"max_position_embeddings", 0},
      {"max_position_embeddings", 1ULL << 40},
      {"tie_word_embeddings", 1},
      {"hidden_act", "gelu"},
      {"attention_bias", true},
      {"attn_output_gate", false},
      {"eos_token_id", 300},
      {"eos_token_id", -1},
      {"eos_token_id", json::array({1, 300})},
      {"linear_conv_kernel_dim", 1},
      {"linear_key_head_dim", 0},
      {"linear_value_head_dim", 1ULL << 33},
      {"linear_num_key_heads", 3},
      {"linear_num_value_heads", 5},
      {"full_attention_interval", 0},
      {"layer_types", "full_attention"},
      {"layer_types", json::array({"full_attention"})},
      {"layer_types", json::array({"linear_attention", "linear_attention", "linear_attention", "linear_attention",
                                   "linear_attention", "sliding_attention"})},
      {"num_experts", 8},
      {"rope_parameters", 3},
      {"rope_parameters", {{"rope_theta", 0.5}}},
      {"rope_parameters", {{"rope_theta", "x"}}},
      {"rope_parameters", {{"rope_theta", 1e4}, {"rope_type", "yarn"}}},
      {"rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 1.5}}},
      {"rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.1}}},
      {"rope_parameters", json::object()},
  };
  for (const auto& c : cases) {
    json j = small();
    j[c.field] = c.value;
    const std::string sentence = refusal(j);
    INFO(c.field << " = " << c.value << " -> " << sentence);
    REQUIRE_FALSE(sentence.empty());
    const bool rope = std::string(c.field) == "rope_parameters";
    const bool heads = std::string(c.field) == "linear_num_key_heads";
    REQUIRE((sentence.find(c.field) != std::string::npos || (rope && sentence.find("rot") != std::string::npos) ||
             (rope && sentence.find("rope_theta") != std::string::npos) ||
             (heads && sentence.find("linear_num_value_heads") != std::string::npos)));
  }
  REQUIRE(refusal(small()).empty());
  for (const char* field : {"model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                            "num_attention_heads", "head_dim", "max_position_embeddings", "linear_key_head_dim"}) {
    json j = small();
    j.erase(field);
    INFO(field);
    REQUIRE(refusal(j).find(field) != std::string::npos);
  }
  json large = small();
  large["linear_key_head_dim"] = large["linear_value_head_dim"] = 4096;
  REQUIRE(refusal(large).empty());
  large["linear_num_value_heads"] = 6;
  REQUIRE(refusal(large).find("make a state of") != std::string::npos);
  REQUIRE_FALSE(tiny::parse_trunk_config("").ok());
  REQUIRE_FALSE(tiny::parse_trunk_config("null").ok());
  REQUIRE_FALSE(tiny::parse_trunk_config("{\"model_type\":").ok());
}

TEST_CASE("the drafter's config is checked against its trunk") {
  const tiny::TrunkConfig trunk = accepted(small());
  const json good = json::parse(R"({"block_size":8,"mask_token_id":258,"target_layer_ids":[0,2,4],"sliding_window":64,
    "n_layer":2,"n_head":4,"n_kv":2,"head_dim":32,"hidden":64,"n_ff":96,"rope_theta":10000.0,"eps":1e-6,"vocab":300})");
  REQUIRE(tiny::parse_draft_config(good.dump(), trunk).ok());
  json without = good;
  without["sliding_window"] = nullptr;
  REQUIRE(memra::check(tiny::parse_draft_config(without.dump(), trunk)).window == 0);
  const struct {
    const char* field;
    json value;
  } cases[] = {
      {"block_size", 1},      {"block_size", 1000},
      {"mask_token_id", 300}, {"mask_token_id", -1},
      {"hidden", 65},         {"vocab", 301},
      {"n_head", 3},          {"n_kv", 0},
      {"head_dim", 31},       {"target_layer_ids", 3},
      {"n_layer", 0},         {"target_layer_ids", json::array()},
      {"sliding_window", -1}, {"target_layer_ids", {0, 6}},
      {"rope_theta", 0},      {"target_layer_ids", {0, 0}},
      {"eps", "x"},
  };
  for (const auto& c : cases) {
    json j = good;
    j[c.field] = c.value;
    const auto r = tiny::parse_draft_config(j.dump(), trunk);
    INFO(c.field << " = " << c.value);
    REQUIRE_FALSE(r.ok());
    REQUIRE(std::string(r.status().text()).find(c.field) != std::string::npos);
  }
}

TEST_CASE("thirty thousand mutations of a config are read or refused, never worse") {
  const std::string good = small().dump();
  std::mt19937 random(9);
  std::size_t refused = 0;
  for (int turn = 0; turn < 30000; ++turn) {
    std::string bad = good;
    const int edits = 1 + static_cast<int>(random() % 3);
    for (int e = 0; e < edits; ++e) {
      const char digits[] = "0123456789-.e[]{}\",:tfn ";
      bad[random() % bad.size()] = digits[random() % (sizeof digits - 1)];
    }
    const auto r = tiny::parse_trunk_config(bad);
    if (!r) {
      ++refused;
      REQUIRE(std::string(r.status().text()).find('\n') == std::string::npos);
      continue;
    }
    REQUIRE(r->full_attention.size() <= 4096);
    REQUIRE(r->n_heads % r->n_kv_heads == 0);
    REQUIRE(r->rot_dim % 2 == 0);
    REQUIRE(r->n_v * r->d_v * r->d_k <= std::size_t{1} << 26);
  }
  REQUIRE(refused > 15000);
}
}  // namespace config_cpp
