// Copies between a cache and a prefix, plane by plane, through the one description of layouts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memra/detail/cache_core.hpp>
#include <memra/detail/copy_between.hpp>
#include <memra/error.hpp>
#include <memra/layout.hpp>
#include <memra/model_config.hpp>
#include <memra/plan.hpp>
#include <memra/prefix.hpp>
#include <utility>
#include <variant>
#include <vector>

namespace memra::detail {

/// A plane of a plan and the memory it is in.
template <class Dev>
struct PlacedPlane {
  const PlanePlan* plan;
  Dev* dev;
  std::byte* data;
  bool ring;  ///< row r is physical row r mod shape.rows
};

/// Copies stream rows [first, n) of a K or V plane, or a whole state plane, between two plans of one model.
template <class Dev>
Status copy_plane(const PlacedPlane<Dev>& to, const PlacedPlane<Dev>& from, std::size_t first, std::size_t n) {
  if (to.plan->slab != SlabKind::rows) return copy_between(*to.dev, to.data, *from.dev, from.data, to.plan->payload);
  const auto phys = [](const PlacedPlane<Dev>& p, std::size_t row) { return p.ring ? row % p.plan->shape.rows : row; };
  while (first < n) {
    // Up to where one of them starts again at its first physical row.
    const std::size_t dst_row = phys(to, first);
    const std::size_t src_row = phys(from, first);
    const std::size_t rows = std::min({n - first, to.plan->shape.rows - dst_row, from.plan->shape.rows - src_row});
    const Segments dst = segments(to.plan->shape, dst_row, rows);
    const Segments src = segments(from.plan->shape, src_row, rows);
    for (std::size_t i = 0; i < dst.count; ++i) {
      if (Status s = copy_between(*to.dev, to.data + dst.run[i].offset, *from.dev, from.data + src.run[i].offset,
                                  dst.run[i].bytes);
          !s) {
        return s;
      }
    }
    first += rows;
  }
  return {};
}

/// The first row that a prefix of `n` rows holds of a plane: the window of the next token, where a ring keeps no more.
inline std::size_t first_kept(const ModelConfig& cfg, const PlanePlan& p, std::size_t n) {
  const auto* a = std::get_if<AttentionSpec>(&cfg.layers[p.layer].states[p.state]);
  return a == nullptr || a->ring_slack == 0 ? 0 : n - std::min(n, a->window - 1);
}

/// The planes that a prefix holds: all but second buffers, which carry nothing from step to step.
inline std::vector<const PlanePlan*> kept_planes(const Plan& plan) {
  std::vector<const PlanePlan*> kept;
  for (const PlanePlan& p : plan.planes) {
    if (p.slab != SlabKind::extra) kept.push_back(&p);
  }
  return kept;
}

/// The layers as far as they say what stored rows and states mean: without what only sizes scratch.
inline std::vector<LayerSpec> meaning(std::vector<LayerSpec> layers) {
  for (LayerSpec& layer : layers) {
    for (StateSpec& state : layer.states) {
      std::visit(Overloaded{[](AttentionSpec& a) {
                              a.n_heads = 0;
                              a.ring_slack = a.ring_slack == 0 ? 0 : 1;
                              if (a.v_in_k) a.v_format = a.k_format;
                            },
                            [](SharedKvSpec& s) { s.n_heads = 0; }, [](RecurrentSpec& r) { r.second_buffer = false; }},
                 state);
    }
  }
  return layers;
}

/// Refuses unless both plans hold the same planes: layer, state, kind, format, layout, width, and bytes of fixed
/// planes.
inline Status same_planes(const Plan& cache, const Plan& prefix) {
  const std::vector<const PlanePlan*> cache_planes = kept_planes(cache);
  const std::vector<const PlanePlan*> prefix_planes = kept_planes(prefix);
  if (cache_planes.size() != prefix_planes.size()) {
    return Status::failure(ErrorKind::bad_argument, "from_prefix", 0, 0, "the prefix has %zu planes, this model %zu",
                           prefix_planes.size(), cache_planes.size());
  }
  for (std::size_t i = 0; i < cache_planes.size(); ++i) {
    const PlanePlan& a = *cache_planes[i];
    const PlanePlan& b = *prefix_planes[i];
    const bool fixed_differs = a.slab != SlabKind::rows && a.payload != b.payload;
    if (a.layer != b.layer || a.state != b.state || a.kind != b.kind || a.shape.format != b.shape.format ||
        a.shape.layout != b.shape.layout || a.shape.width != b.shape.width || fixed_differs) {
      return Status::failure(
          ErrorKind::bad_argument, "from_prefix", 0, 0,
          "plane %zu: the prefix holds layer %zu as %s/%s of %zu elements, this model layer %zu as %s/%s "
          "of %zu",
          i, b.layer, to_string(b.shape.format).data(), to_string(b.shape.layout).data(), b.shape.width, a.layer,
          to_string(a.shape.format).data(), to_string(a.shape.layout).data(), a.shape.width);
    }
  }
  return {};
}

/// What Cache::export_prefix and Cache::from_prefix do once their arguments are known to be sound.
template <class Dev>
struct PrefixIo {
  /// Rows [0, n) of the live cache, `state` of a snapshot at n, and the logits if they are parked there.
  /// @param state  [devices] the snapshot's copy of each state slab
  static Result<CachePrefix<Dev>> write(CacheCore<Dev>& core, const std::vector<typename Dev::Buffer>& state,
                                        std::size_t n) {
    auto planned = plan(core.config, n, core.placement);
    if (!planned) return planned.status();
    CachePrefix<Dev> prefix;
    prefix.config_ = core.config;
    prefix.plan_ = *std::move(planned);
    for (std::size_t d = 0; d < core.devices.size(); ++d) {
      Dev& dev = *core.devices[d].dev;
      auto rows = dev.alloc(prefix.plan_.devices[d].rows_bytes);
      if (!rows) return rows.status();
      auto fixed = dev.alloc(prefix.plan_.devices[d].state_bytes);
      if (!fixed) return fixed.status();
      if (Status s = dev.copy(fixed->data(), state[d].data(), fixed->size()); !s) return s;
      prefix.devices_.push_back({&dev, *std::move(rows), *std::move(fixed)});
    }
    for (std::size_t i = 0; i < core.plan.planes.size(); ++i) {
      const PlanePlan& from = core.plan.planes[i];
      if (from.slab != SlabKind::rows) continue;
      const PlanePlan& to = prefix.plan_.planes[i];
      Dev& dev = *core.devices[from.device].dev;
      const PlacedPlane<Dev> live{&from, &dev, core.devices[from.device].rows.data() + from.offset,
                                  from.shape.rows < core.plan.max_ctx};
      const PlacedPlane<Dev> kept{&to, &dev, prefix.devices_[to.device].rows->data() + to.offset, to.shape.rows < n};
      if (Status s = copy_plane(kept, live, first_kept(core.config, from, n), n); !s) return s;
    }
    if (core.parked_valid && core.parked_pos == n) {
      Dev& dev = *core.devices[core.stages.back().device].dev;
      auto logits = dev.alloc(core.config.n_vocab * sizeof(float));
      if (!logits) return logits.status();
      if (Status s = dev.copy(logits->data(), core.parked->data(), logits->size()); !s) return s;
      prefix.logits_.emplace(*std::move(logits));
    }
    return prefix;
  }

  /// Refuses a prefix that a cache of this model and size cannot take.
  static Status check(const ModelConfig& cfg, std::size_t max_ctx, const CachePrefix<Dev>& prefix) {
    const auto refuse = [](const char* sentence) {
      return Status::failure(ErrorKind::bad_argument, "from_prefix", 0, 0, "%s", sentence);
    };
    if (prefix.devices_.empty()) return refuse("the prefix is empty (moved-from)");
    if (prefix.pos() > max_ctx) {
      return Status::failure(ErrorKind::bad_argument, "from_prefix", 0, 0, "the prefix has %zu rows, max_ctx is %zu",
                             prefix.pos(), max_ctx);
    }
    if (cfg.n_vocab == prefix.config_.n_vocab && meaning(cfg.layers) == meaning(prefix.config_.layers)) return {};
    auto planned = plan(cfg, max_ctx);
    if (!planned) return planned.status();
    if (Status s = same_planes(*planned, prefix.plan_); !s) return s;
    return refuse("the prefix was made by a model of other heads, windows or vocabulary");
  }

  /// Fills a fresh cache of any placement. After a failure the cache is to be thrown away.
  static Status read(CacheCore<Dev>& core, const CachePrefix<Dev>& prefix) {
    const std::size_t n = prefix.pos();
    const auto to = kept_planes(core.plan);
    const auto held = kept_planes(prefix.plan_);
    for (std::size_t i = 0; i < to.size(); ++i) {
      const PlanePlan& p = *to[i];
      const PlanePlan& q = *held[i];
      const auto& source = prefix.devices_[q.device];
      auto& target = core.devices[p.device];
      std::byte* from = q.slab == SlabKind::rows ? source.rows->data() : source.state->data();
      const PlacedPlane<Dev> kept{&q, source.dev, from + q.offset, q.shape.rows < n};
      const PlacedPlane<Dev> live{&p, target.dev, target.slab(p.slab) + p.offset, p.shape.rows < core.plan.max_ctx};
      if (Status s = copy_plane(live, kept, first_kept(core.config, p, n), n); !s) return s;
    }
    if (Status s = core.store_pos(n); !s) return s;
    core.pos = n;
    core.len = n;
    core.high = n;
    core.restored = n;
    if (!prefix.logits_) return {};
    Dev& dev = *core.devices[core.stages.back().device].dev;
    auto logits = dev.alloc(prefix.logits_->size());
    if (!logits) return logits.status();
    Dev& source = *prefix.devices_[prefix.plan_.stages.back().device].dev;
    if (Status s = copy_between(dev, logits->data(), source, prefix.logits_->data(), logits->size()); !s) return s;
    core.parked.emplace(*std::move(logits));
    core.parked_pos = n;
    core.parked_valid = true;
    return {};
  }
};

}  // namespace memra::detail
