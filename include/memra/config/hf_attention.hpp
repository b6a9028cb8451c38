// config.json of models whose every layer is attention, with or without windows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memra/config/fields.hpp>
#include <memra/config/layer_list.hpp>
#include <memra/config/model.hpp>
#include <memra/model_config.hpp>
#include <optional>
#include <string>
#include <vector>

namespace memra::config {

/// What all attention is described by.
struct HfHeads {
  std::size_t n_layers = 0;
  std::size_t n_heads = 0;
  std::size_t n_kv_heads = 0;
  std::size_t head_dim = 0;
};

inline std::size_t hf_layers(Fields& f) {
  return f.size({"num_hidden_layers", "n_layers"}, 1, most_layers);
}

/// n_heads is a multiple of n_kv_heads; else refused.
inline void check_groups(Fields& f, const char* heads, std::size_t n_heads, const char* kv, std::size_t n_kv_heads) {
  if (!f.status().ok() || n_heads % n_kv_heads == 0) return;
  f.fail(f.named(heads) + " is " + std::to_string(n_heads) + "; expected a multiple of " + kv + " = " +
         std::to_string(n_kv_heads));
}

/// A head_dim that is stated wins; else the family's default, or hidden_size / num_attention_heads for 0.
inline std::size_t hf_head_dim(Fields& f, std::size_t n_heads, std::size_t family_default) {
  if (f.has("head_dim") || family_default != 0) return f.size("head_dim", 1, most_head_dim, family_default);
  const std::size_t hidden = f.size("hidden_size", 1, most_dim);
  if (f.status().ok() && hidden % n_heads != 0) {
    f.fail("field hidden_size is " + std::to_string(hidden) +
           "; expected a multiple of num_attention_heads = " + std::to_string(n_heads) + ", or a head_dim");
  }
  return std::max<std::size_t>(hidden / n_heads, 1);
}

/// num_key_value_heads: absent means the family's default, null as many as query heads.
inline std::size_t hf_kv_heads(Fields& f, std::size_t n_heads, std::optional<std::size_t> family_default) {
  const bool as_heads = !family_default || f.is_null("num_key_value_heads");
  return f.size("num_key_value_heads", 1, most_heads, as_heads ? n_heads : *family_default);
}

/// @param kv_heads  where num_key_value_heads is absent; nothing: as many as query heads
inline HfHeads hf_heads(Fields& f, std::size_t default_head_dim, std::optional<std::size_t> kv_heads,
                        std::optional<std::size_t> default_heads = {}) {
  HfHeads h;
  h.n_layers = hf_layers(f);
  h.n_heads = f.size({"num_attention_heads", "num_heads"}, 1, most_heads, default_heads);
  h.n_kv_heads = hf_kv_heads(f, h.n_heads, kv_heads);
  h.head_dim = hf_head_dim(f, h.n_heads, default_head_dim);
  check_groups(f, "num_attention_heads", h.n_heads, "num_key_value_heads", h.n_kv_heads);
  return h;
}

/// Which layers of a family have the window where no list says so.
enum class Windows : std::uint8_t {
  never,       ///< sliding_window means nothing, or must not be there
  all,         ///< all layers, once sliding_window is set
  switched,    ///< with use_sliding_window, all layers
  from_layer,  ///< with use_sliding_window, layers from max_window_layers on
  pattern,     ///< all but every sliding_window_pattern-th
};

/// The habits of a family, from its published configuration class.
struct HfAttention {
  Windows windows = Windows::never;
  std::size_t window = 0;    ///< where sliding_window is absent; 0: no window then
  std::size_t interval = 0;  ///< where sliding_window_pattern is absent
  std::size_t head_dim = 0;  ///< where head_dim is absent; 0: hidden_size / num_attention_heads
  std::optional<std::size_t> n_heads = {};
  std::optional<std::size_t> n_kv_heads = {};  ///< where num_key_value_heads is absent; nothing: as many as heads
  const char* window_name = "sliding_window";
};

/// sliding_window: absent means the family's default, null means none.
inline std::size_t hf_window(Fields& f, const HfAttention& family) {
  const bool stated = f.has(family.window_name) || f.is_null(family.window_name);
  return f.size(family.window_name, 0, most_positions, stated ? 0 : family.window);
}

/// Kinds of the layers of an attention model, and the window of the sliding ones.
struct HfWindows {
  std::vector<LayerKind> kinds;
  std::size_t window = 0;
};

inline HfWindows hf_windows(Fields& f, const HfAttention& family, std::size_t n_layers) {
  HfWindows w;
  const bool has_switch = family.windows == Windows::switched || family.windows == Windows::from_layer;
  const bool on = !has_switch || f.boolean("use_sliding_window", false);
  const bool has_list = f.has("layer_types");
  const std::size_t stated = family.windows == Windows::never && !has_list ? 0 : hf_window(f, family);
  const std::size_t first =
      family.windows == Windows::from_layer ? f.size("max_window_layers", 0, most_positions, 28) : 0;
  w.window = on ? stated : 0;
  // An encoder's window is another one.
  if (f.has("use_bidirectional_attention") &&
      (f.at("use_bidirectional_attention") == true || f.at("use_bidirectional_attention") == "all")) {
    f.fail("field use_bidirectional_attention is " + Fields::shown(f.at("use_bidirectional_attention")) +
           "; expected a causal model");
  }
  if (has_list) {  // a list wins over every rule
    w.kinds = named_kinds(f, "layer_types", n_layers, {LayerKind::full, LayerKind::sliding});
    if (f.has("sliding_window_pattern")) f.size("sliding_window_pattern", 1, most_layers);
  } else if (family.windows == Windows::pattern) {
    const std::size_t interval =
        f.size({"sliding_window_pattern", "_sliding_window_pattern"}, 1, most_layers, family.interval);
    w.kinds = every_nth(n_layers, interval, LayerKind::sliding, LayerKind::full);
    if (w.window == 0) w.kinds.assign(n_layers, LayerKind::full);
  } else {
    w.kinds.assign(n_layers, LayerKind::full);
    for (std::size_t il = first; il < n_layers && w.window != 0; ++il) w.kinds[il] = LayerKind::sliding;
  }
  if (w.window == 0 && std::find(w.kinds.begin(), w.kinds.end(), LayerKind::sliding) != w.kinds.end()) {
    f.fail("field layer_types names sliding layers, but " + std::string(family.window_name) +
           " is absent, null or switched off; expected a window");
  }
  return w;
}

/// Appends `n` layers past the trunk that are like `layer`.
inline void add_mtp(ModelConfig& out, std::size_t n, const LayerSpec& layer) {
  out.layers.insert(out.layers.end(), n, layer);
  out.n_mtp += n;
}

inline std::size_t hf_nextn(Fields& f) {
  return f.size({"num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers"}, 0, 64, 0);
}

/// Llama, Mistral, Mixtral, Qwen2, Qwen3, Gemma 2 and 3, gpt-oss, GLM-4 and others like them.
inline void read_attention(Fields& f, const Storage& s, const HfAttention& family, ModelConfig& out) {
  const HfHeads h = hf_heads(f, family.head_dim, family.n_kv_heads, family.n_heads);
  const HfWindows w = hf_windows(f, family, h.n_layers);
  for (const LayerKind kind : w.kinds) {
    const std::size_t window = kind == LayerKind::sliding ? w.window : 0;
    out.layers.push_back(full_attention(attention(s, h.n_heads, h.n_kv_heads, h.head_dim, h.head_dim, window)));
  }
  add_mtp(out, hf_nextn(f), full_attention(attention(s, h.n_heads, h.n_kv_heads, h.head_dim, h.head_dim)));
}

/// Llama 4: chunked layers see the tokens since their chunk began, so a ring of a chunk's rows holds all they need.
inline void read_llama4(Fields& f, const Storage& s, ModelConfig& out) {
  const HfHeads h = hf_heads(f, 128, 8, 40);
  const bool null_chunk = f.is_null("attention_chunk_size");
  const std::size_t chunk = f.size("attention_chunk_size", 1, most_positions, null_chunk ? 0 : 8192);
  std::vector<LayerKind> kinds;
  if (f.has("layer_types")) {
    kinds = named_kinds(f, "layer_types", h.n_layers, {LayerKind::full, LayerKind::sliding});
  } else if (f.has("no_rope_layers") && !(f.at("no_rope_layers").is_array() && f.at("no_rope_layers").empty())) {
    // 1 means RoPE, and with it chunks.
    kinds = numbered_kinds(f, "no_rope_layers", h.n_layers, LayerKind::full, LayerKind::sliding);
  } else {
    kinds =
        every_nth(h.n_layers, f.size("no_rope_layer_interval", 1, most_layers, 4), LayerKind::sliding, LayerKind::full);
  }
  for (const LayerKind kind : kinds) {
    const std::size_t window = kind == LayerKind::sliding ? chunk : 0;
    out.layers.push_back(full_attention(attention(s, h.n_heads, h.n_kv_heads, h.head_dim, h.head_dim, window)));
  }
}

/// MiMo-V2: K wider than V, and sliding layers with heads of their own.
inline void read_mimo_v2(Fields& f, const Storage& s, ModelConfig& out) {
  const HfHeads h = hf_heads(f, 192, 4);
  const std::size_t v_dim = f.size("v_head_dim", 1, most_head_dim, 128);
  const std::size_t window =
      f.size({"sliding_window", "sliding_window_size", "attention_chunk_size"}, 1, most_positions);
  const std::size_t swa_heads = f.size("swa_num_attention_heads", 1, most_heads, h.n_heads);
  const std::size_t swa_kv = f.size("swa_num_key_value_heads", 1, most_heads, h.n_kv_heads);
  const std::size_t swa_dim = f.size("swa_head_dim", 1, most_head_dim, h.head_dim);
  const std::size_t swa_v_dim = f.size("swa_v_head_dim", 1, most_head_dim, v_dim);
  check_groups(f, "swa_num_attention_heads", swa_heads, "swa_num_key_value_heads", swa_kv);
  std::vector<LayerKind> kinds;
  if (f.has("layer_types")) {
    kinds = named_kinds(f, "layer_types", h.n_layers, {LayerKind::full, LayerKind::sliding});
  }
  if (f.has("hybrid_layer_pattern")) {
    const auto listed = numbered_kinds(f, "hybrid_layer_pattern", h.n_layers, LayerKind::full, LayerKind::sliding);
    if (!kinds.empty()) must_agree(f, "hybrid_layer_pattern", listed, "layer_types", kinds);
    kinds = listed;
  } else if (kinds.empty()) {
    f.fail("field hybrid_layer_pattern is missing; expected a list of 0 (full) and 1 (sliding), or layer_types");
  }
  const LayerSpec full = full_attention(attention(s, h.n_heads, h.n_kv_heads, h.head_dim, v_dim));
  const LayerSpec sliding = full_attention(attention(s, swa_heads, swa_kv, swa_dim, swa_v_dim, window));
  for (const LayerKind kind : kinds) out.layers.push_back(kind == LayerKind::sliding ? sliding : full);
  add_mtp(out, hf_nextn(f), sliding);  // the blocks past the trunk are windowed
}

/// DeciLM: a list of kv heads, one number per layer.
inline void read_deci(Fields& f, const Storage& s, std::size_t n_layers, std::size_t n_heads, std::size_t head_dim,
                      ModelConfig& out) {
  constexpr const char* name = "num_key_value_heads_per_layer";
  if (!is_list_of(f, name, n_layers)) return;
  for (const Json& one : f.at(name)) {
    const auto kv = Fields::whole(one);
    if (!kv || *kv == 0 || *kv > n_heads || n_heads % *kv != 0) {
      return f.fail(f.named(name) + " holds " + Fields::shown(one) +
                    "; expected divisors of num_attention_heads = " + std::to_string(n_heads));
    }
    out.layers.push_back(full_attention(attention(s, n_heads, static_cast<std::size_t>(*kv), head_dim, head_dim)));
  }
}

/// A number that n_heads is a multiple of; else refused.
inline std::size_t divisor_of_heads(Fields& f, const char* name, std::size_t n_heads) {
  const std::size_t n = f.size(name, 1, n_heads);
  if (n_heads % n != 0) {
    f.fail(f.named(name) + " is " + std::to_string(n) +
           "; expected a divisor of num_attention_heads = " + std::to_string(n_heads));
  }
  return n;
}

/// kv heads of a block, or how many query heads share one; where both are said they must agree.
inline std::size_t nas_kv_heads(Fields& a, std::size_t n_heads) {
  const bool stated = a.has("num_key_value_heads");
  const std::size_t kv = stated ? divisor_of_heads(a, "num_key_value_heads", n_heads) : 1;
  if (stated && !a.has("n_heads_in_group")) return kv;
  const std::size_t group = divisor_of_heads(a, "n_heads_in_group", n_heads);
  if (stated && group * kv != n_heads) {
    a.fail(a.named("n_heads_in_group") + " is " + std::to_string(group) + " and num_key_value_heads is " +
           std::to_string(kv) + "; expected a product of num_attention_heads = " + std::to_string(n_heads));
  }
  return stated ? kv : n_heads / group;
}

/// Nemotron-NAS: a list of blocks, each with kv heads of its own or none.
inline void read_nas(Fields& f, const Storage& s, ModelConfig& out) {
  const std::size_t n_layers = hf_layers(f);
  const std::size_t n_heads = f.size("num_attention_heads", 1, most_heads);
  const std::size_t head_dim = hf_head_dim(f, n_heads, 0);
  if (!f.has("block_configs") && f.has("num_key_value_heads_per_layer")) {
    if (f.status().ok()) read_deci(f, s, n_layers, n_heads, head_dim, out);
    return;
  }
  if (!f.has("block_configs")) return f.fail("field block_configs is missing; expected a list of one block per layer");
  if (!is_list_of(f, "block_configs", n_layers)) return;
  for (std::size_t il = 0; il < n_layers && f.status().ok(); ++il) {
    const std::string prefix = "block_configs[" + std::to_string(il) + "]";
    const Json& block = f.at("block_configs")[il];
    if (!block.is_object() || !block.contains("attention") || !block["attention"].is_object()) {
      return f.fail("field " + prefix + ".attention is missing; expected an object");
    }
    const Json none;
    const Json& parallel = block.contains("parallel_blocks") ? block["parallel_blocks"] : none;
    if (!parallel.is_null()) {
      return f.fail("field " + prefix + ".parallel_blocks is " + Fields::shown(parallel) + "; expected null");
    }
    Fields a(block["attention"], f.what(), prefix + ".attention.");
    for (const char* name : {"mamba", "llama4"}) {  // state of another kind, and chunks
      if (a.says_something(name)) a.fail(a.named(name) + " is " + Fields::shown(a.at(name)) + "; expected null");
    }
    const bool no_op = a.boolean("no_op", false);
    if (a.boolean("replace_with_linear", false) || no_op) {
      out.layers.push_back(no_state());
    } else {
      const std::size_t kv = nas_kv_heads(a, n_heads);
      for (const char* name : {"window_length", "num_sink_tokens", "sparsify"}) {
        if (a.says_something(name)) a.fail(a.named(name) + " is " + Fields::shown(a.at(name)) + "; expected null");
      }
      out.layers.push_back(full_attention(attention(s, n_heads, kv, head_dim, head_dim)));
    }
    if (!a.status().ok()) return f.fail(a.status().text());
  }
}

}  // namespace memra::config
