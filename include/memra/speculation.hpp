// Speculation: trunk cache, draft cache, taps and the pending token of one sequence, moved together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memra/cache.hpp>
#include <memra/cache_types.hpp>
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
/// has moved and level() is false until repair(): its rows are written and only have to be counted.
///
/// Refers to the caches, which must outlive it and be moved by it alone while it is used.
template <class Dev>
class Speculation {
 public:
  using DraftRows = typename DflashKv<Dev>::Rows;

  /// Rows of the draft cache to be written, and the residual streams they are computed from.
  struct Feed {
    DraftRows rows;
    const float* taps;  ///< [rows.rows()][n_taps * hidden] on the draft's device
  };

  /// @param tap_layers  trunk layers in the drafter's slot order   @param hidden  elements of the residual stream
  /// @param most_rows   most rows of one step or round
  /// @return bad_state unless both caches stand at one position; as DflashTapSink::create
  static Result<Speculation> create(Cache<Dev>& trunk, DflashKv<Dev>& draft, std::vector<std::size_t> tap_layers,
                                    std::size_t hidden, std::size_t most_rows) {
    Speculation s(trunk, draft, std::move(tap_layers), hidden, most_rows);
    if (Status f = s.at_rest("Speculation::create"); !f) return f;
    if (Status f = s.make_sink(); !f) return f;
    return s;
  }

  Cache<Dev>& trunk() const noexcept { return *trunk_; }
  DflashKv<Dev>& draft() const noexcept { return *draft_; }
  std::size_t pos() const noexcept { return trunk_->pos(); }
  bool level() const noexcept { return trunk_->pos() == trunk_->len() && trunk_->len() == draft_->len(); }

  /// Decided by the last logits, in no cache yet.
  std::int32_t pending() const noexcept { return pending_; }
  void set_pending(std::int32_t token) noexcept { pending_ = token; }

  /// A plain forward of `rows` tokens (the prompt, or one token), tapped. Ends with advance.
  Result<Step<Dev>> begin_step(std::size_t rows) {
    if (Status s = begin("begin_step"); !s) return s;
    auto step = trunk_->begin_step(rows);
    if (!step) take_sink();
    return step;
  }

  /// A round of `rows` tokens, the pending one and the drafts, tapped. Ends with commit or abandon.
  /// @return the open round's step
  Result<Step<Dev>> begin_round(std::size_t rows, Strategy by = Strategy::automatic) {
    if (Status s = begin("begin_round"); !s) return s;
    auto round = trunk_->begin_round(rows, by);
    if (!round) {
      take_sink();
      return round.status();
    }
    round_.emplace(*std::move(round));
    return round_->step();
  }

  /// The strategy of the open round; automatic if none is open.
  Strategy strategy() const noexcept { return round_ && round_->open() ? round_->strategy() : Strategy::automatic; }

  /// Draft rows of the first `n` tokens of the open step or round, after the trunk has left its taps.
  Result<Feed> open_rows(std::size_t n) {
    const DflashTapSink<Dev>* taps = trunk_->dflash_taps();
    if (taps == nullptr || draft_->len() != trunk_->pos() || n > taps->cap_rows()) {
      return Status::failure(ErrorKind::bad_state, "open_rows", 0, 0,
                             "no tapped step of %zu rows is open at the draft's length %zu", n, draft_->len());
    }
    auto rows = draft_->begin_rows(n);
    if (!rows) return rows.status();
    open_rows_ = n;
    return Feed{*rows, taps->data()};
  }

  /// Commits the open step and its draft rows.
  Status advance() {
    const std::size_t at = trunk_->pos();
    const std::size_t opened = std::exchange(open_rows_, 0);
    if (opened == 0) return not_opened("advance");
    if (Status s = trunk_->advance(); !s) return s;
    take_sink();
    if (trunk_->pos() - at != opened) {
      return Status::failure(ErrorKind::bad_state, "advance", 0, 0,
                             "draft rows of %zu tokens for a step of %zu; roll back", opened, trunk_->pos() - at);
    }
    return count_rows(opened);
  }

  /// Keeps the first `keep` tokens of the round in both caches; `next` becomes the pending token.
  ///
  /// @param keep  as many as open_rows was asked for last; 0 needs no rows
  /// @return as Round::commit: `replay` tokens are to be fed to the trunk again, untapped, before the next begin
  Result<RolledBack> commit(std::size_t keep, std::int32_t next) {
    if (!round_ || !round_->open()) {
      return Status::failure(ErrorKind::bad_state, "commit", 0, 0, "no round is open; begin one first");
    }
    if (keep != 0 && open_rows_ != keep) return not_opened("commit");
    auto left = round_->commit(keep);
    if (!left) return left;
    open_rows_ = 0;
    round_.reset();
    take_sink();
    pending_ = next;
    if (keep != 0) {
      if (Status s = count_rows(keep); !s) return s;
    }
    return left;
  }

  /// Gives the open round up in both caches.
  Status abandon() {
    open_rows_ = 0;
    const Status s = round_ ? round_->abandon() : Status();
    round_.reset();
    take_sink();
    return s;
  }

  /// Counts the draft rows that a failed device call left uncounted.
  Status repair() {
    if (trunk_->len() == draft_->len() && !draft_->tainted()) return {};
    if (owed_ == 0 || draft_->len() + owed_ != trunk_->len()) {
      return Status::failure(ErrorKind::bad_state, "repair", 0, 0,
                             "the draft has %zu rows, the trunk %zu; roll both back", draft_->len(), trunk_->len());
    }
    if (Status s = draft_->truncate(draft_->len()); !s) return s;
    auto rows = draft_->begin_rows(owed_);
    if (!rows) return rows.status();
    return count_rows(owed_);
  }

  /// Rolls both back: the draft's length follows the trunk's. What the trunk owes is to be fed to it untapped.
  /// @return as Cache::rollback; bad_argument if the draft does not reach as far as the trunk would stand
  Result<RolledBack> rollback(const CacheSnapshot<Dev>& snap, std::size_t accept, std::int32_t next) {
    if (accept > draft_->len() || snap.pos() > draft_->len() - accept) {
      return Status::failure(ErrorKind::bad_argument, "rollback", 0, 0,
                             "to position %zu + %zu; the draft holds %zu rows", snap.pos(), accept, draft_->len());
    }
    auto left = trunk_->rollback(snap, accept);
    if (!left) return left;
    open_rows_ = owed_ = 0;
    round_.reset();
    take_sink();
    if (Status s = draft_->truncate(trunk_->len()); !s) return s;
    pending_ = next;
    return left;
  }

 private:
  Speculation(Cache<Dev>& trunk, DflashKv<Dev>& draft, std::vector<std::size_t> tap_layers, std::size_t hidden,
              std::size_t most_rows)
      : trunk_(&trunk), draft_(&draft), tap_layers_(std::move(tap_layers)), hidden_(hidden), most_rows_(most_rows) {}

  Status make_sink() {
    auto sink = DflashTapSink<Dev>::create(draft_->device(), tap_layers_, hidden_, most_rows_);
    if (!sink) return sink.status();
    sink_.emplace(*std::move(sink));
    return {};
  }

  Status at_rest(const char* call) const noexcept {
    if (level()) return {};
    return Status::failure(ErrorKind::bad_state, call, 0, 0,
                           "trunk at %zu of %zu rows, draft at %zu; they move together, or repair", trunk_->pos(),
                           trunk_->len(), draft_->len());
  }
  static Status not_opened(const char* call) noexcept {
    return Status::failure(ErrorKind::bad_state, call, 0, 0, "open_rows was not called for these tokens");
  }

  Status begin(const char* call) {
    if (round_ && round_->open()) {
      return Status::failure(ErrorKind::bad_state, call, 0, 0, "a round is open; commit or abandon it first");
    }
    open_rows_ = 0;
    take_sink();  // a forward that died left it in the cache
    if (Status s = at_rest(call); !s) return s;
    if (!sink_) {  // gone with a cache that another was put in the place of
      if (Status s = make_sink(); !s) return s;
    }
    if (Status s = trunk_->arm_taps(std::move(*sink_)); !s) return s;  // a refusal leaves it where it is
    sink_.reset();
    return {};
  }
  void take_sink() noexcept {
    if (!sink_) sink_ = trunk_->take_taps();
  }

  Status count_rows(std::size_t n) {
    owed_ = 0;
    Status s = draft_->commit();
    if (!s && !s.asynchronous()) owed_ = n;  // else the rows themselves are in doubt
    return s;
  }

  Cache<Dev>* trunk_;
  DflashKv<Dev>* draft_;
  std::vector<std::size_t> tap_layers_;
  std::size_t hidden_;
  std::size_t most_rows_;
  std::optional<DflashTapSink<Dev>> sink_;  // empty while it is armed in the trunk
  std::optional<Round<Dev>> round_;
  std::int32_t pending_ = 0;
  std::size_t open_rows_ = 0;  // of the open step or round
  std::size_t owed_ = 0;       // written draft rows whose commit failed
};

}  // namespace memra
