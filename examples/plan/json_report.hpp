// The figures as JSON, for programs.
#pragma once

#include <cstddef>
#include <memra/format.hpp>
#include <memra/round_types.hpp>
#include <nlohmann/json.hpp>
#include <plan/figures.hpp>
#include <plan/request.hpp>
#include <string>

namespace planner {

using OrderedJson = nlohmann::ordered_json;

inline OrderedJson cost_json(const memra::StateCost& c) {
  return {{"bytes_per_token", c.bytes_per_token}, {"ring_cap_bytes", c.ring_cap_bytes},
          {"ring_bytes", c.ring_bytes},           {"grouped_bytes", c.grouped_bytes},
          {"fixed_bytes", c.fixed_bytes},         {"second_buffer_bytes", c.second_buffer_bytes}};
}

/// Text that is a name in a file, as JSON takes it.
inline std::string printable(std::string text) {
  for (char& c : text) c = c >= 0x20 && c < 0x7f ? c : '?';
  return text;
}

inline OrderedJson json_report(const Request& r, const Figures& f) {
  const memra::PlanTotals& t = f.plan.totals;
  OrderedJson j;
  j["family"] = printable(r.model.family);
  j["layers"] = r.model.state.layers.size() - r.model.state.n_mtp;
  j["mtp_layers"] = r.model.state.n_mtp;
  j["max_positions"] = r.model.max_positions;
  j["ctx"] = r.ctx;
  j["sequences"] = r.sequences;
  j["k_format"] = memra::to_string(r.storage.k);
  j["v_format"] = memra::to_string(r.storage.v);
  j["state_format"] = memra::to_string(r.storage.ssm);
  j["conv_format"] = memra::to_string(r.storage.conv);
  j["ring_slack_rows"] = r.storage.ring_slack;
  j["bytes_per_token"] = t.bytes_per_token;
  j["mtp_bytes_per_token"] = t.mtp_bytes_per_token;
  j["index_bytes_per_token"] = f.index_bytes_per_token;
  j["ring_cap_bytes"] = t.ring_cap_bytes;
  j["ring_bytes"] = f.ring_bytes;
  j["ring_slack_bytes"] = t.ring_slack_bytes;
  j["grouped_bytes"] = t.grouped_bytes;
  j["fixed_bytes"] = f.fixed_bytes;
  j["conv_bytes"] = t.conv_bytes;
  j["ssm_bytes"] = t.ssm_bytes;
  j["second_buffer_bytes"] = t.second_buffer_bytes;
  j["round_rows"] = r.rounds.rows;
  j["round_strategy"] =
      r.rounds.rows == 0 ? OrderedJson(nullptr) : OrderedJson(memra::to_string(f.plan.round.automatic));
  j["round_bytes"] = t.round_bytes;
  j["draft_ring"] = r.draft && r.draft->ring;
  j["draft_bytes"] = f.draft_bytes;
  j["pad_bytes"] = f.pad_bytes;
  j["alignment_bytes"] = t.pad_bytes;
  j["tail_pad_bytes"] = t.tail_pad_bytes;
  j["mirror_bytes"] = t.mirror_bytes;
  j["snapshot_bytes"] = t.snapshot_bytes;
  j["sequence_bytes"] = f.sequence_bytes;
  j["total_bytes"] = f.total_bytes;
  j["budget_bytes"] = r.budgets;
  j["fits"] = r.budgets.empty() ? OrderedJson(nullptr) : OrderedJson(f.too_small.empty());
  j["max_ctx_that_fits"] = f.longest ? OrderedJson(*f.longest) : OrderedJson(nullptr);
  j["kinds"] = OrderedJson::array();
  for (const Group& g : f.groups) {
    OrderedJson one = {{"kind", g.what}, {"mtp", g.mtp}, {"layers", g.n_layers}};
    one.update(cost_json(g.cost));
    j["kinds"].push_back(one);
  }
  j["stages"] = OrderedJson::array();
  for (const Stage& s : f.stages) {
    OrderedJson one = {{"first_layer", s.first_layer}, {"end_layer", s.end_layer}};
    one.update(cost_json(s.cost));
    one["draft_bytes"] = s.draft_bytes;
    one["total_bytes"] = s.bytes;
    j["stages"].push_back(one);
  }
  return j;
}

}  // namespace planner
