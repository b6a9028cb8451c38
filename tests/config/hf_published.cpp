// What published files carry beside their sizes, and the spellings that later files use for the same thing.
#include <array>
#include <config/support.hpp>
#include <cstddef>
#include <string>
#include <support/catch.hpp>
#include <variant>
#include <vector>

namespace hf_published_cpp {
using namespace loaded;

namespace {

/// `fields` of a model among those that files carry and that say nothing about its state.
std::string published(const std::string& fields) {
  return R"({"architectures":["X"],"attention_bias":false,"attention_dropout":0.0,"auto_map":{"AutoConfig":"c.C"},
    "bos_token_id":1,"eos_token_id":[1,2],"hidden_act":"silu","initializer_range":0.02,"rms_norm_eps":1e-06,
    "rope_theta":1000000.0,"rope_scaling":{"factor":8.0,"rope_type":"yarn"},"rope_parameters":{"rope_type":"default"},
    "tie_word_embeddings":false,"torch_dtype":"bfloat16","dtype":"bfloat16","transformers_version":"4.57.1",
    "use_cache":true,"num_experts":128,"moe_intermediate_size":768,"mlp_only_layers":[],"pretraining_tp":1,
    "quantization_config":{"quant_method":"fp8","weight_block_size":[128,128],"modules_to_not_convert":["lm_head"]},)" +
         fields + "}";
}

/// As the language model of one that sees.
std::string inside(const char* type, const std::string& text) {
  return std::string(R"({"model_type":")") + type + R"(","image_token_id":7,"vision_config":{"num_hidden_layers":27,
    "num_attention_heads":16,"hidden_size":1152,"layer_types":["x"],"sliding_window":4},"text_config":)" +
         text + "}";
}

/// `n` values in a JSON list, the one of layer il being `at(il)`.
template <class At>
std::string list(std::size_t n, const At& at) {
  std::string all = "[";
  for (std::size_t il = 0; il < n; ++il) all += (il == 0 ? "" : ",") + std::string(at(il));
  return all + "]";
}

constexpr std::size_t state(std::size_t channels, std::size_t ssm, std::size_t taps = 4) {
  return 4 * (channels * (taps - 1) + ssm);
}

}  // namespace

TEST_CASE("Qwen3: windows that are null or switched off, lists that say so, experts, a model that sees") {
  const std::string heads = R"("num_attention_heads":64,"num_key_value_heads":4,"head_dim":128,"sliding_window":null,
    "use_sliding_window":false,"max_window_layers":94)";
  require_totals(model(published(R"("model_type":"qwen3_moe","num_hidden_layers":94,)" + heads)), 94 * kv(4, 128), 0, 0,
                 0);
  require_totals(model(published(R"("model_type":"qwen3_moe","num_hidden_layers":94,"layer_types":null,)" + heads)),
                 94 * kv(4, 128), 0, 0, 0);
  const std::string types = list(94, [](std::size_t) { return "\"full_attention\""; });
  require_totals(
      model(published(R"("model_type":"qwen3_moe","num_hidden_layers":94,"layer_types":)" + types + "," + heads)),
      94 * kv(4, 128), 0, 0, 0);
  require_totals(model(inside("qwen3_vl_moe", published(R"("model_type":"qwen3_vl_moe_text","hidden_size":4096,
    "num_hidden_layers":94,"num_attention_heads":64,"num_key_value_heads":4,"head_dim":128)"))),
                 94 * kv(4, 128), 0, 0, 0);
  require_totals(model(published(R"("model_type":"qwen2","hidden_size":3584,"num_hidden_layers":28,
    "num_attention_heads":28,"num_key_value_heads":4,"sliding_window":131072,"use_sliding_window":false,
    "max_window_layers":28)")),
                 28 * kv(4, 3584 / 28), 0, 0, 0);
}

TEST_CASE("Gemma-4: layers that borrow beside global heads that are null, and a pattern that does not reach the end") {
  // E2B: 35 layers, every fifth global, of which the last 20 borrow: 12 windows and 3 global layers are left.
  const std::string types =
      list(35, [](std::size_t il) { return il % 5 == 4 ? "\"full_attention\"" : "\"sliding_attention\""; });
  const auto m = model(inside("gemma4", published(R"("model_type":"gemma4_text","attention_k_eq_v":false,
    "global_head_dim":512,"head_dim":256,"hidden_size_per_layer_input":256,"num_attention_heads":8,
    "num_global_key_value_heads":null,"num_hidden_layers":35,"num_key_value_heads":1,"num_kv_shared_layers":20,
    "sliding_window":512,"use_bidirectional_attention":null,"use_double_wide_mlp":true,"layer_types":)" +
                                                  types)));
  require_rings(m, 3 * kv(1, 512), 12 * kv(1, 256), 512);
  REQUIRE(std::get<memra::SharedKvSpec>(m.state.layers[15].states[0]).donor == 13);
  REQUIRE(std::get<memra::SharedKvSpec>(m.state.layers[34].states[0]).donor == 14);
  // Without a list every sixth is global, and the last one whatever its number.
  const std::string silent = R"("num_attention_heads":8,"num_key_value_heads":2,"head_dim":256,"sliding_window":512)";
  require_rings(model(published(R"("model_type":"gemma4_text","num_hidden_layers":8,)" + silent)), 2 * kv(2, 512),
                6 * kv(2, 256), 512);
}

TEST_CASE("GLM-4.5V and 4.1V: the same heads inside a model that sees") {
  require_totals(model(inside("glm4v_moe", published(R"("model_type":"glm4v_moe_text","hidden_size":4096,
    "num_hidden_layers":46,"num_attention_heads":96,"num_key_value_heads":8,"head_dim":128,
    "num_nextn_predict_layers":1)"))),
                 46 * kv(8, 128), kv(8, 128), 0, 0);
  require_totals(model(inside("glm4v", published(R"("model_type":"glm4v_text","hidden_size":4096,"num_hidden_layers":40,
    "num_attention_heads":32,"num_key_value_heads":2)"))),
                 40 * kv(2, 4096 / 32), 0, 0, 0);
}

TEST_CASE("GLM-5.2: every fourth indexer, as a frequency, as a list and with the cache's names for layers") {
  const std::string head = R"("model_type":"glm_moe_dsa","kv_lora_rank":512,"qk_rope_head_dim":64,"head_dim":64,
    "num_attention_heads":64,"num_key_value_heads":64,"v_head_dim":256,"index_head_dim":128,"index_n_heads":32,
    "index_topk":2048,"num_hidden_layers":78,"num_nextn_predict_layers":1)";
  std::size_t own = 0;
  for (std::size_t il = 0; il < 78; ++il) own += il < 2 || (il - 2) % 4 == 0 ? 1 : 0;
  REQUIRE(own == 2 + 19);
  const std::string types =
      list(78, [](std::size_t il) { return il < 2 || (il - 2) % 4 == 0 ? "\"full\"" : "\"shared\""; });
  const std::string kinds = list(78, [](std::size_t) { return "\"deepseek_sparse_attention\""; });
  for (const std::string& how :
       {R"(,"index_topk_freq":4,"index_skip_topk_offset":3,"index_topk_pattern":null)" + std::string(),
        R"(,"indexer_types":)" + types, R"(,"layer_types":)" + kinds + R"(,"indexer_types":)" + types}) {
    require_totals(model(published(head + how)), 78 * q8(576) + own * q8(128), q8(576) + q8(128), 0, 0);
  }
}

TEST_CASE("DeepSeek-OCR: use_mla is false and its heads are like any other's") {
  require_totals(model(R"({"model_type":"deepseek_vl_v2","vision_config":{},"language_config":{
    "model_type":"deepseek_v2","use_mla":false,"kv_lora_rank":null,"q_lora_rank":null,"qk_nope_head_dim":0,
    "qk_rope_head_dim":0,"v_head_dim":0,"hidden_size":1280,"num_attention_heads":10,"num_key_value_heads":10,
    "num_hidden_layers":12}})"),
                 12 * kv(10, 128), 0, 0, 0);
}

TEST_CASE("MiMo-V2: blocks past the trunk are windowed, as its other windows are") {
  const std::string head = R"("model_type":"mimo_v2","num_hidden_layers":6,"num_attention_heads":64,
    "num_key_value_heads":4,"head_dim":192,"v_head_dim":128,"sliding_window":128,"sliding_window_size":128,
    "attention_chunk_size":128,"swa_num_attention_heads":64,"swa_num_key_value_heads":8,"swa_head_dim":192,
    "swa_v_head_dim":128,"hybrid_block_size":null,"hybrid_layer_pattern":[0,1,1,1,1,0])";
  require_totals(model(published(head)), 2 * kv(4, 192, 128), 0, 4 * 128 * kv(8, 192, 128), 0);
  const auto m = model(published(head + R"(,"num_nextn_predict_layers":3)"));
  REQUIRE(m.state.n_mtp == 3);
  require_totals(m, 2 * kv(4, 192, 128), 0, (4 + 3) * 128 * kv(8, 192, 128), 0);
}

TEST_CASE("MiniMax-M3: an indexer's one key per token beside K and V, in two spellings, also past the trunk") {
  const std::string freq = list(60, [](std::size_t il) { return il < 3 ? "0" : "1"; });
  const std::string head = R"("hidden_size":6144,"num_hidden_layers":60,"num_attention_heads":64,"head_dim":128,
    "num_key_value_heads":4,"rotary_dim":64,"moe_layer_freq":)" +
                           freq;
  const std::string nested = R"(,"sparse_attention_config":{"use_sparse_attention":true,"sparse_index_dim":128,
    "sparse_num_index_heads":4,"sparse_topk_blocks":16,"sparse_block_size":128,"sparse_init_block":0,
    "sparse_local_block":1,"sparse_score_type":"max","sparse_disable_index_value":)" +
                             freq + R"(,"sparse_attention_freq":)" + freq + "}";
  const std::size_t trunk = 60 * kv(4, 128) + 57 * q8(128);
  require_totals(model(inside("minimax_m3_vl", published(head + nested))), trunk, 0, 0, 0);
  // The model inside may call itself its predecessor.
  require_totals(model(inside("minimax_m3_vl", published(R"("model_type":"minimax_m2",)" + head + nested))), trunk, 0,
                 0, 0);
  const std::string types =
      list(60, [](std::size_t il) { return il < 3 ? "\"full_attention\"" : "\"minimax_m3_sparse\""; });
  const std::string flat = R"(,"index_head_dim":128,"index_n_heads":4,"layer_types":)" + types;
  require_totals(model(published(R"("model_type":"minimax_m3_vl_text",)" + head + flat)), trunk, 0, 0, 0);
  require_totals(model(published(R"("model_type":"minimax_m3",)" + head + flat + nested)), trunk, 0, 0, 0);
  require_totals(model(published(R"("model_type":"minimax_m3",)" + head + nested + R"(,"num_mtp_modules":2)")), trunk,
                 2 * (kv(4, 128) + q8(128)), 0, 0);
  require_totals(model(published(R"("model_type":"minimax_m3",)" + head +
                                 R"(,"sparse_attention_config":{"use_sparse_attention":false})")),
                 60 * kv(4, 128), 0, 0, 0);
  const auto says = [&](const std::string& rest) {
    return refusal(published(R"("model_type":"minimax_m3",)" + head + rest));
  };
  REQUIRE(says(R"(,"layer_types":)" + types) ==
          "field index_head_dim is missing; expected the width of an indexer's key");
  REQUIRE(says(R"(,"sparse_attention_config":{"sparse_index_dim":128})") ==
          "field sparse_attention_config.sparse_attention_freq is missing; expected 0 or 1 for every layer");
  REQUIRE(says(R"(,"sparse_attention_config":7)") == "field sparse_attention_config is 7; expected an object");
  REQUIRE(says(R"(,"index_head_dim":64)" + nested) ==
          "field sparse_attention_config.sparse_index_dim is 128 and index_head_dim is 64; expected one value");
  const std::string values = list(60, [](std::size_t) { return "0"; });
  REQUIRE(says(R"(,"sparse_attention_config":{"sparse_index_dim":128,"sparse_attention_freq":)" + freq +
               R"(,"sparse_disable_index_value":)" + values + "}") ==
          "field sparse_attention_config.sparse_disable_index_value holds 0 for layer 3; expected 1 where "
          "sparse_attention_freq is");
  REQUIRE(says(R"(,"index_head_dim":128,"layer_types":)" + types +
               R"(,"sparse_attention_config":{"sparse_attention_freq":)" + values + "}") ==
          "field sparse_attention_config.sparse_attention_freq and layer_types name different layers; expected them to "
          "agree");
}

TEST_CASE("MiniMax-M2: fields that say nothing, a window that would") {
  const std::string head = R"("model_type":"minimax_m2","num_hidden_layers":2,"num_attention_heads":48,"head_dim":128,
    "num_key_value_heads":8,"attn_type_list":[1,1],"qk_norm_type":"per_layer","num_mtp_modules":3,
    "mtp_transformer_layers":1)";
  require_totals(model(published(head + R"(,"use_mtp":true,"attn_window_size":null,"sliding_window":null)")),
                 2 * kv(8, 128), 3 * kv(8, 128), 0, 0);
  require_totals(model(published(head)), 2 * kv(8, 128), 3 * kv(8, 128), 0, 0);
  require_totals(model(published(head + R"(,"use_mtp":false)")), 2 * kv(8, 128), 0, 0, 0);
  REQUIRE(refusal(published(head + R"(,"attn_window_size":512)")) ==
          "field attn_window_size is 512, which 'minimax_m2' models are not known to use; expected it to be absent");
}

TEST_CASE("DeciLM: kv heads of every layer in a list") {
  const std::string head = R"("model_type":"deci","hidden_size":4096,"num_hidden_layers":4,"num_attention_heads":32)";
  require_totals(model(published(head + R"(,"num_key_value_heads_per_layer":[4,4,2,1])")),
                 (4 + 4 + 2 + 1) * kv(1, 4096 / 32), 0, 0, 0);
  REQUIRE(refusal(published(head + R"(,"num_key_value_heads_per_layer":[4,4,2])")) ==
          "field num_key_value_heads_per_layer is a list of 3; expected a list of num_hidden_layers = 4 values");
  REQUIRE(refusal(published(head + R"(,"num_key_value_heads_per_layer":[4,4,2,3])")) ==
          "field num_key_value_heads_per_layer holds 3; expected divisors of num_attention_heads = 32");
  REQUIRE(refusal(published(R"("model_type":"llama","hidden_size":4096,"num_hidden_layers":4,"num_attention_heads":32,
    "num_key_value_heads_per_layer":[4,4,2,1])")) ==
          "field num_key_value_heads_per_layer is a list, which 'llama' models are not known to use; expected it to be "
          "absent");
}

TEST_CASE("Falcon-H1: a list of hybrids says what every layer is") {
  const std::string head = R"("model_type":"falcon_h1","hidden_size":2048,"num_hidden_layers":3,"num_attention_heads":8,
    "num_key_value_heads":2,"head_dim":128,"mamba_d_ssm":3072,"mamba_n_heads":48,"mamba_d_head":64,"mamba_n_groups":1,
    "mamba_d_state":256,"mamba_d_conv":4,"mamba_expand":2,"attn_layer_indices":null,"time_step_limit":[0.0,Infinity])";
  const std::size_t fixed = 3 * state(3072 + 2 * 256, 48 * 64 * 256);
  require_totals(model(published(head)), 3 * kv(2, 128), 0, 0, fixed);
  require_totals(model(published(head + R"(,"layer_types":["hybrid","hybrid","hybrid"])")), 3 * kv(2, 128), 0, 0,
                 fixed);
  REQUIRE(refusal(published(head + R"(,"layer_types":["hybrid","mamba","hybrid"])")) ==
          "field layer_types holds 'mamba'; expected one of hybrid");
}

TEST_CASE("Nemotron 3 and Jamba: the names that later files give the same layers") {
  const std::string head = R"("model_type":"nemotron_h","num_attention_heads":32,"num_key_value_heads":2,"head_dim":128,
    "mamba_num_heads":128,"mamba_head_dim":64,"n_groups":8,"ssm_state_size":128,"conv_kernel":4,"expand":2,
    "hidden_size":4096,"sliding_window":null,"mamba_ssm_cache_dtype":"float32","time_step_limit":[0.0,Infinity],
    "num_nextn_predict_layers":1)";
  const std::size_t mamba = state(128 * 64 + 2 * 8 * 128, 128 * 64 * 128);
  require_totals(model(published(head + R"(,"num_hidden_layers":6,"hybrid_override_pattern":"MEM*E-",
    "mtp_hybrid_override_pattern":"*E")")),
                 kv(2, 128), kv(2, 128), 0, 2 * mamba);
  require_totals(model(published(head + R"(,"layers_block_type":["linear_attention","moe","linear_attention",
    "full_attention","moe","mlp"],"mtp_layers_block_type":["full_attention","moe"])")),
                 kv(2, 128), kv(2, 128), 0, 2 * mamba);
  require_totals(model(published(R"("model_type":"jamba","hidden_size":2560,"num_hidden_layers":4,
    "num_attention_heads":20,"num_key_value_heads":1,"attn_layer_period":4,"attn_layer_offset":2,"mamba_d_state":16,
    "mamba_d_conv":4,"mamba_expand":2,"mamba_dt_rank":160,"layer_types":["linear_attention","linear_attention",
    "full_attention","linear_attention"])")),
                 kv(1, 128), 0, 0, 3 * state(5120, 5120 * 16));
}

TEST_CASE("red arm: what says nothing here would, if it were one of the fields that do") {
  // Of every family one field of another: each is noticed by name.
  const std::string llama = R"("model_type":"llama","hidden_size":256,"num_hidden_layers":2,"num_attention_heads":4)";
  REQUIRE(refusal(published(llama)).empty());
  for (const char* const name : memra::config::hf_state_fields) {
    if (std::string(name) == "layer_types") continue;  // it knows that one
    const std::string sentence = refusal(published(llama + ",\"" + name + "\":3"));
    const bool switched = std::string(name) == "num_nextn_predict_layers" || std::string(name) == "num_mtp_layers" ||
                          std::string(name) == "mtp_num_hidden_layers";
    INFO(name << ": " << sentence);
    REQUIRE((switched || sentence == "field " + std::string(name) +
                                         " is 3, which 'llama' models are not known to use; expected it to be absent"));
  }
  // Blocks past the trunk, under every name that they have, of a family that is not known to have any.
  for (const char* const name :
       {"num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", "num_mtp_modules"}) {
    REQUIRE(refusal(std::string(R"({"model_type":"llama4_text","hidden_size":256,"num_hidden_layers":2,")") + name +
                    "\":1}") == "field " + std::string(name) +
                                    " is 1, which 'llama4_text' models are not known to use; expected it to be "
                                    "absent");
  }
}

}  // namespace hf_published_cpp
