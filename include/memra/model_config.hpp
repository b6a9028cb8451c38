// A model as far as its state is concerned: a list of layers, each a list of state specifications.
#pragma once

#include <cstddef>
#include <memra/format.hpp>
#include <memra/views.hpp>
#include <utility>
#include <variant>
#include <vector>

namespace memra {

/// Softmax attention with K and V planes of max_ctx rows.
struct AttentionSpec {
  std::size_t n_heads = 0;     ///< query heads; sizes scratch only; 0 means n_kv_heads
  std::size_t n_kv_heads = 0;  ///< at least 1
  std::size_t head_dim_k = 0;  ///< a multiple of 32 for block formats
  std::size_t head_dim_v = 0;
  Format k_format = Format::q8_0;
  Format v_format = Format::q5_1;
  Layout k_layout = Layout::blocks;
  Layout v_layout = Layout::blocks;
  std::size_t window = 0;  ///< keys a row may see, the current one included; 0: all. Does not shrink the planes

  friend bool operator==(const AttentionSpec&, const AttentionSpec&) = default;
};

/// Gated delta rule with a convolution in front: f32 conv [conv_dim][d_conv - 1] and f32 ssm [n_v_heads][d_v][d_k].
struct RecurrentSpec {
  std::size_t n_k_heads = 0;
  std::size_t n_v_heads = 0;
  std::size_t d_k = 0;
  std::size_t d_v = 0;
  std::size_t d_conv = 0;      ///< taps of the convolution; 1 keeps no history
  KeyHeadMap map = {};         ///< which key head a value head reads
  bool second_buffer = false;  ///< a second ssm for kernels that cannot update in place; counted by the plan

  friend bool operator==(const RecurrentSpec&, const RecurrentSpec&) = default;
};

/// Every kind of state a layer may have. A new alternative does not compile until every visitor handles it.
using StateSpec = std::variant<AttentionSpec, RecurrentSpec>;

/// The state of one layer; empty for a layer that keeps nothing.
struct LayerSpec {
  std::vector<StateSpec> states;

  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

inline LayerSpec full_attention(const AttentionSpec& spec) {
  return {{spec}};
}
inline LayerSpec recurrent(const RecurrentSpec& spec) {
  return {{spec}};
}
inline LayerSpec no_state() {
  return {};
}

/// What a Cache is made from.
struct ModelConfig {
  std::vector<LayerSpec> layers;  ///< trunk first, then blocks past the trunk (MTP), which belong to the last stage
  std::size_t n_vocab = 0;        ///< elements of a parked logits row; 0: no parking

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

namespace detail {

/// Visitor from lambdas; without a generic lambda among them, a missing alternative is a compile error.
template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace detail
}  // namespace memra
