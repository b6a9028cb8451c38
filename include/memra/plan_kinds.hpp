// The kinds of planes and slabs that a plan lists, and their names.
#pragma once

#include <cstdint>
#include <string_view>

namespace memra {

/// What a plane of memory holds. Those of rounds: see RecurRound.
enum class PlaneKind : std::uint8_t {
  k,
  v,
  grouped,  ///< rows that stand for several tokens each
  conv,
  ssm,
  ssm_alt,
  round_planes,
  round_conv,
  round_k,
  round_u,
  round_decay
};

constexpr std::string_view to_string(PlaneKind kind) noexcept {
  switch (kind) {
    case PlaneKind::k:
      return "k";
    case PlaneKind::v:
      return "v";
    case PlaneKind::grouped:
      return "grouped";
    case PlaneKind::conv:
      return "conv";
    case PlaneKind::ssm:
      return "ssm";
    case PlaneKind::ssm_alt:
      return "ssm_alt";
    case PlaneKind::round_planes:
      return "round_planes";
    case PlaneKind::round_conv:
      return "round_conv";
    case PlaneKind::round_k:
      return "round_k";
    case PlaneKind::round_u:
      return "round_u";
    case PlaneKind::round_decay:
      return "round_decay";
  }
  return "unknown";
}

/// The memory blocks of one device object.
enum class SlabKind : std::uint8_t {
  rows,   ///< the stages' position ints, then everything append-only
  state,  ///< current conv and ssm of every layer, contiguous: a snapshot is one copy
  extra,  ///< second buffers and what rounds keep, never part of a snapshot
};

constexpr std::string_view to_string(SlabKind kind) noexcept {
  switch (kind) {
    case SlabKind::rows:
      return "rows";
    case SlabKind::state:
      return "state";
    case SlabKind::extra:
      return "extra";
  }
  return "unknown";
}

}  // namespace memra
