// Ways to take a draft back, what they cost in memory, and what a cache has paid for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace memra {

/// How a round gives up the tokens that were not accepted. All end in the same bits.
enum class Strategy : std::uint8_t {
  automatic,  ///< what the plan chose
  replay,     ///< copy the recurrent state, copy it back, feed the accepted tokens again
  planes,     ///< keep the ssm after each token of the round; commit picks one
  stash,      ///< leave the state alone, keep the scan's inputs; commit applies the accepted ones
};

constexpr std::string_view to_string(Strategy s) noexcept {
  switch (s) {
    case Strategy::automatic:
      return "automatic";
    case Strategy::replay:
      return "replay";
    case Strategy::planes:
      return "planes";
    case Strategy::stash:
      return "stash";
  }
  return "unknown";
}

/// Most rows of one round: the scan of a round takes all its tokens in one pass over the state.
inline constexpr std::size_t max_round_rows = 64;

/// Largest d_k that stash takes: a column of the state moves through the round in a kernel's own memory.
inline constexpr std::size_t max_stash_d_k = 2048;

/// Which rounds a cache is to be able to run. Their memory is part of its plan, in the `extra` slabs.
struct RoundOptions {
  std::size_t rows = 0;  ///< most rows of a round, the pending token included; 0: no rounds
  // Strategies to pay for. If none is set the plan chooses one within the budget.
  bool replay = false;
  bool planes = false;
  bool stash = false;
  std::size_t budget_bytes = static_cast<std::size_t>(-1);  ///< most bytes of what the plan chooses
};

/// What was paid for, and what it costs. Bytes are payload, summed over all devices.
struct RoundPlan {
  std::size_t rows = 0;
  bool replay = false;
  bool planes = false;
  bool stash = false;
  Strategy automatic = Strategy::replay;  ///< what Strategy::automatic means for this cache
  std::size_t replay_bytes = 0;           ///< a copy of the state slabs
  std::size_t plane_bytes = 0;            ///< rows more ssm planes per recurrent layer
  std::size_t stash_bytes = 0;            ///< k, u and decay of every row
  std::size_t conv_row_bytes = 0;         ///< raw conv inputs of every row: planes and stash share them
  std::size_t table_bytes = 0;            ///< per stage: the words of the round, then a view of each recurrent layer

  bool pays(Strategy s) const noexcept {
    return (s == Strategy::replay && replay) || (s == Strategy::planes && planes) || (s == Strategy::stash && stash);
  }
  std::size_t total_bytes() const noexcept {
    return replay_bytes + plane_bytes + stash_bytes + conv_row_bytes + table_bytes;
  }
};

}  // namespace memra
