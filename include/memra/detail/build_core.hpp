// How a cache is made: memory from the devices or the engine, then every component's addresses from the plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memra/cache_types.hpp>
#include <memra/detail/cache_core.hpp>
#include <memra/detail/round_state.hpp>
#include <memra/detail/slab.hpp>
#include <memra/error.hpp>
#include <memra/format.hpp>
#include <memra/kv_dev.hpp>
#include <memra/layers.hpp>
#include <memra/model_config.hpp>
#include <memra/plan.hpp>
#include <memra/views.hpp>
#include <span>
#include <utility>
#include <variant>

namespace memra::detail {

/// Notes where a plane of this kind is. The rest of what a plane may be holds rows.
inline void place(RecurComponent& c, PlaneKind kind, std::byte* at) noexcept {
  auto* f32 = reinterpret_cast<float*>(at);
  auto* bits = reinterpret_cast<std::uint16_t*>(at);
  const auto elems = [&](Format f) {
    return f == Format::f32 ? StateElems{f32, nullptr, f} : StateElems{nullptr, bits, f};
  };
  switch (kind) {
    case PlaneKind::conv:
      c.conv = elems(c.spec.conv_format);
      return;
    case PlaneKind::ssm:
      c.ssm = elems(c.spec.ssm_format);
      return;
    case PlaneKind::ssm_alt:
      c.ssm_alt = elems(c.spec.ssm_format);
      return;
    case PlaneKind::round_planes:
      c.round.planes = elems(c.spec.ssm_format).f32;
      c.round.planes16 = elems(c.spec.ssm_format).bits;
      return;
    case PlaneKind::round_conv:
      c.round.conv_rows = f32;
      return;
    case PlaneKind::round_k:
      c.round.k = f32;
      return;
    case PlaneKind::round_u:
      c.round.u = f32;
      return;
    case PlaneKind::round_decay:
      c.round.decay = f32;
      return;
    case PlaneKind::k:
    case PlaneKind::v:
    case PlaneKind::grouped:
      return;
  }
}

/// Takes the components' addresses from the plan.
template <class Dev>
void place_components(CacheCore<Dev>& core) {
  core.layers.resize(core.config.layers.size());
  for (std::size_t il = 0; il < core.layers.size(); ++il) {
    for (const StateSpec& spec : core.config.layers[il].states) {
      core.layers[il].push_back(
          std::visit(Overloaded{[](const AttentionSpec& a) -> Component {
                                  return KvComponent{a, {}, {}, 0};
                                },
                                [](const SharedKvSpec& s) -> Component { return SharedKvComponent{s}; },
                                [](const GroupedRowsSpec& g) -> Component {
                                  return GroupedComponent{g, {}, 0};
                                },
                                [](const RecurrentSpec& r) -> Component {
                                  RecurComponent c;
                                  c.spec = r;
                                  return c;
                                }},
                     spec));
      const StateRole role = role_of(spec);
      core.has_recurrent = core.has_recurrent || role.recurrent;
      core.n_components += role.written ? 1 : 0;
    }
  }
  for (const PlanePlan& p : core.plan.planes) {
    std::byte* at = core.devices[p.device].slab(p.slab) + p.offset;
    std::visit(Overloaded{[&](KvComponent& c) {
                            (p.kind == PlaneKind::k ? c.k : c.v) = {at, p.shape, 0, p.ring};
                          },
                          [](SharedKvComponent&) {}, [&](RecurComponent& c) { place(c, p.kind, at); },
                          [&](GroupedComponent& c) {
                            c.rows = {at, p.shape, 0, false};
                          }},
               core.layers[p.layer][p.state]);
  }
  for (std::size_t s = 0; s < core.plan.stages.size(); ++s) {
    const StagePlan& stage = core.plan.stages[s];
    core.stages.push_back(
        {stage.device, reinterpret_cast<std::int32_t*>(core.devices[stage.device].rows.data() + stage.pos_offset), {}});
  }
}

/// Refuses adopted blocks that are too few, too small, misaligned or share a byte.
inline Status check_blocks(const Plan& plan, std::span<const AdoptedBlock> blocks) noexcept {
  if (blocks.empty()) return {};
  if (blocks.size() != 3 * plan.devices.size()) {
    return Status::failure(ErrorKind::bad_argument, "create", 0, 0,
                           "%zu adopted blocks for %zu devices; expected {rows, state, extra} of each", blocks.size(),
                           plan.devices.size());
  }
  const auto used = [&](std::size_t i) {  // bytes the cache will use of block i
    const DevicePlan& d = plan.devices[i / 3];
    const std::size_t bytes[3] = {d.rows_bytes, d.state_bytes, d.extra_bytes};
    return blocks[i].data == nullptr ? 0 : bytes[i % 3];
  };
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const AdoptedBlock& b = blocks[i];
    if (used(i) == 0) continue;
    const auto at = reinterpret_cast<std::uintptr_t>(b.data);
    if (b.bytes < used(i) || at % plane_alignment != 0) {
      return Status::failure(ErrorKind::bad_argument, "create", 0, used(i),
                             "an adopted block has %zu bytes at %p; expected %zu, aligned to %zu", b.bytes,
                             static_cast<void*>(b.data), used(i), plane_alignment);
    }
    for (std::size_t j = i / 3 * 3; j < i; ++j) {  // other devices may have other address spaces
      const auto other = reinterpret_cast<std::uintptr_t>(blocks[j].data);
      if (at < other + used(j) && other < at + used(i)) {
        return Status::failure(ErrorKind::bad_argument, "create", 0, 0,
                               "two adopted blocks of one device overlap; expected separate memory");
      }
    }
  }
  return {};
}

/// Builds a whole cache at position 0, or says what failed; nothing is left allocated then.
///
/// @param devs    [stages] device object of each stage; equal pointers share slabs
/// @param options  adopted memory, rounds to pay for
template <class Dev>
Result<std::unique_ptr<CacheCore<Dev>>> build_core(std::span<Dev* const> devs, std::span<const std::size_t> fence,
                                                   const ModelConfig& cfg, std::size_t max_ctx,
                                                   const CacheOptions& options) {
  const std::span<const AdoptedBlock> blocks = options.blocks;
  auto core = std::make_unique<CacheCore<Dev>>();
  core->config = cfg;
  core->placement.fence.assign(fence.begin(), fence.end());
  for (Dev* dev : devs) {
    if (dev == nullptr) return Status::failure(ErrorKind::bad_argument, "create", 0, 0, "a stage's device is null");
    std::size_t d = 0;
    while (d < core->devices.size() && core->devices[d].dev != dev) ++d;
    if (d == core->devices.size()) {
      core->devices.push_back({});
      core->devices.back().dev = dev;
      core->placement.plane_gap.push_back(plane_gap_of(*dev));
    }
    core->placement.device_of.push_back(d);
  }
  auto planned = plan(cfg, max_ctx, core->placement, options.rounds);
  if (!planned) return planned.status();
  core->plan = *std::move(planned);
  // All blocks before the first write: a refused create leaves the engine's memory as it was.
  if (Status s = check_blocks(core->plan, blocks); !s) return s;
  for (std::size_t d = 0; d < core->devices.size(); ++d) {
    auto& state = core->devices[d];
    const DevicePlan& bytes = core->plan.devices[d];
    const auto adopted = [&](std::size_t i) { return blocks.empty() ? AdoptedBlock{} : blocks[3 * d + i]; };
    auto rows = Slab<Dev>::make(*state.dev, bytes.rows_bytes, false, adopted(0));
    if (!rows) return rows.status();
    state.rows = *std::move(rows);
    auto recurrent = Slab<Dev>::make(*state.dev, bytes.state_bytes, true, adopted(1));
    if (!recurrent) return recurrent.status();
    state.state = *std::move(recurrent);
    auto extra = Slab<Dev>::make(*state.dev, bytes.extra_bytes, false, adopted(2));
    if (!extra) return extra.status();
    state.extra = *std::move(extra);
  }
  place_components(*core);
  if (Status s = place_rounds(*core); !s) return s;
  if (Status s = core->store_pos(0); !s) return s;
  return core;
}

}  // namespace memra::detail
