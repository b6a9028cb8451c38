// KvLayer and RecurLayer: what one layer of a cache holds, as values to look at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/model_config.hpp>
#include <memra/views.hpp>
#include <variant>

namespace memra {

/// One attention layer at rest. Rows [0, len) are committed; rows at or beyond len are dead.
struct KvLayer {
  AttentionSpec spec;
  ConstPlaneView k;
  ConstPlaneView v;
  std::size_t len = 0;                  ///< equals pos, or runs ahead of it while a replay is owed
  const std::int32_t* pos_d = nullptr;  ///< device: the stage's mirror of pos

  std::size_t k_row_bytes() const noexcept { return row_bytes(spec.k_format, k.shape.width); }
  std::size_t v_row_bytes() const noexcept { return row_bytes(spec.v_format, v.shape.width); }
};

/// One recurrent layer at rest: state after `pos` tokens.
struct RecurLayer {
  RecurrentSpec spec;
  const float* conv = nullptr;  ///< [conv_dim][d_conv - 1] raw inputs, oldest first
  const float* ssm = nullptr;   ///< [n_v_heads][d_v][d_k]
  std::size_t pos = 0;

  std::size_t conv_elems() const noexcept {
    return (2 * spec.d_k * spec.n_k_heads + spec.d_v * spec.n_v_heads) * (spec.d_conv - 1);
  }
  std::size_t ssm_elems() const noexcept { return spec.n_v_heads * spec.d_v * spec.d_k; }
};

namespace detail {

/// One state of one layer as the cache keeps it. `written_in` is the step that took the writable view last.
struct KvComponent {
  AttentionSpec spec;
  PlaneView k;
  PlaneView v;
  std::uint64_t written_in = 0;
};
struct RecurComponent {
  RecurrentSpec spec;
  float* conv = nullptr;
  float* ssm = nullptr;
  float* ssm_alt = nullptr;
  std::uint64_t written_in = 0;
  RecurRound round = {};  ///< where rounds keep things; mode none

  RecurView view(const StepPos& at, const RecurRound& how) const noexcept {
    return {conv,    ssm, ssm_alt, spec.n_k_heads, spec.n_v_heads, spec.d_k, spec.d_v, spec.d_conv, spec.map,
            at.rows, at,  how};
  }
};
using Component = std::variant<KvComponent, RecurComponent>;

}  // namespace detail
}  // namespace memra
