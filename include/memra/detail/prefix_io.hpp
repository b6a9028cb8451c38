// Copies between a cache and a prefix, piece by piece, and what must agree before a state of elsewhere is taken.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memra/detail/cache_core.hpp>
#include <memra/detail/copy_between.hpp>
#include <memra/detail/copy_runs.hpp>
#include <memra/detail/state_pieces.hpp>
#include <memra/error.hpp>
#include <memra/model_config.hpp>
#include <memra/plan.hpp>
#include <memra/prefix.hpp>
#include <utility>
#include <variant>
#include <vector>

namespace memra::detail {

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
/// @param what  how to call what came from elsewhere, in a sentence
inline Status same_planes(const char* call, const char* what, const Plan& ours, const Plan& theirs) {
  const std::vector<const PlanePlan*> our_planes = kept_planes(ours);
  const std::vector<const PlanePlan*> their_planes = kept_planes(theirs);
  if (our_planes.size() != their_planes.size()) {
    return Status::failure(ErrorKind::bad_argument, call, 0, 0, "%s has %zu planes, this model %zu", what,
                           their_planes.size(), our_planes.size());
  }
  for (std::size_t i = 0; i < our_planes.size(); ++i) {
    const PlanePlan& a = *our_planes[i];
    const PlanePlan& b = *their_planes[i];
    const bool fixed_differs = a.slab != SlabKind::rows && a.payload != b.payload;
    if (a.layer != b.layer || a.state != b.state || a.kind != b.kind || a.shape.format != b.shape.format ||
        a.shape.layout != b.shape.layout || a.shape.width != b.shape.width || fixed_differs) {
      return Status::failure(
          ErrorKind::bad_argument, call, 0, 0,
          "plane %zu: %s holds layer %zu as %s/%s of %zu elements, this model layer %zu as %s/%s of %zu", i, what,
          b.layer, to_string(b.shape.format).data(), to_string(b.shape.layout).data(), b.shape.width, a.layer,
          to_string(a.shape.format).data(), to_string(a.shape.layout).data(), a.shape.width);
    }
  }
  return {};
}

/// Refuses a state at `pos` of the model `theirs` that a cache of `cfg` and this size cannot take.
/// @param theirs_planned  a plan of it, of any placement
inline Status takes_state(const char* call, const char* what, const ModelConfig& cfg, std::size_t max_ctx,
                          const ModelConfig& theirs, const Plan& theirs_planned, std::size_t pos) {
  if (pos > max_ctx) {
    return Status::failure(ErrorKind::bad_argument, call, 0, 0, "%s has %zu rows, max_ctx is %zu", what, pos, max_ctx);
  }
  if (cfg.n_vocab == theirs.n_vocab && meaning(cfg.layers) == meaning(theirs.layers)) return {};
  auto planned = plan(cfg, max_ctx);
  if (!planned) return planned.status();
  if (Status s = same_planes(call, what, *planned, theirs_planned); !s) return s;
  return Status::failure(ErrorKind::bad_argument, call, 0, 0,
                         "%s was made by a model of other heads, windows or vocabulary", what);
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
    const auto from = state_pieces(core.plan, n);
    const auto to = state_pieces(prefix.plan_, n);
    // The state went over in one copy per device.
    if (Status s = copy_runs(row_pieces(core.plan, from), from, live(core, from), kept(prefix, to)); !s) return s;
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
    if (prefix.devices_.empty()) {
      return Status::failure(ErrorKind::bad_argument, "from_prefix", 0, 0, "the prefix is empty (moved-from)");
    }
    return takes_state("from_prefix", "the prefix", cfg, max_ctx, prefix.config_, prefix.plan_, prefix.pos());
  }

  /// Fills a fresh cache of any placement. After a failure the cache is to be thrown away.
  static Status read(CacheCore<Dev>& core, const CachePrefix<Dev>& prefix) {
    const std::size_t n = prefix.pos();
    const auto to = state_pieces(core.plan, n);
    const auto from = state_pieces(prefix.plan_, n);
    if (Status s = copy_runs(to.size(), to, kept(prefix, from), live(core, to)); !s) return s;
    if (Status s = core.store_pos(n); !s) return s;
    core.restore(n);
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

 private:
  /// Where one side has a piece.
  struct Place {
    Dev* dev;
    std::byte* at;
  };
  static auto live(CacheCore<Dev>& core, const std::vector<StatePiece>& pieces) {
    return [&](std::size_t i) {
      return Place{core.devices[core.plan.planes[pieces[i].plane].device].dev,
                   address(core.plan, pieces[i], core.slabs())};
    };
  }
  static auto kept(const CachePrefix<Dev>& prefix, const std::vector<StatePiece>& pieces) {
    return [&](std::size_t i) {
      return Place{prefix.devices_[prefix.plan_.planes[pieces[i].plane].device].dev,
                   address(prefix.plan_, pieces[i], prefix.slabs())};
    };
  }

  /// Copies the first `count` pieces. What lies together on both sides goes in one copy: the state of all layers does,
  /// as a rule, and the tiles of a ring up to where it starts again.
  template <class From, class To>
  static Status copy_runs(std::size_t count, const std::vector<StatePiece>& pieces, const From& from, const To& to) {
    std::vector<Dev*> devs;  // what stays on a device object goes in one batch, the rest one by one
    std::vector<std::vector<CopyItem>> here;
    for (std::size_t i = 0, next = 0; i < count; i = next) {
      const Place src = from(i);
      const Place dst = to(i);
      std::size_t bytes = 0;
      const auto follows = [&](const Place& start, const Place& piece) {
        return piece.dev == start.dev && piece.at == start.at + bytes;
      };
      for (next = i; next < count && follows(src, from(next)) && follows(dst, to(next)); ++next) {
        bytes += pieces[next].bytes;
      }
      if (src.dev != dst.dev) {
        if (Status s = copy_between(*dst.dev, dst.at, *src.dev, src.at, bytes); !s) return s;
        continue;
      }
      const auto known = std::find(devs.begin(), devs.end(), src.dev);
      if (known == devs.end()) {
        devs.push_back(src.dev);
        here.push_back({{dst.at, src.at, bytes}});
      } else {
        here[static_cast<std::size_t>(known - devs.begin())].push_back({dst.at, src.at, bytes});
      }
    }
    for (std::size_t d = 0; d < devs.size(); ++d) {
      if (Status s = copy_all(*devs[d], here[d].data(), here[d].size()); !s) return s;
    }
    return {};
  }
};

}  // namespace memra::detail
