// Round: one transaction over KV, conv and ssm. Verify some tokens, keep the first few, without replaying the model.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memra/cache_types.hpp>
#include <memra/detail/cache_core.hpp>
#include <memra/detail/round_state.hpp>
#include <memra/error.hpp>
#include <memra/ops.hpp>
#include <memra/round_types.hpp>
#include <memra/round_views.hpp>
#include <memra/step.hpp>
#include <memra/taps.hpp>
#include <memra/views.hpp>
#include <optional>
#include <span>
#include <utility>

namespace memra {

template <class Dev>
class RoundBatch;

/// A forward of `rows` tokens at pos (the pending token, then drafts), of which commit keeps the first `accept`.
///
/// Made by Cache::begin_round. The engine runs the model over the views, each layer once, as in a Step; then commit.
/// Destroyed without a commit it is as if it had never begun. It ends with commit, abandon, destruction, and with a
/// rollback or reset of its cache; what is asked of an ended round is bad_state. Every strategy leaves the same bits:
///
/// - replay: begin copies the recurrent state; a commit of fewer rows copies it back and says what to feed again.
/// - planes: nothing is copied; kernels leave the ssm after each token in a plane of its own, and commit says which is
///   the current one. That index is data on the device and stays from round to round: copying the chosen plane back
///   would cost a pass over the state per round, which is what planes are there to save. A plain step, a snapshot and a
///   replay round bring it home first (one copy per layer).
/// - stash: nothing is copied; kernels leave conv and ssm alone and keep the scan's inputs; commit applies the accepted
///   ones in one pass over the state.
///
/// Planes and stash need kernels that honour RecurView::round; ours do. Safe to keep while the cache moves or dies.
template <class Dev>
class Round {
 public:
  Round(Round&& other) noexcept
      : core_(std::exchange(other.core_, nullptr)), life_(std::move(other.life_)), step_(other.step_), by_(other.by_) {}
  Round& operator=(Round&& other) noexcept {
    if (this == &other) return *this;
    (void)abandon();  // what failed is in the cache's taint
    core_ = std::exchange(other.core_, nullptr);
    life_ = std::move(other.life_);
    step_ = other.step_;
    by_ = other.by_;
    return *this;
  }
  ~Round() { (void)abandon(); }

  /// Where the round began; after Round::commit_d of an earlier one without catch_up, where the host last knew it was.
  std::size_t pos() const noexcept { return step_.pos(); }
  std::size_t rows() const noexcept { return step_.rows(); }
  Strategy strategy() const noexcept { return by_; }
  bool open() const noexcept { return live() && step_.open(); }

  /// The views, for code that serves steps and rounds alike. @pre open()
  Step<Dev>& step() noexcept { return step_; }
  Result<KvWriteView> kv_write(std::size_t il, std::size_t nth = 0) {
    if (Status s = usable("kv_write"); !s) return s;
    return step_.kv_write(il, nth);
  }
  Result<KvReadView> kv_read(std::size_t il, std::size_t nth = 0) const {
    if (Status s = usable("kv_read"); !s) return s;
    return step_.kv_read(il, nth);
  }
  Result<RecurView> recur(std::size_t il, std::size_t nth = 0) {
    if (Status s = usable("recur"); !s) return s;
    return step_.recur(il, nth);
  }
  std::optional<TapView> tap(std::size_t il) const noexcept { return open() ? step_.tap(il) : std::nullopt; }

  /// Keeps the first `accept` tokens and ends the round.
  ///
  /// @param accept  0 to rows(): 0 leaves the cache as it was before the round
  /// @return where the next step starts and what is to be fed again there: 0 for planes and stash. bad_argument for a
  ///         larger accept, bad_state if the round has ended, a layer was not written, or one of begin_device_round has
  ///         more rows than fit where it turned out to be (nothing changed: it is still open). A device failure taints
  ///         the cache
  Result<RolledBack> commit(std::size_t accept) noexcept {
    if (Status s = ready("commit"); !s) return s;
    Core& c = *core_;
    if (accept > rows()) {
      return Status::failure(ErrorKind::bad_argument, "commit", 0, 0, "accept %zu of a round of %zu rows", accept,
                             rows());
    }
    if (Status s = detail::catch_up(c); !s) return s;
    if (Status s = c.fits("commit", rows(), ErrorKind::bad_state); !s) return s;
    if (by_ == Strategy::replay) return commit_replay(accept);
    detail::TaintScope<Dev> taint(c);
    for (std::size_t s = 0; s < c.stages.size(); ++s) {
      if (Status f = queue(*c.devices[c.stages[s].device].dev, commit_of(s, accept, nullptr)); !f) return f;
    }
    committed(accept);
    taint.done();
    return RolledBack{c.pos, 0};
  }

  /// Keeps as many tokens as the device says when it gets there, and ends the round. Nothing waits for the device: the
  /// cache's pos() is stale until it catches up, and another round may begin at once.
  ///
  /// @param accept_d  [stages] per stage an int on its device, alive and unchanged until the queued work is done; all
  ///                  hold the same number. A value outside [0, rows] is clamped, and catch_up says so
  /// @return bad_argument for another number of pointers, a null one, or a replay round; else as commit
  Status commit_d(std::span<const std::int32_t* const> accept_d) noexcept {
    if (Status s = ready("commit_d"); !s) return s;
    Core& c = *core_;
    const bool null = std::find(accept_d.begin(), accept_d.end(), nullptr) != accept_d.end();
    if (accept_d.size() != c.stages.size() || null || by_ == Strategy::replay) {
      return Status::failure(ErrorKind::bad_argument, "commit_d", 0, 0,
                             "%zu accept pointers%s for %zu stages of a round by %s; expected one each, and planes or "
                             "stash",
                             accept_d.size(), null ? " (one is null)" : "", c.stages.size(), to_string(by_).data());
    }
    detail::TaintScope<Dev> taint(c);
    for (std::size_t s = 0; s < c.stages.size(); ++s) {
      if (Status f = queue(*c.devices[c.stages[s].device].dev, commit_of(s, 0, accept_d[s])); !f) return f;
    }
    committed_d();
    taint.done();
    return {};
  }
  /// For a cache of one stage.
  Status commit_d(const std::int32_t* accept_d) noexcept { return commit_d({&accept_d, 1}); }

  /// Ends the round as if it had never begun; nothing to do if it has ended.
  /// @return a device failure (replay: the state is copied back) taints
  Status abandon() noexcept {
    if (!open() || core_->tainted) return {};
    Core& c = *core_;
    if (by_ == Strategy::replay) {
      detail::TaintScope<Dev> taint(c);
      if (Status s = detail::copy_replay(c, true); !s) return s;
      taint.done();
    }
    c.end_step();
    return {};
  }

 private:
  friend class Cache<Dev>;
  friend class RoundBatch<Dev>;
  using Core = detail::CacheCore<Dev>;

  Round(Core& core, Strategy by) noexcept : core_(&core), life_(core.life), step_(core), by_(by) {}

  /// Resolves automatic; refuses what was not paid for, or what this device cannot do.
  static Status admit(const Core& c, const char* call, std::size_t rows, Strategy& by) noexcept {
    const RoundPlan& paid = c.plan.round;
    if (Status s = c.usable(call); !s) return s;
    if (by == Strategy::automatic) by = paid.automatic;
    if (!paid.pays(by)) {
      return Status::failure(ErrorKind::bad_argument, call, 0, 0,
                             "rounds by %s were not paid for; set them in CacheOptions::rounds", to_string(by).data());
    }
    if (rows > paid.rows) {
      return Status::failure(ErrorKind::bad_argument, call, 0, 0,
                             "a round of %zu rows; %zu were paid for in CacheOptions::rounds", rows, paid.rows);
    }
    if (by != Strategy::replay && !has_kernels()) {
      return Status::failure(ErrorKind::unsupported, call, 0, 0,
                             "this device has no kernels; rounds by planes or stash need them");
    }
    return {};
  }

  static Result<Round> begin(Core& c, std::size_t rows, Strategy by) noexcept {
    if (Status s = admit(c, "begin_round", rows, by); !s) return s;
    // Positions that only the device knows will do for kernels, not for taps, copies, or a context that is nearly full.
    if (by == Strategy::replay || c.taps || rows > c.plan.max_ctx - c.bound()) {
      if (Status s = detail::catch_up(c); !s) return s;
    }
    if (Status s = c.at_rest("begin_round"); !s) return s;
    if (Status s = c.admit("begin_round", rows); !s) return s;
    if (by == Strategy::replay) {
      if (Status s = detail::land(c); !s) return s;
      if (Status s = detail::copy_replay(c, false); !s) return c.noted(s);
    }
    return start(c, rows, c.bound(), c.ahead, by);
  }

  static Result<Round> begin_on_device(Core& c, std::size_t rows, Strategy by) noexcept {
    constexpr const char* call = "begin_device_round";
    if (Status s = admit(c, call, rows, by); !s) return s;
    if (by == Strategy::replay) {
      return Status::failure(ErrorKind::bad_argument, call, 0, 0,
                             "a round by replay is committed by the host; expected planes or stash");
    }
    if (Status s = c.at_rest(call); !s) return s;
    if (Status s = c.admit_on_device(call, rows); !s) return s;
    return start(c, rows, c.plan.max_ctx, true, by);
  }

  static Round start(Core& c, std::size_t rows, std::size_t bound, bool anywhere, Strategy by) noexcept {
    c.open_step(rows, bound, anywhere);
    c.round_id = c.step_id;
    c.round_by = by;
    return Round(c, by);
  }

  static constexpr bool has_kernels() noexcept {
    return requires {
      typename Dev::kernels;
    };
  }

  bool live() const noexcept { return core_ != nullptr && !life_.expired(); }

  Status usable(const char* call) const noexcept {
    if (open()) return core_->usable(call);
    return Status::failure(ErrorKind::bad_state, call, 0, 0, "this round has ended; begin another");
  }
  Status ready(const char* call) const noexcept {
    if (Status s = usable(call); !s) return s;
    return core_->step_written == core_->n_components ? Status() : core_->unwritten(call);
  }

  RoundCommit commit_of(std::size_t stage, std::size_t accept, const std::int32_t* accept_d) const noexcept {
    RoundCommit c = core_->stages[stage].commit;
    c.accept_d = accept_d;
    c.accept = static_cast<std::int32_t>(accept);
    c.rows = static_cast<std::int32_t>(rows());
    c.mode = by_ == Strategy::planes ? RoundMode::planes : RoundMode::stash;
    return c;
  }

  static Status queue(Dev& dev, const RoundCommit& c, const RoundCommit* many = nullptr, std::size_t n = 1) noexcept {
    if constexpr (has_kernels()) {
      const ops_for<Dev> ops(dev);
      if (c.mode == RoundMode::stash) {
        if (Status s = ops.round_apply(c, many, n); !s) return s;
      }
      return ops.round_commit(c, many, n);
    } else {
      return Status::failure(ErrorKind::unsupported, "commit", 0, 0, "this device has no kernels");
    }
  }

  /// What the host learns from a commit whose accept it knows. @pre caught up
  void committed(std::size_t accept) noexcept {
    Core& c = *core_;
    c.generation = next_generation(c.generation);
    if (by_ == Strategy::planes) c.plane = (c.plane + accept) % (c.plan.round.rows + 1);
    c.move_to(c.pos + accept);
  }

  /// What it learns from one whose accept it does not know.
  void committed_d() noexcept {
    Core& c = *core_;
    c.note_ahead(rows());
    if (by_ == Strategy::planes) c.plane_unknown = true;
    c.end_step();
  }

  Result<RolledBack> commit_replay(std::size_t accept) noexcept {
    Core& c = *core_;
    const std::size_t at = c.pos;
    const bool all = accept == rows() || !c.has_recurrent;
    detail::TaintScope<Dev> taint(c);
    if (Status s = all ? c.store_pos(at + accept) : detail::copy_replay(c, true); !s) return s;
    c.move_to(at + accept);
    if (!all) c.pos = c.mirror = at;
    taint.done();
    return RolledBack{c.pos, c.len - c.pos};
  }

  Core* core_;
  std::weak_ptr<const bool> life_;
  Step<Dev> step_;
  Strategy by_;
};

}  // namespace memra
