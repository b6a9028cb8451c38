// parse_hf_config: the config.json that Hugging Face models carry, read as a list of layers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memra/config/fields.hpp>
#include <memra/config/hf_attention.hpp>
#include <memra/config/hf_deepseek_v4.hpp>
#include <memra/config/hf_gemma.hpp>
#include <memra/config/hf_latent.hpp>
#include <memra/config/hf_minimax.hpp>
#include <memra/config/hf_recurrent.hpp>
#include <memra/config/hf_state_fields.hpp>
#include <memra/config/json.hpp>
#include <memra/config/model.hpp>
#include <memra/error.hpp>
#include <memra/model_config.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace memra::config {

/// The readers, each for one way of describing layers.
enum class HfReader : std::uint8_t {
  llama,
  mistral,
  mixtral,
  ministral3,
  glm4,
  glm4v,
  glm4_moe,
  qwen,
  qwen3,
  qwen_moe,
  qwen_vl_moe,
  gemma2,
  gemma3,
  gemma3n,
  gemma4,
  gemma4_unified,
  gpt_oss,
  llama4,
  minimax_m2,
  minimax_m3,
  latent,
  sparse_latent,
  deepseek_v4,
  mimo_v2,
  nas,
  qwen_hybrid,
  qwen_hybrid_moe,
  kimi_linear,
  jamba,
  granite_hybrid,
  bamba,
  falcon_h1,
  nemotron_h,
  lfm2,
  minimax,
};

struct HfFamily {
  std::string_view type;
  HfReader reader;
};

/// model_type, without a closing "_text", and how it is read.
inline constexpr std::array<HfFamily, 61> hf_families = {{
    {"llama", HfReader::llama},
    {"mistral", HfReader::mistral},
    {"ministral", HfReader::mistral},
    {"ministral3", HfReader::ministral3},
    {"mixtral", HfReader::mixtral},
    {"qwen2", HfReader::qwen},
    {"qwen3", HfReader::qwen3},
    {"qwen3_moe", HfReader::qwen_moe},
    {"qwen3_vl", HfReader::qwen3},
    {"qwen3_vl_moe", HfReader::qwen_vl_moe},
    {"qwen3_next", HfReader::qwen_hybrid_moe},
    {"qwen3_5", HfReader::qwen_hybrid},
    {"qwen3_5_moe", HfReader::qwen_hybrid_moe},
    {"qwen3_6", HfReader::qwen_hybrid},
    {"qwen3_6_moe", HfReader::qwen_hybrid_moe},
    {"gemma2", HfReader::gemma2},
    {"gemma3", HfReader::gemma3},
    {"gemma3n", HfReader::gemma3n},
    {"gemma4", HfReader::gemma4},
    {"gemma4_unified", HfReader::gemma4_unified},
    {"gpt_oss", HfReader::gpt_oss},
    {"llama4", HfReader::llama4},
    {"glm4", HfReader::glm4},
    {"glm4_moe", HfReader::glm4_moe},
    {"glm4v", HfReader::glm4v},
    {"glm4v_moe", HfReader::glm4_moe},
    {"granite", HfReader::llama},
    {"granitemoe", HfReader::llama},
    {"nemotron", HfReader::llama},
    {"mimo", HfReader::qwen},
    {"minimax_m2", HfReader::minimax_m2},
    {"minimax_m3", HfReader::minimax_m3},
    {"minimax_m3_vl", HfReader::minimax_m3},
    {"deepseek_v2", HfReader::latent},
    {"deepseek_v3", HfReader::latent},
    {"deepseek_v32", HfReader::sparse_latent},
    {"deepseek_v4", HfReader::deepseek_v4},
    {"kimi_k2", HfReader::latent},
    {"kimi_k25", HfReader::latent},
    {"glm4_moe_lite", HfReader::latent},
    {"glm_moe_dsa", HfReader::sparse_latent},
    {"mistral4", HfReader::latent},
    {"mimo_v2_flash", HfReader::mimo_v2},
    {"mimo_v2", HfReader::mimo_v2},
    {"nemotron-nas", HfReader::nas},
    {"nemotron_nas", HfReader::nas},
    {"deci", HfReader::nas},
    {"kimi_linear", HfReader::kimi_linear},
    {"kimi_k3", HfReader::kimi_linear},
    {"jamba", HfReader::jamba},
    {"granitemoehybrid", HfReader::granite_hybrid},
    {"bamba", HfReader::bamba},
    {"falcon_h1", HfReader::falcon_h1},
    {"nemotron_h", HfReader::nemotron_h},
    {"nemotron_h_moe", HfReader::nemotron_h},
    {"lfm2", HfReader::lfm2},
    {"lfm2_moe", HfReader::lfm2},
    {"lfm2_vl", HfReader::lfm2},
    {"minimax", HfReader::minimax},
    {"minimax_m1", HfReader::minimax},
    {"minimax_text_01", HfReader::minimax},
}};

namespace detail {

inline void read_hf_layers(HfReader reader, Fields& f, const Storage& s, ModelConfig& out) {
  switch (reader) {
    case HfReader::llama:
      return read_attention(f, s, {}, out);
    case HfReader::mistral:
      return read_attention(f, s, {.windows = Windows::all, .window = 4096, .n_heads = 32, .n_kv_heads = 8}, out);
    case HfReader::mixtral:
      return read_attention(f, s, {.windows = Windows::all, .n_kv_heads = 8}, out);
    case HfReader::ministral3:
      return read_attention(f, s, {.windows = Windows::all, .head_dim = 128, .n_kv_heads = 8}, out);
    case HfReader::glm4:
      return read_attention(f, s, {.head_dim = 128, .n_kv_heads = 2}, out);
    case HfReader::glm4v:
      return read_attention(f, s, {.n_kv_heads = 2}, out);
    case HfReader::glm4_moe:
      return read_attention(f, s, {.n_kv_heads = 8}, out);
    case HfReader::qwen:
      return read_attention(f, s, {.windows = Windows::from_layer, .window = 4096, .n_kv_heads = 32}, out);
    case HfReader::qwen3:
      return read_attention(f, s, {.windows = Windows::from_layer, .window = 4096, .head_dim = 128, .n_kv_heads = 32},
                            out);
    case HfReader::qwen_moe:
      return read_attention(f, s, {.windows = Windows::switched, .window = 4096, .n_kv_heads = 4}, out);
    case HfReader::qwen_vl_moe:
      return read_attention(f, s, {.windows = Windows::switched, .window = 4096, .n_kv_heads = 16}, out);
    case HfReader::gemma2:
      return read_attention(
          f, s,
          {.windows = Windows::pattern, .window = 4096, .interval = 2, .head_dim = 256, .n_heads = 8, .n_kv_heads = 4},
          out);
    case HfReader::gemma3:
      return read_attention(
          f, s,
          {.windows = Windows::pattern, .window = 4096, .interval = 6, .head_dim = 256, .n_heads = 8, .n_kv_heads = 4},
          out);
    case HfReader::gemma3n:
      return read_gemma(f, s, false, 512, out);
    case HfReader::gemma4:
      return read_gemma(f, s, true, 512, out);
    case HfReader::gemma4_unified:
      return read_gemma(f, s, true, 1024, out);
    case HfReader::gpt_oss:
      return read_attention(
          f, s,
          {.windows = Windows::pattern, .window = 128, .interval = 2, .head_dim = 64, .n_heads = 64, .n_kv_heads = 8},
          out);
    case HfReader::llama4:
      return read_llama4(f, s, out);
    case HfReader::minimax_m2:
      return read_minimax_m2(f, s, 8, out);
    case HfReader::minimax_m3:
      return read_minimax_m2(f, s, 4, out);
    case HfReader::latent:
      return read_latent(f, s, false, out);
    case HfReader::sparse_latent:
      return read_latent(f, s, true, out);
    case HfReader::deepseek_v4:
      return read_deepseek_v4(f, s, out);
    case HfReader::mimo_v2:
      return read_mimo_v2(f, s, out);
    case HfReader::nas:
      return read_nas(f, s, out);
    case HfReader::qwen_hybrid:
      return read_qwen_hybrid(f, s, 4, out);
    case HfReader::qwen_hybrid_moe:
      return read_qwen_hybrid(f, s, 2, out);
    case HfReader::kimi_linear:
      return read_kimi_linear(f, s, out);
    case HfReader::jamba:
      return read_jamba(f, s, out);
    case HfReader::granite_hybrid:
      return read_granite_hybrid(f, s, {}, out);
    case HfReader::bamba:
      return read_granite_hybrid(f, s, 8, out);
    case HfReader::falcon_h1:
      return read_falcon_h1(f, s, out);
    case HfReader::nemotron_h:
      return read_nemotron_h(f, s, out);
    case HfReader::lfm2:
      return read_lfm2(f, s, out);
    case HfReader::minimax:
      return read_minimax(f, s, out);
  }
}

inline std::optional<HfReader> hf_reader(std::string_view type) {
  constexpr std::string_view suffix = "_text";
  if (type.size() > suffix.size() && type.substr(type.size() - suffix.size()) == suffix) {
    type.remove_suffix(suffix.size());
  }
  for (const HfFamily& family : hf_families) {
    if (family.type == type) return family.reader;
  }
  return std::nullopt;
}

/// The description of the language model: the file itself, or an object inside one of several modalities. Of two
/// descriptions that differ neither is taken.
inline Result<Json> hf_text_config(Json root) {
  constexpr std::array<const char*, 3> names = {"text_config", "llm_config", "language_config"};
  const char* found = nullptr;
  for (const char* name : names) {
    if (!root.contains(name) || root[name].is_null()) continue;
    if (!root[name].is_object()) {
      return refuse("config.json",
                    std::string("field ") + name + " is " + Fields::shown(root[name]) + "; expected an object");
    }
    if (found != nullptr && root[name] != root[found]) {
      return refuse("config.json", std::string("fields ") + found + " and " + name +
                                       " describe different models; expected one of them");
    }
    if (found == nullptr) found = name;
  }
  if (found == nullptr) return root;
  Json inner = std::move(root[found]);
  // What is said beside the object must be said in it, too: nothing else reads it.
  const Fields beside(root, "config.json");
  const Fields inside(inner, "config.json");
  for (const char* name : hf_state_fields) {
    if (!beside.says_something(name) || (inside.present(name) && inside.at(name) == beside.at(name))) continue;
    return refuse("config.json", "field " + std::string(name) + " is " + Fields::shown(beside.at(name)) + " beside " +
                                     found + " and " +
                                     (inside.present(name) ? Fields::shown(inside.at(name)) : "absent") +
                                     " in it; expected one value");
  }
  if (!inner.contains("model_type") && root.contains("model_type")) inner["model_type"] = root["model_type"];
  return inner;
}

}  // namespace detail

/// Reads a config.json.
///
/// @param text     the file; the bare literals Infinity and NaN are accepted where nothing depends on them
/// @param storage  formats and slack that the file does not say
/// @return corrupt, in one sentence that names the field, what it holds and what was expected: not JSON, a model_type
///         that is not known, a field that is missing, wrong, contradicts another one, or is not understood
inline Result<Model> parse_hf_config(std::string_view text, const Storage& storage = {}) {
  Result<Json> parsed = parse_json(text, "config.json");
  if (!parsed) return parsed.status();
  Result<Json> inner = detail::hf_text_config(*std::move(parsed));
  if (!inner) return inner.status();
  Fields f(*inner, "config.json");
  Model m;
  m.family = f.text("model_type", nullptr);
  if (!f.status().ok()) return f.status();
  const std::optional<HfReader> reader = detail::hf_reader(m.family);
  if (!reader) {
    return refuse("config.json", "field model_type is " + in_quotes(m.family) + "; expected one of the " +
                                     std::to_string(hf_families.size()) + " in hf_families, from llama to nemotron_h");
  }
  detail::read_hf_layers(*reader, f, storage, m.state);
  m.state.n_vocab = f.size("vocab_size", 0, most_dim, 0);
  // No size of a state: where both are there the first is what the model was made for.
  const bool has_positions = f.has("max_position_embeddings");
  m.max_positions = f.size(has_positions ? "max_position_embeddings" : "model_max_length", 0, most_positions, 0);
  refuse_unread(f, in_quotes(m.family) + " models");
  if (!f.status().ok()) return f.status();
  return m;
}

}  // namespace memra::config
