// What the kernels that end a round receive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/detail/platform.hpp>
#include <memra/views.hpp>
#include <type_traits>

namespace memra {

/// What a stage's device knows of its rounds. One per stage, overwritten in place.
struct RoundWords {
  std::int32_t plane = 0;       ///< which ssm plane of every recurrent layer is the current one
  std::int32_t generation = 0;  ///< rounds committed by kernels: stages that differ have missed one
  std::int32_t status = 0;      ///< not 0: an accept length was outside [0, rows], or rows would have passed capacity
  std::int32_t reserved = 0;
};

/// Wraps at 2^30: a count that only has to tell neighbours apart.
MEMRA_HD constexpr std::int32_t next_generation(std::int32_t g) noexcept {
  return (g + 1) & 0x3fffffff;
}

/// The end of a round of one stage of one cache: positions, the current plane and the conv columns move on by the
/// accepted rows.
struct RoundCommit {
  const RecurView* layers = nullptr;  ///< device: [n_layers] the stage's recurrent states, with what the round kept
  std::size_t n_layers = 0;
  std::size_t conv_dim = 0;  ///< most channels of a layer; for grid sizes only
  std::size_t heads = 0;     ///< most value heads of a layer; for grid sizes only
  std::int32_t* pos_d = nullptr;
  RoundWords* words = nullptr;
  const std::int32_t* accept_d = nullptr;  ///< device: the accepted rows; nullptr: `accept`
  const std::int32_t* rows_d = nullptr;    ///< device: the rows verified; nullptr: `rows`
  std::int32_t accept = 0;
  std::int32_t rows = 0;  ///< rows verified: accept is clamped to [0, rows]; negative: no round, nothing moves
  std::int32_t capacity = 0;
  std::int32_t n_planes = 1;
  RoundMode mode = RoundMode::none;
  bool plain = true;  ///< every layer is RecurView::plain(): kernels that know no other may run

  MEMRA_HD std::int32_t asked() const noexcept { return accept_d != nullptr ? *accept_d : accept; }
  MEMRA_HD std::int32_t verified() const noexcept { return rows_d != nullptr ? *rows_d : rows; }
  MEMRA_HD std::int32_t accepted() const noexcept {
    const std::int32_t a = asked();
    const std::int32_t most = verified();
    return a < 0 || most < 0 ? 0 : a > most ? most : a;
  }

  /// Commit `i` of a launch: `one` itself, or entry `i` of the table, which knows what never changes, in the mode of
  /// `one` and with the accept lengths that `one` brings ([n]), if it does.
  MEMRA_HD static RoundCommit of(const RoundCommit& one, const RoundCommit* many, std::size_t i) noexcept {
    if (many == nullptr) return one;
    RoundCommit c = many[i];
    c.mode = one.mode;
    if (one.accept_d != nullptr) c.accept_d = one.accept_d + i;
    return c;
  }
};

static_assert(std::is_trivially_copyable_v<RoundCommit> && std::is_trivially_copyable_v<RoundWords>);

}  // namespace memra
