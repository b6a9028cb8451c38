// config.json of MiniMax: 01 and M1 with lightning attention, M2 and M3 with attention alone, M3's beside an indexer.
#pragma once

#include <cstddef>
#include <memra/config/fields.hpp>
#include <memra/config/hf_attention.hpp>
#include <memra/config/hf_recurrent.hpp>
#include <memra/config/layer_list.hpp>
#include <memra/config/model.hpp>
#include <memra/model_config.hpp>
#include <string>
#include <vector>

namespace memra::config {

/// Blocks past the trunk, in MiniMax's spelling or in the others'; where both say some they must agree.
inline std::size_t hf_mtp_modules(Fields& f) {
  const std::size_t n = hf_nextn(f);
  const std::size_t modules = f.size("num_mtp_modules", 0, 64, 0) * f.size("mtp_transformer_layers", 1, 64, 1);
  if (!f.boolean("use_mtp", true) || modules == 0) return n;
  if (n != 0 && n != modules) {
    f.fail("field num_mtp_modules says that " + std::to_string(modules) +
           " blocks are past the trunk and num_nextn_predict_layers, or another name of it, " + std::to_string(n) +
           "; expected one value");
  }
  return modules;
}

/// 01 and M1: lightning attention keeps a square matrix per query head and no convolution. The first files of M2, all
/// of whose layers are attention, have the same model_type.
inline void read_minimax(Fields& f, const Storage& s, ModelConfig& out) {
  const HfHeads h = hf_heads(f, 0, 8);
  std::vector<LayerKind> kinds;
  if (f.has("layer_types")) kinds = named_kinds(f, "layer_types", h.n_layers, {LayerKind::full, LayerKind::linear});
  if (f.has("attn_type_list")) {
    const auto listed = numbered_kinds(f, "attn_type_list", h.n_layers, LayerKind::linear, LayerKind::full);
    if (!kinds.empty()) must_agree(f, "attn_type_list", listed, "layer_types", kinds);
    kinds = listed;
  } else if (kinds.empty()) {
    f.fail("field attn_type_list is missing; expected 0 (lightning) or 1 (attention) for every layer");
  }
  add_layers(out, kinds, hf_full(s, h), recurrent(stored(s, lightning(h.n_heads, h.head_dim, h.head_dim))));
  add_mtp(out, hf_mtp_modules(f), hf_full(s, h));
}

/// The layers of M3 that choose keys by an indexer, and the width of its one key per token.
struct HfSparse {
  std::vector<LayerKind> kinds;  ///< full or sparse; empty after a refusal
  std::size_t index_dim = 0;
};

/// sparse_attention_config, or the newer layer_types and index_head_dim; neither: every layer sees every key.
inline HfSparse hf_sparse(Fields& f, std::size_t n_layers) {
  HfSparse sparse;
  sparse.kinds.assign(n_layers, LayerKind::full);
  const bool has_list = f.has("layer_types");
  if (has_list) sparse.kinds = named_kinds(f, "layer_types", n_layers, {LayerKind::full, LayerKind::sparse});
  const std::size_t flat_dim = f.size("index_head_dim", 1, most_head_dim, 0);
  if (f.has("sparse_attention_config")) {
    if (!f.at("sparse_attention_config").is_object()) {
      f.fail("field sparse_attention_config is " + Fields::shown(f.at("sparse_attention_config")) +
             "; expected an object");
      return sparse;
    }
    Fields a(f.at("sparse_attention_config"), f.what(), "sparse_attention_config.");
    if (a.boolean("use_sparse_attention", true)) {
      if (a.has("sparse_attention_freq")) {
        const auto listed = numbered_kinds(a, "sparse_attention_freq", n_layers, LayerKind::full, LayerKind::sparse);
        if (has_list) must_agree(a, "sparse_attention_freq", listed, "layer_types", sparse.kinds);
        sparse.kinds = listed;
      } else if (!has_list) {
        a.fail("field sparse_attention_config.sparse_attention_freq is missing; expected 0 or 1 for every layer");
      }
      // An indexer that also attends would keep values.
      if (a.has("sparse_disable_index_value")) {
        const auto off = numbered_kinds(a, "sparse_disable_index_value", n_layers, LayerKind::full, LayerKind::sparse);
        for (std::size_t il = 0; il < off.size() && il < sparse.kinds.size(); ++il) {
          if (sparse.kinds[il] == LayerKind::sparse && off[il] != LayerKind::sparse) {
            a.fail("field sparse_attention_config.sparse_disable_index_value holds 0 for layer " + std::to_string(il) +
                   "; expected 1 where sparse_attention_freq is");
          }
        }
      }
      sparse.index_dim = a.size("sparse_index_dim", 1, most_head_dim, flat_dim);
      if (flat_dim != 0 && flat_dim != sparse.index_dim) {
        a.fail("field sparse_attention_config.sparse_index_dim is " + std::to_string(sparse.index_dim) +
               " and index_head_dim is " + std::to_string(flat_dim) + "; expected one value");
      }
    } else if (has_list && any_of_kind(sparse.kinds, LayerKind::sparse)) {
      a.fail(
          "field sparse_attention_config.use_sparse_attention is false and layer_types names sparse layers; expected "
          "them to agree");
    }
    if (!a.status().ok()) {
      f.fail(a.status().text());
      return sparse;
    }
  } else {
    sparse.index_dim = flat_dim;
  }
  if (any_of_kind(sparse.kinds, LayerKind::sparse) && sparse.index_dim == 0) {
    f.fail("field index_head_dim is missing; expected the width of an indexer's key");
  }
  return sparse;
}

/// M2 and M3: attention in every layer. The blocks past M3's trunk have an indexer, as its later layers do.
/// @param kv_heads  as in hf_heads
inline void read_minimax_m2(Fields& f, const Storage& s, std::size_t kv_heads, ModelConfig& out) {
  const HfHeads h = hf_heads(f, 128, kv_heads);
  const HfSparse sparse = hf_sparse(f, h.n_layers);
  if (f.has("attn_type_list")) {
    for (const LayerKind kind : numbered_kinds(f, "attn_type_list", h.n_layers, LayerKind::linear, LayerKind::full)) {
      if (kind == LayerKind::linear) f.fail("field attn_type_list holds 0; expected 1, attention, for every layer");
    }
  }
  const LayerSpec full = hf_full(s, h);
  LayerSpec indexed = full;
  if (sparse.index_dim != 0) indexed.states.emplace_back(index_rows(sparse.index_dim, s.k));
  for (const LayerKind kind : sparse.kinds) out.layers.push_back(kind == LayerKind::sparse ? indexed : full);
  add_mtp(out, hf_mtp_modules(f), any_of_kind(sparse.kinds, LayerKind::sparse) ? indexed : full);
}

}  // namespace memra::config
