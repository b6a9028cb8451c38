// Layers of DeepSeek V4: a window, and rows that stand for several tokens each.
#pragma once

#include <cstddef>
#include <memra/config/model.hpp>
#include <memra/model_config.hpp>

namespace memra::config {

/// What the layers of DeepSeek V4 are made from.
struct CompressedHeads {
  std::size_t n_heads = 0;
  std::size_t head_dim = 0;  ///< of the one row that is K and V of all heads
  std::size_t window = 0;
  std::size_t index_dim = 0;  ///< of an indexer's keys
};

/// How many tokens a row stands for, and whether each is made of its own group and the one before (with an indexer over
/// such rows), or of its own group alone.
struct Compression {
  std::size_t stride = 0;  ///< 0: a window alone
  bool overlapping = false;
};

/// The window's rows; the compressed ones; and of what compresses them the inputs that the next row still needs: keys
/// and weights per token, of two kinds where groups overlap (one for each group a token is in).
inline LayerSpec compressed_layer(const Storage& s, const CompressedHeads& h, const Compression& c) {
  const AttentionSpec rows = latent_rows(h.n_heads, h.head_dim, 0, s.k);
  LayerSpec l = full_attention(windowed(rows, h.window, s.ring_slack));
  const auto add = [&](std::size_t dim) {
    const std::size_t groups = c.overlapping ? 2 : 1;
    l.states.emplace_back(grouped_rows(dim, c.stride, s.k));
    l.states.emplace_back(stored(s, short_conv(2 * groups * dim, groups * c.stride)));
  };
  if (c.stride != 0) add(h.head_dim);
  if (c.overlapping) add(h.index_dim);
  return l;
}

}  // namespace memra::config
