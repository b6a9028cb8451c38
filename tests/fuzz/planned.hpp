// What the fuzz targets of the loaders claim of a model that was accepted.
#pragma once

#include <cstddef>
#include <fuzz/fuzz.hpp>
#include <memra/config/model.hpp>
#include <memra/plan.hpp>
#include <memra/state_cost.hpp>

namespace fuzz {

/// It can be planned, with sums that agree with what its layers cost, or the plan refuses it in a sentence.
inline void claim_planned(const memra::config::Model& m) {
  claim(!m.state.layers.empty() && m.state.n_mtp < m.state.layers.size(), "a model has a trunk");
  constexpr std::size_t ctx = 3000;
  const auto planned = memra::plan(m.state, ctx);
  if (!planned) return claim_refusal(planned.status());
  const auto& t = planned->totals;
  const memra::ModelCost cost = memra::state_cost(m.state, ctx);
  claim(cost.trunk.bytes_per_token == t.bytes_per_token && cost.mtp.bytes_per_token == t.mtp_bytes_per_token,
        "the growth is that of the layers");
  claim(cost.trunk.at(ctx) + cost.mtp.at(ctx) == t.k_bytes + t.v_bytes + t.grouped_bytes + t.conv_bytes + t.ssm_bytes,
        "the payload is that of the layers");
  claim(t.k_bytes + t.v_bytes + t.grouped_bytes + t.conv_bytes + t.ssm_bytes + t.pad_bytes + t.tail_pad_bytes +
                t.mirror_bytes ==
            t.total_bytes,
        "the total is the sum of its parts");
}

}  // namespace fuzz
