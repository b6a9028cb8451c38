// Speculation: trunk cache, draft cache, taps and the pending token of one sequence, moved together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memra/cache.hpp>
#include <memra/cache_types.hpp>
#include <memra/detail/cache_core.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/error.hpp>
#include <memra/round.hpp>
#include <memra/round_types.hpp>
#include <memra/snapshot.hpp>
#include <memra/step.hpp>
#include <memra/taps.hpp>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace memra {

/// What a verified block gives.
struct Accepted {
  std::size_t keep = 0;    ///< tokens of the block to commit
  std::int32_t next = -1;  ///< the token after them: decided, not committed
  bool ended = false;      ///< the last kept token stops the text
};

/// Greedy acceptance: the pending token, then every draft that the trunk would have chosen itself, cut at the budget
/// and behind the first token that stops the text. What the caller does not get is not committed either.
///
/// @param block   the pending token, then the drafts; at least one
/// @param choice  [block.size()] what the trunk chose after each of them
/// @param budget  tokens wanted, at least 1
/// @param stops   bool(std::int32_t)
template <class Stops>
Accepted accept_greedy(std::span<const std::int32_t> block, std::span<const std::int32_t> choice, std::size_t budget,
                       const Stops& stops) {
  Accepted a;
  const std::size_t most = std::min({block.size(), choice.size(), budget});
  while (a.keep < most && !a.ended && (a.keep == 0 || block[a.keep] == choice[a.keep - 1])) {
    a.ended = stops(block[a.keep]);
    ++a.keep;
  }
  if (a.keep != 0) a.next = choice[a.keep - 1];
  return a;
}

/// One sequence that speculates. At rest trunk.pos() == trunk.len() == draft.len(): the tokens of the prompt and those
/// emitted since; the pending token is decided and in neither cache.
///
/// Both caches move in one call, advance or commit. Between the begin and that call the engine runs the trunk, opens
/// the draft's rows (which stand beside the taps they are computed from), and writes them. Refusals have moved neither
/// cache. If the trunk's device fails, the draft has not moved; roll back or reset. If only the draft's does, the trunk
/// has moved and level() is false until repair(): its rows are written and only have to be counted. If it fails where a
/// ring makes room, in open_rows or a block, repair() and ask again; if it fails in rollback, roll back again.
///
/// A device failure of earlier work (Status::asynchronous) may be one of either's: whichever call reports it taints
/// both. Not its destruction, which may come after the draft's and taints the trunk alone: abandon first.
///
/// Refers to the caches, which must be there and be moved by it alone while it is used. Destroyed, in the middle of a
/// step or round too, it gives the round up and leaves the trunk untapped; tap views are over with it. A moved-from one
/// refuses.
template <class Dev>
class Speculation {
  /// Where its own sink is while a trunk has it. The trunk may be gone by now, have it no more, or have another.
  struct ArmedTaps {
    detail::CacheCore<Dev>* core = nullptr;
    std::weak_ptr<const bool> life = {};
    std::shared_ptr<const bool> id = {};
    std::uint64_t step_id = 0;  ///< of the step or round that was begun with it

    std::optional<DflashTapSink<Dev>>* in_trunk() const noexcept {
      return !life.expired() && core->taps && core->taps->id_ == id ? &core->taps : nullptr;
    }
    /// Whether that step is open, and `trunk` the one that has it.
    bool step_open(const Cache<Dev>& trunk) const noexcept {
      return !life.expired() && trunk.core_.get() == core && core->step_open && core->step_id == step_id;
    }
  };
  struct State {
    Cache<Dev>* trunk;
    DflashKv<Dev>* draft;
    std::vector<std::size_t> tap_layers;
    std::size_t hidden;
    std::size_t most_rows;
    std::optional<DflashTapSink<Dev>> sink = {};  // empty while it is armed in the trunk
    ArmedTaps armed = {};
    std::optional<Round<Dev>> round = {};
    std::int32_t pending = 0;
    std::size_t step_rows = 0;  // of the open step or round
    std::size_t open_rows = 0;  // draft rows opened for it
    std::size_t owed = 0;       // written draft rows whose commit failed

    State(Cache<Dev>& t, DflashKv<Dev>& d, std::vector<std::size_t> layers, std::size_t n, std::size_t rows)
        : trunk(&t), draft(&d), tap_layers(std::move(layers)), hidden(n), most_rows(rows) {}
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    /// A trunk that is left behind is not tapped: nobody would take the rows, and it would have no place for more.
    ~State() {
      round.reset();
      if (auto* const taps = armed.in_trunk(); taps != nullptr) taps->reset();
    }
  };

 public:
  using DraftRows = typename DflashKv<Dev>::Rows;

  /// Rows of the draft cache to be written, and the residual streams they are computed from.
  struct Feed {
    DraftRows rows;
    const float* taps;  ///< [rows.rows()][n_taps * hidden] on the draft's device
  };

  /// @param tap_layers  trunk layers in the drafter's slot order   @param hidden  elements of the residual stream
  /// @param most_rows   most rows of one step or round
  /// @return bad_state unless both caches stand at one position (it catches up), or for a moved-from one; bad_argument
  ///         also for a layer that the trunk does not have; as DflashTapSink::create
  static Result<Speculation> create(Cache<Dev>& trunk, DflashKv<Dev>& draft, std::vector<std::size_t> tap_layers,
                                    std::size_t hidden, std::size_t most_rows) {
    if (trunk.n_stages() == 0 || draft.cap() == 0) {
      return Status::failure(ErrorKind::bad_state, "Speculation::create", 0, 0, "a cache is empty (moved-from)");
    }
    if (Status f = detail::check_tapped("Speculation::create", tap_layers, trunk.core_->layers.size()); !f) return f;
    Speculation s(std::make_unique<State>(trunk, draft, std::move(tap_layers), hidden, most_rows));
    if (!trunk.tainted()) {
      if (Status f = trunk.catch_up(); !f) return s.noted(f);
    }
    if (Status f = s.at_rest("Speculation::create"); !f) return f;
    if (Status f = s.make_sink(); !f) return s.noted(f);
    return s;
  }

  /// @pre not moved-from, as for draft, pos, level, pending and set_pending
  Cache<Dev>& trunk() const noexcept { return *s_->trunk; }
  DflashKv<Dev>& draft() const noexcept { return *s_->draft; }
  std::size_t pos() const noexcept { return s_->trunk->pos(); }
  bool level() const noexcept { return s_->trunk->pos() == s_->trunk->len() && s_->trunk->len() == s_->draft->len(); }

  /// Decided by the last logits, in no cache yet.
  std::int32_t pending() const noexcept { return s_->pending; }
  void set_pending(std::int32_t token) noexcept { s_->pending = token; }

  /// A plain forward of `rows` tokens (the prompt, or one token), tapped. Ends with advance.
  /// @param scan  of the trunk's recurrent layers, as for Cache::begin_step
  /// @return as Cache::begin_step; bad_argument also for rows that do not fit below the draft's cap; bad_state also
  ///         while the two caches stand apart, the draft is tainted, or another tap sink is armed or a step that it
  ///         did not begin is open in the trunk. An open step or round loses nothing by a refusal
  Result<Step<Dev>> begin_step(std::size_t rows, ScanClass scan = ScanClass::sequential) {
    if (Status s = begin("begin_step", rows, rows); !s) return noted(s);
    auto step = s_->trunk->begin_step(rows, scan);
    if (Status s = begun(step.status(), rows); !s) return s;
    return step;
  }

  /// A round of `rows` tokens, the pending one and the drafts, tapped. Ends with commit or abandon.
  /// @return the open round's step; as begin_step, as Cache::begin_round. Near the draft's cap it may have more rows
  ///         than fit there: commit keeps fewer then
  Result<Step<Dev>> begin_round(std::size_t rows, Strategy by = Strategy::automatic) {
    if (Status s = begin("begin_round", rows, 0); !s) return noted(s);
    auto round = s_->trunk->begin_round(rows, by);
    if (Status s = begun(round.status(), rows); !s) return s;
    s_->round.emplace(*std::move(round));
    return s_->round->step();
  }

  /// The strategy of the open round; automatic if none is open.
  Strategy strategy() const noexcept {
    return s_ && s_->round && s_->round->open() ? s_->round->strategy() : Strategy::automatic;
  }

  /// Draft rows of the first `n` tokens of the open step or round, after the trunk has left its taps.
  Result<Feed> open_rows(std::size_t n) {
    if (Status s = usable("open_rows"); !s) return s;
    const auto* const taps = s_->armed.in_trunk();
    if (taps == nullptr || !s_->armed.step_open(*s_->trunk) || s_->draft->len() != s_->trunk->pos() ||
        n > s_->step_rows) {
      return Status::failure(ErrorKind::bad_state, "open_rows", 0, 0,
                             "no tapped step of %zu rows is open at the draft's length %zu", n, s_->draft->len());
    }
    auto rows = s_->draft->begin_rows(n);
    if (!rows) return noted(rows.status());
    s_->open_rows = n;
    return Feed{*rows, (*taps)->data()};
  }

  /// Commits the open step and its draft rows: open_rows was asked for all of the step's tokens last.
  Status advance() {
    if (Status s = usable("advance"); !s) return s;
    if (!s_->armed.step_open(*s_->trunk)) {
      return Status::failure(ErrorKind::bad_state, "advance", 0, 0, "no step of this speculation is open; begin one");
    }
    if (Status s = opened("advance", s_->step_rows); !s) return s;
    if (Status s = s_->trunk->advance(); !s) return noted(s);
    take_sink();
    return count_rows(std::exchange(s_->open_rows, 0));
  }

  /// Keeps the first `keep` tokens of the round in both caches; `next` becomes the pending token.
  ///
  /// @param keep  as many as open_rows was asked for last; 0 needs no rows
  /// @return as Round::commit: `replay` tokens are to be fed to the trunk again, untapped, before the next begin
  Result<RolledBack> commit(std::size_t keep, std::int32_t next) {
    if (Status s = usable("commit"); !s) return s;
    if (!s_->round || !s_->round->open() || !s_->armed.step_open(*s_->trunk)) {
      return Status::failure(ErrorKind::bad_state, "commit", 0, 0, "no round is open; begin one first");
    }
    if (keep != 0) {
      if (Status s = opened("commit", keep); !s) return s;
    }
    auto left = s_->round->commit(keep);
    if (!left) return noted(left.status());
    s_->open_rows = 0;
    s_->round.reset();
    take_sink();
    s_->pending = next;
    if (keep != 0) {
      if (Status s = count_rows(keep); !s) return s;
    }
    return left;
  }

  /// Gives the open round up in both caches; nothing to do if none is open. A step stays open.
  Status abandon() {
    if (Status s = usable("abandon"); !s) return s;
    const bool in_round = s_->round && s_->round->open();
    const Status s = in_round ? s_->round->abandon() : Status();
    s_->round.reset();
    if (in_round || !s_->armed.step_open(*s_->trunk)) {
      s_->open_rows = 0;
      take_sink();
    }
    return noted(s);
  }

  /// Counts the draft rows that a failed device call left uncounted, or ends the move that one left half done.
  Status repair() {
    if (Status s = usable("repair"); !s) return s;
    if (s_->trunk->len() == s_->draft->len()) {
      if (!s_->draft->tainted()) return {};
      const auto& d = *s_->draft->s_;
      if (d.target != d.base && !d.doubtful) return noted(s_->draft->truncate(d.len));
    }
    if (s_->owed == 0 || s_->draft->len() + s_->owed != s_->trunk->len() || s_->draft->s_->doubtful) {
      return Status::failure(ErrorKind::bad_state, "repair", 0, 0,
                             "the draft has %zu rows, the trunk %zu%s; roll both back", s_->draft->len(),
                             s_->trunk->len(), s_->draft->s_->doubtful ? ", and work queued before has failed" : "");
    }
    if (Status s = s_->draft->truncate(s_->draft->len()); !s) return noted(s);
    auto rows = s_->draft->begin_rows(s_->owed);
    if (!rows) return noted(rows.status());
    return count_rows(s_->owed);
  }

  /// Rolls both back: the draft's length follows the trunk's. What the trunk owes is to be fed to it untapped.
  /// @return as Cache::rollback; bad_argument if the draft does not reach as far as the trunk would stand, or cannot go
  ///         back there (DflashKv::may_truncate)
  Result<RolledBack> rollback(const CacheSnapshot<Dev>& snap, std::size_t accept, std::int32_t next) {
    if (Status s = usable("rollback"); !s) return s;
    if (accept > s_->draft->len() || snap.pos() > s_->draft->len() - accept) {
      return Status::failure(ErrorKind::bad_argument, "rollback", 0, 0,
                             "to position %zu + %zu; the draft holds %zu rows", snap.pos(), accept, s_->draft->len());
    }
    if (Status s = s_->draft->may_truncate(snap.pos() + accept); !s) return s;
    auto left = s_->trunk->rollback(snap, accept);
    if (!left) return noted(left.status());
    s_->open_rows = s_->owed = 0;
    s_->round.reset();
    take_sink();
    if (Status s = s_->draft->truncate(s_->trunk->len()); !s) return noted(s);
    s_->pending = next;
    return left;
  }

 private:
  explicit Speculation(std::unique_ptr<State> state) noexcept : s_(std::move(state)) {}

  Status make_sink() {
    auto sink = DflashTapSink<Dev>::create(s_->draft->device(), s_->tap_layers, s_->hidden, s_->most_rows);
    if (!sink) return sink.status();
    s_->sink.emplace(*std::move(sink));
    return {};
  }

  Status at_rest(const char* call) const noexcept {
    if (level()) return {};
    return Status::failure(ErrorKind::bad_state, call, 0, 0,
                           "trunk at %zu of %zu rows, draft at %zu; they move together, or repair", s_->trunk->pos(),
                           s_->trunk->len(), s_->draft->len());
  }
  Status usable(const char* call) const noexcept {
    if (s_) return {};
    return Status::failure(ErrorKind::bad_state, call, 0, 0, "the speculation is empty (moved-from)");
  }
  /// The draft can count rows: asked before the trunk moves.
  Status draft_sound(const char* call) const noexcept {
    if (!s_->draft->tainted()) return {};
    return Status::failure(ErrorKind::bad_state, call, 0, 0,
                           "the draft is tainted at row %zu; repair, or truncate it to there", s_->draft->len());
  }
  /// Rows for these tokens were opened, and the drafter has not given them up for a block.
  Status opened(const char* call, std::size_t n) const noexcept {
    if (Status s = draft_sound(call); !s) return s;
    if (n != 0 && s_->open_rows == n && s_->draft->open_rows() == n) return {};
    return Status::failure(ErrorKind::bad_state, call, 0, 0, "open_rows was not called for these tokens");
  }
  /// Passes a status on. If it tells of earlier work that failed, that may have been either cache's (C8).
  Status noted(const Status& s) noexcept {
    if (!s.asynchronous()) return s;
    if (auto* const core = s_->trunk->core_.get(); core != nullptr) static_cast<void>(core->noted(s).ok());
    if (auto* const draft = s_->draft->s_.get(); draft != nullptr) draft->tainted = draft->doubtful = true;
    return s;
  }

  /// @param kept  how many of the rows are kept whatever comes: all of a step's
  Status begin(const char* call, std::size_t rows, std::size_t kept) {
    if (Status s = usable(call); !s) return s;
    if (s_->draft->cap() == 0) {
      return Status::failure(ErrorKind::bad_state, call, 0, 0, "the draft cache is empty (moved-from)");
    }
    if (rows > s_->draft->max_rows()) {  // before the trunk runs: its rows could not be followed
      return Status::failure(ErrorKind::bad_argument, call, 0, 0, "%zu rows; the draft takes at most %zu in a call",
                             rows, s_->draft->max_rows());
    }
    if (const std::size_t room = s_->draft->cap() - s_->draft->len(); kept > room) {
      return Status::failure(ErrorKind::bad_argument, call, 0, 0, "%zu rows; %zu fit below the draft's cap %zu", rows,
                             room, s_->draft->cap());
    }
    if (s_->round && s_->round->open()) {
      return Status::failure(ErrorKind::bad_state, call, 0, 0, "a round is open; commit or abandon it first");
    }
    if (Status s = s_->trunk->usable(call); !s) return s;
    auto& core = *s_->trunk->core_;
    // A forward that died left the sink in the trunk. Over its open step it stays there: the trunk refuses, and nothing
    // is lost, or the same rows are written again.
    if (!core.step_open) take_sink();
    const bool armed = s_->armed.in_trunk() == &core.taps;
    if (core.taps && !armed) {
      return Status::failure(ErrorKind::bad_state, call, 0, 0,
                             "a tap sink is armed in the trunk that is not this speculation's; take it first");
    }
    if (Status s = at_rest(call); !s) return s;
    if (Status s = draft_sound(call); !s) return s;
    if (armed) return {};
    if (core.step_open) {
      return Status::failure(ErrorKind::bad_state, call, 0, 0,
                             "a step is open in the trunk without this speculation's taps; roll back or reset first");
    }
    if (!s_->sink) {  // gone with a cache that another was put in the place of, or taken out of the trunk
      if (Status s = make_sink(); !s) return s;
    }
    if (Status s = s_->trunk->arm_taps(std::move(*s_->sink)); !s) return s;  // a refusal leaves it where it is
    s_->sink.reset();
    s_->armed = {&core, core.life, core.taps->id_};
    return {};
  }
  /// The trunk opened a step or round of `rows` rows, or refused, as `s` says: then the sink comes back, unless a step
  /// that is open still needs it.
  Status begun(const Status& s, std::size_t rows) noexcept {
    if (!s) {
      if (!s_->trunk->core_->step_open) take_sink();
      return noted(s);
    }
    s_->armed.step_id = s_->trunk->core_->step_id;
    s_->step_rows = rows;
    s_->open_rows = 0;
    return s;
  }
  void take_sink() noexcept {
    if (auto* const taps = s_->armed.in_trunk(); taps != nullptr) s_->sink = std::exchange(*taps, std::nullopt);
  }

  Status count_rows(std::size_t n) {
    s_->owed = 0;
    Status s = s_->draft->commit();
    if (!s && !s.asynchronous()) s_->owed = n;  // else the rows themselves are in doubt
    return noted(s);
  }

  std::unique_ptr<State> s_;
};

}  // namespace memra
