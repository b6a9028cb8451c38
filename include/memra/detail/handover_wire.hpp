// How a layer's geometry is written in the header of a hand-over, and read from bytes that may be anything.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memra/detail/wire.hpp>
#include <memra/format.hpp>
#include <memra/model_config.hpp>
#include <memra/views.hpp>

namespace memra::detail {

// Numbers on the wire are the enumerators' own; these keep them from moving.
static_assert(static_cast<int>(Format::f32) == 0 && static_cast<int>(Format::f16) == 1 &&
              static_cast<int>(Format::bf16) == 2 && static_cast<int>(Format::q8_0) == 3 &&
              static_cast<int>(Format::q5_1) == 4 && static_cast<int>(Format::q4_0) == 5 &&
              static_cast<int>(Format::fp8_e4m3) == 6 && all_formats.size() == 7);
static_assert(static_cast<int>(Layout::blocks) == 0 && static_cast<int>(Layout::split) == 1);
static_assert(static_cast<int>(ScanRule::gated_delta) == 0 && static_cast<int>(ScanRule::kda) == 1 &&
              static_cast<int>(ScanRule::linear) == 2 && static_cast<int>(ScanRule::mamba1) == 3 &&
              static_cast<int>(ScanRule::none) == 4 && all_scan_rules == 5);
static_assert(static_cast<int>(KeyHeadMode::grouped) == 0 && static_cast<int>(KeyHeadMode::interleaved) == 1);
static_assert(sizeof(std::size_t) == 8, "memra: a hand-over needs 64-bit sizes");

inline constexpr std::uint32_t wire_attention = 1;
inline constexpr std::uint32_t wire_recurrent = 2;
inline constexpr std::uint32_t wire_shared = 3;
inline constexpr std::uint32_t wire_grouped = 4;
inline constexpr std::uint32_t wire_has_logits = 1;
inline constexpr std::uint32_t wire_has_tail = 2;
inline constexpr std::uint32_t wire_chunked = 4;

inline void write_state(WireWriter& w, const AttentionSpec& a) {
  w.u32(wire_attention);
  w.u8(static_cast<std::uint8_t>(a.k_format));
  w.u8(static_cast<std::uint8_t>(a.v_format));
  w.u8(static_cast<std::uint8_t>(a.k_layout));
  w.u8(static_cast<std::uint8_t>(a.v_layout));
  for (const std::size_t n : {a.n_kv_heads, a.head_dim_k, a.head_dim_v, a.window}) w.u64(n);
  w.u8(a.ring_slack == 0 ? 0 : 1);  // whose rows beyond the window do not travel
  w.u8(a.v_in_k ? 1 : 0);
}

inline void write_state(WireWriter& w, const SharedKvSpec& s) {
  w.u32(wire_shared);
  w.u64(s.donor);
  w.u64(s.nth);
}

inline void write_state(WireWriter& w, const GroupedRowsSpec& g) {
  w.u32(wire_grouped);
  w.u8(static_cast<std::uint8_t>(g.format));
  w.u8(static_cast<std::uint8_t>(g.layout));
  w.u64(g.dim);
  w.u64(g.stride);
}

inline void write_state(WireWriter& w, const RecurrentSpec& r) {
  w.u32(wire_recurrent);
  w.u32(static_cast<std::uint32_t>(r.map.mode));
  w.u8(static_cast<std::uint8_t>(r.rule));
  w.u8(static_cast<std::uint8_t>(r.conv_format));
  w.u8(static_cast<std::uint8_t>(r.ssm_format));
  for (const std::size_t n : {r.n_k_heads, r.n_v_heads, r.d_k, r.d_v, r.d_conv, r.conv_channels, r.map.first_v,
                              r.map.total_v, r.map.total_k}) {
    w.u64(n);
  }
}

/// @return false for an id or kind that is none of ours
inline bool read_state(WireReader& r, LayerSpec& layer) {
  const std::uint32_t kind = r.u32();
  if (kind == wire_attention) {
    AttentionSpec a;
    std::uint8_t id[4] = {};
    for (std::uint8_t& i : id) i = r.u8();
    for (std::size_t* n : {&a.n_kv_heads, &a.head_dim_k, &a.head_dim_v, &a.window}) *n = r.u64();
    const std::uint8_t ring = r.u8();
    const std::uint8_t v_in_k = r.u8();
    if (id[0] >= all_formats.size() || id[1] >= all_formats.size() || id[2] > 1 || id[3] > 1) return false;
    if (ring > 1 || v_in_k > 1) return false;
    a.ring_slack = ring;
    a.v_in_k = v_in_k == 1;
    a.k_format = static_cast<Format>(id[0]);
    a.v_format = static_cast<Format>(id[1]);
    a.k_layout = static_cast<Layout>(id[2]);
    a.v_layout = static_cast<Layout>(id[3]);
    layer.states.emplace_back(a);
    return r.ok();
  }
  if (kind == wire_shared) {
    SharedKvSpec s;
    s.donor = r.u64();
    s.nth = r.u64();
    layer.states.emplace_back(s);
    return r.ok();
  }
  if (kind == wire_grouped) {
    GroupedRowsSpec g;
    const std::uint8_t format = r.u8();
    const std::uint8_t layout = r.u8();
    g.dim = r.u64();
    g.stride = r.u64();
    if (format >= all_formats.size() || layout > 1) return false;
    g.format = static_cast<Format>(format);
    g.layout = static_cast<Layout>(layout);
    layer.states.emplace_back(g);
    return r.ok();
  }
  if (kind != wire_recurrent) return false;
  RecurrentSpec s;
  const std::uint32_t mode = r.u32();
  std::uint8_t id[3] = {};
  for (std::uint8_t& i : id) i = r.u8();
  for (std::size_t* n : {&s.n_k_heads, &s.n_v_heads, &s.d_k, &s.d_v, &s.d_conv, &s.conv_channels, &s.map.first_v,
                         &s.map.total_v, &s.map.total_k}) {
    *n = r.u64();
  }
  if (mode > 1 || id[0] >= all_scan_rules || id[1] >= all_formats.size() || id[2] >= all_formats.size()) return false;
  s.rule = static_cast<ScanRule>(id[0]);
  s.conv_format = static_cast<Format>(id[1]);
  s.ssm_format = static_cast<Format>(id[2]);
  s.map.mode = static_cast<KeyHeadMode>(mode);
  layer.states.emplace_back(s);
  return r.ok();
}

}  // namespace memra::detail
