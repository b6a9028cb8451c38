// config.json of models with multi-head latent attention: DeepSeek V2 to V3.2, Kimi K2, GLM-5, and their kin.
#pragma once

#include <cstddef>
#include <memra/config/fields.hpp>
#include <memra/config/hf_attention.hpp>
#include <memra/config/layer_list.hpp>
#include <memra/config/model.hpp>
#include <memra/model_config.hpp>
#include <string>
#include <vector>

namespace memra::config {

/// One latent row per token: [kv_lora_rank | qk_rope_head_dim]. The head counts and dims of the file size products of
/// the weights, not the state.
inline AttentionSpec hf_latent(Fields& f, const Storage& s) {
  const std::size_t n_heads = f.size("num_attention_heads", 1, most_heads);
  const std::size_t rank = f.size("kv_lora_rank", 1, most_dim);
  const std::size_t rope = f.size("qk_rope_head_dim", 0, most_head_dim);
  f.knows({"v_head_dim"});
  return latent_rows(n_heads, rank, rope, s.k);
}

/// Which layers run an indexer of their own, as one list says: of full and shared, or a string of F and S. Empty after
/// a refusal.
inline std::vector<bool> hf_listed_indexers(Fields& f, const char* name, std::size_t n_layers) {
  std::vector<bool> own(n_layers, true);
  const Json& list = f.at(name);
  const bool letters = list.is_string();
  const std::string text = letters ? list.get<std::string>() : "";
  if (letters ? text.size() != n_layers : !is_list_of(f, name, n_layers)) {
    f.fail(f.named(name) + " has " + std::to_string(text.size()) +
           " letters; expected num_hidden_layers = " + std::to_string(n_layers));
    return {};
  }
  for (std::size_t il = 0; il < n_layers; ++il) {
    const std::string one = letters ? text.substr(il, 1) : list[il].is_string() ? list[il].get<std::string>() : "";
    if (one != (letters ? "F" : "full") && one != (letters ? "S" : "shared")) {
      f.fail(f.named(name) + " holds " + (letters ? in_quotes(one) : Fields::shown(list[il])) + " at layer " +
             std::to_string(il) + (letters ? "; expected F or S" : "; expected full or shared"));
      return {};
    }
    own[il] = one == "F" || one == "full";
  }
  return own;
}

/// Which layers run an indexer of their own; the others take the choice of the one before. Empty after a refusal.
inline std::vector<bool> hf_indexers(Fields& f, std::size_t n_layers) {
  const bool has_types = f.has("indexer_types");
  const bool has_pattern = f.has("index_topk_pattern");
  std::vector<bool> own(n_layers, true);
  if (has_types) own = hf_listed_indexers(f, "indexer_types", n_layers);
  if (has_pattern) {
    const std::vector<bool> listed = hf_listed_indexers(f, "index_topk_pattern", n_layers);
    if (has_types && listed != own) {
      f.fail("field index_topk_pattern and indexer_types name different layers; expected them to agree");
    }
    own = listed;
  }
  if (has_types || has_pattern) return own;
  const std::size_t every = f.size("index_topk_freq", 1, most_layers, 1);
  const std::size_t offset = f.size("index_skip_topk_offset", 0, most_layers, 2);
  for (std::size_t il = 0; il < n_layers; ++il) {
    own[il] = il + 1 <= offset || (il + 1 - offset) % every == 0;
  }
  return own;
}

/// @param indexed  the family has sparse attention: layers keep the keys of an indexer, too
inline void read_latent(Fields& f, const Storage& s, bool indexed, ModelConfig& out) {
  if (!indexed && !f.boolean("use_mla", true)) {  // DeepSeek-OCR and the smallest VL2: heads like any other's
    f.knows({"kv_lora_rank", "v_head_dim"});
    return read_attention(f, s, {}, out);
  }
  const std::size_t n_layers = hf_layers(f);
  const AttentionSpec latent = hf_latent(f, s);
  std::vector<bool> own(n_layers, false);
  std::size_t index_dim = 0;
  if (indexed) {
    index_dim = f.size("index_head_dim", 1, most_head_dim);
    own = hf_indexers(f, n_layers);
    if (f.status().ok() && !own.front()) {
      f.fail(
          "layer 0 takes the choice of an indexer before it, as indexer_types, index_topk_pattern or index_topk_freq "
          "say, and there is none; expected one of its own");
    }
  }
  if (f.has("layer_types")) named_kinds(f, "layer_types", n_layers, {LayerKind::full});
  const std::size_t n_mtp = hf_nextn(f);
  if (!f.status().ok()) return;
  const auto layer = [&](bool with_index) {
    LayerSpec l = full_attention(latent);
    if (with_index) l.states.emplace_back(index_rows(index_dim, s.k));
    return l;
  };
  for (const bool with_index : own) out.layers.push_back(layer(with_index));
  add_mtp(out, n_mtp, layer(indexed));
}

}  // namespace memra::config
