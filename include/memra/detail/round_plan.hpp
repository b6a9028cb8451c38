// The part of a plan that pays for rounds: which strategies, and where their bytes lie.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memra/detail/checked_math.hpp>
#include <memra/error.hpp>
#include <memra/format.hpp>
#include <memra/kv_dev.hpp>
#include <memra/model_config.hpp>
#include <memra/plan.hpp>
#include <memra/round_types.hpp>
#include <memra/round_views.hpp>
#include <variant>
#include <vector>

namespace memra::detail {

/// Calls `f(PlanePlan with layer, state, stage and device, spec)` for every recurrent state.
template <class F>
void each_recurrent(const Plan& plan, const ModelConfig& cfg, const F& f) {
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (std::size_t il = plan.stages[s].first_layer; il < plan.stages[s].end_layer; ++il) {
      PlanePlan at;
      at.layer = il;
      at.stage = s;
      at.device = plan.stages[s].device;
      at.slab = SlabKind::extra;
      for (at.state = 0; at.state < cfg.layers[il].states.size(); ++at.state) {
        if (const auto* r = std::get_if<RecurrentSpec>(&cfg.layers[il].states[at.state])) f(at, *r);
      }
    }
  }
}

/// Decays per value head and token that a stash keeps.
inline std::size_t decay_width(const RecurrentSpec& r) noexcept {
  return r.rule == ScanRule::kda ? r.d_k : 1;
}

/// Bytes of each strategy for this model.
struct RoundBytes {
  CheckedSize ssm = 0;  ///< one plane of every layer
  CheckedSize conv = 0;
  CheckedSize stash = 0;
  CheckedSize conv_rows = 0;
  std::size_t widest_d_k = 0;
  bool can_stash = true;  ///< not with a decay per element: keeping it costs what a plane costs
};

inline RoundBytes round_bytes(const Plan& plan, const ModelConfig& cfg, std::size_t rows) {
  RoundBytes b;
  each_recurrent(plan, cfg, [&](const PlanePlan&, const RecurrentSpec& r) {
    const CheckedSize values = CheckedSize(r.d_v) * r.n_v_heads;
    const CheckedSize row = CheckedSize(r.d_k) * r.n_k_heads + values + CheckedSize(r.n_v_heads) * decay_width(r);
    b.ssm = b.ssm + values * r.d_k * row_bytes(r.ssm_format, 1);
    b.conv = b.conv + CheckedSize(r.conv_dim()) * (r.d_conv - 1) * row_bytes(r.conv_format, 1);
    b.stash = b.stash + row * rows * 4;
    if (r.d_conv > 1) b.conv_rows = b.conv_rows + CheckedSize(r.conv_dim()) * rows * 4;
    b.widest_d_k = std::max(b.widest_d_k, r.d_k);
    b.can_stash = b.can_stash && r.rule != ScanRule::mamba1;
  });
  return b;
}

/// The cheapest strategy that fits the budget, counted in bytes of state moved per round beyond what every round reads
/// and writes: planes write the ssm once per row; a stash writes and reads its rows, then reads and writes the ssm once
/// more; a replay copies the state out and back, and feeds the accepted tokens to the whole model again, so it is taken
/// only where nothing else fits.
///
/// @return automatic if nothing fits
inline Strategy choose_strategy(const RoundBytes& b, std::size_t rows, std::size_t budget) noexcept {
  const auto fits = [&](const CheckedSize& bytes) { return bytes.valid() && bytes.value() <= budget; };
  const CheckedSize planes = b.ssm * rows;
  const CheckedSize stash = b.stash * 2 + b.ssm * 2;
  const bool stash_fits = b.can_stash && b.widest_d_k <= max_stash_d_k && fits(b.stash + b.conv_rows);
  if (fits(planes + b.conv_rows) && (!stash_fits || planes.value() <= stash.value())) return Strategy::planes;
  if (stash_fits) return Strategy::stash;
  return fits(b.ssm + b.conv) ? Strategy::replay : Strategy::automatic;
}

/// @param ring_rows  most rows of a call that the smallest ring takes; the largest size without a ring
inline Status choose_rounds(RoundPlan& p, const RoundBytes& b, const RoundOptions& o, std::size_t ring_rows) noexcept {
  if (o.rows > max_round_rows) {
    return Status::failure(ErrorKind::bad_argument, "plan", 0, 0, "rounds of %zu rows; expected at most %zu", o.rows,
                           max_round_rows);
  }
  if (o.rows > ring_rows) {
    return Status::failure(ErrorKind::bad_argument, "plan", 0, 0,
                           "rounds of %zu rows, but the smallest ring takes %zu in a call; give it more ring_slack",
                           o.rows, ring_rows);
  }
  p.rows = o.rows;
  p.replay = o.replay;
  p.planes = o.planes;
  p.stash = o.stash;
  if (o.stash && !b.can_stash) {
    return Status::failure(ErrorKind::unsupported, "plan", 0, 0,
                           "a stash of mamba1 layers would keep a decay per element; rounds by planes or replay work");
  }
  if (o.stash && b.widest_d_k > max_stash_d_k) {
    return Status::failure(ErrorKind::bad_argument, "plan", 0, 0, "a stash with d_k %zu; expected at most %zu",
                           b.widest_d_k, max_stash_d_k);
  }
  if (!o.replay && !o.planes && !o.stash) {
    p.automatic = choose_strategy(b, o.rows, o.budget_bytes);
    if (p.automatic == Strategy::automatic) {
      return Status::failure(ErrorKind::bad_argument, "plan", 0, o.budget_bytes,
                             "no strategy for rounds of %zu rows fits the budget", o.rows);
    }
    p.replay = p.automatic == Strategy::replay;
    p.planes = p.automatic == Strategy::planes;
    p.stash = p.automatic == Strategy::stash;
    return {};
  }
  // Of what was asked for, the same order of preference; memory is no question any more.
  const Strategy best = choose_strategy(b, o.rows, std::numeric_limits<std::size_t>::max());
  const bool other = best == Strategy::planes ? o.stash : o.planes;
  p.automatic = p.pays(best) ? best
                : !other     ? Strategy::replay
                             : (best == Strategy::planes ? Strategy::stash : Strategy::planes);
  return {};
}

inline void add_round_planes(PlanBuilder& b, const RoundPlan& p, PlanePlan at, const RecurrentSpec& r) {
  const auto add = [&](PlaneKind kind, CheckedSize width, Format format = Format::f32) {
    if (!width.valid() || width.value() == 0) return b.require(width);
    at.kind = kind;
    at.shape = {format, Layout::blocks, p.rows, width.value()};
    b.add(at, CheckedSize(p.rows) * width * row_bytes(format, 1));
  };
  if (p.planes) add(PlaneKind::round_planes, CheckedSize(r.d_v) * r.n_v_heads * r.d_k, r.ssm_format);
  if ((p.planes || p.stash) && r.d_conv > 1) add(PlaneKind::round_conv, r.conv_dim());
  if (!p.stash) return;
  add(PlaneKind::round_k, r.d_k * r.n_k_heads);
  add(PlaneKind::round_u, r.d_v * r.n_v_heads);
  add(PlaneKind::round_decay, CheckedSize(r.n_v_heads) * decay_width(r));
}

inline Status add_rounds(PlanBuilder& b, Plan& plan, const ModelConfig& cfg, const RoundOptions& options) {
  if (options.rows == 0) return {};
  const RoundBytes bytes = round_bytes(plan, cfg, options.rows);
  RoundPlan& p = plan.round;
  const std::size_t ring_limit = plan.max_rows < plan.max_ctx ? plan.max_rows : std::numeric_limits<std::size_t>::max();
  if (Status s = choose_rounds(p, bytes, options, ring_limit); !s) return s;
  if (p.planes) p.plane_bytes = (bytes.ssm * p.rows).value();
  if (p.stash) p.stash_bytes = bytes.stash.value();
  if (p.planes || p.stash) p.conv_row_bytes = bytes.conv_rows.value();
  each_recurrent(plan, cfg,
                 [&](const PlanePlan& at, const RecurrentSpec& r) { detail::add_round_planes(b, p, at, r); });
  if (p.planes || p.stash) {
    std::vector<std::size_t> layers(plan.stages.size());
    each_recurrent(plan, cfg, [&](const PlanePlan& at, const RecurrentSpec&) { ++layers[at.stage]; });
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      const std::size_t table = plane_alignment + layers[s] * sizeof(RecurView);
      plan.stages[s].round_offset = b.add_extra(plan.stages[s].device, table);
      p.table_bytes += table;
    }
  }
  if (p.replay) {
    for (std::size_t d = 0; d < plan.devices.size(); ++d) {
      plan.devices[d].replay_offset = b.add_extra(d, plan.devices[d].state_bytes);
      p.replay_bytes += plan.devices[d].state_bytes;
    }
  }
  return {};
}

}  // namespace memra::detail
