// Copies between a cache and a prefix, piece by piece.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memra/detail/cache_core.hpp>
#include <memra/detail/copy_between.hpp>
#include <memra/detail/copy_runs.hpp>
#include <memra/detail/state_pieces.hpp>
#include <memra/detail/takes_state.hpp>
#include <memra/error.hpp>
#include <memra/model_config.hpp>
#include <memra/plan.hpp>
#include <memra/prefix.hpp>
#include <memra/views.hpp>
#include <utility>
#include <vector>

namespace memra::detail {

/// What Cache::export_prefix and Cache::from_prefix do once their arguments are known to be sound.
template <class Dev>
struct PrefixIo {
  /// Rows [0, n) of the live cache, `state` of a snapshot at n and its class, and the logits if they are parked there.
  /// @param state  [devices] the snapshot's copy of each state slab
  static Result<CachePrefix<Dev>> write(CacheCore<Dev>& core, const std::vector<typename Dev::Buffer>& state,
                                        std::size_t n, ScanClass scan) {
    auto planned = plan(core.config, n, core.placement);
    if (!planned) return planned.status();
    CachePrefix<Dev> prefix;
    prefix.config_ = core.config;
    prefix.plan_ = *std::move(planned);
    prefix.scan_ = scan;
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
    for (const auto& d : core.devices) prefix.work_.add(*d.dev);
    return prefix;
  }

  /// Refuses a prefix that a cache of this model and size cannot take.
  static Status check(const ModelConfig& cfg, std::size_t max_ctx, const CachePrefix<Dev>& prefix) {
    if (prefix.devices_.empty()) {
      return Status::failure(ErrorKind::bad_argument, "from_prefix", 0, 0, "the prefix is empty (moved-from)");
    }
    if (prefix.work_.failed()) {
      return Status::failure(ErrorKind::bad_state, "from_prefix", 0, 0,
                             "the prefix is lost: work that was queued with its copies failed later");
    }
    return takes_state("from_prefix", "the prefix", cfg, max_ctx, prefix.config_, prefix.pos());
  }

  /// Fills a fresh cache of any placement. After a failure the cache is to be thrown away.
  static Status read(CacheCore<Dev>& core, const CachePrefix<Dev>& prefix) {
    const std::size_t n = prefix.pos();
    const auto to = state_pieces(core.plan, n);
    const auto from = state_pieces(prefix.plan_, n);
    if (Status s = copy_runs(to.size(), to, kept(prefix, from), live(core, to)); !s) return s;
    if (Status s = core.store_pos(n); !s) return s;
    core.restore(n, prefix.scan_);
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
