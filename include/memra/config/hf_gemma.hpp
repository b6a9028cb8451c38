// config.json of Gemma 3n and 4: global layers with heads of their own, and last layers that borrow K and V.
#pragma once

#include <charconv>
#include <cstddef>
#include <memra/config/fields.hpp>
#include <memra/config/hf_attention.hpp>
#include <memra/config/layer_list.hpp>
#include <memra/config/model.hpp>
#include <memra/model_config.hpp>
#include <string>
#include <system_error>
#include <vector>

namespace memra::config {

/// The heads of one layer.
struct GemmaHeads {
  std::size_t n_kv_heads = 0;
  std::size_t head_dim = 0;
};

/// per_layer_config: an object per layer that differs, under its number.
inline void read_layer_overrides(Fields& f, const HfHeads& h, std::vector<GemmaHeads>& heads) {
  const Json& all = f.at("per_layer_config");
  if (!all.is_object()) {
    return f.fail("field per_layer_config is " + Fields::shown(all) + "; expected an object");
  }
  std::vector<bool> named(heads.size());
  for (const auto& [key, one] : all.items()) {
    std::size_t il = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), il);
    if (error != std::errc() || end != key.data() + key.size() || il >= heads.size() || !one.is_object()) {
      return f.fail("field per_layer_config has " + in_quotes(key) + "; expected objects under layers below " +
                    std::to_string(heads.size()));
    }
    if (named[il])
      return f.fail("field per_layer_config names layer " + std::to_string(il) + " twice");  // "05" and "5"
    named[il] = true;
    Fields a(one, f.what(), "per_layer_config." + std::to_string(il) + ".");
    heads[il].head_dim = a.size("head_dim", 1, most_head_dim, heads[il].head_dim);
    heads[il].n_kv_heads = a.size("num_key_value_heads", 1, most_heads, heads[il].n_kv_heads);
    check_groups(a, "num_attention_heads", h.n_heads, "num_key_value_heads", heads[il].n_kv_heads);
    for (const auto& [name, value] : one.items()) {
      if (name != "head_dim" && name != "num_key_value_heads") {
        a.fail("field per_layer_config." + std::to_string(il) + " has " + in_quotes(name) +
               "; expected head_dim and num_key_value_heads");
      }
    }
    if (!a.status().ok()) return f.fail(a.status().text());
  }
}

/// What the layers that own K and V look like.
inline std::vector<GemmaHeads> gemma_heads(Fields& f, const HfHeads& h, const HfWindows& w, bool is_4) {
  std::vector<GemmaHeads> heads(h.n_layers, GemmaHeads{h.n_kv_heads, h.head_dim});
  if (!is_4) return heads;
  if (f.has("per_layer_config")) {
    f.knows({"global_head_dim"});
    read_layer_overrides(f, h, heads);
    return heads;
  }
  const std::size_t dim = f.size("global_head_dim", 1, most_head_dim, 512);
  const std::size_t stated = f.size("num_global_key_value_heads", 1, most_heads, h.n_kv_heads);
  // With this, such layers take K's projection for V; their V plane is still their own.
  const std::size_t kv = f.boolean("attention_k_eq_v", false) ? stated : h.n_kv_heads;
  check_groups(f, "num_attention_heads", h.n_heads, "num_global_key_value_heads", kv);
  for (std::size_t il = 0; il < w.kinds.size(); ++il) {
    if (w.kinds[il] == LayerKind::full) heads[il] = {kv, dim};
  }
  return heads;
}

/// @param window  where sliding_window is absent
inline void read_gemma(Fields& f, const Storage& s, bool is_4, std::size_t window, ModelConfig& out) {
  const HfAttention family = {.windows = Windows::pattern, .window = window, .interval = is_4 ? 6U : 5U};
  const HfHeads h = hf_heads(f, 256, is_4 ? 4 : 2, 8);
  HfWindows w = hf_windows(f, family, h.n_layers);
  // Where no list says so, the pattern does not reach the last layer: the family's rule sets it.
  if (is_4 && !f.has("layer_types") && !w.kinds.empty()) w.kinds.back() = LayerKind::full;
  const std::size_t shared = f.size("num_kv_shared_layers", 0, h.n_layers, is_4 ? 0 : 15);
  const std::vector<GemmaHeads> heads = gemma_heads(f, h, w, is_4);
  if (is_4 && !w.kinds.empty() && w.kinds.back() != LayerKind::full) {
    f.fail("field layer_types ends with a sliding layer; expected full_attention for the last one");
  }
  if (!f.status().ok()) return;
  const std::size_t own = h.n_layers - shared;
  for (std::size_t il = 0; il < own; ++il) {
    const std::size_t keys = w.kinds[il] == LayerKind::sliding ? w.window : 0;
    out.layers.push_back(
        full_attention(attention(s, h.n_heads, heads[il].n_kv_heads, heads[il].head_dim, heads[il].head_dim, keys)));
  }
  for (std::size_t il = own; il < h.n_layers; ++il) {
    std::size_t donor = own;  // the last layer of the same kind that owns its K and V
    while (donor != 0 && w.kinds[donor - 1] != w.kinds[il]) --donor;
    if (donor == 0) {
      return f.fail("field num_kv_shared_layers is " + std::to_string(shared) + ": layer " + std::to_string(il) +
                    " borrows from the last layer of its kind before layer " + std::to_string(own) +
                    ", and there is none");
    }
    out.layers.push_back(shared_attention(donor - 1, h.n_heads));
  }
}

}  // namespace memra::config
