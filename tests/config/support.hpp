// What the loader tests share: a config as a value or as a sentence, and the planned bytes of its parts.
#pragma once

#include <cstddef>
#include <memra/config/hf.hpp>
#include <memra/config/model.hpp>
#include <memra/error.hpp>
#include <memra/plan.hpp>
#include <memra/state_cost.hpp>
#include <string>
#include <support/catch.hpp>

namespace loaded {

/// Bytes of `n` elements, by hand: 32 elements are 34 bytes of q8_0 and 24 of q5_1.
constexpr std::size_t q8(std::size_t n) {
  return n / 32 * 34;
}
constexpr std::size_t q5(std::size_t n) {
  return n / 32 * 24;
}
/// K in q8_0 and V in q5_1 of one token.
constexpr std::size_t kv(std::size_t heads, std::size_t k, std::size_t v) {
  return q8(heads * k) + q5(heads * v);
}
constexpr std::size_t kv(std::size_t heads, std::size_t dim) {
  return kv(heads, dim, dim);
}

inline memra::config::Storage f16() {
  memra::config::Storage s;
  s.k = s.v = memra::Format::f16;
  return s;
}

inline memra::config::Model model(const std::string& json, const memra::config::Storage& s = {}) {
  return memra::check(memra::config::parse_hf_config(json, s));
}

/// The sentence of a refusal; empty if the text is accepted.
inline std::string refusal(const std::string& json) {
  const auto r = memra::config::parse_hf_config(json);
  return r ? "" : r.status().text();
}

inline memra::Plan plan(const memra::config::Model& m, std::size_t ctx) {
  return memra::check(memra::plan(m.state, ctx));
}

/// Payload of K and V.
inline std::size_t kv_bytes(const memra::Plan& p) {
  return p.totals.k_bytes + p.totals.v_bytes;
}

/// The sums that are the same at every context; and state_cost, which knows no plan, agrees with the plan.
inline void require_totals(const memra::config::Model& m, std::size_t per_token, std::size_t mtp_per_token,
                           std::size_t ring_cap, std::size_t fixed) {
  for (const std::size_t ctx : {std::size_t{1}, std::size_t{1000}, std::size_t{100000}}) {
    const memra::PlanTotals t = plan(m, ctx).totals;
    INFO(m.family << " at " << ctx);
    REQUIRE(t.bytes_per_token == per_token);
    REQUIRE(t.mtp_bytes_per_token == mtp_per_token);
    REQUIRE(t.ring_cap_bytes == ring_cap);
    REQUIRE(t.conv_bytes + t.ssm_bytes == fixed);
    const memra::ModelCost c = memra::state_cost(m.state, ctx);
    REQUIRE(c.trunk.bytes_per_token == per_token);
    REQUIRE(c.mtp.bytes_per_token == mtp_per_token);
    REQUIRE(c.trunk.ring_cap_bytes + c.mtp.ring_cap_bytes == ring_cap);
    REQUIRE(c.trunk.fixed_bytes + c.mtp.fixed_bytes == fixed);
    REQUIRE(c.trunk.at(ctx) + c.mtp.at(ctx) == t.k_bytes + t.v_bytes + t.grouped_bytes + t.conv_bytes + t.ssm_bytes);
  }
}

/// With a second copy of every ssm.
inline void require_totals_with_second(const memra::config::Model& m, std::size_t fixed, std::size_t second) {
  const memra::PlanTotals t = plan(m, 100).totals;
  REQUIRE(t.conv_bytes + t.ssm_bytes == fixed);
  REQUIRE(t.second_buffer_bytes == second);
  REQUIRE(memra::state_cost(m.state, 100).trunk.second_buffer_bytes == second);
}

/// `ring_row`: bytes of a row of all rings together. Rings hold the context until they are full: window + slack, in
/// whole tiles of 64.
inline void require_rings(const memra::config::Model& m, std::size_t per_token, std::size_t ring_row,
                          std::size_t window) {
  const std::size_t full = (window + 64 + 63) / 64 * 64;
  for (const std::size_t ctx : {std::size_t{1}, window - 1, window, window + 1, window + 63, window + 64, full - 1,
                                full, full + 1, 10 * full}) {
    const memra::Plan p = plan(m, ctx);
    INFO(m.family << " at " << ctx);
    REQUIRE(kv_bytes(p) == per_token * ctx + ring_row * (ctx < full ? ctx : full));
    REQUIRE(p.totals.ring_slack_bytes == ring_row * (ctx <= window ? 0 : (ctx < full ? ctx : full) - window));
  }
}

}  // namespace loaded
