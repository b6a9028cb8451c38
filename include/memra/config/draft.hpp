// parse_draft_config: the config.json of a block-diffusion drafter, as far as its cache is concerned.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memra/config/fields.hpp>
#include <memra/config/hf_attention.hpp>
#include <memra/config/hf_state_fields.hpp>
#include <memra/config/json.hpp>
#include <memra/config/layer_list.hpp>
#include <memra/config/model.hpp>
#include <memra/dflash_cfg.hpp>
#include <memra/error.hpp>
#include <string_view>
#include <vector>

namespace memra::config {

/// Reads a drafter's config.json, in Hugging Face's names or in the short ones (n_layer, n_head, n_kv).
///
/// @return corrupt, in one sentence that names the field, what it holds and what was expected
inline Result<DflashCfg> parse_draft_config(std::string_view text) {
  Result<Json> parsed = parse_json(text, "draft config.json");
  if (!parsed) return parsed.status();
  Fields f(*parsed, "draft config.json");
  DflashCfg c;
  c.n_layer = f.size({"num_hidden_layers", "n_layer"}, 1, most_layers);
  const std::size_t heads = f.size({"num_attention_heads", "n_head"}, 1, most_heads);
  c.n_kv = f.size({"num_key_value_heads", "n_kv"}, 1, most_heads, heads);
  c.head_dim = hf_head_dim(f, heads, 0);
  check_groups(f, "num_attention_heads", heads, "num_key_value_heads", c.n_kv);
  c.block_size = f.size("block_size", 1, most_positions);
  const bool on = f.boolean("use_sliding_window", true);
  const std::size_t window = f.size("sliding_window", 0, most_positions, 0);
  c.sliding_window = on ? window : 0;
  if (f.has("layer_types")) {
    for (const LayerKind kind : named_kinds(f, "layer_types", c.n_layer, {LayerKind::full, LayerKind::sliding})) {
      c.layer_sliding.push_back(kind == LayerKind::sliding);
    }
    if (c.sliding_window == 0 &&
        std::find(c.layer_sliding.begin(), c.layer_sliding.end(), true) != c.layer_sliding.end()) {
      f.fail(
          "field layer_types names sliding layers, but sliding_window is absent, null or switched off; expected a "
          "window");
    }
  }
  refuse_unread(f, "drafters");
  if (!f.status().ok()) return f.status();
  return c;
}

}  // namespace memra::config
