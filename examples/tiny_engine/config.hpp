// config.json of the trunk: Qwen3.5 text and Qwen3-Next with dense MLPs, in any size and layer pattern.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memra/error.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <tiny_engine/json.hpp>
#include <utility>
#include <vector>

namespace tiny {

enum class Family : std::uint8_t {
  qwen3_5,     ///< separate in_proj_qkv, in_proj_z, in_proj_b, in_proj_a
  qwen3_next,  ///< fused in_proj_qkvz and in_proj_ba, rows grouped by key head
};

/// What the trunk needs to know. Every value has been checked; products of two of them fit in 64 bits.
struct TrunkConfig {
  Family family = Family::qwen3_5;
  std::size_t n_vocab = 0;
  std::size_t hidden = 0;
  std::size_t n_ff = 0;
  std::size_t n_heads = 0;
  std::size_t n_kv_heads = 0;
  std::size_t head_dim = 0;
  std::size_t rot_dim = 0;  ///< leading dims of a head that RoPE turns; even
  double rope_theta = 0;
  float eps = 0;
  bool tied_head = false;
  std::size_t max_positions = 0;
  std::vector<bool> full_attention;  ///< per layer; false: gated delta rule
  std::vector<std::int32_t> eos;     ///< any of these ends the text; may be empty
  // Linear layers; zero where there are none.
  std::size_t n_k = 0;
  std::size_t n_v = 0;
  std::size_t d_k = 0;
  std::size_t d_v = 0;
  std::size_t d_conv = 0;

  std::size_t n_layers() const noexcept { return full_attention.size(); }
  std::size_t conv_dim() const noexcept { return 2 * d_k * n_k + d_v * n_v; }
  bool has_linear() const noexcept {
    return std::find(full_attention.begin(), full_attention.end(), false) != full_attention.end();
  }
  bool is_eos(std::int32_t token) const noexcept { return std::find(eos.begin(), eos.end(), token) != eos.end(); }
};

namespace internal {

// Bounds on sizes: far above any model, low enough that a product of two never wraps.
inline constexpr std::size_t most_dim = std::size_t{1} << 24;
inline constexpr std::size_t most_layers = 4096;
inline constexpr std::size_t most_head_dim = 4096;
inline constexpr std::size_t most_state = std::size_t{1} << 26;  // elements of one layer's recurrent state: 256 MiB
inline constexpr std::size_t most_positions = std::size_t{1} << 30;

inline std::vector<bool> read_layers(Fields& f, std::size_t n_layers) {
  std::vector<bool> full;
  if (f.has("layer_types")) {  // the list wins over the interval: published files carry both
    const Json& list = f.at("layer_types");
    if (!list.is_array() || list.size() != n_layers) {
      f.fail("field layer_types is " +
             (list.is_array() ? "a list of " + std::to_string(list.size()) : Fields::shown(list)) +
             "; expected a list of num_hidden_layers = " + std::to_string(n_layers) + " names");
      return full;
    }
    for (const Json& name : list) {
      if (name == "full_attention" || name == "linear_attention") {
        full.push_back(name == "full_attention");
      } else {
        f.fail("field layer_types holds " + Fields::shown(name) + "; expected full_attention or linear_attention");
        return full;
      }
    }
    return full;
  }
  const std::size_t interval = f.size("full_attention_interval", 1, most_layers, 4);  // 4: both families' default
  for (std::size_t il = 0; il < n_layers; ++il) full.push_back((il + 1) % interval == 0);
  return full;
}

inline void refuse_experts(Fields& f, Family family, std::size_t n_layers) {
  // Qwen3-Next has 512 experts unless the file says otherwise; Qwen3.5 text has none.
  const std::size_t experts = f.size("num_experts", 0, most_dim, family == Family::qwen3_next ? 512 : 0);
  const std::size_t step = f.size("decoder_sparse_step", 1, most_dim, 1);
  if (experts == 0 || !f.status().ok()) return;
  std::vector<bool> dense(n_layers, false);
  if (f.has("mlp_only_layers")) {
    const Json& list = f.at("mlp_only_layers");
    if (!list.is_array()) return f.fail("field mlp_only_layers is " + Fields::shown(list) + "; expected a list");
    for (const Json& v : list) {
      const std::optional<std::uint64_t> il = Fields::whole(v);
      if (!il || *il >= n_layers) {
        return f.fail("field mlp_only_layers holds " + Fields::shown(v) + "; expected layers below " +
                      std::to_string(n_layers));
      }
      dense[static_cast<std::size_t>(*il)] = true;
    }
  }
  for (std::size_t il = 0; il < n_layers; ++il) {
    if (!dense[il] && (il + 1) % step == 0) {
      return f.fail("layer " + std::to_string(il) + " is a mixture of " + std::to_string(experts) +
                    " experts (num_experts, not in mlp_only_layers); this engine runs dense MLPs only");
    }
  }
}

inline std::vector<std::int32_t> read_eos(Fields& f, std::size_t n_vocab) {
  std::vector<std::int32_t> ids;
  if (!f.has("eos_token_id")) return ids;
  const Json& v = f.at("eos_token_id");
  const Json list = v.is_array() ? v : Json::array({v});
  for (const Json& one : list) {
    const std::optional<std::uint64_t> id = Fields::whole(one);
    if (!id || *id >= n_vocab) {
      f.fail("field eos_token_id is " + Fields::shown(one) +
             "; expected token ids below vocab_size = " + std::to_string(n_vocab));
      return ids;
    }
    ids.push_back(static_cast<std::int32_t>(*id));
  }
  return ids;
}

inline void read_rope(Fields& f, TrunkConfig& c) {
  // Newer files keep these in rope_parameters, older ones at the top level; the nested value wins.
  static const Json none = Json::object();
  const bool nested = f.has("rope_parameters");
  if (nested && !f.at("rope_parameters").is_object()) {
    return f.fail("field rope_parameters is " + Fields::shown(f.at("rope_parameters")) + "; expected an object");
  }
  Fields p(nested ? f.at("rope_parameters") : none, "config.json rope_parameters");
  for (const char* name : {"rope_type", "type"}) {
    if (const std::string type = p.text(name, "default"); type != "default") {
      return f.fail("field rope_parameters." + std::string(name) + " is " + in_quotes(type) + "; expected default");
    }
  }
  if (f.has("rope_scaling") && !nested) return f.fail("field rope_scaling is set; expected plain RoPE");
  Fields& theta = p.has("rope_theta") ? p : f;
  c.rope_theta = theta.number("rope_theta", 1.0, 1e12);
  Fields& factor = p.has("partial_rotary_factor") ? p : f;
  const double part = factor.number("partial_rotary_factor", 0.0, 1.0, 0.25);  // 0.25: both families' default
  if (!p.status().ok()) return f.fail(p.status().text());
  c.rot_dim = static_cast<std::size_t>(static_cast<double>(c.head_dim) * part);
  if (c.rot_dim < 2 || c.rot_dim % 2 != 0) {
    f.fail("field partial_rotary_factor turns " + std::to_string(c.rot_dim) +
           " of head_dim = " + std::to_string(c.head_dim) + " dims; expected an even number of at least 2");
  }
}

}  // namespace internal

/// @param text  the file
/// @return corrupt or unsupported, in one sentence that names the field
inline memra::Result<TrunkConfig> parse_trunk_config(std::string_view text) {
  memra::Result<Json> parsed = parse_json(text, "config.json");
  if (!parsed) return parsed.status();
  Json root = *std::move(parsed);
  if (root.contains("text_config") && root["text_config"].is_object()) {
    Json inner = std::move(root["text_config"]);  // a multimodal wrapper: the text model is what we run
    for (const char* name : {"tie_word_embeddings", "eos_token_id"}) {
      if (!inner.contains(name) && root.contains(name)) inner[name] = root[name];
    }
    root = std::move(inner);
  }
  Fields f(root, "config.json");
  TrunkConfig c;
  const std::string type = f.text("model_type", nullptr);
  if (!f.status().ok()) return f.status();
  if (type == "qwen3_5_text") {
    c.family = Family::qwen3_5;
  } else if (type == "qwen3_next") {
    c.family = Family::qwen3_next;
  } else {
    f.fail("field model_type is " + in_quotes(type) + "; expected qwen3_5_text or qwen3_next" +
           (type.find("moe") != std::string::npos ? " (mixtures of experts are not supported)" : ""));
    return f.status();
  }

  using internal::most_dim;
  c.n_vocab = f.size("vocab_size", 1, most_dim);
  c.hidden = f.size("hidden_size", 1, most_dim);
  c.n_ff = f.size("intermediate_size", 1, most_dim);
  const std::size_t n_layers = f.size("num_hidden_layers", 1, internal::most_layers);
  c.n_heads = f.size("num_attention_heads", 1, 65536);
  c.n_kv_heads = f.size("num_key_value_heads", 1, 65536, c.n_heads);
  c.head_dim = f.size("head_dim", 2, internal::most_head_dim);
  c.eps = static_cast<float>(f.number("rms_norm_eps", 0.0, 1.0, 1e-6));
  c.max_positions = f.size("max_position_embeddings", 1, internal::most_positions);
  c.tied_head = f.boolean("tie_word_embeddings", false);
  if (!f.status().ok()) return f.status();
  if (c.n_heads % c.n_kv_heads != 0) {
    f.fail("field num_attention_heads is " + std::to_string(c.n_heads) +
           "; expected a multiple of num_key_value_heads = " + std::to_string(c.n_kv_heads));
  }
  if (f.boolean("attention_bias", false)) f.fail("field attention_bias is true; expected false");
  if (!f.boolean("attn_output_gate", true)) f.fail("field attn_output_gate is false; expected true");
  if (const std::string act = f.text("hidden_act", "silu"); act != "silu") {
    f.fail("field hidden_act is " + in_quotes(act) + "; expected silu");
  }
  c.full_attention = internal::read_layers(f, n_layers);
  internal::refuse_experts(f, c.family, n_layers);
  c.eos = internal::read_eos(f, c.n_vocab);
  internal::read_rope(f, c);
  if (f.status().ok() && c.has_linear()) {
    c.n_k = f.size("linear_num_key_heads", 1, 65536);
    c.n_v = f.size("linear_num_value_heads", 1, 65536);
    c.d_k = f.size("linear_key_head_dim", 1, internal::most_head_dim);
    c.d_v = f.size("linear_value_head_dim", 1, internal::most_head_dim);
    c.d_conv = f.size("linear_conv_kernel_dim", 2, 1024);
    if (c.n_v * c.d_v * c.d_k > internal::most_state) {
      f.fail("field linear_num_value_heads and the linear head dims make a state of " +
             std::to_string(c.n_v * c.d_v * c.d_k) + " numbers a layer; expected at most " +
             std::to_string(internal::most_state));
    }
    if (f.status().ok() && c.n_v % c.n_k != 0) {
      f.fail("field linear_num_value_heads is " + std::to_string(c.n_v) +
             "; expected a multiple of linear_num_key_heads = " + std::to_string(c.n_k));
    }
  }
  if (!f.status().ok()) return f.status();
  return c;
}

}  // namespace tiny
