// Bytes of real attention models, each against the operands of its formula, around the edges of its windows.
#include <algorithm>
#include <array>
#include <config/support.hpp>
#include <cstddef>
#include <string>
#include <support/catch.hpp>
#include <variant>

namespace hf_attention_cpp {
using namespace loaded;

TEST_CASE("Qwen3-32B: head_dim is stated, the window is switched off") {
  const auto m = model(R"({"model_type":"qwen3","hidden_size":5120,"num_hidden_layers":64,"num_attention_heads":64,
    "num_key_value_heads":8,"head_dim":128,"sliding_window":null,"use_sliding_window":false,"max_window_layers":64,
    "max_position_embeddings":40960,"vocab_size":151936})");
  require_totals(m, 64 * kv(8, 128), 0, 0, 0);
  REQUIRE(m.max_positions == 40960);
  REQUIRE(m.state.n_vocab == 151936);
  // B97: 262,144 bytes a token in 16 bits; with heads of 5120 / 64 = 80 it would be another number.
  REQUIRE(plan(model(R"({"model_type":"qwen3","hidden_size":5120,"num_hidden_layers":64,"num_attention_heads":64,
    "num_key_value_heads":8,"head_dim":128})",
                     f16()),
               7)
              .totals.bytes_per_token == 64 * 2 * 8 * 128 * 2);
}

TEST_CASE("Qwen2 and Qwen3 windows: the switch, the first windowed layer, the list that wins") {
  const std::string head = R"({"model_type":"qwen3","num_hidden_layers":6,"num_attention_heads":4,"head_dim":64,
    "num_key_value_heads":2,"sliding_window":256)";
  require_totals(model(head + "}"), 6 * kv(2, 64), 0, 0, 0);
  require_totals(model(head + R"(,"use_sliding_window":true,"max_window_layers":4})"), 4 * kv(2, 64), 0,
                 2 * 256 * kv(2, 64), 0);
  require_totals(model(head + R"(,"use_sliding_window":true,"max_window_layers":6})"), 6 * kv(2, 64), 0, 0, 0);
  const std::string list = R"(,"use_sliding_window":true,"max_window_layers":4,"layer_types":["sliding_attention",
    "full_attention","sliding_attention","full_attention","full_attention","full_attention"]})";
  require_rings(model(head + list), 4 * kv(2, 64), 2 * kv(2, 64), 256);
  // Of the experts' models every layer has the window.
  require_totals(model(R"({"model_type":"qwen3_moe","num_hidden_layers":3,"num_attention_heads":4,"head_dim":64,
    "num_key_value_heads":2,"sliding_window":256,"use_sliding_window":true})"),
                 0, 0, 3 * 256 * kv(2, 64), 0);
}

TEST_CASE("Llama-3.1-8B and Mixtral-8x7B: heads of hidden_size / num_attention_heads") {
  require_totals(model(R"({"model_type":"llama","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,
    "num_key_value_heads":8})"),
                 32 * kv(8, 4096 / 32), 0, 0, 0);
  require_totals(model(R"({"model_type":"llama","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32})"),
                 32 * kv(32, 128), 0, 0, 0);  // without num_key_value_heads every head has its own
  require_totals(model(R"({"model_type":"mixtral","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,
    "num_key_value_heads":8,"sliding_window":null})"),
                 32 * kv(8, 128), 0, 0, 0);
}

TEST_CASE("Mistral-7B: v0.1 has the window in every layer, v0.3 says null") {
  const std::string head = R"({"model_type":"mistral","hidden_size":4096,"num_hidden_layers":32,
    "num_attention_heads":32,"num_key_value_heads":8)";
  require_rings(model(head + R"(,"sliding_window":4096})"), 0, 32 * kv(8, 128), 4096);
  require_rings(model(head + "}"), 0, 32 * kv(8, 128), 4096);  // absent: the family's default
  require_totals(model(head + R"(,"sliding_window":null})"), 32 * kv(8, 128), 0, 0, 0);
  memra::config::Storage flat;
  flat.ring_slack = 0;  // windows in planes as long as the context
  require_totals(model(head + "}", flat), 32 * kv(8, 128), 0, 0, 0);
}

TEST_CASE("B96 gpt-oss-120b: half the layers stop growing at 128") {
  const std::string json = R"({"model_type":"gpt_oss","hidden_size":2880,"num_hidden_layers":36,"head_dim":64,
    "num_attention_heads":64,"num_key_value_heads":8,"sliding_window":128})";
  require_rings(model(json), 18 * kv(8, 64), 18 * kv(8, 64), 128);
  // The thread's numbers, for 16 bits a value and no slack.
  const auto m = model(json, f16());
  const std::size_t ctx[] = {1, 127, 128, 129, 4096};
  const std::size_t bytes[] = {73728, 9363456, 9437184, 9474048, 155713536};
  for (std::size_t i = 0; i < 5; ++i) {
    const memra::Plan p = plan(m, ctx[i]);
    REQUIRE(kv_bytes(p) - p.totals.ring_slack_bytes == bytes[i]);
  }
  // The list of gpt-oss-20b says the same as the rule; one that says otherwise wins.
  require_totals(model(R"({"model_type":"gpt_oss","num_hidden_layers":3,"num_attention_heads":64,"head_dim":64,
    "num_key_value_heads":8,"sliding_window":128,"layer_types":["full_attention","full_attention",
    "sliding_attention"]})"),
                 2 * kv(8, 64), 0, 128 * kv(8, 64), 0);
}

TEST_CASE("Gemma 2 and 3: patterns of two and six, defaults where published files are silent") {
  require_rings(model(R"({"model_type":"gemma3","text_config":{"model_type":"gemma3_text","hidden_size":3840,
    "num_attention_heads":16,"num_hidden_layers":48,"num_key_value_heads":8,"sliding_window":1024}})"),
                8 * kv(8, 256), 40 * kv(8, 256), 1024);
  require_rings(model(R"({"model_type":"gemma3","text_config":{"hidden_size":2560,"num_hidden_layers":34,
    "model_type":"gemma3_text","sliding_window":1024}})"),
                5 * kv(4, 256), 29 * kv(4, 256), 1024);
  require_rings(model(R"({"model_type":"gemma3_text","num_hidden_layers":26,"sliding_window":512,
    "sliding_window_pattern":6,"num_attention_heads":4,"num_key_value_heads":1,"head_dim":256})"),
                4 * kv(1, 256), 22 * kv(1, 256), 512);
  require_rings(model(R"({"model_type":"gemma2","num_hidden_layers":42,"num_attention_heads":16,
    "num_key_value_heads":8,"head_dim":256,"sliding_window":4096})"),
                21 * kv(8, 256), 21 * kv(8, 256), 4096);
}

TEST_CASE("Gemma-3n-E4B: 15 of 35 layers borrow, and are counted once") {
  const auto m = model(R"({"model_type":"gemma3n","text_config":{"model_type":"gemma3n_text","num_hidden_layers":35,
    "num_attention_heads":8,"num_key_value_heads":2,"head_dim":256,"num_kv_shared_layers":15,"sliding_window":512}})");
  // Every fifth layer is global: of the first 20, four.
  require_rings(m, 4 * kv(2, 256), 16 * kv(2, 256), 512);
  REQUIRE(std::get<memra::SharedKvSpec>(m.state.layers[20].states[0]).donor == 18);  // the last sliding one
  REQUIRE(std::get<memra::SharedKvSpec>(m.state.layers[34].states[0]).donor == 19);  // the last global one
}

TEST_CASE("B77 Gemma-4-31B: global layers have heads of their own") {
  std::string types;
  for (int il = 0; il < 60; ++il)
    types += std::string(il == 0 ? "" : ",") + (il % 6 == 5 ? "\"full_attention\"" : "\"sliding_attention\"");
  const std::string json = R"({"model_type":"gemma4","text_config":{"model_type":"gemma4_text","num_hidden_layers":60,
    "num_attention_heads":32,"num_key_value_heads":16,"head_dim":256,"global_head_dim":512,"attention_k_eq_v":true,
    "num_global_key_value_heads":4,"sliding_window":1024,"num_kv_shared_layers":0,"layer_types":[)" +
                           types + "]}}";
  require_rings(model(json), 10 * kv(4, 512), 50 * kv(16, 256), 1024);
  const auto m = model(json, f16());
  for (const std::size_t ctx : std::array<std::size_t, 4>{1000, 1024, 1025, 32768}) {
    const memra::Plan p = plan(m, ctx);
    REQUIRE(kv_bytes(p) - p.totals.ring_slack_bytes == 50 * 16384 * std::min<std::size_t>(ctx, 1024) + 10 * 8192 * ctx);
  }
  // Without attention_k_eq_v the global layers have as many kv heads as the others.
  const std::string other =
      R"({"model_type":"gemma4_text","num_hidden_layers":6,"num_attention_heads":16,"head_dim":256,
    "num_key_value_heads":8,"num_global_key_value_heads":2,"sliding_window":1024,"attention_k_eq_v":)";
  REQUIRE(plan(model(other + "false}"), 9).totals.bytes_per_token == kv(8, 512));
  REQUIRE(plan(model(other + "true}"), 9).totals.bytes_per_token == kv(2, 512));
  // The newer spelling of the same.
  REQUIRE(plan(model(R"({"model_type":"gemma4_text","num_hidden_layers":6,"num_attention_heads":16,"head_dim":256,
    "num_key_value_heads":8,"sliding_window":1024,"per_layer_config":{"05":{"head_dim":512,"num_key_value_heads":2}}})"),
               9)
              .totals.bytes_per_token == kv(2, 512));
}

TEST_CASE("Llama-4-Scout: three of four layers keep a chunk") {
  const std::string head = R"({"model_type":"llama4","text_config":{"model_type":"llama4_text","num_hidden_layers":48,
    "num_attention_heads":40,"num_key_value_heads":8,"head_dim":128,"attention_chunk_size":8192)";
  require_rings(model(head + "}}"), 12 * kv(8, 128), 36 * kv(8, 128), 8192);
  require_rings(model(head + R"(,"no_rope_layers":[]}})"), 12 * kv(8, 128), 36 * kv(8, 128), 8192);
  require_totals(model(R"({"model_type":"llama4_text","num_hidden_layers":4,"num_attention_heads":40,"head_dim":128,
    "num_key_value_heads":8,"attention_chunk_size":8192,"no_rope_layers":[0,0,1,0]})"),
                 3 * kv(8, 128), 0, 8192 * kv(8, 128), 0);
}

TEST_CASE("MiMo-V2-Flash: K wider than V, sliding layers with heads of their own") {
  std::string pattern;
  for (int il = 0; il < 48; ++il) pattern += std::string(il == 0 ? "" : ",") + (il == 0 || il % 6 == 5 ? "0" : "1");
  const auto m = model(R"({"model_type":"mimo_v2_flash","num_hidden_layers":48,"num_attention_heads":64,
    "num_key_value_heads":4,"head_dim":192,"v_head_dim":128,"sliding_window":128,"sliding_window_size":128,
    "attention_chunk_size":128,"swa_num_attention_heads":64,"swa_num_key_value_heads":8,"swa_head_dim":192,
    "swa_v_head_dim":128,"hybrid_layer_pattern":[)" +
                       pattern + "]}");
  require_rings(m, 9 * kv(4, 192, 128), 39 * kv(8, 192, 128), 128);
}

TEST_CASE("Nemotron-NAS: every block has its own kv heads, or none") {
  const auto m = model(R"({"model_type":"nemotron-nas","hidden_size":8192,"num_hidden_layers":5,
    "num_attention_heads":64,"num_key_value_heads":null,"block_configs":[
    {"attention":{"n_heads_in_group":8,"no_op":false,"replace_with_linear":false,"window_length":null}},
    {"attention":{"n_heads_in_group":null,"no_op":true,"replace_with_linear":false}},
    {"attention":{"n_heads_in_group":16,"no_op":false,"num_sink_tokens":0}},
    {"attention":{"n_heads_in_group":null,"no_op":false,"replace_with_linear":true}},
    {"attention":{"num_key_value_heads":2}}]})");
  require_totals(m, kv(64 / 8, 8192 / 64) + kv(64 / 16, 128) + kv(2, 128), 0, 0, 0);
  REQUIRE(m.state.layers[1].states.empty());
  REQUIRE(m.state.layers[3].states.empty());
}

TEST_CASE("MiniMax-M2 and GLM-4.5: all attention, and blocks past the trunk") {
  require_totals(model(R"({"model_type":"minimax_m2","num_hidden_layers":4,"num_attention_heads":48,
    "num_key_value_heads":8,"head_dim":128,"attn_type_list":[1,1,1,1],"use_mtp":true,"num_mtp_modules":3,
    "mtp_transformer_layers":1})"),
                 4 * kv(8, 128), 3 * kv(8, 128), 0, 0);
  require_totals(model(R"({"model_type":"glm4_moe","hidden_size":5120,"num_hidden_layers":92,
    "num_attention_heads":96,"num_key_value_heads":8,"head_dim":128,"num_nextn_predict_layers":1})"),
                 92 * kv(8, 128), kv(8, 128), 0, 0);
}

TEST_CASE("num_key_value_heads: absent is the family's default, null is one for every query head") {
  struct Case {
    const char* type;
    std::size_t kv_heads;
    std::size_t head_dim;  // of 64 heads and a hidden_size of 4096
  };
  constexpr std::array<Case, 12> cases = {{{"llama", 64, 64},
                                           {"mistral", 8, 64},
                                           {"mixtral", 8, 64},
                                           {"ministral3", 8, 128},
                                           {"qwen2", 32, 64},
                                           {"qwen3", 32, 128},
                                           {"qwen3_moe", 4, 64},
                                           {"qwen3_vl_moe", 16, 64},
                                           {"gpt_oss", 8, 64},
                                           {"glm4", 2, 128},
                                           {"glm4_moe", 8, 64},
                                           {"minimax_m2", 8, 128}}};
  for (const Case& c : cases) {
    const std::string head = R"({"hidden_size":4096,"num_hidden_layers":2,"num_attention_heads":64,
      "sliding_window":null,"model_type":")" +
                             std::string(c.type) + "\"";
    INFO(c.type);
    require_totals(model(head + "}"), 2 * kv(c.kv_heads, c.head_dim), 0, 0, 0);
    require_totals(model(head + R"(,"num_key_value_heads":null})"), 2 * kv(64, c.head_dim), 0, 0, 0);
  }
}

TEST_CASE("Pixtral-12B: a nested file leaves out what equals the family's default") {
  require_totals(model(R"({"model_type":"llava","text_config":{"model_type":"mistral","hidden_size":5120,"head_dim":128,
    "num_hidden_layers":40,"num_key_value_heads":8,"sliding_window":null,"max_position_embeddings":1024000}})"),
                 40 * kv(8, 128), 0, 0, 0);
}

TEST_CASE("Ministral-8B: a list says which layers have the window") {
  require_rings(model(R"({"model_type":"ministral","hidden_size":4096,"num_hidden_layers":4,"num_attention_heads":32,
    "num_key_value_heads":8,"head_dim":128,"sliding_window":32768,"layer_types":["full_attention","sliding_attention",
    "sliding_attention","sliding_attention"]})"),
                kv(8, 128), 3 * kv(8, 128), 32768);
}

TEST_CASE("Gemma-4-12B: the unified model's window is 1024 where the file is silent") {
  require_rings(model(R"({"model_type":"gemma4_unified","text_config":{"model_type":"gemma4_unified_text",
    "num_hidden_layers":12,"num_attention_heads":16,"num_key_value_heads":8}})"),
                2 * kv(8, 512), 10 * kv(8, 256), 1024);
}

TEST_CASE("two lengths of context: the first is what the model was made for, neither is a size of its state") {
  const std::string head = R"({"model_type":"llama","hidden_size":256,"num_hidden_layers":2,"num_attention_heads":4,
    "model_max_length":1048576)";
  REQUIRE(model(head + "}").max_positions == 1048576);
  REQUIRE(model(head + R"(,"max_position_embeddings":8192})").max_positions == 8192);
}
}  // namespace hf_attention_cpp
