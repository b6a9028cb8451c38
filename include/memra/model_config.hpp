// A model as far as its state is concerned: a list of layers, each a list of state specifications.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memra/format.hpp>
#include <memra/views.hpp>
#include <utility>
#include <variant>
#include <vector>

namespace memra {

/// Softmax attention: K and V planes of max_ctx rows, or rings of what a window needs.
struct AttentionSpec {
  std::size_t n_heads = 0;     ///< query heads; sizes scratch only; 0 means n_kv_heads
  std::size_t n_kv_heads = 0;  ///< at least 1
  std::size_t head_dim_k = 0;  ///< a multiple of 32 for block formats
  std::size_t head_dim_v = 0;
  Format k_format = Format::q8_0;
  Format v_format = Format::q5_1;
  Layout k_layout = Layout::blocks;
  Layout v_layout = Layout::blocks;
  std::size_t window = 0;      ///< keys a row may see, the current one included; 0: all
  std::size_t ring_slack = 0;  ///< rows beyond the window that a ring keeps, see ring_rows; 0: planes of max_ctx rows
  bool v_in_k = false;  ///< no V plane: the first head_dim_v elements of a head's K are its V; v_format means nothing

  friend bool operator==(const AttentionSpec&, const AttentionSpec&) = default;
};

/// Attention over the K and V of an earlier layer; owns nothing. The donor's geometry and window hold.
struct SharedKvSpec {
  std::size_t donor = 0;    ///< layer, below the borrowing one and on the same device object
  std::size_t nth = 0;      ///< which attention state of the donor; not a shared one
  std::size_t n_heads = 0;  ///< query heads; sizes scratch only; 0 means the donor's

  friend bool operator==(const SharedKvSpec&, const SharedKvSpec&) = default;
};

/// Everything that is changed in place: a convolution's history [conv_dim][d_conv - 1] and a matrix per value head, ssm
/// [n_v_heads][d_v][d_k]. Both in f32, f16 or bf16: kernels compute in f32 and round once per token, when they store.
struct RecurrentSpec {
  ScanRule rule = ScanRule::gated_delta;
  std::size_t n_k_heads = 0;
  std::size_t n_v_heads = 0;
  std::size_t d_k = 0;
  std::size_t d_v = 0;
  std::size_t d_conv = 0;         ///< taps of the convolution; 1 keeps no history
  std::size_t conv_channels = 0;  ///< of the convolution; 0: 2 * d_k * n_k_heads + d_v * n_v_heads
  Format conv_format = Format::f32;
  Format ssm_format = Format::f32;
  KeyHeadMap map = {};         ///< which key head a value head reads
  bool second_buffer = false;  ///< a second ssm for kernels that cannot update in place; counted by the plan

  constexpr std::size_t conv_dim() const noexcept {
    return conv_channels != 0 ? conv_channels : 2 * d_k * n_k_heads + d_v * n_v_heads;
  }
  /// It has a chunked scan, see ScanClass.
  constexpr bool has_chunks() const noexcept { return rule == ScanRule::gated_delta && ssm_format == Format::f32; }
  friend bool operator==(const RecurrentSpec&, const RecurrentSpec&) = default;
};

/// Rows that stand for several tokens each (DeepSeek V4's compressed keys, which are their values, too): one row of
/// `dim` elements for every `stride` tokens, written with the last of them. What of it depends on tokens of a group
/// that is not full yet is a recurrent state beside it: a convolution's history, say. Kernels are the engine's.
struct GroupedRowsSpec {
  std::size_t dim = 0;     ///< a multiple of 32 for block formats
  std::size_t stride = 0;  ///< tokens of a row; at least 1
  Format format = Format::q8_0;
  Layout layout = Layout::blocks;

  friend bool operator==(const GroupedRowsSpec&, const GroupedRowsSpec&) = default;
};

/// Every kind of state a layer may have. A new alternative does not compile until every visitor handles it.
using StateSpec = std::variant<AttentionSpec, SharedKvSpec, RecurrentSpec, GroupedRowsSpec>;

/// The state of one layer: several for a layer with parallel branches, none for one that keeps nothing.
struct LayerSpec {
  std::vector<StateSpec> states;

  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

/// What a Cache is made from.
struct ModelConfig {
  std::vector<LayerSpec> layers;  ///< trunk first, then blocks past the trunk (MTP), which belong to the last stage
  std::size_t n_vocab = 0;        ///< elements of a parked logits row; 0: no parking
  std::size_t n_mtp = 0;          ///< how many of the last layers are past the trunk: the plan counts them apart

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

/// Physical rows of the planes of `a`: max_ctx, or for a ring window + ring_slack, rounded up to whole tiles, if that
/// is less. Row r is then physical row r mod ring_rows.
/// @pre window + ring_slack fit (plan() refuses others)
constexpr std::size_t ring_rows(const AttentionSpec& a, std::size_t max_ctx) noexcept {
  if (a.window == 0 || a.ring_slack == 0) return max_ctx;
  return std::min(max_ctx, (a.window + a.ring_slack + ring_tile - 1) / ring_tile * ring_tile);
}

/// Most rows of one step or round: the first of them still finds its window when the last has been written.
constexpr std::size_t call_rows(const AttentionSpec& a, std::size_t max_ctx) noexcept {
  const std::size_t rows = ring_rows(a, max_ctx);
  return rows == max_ctx ? max_ctx : rows - (a.window - 1);
}

// --- states by name ---

/// `a` with a window, in a ring that takes calls of up to `slack` rows and rollbacks to `slack` rows before the last
/// that was written. 0: planes of max_ctx rows.
constexpr AttentionSpec windowed(AttentionSpec a, std::size_t window, std::size_t slack) {
  a.window = window;
  a.ring_slack = slack;
  return a;
}

/// Latent rows of MLA: [kv_lora_rank | rope_dim] per token, one for all query heads, V being the latent part.
constexpr AttentionSpec latent_rows(std::size_t n_heads, std::size_t kv_lora_rank, std::size_t rope_dim,
                                    Format format = Format::q8_0, Layout layout = Layout::blocks) {
  AttentionSpec a;
  a.n_heads = n_heads;
  a.n_kv_heads = 1;
  a.head_dim_k = kv_lora_rank + rope_dim;
  a.head_dim_v = kv_lora_rank;
  a.k_format = a.v_format = format;
  a.k_layout = a.v_layout = layout;
  a.v_in_k = true;
  return a;
}

/// Keys of a sparse-attention indexer: rows of `dim` that are only scored. Nothing is attended.
constexpr AttentionSpec index_rows(std::size_t dim, Format format = Format::q8_0, Layout layout = Layout::blocks) {
  return latent_rows(1, 0, dim, format, layout);
}

/// One row of `dim` elements for every `stride` tokens.
constexpr GroupedRowsSpec grouped_rows(std::size_t dim, std::size_t stride, Format format = Format::q8_0,
                                       Layout layout = Layout::blocks) {
  return {dim, stride, format, layout};
}

/// Gated delta rule (Qwen3-Next and kin): one decay per value head, convolution over q, k and v.
constexpr RecurrentSpec gated_delta(std::size_t n_k_heads, std::size_t n_v_heads, std::size_t d_k, std::size_t d_v,
                                    std::size_t d_conv) {
  RecurrentSpec r;
  r.n_k_heads = n_k_heads;
  r.n_v_heads = n_v_heads;
  r.d_k = d_k;
  r.d_v = d_v;
  r.d_conv = d_conv;
  return r;
}

/// Kimi delta attention: a decay per key channel. Its three convolutions are one over all q, then all k, then all v.
constexpr RecurrentSpec kda(std::size_t n_heads, std::size_t d_k, std::size_t d_v, std::size_t d_conv) {
  RecurrentSpec r = gated_delta(n_heads, n_heads, d_k, d_v, d_conv);
  r.rule = ScanRule::kda;
  return r;
}

/// Mamba-2: convolution over d_inner + 2 * n_groups * d_state, ssm [n_heads][head_dim][d_state]; B and C of a group
/// serve n_heads / n_groups neighbouring heads.
constexpr RecurrentSpec mamba2(std::size_t n_heads, std::size_t head_dim, std::size_t n_groups, std::size_t d_state,
                               std::size_t d_conv) {
  RecurrentSpec r = gated_delta(n_groups, n_heads, d_state, head_dim, d_conv);
  r.rule = ScanRule::linear;
  return r;
}

/// Mamba-1: convolution over d_inner, ssm [d_inner][d_state], a decay per element.
constexpr RecurrentSpec mamba1(std::size_t d_inner, std::size_t d_state, std::size_t d_conv) {
  RecurrentSpec r = gated_delta(1, 1, d_state, d_inner, d_conv);
  r.rule = ScanRule::mamba1;
  r.conv_channels = d_inner;
  return r;
}

/// Lightning and other decay-only linear attention: no convolution.
constexpr RecurrentSpec lightning(std::size_t n_heads, std::size_t d_k, std::size_t d_v) {
  RecurrentSpec r = gated_delta(n_heads, n_heads, d_k, d_v, 1);
  r.rule = ScanRule::linear;
  return r;
}

/// A convolution and nothing else (LFM2).
constexpr RecurrentSpec short_conv(std::size_t channels, std::size_t d_conv) {
  RecurrentSpec r;
  r.rule = ScanRule::none;
  r.d_conv = d_conv;
  r.conv_channels = channels;
  return r;
}

/// `r` with its convolution's history and its ssm in these formats: f32, f16 or bf16.
constexpr RecurrentSpec stored_as(RecurrentSpec r, Format conv, Format ssm) {
  r.conv_format = conv;
  r.ssm_format = ssm;
  return r;
}

// --- layers of one state; a layer of several is LayerSpec{{a, b}} ---

inline LayerSpec full_attention(const AttentionSpec& spec) {
  return {{spec}};
}
inline LayerSpec sliding_attention(const AttentionSpec& spec, std::size_t window, std::size_t slack) {
  return {{windowed(spec, window, slack)}};
}
inline LayerSpec shared_attention(std::size_t donor, std::size_t n_heads = 0) {
  return {{SharedKvSpec{donor, 0, n_heads}}};
}
inline LayerSpec recurrent(const RecurrentSpec& spec) {
  return {{spec}};
}
inline LayerSpec no_state() {
  return {};
}

namespace detail {

/// Visitor from lambdas; without a generic lambda among them, a missing alternative is a compile error.
template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

/// What a state is in a layer: which accessor answers for it, and whether a step writes it.
struct StateRole {
  bool attention = false;  ///< kv(), kv_write and kv_read count it
  bool recurrent = false;  ///< recur() counts it
  bool written = false;    ///< has views of its own, to be taken in every step
};
constexpr StateRole role_of(const StateSpec& state) noexcept {
  static_assert(std::variant_size_v<StateSpec> == 4, "memra: say here what the new kind of state is");
  const bool shared = std::holds_alternative<SharedKvSpec>(state);
  return {shared || std::holds_alternative<AttentionSpec>(state), std::holds_alternative<RecurrentSpec>(state),
          !shared};
}

}  // namespace detail
}  // namespace memra
