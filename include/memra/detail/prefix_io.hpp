// Copies between a cache and a prefix, plane by plane, through the one description of layouts.
#pragma once

#include <cstddef>
#include <memra/detail/copy_between.hpp>
#include <memra/error.hpp>
#include <memra/layout.hpp>
#include <memra/model_config.hpp>
#include <memra/plan.hpp>
#include <variant>
#include <vector>

namespace memra::detail {

/// Copies rows [0, n) of a K or V plane, or a whole state plane, between two plans of one model.
template <class Dev>
Status copy_plane(const PlanePlan& to, Dev& to_dev, std::byte* dst, const PlanePlan& from, Dev& from_dev,
                  const std::byte* src, std::size_t n) {
  if (to.slab != SlabKind::rows) return copy_between(to_dev, dst, from_dev, src, to.payload);
  const Segments dst_runs = segments(to.shape, 0, n);
  const Segments src_runs = segments(from.shape, 0, n);
  for (std::size_t i = 0; i < dst_runs.count; ++i) {
    if (Status s = copy_between(to_dev, dst + dst_runs.run[i].offset, from_dev, src + src_runs.run[i].offset,
                                dst_runs.run[i].bytes);
        !s) {
      return s;
    }
  }
  return {};
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
      std::visit(Overloaded{[](AttentionSpec& a) { a.n_heads = 0; }, [](RecurrentSpec& r) { r.second_buffer = false; }},
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

}  // namespace memra::detail
