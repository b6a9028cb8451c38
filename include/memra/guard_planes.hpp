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

/// Address of a plane of a cache, nullptr if the cache does not show it (second buffers).
template <class Dev>
const std::byte* plane_address(const Cache<Dev>& cache, const PlanePlan& p) noexcept {
  const auto& states = cache.config().layers[p.layer].states;
  std::size_t nth = 0;  // of its kind, as kv() and recur() count
  for (std::size_t i = 0; i < p.state; ++i) nth += states[i].index() == states[p.state].index() ? 1 : 0;
  switch (p.kind) {
    case PlaneKind::k:
      return cache.kv(p.layer, nth)->k.data;
    case PlaneKind::v:
      return cache.kv(p.layer, nth)->v.data;
    case PlaneKind::conv:
      return reinterpret_cast<const std::byte*>(cache.recur(p.layer, nth)->conv);
    case PlaneKind::ssm:
      return reinterpret_cast<const std::byte*>(cache.recur(p.layer, nth)->ssm);
    case PlaneKind::ssm_alt:
      break;
  }
  return nullptr;
}

}  // namespace detail

/// Guards every gap of the slabs of a cache: between planes, behind the 8-byte tail pads, around the stages' positions.
/// Call it right after create (or from_prefix), before a snapshot. Not guarded: a rows slab without any attention plane
/// and second buffers, whose addresses a cache does not show; their allocations are guarded at both ends as all are.
///
/// @return what CanaryDev::guard or synchronize said
template <class Dev>
Status guard_planes(const Cache<Dev>& cache) {
  const Plan& plan = cache.plan();
  for (std::size_t d = 0; d < plan.devices.size(); ++d) {
    for (const SlabKind slab : {SlabKind::rows, SlabKind::state}) {
      std::vector<ByteRange> payload;
      const std::byte* start = nullptr;
      Dev* dev = nullptr;
      for (const PlanePlan& p : plan.planes) {
        if (p.device != d || p.slab != slab) continue;
        payload.push_back({p.offset, p.payload + p.tail_pad});
        start = detail::plane_address(cache, p) - p.offset;
        dev = &cache.dev(p.layer);
      }
      if (dev == nullptr) continue;
      for (const StagePlan& s : plan.stages) {
        if (slab == SlabKind::rows && s.device == d) payload.push_back({s.pos_offset, sizeof(std::int32_t)});
      }
      std::sort(payload.begin(), payload.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
      if (Status s = dev->synchronize(); !s) return s;  // what a queue still holds must not overwrite fresh guards
      if (Status s = detail::canary_of(*dev).guard(start, plan.devices[d].bytes(slab), payload); !s) return s;
    }
  }
  return {};
}

/// The same for a draft cache: behind len_d and behind every K and V plane.
template <class Dev>
Status guard_planes(const DflashKv<Dev>& kv) {
  const DflashPlan& plan = kv.plan();
  std::vector<ByteRange> payload = {{0, sizeof(std::int32_t)}};
  for (std::size_t l = 0; l < kv.n_layer(); ++l) {
    payload.push_back({plan.k_offset(l), plan.plane_bytes});
    payload.push_back({plan.v_offset(l), plan.plane_bytes});
  }
  const std::byte* start = reinterpret_cast<const std::byte*>(kv.k(0)) - plan.k_offset(0);
  if (Status s = kv.device().synchronize(); !s) return s;
  return detail::canary_of(kv.device()).guard(start, plan.total_bytes, payload);
}

}  // namespace memra
