// What a layer's specification must satisfy before a plan multiplies its numbers.
#pragma once

#include <cstddef>
#include <memra/detail/checked_math.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/error.hpp>
#include <memra/format.hpp>
#include <memra/model_config.hpp>
#include <memra/placement.hpp>
#include <variant>

namespace memra::detail {

inline Status plan_error(std::size_t layer, const char* sentence) noexcept {
  return Status::failure(ErrorKind::bad_argument, "plan", 0, 0, "layer %zu: %s", layer, sentence);
}

/// The AttentionSpec that is the `nth` attention state of a layer, shared ones counted; nullptr if that is none.
inline const AttentionSpec* owned_attention(const ModelConfig& cfg, std::size_t layer, std::size_t nth) noexcept {
  if (layer >= cfg.layers.size()) return nullptr;
  for (const StateSpec& state : cfg.layers[layer].states) {
    if (role_of(state).attention && nth-- == 0) return std::get_if<AttentionSpec>(&state);
  }
  return nullptr;
}

inline Status check_ring(const AttentionSpec& a, std::size_t layer) noexcept {
  if (a.ring_slack == 0) return {};
  if (a.window == 0) return plan_error(layer, "ring_slack without a window; a ring keeps what a window needs");
  // Elements are at most four bytes.
  const CheckedSize width = (CheckedSize(a.head_dim_k) + a.head_dim_v) * a.n_kv_heads * 4;
  if (!(align_up(CheckedSize(a.window) + a.ring_slack, ring_tile) * width).valid()) {
    return plan_error(layer, "window + ring_slack does not fit");
  }
  return {};
}

inline Status check_spec(const AttentionSpec& a, const ModelConfig&, const Placement&, std::size_t layer) noexcept {
  if (a.n_kv_heads == 0 || a.head_dim_k == 0 || (a.head_dim_v == 0 && !a.v_in_k)) {
    return plan_error(layer, "attention needs n_kv_heads, head_dim_k and head_dim_v of at least 1");
  }
  if (a.v_in_k && a.head_dim_v > a.head_dim_k) {
    return plan_error(layer, "V is to be the first head_dim_v elements of K, which has fewer");
  }
  if (a.n_heads % a.n_kv_heads != 0) return plan_error(layer, "n_heads is not a multiple of n_kv_heads");
  if (!whole_blocks(a.k_format, a.head_dim_k) || (!a.v_in_k && !whole_blocks(a.v_format, a.head_dim_v))) {
    return plan_error(layer, "a block format needs a head dimension that is a multiple of 32");
  }
  if (!(CheckedSize(a.n_kv_heads) * a.head_dim_k).valid() || !(CheckedSize(a.n_kv_heads) * a.head_dim_v).valid()) {
    return plan_error(layer, "n_kv_heads * head_dim does not fit");
  }
  if (!attend_scratch_fits(a.n_heads, a.n_kv_heads, a.head_dim_k, a.head_dim_v)) {
    return plan_error(layer, "the scratch of attend does not fit: n_heads or head_dim is too large");
  }
  return check_ring(a, layer);
}

inline Status check_spec(const SharedKvSpec& s, const ModelConfig& cfg, const Placement& placement,
                         std::size_t layer) noexcept {
  const AttentionSpec* donor = s.donor < layer ? owned_attention(cfg, s.donor, s.nth) : nullptr;
  if (donor == nullptr) {
    return Status::failure(
        ErrorKind::bad_argument, "plan", 0, 0,
        "layer %zu: shares attention state %zu of layer %zu; expected an earlier layer that owns one", layer, s.nth,
        s.donor);
  }
  if (donor->n_kv_heads == 0 || s.n_heads % donor->n_kv_heads != 0) {
    return plan_error(layer, "n_heads is not a multiple of the donor's n_kv_heads");
  }
  if (!attend_scratch_fits(s.n_heads, donor->n_kv_heads, donor->head_dim_k, donor->head_dim_v)) {
    return plan_error(layer, "the scratch of attend does not fit: n_heads is too large");
  }
  if (placement.device_of[stage_of(placement, layer)] != placement.device_of[stage_of(placement, s.donor)]) {
    return Status::failure(ErrorKind::bad_argument, "plan", 0, 0,
                           "layer %zu: shares the K and V of layer %zu, which is on another device; move the fence",
                           layer, s.donor);
  }
  return {};
}

inline Status check_spec(const GroupedRowsSpec& g, const ModelConfig&, const Placement&, std::size_t layer) noexcept {
  if (g.dim == 0 || g.stride == 0) return plan_error(layer, "grouped rows need dim and stride of at least 1");
  if (!(CheckedSize(g.dim) * 4).valid()) return plan_error(layer, "dim of grouped rows does not fit");
  if (!whole_blocks(g.format, g.dim)) {
    return plan_error(layer, "a block format needs a dim of grouped rows that is a multiple of 32");
  }
  return {};
}

inline bool state_format(Format f) noexcept {
  return f == Format::f32 || f == Format::f16 || f == Format::bf16;
}

inline Status check_spec(const RecurrentSpec& r, const ModelConfig&, const Placement&, std::size_t layer) noexcept {
  if (!state_format(r.conv_format) || !state_format(r.ssm_format)) {
    return plan_error(layer, "a recurrent state is kept in f32, f16 or bf16");
  }
  if (r.rule == ScanRule::none) {
    if (r.conv_channels == 0 || r.d_conv == 0) {
      return plan_error(layer, "a convolution alone needs conv_channels and d_conv of at least 1");
    }
    if (r.n_k_heads != 0 || r.n_v_heads != 0 || r.d_k != 0 || r.d_v != 0 || r.second_buffer) {
      return plan_error(layer, "a convolution alone has no heads, no d_k and d_v, and no second buffer");
    }
    const bool fits = (CheckedSize(r.conv_channels) * r.d_conv * 4).valid();
    return fits ? Status() : plan_error(layer, "the recurrent state's size does not fit");
  }
  if (r.n_k_heads == 0 || r.n_v_heads == 0 || r.d_k == 0 || r.d_v == 0 || r.d_conv == 0) {
    return plan_error(layer, "a recurrent state needs n_k_heads, n_v_heads, d_k, d_v and d_conv of at least 1");
  }
  const CheckedSize conv_dim = CheckedSize(2) * r.d_k * r.n_k_heads + CheckedSize(r.d_v) * r.n_v_heads;
  if (!(conv_dim * r.d_conv * 4).valid() || !(CheckedSize(r.conv_channels) * r.d_conv * 4).valid() ||
      !(CheckedSize(r.d_v) * r.n_v_heads * r.d_k * 4).valid()) {
    return plan_error(layer, "the recurrent state's size does not fit");
  }
  if (r.rule == ScanRule::mamba1 && (r.n_k_heads != 1 || r.n_v_heads != 1)) {
    return plan_error(layer, "mamba1 has one head: d_v is d_inner, d_k is d_state");
  }
  if (!r.map.fits(r.n_k_heads, r.n_v_heads)) return plan_error(layer, "the key-head map does not fit the head counts");
  return {};
}

}  // namespace memra::detail
