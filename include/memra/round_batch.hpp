// RoundBatch: many caches end their rounds in one launch per kind and stage.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memra/detail/cache_core.hpp>
#include <memra/detail/round_state.hpp>
#include <memra/error.hpp>
#include <memra/ops.hpp>
#include <memra/round.hpp>
#include <memra/round_types.hpp>
#include <memra/round_views.hpp>
#include <span>
#include <vector>

namespace memra {

/// Commits for a batch of sequences. The caches have as many stages, each on the same device object; their shapes may
/// differ. The rounds are open, written, all by planes or all by stash, and of different caches.
template <class Dev>
class RoundBatch {
  using Core = detail::CacheCore<Dev>;

 public:
  /// Scratch per stage, on the stage's device, for `n` rounds.
  static constexpr std::size_t scratch_bytes(std::size_t n) noexcept { return n * sizeof(RoundCommit); }

  /// Keeps the first accept[i] tokens of rounds[i] and ends them: what Round::commit does to each, in fewer launches.
  ///
  /// @param accept   [rounds.size()]
  /// @param scratch  [stages] scratch_bytes(rounds.size()) each, unused by others until the queued work is done
  /// @return as Round::commit, for the first round that is refused: nothing has changed then. A device failure taints
  ///         every cache of the batch
  static Status commit(std::span<Round<Dev>* const> rounds, std::span<const std::size_t> accept,
                       std::span<const WorkspaceView> scratch) {
    if (Status s = check(rounds, accept.size(), scratch); !s) return s;
    for (std::size_t i = 0; i < rounds.size(); ++i) {
      if (accept[i] > rounds[i]->rows()) {
        return Status::failure(ErrorKind::bad_argument, "RoundBatch::commit", 0, 0, "round %zu: accept %zu of %zu rows",
                               i, accept[i], rounds[i]->rows());
      }
    }
    for (Round<Dev>* r : rounds) {
      if (Status s = detail::catch_up(*r->core_); !s) return s;
    }
    const auto entry = [&](std::size_t i, std::size_t s) { return rounds[i]->commit_of(s, accept[i], nullptr); };
    return run(rounds, scratch, entry, [&](std::size_t i) { rounds[i]->committed(accept[i]); });
  }

  /// As Round::commit_d: round i reads accept_d[stage][i] when the device gets there.
  /// @param accept_d  [stages] arrays of rounds.size() ints on the stage's device
  static Status commit_d(std::span<Round<Dev>* const> rounds, std::span<const std::int32_t* const> accept_d,
                         std::span<const WorkspaceView> scratch) {
    if (Status s = check(rounds, rounds.size(), scratch); !s) return s;
    const bool null = std::find(accept_d.begin(), accept_d.end(), nullptr) != accept_d.end();
    if (accept_d.size() != scratch.size() || null) {
      return refuse("an accept array is missing; expected one per stage");
    }
    const auto entry = [&](std::size_t i, std::size_t s) { return rounds[i]->commit_of(s, 0, accept_d[s] + i); };
    return run(rounds, scratch, entry, [&](std::size_t i) { rounds[i]->committed_d(); });
  }

 private:
  static Status refuse(const char* sentence) noexcept {
    return Status::failure(ErrorKind::bad_argument, "RoundBatch", 0, 0, "%s", sentence);
  }

  static Status check(std::span<Round<Dev>* const> rounds, std::size_t accepts,
                      std::span<const WorkspaceView> scratch) noexcept {
    if (rounds.empty() || accepts != rounds.size()) {
      return refuse("no round, or another number of accept lengths than rounds");
    }
    for (std::size_t i = 0; i < rounds.size(); ++i) {
      if (rounds[i] == nullptr) return refuse("a round is null");
      if (Status s = rounds[i]->ready("RoundBatch"); !s) return s;
      const Core& c = *rounds[i]->core_;
      const Core& first = *rounds[0]->core_;
      if (rounds[i]->strategy() == Strategy::replay || rounds[i]->strategy() != rounds[0]->strategy()) {
        return refuse("the rounds are by replay or by different strategies; expected all planes or all stash");
      }
      for (std::size_t j = 0; j < i; ++j) {
        if (rounds[j]->core_ == &c) return refuse("two rounds are of one cache");
      }
      if (c.stages.size() != first.stages.size() || scratch.size() != c.stages.size()) {
        return refuse("the caches have different numbers of stages, or scratch is not one per stage");
      }
      for (std::size_t s = 0; s < c.stages.size(); ++s) {
        if (c.devices[c.stages[s].device].dev != first.devices[first.stages[s].device].dev) {
          return refuse("a stage is on different devices in two caches");
        }
      }
    }
    for (const WorkspaceView& w : scratch) {
      if (w.data == nullptr || w.bytes < scratch_bytes(rounds.size()) ||
          reinterpret_cast<std::uintptr_t>(w.data) % alignof(RoundCommit) != 0) {
        return refuse("scratch of a stage is too small or not aligned; see scratch_bytes");
      }
    }
    return {};
  }

  template <class Entry, class Done>
  static Status run(std::span<Round<Dev>* const> rounds, std::span<const WorkspaceView> scratch, const Entry& entry,
                    const Done& done) {
    std::vector<RoundCommit> table(rounds.size());
    Core& first = *rounds[0]->core_;
    for (Round<Dev>* r : rounds) r->core_->taint("an earlier device failure");  // until all of it is queued
    for (std::size_t s = 0; s < first.stages.size(); ++s) {
      RoundCommit size;
      for (std::size_t i = 0; i < rounds.size(); ++i) {
        table[i] = entry(i, s);
        size.n_layers = std::max(size.n_layers, table[i].n_layers);
        size.conv_dim = std::max(size.conv_dim, table[i].conv_dim);
        size.heads = std::max(size.heads, table[i].heads);
      }
      size.mode = table[0].mode;
      auto& device = first.devices[first.stages[s].device];
      const std::size_t bytes = scratch_bytes(table.size());
      if (Status f = device.dev->upload(scratch[s].data, reinterpret_cast<const std::byte*>(table.data()), bytes); !f) {
        return f;
      }
      const auto* many = reinterpret_cast<const RoundCommit*>(scratch[s].data);
      if (Status f = Round<Dev>::queue(device, size, many, table.size()); !f) return f;
    }
    for (std::size_t i = 0; i < rounds.size(); ++i) {
      done(i);
      rounds[i]->core_->tainted = false;
    }
    return {};
  }
};

}  // namespace memra
