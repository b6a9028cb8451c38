// GGUF metadata: bytes of real models, scalars and arrays of one key, and hostile files.
#include <algorithm>
#include <array>
#include <config/gguf_writer.hpp>
#include <config/support.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memra/config/gguf.hpp>
#include <random>
#include <string>
#include <support/catch.hpp>
#include <tuple>
#include <vector>

namespace gguf_cpp {
using namespace loaded;

namespace {

using gguf::Writer;
using Numbers = std::vector<std::int64_t>;

memra::config::Model read(const Writer& w, const memra::config::Storage& s = {}) {
  return memra::check(memra::config::parse_gguf(gguf::bytes_of(w.file()), s));
}

std::string refused(const std::string& file) {
  const auto r = memra::config::parse_gguf(gguf::bytes_of(file));
  return r ? "" : r.status().text();
}

void says(const std::string& sentence, const std::string& expected) {
  INFO("said: " << sentence);
  REQUIRE(sentence == expected);
}

Writer begin(const std::string& arch, std::uint32_t layers, std::uint32_t heads) {
  Writer w;
  w.string("general.architecture", arch).u(arch + ".block_count", layers).u(arch + ".attention.head_count", heads);
  return w;
}

constexpr std::size_t state(std::size_t channels, std::size_t ssm, std::size_t taps = 4) {
  return 4 * (channels * (taps - 1) + ssm);
}

}  // namespace

TEST_CASE("plain attention: key_length wins over embedding_length / head_count") {
  Writer w = begin("llama", 32, 32);
  w.u("llama.attention.head_count_kv", 8).u("llama.embedding_length", 4096).u("llama.context_length", 131072);
  w.strings("tokenizer.ggml.tokens", 77);
  const auto m = read(w);
  require_totals(m, 32 * kv(8, 4096 / 32), 0, 0, 0);
  REQUIRE(m.max_positions == 131072);
  REQUIRE(m.state.n_vocab == 77);
  Writer q = begin("qwen3", 64, 64);
  q.u("qwen3.attention.head_count_kv", 8).u("qwen3.embedding_length", 5120);
  q.u("qwen3.attention.key_length", 128).u("qwen3.attention.value_length", 128);
  require_totals(read(q), 64 * kv(8, 128), 0, 0, 0);
  Writer wide = begin("mimo2", 2, 64);  // K wider than V; windows as an array says
  wide.list("mimo2.attention.head_count_kv", gguf::i32, 4, {4, 8}).u("mimo2.attention.sliding_window", 128);
  wide.u("mimo2.attention.key_length", 192).u("mimo2.attention.value_length", 128);
  wide.list("mimo2.attention.sliding_window_pattern", gguf::boolean, 1, {0, 1});
  require_rings(read(wide), kv(4, 192, 128), kv(8, 192, 128), 128);
}

TEST_CASE("B93 LFM2: zeros of head_count_kv are convolutions") {
  const Numbers kv_heads = {0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0};
  for (const std::uint32_t type : {gguf::i32, gguf::u32}) {
    Writer w = begin("lfm2", 16, 32);
    w.list("lfm2.attention.head_count_kv", type, 4, kv_heads).u("lfm2.embedding_length", 2048);
    w.u("lfm2.shortconv.l_cache", 3);
    const auto m = read(w, f16());
    REQUIRE(kv_bytes(plan(m, 32768)) == 402653184);
    require_totals(m, 6 * 2 * 8 * 64 * 2, 0, 0, 10 * 4 * 2048 * (3 - 1));
  }
}

TEST_CASE("B91 Qwen3.5: block_count includes MTP; recurrent_layers wins, with and without it") {
  const auto model = [](int with_list, std::uint32_t nextn) {
    Writer w = begin("qwen35", 12 + nextn, 24);
    w.u("qwen35.attention.head_count_kv", 4).u("qwen35.attention.key_length", 256);
    w.u("qwen35.attention.value_length", 256).u("qwen35.nextn_predict_layers", nextn);
    w.u("qwen35.ssm.conv_kernel", 4).u("qwen35.ssm.state_size", 128).u("qwen35.ssm.group_count", 16);
    w.u("qwen35.ssm.time_step_rank", 48).u("qwen35.ssm.inner_size", 48 * 128).u("qwen35.full_attention_interval", 4);
    Numbers list = {1, 1, 1, 0, 1, 1, 0, 1, 1, 1, 1, 0};
    if (with_list == 2) list.push_back(0);
    if (with_list != 0) w.list("qwen35.attention.recurrent_layers", gguf::boolean, 1, list);
    return read(w);
  };
  const std::size_t linear = state(2 * 16 * 128 + 48 * 128, 48 * 128 * 128);
  require_totals(model(0, 1), 3 * kv(4, 256), kv(4, 256), 0, 9 * linear);
  require_totals(model(0, 0), 3 * kv(4, 256), 0, 0, 9 * linear);
  for (const int with_list : {1, 2}) {
    const auto m = model(with_list, 1);
    require_totals(m, 3 * kv(4, 256), kv(4, 256), 0, 9 * linear);
    REQUIRE(m.state.n_mtp == 1);
    for (const std::size_t full : std::array<std::size_t, 4>{3, 6, 11, 12}) {
      REQUIRE(std::holds_alternative<memra::AttentionSpec>(m.state.layers[full].states[0]));
    }
    REQUIRE(std::holds_alternative<memra::RecurrentSpec>(m.state.layers[7].states[0]));
  }
  // Value heads of these files are interleaved.
  REQUIRE(std::get<memra::RecurrentSpec>(model(0, 0).state.layers[0].states[0]).map.mode ==
          memra::KeyHeadMode::interleaved);
}

TEST_CASE("windows: a period, an array, heads of their own, layers that borrow") {
  Writer g3 = begin("gemma3", 48, 16);
  g3.u("gemma3.attention.head_count_kv", 8).u("gemma3.attention.key_length", 256);
  g3.u("gemma3.attention.value_length", 256).u("gemma3.attention.sliding_window", 1024);
  require_rings(read(g3), 8 * kv(8, 256), 40 * kv(8, 256), 1024);
  Writer oss = begin("gpt-oss", 24, 64);
  oss.u("gpt-oss.attention.head_count_kv", 8).u("gpt-oss.attention.key_length", 64);
  oss.u("gpt-oss.attention.value_length", 64).u("gpt-oss.attention.sliding_window", 128);
  require_rings(read(oss), 12 * kv(8, 64), 12 * kv(8, 64), 128);
  Writer g4 = begin("gemma4", 12, 16);
  Numbers sliding(12, 1);
  Numbers heads(12, 8);
  sliding[5] = sliding[11] = 0;
  heads[5] = heads[11] = 2;
  g4.list("gemma4.attention.sliding_window_pattern", gguf::boolean, 1, sliding);
  g4.list("gemma4.attention.head_count_kv", gguf::i32, 4, heads).u("gemma4.attention.sliding_window", 512);
  g4.u("gemma4.attention.key_length", 512).u("gemma4.attention.value_length", 512);
  g4.u("gemma4.attention.key_length_swa", 256).u("gemma4.attention.value_length_swa", 256);
  g4.u("gemma4.attention.shared_kv_layers", 4);
  const auto m = read(g4);
  require_rings(m, kv(2, 512), 7 * kv(8, 256), 512);
  REQUIRE(std::get<memra::SharedKvSpec>(m.state.layers[8].states[0]).donor == 7);
  REQUIRE(std::get<memra::SharedKvSpec>(m.state.layers[11].states[0]).donor == 5);
  Writer l4 = begin("llama4", 48, 40);
  l4.u("llama4.attention.head_count_kv", 8).u("llama4.attention.key_length", 128);
  l4.u("llama4.attention.value_length", 128);
  require_rings(read(l4), 12 * kv(8, 128), 36 * kv(8, 128), 8192);
}

TEST_CASE("latent attention: DeepSeek, GLM-5 with its indexer, Kimi's zeros") {
  Writer ds = begin("deepseek2", 61, 128);
  ds.u("deepseek2.attention.head_count_kv", 1).u("deepseek2.attention.kv_lora_rank", 512);
  ds.u("deepseek2.rope.dimension_count", 64).u("deepseek2.attention.key_length", 576);
  ds.u("deepseek2.attention.value_length", 512);
  require_totals(read(ds), 61 * q8(576), 0, 0, 0);
  Writer glm = begin("glm-dsa", 79, 64);
  glm.u("glm-dsa.attention.head_count_kv", 1).u("glm-dsa.attention.kv_lora_rank", 512);
  glm.u("glm-dsa.rope.dimension_count", 64).u("glm-dsa.nextn_predict_layers", 1);
  glm.u("glm-dsa.attention.indexer.key_length", 128).u("glm-dsa.context_length", 202752);
  require_totals(read(glm), 78 * (q8(576) + q8(128)), q8(576) + q8(128), 0, 0);
  const auto shared = [](const Numbers& own) {  // layers that take the choice of one before them keep no keys
    Writer w = begin("glm-dsa", 5, 64);
    w.u("glm-dsa.attention.head_count_kv", 1).u("glm-dsa.attention.kv_lora_rank", 512);
    w.u("glm-dsa.rope.dimension_count", 64).u("glm-dsa.nextn_predict_layers", 1);
    w.u("glm-dsa.attention.indexer.key_length", 128).u("glm-dsa.context_length", 1048576);
    return w.list("glm-dsa.attention.indexer.types", gguf::boolean, 1, own);
  };
  require_totals(read(shared({1, 0, 0, 1})), 4 * q8(576) + 2 * q8(128), q8(576) + q8(128), 0, 0);
  says(refused(shared({0, 1, 1, 1}).file()),
       "key glm-dsa.attention.indexer.types holds 0 for layer 0; expected 1: there is none before it");
  for (const std::string a : {"kimi-linear", "kimi-k3"}) {
    Writer kimi = begin(a, 27, 32);
    Numbers heads(27, 0);
    for (const std::size_t full : std::array<std::size_t, 7>{3, 7, 11, 15, 19, 23, 26}) heads[full] = 32;
    kimi.list(a + ".attention.head_count_kv", gguf::i32, 4, heads).u(a + ".attention.kv_lora_rank", 512);
    kimi.u(a + ".rope.dimension_count", 64).u(a + ".kda.head_dim", 128).u(a + ".ssm.conv_kernel", 4);
    require_totals(read(kimi), 7 * q8(576), 0, 0, 20 * state(3 * 32 * 128, 32 * 128 * 128));
  }
}

TEST_CASE("Mamba: Jamba, Granite-4-H, Nemotron-H with its MLPs, Falcon-H1 beside attention; Deci's empty blocks") {
  const auto ssm = [](Writer& w, const std::string& a, std::uint32_t inner, std::uint32_t heads, std::uint32_t groups,
                      std::uint32_t d_state) {
    w.u(a + ".ssm.conv_kernel", 4).u(a + ".ssm.inner_size", inner).u(a + ".ssm.state_size", d_state);
    w.u(a + ".ssm.time_step_rank", heads).u(a + ".ssm.group_count", groups);
  };
  Writer jamba = begin("jamba", 8, 32);
  jamba.list("jamba.attention.head_count_kv", gguf::i32, 4, {0, 0, 0, 0, 8, 0, 0, 0}).u("jamba.embedding_length", 4096);
  ssm(jamba, "jamba", 8192, 256, 0, 16);
  require_totals(read(jamba), kv(8, 128), 0, 0, 7 * state(8192, 8192 * 16));
  Writer granite = begin("granitehybrid", 4, 32);
  granite.list("granitehybrid.attention.head_count_kv", gguf::i32, 4, {0, 8, 0, 0});
  granite.u("granitehybrid.embedding_length", 4096);
  ssm(granite, "granitehybrid", 8192, 128, 1, 128);
  require_totals(read(granite), kv(8, 128), 0, 0, 3 * state(8192 + 2 * 128, 8192 * 128));
  // Granite-4-Micro, which has attention in every layer, is written by the same hand.
  for (const char* arch : {"granite", "granitemoe", "granitehybrid"}) {
    const std::string a = arch;
    Writer dense = begin(a, 3, 40);
    dense.list(a + ".attention.head_count_kv", gguf::i32, 4, {8, 8, 8}).u(a + ".embedding_length", 2560);
    ssm(dense, a, 5120, 128, 1, 256);
    require_totals(read(dense), 3 * kv(8, 64), 0, 0, 0);
  }
  Writer nemotron = begin("nemotron_h_moe", 5, 32);
  nemotron.list("nemotron_h_moe.attention.head_count_kv", gguf::i32, 4, {0, 0, 0, 2, 0});
  nemotron.list("nemotron_h_moe.feed_forward_length", gguf::i32, 4, {0, 1856, 0, 0, 1856});
  nemotron.u("nemotron_h_moe.attention.key_length", 128).u("nemotron_h_moe.attention.value_length", 128);
  ssm(nemotron, "nemotron_h_moe", 64 * 64, 64, 8, 128);
  const auto nano = read(nemotron);
  require_totals(nano, kv(2, 128), 0, 0, 2 * state(64 * 64 + 2 * 8 * 128, 64 * 64 * 128));
  REQUIRE(nano.state.layers[1].states.empty());
  Writer falcon = begin("falcon-h1", 3, 20);
  falcon.u("falcon-h1.attention.head_count_kv", 4).u("falcon-h1.attention.key_length", 128);
  falcon.u("falcon-h1.attention.value_length", 128);
  ssm(falcon, "falcon-h1", 4096, 32, 2, 256);
  require_totals(read(falcon), 3 * kv(4, 128), 0, 0, 3 * state(4096 + 2 * 2 * 256, 4096 * 256));
  Writer deci = begin("deci", 3, 64);
  deci.list("deci.attention.head_count_kv", gguf::u32, 4, {8, 0, 4}).u("deci.embedding_length", 8192);
  require_totals(read(deci), kv(8, 128) + kv(4, 128), 0, 0, 0);
}

TEST_CASE("numbers of every type, of version 2, and those that are none") {
  const std::size_t bytes[] = {1, 1, 2, 2, 4, 4, 8, 8};
  const std::uint32_t types[] = {gguf::u8, gguf::i8, gguf::u16, gguf::i16, gguf::u32, gguf::i32, gguf::u64, gguf::i64};
  const auto with = [](std::uint32_t type, std::uint64_t value, std::size_t n, std::uint32_t version = 3) {
    Writer w(version);
    w.string("general.architecture", "llama").u("llama.attention.head_count", 4).u("llama.embedding_length", 256);
    return w.number("llama.block_count", type, value, n);
  };
  for (std::size_t i = 0; i < 8; ++i) {
    REQUIRE(read(with(types[i], 5, bytes[i])).state.layers.size() == 5);
    REQUIRE(read(with(types[i], 5, bytes[i], 2)).state.layers.size() == 5);
  }
  const std::string expected = "; expected a whole number from 1 to 4096";
  says(refused(with(gguf::i8, 0xff, 1).file()), "key llama.block_count is -1" + expected);
  says(refused(with(gguf::i64, static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::min()), 8).file()),
       "key llama.block_count is -9223372036854775808" + expected);
  says(refused(with(gguf::u64, 0xffffffffffffffffU, 8).file()),
       "key llama.block_count is 9223372036854775807" + expected);
  says(refused(with(gguf::u32, 0, 4).file()), "key llama.block_count is 0" + expected);
  says(refused(with(gguf::f32, 0x40a00000, 4).file()), "key llama.block_count is a f32" + expected);
  says(refused(with(gguf::boolean, 1, 1).file()), "key llama.block_count is true" + expected);
  says(refused(Writer().string("general.architecture", "llama").string("llama.block_count", "5").file()),
       "key llama.block_count is '5'" + expected);
  says(refused(Writer().string("general.architecture", "llama").file()),
       "key llama.block_count is missing; expected a whole number");
  says(refused(begin("bert", 1, 1).file()),
       "key general.architecture is 'bert'; expected one of the 40 in gguf_families, from llama to lfm2moe");
  says(refused(Writer().u("general.architecture", 3).file()),
       "key general.architecture is missing or no string; expected the name of a family");
}

TEST_CASE("a layer without heads, in families whose every layer attends") {
  const auto model = [](const char* family, const Numbers& kv) {
    const std::string name = family;
    Writer w = begin(family, 2, 8);
    w.u(name + ".embedding_length", 512).list(name + ".attention.head_count_kv", gguf::u32, 4, kv);
    w.u(name + ".attention.kv_lora_rank", 512).u(name + ".rope.dimension_count", 64);
    return refused(w.file());
  };
  REQUIRE(model("deci", {8, 0}).find("head_count_kv") == std::string::npos);
  REQUIRE(model("deepseek2", {1, 1}).empty());
  for (const char* const family : {"llama", "qwen3", "deepseek2"}) {
    says(model(family, {8, 0}),
         "key " + std::string(family) + ".attention.head_count_kv is 0 for layer 1; expected attention in every layer");
  }
  Writer none = begin("llama", 2, 0);
  says(refused(none.u("llama.embedding_length", 512).file()),
       "key llama.attention.head_count is 0 for layer 0; expected attention in every layer");
  // Without query heads there is neither attention nor KDA, whatever head_count_kv says.
  const auto heads = [](const char* family, const Numbers& query, const Numbers& kv) {
    const std::string name = family;
    Writer w;
    w.string("general.architecture", name).u(name + ".block_count", 2);
    w.list(name + ".attention.head_count", gguf::u32, 4, query);
    w.list(name + ".attention.head_count_kv", gguf::u32, 4, kv);
    for (const char* const key : {"attention.key_length", "attention.value_length", "attention.kv_lora_rank",
                                  "rope.dimension_count", "kda.head_dim"}) {
      w.u(name + "." + key, 64);
    }
    return refused(w.u(name + ".ssm.conv_kernel", 4).file());
  };
  REQUIRE(heads("kimi-linear", {4, 4}, {0, 1}).empty());
  for (const auto& [family, query, kv] : {std::tuple<const char*, Numbers, Numbers>{"kimi-linear", {0, 4}, {0, 1}},
                                          {"kimi-linear", {4, 0}, {0, 1}},
                                          {"deci", {4, 0}, {2, 2}},
                                          {"qwen3", {0, 4}, {2, 2}},
                                          {"deepseek2", {4, 0}, {1, 1}}}) {
    says(heads(family, query, kv), "key " + std::string(family) + ".attention.head_count is 0 for layer " +
                                       (query[0] == 0 ? "0" : "1") + ", whose state has heads; expected at least 1");
  }
  const auto causal = [](std::uint64_t value) {
    Writer w = begin("llama", 2, 8);
    return refused(w.u("llama.embedding_length", 512).number("llama.attention.causal", gguf::boolean, value, 1).file());
  };
  REQUIRE(causal(1).empty());
  says(causal(0), "key llama.attention.causal is false; expected a causal model");
}

TEST_CASE("an array is a number only if it has one for every layer") {
  const auto model = [](std::size_t taps, const char* key, const Numbers& numbers) {
    Writer w = begin("lfm2", 4, 32);
    w.u("lfm2.embedding_length", 2048).list("lfm2.attention.head_count_kv", gguf::u32, 4, {0, 8, 0, 8});
    if (taps != 0) w.list("lfm2.shortconv.l_cache", gguf::u32, 4, Numbers(taps, 3));
    if (key != nullptr) w.list(key, gguf::u32, 4, numbers);
    return refused(w.file());
  };
  REQUIRE(model(4, nullptr, {}).empty());
  says(model(3, nullptr, {}), "key lfm2.shortconv.l_cache is an array of 3 u32; expected a whole number from 1 to " +
                                  std::to_string(memra::config::most_taps));
  says(model(4, "lfm2.context_length", {8, 8, 8}),
       "key lfm2.context_length is an array of 3 u32; expected a whole number from 0 to 2147483648");
  // How many layers there are is said once.
  Writer layers;
  layers.string("general.architecture", "llama").list("llama.block_count", gguf::u32, 4, {2, 2});
  says(refused(layers.file()), "key llama.block_count is an array of 2 u32; expected a whole number from 1 to 4096");
  says(model(4, "lfm2.nextn_predict_layers", {1, 1, 1, 1}),
       "key lfm2.nextn_predict_layers is an array of 4 u32; expected a whole number from 0 to 4096");
}

TEST_CASE("keys that contradict each other or are not understood") {
  const auto lfm = [](const Numbers& heads) {
    Writer w = begin("lfm2", 4, 32);
    w.u("lfm2.embedding_length", 2048).u("lfm2.shortconv.l_cache", 3);
    return w.list("lfm2.attention.head_count_kv", gguf::i32, 4, heads).file();
  };
  REQUIRE(refused(lfm({0, 8, 0, 8})).empty());
  says(refused(lfm({0, 8, 0})),
       "key lfm2.attention.head_count_kv is an array of 3 i32; expected whole numbers for 4 layers");
  says(refused(lfm({0, 8, -1, 8})),
       "key lfm2.attention.head_count_kv holds -1 for layer 2; expected a whole number from 0 to 65536");
  says(refused(lfm({0, 8, 0, 7})),
       "key lfm2.attention.head_count is 32 for layer 3; expected a multiple of head_count_kv = 7");
  Writer llama = begin("llama", 2, 4);
  llama.u("llama.embedding_length", 256).u("llama.attention.sliding_window", 4096);
  says(refused(llama.file()),
       "key llama.attention.sliding_window is set, which files of 'llama' are not known to use; expected it to be "
       "absent");
  Writer mtp = begin("glm4moe", 2, 4);
  mtp.u("glm4moe.nextn_predict_layers", 2).u("glm4moe.embedding_length", 256);
  says(refused(mtp.file()), "key glm4moe.nextn_predict_layers is 2; expected fewer than block_count = 2");
  for (const bool says_kv : {false, true}) {  // the list that differs is the one that is named
    Writer past;
    past.string("general.architecture", "glm4moe").u("glm4moe.block_count", 3).u("glm4moe.nextn_predict_layers", 1);
    past.list("glm4moe.attention.head_count", gguf::u32, 4, {4, 8});
    if (says_kv) past.u("glm4moe.attention.head_count_kv", 2);
    says(refused(past.file()),
         "key glm4moe.attention.head_count differs among layers and says nothing about the 1 past the trunk; expected "
         "block_count values");
  }
  Writer both = begin("qwen35", 2, 4);
  both.list("qwen35.attention.head_count_kv", gguf::i32, 4, {0, 2});
  both.list("qwen35.attention.recurrent_layers", gguf::boolean, 1, {0, 1});
  says(refused(both.file()),
       "key qwen35.attention.recurrent_layers and the zeros of attention.head_count_kv name different layers; expected "
       "them to agree");
}

TEST_CASE("hostile files: lengths beyond the end, types that are none, keys that come twice") {
  says(refused(""), "the file does not begin with GGUF");
  says(refused("GGUX"), "the file does not begin with GGUF");
  says(refused("GGUF"), "the file ends behind its first word");
  says(refused(Writer(1).file()), "the file has version 1; expected 2 or 3");
  says(refused(Writer(0x03000000).file()), "the file is big-endian; expected little-endian");
  says(refused(begin("llama", 1, 1).file(std::int64_t{1} << 62)),
       "the file says it has 4611686018427387904 keys; it ends before that many could be there");
  says(refused(begin("llama", 1, 1).u("llama.block_count", 2).file()), "the key 'llama.block_count' appears twice");
  const auto tail = [](std::initializer_list<int> bytes) { return begin("llama", 1, 1).raw(bytes).file(); };
  says(refused(tail({1, 0, 0, 0, 0, 0, 0, 0, 'k', 13, 0, 0, 0, 0, 0, 0, 0})),
       "the key 'k' has a value of type 13; expected 0 to 12");
  says(refused(tail({1, 0, 0, 0, 0, 0, 0, 0, 'k', 7, 0, 0, 0, 2})),
       "the key 'k' holds the byte 2 as a boolean; expected 0 or 1");
  says(refused(tail({0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 'k', 4, 0, 0, 0})),
       "the file ends inside key 3 of 4");
  says(refused(tail({1, 0, 0, 0, 0, 0, 0, 0, 'k', 8, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 'x'})),
       "the file ends inside the value of 'k'");
  // Arrays: of arrays, of 2^61 numbers, of strings that are not there.
  says(refused(tail({1, 0, 0, 0, 0, 0, 0, 0, 'k', 9, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0})),
       "the array 'k' has elements of type 9; expected 0 to 12 and no arrays in arrays");
  says(refused(tail({1, 0, 0, 0, 0, 0, 0, 0, 'k', 9, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20})),
       "the array 'k' says it has 2305843009213693952 elements; the file ends before");
  says(refused(
           tail({1, 0, 0, 0, 0, 0, 0, 0, 'k', 9, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0})),
       "the file ends inside the array 'k'");
}

TEST_CASE("every front of a file, and every byte of it changed, is read or refused in one sentence") {
  Writer w = begin("qwen35", 4, 4);
  w.list("qwen35.attention.head_count_kv", gguf::i32, 4, {0, 2, 0, 2}).u("qwen35.attention.key_length", 64);
  w.u("qwen35.attention.value_length", 64).u("qwen35.ssm.conv_kernel", 4).u("qwen35.ssm.state_size", 64);
  w.u("qwen35.ssm.group_count", 2).u("qwen35.ssm.time_step_rank", 4).u("qwen35.ssm.inner_size", 256);
  w.strings("tokenizer.ggml.tokens", 5).number("some.float", gguf::f64, 0x3ff0000000000000U, 8);
  const std::string file = w.file();
  REQUIRE(refused(file).empty());
  for (std::size_t n = 0; n < file.size(); ++n) {
    const std::string sentence = refused(file.substr(0, n));
    REQUIRE_FALSE(sentence.empty());  // the number of keys is in front: a shorter file is never whole
  }
  std::mt19937 random(7);
  std::size_t accepted = 0;
  for (std::size_t at = 0; at < file.size(); ++at) {
    for (int i = 0; i < 8; ++i) {
      std::string broken = file;
      broken[at] = static_cast<char>(random());
      const auto r = memra::config::parse_gguf(gguf::bytes_of(broken));
      accepted += r.ok() ? 1U : 0U;
      if (!r) {
        for (const char* c = r.status().text(); *c != '\0'; ++c) REQUIRE((*c >= 0x20 && *c < 0x7f));
      } else {
        // What is accepted can be planned or is refused by the plan.
        const auto p = memra::plan(r->state, 1000);
        REQUIRE((p.ok() || p.status().text()[0] != '\0'));
      }
    }
  }
  REQUIRE(accepted > 0);  // letters of tokens do not matter
}
}  // namespace gguf_cpp
