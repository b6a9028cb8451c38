// guard_planes: tells the CanaryDev beneath a cache where the planes are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memra/cache.hpp>
#include <memra/canary_dev.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/error.hpp>
#include <memra/model_config.hpp>
#include <memra/plan.hpp>
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

/// First byte of a slab of a cache, or nullptr if the cache shows no address in it (it is empty, or of second buffers).
template <class Dev>
const std::byte* slab_address(const Cache<Dev>& cache, std::size_t device, SlabKind slab) noexcept {
  const Plan& plan = cache.plan();
  if (slab == SlabKind::rows) {
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      if (plan.stages[s].device != device) continue;
      return reinterpret_cast<const std::byte*>(cache.pos_d(s)) - plan.stages[s].pos_offset;
    }
  }
  for (const PlanePlan& p : plan.planes) {
    if (p.device != device || p.slab != slab || p.kind != PlaneKind::conv) continue;
    const auto& states = cache.config().layers[p.layer].states;
    std::size_t nth = 0;  // among the recurrent states, as recur() counts
    for (std::size_t i = 0; i < p.state; ++i) nth += detail::role_of(states[i]).recurrent ? 1 : 0;
    return cache.recur(p.layer, nth)->conv_data - p.offset;
  }
  return nullptr;
}

}  // namespace detail

/// Guards every gap of the slabs of a cache: between planes, behind the 8-byte tail pads, around the stages' positions.
/// Call it right after create (or from_prefix). Second buffers, whose addresses a cache does not show, have only the
/// guards of their allocation.
///
/// @return what CanaryDev::guard or synchronize said
template <class Dev>
Status guard_planes(const Cache<Dev>& cache) {
  const Plan& plan = cache.plan();
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const std::size_t device = plan.stages[s].device;
    Dev& dev = cache.stage_dev(s);
    if (Status f = dev.synchronize(); !f) return f;  // what a queue still holds must not overwrite fresh guards
    for (const SlabKind slab : {SlabKind::rows, SlabKind::state}) {
      const std::byte* start = detail::slab_address(cache, device, slab);
      if (start == nullptr) continue;
      std::vector<ByteRange> payload;
      for (const PlanePlan& p : plan.planes) {
        if (p.device == device && p.slab == slab) payload.push_back({p.offset, p.payload + p.tail_pad});
      }
      for (const StagePlan& st : plan.stages) {
        if (slab == SlabKind::rows && st.device == device) payload.push_back({st.pos_offset, sizeof(std::int32_t)});
      }
      std::sort(payload.begin(), payload.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
      if (Status f = detail::canary_of(dev).guard(start, plan.devices[device].bytes(slab), payload); !f) return f;
    }
  }
  return {};
}

/// The same for a draft cache: behind len_d (and a ring's base_d) and behind every K and V plane.
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
