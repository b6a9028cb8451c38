// What a layer's specification must satisfy before a plan multiplies its numbers.
#pragma once

#include <cstddef>
#include <memra/detail/checked_math.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/error.hpp>
#include <memra/format.hpp>
#include <memra/model_config.hpp>

namespace memra::detail {

inline Status plan_error(std::size_t layer, const char* sentence) noexcept {
  return Status::failure(ErrorKind::bad_argument, "plan", 0, 0, "layer %zu: %s", layer, sentence);
}

inline Status check_spec(const AttentionSpec& a, std::size_t layer) noexcept {
  if (a.n_kv_heads == 0 || a.head_dim_k == 0 || a.head_dim_v == 0) {
    return plan_error(layer, "attention needs n_kv_heads, head_dim_k and head_dim_v of at least 1");
  }
  if (a.n_heads % a.n_kv_heads != 0) return plan_error(layer, "n_heads is not a multiple of n_kv_heads");
  if (!whole_blocks(a.k_format, a.head_dim_k) || !whole_blocks(a.v_format, a.head_dim_v)) {
    return plan_error(layer, "a block format needs a head dimension that is a multiple of 32");
  }
  if (!(CheckedSize(a.n_kv_heads) * a.head_dim_k).valid() || !(CheckedSize(a.n_kv_heads) * a.head_dim_v).valid()) {
    return plan_error(layer, "n_kv_heads * head_dim does not fit");
  }
  if (!attend_scratch_fits(a.n_heads, a.n_kv_heads, a.head_dim_k, a.head_dim_v)) {
    return plan_error(layer, "the scratch of attend does not fit: n_heads or head_dim is too large");
  }
  return {};
}

inline Status check_spec(const RecurrentSpec& r, std::size_t layer) noexcept {
  if (r.n_k_heads == 0 || r.n_v_heads == 0 || r.d_k == 0 || r.d_v == 0 || r.d_conv == 0) {
    return plan_error(layer, "a recurrent state needs n_k_heads, n_v_heads, d_k, d_v and d_conv of at least 1");
  }
  const CheckedSize conv_dim = CheckedSize(2) * r.d_k * r.n_k_heads + CheckedSize(r.d_v) * r.n_v_heads;
  if (!(conv_dim * r.d_conv * 4).valid() || !(CheckedSize(r.d_v) * r.n_v_heads * r.d_k * 4).valid()) {
    return plan_error(layer, "the recurrent state's size does not fit");
  }
  if (!r.map.fits(r.n_k_heads, r.n_v_heads)) return plan_error(layer, "the key-head map does not fit the head counts");
  return {};
}

}  // namespace memra::detail
