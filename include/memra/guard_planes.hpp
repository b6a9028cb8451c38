// guard_planes: tells the CanaryDev beneath a cache where the planes are.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memra/cache.hpp>
#include <memra/canary_dev.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/error.hpp>
#include <memra/model_config.hpp>
#include <memra/plan.hpp>
#include <memra/round_views.hpp>
#include <memra/views.hpp>
#include <span>
#include <variant>
#include <vector>

namespace memra {

namespace detail {

/// The CanaryDev in a stack of wrappers: the device itself, or one it wraps.
template <class Dev>
auto& canary_of(Dev& dev) noexcept {
  if constexpr (requires(const std::byte* p, std::span<const ByteRange> r) { dev.guard(p, std::size_t{}, r); }) {
    return dev;
  } else {
    static_assert(
        requires { dev.inner(); }, "memra: guard_planes needs a cache on a CanaryDev or on wrappers around one");
    return canary_of(dev.inner());
  }
}

/// Where a cache's slabs are.
template <class Dev>
struct SlabsOf {
  static const std::byte* start(const Cache<Dev>& cache, std::size_t device, SlabKind slab) noexcept {
    return cache.core_->devices[device].slab(slab);
  }
};

/// What of a slab may be written: planes with their tail pads, the stages' positions, words and tables of rounds, and
/// where replay rounds keep a copy of the state slab.
inline std::vector<ByteRange> payload_of(const Plan& plan, const ModelConfig& cfg, std::size_t device, SlabKind slab) {
  std::vector<ByteRange> payload;
  for (const PlanePlan& p : plan.planes) {
    if (p.device == device && p.slab == slab) payload.push_back({p.offset, p.payload + p.tail_pad});
  }
  for (const StagePlan& st : plan.stages) {
    if (st.device != device) continue;
    if (slab == SlabKind::rows) payload.push_back({st.pos_offset, sizeof(std::int32_t)});
    if (slab != SlabKind::extra || (!plan.round.planes && !plan.round.stash)) continue;
    std::size_t views = 0;
    for (std::size_t il = st.first_layer; il < st.end_layer; ++il) {
      for (const StateSpec& s : cfg.layers[il].states) views += std::holds_alternative<RecurrentSpec>(s) ? 1 : 0;
    }
    payload.push_back({st.round_offset, sizeof(RoundWords)});
    payload.push_back({st.round_offset + plane_alignment, views * sizeof(RecurView)});
  }
  if (slab == SlabKind::extra && plan.round.replay) {
    payload.push_back({plan.devices[device].replay_offset, plan.devices[device].state_bytes});
  }
  std::sort(payload.begin(), payload.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  return payload;
}

}  // namespace detail

/// Guards every gap of the slabs of a cache: between planes, behind the 8-byte tail pads, around the stages' positions
/// and around what rounds keep. Call it right after create (or from_prefix), on memory of the device's own.
///
/// @return what CanaryDev::guard or synchronize said; an instrument, it taints nothing
template <class Dev>
Status guard_planes(const Cache<Dev>& cache) {
  const Plan& plan = cache.plan();
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const std::size_t device = plan.stages[s].device;
    Dev& dev = cache.stage_dev(s);
    if (Status f = dev.synchronize(); !f) return f;  // what a queue still holds must not overwrite fresh guards
    for (const SlabKind slab : std::array<SlabKind, 3>{SlabKind::rows, SlabKind::state, SlabKind::extra}) {
      const std::size_t bytes = plan.devices[device].bytes(slab);
      if (bytes == 0) continue;
      const std::byte* start = detail::SlabsOf<Dev>::start(cache, device, slab);
      const auto payload = detail::payload_of(plan, cache.config(), device, slab);
      if (Status f = detail::canary_of(dev).guard(start, bytes, payload); !f) return f;
    }
  }
  return {};
}

/// Guards every slab that `dev` allocates from now on for device `device` of a plan of this layout, from its birth. It
/// is how to guard what is filled before guard_planes could see it: snapshots (state slabs), a prefix at n (its layout
/// is the plan of n rows; it is one slab of rows and one of state, and both leave the gap between planes that the
/// device asked for), and a cache that from_prefix or a hand-over fills. A tail of a draft cache and parked logits are
/// allocations of their own, and guarded as such.
///
/// @param plan  with the plane_gap of `dev`: Cache::plan(), CachePrefix::plan() or plan()
/// @return bad_argument: something else of a slab's size is guarded already
template <class Dev>
Status guard_planned(Dev& dev, const Plan& plan, const ModelConfig& cfg, std::size_t device = 0) {
  for (const SlabKind slab : std::array<SlabKind, 3>{SlabKind::rows, SlabKind::state, SlabKind::extra}) {
    const std::size_t bytes = plan.devices[device].bytes(slab);
    if (bytes == 0) continue;
    const auto payload = detail::payload_of(plan, cfg, device, slab);
    if (Status s = detail::canary_of(dev).guard_sized(bytes, payload); !s) return s;
  }
  return {};
}

/// guard_planes of a draft cache: behind len_d (and a ring's base_d) and behind every K and V plane.
template <class Dev>
Status guard_planes(const DflashKv<Dev>& kv) {
  const DflashPlan& plan = kv.plan();
  std::vector<ByteRange> payload = {{0, (kv.config().ring ? 2 : 1) * sizeof(std::int32_t)}};
  for (std::size_t l = 0; l < kv.n_layer(); ++l) {
    payload.push_back({plan.k_offset(l), plan.plane_bytes});
    payload.push_back({plan.v_offset(l), plan.plane_bytes});
  }
  const std::byte* start = reinterpret_cast<const std::byte*>(kv.k(0)) - plan.k_offset(0);
  if (Status s = kv.device().synchronize(); !s) return s;
  return detail::canary_of(kv.device()).guard(start, plan.total_bytes, payload);
}

}  // namespace memra
