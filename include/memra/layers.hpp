// KvLayer and RecurLayer: what one layer of a cache holds, as values to look at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/format.hpp>
#include <memra/model_config.hpp>
#include <memra/views.hpp>
#include <variant>

namespace memra {

/// One attention layer at rest. Rows [first, len) are committed and there; rows at or beyond len are dead. A layer that
/// shares shows its donor's.
struct KvLayer {
  AttentionSpec spec;
  ConstPlaneView k;
  ConstPlaneView v;                     ///< empty if V is part of K
  std::size_t len = 0;                  ///< equals pos, or runs ahead of it while a replay is owed
  const std::int32_t* pos_d = nullptr;  ///< device: the stage's mirror of pos
  std::size_t first = 0;                ///< oldest row that a ring still holds; 0 for planes of max_ctx rows

  /// Bytes of a row in all of its parts; only in `blocks` do rows follow each other at this distance (layout.hpp).
  std::size_t k_row_bytes() const noexcept { return row_bytes(spec.k_format, k.shape.width); }
  std::size_t v_row_bytes() const noexcept { return v ? row_bytes(spec.v_format, v.shape.width) : 0; }
};

/// Rows of one layer that stand for several tokens each, at rest. Rows [0, len) are committed: those of whole groups.
struct GroupedLayer {
  GroupedRowsSpec spec;
  ConstPlaneView rows;
  std::size_t len = 0;                  ///< Cache::len() / stride
  const std::int32_t* pos_d = nullptr;  ///< device: the stage's mirror of pos, which counts tokens
};

/// One recurrent layer at rest: state after `pos` tokens. Read it as f32 through the StateElems, or as bytes.
struct RecurLayer {
  RecurrentSpec spec;
  const float* conv = nullptr;  ///< [conv_dim][d_conv - 1] raw inputs, oldest first; nullptr unless kept in f32
  const float* ssm = nullptr;   ///< [n_v_heads][d_v][d_k]; nullptr unless kept in f32
  std::size_t pos = 0;
  const std::byte* conv_data = nullptr;  ///< the same, in whatever format
  const std::byte* ssm_data = nullptr;

  std::size_t conv_elems() const noexcept { return spec.conv_dim() * (spec.d_conv - 1); }
  std::size_t ssm_elems() const noexcept { return spec.n_v_heads * spec.d_v * spec.d_k; }
  std::size_t conv_bytes() const noexcept { return row_bytes(spec.conv_format, conv_elems()); }
  std::size_t ssm_bytes() const noexcept { return row_bytes(spec.ssm_format, ssm_elems()); }
};

namespace detail {

/// One state of one layer as the cache keeps it. `written_in` is the step that took the writable view last.
struct KvComponent {
  AttentionSpec spec;
  PlaneView k;
  PlaneView v;
  std::uint64_t written_in = 0;
};
/// Owns nothing: asks the donor.
struct SharedKvComponent {
  SharedKvSpec spec;
};
struct GroupedComponent {
  GroupedRowsSpec spec;
  PlaneView rows;
  std::uint64_t written_in = 0;
};
struct RecurComponent {
  RecurrentSpec spec;
  StateElems conv;
  StateElems ssm;
  StateElems ssm_alt;
  std::uint64_t written_in = 0;
  RecurRound round = {};  ///< where rounds keep things; mode none

  RecurView view(const StepPos& at, const RecurRound& how) const noexcept {
    RecurView r;
    r.conv = conv.f32;
    r.ssm = ssm.f32;
    r.ssm_alt = ssm_alt.f32;
    r.n_k_heads = spec.n_k_heads;
    r.n_v_heads = spec.n_v_heads;
    r.d_k = spec.d_k;
    r.d_v = spec.d_v;
    r.d_conv = spec.d_conv;
    r.map = spec.map;
    r.rows = at.rows;
    r.at = at;
    r.round = how;
    r.rule = spec.rule;
    r.conv_channels = spec.conv_channels;
    r.conv_format = spec.conv_format;
    r.ssm_format = spec.ssm_format;
    r.conv16 = conv.bits;
    r.ssm16 = ssm.bits;
    r.ssm_alt16 = ssm_alt.bits;
    return r;
  }
};
using Component = std::variant<KvComponent, SharedKvComponent, RecurComponent, GroupedComponent>;

}  // namespace detail
}  // namespace memra
