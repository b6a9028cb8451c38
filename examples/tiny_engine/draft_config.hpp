// draft/config.json: the block-diffusion drafter that belongs to a trunk.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memra/error.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <tiny_engine/config.hpp>
#include <tiny_engine/json.hpp>
#include <vector>

namespace tiny {

struct DraftConfig {
  std::size_t block_size = 0;  ///< rows of a full block: the anchor and block_size - 1 masks
  std::int32_t mask_token = 0;
  std::vector<std::size_t> target_layers;  ///< trunk layers whose outputs are tapped, in the order fc expects them
  std::size_t window = 0;                  ///< 0: none
  std::size_t n_layers = 0;
  std::size_t n_heads = 0;
  std::size_t n_kv_heads = 0;
  std::size_t head_dim = 0;
  std::size_t hidden = 0;
  std::size_t n_ff = 0;
  double rope_theta = 0;
  float eps = 0;

  std::size_t n_taps() const noexcept { return target_layers.size(); }
};

/// @param trunk  the drafter shares its embedding, head and hidden size
inline memra::Result<DraftConfig> parse_draft_config(std::string_view text, const TrunkConfig& trunk) {
  memra::Result<Json> parsed = parse_json(text, "draft/config.json");
  if (!parsed) return parsed.status();
  Fields f(*parsed, "draft/config.json");
  DraftConfig c;
  c.block_size = f.size("block_size", 2, 256);
  c.mask_token = static_cast<std::int32_t>(f.size("mask_token_id", 0, trunk.n_vocab - 1));
  c.window = f.size("sliding_window", 0, internal::most_positions, 0);
  c.n_layers = f.size("n_layer", 1, internal::most_layers);
  c.n_heads = f.size("n_head", 1, 65536);
  c.n_kv_heads = f.size("n_kv", 1, 65536);
  c.head_dim = f.size("head_dim", 2, internal::most_head_dim);
  c.hidden = f.size("hidden", trunk.hidden, trunk.hidden);
  c.n_ff = f.size("n_ff", 1, internal::most_dim);
  c.rope_theta = f.number("rope_theta", 1.0, 1e12);
  c.eps = static_cast<float>(f.number("eps", 0.0, 1.0, 1e-6));
  f.size("vocab", trunk.n_vocab, trunk.n_vocab, trunk.n_vocab);
  if (!f.status().ok()) return f.status();
  if (c.n_heads % c.n_kv_heads != 0) f.fail("field n_head is not a multiple of n_kv");
  if (c.head_dim % 2 != 0) f.fail("field head_dim is " + std::to_string(c.head_dim) + "; expected an even number");
  if (!f.has("target_layer_ids") || !f.at("target_layer_ids").is_array() || f.at("target_layer_ids").empty() ||
      f.at("target_layer_ids").size() > trunk.n_layers()) {
    f.fail("field target_layer_ids is missing or not a list of 1 to " + std::to_string(trunk.n_layers()) + " layers");
    return f.status();
  }
  for (const Json& v : f.at("target_layer_ids")) {
    const std::optional<std::uint64_t> il = Fields::whole(v);
    if (!il || *il >= trunk.n_layers()) {
      f.fail("field target_layer_ids holds " + Fields::shown(v) + "; expected trunk layers below " +
             std::to_string(trunk.n_layers()));
      return f.status();
    }
    if (std::find(c.target_layers.begin(), c.target_layers.end(), *il) != c.target_layers.end()) {
      f.fail("field target_layer_ids names layer " + Fields::shown(v) + " twice");
      return f.status();
    }
    c.target_layers.push_back(static_cast<std::size_t>(*il));
  }
  if (!f.status().ok()) return f.status();
  return c;
}

}  // namespace tiny
