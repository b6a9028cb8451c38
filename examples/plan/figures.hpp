// The figures of a plan: everything that the table, the JSON and the picture show. All numbers are the library's.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memra/dflash_cfg.hpp>
#include <memra/error.hpp>
#include <memra/format.hpp>
#include <memra/model_config.hpp>
#include <memra/plan.hpp>
#include <memra/plan_fit.hpp>
#include <memra/state_cost.hpp>
#include <optional>
#include <plan/request.hpp>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace planner {

/// Layers of one kind.
struct Group {
  std::string what;
  bool mtp = false;
  std::size_t n_layers = 0;
  memra::StateCost cost;
};

struct Stage {
  std::size_t first_layer = 0;
  std::size_t end_layer = 0;
  memra::StateCost cost;
  std::size_t bytes = 0;        ///< of its device at the context, the draft cache included; one sequence
  std::size_t draft_bytes = 0;  ///< of that
};

/// For one sequence, but total_bytes.
struct Figures {
  memra::Plan plan;
  std::vector<Group> groups;
  std::vector<Stage> stages;
  std::size_t index_bytes_per_token = 0;  ///< of bytes_per_token and mtp_bytes_per_token: keys of sparse attention
  std::size_t ring_bytes = 0;             ///< payload of the rings at this context
  std::size_t fixed_bytes = 0;
  std::size_t draft_bytes = 0;
  std::size_t pad_bytes = 0;           ///< alignment, tail pads, gaps and the stages' mirrors
  std::size_t sequence_bytes = 0;      ///< all of one sequence
  std::size_t total_bytes = 0;         ///< all sequences
  std::vector<std::size_t> too_small;  ///< stages whose device does not hold its share of all sequences
  std::optional<std::size_t> longest;  ///< context that fits, where there is a budget
};

inline std::string describe(const memra::AttentionSpec& a) {
  const std::string k = std::to_string(a.head_dim_k);
  const std::string v = std::to_string(a.head_dim_v);
  if (a.v_in_k && a.head_dim_v == 0) return "index keys of " + k;
  const std::string rope = a.head_dim_k == a.head_dim_v ? "" : " + " + std::to_string(a.head_dim_k - a.head_dim_v);
  std::string text = a.v_in_k ? "latent rows of " + v + rope
                              : "attention, " + std::to_string(a.n_kv_heads) + " kv heads of " +
                                    (a.head_dim_k == a.head_dim_v ? k : k + "/" + v);
  if (a.window != 0) text += ", window " + std::to_string(a.window);
  return text;
}

inline std::string describe(const memra::SharedKvSpec& s) {
  return "shared K and V of layer " + std::to_string(s.donor);
}

inline std::string describe(const memra::GroupedRowsSpec& g) {
  return "a row of " + std::to_string(g.dim) + " per " + std::to_string(g.stride) + " tokens";
}

inline std::string describe(const memra::RecurrentSpec& r) {
  const std::string k = std::to_string(r.d_k);
  const std::string v = std::to_string(r.d_v);
  const std::string heads = std::to_string(r.n_v_heads);
  const std::string conv = ", conv " + std::to_string(r.conv_dim()) + " x " + std::to_string(r.d_conv - 1);
  switch (r.rule) {
    case memra::ScanRule::gated_delta:
      return "gated delta rule, " + heads + " heads of " + v + " x " + k + conv;
    case memra::ScanRule::kda:
      return "KDA, " + heads + " heads of " + v + " x " + k + conv;
    case memra::ScanRule::linear:
      return (r.d_conv == 1 ? "lightning attention, " : "Mamba-2, ") + heads + " heads of " + v + " x " + k +
             (r.d_conv == 1 ? "" : conv);
    case memra::ScanRule::mamba1:
      return "Mamba-1, " + v + " x " + k + conv;
    case memra::ScanRule::none:
      return "short convolution, " + std::to_string(r.conv_dim()) + " x " + std::to_string(r.d_conv - 1);
  }
  return "recurrent state";
}

inline std::string describe(const memra::LayerSpec& layer) {
  std::string all;
  for (const memra::StateSpec& state : layer.states) {
    all += (all.empty() ? "" : " and ") + std::visit([](const auto& s) { return describe(s); }, state);
  }
  return all.empty() ? "no state" : all;
}

inline std::vector<Group> group_layers(const memra::ModelConfig& cfg, std::size_t ctx) {
  std::vector<Group> groups;
  for (std::size_t il = 0; il < cfg.layers.size(); ++il) {
    const bool mtp = il >= cfg.layers.size() - cfg.n_mtp;
    const std::string what = describe(cfg.layers[il]);
    auto g = std::find_if(groups.begin(), groups.end(), [&](const Group& o) { return o.what == what && o.mtp == mtp; });
    if (g == groups.end()) g = groups.insert(groups.end(), Group{what, mtp, 0, {}});
    ++g->n_layers;
    g->cost = g->cost + memra::state_cost(std::span(&cfg.layers[il], 1), ctx);
  }
  return groups;
}

inline std::size_t index_bytes(const memra::ModelConfig& cfg) {
  std::size_t bytes = 0;
  for (const memra::LayerSpec& layer : cfg.layers) {
    for (const memra::StateSpec& state : layer.states) {
      const auto* a = std::get_if<memra::AttentionSpec>(&state);
      if (a != nullptr && a->v_in_k && a->head_dim_v == 0) bytes += memra::state_cost(*a, 1).bytes_per_token;
    }
  }
  return bytes;
}

/// @throws memra::Error if the library refuses the plan
inline Figures figures(const Request& r) {
  const memra::ModelConfig& cfg = r.model.state;
  Figures f;
  f.plan = memra::check(memra::plan(cfg, r.ctx, r.placement, r.rounds));
  f.groups = group_layers(cfg, r.ctx);
  const memra::PlanTotals& t = f.plan.totals;
  f.index_bytes_per_token = index_bytes(cfg);
  const memra::ModelCost cost = memra::state_cost(cfg, r.ctx);
  f.ring_bytes = cost.trunk.ring_bytes + cost.mtp.ring_bytes;
  f.fixed_bytes = t.conv_bytes + t.ssm_bytes;
  if (r.draft) f.draft_bytes = memra::check(memra::plan(*r.draft, r.ctx)).total_bytes;
  f.pad_bytes = t.pad_bytes + t.tail_pad_bytes + t.mirror_bytes;
  f.sequence_bytes = t.total_bytes + f.draft_bytes;
  const memra::FitRequest fit = r.fit();
  const std::vector<std::size_t> bytes = memra::check(memra::device_bytes(cfg, r.ctx, fit));
  for (std::size_t s = 0; s < f.plan.stages.size(); ++s) {
    const memra::StagePlan& at = f.plan.stages[s];
    Stage stage{at.first_layer, at.end_layer, {}, bytes[at.device], s + 1 == f.plan.stages.size() ? f.draft_bytes : 0};
    stage.cost = memra::state_cost(std::span(cfg.layers).subspan(at.first_layer, at.end_layer - at.first_layer), r.ctx);
    f.stages.push_back(stage);
  }
  if (f.sequence_bytes > static_cast<std::size_t>(-1) / r.sequences) {
    refuse("--sequences is " + std::to_string(r.sequences) + ": their bytes are beyond all addresses");
  }
  f.total_bytes = f.sequence_bytes * r.sequences;
  for (std::size_t s = 0; s < r.budgets.size(); ++s) {
    if (f.stages[s].bytes > r.budgets[s] / r.sequences) f.too_small.push_back(s);
  }
  if (!r.budgets.empty()) f.longest = memra::check(memra::longest_ctx(cfg, fit));
  return f;
}

}  // namespace planner
