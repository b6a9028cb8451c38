// A Cache in rounds of every strategy, over the real ops: what is held must be what a straight run leaves, byte for
// byte.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <memra/attend_batch.hpp>
#include <memra/cache.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/handover.hpp>
#include <memra/round_batch.hpp>
#include <memra/speculation.hpp>
#include <optional>
#include <property/cache_machine.hpp>
#include <property/script.hpp>
#include <property/stacks.hpp>
#include <string>
#include <support/op_model.hpp>
#include <support/placements.hpp>
#include <support/stand_in.hpp>
#include <support/tape.hpp>
#include <utility>
#include <variant>
#include <vector>

namespace property {

/// Bugs planted into what the machine does, for the self test.
enum class RoundPlant {
  none,
  keeps_one_more,         ///< a commit by planes keeps a token more than was accepted
  stash_forgets_conv,     ///< a commit by stash leaves one byte of conv as it was not
  device_is_told_less,    ///< the accept length on the device is one less
  given_up_is_kept,       ///< a round that is given up is committed
  failure_is_forgotten,   ///< the engine does not repair what a failed commit left
  draft_gets_other_taps,  ///< the draft's rows of a round are those of the tokens before
  attend_rows_swapped,    ///< the rows of a batch's attention are told the wrong way round
  batch_tells_one_less,   ///< the last cache of a batch is told one token less
  sent_tail_is_spoiled,   ///< a draft's rows arrive with another byte
  chunks_are_plain,       ///< a chunked step is begun as a plain one
  replay_is_plain,        ///< rows of a chunked step are replayed by a plain one
};

/// Tokens of a chunk that begins at `at`: up to the grid, or to the first that no chunked step fed.
inline std::size_t piece_of_chunks(const std::vector<bool>& chunked, std::size_t at) {
  const auto end = static_cast<std::ptrdiff_t>(std::min(chunked.size(), at + memra::scan_chunk));
  const auto first = chunked.begin() + static_cast<std::ptrdiff_t>(at);
  return static_cast<std::size_t>(std::find(first, chunked.begin() + end, false) - first);
}

/// A draft cache that moves with the trunk. Its rows are the taps themselves: what the trunk's last layer gave.
template <class Dev>
struct Pair {
  static constexpr std::size_t block = 4;

  static memra::DflashCfg config(bool ring) {
    memra::DflashCfg c;
    c.n_layer = 1;
    c.n_kv = 1;
    c.head_dim = memra_test::OpModel::width;
    c.block_size = block;
    c.sliding_window = 3;  // a ring of 2 * 7 + 4 rows
    c.ring = ring;
    return c;
  }

  memra::DflashKv<Dev> draft;
  std::optional<memra::Speculation<Dev>> spec = {};
  std::size_t floor = 0;    ///< rows below were never in the draft
  std::size_t from = 0;     ///< nor in this one of it, which may have been made of a tail
  std::size_t longest = 0;  ///< most rows it had
  std::int32_t pending = 0;

  memra::Status write(std::size_t n, std::size_t wrong) {
    auto open = spec->open_rows(n);
    if (!open) return open.status();
    const float* taps = open->taps + wrong;
    return memra::ops_for<Dev>(draft.device()).draft_write(open->rows.view(0), taps, taps);
  }
};

/// A cache without rounds that is fed one token at a time, or one chunk of the grid, and what its last layer gave: the
/// oracle.
class StraightRun {
 public:
  StraightRun(const memra_test::OpModel& m, std::size_t max_ctx) : m_(m), max_ctx_(max_ctx) { restart(); }

  /// The cache after exactly `tokens`.
  /// @param chunked  which of the first tokens went through a chunked step
  const memra::Cache<memra::HostDev>& after(const Tokens& tokens, std::vector<bool> chunked = {}) {
    chunked.resize(tokens.size());
    const bool goes_on = fed_.size() <= tokens.size() && std::equal(fed_.begin(), fed_.end(), tokens.begin()) &&
                         std::equal(chunked_.begin(), chunked_.end(), chunked.begin());
    const std::size_t at = fed_.size();
    // Nor from within a chunk that had fewer tokens.
    if (!goes_on || (at < chunked.size() && chunked[at] && at % memra::scan_chunk != 0)) restart();
    std::vector<float> rows;
    while (fed_.size() < tokens.size()) {
      const std::size_t i = fed_.size();
      const std::size_t n = chunked[i] ? piece_of_chunks(chunked, i) : 1;
      memra::check(m_.feed(*cache_, {&tokens[i], n}, rows, class_of(chunked[i])));
      out_.insert(out_.end(), rows.begin(), rows.end());
      fed_ = memra_test::part(tokens, 0, i + n);
    }
    chunked_ = std::move(chunked);
    return *cache_;
  }
  /// [tokens][OpModel::width], of the last call of after.
  const std::vector<float>& out() const { return out_; }

 private:
  void restart() {
    cache_.emplace(memra::check(memra::Cache<memra::HostDev>::create(dev_, m_.config(), max_ctx_)));
    fed_.clear();
    chunked_.clear();
    out_.clear();
  }

  const memra_test::OpModel& m_;
  std::size_t max_ctx_;
  memra::HostDev dev_;
  std::optional<memra::Cache<memra::HostDev>> cache_;
  Tokens fed_;
  std::vector<bool> chunked_;  ///< [fed]
  std::vector<float> out_;
};

/// A cache that commits in one batch with the machine's own; its tokens, and a straight run of its own.
template <class Dev>
struct Mate {
  explicit Mate(const memra::ModelConfig& config) : m(config), straight(m, short_ctx) {}

  memra_test::OpModel m;
  StraightRun straight;
  std::optional<memra::Cache<Dev>> cache = {};
  Tokens rows = {};
  std::vector<float> out = {};  ///< [rows][OpModel::width]
  bool lost = false;            ///< what it holds is not known: only a reset helps
};

/// setup: model kind, K format, V format, layout, placement and context, whether a draft cache moves along from the
/// start (an odd half).
///
/// The rules (R3, R7, R8, C8): a round that did not commit is as if it had never begun. A call that failed has changed
/// nothing or has tainted; after a rollback to a valid snapshot, or a reset, every byte is right again.
template <class Dev>
class RoundMachine {
  using Cache = memra::Cache<Dev>;
  using Round = memra::Round<Dev>;
  using Batch = memra::RoundBatch<Dev>;
  using Attend = memra::AttendBatch<Dev>;
  using Strategy = memra::Strategy;
  static constexpr std::size_t most_rows = 7;

 public:
  RoundMachine(const std::vector<unsigned>& setup, RoundPlant plant)
      : plant_(plant),
        m_(model(at(setup, 0), at(setup, 1), at(setup, 2), at(setup, 3))),
        fit_(m_.config(), at(setup, 4) % 2 == 1),
        straight_(m_, fit_.max_ctx) {
    const auto all = memra_test::placements(m_.config().layers.size());
    memra::CacheOptions options = memra_test::all_rounds(most_rows);
    options.rounds.stash = stash_ = may_stash(m_.config());
    place_ = at(setup, 4) % all.size();
    for (Dev& d : d_.dev) d.share(d_.dev[0].plan());  // the n-th call of them all fails
    cache_.emplace(memra::check(create(m_.config(), fit_.max_ctx, options)));
    guard<Dev>(*cache_);
    if (at(setup, 5) / 2 % 2 == 1) join(at(setup, 5) / 4 % 2 == 1);
  }

  void apply(const Op& op) {
    arm(op.fault);
    failed_ = forgot_ = false;
    switch (op.code) {
      case 'f':
        feed(1 + op.a % 4, op.b);
        break;
      case 'c':
        chunk(op);
        break;
      case 'k':
        round(1 + op.a % most_rows, op.b, op.c);
        break;
      case 'n':
        give_up(1 + op.a % most_rows, op.b, op.c);
        break;
      case 's':
        snapshot(held_[op.a % 2]);
        break;
      case 'r':
        rollback(held_[op.a % 2], op.b);
        break;
      case 'z':
        reset();
        break;
      case 'd':
        pair_ ? leave_or_move(op.a) : join(op.a % 2 == 1);
        break;
      case 'b':
        batch(op);
        break;
      case 'o':
        hand_over(op.a);
        break;
      case 'm':
        part_or_move(op.a);
        break;
      default:
        look_ = true;
        break;
    }
    const bool fired = d_.disarm();
    if (std::exchange(unguarded_, false)) guard<Dev>(*cache_);
    faults += fired ? 1 : 0;
    // Giving a round up has no Status when a destructor does it: then the taint says so.
    expect(!failed_ || fired, "a call failed without a fault");
    expect(!fired || failed_ || cache_->tainted(), "a failure was reported by no call");
    if (pair_ && pair_->draft.tainted() && !cache_->tainted() && !owes_) level();
    for (Mate<Dev>& m : mates_) start_again(m);
    if (cache_->tainted() || owes_) {
      repair(op.c);
      look_ = true;
    }
    if (failed_) look_ = true;  // what failed and did not taint has changed nothing
    if (std::exchange(look_, false)) compare();
  }

  void finish() {
    compare();
    for (Held& h : held_) h = {};
    d_.expect_guards_whole();
    pair_.reset();
    disband();
    cache_.reset();
    d_.expect_guards_whole();
    expect(d_.live() == 0, "memory was left when everything was gone");
  }

  std::size_t refusals = 0;
  std::size_t taints = 0;
  std::size_t faults = 0;
  std::size_t replays = 0;
  std::size_t stale = 0;
  std::size_t rounds = 0;
  std::size_t together = 0;  ///< commits of trunk and draft
  std::size_t levelled = 0;  ///< times the draft had to be brought up to the trunk
  std::size_t batches = 0;   ///< commits of several caches at once
  std::size_t attended = 0;  ///< attentions of two caches in one launch
  std::size_t handed = 0;    ///< states that went over a link
  std::size_t tails = 0;     ///< with a draft's rows
  std::size_t chunks = 0;    ///< chunked steps that were committed

 private:
  /// What a model allows.
  struct Fit {
    bool has_chunks = false;
    std::size_t max_ctx = short_ctx;
    std::size_t most_in_step = long_ctx;  ///< a ring keeps the window of a step's first row until its last is written

    /// @param longer  room for more than a chunk, where no ring may lose what a rollback needs
    Fit(const memra::ModelConfig& config, bool longer) {
      for (const Part& p : parts_of(config)) {
        const auto* r = std::get_if<memra::RecurrentSpec>(&p.spec);
        const auto* a = std::get_if<memra::AttentionSpec>(&p.spec);
        has_chunks = has_chunks ||
                     (r != nullptr && r->rule == memra::ScanRule::gated_delta && r->ssm_format == memra::Format::f32);
        if (a == nullptr || a->ring_slack == 0) continue;
        most_in_step = std::min(most_in_step, (a->window + a->ring_slack + 63) / 64 * 64 - (a->window - 1));
        longer = false;
      }
      if (has_chunks && longer) max_ctx = long_ctx;
    }
  };

  struct Held {
    std::optional<memra::CacheSnapshot<Dev>> snap;
    Tokens tokens;
  };

  static unsigned at(const std::vector<unsigned>& v, std::size_t i) { return i < v.size() ? v[i] : 0; }
  static memra::ModelConfig model(unsigned kind, unsigned k, unsigned v, unsigned layout) {
    if (kind % 3 == 1) return memra_test::round_hybrid();
    if (kind % 3 == 2) return memra_test::round_recurrent();
    return model_of(kind / 3, k, v, layout);
  }

  Strategy strategy(unsigned b) const { return strategy_of(b, stash_); }

  void arm(unsigned fault) {
    if (fault == 0) return;
    memra::Fault f;
    f.nth = 1 + fault % 40;
    f.forever = fault / 40 % 3 == 2;
    f.torn = !guarded<Dev>;
    d_.dev[0].arm(f);
  }
  bool good(const memra::Status& s) {
    if (s.ok()) return true;
    expect(s.kind() != memra::ErrorKind::bad_argument && (s.kind() != memra::ErrorKind::bad_state || failed_),
           "refused: " + s.message());
    failed_ = true;
    return false;
  }
  template <class T>
  bool good(const memra::Result<T>& r) {
    return good(r.status());
  }
  void refused(const memra::Status& s, memra::ErrorKind kind, const char* what) {
    expect(s.kind() == kind, std::string(what) + ": " + (s.ok() ? "went well" : s.message()));
    ++refusals;
  }

  Tokens tokens(std::size_t n, unsigned branch) const {
    Tokens t;
    for (std::size_t i = 0; i < n; ++i) t.push_back(static_cast<Token>((branch * 5 + i + rows_.size()) % 7));
    return t;
  }
  void keep(const Tokens& t, const std::vector<float>& out, bool chunked = false) {
    rows_ = memra_test::join(rows_, t);
    chunked_.resize(rows_.size(), chunked);
    out_.insert(out_.end(), out.begin(),
                out.begin() + static_cast<std::ptrdiff_t>(t.size() * memra_test::OpModel::width));
    if (pair_) pair_->longest = std::max(pair_->longest, rows_.size());
  }
  void cut(std::size_t end) {
    rows_.resize(end);
    chunked_.resize(end);
    out_.resize(end * memra_test::OpModel::width);
    for (Held& h : held_) {
      if (!h.snap || h.tokens.size() <= end) continue;
      expect(!h.snap->valid(), "a snapshot above a cut is valid");
      ++stale;
      h = {};
    }
  }

  void reset() {
    if (good(cache_->reset())) cut(0), part_company();
    forgot_ = failed_;
  }

  memra::Result<memra::Step<Dev>> begin_step(std::size_t n, memra::ScanClass by) {
    return pair_ ? pair_->spec->begin_step(n, by) : cache_->begin_step(n, by);
  }
  void feed(std::size_t n, unsigned branch, bool chunked = false) {
    n = std::min(n, fit_.max_ctx - rows_.size());
    if (n == 0) return;
    const Tokens t = tokens(n, branch);
    const auto by = class_of(chunked && plant_ != RoundPlant::chunks_are_plain);
    auto step = begin_step(n, by);
    if (!good(step)) return;
    expect(step->rows() == n && step->pos() == rows_.size() && step->scan_class() == by,
           "begin_step: another position, row count or class");
    std::vector<float> out;
    if (!good(m_.forward(*cache_, *step, t, out)) || (pair_ && !good(pair_->write(n, 0)))) {
      owes_ = true;  // a step that died half way
    } else if (good(pair_ ? pair_->spec->advance() : cache_->advance()) || only_draft_failed()) {
      keep(t, out, chunked);
      chunks += chunked ? 1 : 0;
    } else {
      expect(cache_->tainted(), "an advance that failed did not taint");
    }
  }

  /// A chunked step, and what leads to where one may begin: the rows up to the grid, or a new prompt. With a draft that
  /// comes along no more rows than its sink holds.
  void chunk(const Op& op) {
    constexpr std::size_t grid = memra::scan_chunk;
    const std::size_t to_grid = (grid - rows_.size() % grid) % grid;
    if (fit_.has_chunks && op.b % 4 < 2 && rows_.size() + to_grid < fit_.max_ctx) {
      for (std::size_t left = to_grid; left != 0; left = (grid - rows_.size() % grid) % grid) {
        feed(std::min(left, most_rows), op.b);
        if (failed_) return;
      }
    } else if (fit_.has_chunks && op.b % 4 == 2 && to_grid != 0) {
      reset();
      if (failed_) return;
    }
    const std::size_t room = std::min(fit_.max_ctx - rows_.size(), pair_ ? most_rows : fit_.most_in_step);
    const std::size_t n = std::min<std::size_t>(op.a % 3 == 0 ? grid : 1 + op.a % 3 * op.a, room);
    if (n == 0) return;
    if (fit_.has_chunks && rows_.size() % grid == 0) return feed(n, op.b, true);
    const memra::Status s = begin_step(n, memra::ScanClass::chunked).status();
    expect(!s.ok(), "a chunked step off the grid, or of a model that has none");
    if (s.kind() == memra::ErrorKind::bad_argument) {
      ++refusals;
    } else {
      good(s);
    }
  }

  // --- a draft cache beside it ---

  /// The draft begins where the trunk is.
  void join(bool ring) {
    if (!good(cache_->catch_up())) return;
    auto draft = memra::DflashKv<Dev>::create_cold_at(d_.dev[2], Pair<Dev>::config(ring), fit_.max_ctx, rows_.size());
    if (!good(draft)) return;
    pair_.emplace(Pair<Dev>{*std::move(draft)});
    pair_->floor = pair_->from = pair_->longest = rows_.size();
    speculate();
  }
  /// Puts the draft beside the trunk, or drops it.
  void speculate() {
    auto spec = memra::Speculation<Dev>::create(*cache_, pair_->draft, {m_.config().layers.size() - 1},
                                                memra_test::OpModel::width, most_rows);
    if (!good(spec)) return pair_.reset();
    pair_->spec.emplace(*std::move(spec));
  }
  /// The trunk goes on alone. What is armed in it would limit its steps.
  void part_company() {
    pair_.reset();
    expect(cache_->dflash_taps() == nullptr, "a speculation that is gone left its sink in the trunk");
  }
  void leave_or_move(unsigned a) {
    if (a % 3 == 0) return part_company();
    memra::Speculation<Dev> other(std::move(*pair_->spec));
    refused(pair_->spec->begin_step(1).status(), memra::ErrorKind::bad_state, "a moved-from speculation");
    refused(pair_->spec->abandon(), memra::ErrorKind::bad_state, "a moved-from speculation");
    *pair_->spec = std::move(other);
    refused(pair_->spec->advance(), memra::ErrorKind::bad_state, "advance without a step");
    refused(pair_->spec->commit(0, 0).status(), memra::ErrorKind::bad_state, "commit without a round");
    refused(pair_->spec->begin_step(pair_->draft.max_rows() + 1).status(), memra::ErrorKind::bad_argument, "too many");
  }
  /// Trunk first: if only the draft's call failed, the trunk has moved.
  bool only_draft_failed() { return pair_ && !cache_->tainted() && pair_->draft.tainted(); }
  /// repair(), and what the trunk still owes: then both stand where the trunk went.
  void level() {
    memra::check(pair_->spec->repair());
    ++levelled;
    expect(replay({cache_->pos(), cache_->replay_owed()}), "a replay failed without a fault");
    look_ = true;
  }
  /// Whether the draft can follow to row `n`: not below where it began; a ring may refuse what is further back than a
  /// block and one row, and only that.
  bool follows(std::size_t n, const memra::Status& s) {
    const memra::DflashCfg& cfg = pair_->draft.config();
    const bool there = std::max(n - std::min(n, cfg.sliding_window - 1), pair_->floor) >= pair_->from;
    const bool must = n >= pair_->floor && (cfg.ring ? n + Pair<Dev>::block + 1 >= pair_->longest : there);
    const bool refuses = s.kind() == memra::ErrorKind::bad_argument;
    expect(!refuses || !must, "a rollback that both can do: " + s.message());
    expect(refuses || n >= pair_->floor, "a rollback to where the draft has nothing went well");
    refusals += refuses ? 1 : 0;
    return !refuses;
  }

  /// As round, of both.
  void round_of_both(std::size_t n, unsigned b, unsigned c) {
    const Strategy by = strategy(b);
    const std::size_t accept = c % (n + 1);
    const Tokens t = tokens(n, b);
    auto& spec = *pair_->spec;
    const auto step = spec.begin_round(n, by);
    if (!good(step)) return;
    std::vector<float> out;
    auto open = *step;
    const std::size_t wrong =
        plant_ == RoundPlant::draft_gets_other_taps && accept < n ? memra_test::OpModel::width : 0;
    if (!good(m_.forward(*cache_, open, t, out)) || (accept != 0 && !good(pair_->write(accept, wrong)))) {
      good(spec.abandon());
      return;
    }
    if (c % 16 == 15) {
      refused(spec.commit(accept + 1, 0).status(), memra::ErrorKind::bad_state, "rows that were not opened");
      refused(spec.begin_step(1).status(), memra::ErrorKind::bad_state, "a step inside a round");
    }
    expect(spec.strategy() == by, "the open round has another strategy");
    const std::vector<std::int32_t> block(t.begin(), t.end());
    std::vector<std::int32_t> choice(n, -2);  // the model agrees with the first `accept` of the block
    for (std::size_t i = 1; i < accept; ++i) choice[i - 1] = block[i];
    const auto greedy = memra::accept_greedy(block, choice, n, [](std::int32_t) { return false; });
    expect(greedy.keep == std::max<std::size_t>(accept, 1) && greedy.next == -2 && !greedy.ended,
           "the greedy choice keeps another number of tokens");
    const auto left = spec.commit(accept, static_cast<std::int32_t>(b));
    if (good(left) || only_draft_failed()) {
      keep(memra_test::part(t, 0, accept), out);
      pair_->pending = static_cast<std::int32_t>(b);
      ++rounds;
      ++together;
      look_ = look_ || c / 16 % 2 == 1;
      if (left.ok()) replay(*left);  // else repair comes first
    } else if (!cache_->tainted()) {
      good(spec.abandon());
    }
  }
  /// What a take-back left to do: rows that are held already.
  bool replay(const memra::RolledBack& left) {
    std::vector<float> out;
    expect(left.pos + left.replay <= rows_.size(), "more rows are to be replayed than were kept");
    for (std::size_t at = left.pos; at < left.pos + left.replay;) {
      const bool chunked = chunked_[at] && plant_ != RoundPlant::replay_is_plain;
      // In other pieces than they came in; plain ones end where chunks begin.
      std::size_t n = chunked ? piece_of_chunks(chunked_, at) : 1;
      while (!chunked && n < most_rows && at + n < left.pos + left.replay && chunked_[at + n] == chunked_[at]) ++n;
      if (!good(m_.feed(*cache_, memra_test::part(rows_, at, n), out, class_of(chunked)))) {
        owes_ = true;
        return false;
      }
      at += n;
    }
    replays += left.replay != 0 ? 1 : 0;
    return true;
  }

  /// Verifies tokens of which the first `accept` are kept.
  void round(std::size_t n, unsigned b, unsigned c) {
    n = std::min(n, fit_.max_ctx - rows_.size());
    if (n == 0) return;
    if (pair_) return round_of_both(n, b, c);
    const Strategy by = strategy(b);
    const std::size_t accept = c % (n + 1);
    const Tokens t = tokens(n, b);
    std::optional<memra::RolledBack> left;
    {
      const bool on_device = b / 3 % 2 == 1 && by != Strategy::replay;
      // As for a captured graph: at whatever position the device is.
      auto r = on_device && b / 6 % 2 == 1 ? cache_->begin_device_round(n, by) : cache_->begin_round(n, by);
      if (!good(r)) return;
      if (c % 4 == 1) {  // it does not mind where it is
        Round other(*std::move(r));
        expect(other.open() && other.rows() == n && other.strategy() == by && !r->open() &&
                   r->recur(0).status().kind() == memra::ErrorKind::bad_state && !r->tap(0),
               "a moved-from round is open, or the one made of it is another");
        *r = std::move(other);
      }
      std::vector<float> out;
      if (!good(m_.forward(*cache_, r->step(), t, out))) return;
      if (c % 16 == 15) refused(r->commit(n + 1).status(), memra::ErrorKind::bad_argument, "more than all");
      if (on_device) {
        const bool less = plant_ == RoundPlant::device_is_told_less && accept != 0;
        const auto word = static_cast<std::int32_t>(less ? accept - 1 : accept);
        const std::vector<const std::int32_t*> at(cache_->n_stages(), &word);
        const memra::Status s = r->commit_d(at);
        if (s.ok()) left = memra::RolledBack{rows_.size() + accept, 0};
        good(s);
      } else {
        const bool more = plant_ == RoundPlant::keeps_one_more && by == Strategy::planes && accept < n;
        const auto done = r->commit(more ? accept + 1 : accept);
        if (good(done)) left = *done;
      }
      if (left || plant_ == RoundPlant::failure_is_forgotten) keep(memra_test::part(t, 0, accept), out);
      expect(r->open() != left.has_value() || cache_->tainted(),
             "a round that was committed is open, or another is not");
      if (!left) return;  // it tainted, or the round is still open and goes here as if it had never begun
      if (plant_ == RoundPlant::stash_forgets_conv && by == Strategy::stash && accept != 0) {
        if (const auto l = cache_->recur(0)) memra_test::spoil(cache_->dev(0), l->conv_data);
      }
    }
    ++rounds;
    look_ = look_ || c / 16 % 2 == 1;
    expect(by == Strategy::replay || left->replay == 0, "a round that is no replay left something to replay");
    replay(*left);
  }

  // --- hand-over ---

  /// Trunk and draft go over a link, and the history goes on with what was received on the other side.
  void hand_over(unsigned to) {
    if (rows_.empty()) return;
    std::optional<memra::DflashKvTail<Dev>> tail;
    if (pair_ && pair_->draft.pin(rows_.size()).ok()) {  // else there is nothing to send of it
      tail = pair_->draft.export_tail(rows_.size());
      if (!tail) {
        failed_ = true;
        return pair_->draft.unpin();
      }
    }
    memra_test::TapeWriter sender;
    if (!good(memra::send_state(sender, *cache_, {}, tail ? &*tail : nullptr))) return;
    const auto all = memra_test::placements(m_.config().layers.size());
    memra::HandoverTarget<Dev> target;
    for (const std::size_t d : all[to % all.size()].devices) target.stages.push_back(&d_.dev[d]);
    target.fence = all[to % all.size()].fence;
    target.config = m_.config();
    target.max_ctx = fit_.max_ctx;
    target.scan = class_of(any(chunked_));
    target.options = memra_test::all_rounds(most_rows);
    target.options.rounds.stash = stash_;
    target.draft_dev = &d_.dev[2];
    if (pair_) target.draft = pair_->draft.config();
    const std::size_t live = d_.live();
    memra_test::TapeReader receiver(sender.tape);
    auto got = memra::receive_state(receiver, target);
    if (!good(got)) return expect(d_.live() == live, "a hand-over that failed kept memory");
    expect(got->tail.has_value() == tail.has_value(), "a tail where none was sent, or none");
    std::optional<memra::DflashKv<Dev>> draft;
    if (got->tail) {
      if (plant_ == RoundPlant::sent_tail_is_spoiled) {
        const auto& k = got->tail->layers[0].k;
        memra_test::spoil(*got->tail->dev, k.data() + k.size() - 1);
      }
      memra::Status why;
      draft = memra::DflashKv<Dev>::from_tail(d_.dev[2], *target.draft, fit_.max_ctx, *got->tail, &why);
      if (!good(why)) return;
    }
    const std::int32_t pending = pair_ ? pair_->pending : 0;
    const std::size_t floor = pair_ ? pair_->floor : 0;
    for (Held& h : held_) {
      if (h.snap)
        refused(got->cache.rollback(*h.snap, 0).status(), memra::ErrorKind::bad_argument, "the sender's snapshot");
      h = {};
    }
    disband();
    part_company();
    *cache_ = std::move(got->cache);
    place_ = to % all.size();
    unguarded_ = look_ = true;
    ++handed;
    if (!draft) return;
    ++tails;
    pair_.emplace(Pair<Dev>{*std::move(draft)});
    expect(pair_->draft.floor() == floor, "the draft has another floor than where it came from");
    pair_->floor = floor;
    pair_->from = got->tail->base;
    pair_->longest = rows_.size();
    pair_->pending = pending;
    speculate();
    if (pair_) pair_->spec->set_pending(pending);
  }

  // --- caches that end their rounds with it ---

  memra::Result<Cache> create(const memra::ModelConfig& config, std::size_t max_ctx,
                              const memra::CacheOptions& options) {
    const auto where = memra_test::placements(config.layers.size())[place_];
    std::vector<Dev*> devs;
    for (const std::size_t d : where.devices) devs.push_back(&d_.dev[d]);
    return Cache::create_ppn(devs, where.fence, config, max_ctx, options);
  }
  /// One of its own shape, one of another.
  void gather() {
    memra::CacheOptions options = memra_test::all_rounds(most_rows);
    mates_.emplace_back(m_.config());
    mates_.emplace_back(memra_test::round_hybrid());
    for (Mate<Dev>& m : mates_) {
      options.rounds.stash = stash_ || &m == &mates_.back();
      auto made = create(m.m.config(), short_ctx, options);
      if (!good(made)) return disband();
      m.cache.emplace(*std::move(made));
    }
    auto made = Batch::create(members());
    if (!good(made)) return disband();
    batch_.emplace(*std::move(made));
    if (!attention().empty()) {
      auto attend = Attend::create(alike(), most_rows);
      if (!good(attend)) return disband();
      attend_.emplace(*std::move(attend));
    }
    static_cast<void>(d_.disarm());  // all is there; guarding it is no call of the library
    for (Mate<Dev>& m : mates_) guard<Dev>(*m.cache);
  }
  void disband() {
    attend_.reset();
    batch_.reset();
    mates_.clear();
  }
  std::vector<Cache*> members() {
    std::vector<Cache*> all = {&*cache_};
    for (Mate<Dev>& m : mates_) all.push_back(&*m.cache);
    return all;
  }
  /// Those of one model.
  std::array<Cache*, 2> alike() { return {&*cache_, &*mates_[0].cache}; }
  /// Attention states with values.
  std::vector<Part> attention() const {
    std::vector<Part> out = parts_of(m_.config());
    std::erase_if(out, [](const Part& p) {
      const auto* a = std::get_if<memra::AttentionSpec>(&p.spec);
      return a == nullptr ? !std::holds_alternative<memra::SharedKvSpec>(p.spec) : a->head_dim_v == 0;
    });
    return out;
  }
  /// A batch does not mind where its caches are.
  void part_or_move(unsigned a) {
    if (mates_.empty()) return;
    if (a % 3 == 0) return disband();
    Cache& from = *mates_[a / 3 % 2].cache;
    Cache moved(std::move(from));
    refused(Batch::create(members()).status(), memra::ErrorKind::bad_argument, "a batch of a moved-from cache");
    from = std::move(moved);
    refused(Batch::create(std::vector<Cache*>{&from, &*cache_, &from}).status(), memra::ErrorKind::bad_argument,
            "a batch with a cache that comes twice");
    look_ = true;
  }
  /// A mate has no snapshots.
  void start_again(Mate<Dev>& m) {
    taints += m.cache->tainted() ? 1 : 0;
    if (!m.cache->tainted() && !m.lost) return;
    memra::check(m.cache->reset());
    expect(!m.cache->tainted(), "a reset left the taint");
    m.rows.clear();
    m.out.clear();
    m.lost = false;
    look_ = true;
  }

  /// One member's part in a batch.
  struct Turn {
    Tokens tokens = {};
    std::vector<float> out = {};
    std::size_t accept = 0;
    std::optional<Round> round = {};
  };

  /// Begins and writes one member's round. @return whether that went well; who sits out has no round
  bool take_turn(Turn& turn, Cache& cache, const memra_test::OpModel& m, Strategy by, bool anywhere) {
    if (turn.tokens.empty()) return true;
    auto r = anywhere ? cache.begin_device_round(turn.tokens.size(), by) : cache.begin_round(turn.tokens.size(), by);
    if (!good(r)) return false;
    turn.round.emplace(*std::move(r));
    return good(m.forward(cache, turn.round->step(), turn.tokens, turn.out));
  }

  /// What caches get in one launch, wherever they stand, is what each gets alone, bit for bit.
  bool attend_together(std::array<Turn, 3>& turns) {
    std::array<std::size_t, 2> rows = {};
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = turns[i].round ? turns[i].round->rows() : 0;
    const std::size_t all = rows[0] + rows[1];
    if (!attend_ || all == 0) return true;
    std::array<std::size_t, 2> told = rows;
    if (plant_ == RoundPlant::attend_rows_swapped) std::swap(told[0], told[1]);
    if (!good(attend_->set_rows(told))) return false;
    for (const Part& p : attention()) {
      const auto view = memra::check(attend_->layer(p.layer, p.nth));
      const std::size_t heads = view.common.n_kv_heads * (1 + p.nth % 2);
      const memra::KvReadView& kv = view.common;
      const std::size_t dk = heads * kv.head_dim_k;
      const std::size_t dv = heads * kv.head_dim_v;
      const auto q = memra_test::stand_in::row(memra_test::stand_in::kind_k, p.layer, p.nth, all * dk, 0, rows_.size());
      std::vector<float> want(all * dv);
      std::vector<float> got(all * dv, std::numeric_limits<float>::quiet_NaN());
      memra_test::Scratch one(
          memra::detail::attend_scratch_bytes(heads, kv.n_kv_heads, kv.head_dim_k, kv.head_dim_v, most_rows));
      memra_test::Scratch both(attend_->workspace_bytes(heads));
      const memra::ops_for<Dev> ops(cache_->dev(p.layer));
      for (std::size_t i = 0, at = 0; i < rows.size(); at += rows[i++]) {
        if (rows[i] == 0) continue;
        const auto alone = memra::check(turns[i].round->kv_read(p.layer, p.nth));
        if (!good(ops.attend(alone, {&q[at * dk], &want[at * dv], heads, 0.25F}, one.view()))) return false;
      }
      if (!good(ops.attend_batch(view, {q.data(), got.data(), heads, 0.25F}, both.view()))) return false;
      expect(memra_test::same_bits(got, want), "a cache attends otherwise beside another");
    }
    attended += rows[0] != 0 && rows[1] != 0 ? 1 : 0;
    return true;
  }

  /// Rounds of its own cache and its mates', committed together; some sit out, and one that a draft follows does.
  void batch(const Op& op) {
    if (mates_.empty()) gather();
    if (failed_) return;
    mates_moved_ = true;
    // Most of the calls are the models': every other failure waits for the commit.
    const bool late = op.fault % 2 == 1;
    if (late) static_cast<void>(d_.disarm());
    for (Mate<Dev>& m : mates_) {
      if (m.rows.size() + most_rows <= short_ctx) continue;
      m.lost = !good(m.cache->reset());
      m.rows.clear();
      m.out.clear();
      if (m.lost) return;
    }
    const Strategy by = op.b % 2 == 0 || !stash_ ? Strategy::planes : Strategy::stash;
    const bool on_device = op.b / 2 % 2 == 1;
    std::array<Turn, 3> turns;
    for (std::size_t i = 0; i < turns.size(); ++i) {
      const std::size_t held = i == 0 ? rows_.size() : mates_[i - 1].rows.size();
      const std::size_t room = (i == 0 ? fit_.max_ctx : short_ctx) - held;
      const std::size_t rows = std::min((op.a + i * 3) % (most_rows + 1), room);
      if (i == 0 && pair_) continue;
      turns[i].tokens = tokens(rows, op.b + static_cast<unsigned>(i));
      turns[i].accept = (op.c + i * 2) % (rows + 1);
      Cache& cache = i == 0 ? *cache_ : *mates_[i - 1].cache;
      if (!take_turn(turns[i], cache, i == 0 ? m_ : mates_[i - 1].m, by, on_device && op.b / 4 % 2 == 1)) return;
    }
    if (!attend_together(turns)) return;
    std::array<Round*, 3> open = {};
    std::array<std::size_t, 3> accept = {};
    std::array<std::int32_t, 3> words = {};
    std::size_t last = turns.size();
    for (std::size_t i = 0; i < turns.size(); ++i) {
      accept[i] = turns[i].round ? turns[i].accept : 99;  // not to be read
      if (turns[i].round) open[i] = &*turns[i].round, last = i;
    }
    if (last == turns.size()) return;
    if (op.c % 8 == 7 && (late || op.fault == 0)) refuse_batch(open, accept, last);  // a call that fails is no refusal
    if (plant_ == RoundPlant::batch_tells_one_less && accept[last] != 0) --accept[last];
    for (std::size_t i = 0; i < turns.size(); ++i) words[i] = static_cast<std::int32_t>(accept[i]);
    const bool outside = on_device && op.c % 8 == 3 && open[2] != nullptr;
    if (outside) words[2] = op.b / 8 % 2 == 0 ? -1 : static_cast<std::int32_t>(open[2]->rows() + 1);
    if (late && op.fault != 0) {
      memra::Fault f;
      f.nth = 1 + op.fault / 2 % 12;
      f.torn = !guarded<Dev>;
      d_.dev[0].arm(f);
    }
    const std::vector<const std::int32_t*> at(cache_->n_stages(), words.data());
    const bool done = good(on_device ? batch_->commit_d(open, at) : batch_->commit(open, accept));
    settle_turns(turns, open, done);
    if (outside && done) is_told(mates_[1]);
    look_ = look_ || op.c / 8 % 2 == 1;
  }

  /// All or none: of those that take part; who sits out has nothing to do with it.
  void settle_turns(std::array<Turn, 3>& turns, const std::array<Round*, 3>& open, bool done) {
    const auto all = members();
    const auto took_part = [&](auto what) {
      std::size_t n = 0;
      for (std::size_t i = 0; i < turns.size(); ++i) n += open[i] != nullptr && what(i) ? 1U : 0U;
      return n;
    };
    const std::size_t part = took_part([](std::size_t) { return true; });
    const std::size_t tainted = took_part([&](std::size_t i) { return all[i]->tainted(); });
    const std::size_t ended = took_part([&](std::size_t i) { return !open[i]->open(); });
    for (std::size_t i = 0; i < turns.size(); ++i) {
      expect(open[i] != nullptr || !all[i]->tainted(), "a cache that sat out was tainted");
    }
    expect(done ? tainted == 0 && ended == part : tainted == part || (tainted == 0 && ended == 0),
           "a batch did to some of its caches what it did not do to others");
    if (!done) return;
    ++rounds;
    batches += part > 1 ? 1 : 0;
    for (std::size_t i = 0; i < turns.size(); ++i) {
      if (open[i] == nullptr) continue;
      const Tokens kept = memra_test::part(turns[i].tokens, 0, turns[i].accept);
      if (i == 0) {
        keep(kept, turns[i].out);
        continue;
      }
      Mate<Dev>& m = mates_[i - 1];
      m.rows = memra_test::join(m.rows, kept);
      m.out.insert(m.out.end(), turns[i].out.begin(),
                   turns[i].out.begin() + static_cast<std::ptrdiff_t>(kept.size() * memra_test::OpModel::width));
    }
  }

  /// An accept length outside its round: that cache says so, and nobody else.
  void is_told(Mate<Dev>& m) {
    m.lost = true;
    const memra::Status s = m.cache->catch_up();
    if (s.ok() || s.kind() == memra::ErrorKind::bad_state) {
      refused(s, memra::ErrorKind::bad_state, "an accept length outside a round of a batch");
      refused(m.cache->begin_round(1, Strategy::planes).status(), memra::ErrorKind::bad_state, "a round when tainted");
    } else {
      good(s);
    }
  }

  /// What is wrong with one member leaves all of them as they were.
  void refuse_batch(std::array<Round*, 3> open, std::array<std::size_t, 3> accept, std::size_t last) {
    constexpr auto wrong = memra::ErrorKind::bad_argument;
    Round* const one = open[last];
    const std::size_t kept = std::exchange(accept[last], one->rows() + 1);
    refused(batch_->commit(open, accept), wrong, "more than all of one round");
    accept[last] = kept;
    std::rotate(open.begin(), open.begin() + 1, open.end());
    refused(batch_->commit(open, accept), wrong, "rounds in another order");
    refused(batch_->commit(std::array<Round*, 3>{}, accept), wrong, "no round at all");
    refused(batch_->commit_d(open, {}), wrong, "no accept lengths");
    Cache& other = *members()[last];
    refused(other.advance(), memra::ErrorKind::bad_state, "a step inside a round");
    expect(one->open() && !other.tainted(), "a batch that was refused did something");
  }

  void compare_mates() {
    for (Mate<Dev>& m : mates_) {
      memra::check(m.cache->catch_up());
      const auto want = memra_test::image(m.straight.after(m.rows));
      const auto got = memra_test::image(*m.cache);
      expect(got == want, "a cache of a batch: not what a straight run leaves: " + memra_test::difference(got, want));
      expect(memra_test::same_bits(m.out, m.straight.out()), "a cache of a batch: its output is not a straight run's");
    }
  }

  /// A round that is given up after some of its layers.
  void give_up(std::size_t n, unsigned b, unsigned c) {
    n = std::min(n, fit_.max_ctx - rows_.size());
    if (n == 0) return;
    const Strategy by = strategy(b);
    std::vector<float> out;
    const std::size_t layers = m_.config().layers.size();
    const std::size_t skip = lends(c % (layers + 1)) ? layers : c % (layers + 1);
    if (pair_) {
      auto step = pair_->spec->begin_round(n, by);
      if (!good(step)) return;
      const bool done = good(m_.forward(*cache_, *step, tokens(n, b), out, skip));
      if (done && skip < layers && owns(skip)) {
        refused(pair_->spec->commit(0, 0).status(), memra::ErrorKind::bad_state, "a layer was not written");
      }
      if (done && skip == layers) good(pair_->write(n, 0));
      good(pair_->spec->abandon());
      return;
    }
    auto r = cache_->begin_round(n, by);
    if (!good(r)) return;
    if (!good(m_.forward(*cache_, r->step(), tokens(n, b), out, skip))) return;
    if (skip < layers && owns(skip)) {
      refused(r->commit(0).status(), memra::ErrorKind::bad_state, "a layer was not written");
    }
    if (plant_ == RoundPlant::given_up_is_kept && skip == layers) {
      memra::check(r->commit(n));
    } else if (c / 16 % 2 == 0) {
      good(r->abandon());
    }  // else its destructor does it
    look_ = look_ || c / 32 % 2 == 1;
  }
  bool owns(std::size_t il) const {
    const auto& states = m_.config().layers[il].states;
    return std::any_of(states.begin(), states.end(),
                       [](const auto& s) { return !std::holds_alternative<memra::SharedKvSpec>(s); });
  }
  bool lends(std::size_t il) const {
    const auto parts = parts_of(m_.config());
    return std::any_of(parts.begin(), parts.end(), [il](const Part& p) {
      const auto* shared = std::get_if<memra::SharedKvSpec>(&p.spec);
      return shared != nullptr && shared->donor == il;
    });
  }

  void snapshot(Held& h) {
    if (h.snap) {
      if (!good(cache_->snapshot_into(*h.snap))) {
        h = {};
        return;
      }
    } else {
      auto s = cache_->snapshot();
      if (!good(s)) return;
      h.snap.emplace(*std::move(s));
    }
    h.tokens = rows_;
  }
  void rollback(Held& h, unsigned b) {
    if (!h.snap) return;
    const std::size_t accept = b % (rows_.size() - h.tokens.size() + 1);
    const std::size_t end = h.tokens.size() + accept;
    auto r = take_back(h, accept);
    if (pair_ && !follows(end, r.status())) return;
    if (good(r)) {
      cut(end);
      replay(*r);
    } else if (only_draft_failed()) {
      cut(end);  // the trunk is back; that both are takes another rollback
      owes_ = true;
    }
  }
  memra::Result<memra::RolledBack> take_back(const Held& h, std::size_t accept) {
    if (!pair_) return cache_->rollback(*h.snap, accept);
    const std::size_t end = h.tokens.size() + accept;
    const bool may = end <= pair_->draft.len() && pair_->draft.may_truncate(end).ok();
    auto r = pair_->spec->rollback(*h.snap, accept, static_cast<std::int32_t>(accept));
    expect(may == (r.status().kind() != memra::ErrorKind::bad_argument),
           "may_truncate says something else than a rollback of both does");
    if (r) pair_->pending = static_cast<std::int32_t>(accept);
    return r;
  }

  /// Back to a snapshot, keeping all that is held since, or to the start. A reset that failed half way may have
  /// forgotten what was committed on the device only.
  void repair(unsigned c) {
    taints += cache_->tainted() ? 1 : 0;
    owes_ = false;
    for (Held& h : held_) {
      if (!h.snap || !h.snap->valid() || c % 4 == 3) continue;
      const std::size_t accept = forgot_ ? 0 : rows_.size() - h.tokens.size();
      auto back = take_back(h, accept);
      if (pair_ && !follows(h.tokens.size() + accept, back.status())) {
        part_company();
        back = cache_->rollback(*h.snap, accept);
      }
      const auto left = memra::check(std::move(back));
      cut(h.tokens.size() + accept);
      expect(replay(left), "a replay failed without a fault");
      expect(!cache_->tainted(), "a rollback left the taint");
      return;
    }
    memra::check(cache_->reset());
    cut(0);
    part_company();
    expect(!cache_->tainted(), "a reset left the taint");
  }

  void compare() {
    memra::check(cache_->catch_up());
    expect(cache_->replay_owed() == 0, "a replay is owed and nobody said so");
    const auto want = memra_test::image(straight_.after(rows_, chunked_));
    const auto got = memra_test::image(*cache_);
    expect(got == want, "not what a straight run leaves: " + memra_test::difference(got, want));
    expect(cache_->scan_class() == class_of(any(chunked_)), "the cache names another class");
    expect(memra_test::same_bits(out_, straight_.out()), "an accepted row's output is not that of a straight run");
    if (pair_) compare_draft();
    if (std::exchange(mates_moved_, false)) compare_mates();
    for (const Held& h : held_) {
      if (!h.snap) continue;
      expect(h.snap->valid() && h.snap->pos() == h.tokens.size(), "a snapshot is not what it was");
      const std::vector<bool> below(chunked_.begin(), chunked_.begin() + static_cast<std::ptrdiff_t>(h.tokens.size()));
      expect(h.snap->scan_class() == class_of(any(below)), "a snapshot names another class");
    }
  }

  void compare_draft() {
    const auto& kv = pair_->draft;
    expect(pair_->spec->level() && kv.len() == rows_.size() && !kv.tainted(), "trunk and draft stand apart");
    expect(cache_->dflash_taps() == nullptr, "a sink was left in the trunk");
    expect(pair_->spec->pending() == pair_->pending, "another pending token");
    const std::size_t seen = rows_.size() - std::min<std::size_t>(rows_.size(), kv.config().sliding_window - 1);
    const std::size_t first = std::max({pair_->floor, kv.resident(), kv.base()});
    expect(first <= std::max(seen, pair_->floor), "the draft's ring lost rows of its window");
    constexpr std::size_t width = memra_test::OpModel::width;
    for (const float* plane : {kv.k(0), kv.v(0)}) {
      for (std::size_t r = first; r < rows_.size(); ++r) {
        expect(std::memcmp(plane + (r - kv.base()) * width, &out_[r * width], width * sizeof(float)) == 0,
               "draft row " + std::to_string(r) + " is another token's");
      }
    }
  }

  RoundPlant plant_;
  memra_test::OpModel m_;
  Fit fit_;
  StraightRun straight_;
  Devices<Dev> d_;
  std::optional<Cache> cache_;
  std::optional<Pair<Dev>> pair_;
  std::deque<Mate<Dev>> mates_;  ///< a straight run knows its model by address
  std::optional<Batch> batch_;
  std::optional<Attend> attend_;
  std::size_t place_ = 0;
  bool stash_ = true;
  std::array<Held, 2> held_;

  Tokens rows_;                ///< what is held
  std::vector<bool> chunked_;  ///< [rows] which of it a chunked step fed
  std::vector<float> out_;     ///< what its rows gave, [rows][OpModel::width]
  bool failed_ = false;        ///< a call of this operation failed
  bool owes_ = false;          ///< a step or a replay died half way
  bool forgot_ = false;        ///< a reset failed
  bool look_ = false;          ///< compare behind this operation
  bool unguarded_ = false;     ///< the cache is new: its planes get guards once no call is to fail any more
  bool mates_moved_ = false;   ///< since they were compared
};

}  // namespace property
