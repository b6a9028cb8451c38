// config.json of models with recurrent layers: delta rules, Mamba, lightning attention, short convolutions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memra/config/fields.hpp>
#include <memra/config/hf_attention.hpp>
#include <memra/config/hf_latent.hpp>
#include <memra/config/layer_list.hpp>
#include <memra/config/model.hpp>
#include <memra/model_config.hpp>
#include <optional>
#include <string>
#include <vector>

namespace memra::config {

/// One layer per kind.
inline void add_layers(ModelConfig& out, const std::vector<LayerKind>& kinds, const LayerSpec& full,
                       const LayerSpec& recurrent_layer) {
  for (const LayerKind kind : kinds) {
    const bool recurs = kind == LayerKind::linear || kind == LayerKind::conv;
    out.layers.push_back(kind == LayerKind::full ? full : recurs ? recurrent_layer : no_state());
  }
}

inline LayerSpec hf_full(const Storage& s, const HfHeads& h) {
  return full_attention(attention(s, h.n_heads, h.n_kv_heads, h.head_dim, h.head_dim));
}

inline bool any_of_kind(const std::vector<LayerKind>& kinds, LayerKind kind) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

/// Qwen3-Next, Qwen3.5 and 3.6. The value heads of a key head are neighbours.
/// @param kv_heads  where the file does not say
inline void read_qwen_hybrid(Fields& f, const Storage& s, std::size_t kv_heads, ModelConfig& out) {
  const HfHeads h = hf_heads(f, 256, kv_heads);
  if (f.boolean("use_sliding_window", false)) f.fail("field use_sliding_window is true; expected false");
  f.knows({"sliding_window", "linear_num_value_heads"});
  std::vector<LayerKind> kinds;
  const std::size_t interval = f.size("full_attention_interval", 1, most_layers, 4);
  if (f.has("layer_types")) {
    kinds = named_kinds(f, "layer_types", h.n_layers, {LayerKind::full, LayerKind::linear});
  } else {
    kinds = every_nth(h.n_layers, interval, LayerKind::linear, LayerKind::full);
  }
  LayerSpec linear;
  if (any_of_kind(kinds, LayerKind::linear)) {
    const std::size_t n_k = f.size("linear_num_key_heads", 1, most_heads);
    const std::size_t n_v = f.size("linear_num_value_heads", 1, most_heads);
    const std::size_t d_k = f.size("linear_key_head_dim", 1, most_head_dim);
    const std::size_t d_v = f.size("linear_value_head_dim", 1, most_head_dim);
    const std::size_t d_conv = f.size("linear_conv_kernel_dim", 1, most_taps);
    check_groups(f, "linear_num_value_heads", n_v, "linear_num_key_heads", n_k);
    linear = recurrent(stored(s, gated_delta(n_k, n_v, d_k, d_v, d_conv)));
  }
  add_layers(out, kinds, hf_full(s, h), linear);
  add_mtp(out, hf_nextn(f), hf_full(s, h));
}

/// Kimi Linear and K3: KDA layers and latent attention without a low-rank choice of ours; layers are counted from 1.
inline void read_kimi_linear(Fields& f, const Storage& s, ModelConfig& out) {
  const std::size_t n_layers = hf_layers(f);
  const AttentionSpec latent = hf_latent(f, s);
  const Json none = Json::object();
  const bool nested = f.has("linear_attn_config");
  if (nested && !f.at("linear_attn_config").is_object()) {
    return f.fail("field linear_attn_config is " + Fields::shown(f.at("linear_attn_config")) + "; expected an object");
  }
  Fields a(nested ? f.at("linear_attn_config") : none, f.what(), "linear_attn_config.");
  std::vector<LayerKind> kinds;
  if (f.has("layer_types")) kinds = named_kinds(f, "layer_types", n_layers, {LayerKind::full, LayerKind::linear});
  if (a.has("kda_layers") || a.has("full_attn_layers")) {
    const bool has_kda = a.has("kda_layers");
    const bool has_full = a.has("full_attn_layers");
    const std::vector<bool> kda_at = has_kda ? listed_layers(a, "kda_layers", n_layers, 1) : std::vector<bool>();
    const std::vector<bool> full_at =
        has_full ? listed_layers(a, "full_attn_layers", n_layers, 1) : std::vector<bool>();
    std::vector<LayerKind> listed;
    for (std::size_t il = 0; il < n_layers && a.status().ok(); ++il) {
      if (has_kda && has_full && kda_at[il] == full_at[il]) {
        a.fail("layer " + std::to_string(il + 1) + " is in " + (kda_at[il] ? "both" : "neither") +
               " of linear_attn_config.kda_layers and full_attn_layers; expected one of them");
        break;
      }
      const bool linear = has_kda ? kda_at[il] : !full_at[il];
      listed.push_back(linear ? LayerKind::linear : LayerKind::full);
    }
    if (!kinds.empty()) must_agree(a, has_kda ? "kda_layers" : "full_attn_layers", listed, "layer_types", kinds);
    kinds = listed;
  } else if (kinds.empty()) {
    f.fail("field linear_attn_config names no kda_layers and no full_attn_layers; expected lists of layers");
  }
  LayerSpec linear;
  if (a.status().ok() && any_of_kind(kinds, LayerKind::linear)) {
    // Later files have the same three beside the list of layers; those that are in both places must agree.
    const auto size = [&](const char* inside, const char* beside, std::size_t most) {
      Fields& at = nested ? a : f;
      const std::size_t n = at.size(nested ? inside : beside, 1, most);
      const std::size_t other = f.size(beside, 1, most, n);
      if (a.status().ok() && other != n) {
        f.fail("field " + std::string(beside) + " is " + std::to_string(other) + " and linear_attn_config." + inside +
               " is " + std::to_string(n) + "; expected one value");
      }
      return n;
    };
    const std::size_t dim = size("head_dim", "linear_head_dim", most_head_dim);
    const std::size_t heads = size("num_heads", "linear_num_heads", most_heads);
    const std::size_t taps = size("short_conv_kernel_size", "linear_conv_kernel_dim", most_taps);
    linear = recurrent(stored(s, kda(heads, dim, dim, taps)));
  }
  if (!a.status().ok()) return f.fail(a.status().text());
  add_layers(out, kinds, full_attention(latent), linear);
  add_mtp(out, hf_nextn(f), full_attention(latent));
}

/// Jamba: Mamba-1, with attention at attn_layer_offset of every attn_layer_period layers.
inline void read_jamba(Fields& f, const Storage& s, ModelConfig& out) {
  const HfHeads h = hf_heads(f, 0, 8);
  const std::size_t inner = f.size("mamba_expand", 1, 64, 2) * f.size("hidden_size", 1, most_dim);
  const std::size_t d_state = f.size("mamba_d_state", 1, most_head_dim, 16);
  const std::size_t d_conv = f.size("mamba_d_conv", 1, most_taps, 4);
  const std::size_t period = f.size("attn_layer_period", 1, most_layers, 8);
  const std::size_t offset = f.size("attn_layer_offset", 0, most_layers, 4);
  std::vector<LayerKind> kinds =
      named_kinds(f, {"layers_block_type", "layer_types"}, h.n_layers, {LayerKind::full, LayerKind::linear});
  if (kinds.empty()) {
    if (offset >= period) {
      f.fail("field attn_layer_offset is " + std::to_string(offset) +
             "; expected less than attn_layer_period = " + std::to_string(period));
    }
    kinds.assign(h.n_layers, LayerKind::linear);
    for (std::size_t il = offset; il < h.n_layers; il += period) kinds[il] = LayerKind::full;
  }
  add_layers(out, kinds, hf_full(s, h), recurrent(stored(s, mamba1(inner, d_state, d_conv))));
}

/// Mamba-2 as Granite, Bamba and Falcon-H1 describe it. `inner`: heads * head_dim must be this; 0: expand *
/// hidden_size.
inline RecurrentSpec hf_mamba2(Fields& f, std::size_t inner) {
  const std::size_t expand = f.size("mamba_expand", 1, 64, 2);
  const std::size_t width = inner != 0 ? inner : expand * f.size("hidden_size", 1, most_dim);
  const std::size_t heads = f.size("mamba_n_heads", 1, most_heads);
  const bool automatic = !f.has("mamba_d_head") || f.at("mamba_d_head") == "auto";
  const std::size_t dim =
      automatic ? std::max<std::size_t>(width / heads, 1) : f.size("mamba_d_head", 1, most_head_dim);
  const std::size_t groups = f.size("mamba_n_groups", 1, most_heads);
  if (f.status().ok() && heads * dim != width) {
    f.fail("field mamba_n_heads * mamba_d_head is " + std::to_string(heads) + " * " + std::to_string(dim) +
           "; expected a width of " + std::to_string(width));
  }
  check_groups(f, "mamba_n_heads", heads, "mamba_n_groups", groups);
  return mamba2(heads, dim, groups, f.size("mamba_d_state", 1, most_head_dim), f.size("mamba_d_conv", 1, most_taps));
}

/// Granite-4 hybrids, and Bamba, which lists its attention layers.
/// @param kv_heads  as in hf_heads
inline void read_granite_hybrid(Fields& f, const Storage& s, std::optional<std::size_t> kv_heads, ModelConfig& out) {
  const HfHeads h = hf_heads(f, 0, kv_heads);
  f.knows({"mamba_d_state"});
  std::vector<LayerKind> kinds =
      named_kinds(f, {"layer_types", "layers_block_type"}, h.n_layers, {LayerKind::full, LayerKind::linear});
  if (f.has("attn_layer_indices")) {
    const auto listed = listed_kinds(f, "attn_layer_indices", h.n_layers, 0, LayerKind::full, LayerKind::linear);
    const char* other = f.has("layer_types") ? "layer_types" : "layers_block_type";
    if (!kinds.empty()) must_agree(f, "attn_layer_indices", listed, other, kinds);
    kinds = listed;
  } else if (kinds.empty()) {
    f.fail("field layer_types is missing; expected attention or mamba for every layer");
  }
  LayerSpec linear;
  if (any_of_kind(kinds, LayerKind::linear)) linear = recurrent(stored(s, hf_mamba2(f, 0)));
  add_layers(out, kinds, hf_full(s, h), linear);
}

/// Falcon-H1: every layer has both.
inline void read_falcon_h1(Fields& f, const Storage& s, ModelConfig& out) {
  const HfHeads h = hf_heads(f, 0, 8);
  // Absent is not null: the family's default is a width of its own.
  const std::size_t inner = f.size("mamba_d_ssm", 1, most_dim, f.is_null("mamba_d_ssm") ? 0 : 1024);
  named_kinds(f, {"layer_types", "layers_block_type"}, h.n_layers, {LayerKind::both});
  LayerSpec both = hf_full(s, h);
  both.states.emplace_back(stored(s, hf_mamba2(f, inner)));
  out.layers.assign(h.n_layers, both);
}

/// Nemotron-H and 3: a letter or a name per block, of which MLPs and experts keep nothing.
inline void read_nemotron_h(Fields& f, const Storage& s, ModelConfig& out) {
  const std::size_t stated = f.size("num_hidden_layers", 1, most_layers, 0);
  f.knows({"mtp_hybrid_override_pattern", "mamba_num_heads", "ssm_state_size", "mamba_d_state"});
  std::vector<LayerKind> kinds;
  const auto allowed = {LayerKind::full, LayerKind::linear, LayerKind::none};
  if (f.has("layers_block_type") || f.has("layer_types")) {
    const char* name = f.has("layers_block_type") ? "layers_block_type" : "layer_types";
    kinds = named_kinds(f, {"layers_block_type", "layer_types"}, stated, allowed);
    if (f.has("hybrid_override_pattern") && !kinds.empty()) {
      must_agree(f, "hybrid_override_pattern", pattern_kinds(f, "hybrid_override_pattern", kinds.size(), allowed), name,
                 kinds);
    }
  } else {
    kinds = pattern_kinds(f, "hybrid_override_pattern", stated, allowed);
  }
  const std::size_t n_heads = f.size("num_attention_heads", 1, most_heads);
  const std::size_t kv = hf_kv_heads(f, n_heads, 8);
  const std::size_t dim = f.size({"head_dim", "attention_head_dim"}, 1, most_head_dim, 128);
  check_groups(f, "num_attention_heads", n_heads, "num_key_value_heads", kv);
  LayerSpec mamba;
  if (any_of_kind(kinds, LayerKind::linear)) {
    const std::size_t heads = f.size("mamba_num_heads", 1, most_heads);
    const std::size_t head_dim = f.size("mamba_head_dim", 1, most_head_dim);
    const std::size_t groups = f.size({"n_groups", "mamba_n_groups"}, 1, most_heads);
    const std::size_t d_state = f.size({"ssm_state_size", "mamba_d_state"}, 1, most_head_dim);
    const std::size_t taps = f.size({"conv_kernel", "mamba_d_conv"}, 1, most_taps);
    check_groups(f, "mamba_num_heads", heads, "n_groups", groups);
    mamba = recurrent(stored(s, mamba2(heads, head_dim, groups, d_state, taps)));
  }
  const LayerSpec full = full_attention(attention(s, n_heads, kv, dim, dim));
  add_layers(out, kinds, full, mamba);
  const std::size_t n_mtp = hf_nextn(f);
  if (n_mtp == 0 || !f.status().ok()) return;
  std::vector<LayerKind> blocks = {LayerKind::full, LayerKind::none};
  const bool has_list = f.has("mtp_layers_block_type");
  if (has_list) blocks = counted_kinds(f, "mtp_layers_block_type", {LayerKind::full, LayerKind::none});
  if (f.has("mtp_hybrid_override_pattern")) {
    const auto listed = pattern_kinds(f, "mtp_hybrid_override_pattern", 0, {LayerKind::full, LayerKind::none});
    if (has_list) must_agree(f, "mtp_hybrid_override_pattern", listed, "mtp_layers_block_type", blocks);
    blocks = listed;
  }
  for (std::size_t i = 0; i < n_mtp; ++i) {
    for (const LayerKind kind : blocks) add_mtp(out, 1, kind == LayerKind::full ? full : no_state());
  }
}

/// LFM2: short convolutions over hidden_size channels, and attention.
inline void read_lfm2(Fields& f, const Storage& s, ModelConfig& out) {
  const HfHeads h = hf_heads(f, 0, 8);
  const std::size_t hidden = f.size({"hidden_size", "conv_dim"}, 1, most_dim);
  const std::size_t taps = f.size("conv_L_cache", 1, most_taps, 3);
  std::vector<LayerKind> kinds = named_kinds(f, {"layer_types"}, h.n_layers, {LayerKind::full, LayerKind::conv});
  const char* other = "layer_types";
  for (const char* name : {"full_attn_idxs", "full_attention_idxs"}) {
    if (!f.has(name)) continue;
    const auto listed = listed_kinds(f, name, h.n_layers, 0, LayerKind::full, LayerKind::conv);
    if (!kinds.empty()) must_agree(f, name, listed, other, kinds);
    other = name;
    kinds = listed;
  }
  if (kinds.empty()) {
    f.fail("field layer_types is missing; expected full_attention or conv for every layer, or full_attn_idxs");
  }
  add_layers(out, kinds, hf_full(s, h), recurrent(stored(s, short_conv(hidden, taps))));
}

}  // namespace memra::config
