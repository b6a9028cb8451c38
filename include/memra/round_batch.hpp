// RoundBatch: many caches end their rounds in one launch per kind and stage.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/cache.hpp>
#include <memra/detail/batch_members.hpp>
#include <memra/detail/cache_core.hpp>
#include <memra/detail/round_state.hpp>
#include <memra/detail/store_values.hpp>
#include <memra/error.hpp>
#include <memra/round.hpp>
#include <memra/round_types.hpp>
#include <memra/round_views.hpp>
#include <span>
#include <utility>
#include <vector>

namespace memra {

/// Commits for a batch of sequences, made once for as long as the same caches decode together.
///
/// What never changes about them lies in a table on the device, written by create; a commit brings numbers only (rows,
/// accept lengths), so commit_d may stand in a captured graph. Caches that take no part in a commit sit it out. They
/// may be moved meanwhile; rounds of one that is gone are refused like any ended round. The batch must live as long as
/// a graph that holds one of its commits may be replayed.
template <class Dev>
class RoundBatch {
  using Core = detail::CacheCore<Dev>;

 public:
  RoundBatch(RoundBatch&&) noexcept = default;
  /// By way of a temporary: a vector assigned to itself is emptied.
  RoundBatch& operator=(RoundBatch&& other) noexcept {
    RoundBatch taken(std::move(other));
    std::swap(members_, taken.members_);
    stages_.swap(taken.stages_);
    return *this;
  }

  /// @param caches  [n] different caches that have paid for planes or stash, with as many stages, each on the same
  ///                device object in all of them; their shapes may differ
  /// @return bad_argument; out_of_memory; device_failure, which taints all of the caches if it is one of earlier work.
  ///         Waits for the devices: kernels follow the tables
  static Result<RoundBatch> create(std::span<Cache<Dev>* const> caches) {
    if (Status s = check(caches); !s) return s;
    RoundBatch b;
    for (const Cache<Dev>* c : caches) b.members_.add(*c->core_);
    const Core& first = *b.members_[0];
    for (std::size_t s = 0; s < first.stages.size(); ++s) {
      auto made = b.make_stage(s);
      if (!made) return b.members_.noted(made.status());
      b.stages_.push_back(*std::move(made));
    }
    return b;
  }

  std::size_t size() const noexcept { return members_.size(); }

  /// Keeps the first accept[i] tokens of rounds[i] and ends them: what Round::commit does to each, in fewer launches.
  ///
  /// @param rounds  [size()] open and written, of the caches in create's order, all by planes or all by stash; nullptr
  ///                where a cache sits out
  /// @param accept  [size()]; what belongs to a nullptr is not read
  /// @return as Round::commit, for the first round that is refused: nothing has changed then. A device failure taints
  ///         every cache that takes part, one of earlier work also those that sit out; one in catching up that is not
  ///         of earlier work has changed nothing
  Status commit(std::span<Round<Dev>* const> rounds, std::span<const std::size_t> accept) {
    if (Status s = check(rounds); !s) return s;
    if (accept.size() != size()) return refuse("another number of accept lengths than caches");
    std::vector<std::int32_t> values(size());
    for (std::size_t i = 0; i < size(); ++i) {
      if (rounds[i] == nullptr) continue;
      if (accept[i] > rounds[i]->rows()) {
        return Status::failure(ErrorKind::bad_argument, "RoundBatch", 0, 0, "round %zu: accept %zu of %zu rows", i,
                               accept[i], rounds[i]->rows());
      }
      values[i] = static_cast<std::int32_t>(accept[i]);
    }
    for (std::size_t i = 0; i < size(); ++i) {
      if (rounds[i] == nullptr) continue;
      if (Status s = detail::catch_up(*members_[i]); !s) return members_.noted(s);
    }
    for (std::size_t i = 0; i < size(); ++i) {
      if (rounds[i] == nullptr) continue;
      if (Status s = members_[i]->fits("RoundBatch", rounds[i]->rows(), ErrorKind::bad_state); !s) return s;
    }
    return run(rounds, values, {}, [&](std::size_t i) { rounds[i]->committed(accept[i]); });
  }

  /// As Round::commit_d: round i reads accept_d[stage][i] when the device gets there.
  /// @param accept_d  [stages] arrays of size() ints on the stage's device
  Status commit_d(std::span<Round<Dev>* const> rounds, std::span<const std::int32_t* const> accept_d) {
    if (Status s = check(rounds); !s) return s;
    const bool null = std::find(accept_d.begin(), accept_d.end(), nullptr) != accept_d.end();
    if (accept_d.size() != stages_.size() || null) {
      return refuse("an accept array is missing; expected one per stage");
    }
    return run(rounds, {}, accept_d, [&](std::size_t i) { rounds[i]->committed_d(); });
  }

 private:
  struct Stage {
    Dev* dev;
    typename Dev::Buffer memory;  // [n] RoundCommit, then [n] rows, then [n] accept lengths
    const RoundCommit* table;
    std::int32_t* rows;
    std::int32_t* accept;
    RoundCommit size;  ///< the most layers, channels and heads of any cache
  };

  RoundBatch() = default;

  static Status refuse(const char* sentence) noexcept {
    return Status::failure(ErrorKind::bad_argument, "RoundBatch", 0, 0, "%s", sentence);
  }

  static Status check(std::span<Cache<Dev>* const> caches) noexcept {
    if (caches.empty()) return refuse("no cache; expected at least one");
    for (std::size_t i = 0; i < caches.size(); ++i) {
      if (caches[i] == nullptr || !caches[i]->core_) return refuse("a cache is null or moved-from");
      const Core& c = *caches[i]->core_;
      const Core& first = *caches[0]->core_;
      if (std::find(caches.begin(), caches.begin() + static_cast<std::ptrdiff_t>(i), caches[i]) !=
          caches.begin() + static_cast<std::ptrdiff_t>(i)) {
        return refuse("a cache comes twice");
      }
      if (!c.plan.round.planes && !c.plan.round.stash) {
        return refuse("a cache has paid for neither planes nor stash; see CacheOptions::rounds");
      }
      if (c.stages.size() != first.stages.size()) return refuse("the caches have different numbers of stages");
      for (std::size_t s = 0; s < c.stages.size(); ++s) {
        if (device(c, s) != device(first, s)) return refuse("a stage is on different devices in two caches");
      }
    }
    return {};
  }

  static Dev* device(const Core& c, std::size_t stage) noexcept { return c.devices[c.stages[stage].device].dev; }

  Result<Stage> make_stage(std::size_t s) const {
    const std::size_t n = members_.size();
    Dev* dev = device(*members_[0], s);
    auto memory = dev->alloc(n * (sizeof(RoundCommit) + 2 * sizeof(std::int32_t)));
    if (!memory) return memory.status();
    std::byte* const at = memory->data();
    auto* const words = reinterpret_cast<std::int32_t*>(at + n * sizeof(RoundCommit));
    std::vector<RoundCommit> table;
    RoundCommit size;
    for (std::size_t i = 0; i < n; ++i) {
      RoundCommit c = members_[i]->stages[s].commit;
      c.rows_d = words + i;
      c.accept_d = words + n + i;
      table.push_back(c);
      size.n_layers = std::max(size.n_layers, c.n_layers);
      size.conv_dim = std::max(size.conv_dim, c.conv_dim);
      size.heads = std::max(size.heads, c.heads);
      size.plain = size.plain && c.plain;
    }
    // Whoever is not told otherwise sits out: kernels go by what stands here even if a commit's numbers get lost.
    std::vector<std::byte> image(memory->size(), std::byte{0xff});
    std::memcpy(image.data(), table.data(), n * sizeof(RoundCommit));
    if (Status f = dev->upload(at, image.data(), image.size()); !f) return f;
    if (Status f = dev->synchronize(); !f) return f;  // and they follow its addresses
    return Stage{dev, *std::move(memory), reinterpret_cast<const RoundCommit*>(at), words, words + n, size};
  }

  Status check(std::span<Round<Dev>* const> rounds) const noexcept {
    if (size() == 0) {
      return Status::failure(ErrorKind::bad_state, "RoundBatch", 0, 0, "the batch is empty (moved-from)");
    }
    if (rounds.size() != size()) return refuse("another number of rounds than caches");
    const Round<Dev>* first = nullptr;
    for (std::size_t i = 0; i < size(); ++i) {
      if (rounds[i] == nullptr) continue;
      if (Status s = rounds[i]->ready("RoundBatch"); !s) return s;
      if (rounds[i]->core_ != members_[i]) {
        return refuse("a round is of another cache than the batch has in its place");
      }
      if (first == nullptr) first = rounds[i];
      if (rounds[i]->strategy() == Strategy::replay || rounds[i]->strategy() != first->strategy()) {
        return refuse("the rounds are by replay or by different strategies; expected all planes or all stash");
      }
    }
    return first != nullptr ? Status() : refuse("every round is null");
  }

  template <class Done>
  Status run(std::span<Round<Dev>* const> rounds, std::span<const std::int32_t> accept,
             std::span<const std::int32_t* const> accept_d, const Done& done) {
    std::vector<std::int32_t> rows;
    RoundMode mode = RoundMode::none;
    for (Round<Dev>* r : rounds) {
      rows.push_back(r == nullptr ? -1 : static_cast<std::int32_t>(r->rows()));
      if (r != nullptr) mode = r->strategy() == Strategy::planes ? RoundMode::planes : RoundMode::stash;
      if (r != nullptr) r->core_->taint("an earlier device failure");  // until all of it is queued
    }
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      Stage& stage = stages_[s];
      if (Status f = detail::store_values(*stage.dev, stage.rows, rows); !f) return members_.noted(f);
      if (Status f = detail::store_values(*stage.dev, stage.accept, accept); !f) return members_.noted(f);
      RoundCommit launch = stage.size;
      launch.mode = mode;
      launch.accept_d = accept_d.empty() ? nullptr : accept_d[s];
      if (Status f = Round<Dev>::queue(*stage.dev, launch, stage.table, size()); !f) return members_.noted(f);
    }
    for (std::size_t i = 0; i < size(); ++i) {
      if (rounds[i] == nullptr) continue;
      done(i);
      members_[i]->tainted = false;
    }
    return {};
  }

  detail::BatchMembers<Dev> members_;
  std::vector<Stage> stages_;
};

}  // namespace memra
