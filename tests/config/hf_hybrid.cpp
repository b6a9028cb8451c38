// Bytes of real models with latent attention and with recurrent layers, against the operands of their formulas.
#include <config/support.hpp>
#include <cstddef>
#include <string>
#include <support/catch.hpp>
#include <variant>

namespace hf_hybrid_cpp {
using namespace loaded;

namespace {

/// `n` names in a JSON list, the second wherever `every` divides il + 1 (+ shift).
std::string names(std::size_t n, const char* most, const char* other, std::size_t every, std::size_t shift = 0) {
  std::string list = "[";
  for (std::size_t il = 0; il < n; ++il) {
    list += std::string(il == 0 ? "\"" : ",\"") + ((il + 1 + shift) % every == 0 ? other : most) + "\"";
  }
  return list + "]";
}

const std::string v3_head = R"("kv_lora_rank":512,"qk_rope_head_dim":64,"qk_nope_head_dim":128,"v_head_dim":128,
    "num_attention_heads":128,"num_key_value_heads":128,"num_hidden_layers":61)";

/// Convolution of `channels` with 4 taps, and `ssm` numbers, in f32.
constexpr std::size_t state(std::size_t channels, std::size_t ssm, std::size_t taps = 4) {
  return 4 * (channels * (taps - 1) + ssm);
}

}  // namespace

TEST_CASE("DeepSeek-V3 and Kimi-K2: one latent row of 512 + 64 per layer, no V") {
  const auto m = model(R"({"model_type":"deepseek_v3","num_nextn_predict_layers":1,)" + v3_head + "}");
  require_totals(m, 61 * q8(512 + 64), q8(576), 0, 0);
  // B97 and a public log: 70,272 bytes a token in 16 bits, and 1,223,294,976 bytes at 32,768 tokens in q8_0.
  REQUIRE(plan(model(R"({"model_type":"deepseek_v3",)" + v3_head + "}", f16()), 5).totals.bytes_per_token ==
          61 * 576 * 2);
  REQUIRE(kv_bytes(plan(model(R"({"model_type":"deepseek_v3",)" + v3_head + "}"), 32768)) == 1223294976);
  require_totals(model(R"({"model_type":"kimi_k2","num_nextn_predict_layers":0,)" + v3_head + "}"), 61 * q8(576), 0, 0,
                 0);
  require_totals(model(R"({"model_type":"kimi_k25","text_config":{"model_type":"kimi_k2",)" + v3_head + "}}"),
                 61 * q8(576), 0, 0, 0);
}

TEST_CASE("DeepSeek-V3.2 and GLM-5: the indexer's keys of 128 are rows, too") {
  require_totals(model(R"({"model_type":"deepseek_v32","index_head_dim":128,"index_n_heads":64,
    "num_nextn_predict_layers":1,)" +
                       v3_head + "}"),
                 61 * (q8(576) + q8(128)), q8(576) + q8(128), 0, 0);
  const std::string glm = R"({"model_type":"glm_moe_dsa","kv_lora_rank":512,"qk_rope_head_dim":64,"head_dim":64,
    "num_attention_heads":64,"num_key_value_heads":64,"v_head_dim":256,"index_head_dim":128,"num_hidden_layers":78,
    "num_nextn_predict_layers":1)";
  require_totals(model(glm + "}"), 78 * (q8(576) + q8(128)), q8(576) + q8(128), 0, 0);
  // Layers that share the choice of an earlier one keep no keys: here every fourth from the third on has its own.
  require_totals(model(glm + R"(,"index_topk_freq":4,"index_skip_topk_offset":2})"), 78 * q8(576) + (2 + 19) * q8(128),
                 q8(576) + q8(128), 0, 0);
  require_totals(model(R"({"model_type":"glm_moe_dsa","kv_lora_rank":512,"qk_rope_head_dim":64,
    "num_attention_heads":64,"index_head_dim":128,"num_hidden_layers":4,"index_topk_pattern":"FFSS"})"),
                 4 * q8(576) + 2 * q8(128), 0, 0, 0);
}

TEST_CASE("Qwen3.5-27B: 16 of 64 layers grow, one more past the trunk") {
  const std::string head = R"("num_hidden_layers":64,"num_attention_heads":24,"num_key_value_heads":4,"head_dim":256,
    "linear_num_key_heads":16,"linear_num_value_heads":48,"linear_key_head_dim":128,"linear_value_head_dim":128,
    "linear_conv_kernel_dim":4,"mtp_num_hidden_layers":1)";
  const std::size_t channels = 2 * 16 * 128 + 48 * 128;
  const std::size_t fixed = 48 * state(channels, 48 * 128 * 128);
  REQUIRE(fixed == 48 * (122880 + 3145728));
  const auto m = model(R"({"model_type":"qwen3_5","text_config":{"model_type":"qwen3_5_text",)" + head +
                       R"(,"full_attention_interval":4}})");
  require_totals(m, 16 * kv(4, 256), kv(4, 256), 0, fixed);
  require_totals(model(R"({"model_type":"qwen3_5_text",)" + head + R"(,"full_attention_interval":7,"layer_types":)" +
                       names(64, "linear_attention", "full_attention", 4) + "}"),
                 16 * kv(4, 256), kv(4, 256), 0, fixed);  // the list wins over the interval
  memra::config::Storage half;
  half.ssm = memra::Format::bf16;
  half.conv = memra::Format::f16;
  require_totals(model(R"({"model_type":"qwen3_5_text",)" + head + "}", half), 16 * kv(4, 256), kv(4, 256), 0,
                 fixed / 2);
  half.conv = memra::Format::f32;
  half.second_buffer = true;
  const auto mixed = model(R"({"model_type":"qwen3_5_text",)" + head + "}", half);
  require_totals_with_second(mixed, 48 * (4 * channels * 3 + 2 * 48 * 128 * 128), 48 * 2 * 48 * 128 * 128);
}

TEST_CASE("B99 Qwen3-Next-80B and Qwen3.5-35B: the interval alone, the family's default") {
  const std::string next = R"({"model_type":"qwen3_next","num_hidden_layers":48,"num_attention_heads":16,
    "num_key_value_heads":2,"head_dim":256,"linear_num_key_heads":16,"linear_num_value_heads":32,
    "linear_key_head_dim":128,"linear_value_head_dim":128,"linear_conv_kernel_dim":4)";
  const std::size_t linear = state(2 * 16 * 128 + 32 * 128, 32 * 128 * 128);
  require_totals(model(next + R"(,"full_attention_interval":4})"), 12 * kv(2, 256), 0, 0, 36 * linear);
  require_totals(model(next + "}"), 12 * kv(2, 256), 0, 0, 36 * linear);
  require_totals(model(R"({"model_type":"qwen3_5_moe_text","num_hidden_layers":40,"num_attention_heads":16,
    "num_key_value_heads":2,"head_dim":256,"linear_num_key_heads":16,"linear_num_value_heads":32,
    "linear_key_head_dim":128,"linear_value_head_dim":128,"linear_conv_kernel_dim":4,"mtp_num_hidden_layers":1})"),
                 10 * kv(2, 256), kv(2, 256), 0, 30 * linear);
}

TEST_CASE("B91 a list of twelve layers wins over the interval of four") {
  const auto m = model(R"({"model_type":"qwen3_next","num_hidden_layers":12,"num_attention_heads":4,"head_dim":64,
    "num_key_value_heads":2,"linear_num_key_heads":2,"linear_num_value_heads":4,"linear_key_head_dim":64,
    "linear_value_head_dim":64,"linear_conv_kernel_dim":4,"full_attention_interval":4,"layer_types":[
    "linear_attention","linear_attention","linear_attention","full_attention","linear_attention","linear_attention",
    "full_attention","linear_attention","linear_attention","linear_attention","linear_attention","full_attention"]})");
  for (std::size_t il = 0; il < 12; ++il) {
    const bool full = il == 3 || il == 6 || il == 11;
    REQUIRE(std::holds_alternative<memra::AttentionSpec>(m.state.layers[il].states[0]) == full);
  }
}

TEST_CASE("Kimi-K3 and Kimi-Linear: layers counted from one") {
  // Every fourth layer is full, and the last one.
  std::string full;
  std::string kda;
  for (int il = 1; il <= 93; ++il) {
    std::string& list = il % 4 == 0 || il == 93 ? full : kda;
    list += (list.empty() ? "" : ",") + std::to_string(il);
  }
  const std::string head = R"({"model_type":"kimi_k3","text_config":{"model_type":"kimi_linear","num_hidden_layers":93,
    "kv_lora_rank":512,"qk_rope_head_dim":64,"num_attention_heads":96,"num_key_value_heads":96,"v_head_dim":128,
    "num_nextn_predict_layers":0,"linear_attn_config":{"head_dim":128,"num_heads":96,"short_conv_kernel_size":4)";
  const std::size_t linear = state(3 * 96 * 128, 96 * 128 * 128);
  const auto m = model(head + R"(,"full_attn_layers":[)" + full + R"(],"kda_layers":[)" + kda + "]}}}");
  require_totals(m, 24 * q8(576), 0, 0, 69 * linear);
  REQUIRE(std::holds_alternative<memra::AttentionSpec>(m.state.layers[3].states[0]));   // "4"
  REQUIRE(std::holds_alternative<memra::AttentionSpec>(m.state.layers[92].states[0]));  // "93"
  REQUIRE(std::holds_alternative<memra::RecurrentSpec>(m.state.layers[0].states[0]));
  require_totals(model(head + R"(,"full_attn_layers":[)" + full + "]}}}"), 24 * q8(576), 0, 0, 69 * linear);
  require_totals(model(head + R"(,"kda_layers":[)" + kda + "]}}}"), 24 * q8(576), 0, 0, 69 * linear);
  require_totals(model(R"({"model_type":"kimi_linear","num_hidden_layers":27,"kv_lora_rank":512,"qk_rope_head_dim":64,
    "num_attention_heads":32,"linear_attn_config":{"head_dim":128,"num_heads":32,"short_conv_kernel_size":4,
    "full_attn_layers":[4,8,12,16,20,24,27]}})"),
                 7 * q8(576), 0, 0, 20 * state(3 * 32 * 128, 32 * 128 * 128));
}

TEST_CASE("Jamba-1.5-Mini: Mamba-1, attention once in eight layers") {
  const auto m = model(R"({"model_type":"jamba","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,
    "num_key_value_heads":8,"attn_layer_period":8,"attn_layer_offset":4,"mamba_d_state":16,"mamba_d_conv":4,
    "mamba_expand":2,"sliding_window":null})");
  require_totals(m, 4 * kv(8, 4096 / 32), 0, 0, 28 * state(2 * 4096, 2 * 4096 * 16));
  REQUIRE(std::holds_alternative<memra::AttentionSpec>(m.state.layers[12].states[0]));
}

TEST_CASE("Granite-4-H-Small: Mamba-2 of one group, four layers of attention") {
  const std::string head = R"({"model_type":"granitemoehybrid","hidden_size":4096,"num_hidden_layers":40,
    "num_attention_heads":32,"num_key_value_heads":8,"mamba_n_heads":128,"mamba_n_groups":1,"mamba_d_state":128,
    "mamba_d_conv":4,"mamba_expand":2,"mamba_d_head":)";
  const std::string list =
      R"(,"time_step_limit":[0.0,Infinity],"layer_types":)" + names(40, "mamba", "attention", 10, 4) + "}";
  const std::size_t linear = state(2 * 4096 + 2 * 1 * 128, 128 * 64 * 128);
  require_totals(model(head + "64" + list), 4 * kv(8, 128), 0, 0, 36 * linear);
  require_totals(model(head + "\"auto\"" + list), 4 * kv(8, 128), 0, 0, 36 * linear);
}

TEST_CASE("hybrids without a recurrent layer may still describe one") {
  require_totals(model(R"({"model_type":"granitemoehybrid","hidden_size":2560,"num_hidden_layers":2,
    "num_attention_heads":40,"num_key_value_heads":8,"mamba_n_heads":80,"mamba_n_groups":1,"mamba_d_state":128,
    "mamba_d_conv":4,"mamba_expand":2,"layer_types":["attention","attention"]})"),
                 2 * kv(8, 64), 0, 0, 0);
  require_totals(model(R"({"model_type":"qwen3_next","num_hidden_layers":2,"num_attention_heads":16,"head_dim":256,
    "num_key_value_heads":2,"linear_num_value_heads":32,"full_attention_interval":1})"),
                 2 * kv(2, 256), 0, 0, 0);
  require_totals(model(R"({"model_type":"nemotron_h","num_hidden_layers":2,"num_attention_heads":16,"head_dim":128,
    "num_key_value_heads":2,"mamba_num_heads":32,"ssm_state_size":128,"hybrid_override_pattern":"*-"})"),
                 kv(2, 128), 0, 0, 0);
  require_totals(model(R"({"model_type":"lfm2","hidden_size":256,"num_hidden_layers":2,"num_attention_heads":4,
    "num_key_value_heads":4,"full_attn_idxs":[1],"layer_types":["conv","full_attention"]})"),
                 kv(4, 64), 0, 0, 4 * 256 * 2);  // two spellings that agree
}

TEST_CASE("Nemotron-H-56B and Nemotron-3-Nano: a letter per block") {
  // 118 blocks: M- pairs with an attention block in place of the MLP's neighbour ten times.
  const std::string big =
      "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-"
      "M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-";
  const auto m =
      model(R"({"model_type":"nemotron_h","hidden_size":8192,"num_hidden_layers":118,"num_attention_heads":64,
    "num_key_value_heads":8,"attention_head_dim":128,"mamba_num_heads":256,"mamba_head_dim":64,"n_groups":8,
    "ssm_state_size":256,"conv_kernel":4,"time_step_limit":[0.0,Infinity],"hybrid_override_pattern":")" +
            big + "\"}");
  require_totals(m, 10 * kv(8, 128), 0, 0, 54 * state(256 * 64 + 2 * 8 * 256, 256 * 64 * 256));
  REQUIRE(m.state.layers[1].states.empty());
  // The width is heads * head_dim, not expand * hidden_size.
  const auto nano = model(R"({"model_type":"nemotron_h","hidden_size":2688,"expand":2,"num_hidden_layers":52,
    "num_attention_heads":32,"num_key_value_heads":2,"head_dim":128,"mamba_num_heads":64,"mamba_head_dim":64,
    "n_groups":8,"ssm_state_size":128,"conv_kernel":4,
    "hybrid_override_pattern":"MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"})");
  require_totals(nano, 6 * kv(2, 128), 0, 0, 23 * state(64 * 64 + 2 * 8 * 128, 64 * 64 * 128));
  // A list of names, and blocks past the trunk described by a pattern of their own.
  const auto listed =
      model(R"({"model_type":"nemotron_h","num_attention_heads":32,"num_key_value_heads":2,"head_dim":128,
    "mamba_num_heads":64,"mamba_head_dim":64,"n_groups":8,"ssm_state_size":128,"conv_kernel":4,
    "layers_block_type":["mamba","moe","attention","mlp"],"num_nextn_predict_layers":2,
    "mtp_hybrid_override_pattern":"*E"})");
  require_totals(listed, kv(2, 128), 2 * kv(2, 128), 0, state(64 * 64 + 2 * 8 * 128, 64 * 64 * 128));
}

TEST_CASE("Falcon-H1-34B: both in every layer") {
  const auto m = model(R"({"model_type":"falcon_h1","hidden_size":5120,"num_hidden_layers":72,"num_attention_heads":20,
    "num_key_value_heads":4,"head_dim":128,"mamba_d_ssm":4096,"mamba_n_heads":32,"mamba_d_head":128,
    "mamba_n_groups":2,"mamba_d_state":256,"mamba_d_conv":4,"mamba_expand":2})");
  require_totals(m, 72 * kv(4, 128), 0, 0, 72 * state(4096 + 2 * 2 * 256, 32 * 128 * 256));
  REQUIRE(m.state.layers[71].states.size() == 2);
}

TEST_CASE("B93 LFM2-1.2B: ten short convolutions, six layers of attention") {
  const std::string head = R"({"model_type":"lfm2","hidden_size":2048,"num_hidden_layers":16,"num_attention_heads":32,
    "num_key_value_heads":8,"conv_L_cache":3,"conv_dim":2048)";
  const std::string indices = head + R"(,"full_attn_idxs":[2,5,8,10,12,14]})";
  const auto m = model(indices);
  require_totals(m, 6 * kv(8, 64), 0, 0, 10 * 4 * 2048 * (3 - 1));
  REQUIRE(kv_bytes(plan(model(indices, f16()), 32768)) == 402653184);
  require_totals(model(head + R"(,"layer_types":["conv","conv","full_attention","conv","conv","full_attention","conv",
    "conv","full_attention","conv","full_attention","conv","full_attention","conv","full_attention","conv"]})"),
                 6 * kv(8, 64), 0, 0, 10 * 4 * 2048 * 2);
}

TEST_CASE("MiniMax-M1: lightning attention keeps a square per head and no convolution") {
  std::string list;
  for (int il = 0; il < 80; ++il) list += std::string(il == 0 ? "" : ",") + (il % 8 == 7 ? "1" : "0");
  const auto m = model(R"({"model_type":"minimax_m1","hidden_size":6144,"num_hidden_layers":80,"num_attention_heads":64,
    "num_key_value_heads":8,"head_dim":128,"sliding_window":null,"attn_type_list":[)" +
                       list + "]}");
  require_totals(m, 10 * kv(8, 128), 0, 0, 70 * 4 * 64 * 128 * 128);
}

TEST_CASE("the first files of MiniMax-M2 have the older model_type: all attention, and blocks past the trunk") {
  require_totals(model(R"({"model_type":"minimax","hidden_size":3072,"num_hidden_layers":4,"num_attention_heads":48,
    "num_key_value_heads":8,"head_dim":128,"attn_type_list":[1,1,1,1],"use_mtp":true,"num_mtp_modules":3,
    "mtp_transformer_layers":1})"),
                 4 * kv(8, 128), 3 * kv(8, 128), 0, 0);
}

TEST_CASE("hybrids without num_key_value_heads: the family's default") {
  const std::string delta = R"("num_attention_heads":16,"head_dim":256,"num_hidden_layers":1,
    "layer_types":["full_attention"]})";
  require_totals(model(R"({"model_type":"qwen3_next",)" + delta), kv(2, 256), 0, 0, 0);
  require_totals(model(R"({"model_type":"qwen3_5_text",)" + delta), kv(4, 256), 0, 0, 0);
  require_totals(model(R"({"model_type":"qwen3_5_moe_text",)" + delta), kv(2, 256), 0, 0, 0);
  const std::string wide = R"("num_attention_heads":32,"hidden_size":2048,"num_hidden_layers":1)";
  require_totals(model(R"({"model_type":"jamba","attn_layer_period":1,"attn_layer_offset":0,)" + wide + "}"), kv(8, 64),
                 0, 0, 0);
  require_totals(model(R"({"model_type":"lfm2","full_attn_idxs":[0],)" + wide + "}"), kv(8, 64), 0, 0, 0);
  require_totals(model(R"({"model_type":"minimax","attn_type_list":[1],)" + wide + "}"), kv(8, 64), 0, 0, 0);
  require_totals(model(R"({"model_type":"bamba","attn_layer_indices":[0],)" + wide + "}"), kv(8, 64), 0, 0, 0);
  require_totals(model(R"({"model_type":"granitemoehybrid","layer_types":["attention"],)" + wide + "}"), kv(32, 64), 0,
                 0, 0);
  require_totals(model(R"({"model_type":"nemotron_h","hybrid_override_pattern":"*",)" + wide + "}"), kv(8, 128), 0, 0,
                 0);
  require_totals(
      model(R"({"model_type":"nemotron_h","num_key_value_heads":null,"hybrid_override_pattern":"*",)" + wide + "}"),
      kv(32, 128), 0, 0, 0);
}

TEST_CASE("Falcon-H1: mamba_d_ssm null is expand * hidden_size, absent is the family's 1024") {
  const auto file = [](const char* d_ssm, int heads) {
    return model(R"({"model_type":"falcon_h1","hidden_size":2048,"num_hidden_layers":1,"num_attention_heads":8,
      "num_key_value_heads":2,"head_dim":64,"mamba_d_head":64,"mamba_n_groups":1,"mamba_d_state":128,"mamba_d_conv":4,
      "mamba_expand":2)" +
                 std::string(d_ssm) + ",\"mamba_n_heads\":" + std::to_string(heads) + "}");
  };
  require_totals(file(R"(,"mamba_d_ssm":1536)", 24), kv(2, 64), 0, 0, state(1536 + 2 * 128, 1536 * 128));
  require_totals(file(R"(,"mamba_d_ssm":null)", 64), kv(2, 64), 0, 0, state(4096 + 2 * 128, 4096 * 128));
  require_totals(file("", 16), kv(2, 64), 0, 0, state(1024 + 2 * 128, 1024 * 128));
}
}  // namespace hf_hybrid_cpp
