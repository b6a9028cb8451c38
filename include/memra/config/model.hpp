// What a loader gives: a model's state as specifications, and what the user may choose about how it is stored.
#pragma once

#include <cstddef>
#include <memra/format.hpp>
#include <memra/model_config.hpp>
#include <memra/round_types.hpp>
#include <string>
#include <utility>

namespace memra::config {

/// How the state is stored: a model's file does not say.
struct Storage {
  Format k = Format::q8_0;  ///< also of latent rows and of an indexer's keys
  Format v = Format::q5_1;
  Format ssm = Format::f32;  ///< f32, f16 or bf16
  Format conv = Format::f32;
  std::size_t ring_slack = max_round_rows;  ///< rows that rings keep beyond their window; 0: windows in flat planes
  bool second_buffer = false;               ///< a second ssm for kernels that cannot update in place
};

struct Model {
  ModelConfig state;
  std::string family;             ///< the name its file gives itself
  std::size_t max_positions = 0;  ///< context it was made for; 0 where the file does not say
};

// Bounds on numbers from a file: far above any model, low enough that a product of two never wraps.
inline constexpr std::size_t most_dim = std::size_t{1} << 24;
inline constexpr std::size_t most_layers = 4096;
inline constexpr std::size_t most_heads = 65536;
inline constexpr std::size_t most_head_dim = 65536;
inline constexpr std::size_t most_taps = 1024;
inline constexpr std::size_t most_positions = std::size_t{1} << 31;

/// Attention of one layer. `window` 0: none.
inline AttentionSpec attention(const Storage& s, std::size_t n_heads, std::size_t n_kv_heads, std::size_t head_dim_k,
                               std::size_t head_dim_v, std::size_t window = 0) {
  AttentionSpec a;
  a.n_heads = n_heads;
  a.n_kv_heads = n_kv_heads;
  a.head_dim_k = head_dim_k;
  a.head_dim_v = head_dim_v;
  a.k_format = s.k;
  a.v_format = s.v;
  return window == 0 ? a : windowed(a, window, s.ring_slack);
}

/// Recurrent state as the user wants it stored.
inline RecurrentSpec stored(const Storage& s, RecurrentSpec r) {
  r.second_buffer = s.second_buffer && r.rule != ScanRule::none;
  return stored_as(r, s.conv, s.ssm);
}

}  // namespace memra::config
