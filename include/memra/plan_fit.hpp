// longest_ctx: how many rows of context fit in the memory of some devices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memra/detail/checked_math.hpp>
#include <memra/dflash_cfg.hpp>
#include <memra/error.hpp>
#include <memra/model_config.hpp>
#include <memra/placement.hpp>
#include <memra/plan.hpp>
#include <memra/round_types.hpp>
#include <vector>

namespace memra {

/// What is to fit where: caches of one model, each with a draft cache beside its last stage if there is one.
struct FitRequest {
  Placement placement;
  RoundOptions rounds = {};
  std::vector<std::size_t> budget_bytes;  ///< [devices] what a device has for all sequences together
  std::size_t sequences = 1;              ///< caches, at least 1
  const DflashCfg* draft = nullptr;       ///< the draft cache of every sequence, as long as the context
  std::size_t most_ctx = std::numeric_limits<std::int32_t>::max();  ///< no context is longer than this
};

/// Bytes of one device, for one sequence: of its slabs, and of the draft cache if it is the last stage's.
///
/// @return as plan()
inline Result<std::vector<std::size_t>> device_bytes(const ModelConfig& cfg, std::size_t max_ctx, const FitRequest& r) {
  const Result<Plan> p = plan(cfg, max_ctx, r.placement, r.rounds);
  if (!p) return p.status();
  std::vector<std::size_t> bytes;
  for (const DevicePlan& d : p->devices) bytes.push_back(d.rows_bytes + d.state_bytes + d.extra_bytes);
  if (r.draft != nullptr) {
    const Result<DflashPlan> draft = plan(*r.draft, max_ctx);
    if (!draft) return draft.status();
    std::size_t& last = bytes[p->stages.back().device];
    const detail::CheckedSize sum = detail::CheckedSize(last) + draft->total_bytes;
    if (!sum.valid()) return Status::failure(ErrorKind::bad_argument, "plan", 0, 0, "the draft cache does not fit");
    last = sum.value();
  }
  return bytes;
}

/// The longest context for which every device holds its share of every sequence; 0 if not even one row fits.
///
/// @return bad_argument if budgets and devices differ in number or there are no sequences; as plan() for a model that
/// it
///         refuses at any length
inline Result<std::size_t> longest_ctx(const ModelConfig& cfg, const FitRequest& r) {
  const Result<std::vector<std::size_t>> one = device_bytes(cfg, 1, r);
  if (!one) return one.status();
  if (r.budget_bytes.size() != one->size() || r.sequences == 0) {
    return Status::failure(ErrorKind::bad_argument, "longest_ctx", 0, 0,
                           "%zu budgets for %zu devices and %zu sequences; expected one for each, and a sequence",
                           r.budget_bytes.size(), one->size(), r.sequences);
  }
  const auto fits = [&](std::size_t ctx) {
    const Result<std::vector<std::size_t>> bytes = device_bytes(cfg, ctx, r);
    if (!bytes) return false;  // a length whose planes are beyond all addresses
    for (std::size_t d = 0; d < bytes->size(); ++d) {
      const detail::CheckedSize all = detail::CheckedSize((*bytes)[d]) * r.sequences;
      if (!all.valid() || all.value() > r.budget_bytes[d]) return false;
    }
    return true;
  };
  // Bytes never fall as the context grows: `yes` fits (0 needs nothing), what is above `no - 1` does not.
  std::size_t yes = 0;
  std::size_t no = std::min<std::size_t>(r.most_ctx, std::numeric_limits<std::int32_t>::max()) + 1;
  while (no - yes > 1) {
    const std::size_t middle = yes + (no - yes) / 2;
    (fits(middle) ? yes : no) = middle;
  }
  return yes;
}

}  // namespace memra
