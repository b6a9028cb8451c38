// GGUF files that leave something out: what their families' first files meant.
#include <config/gguf_writer.hpp>
#include <config/support.hpp>
#include <cstddef>
#include <cstdint>
#include <memra/config/gguf.hpp>
#include <string>
#include <support/catch.hpp>
#include <variant>
#include <vector>

namespace gguf_silent_cpp {
using namespace loaded;

namespace {

using gguf::Writer;

memra::config::Model read(const Writer& w) {
  return memra::check(memra::config::parse_gguf(gguf::bytes_of(w.file())));
}

Writer begin(const std::string& arch, std::uint32_t layers, std::uint32_t heads, std::uint32_t kv_heads,
             std::uint32_t dim) {
  Writer w;
  w.string("general.architecture", arch).u(arch + ".block_count", layers).u(arch + ".attention.head_count", heads);
  w.u(arch + ".attention.head_count_kv", kv_heads).u(arch + ".attention.key_length", dim);
  w.u(arch + ".attention.value_length", dim);
  return w;
}

}  // namespace

TEST_CASE("Gemma 2 without a window has one of 4096, Gemma 3 has none") {
  require_rings(read(begin("gemma2", 42, 16, 8, 256)), 21 * kv(8, 256), 21 * kv(8, 256), 4096);
  require_totals(read(begin("gemma3", 26, 4, 1, 256)), 26 * kv(1, 256), 0, 0, 0);
  Writer off = begin("gemma3", 26, 4, 1, 256);
  off.u("gemma3.attention.sliding_window", 0);
  require_totals(read(off), 26 * kv(1, 256), 0, 0, 0);
  const auto oss = memra::config::parse_gguf(gguf::bytes_of(begin("gpt-oss", 24, 64, 8, 64).file()));
  REQUIRE(std::string(oss.status().text()) ==
          "key gpt-oss.attention.sliding_window is missing; expected a whole number");
}

TEST_CASE("Gemma 3n: layers behind the twentieth borrow, whatever the file says of its pattern") {
  const auto file = [](bool with_count, int pattern) {
    Writer w = begin("gemma3n", 30, 8, 2, 256);
    w.u("gemma3n.attention.sliding_window", 512);
    if (with_count) w.u("gemma3n.attention.shared_kv_layers", 10);
    if (pattern == 1) w.u("gemma3n.attention.sliding_window_pattern", 5);
    std::vector<std::int64_t> flags;
    for (int il = 0; il < 30; ++il) flags.push_back(il % 5 == 4 ? 0 : 1);
    if (pattern == 2) w.list("gemma3n.attention.sliding_window_pattern", gguf::boolean, 1, flags);
    return read(w);
  };
  for (const bool with_count : {true, false}) {
    for (int pattern = 0; pattern < 3; ++pattern) {
      const auto m = file(with_count, pattern);
      require_rings(m, 4 * kv(2, 256), 16 * kv(2, 256), 512);
      REQUIRE(std::get<memra::SharedKvSpec>(m.state.layers[20].states[0]).donor == 18);
      REQUIRE(std::get<memra::SharedKvSpec>(m.state.layers[29].states[0]).donor == 19);
    }
  }
}

TEST_CASE("GLM-5.2's first files: two indexers, then one in four layers; before it every layer had one") {
  const auto file = [](std::uint32_t context) {
    Writer w = begin("glm-dsa", 79, 64, 1, 576);
    w.u("glm-dsa.attention.kv_lora_rank", 512).u("glm-dsa.rope.dimension_count", 64);
    w.u("glm-dsa.attention.key_length_mla", 256).u("glm-dsa.attention.value_length_mla", 256);
    w.u("glm-dsa.nextn_predict_layers", 1).u("glm-dsa.context_length", context);
    return read(w.u("glm-dsa.attention.indexer.key_length", 128));
  };
  require_totals(file(1048576), 78 * q8(576) + (2 + 19) * q8(128), q8(576) + q8(128), 0, 0);
  require_totals(file(202752), 78 * (q8(576) + q8(128)), q8(576) + q8(128), 0, 0);
}

TEST_CASE("MiniMax-M3: layers with experts keep an indexer's keys, in files that have its weights") {
  Writer w = begin("minimax-m3", 60, 64, 4, 128);
  w.u("minimax-m3.leading_dense_block_count", 3);
  require_totals(read(w), 60 * kv(4, 128), 0, 0, 0);
  w.u("minimax-m3.attention.indexer.key_length", 128).u("minimax-m3.attention.indexer.head_count", 4);
  require_totals(read(w), 60 * kv(4, 128) + 57 * q8(128), 0, 0, 0);
}

TEST_CASE("Nemotron 3: of the two blocks past the trunk one attends and one holds experts") {
  Writer w;
  const std::string a = "nemotron_h_moe";
  w.string("general.architecture", a).u(a + ".block_count", 5).u(a + ".nextn_predict_layers", 2);
  w.u(a + ".attention.head_count", 32).u(a + ".attention.key_length", 128).u(a + ".attention.value_length", 128);
  w.list(a + ".attention.head_count_kv", gguf::i32, 4, {0, 2, 0, 2, 0});
  w.list(a + ".feed_forward_length", gguf::i32, 4, {0, 0, 1856, 0, 1856});
  w.u(a + ".ssm.conv_kernel", 4).u(a + ".ssm.inner_size", 4096).u(a + ".ssm.state_size", 128);
  w.u(a + ".ssm.time_step_rank", 64).u(a + ".ssm.group_count", 8);
  const auto m = read(w);
  require_totals(m, kv(2, 128), kv(2, 128), 0, 4 * ((4096 + 2 * 8 * 128) * 3 + 4096 * 128));
  REQUIRE(m.state.n_mtp == 2);
  REQUIRE(m.state.layers[4].states.empty());
}

}  // namespace gguf_silent_cpp
