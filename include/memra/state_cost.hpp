// What a layer's state costs in bytes, as constant expressions: the payload that plan() lays out, without a plan.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memra/format.hpp>
#include <memra/model_config.hpp>
#include <span>
#include <variant>

namespace memra {

/// Payload of states: no padding, no alignment, no mirrors and nothing that rounds keep.
struct StateCost {
  std::size_t bytes_per_token = 0;      ///< of planes that grow with the context
  std::size_t ring_cap_bytes = 0;       ///< of a full window in every ring
  std::size_t ring_bytes = 0;           ///< of the rings at this context
  std::size_t grouped_bytes = 0;        ///< of rows that stand for several tokens, at this context
  std::size_t fixed_bytes = 0;          ///< one copy of the recurrent state: d_conv - 1 columns and the ssm
  std::size_t second_buffer_bytes = 0;  ///< second copies of the ssm

  /// All of it at `ctx` rows of context: the one that the cost was asked for.
  constexpr std::size_t at(std::size_t ctx) const noexcept {
    return bytes_per_token * ctx + ring_bytes + grouped_bytes + fixed_bytes + second_buffer_bytes;
  }

  friend constexpr StateCost operator+(const StateCost& a, const StateCost& b) noexcept {
    return {a.bytes_per_token + b.bytes_per_token, a.ring_cap_bytes + b.ring_cap_bytes,
            a.ring_bytes + b.ring_bytes,           a.grouped_bytes + b.grouped_bytes,
            a.fixed_bytes + b.fixed_bytes,         a.second_buffer_bytes + b.second_buffer_bytes};
  }
  friend constexpr bool operator==(const StateCost&, const StateCost&) = default;
};

/// @param max_ctx  rows of context that the planes are for
/// @pre plan() accepts the specification: sizes fit and blocks divide the rows
constexpr StateCost state_cost(const AttentionSpec& a, std::size_t max_ctx) noexcept {
  const std::size_t row = row_bytes(a.k_format, a.n_kv_heads * a.head_dim_k) +
                          (a.v_in_k ? 0 : row_bytes(a.v_format, a.n_kv_heads * a.head_dim_v));
  StateCost c;
  if (a.window == 0 || a.ring_slack == 0) {
    c.bytes_per_token = row;
  } else {
    c.ring_cap_bytes = row * a.window;
    c.ring_bytes = row * ring_rows(a, max_ctx);
  }
  return c;
}

/// A layer that borrows keeps nothing.
constexpr StateCost state_cost(const SharedKvSpec&, std::size_t) noexcept {
  return {};
}

constexpr StateCost state_cost(const GroupedRowsSpec& g, std::size_t max_ctx) noexcept {
  StateCost c;
  c.grouped_bytes = row_bytes(g.format, g.dim) * (max_ctx / g.stride);
  return c;
}

constexpr StateCost state_cost(const RecurrentSpec& r, std::size_t) noexcept {
  const std::size_t channels = r.conv_channels != 0 ? r.conv_channels : 2 * r.d_k * r.n_k_heads + r.d_v * r.n_v_heads;
  const std::size_t ssm = row_bytes(r.ssm_format, r.n_v_heads * r.d_v * r.d_k);
  StateCost c;
  c.fixed_bytes = row_bytes(r.conv_format, channels * (r.d_conv - 1)) + ssm;
  c.second_buffer_bytes = r.second_buffer ? ssm : 0;
  return c;
}

/// The sum over the states of some layers.
constexpr StateCost state_cost(std::span<const LayerSpec> layers, std::size_t max_ctx) noexcept {
  StateCost sum;
  for (const LayerSpec& layer : layers) {
    for (const StateSpec& state : layer.states) {
      sum = sum + std::visit([&](const auto& s) { return state_cost(s, max_ctx); }, state);
    }
  }
  return sum;
}

/// A model's cost: its trunk, and the blocks past it.
struct ModelCost {
  StateCost trunk;
  StateCost mtp;
};

/// @pre plan() accepts the configuration
constexpr ModelCost state_cost(const ModelConfig& cfg, std::size_t max_ctx) noexcept {
  const std::span<const LayerSpec> all(cfg.layers);
  const std::size_t n_trunk = all.size() - std::min(cfg.n_mtp, all.size());
  return {state_cost(all.first(n_trunk), max_ctx), state_cost(all.subspan(n_trunk), max_ctx)};
}

}  // namespace memra
