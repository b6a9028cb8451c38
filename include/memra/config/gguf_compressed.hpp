// GGUF files of DeepSeek V4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/config/compressed.hpp>
#include <memra/config/gguf_fields.hpp>
#include <memra/config/gguf_reader.hpp>
#include <memra/config/model.hpp>
#include <memra/model_config.hpp>
#include <string>

namespace memra::config {

/// Lists of these files may go on behind the last block.
/// @param n_all  blocks, those past the trunk included
inline void read_gguf_compressed(GgufFields& f, const Storage& s, std::size_t n_all, std::size_t n_mtp,
                                 ModelConfig& out) {
  CompressedHeads h;
  h.n_heads = f.size("attention.head_count", 1, most_heads);
  f.size("attention.head_count_kv", 1, 1, 1);
  h.head_dim = f.size("attention.key_length", 1, most_head_dim);
  h.window = f.size("attention.sliding_window", 1, most_positions);
  h.index_dim = f.size("attention.indexer.key_length", 1, most_head_dim);
  const GgufValue* ratios = f.find("attention.compress_ratios");
  if (ratios == nullptr || !ratios->is_array || ratios->type == GgufType::boolean || ratios->numbers.size() < n_all) {
    f.fail(f.named("attention.compress_ratios") + " is missing or too short; expected 0, 4 or 128 for " +
           std::to_string(n_all) + " layers");
  }
  for (std::size_t il = 0; f.status().ok() && il < ratios->numbers.size(); ++il) {
    const std::int64_t ratio = ratios->numbers[il];
    if (ratio != 0 && ratio != 4 && ratio != 128) {
      return f.fail(f.named("attention.compress_ratios") + " holds " + std::to_string(ratio) + " for layer " +
                    std::to_string(il) + "; expected 0, 4 or 128");
    }
    if (il >= n_all) continue;  // the list may go on
    out.layers.push_back(compressed_layer(s, h, {static_cast<std::size_t>(ratio), ratio == 4}));
  }
  out.n_mtp = n_mtp;
}

}  // namespace memra::config
