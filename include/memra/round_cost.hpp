// What a round moves, in bytes of recurrent state: the model behind Strategy::automatic, and what reports show.
#pragma once

#include <cstddef>
#include <memra/plan.hpp>
#include <memra/round_types.hpp>

namespace memra {

/// Bytes of conv, ssm and what a round keeps that are read and written by a round of `rows` tokens of which `accept`
/// are kept: copies, scans of the verify and the replay, commit. Without weights, K and V.
///
/// @pre plan.round.pays(by)
inline std::size_t round_traffic(const Plan& plan, Strategy by, std::size_t rows, std::size_t accept) noexcept {
  const std::size_t conv = plan.totals.conv_bytes;
  const std::size_t ssm = plan.totals.ssm_bytes;
  const std::size_t paid = plan.round.rows == 0 ? 1 : plan.round.rows;
  const std::size_t raw = plan.round.conv_row_bytes / paid;
  const std::size_t stash = plan.round.stash_bytes / paid;
  const std::size_t columns = accept == 0 ? 0 : 2 * conv;  // the commit's
  switch (by) {
    case Strategy::planes:
      return ssm + rows * ssm + conv + rows * raw + columns;
    case Strategy::stash:
      return ssm + conv + rows * (raw + stash) + columns + (accept == 0 ? 0 : 2 * ssm + accept * stash);
    case Strategy::automatic:
    case Strategy::replay:
      break;
  }
  const std::size_t pass = 2 * (conv + ssm);  // a copy of the state, or a scan over it
  if (accept == rows) return 2 * pass;
  return 3 * pass + (accept == 0 ? 0 : pass);
}

}  // namespace memra
