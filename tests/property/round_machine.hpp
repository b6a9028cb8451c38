// A Cache in rounds of every strategy, over the real ops: what is held must be what a straight run leaves, byte for
// byte.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/cache.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/speculation.hpp>
#include <optional>
#include <property/cache_machine.hpp>
#include <property/script.hpp>
#include <property/stacks.hpp>
#include <string>
#include <support/op_model.hpp>
#include <support/placements.hpp>
#include <support/stand_in.hpp>
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
};

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
  std::size_t longest = 0;  ///< most rows it had
  std::int32_t pending = 0;

  memra::Status write(std::size_t n, std::size_t wrong) {
    auto open = spec->open_rows(n);
    if (!open) return open.status();
    const float* taps = open->taps + wrong;
    return memra::ops_for<Dev>(draft.device()).draft_write(open->rows.view(0), taps, taps);
  }
};

/// A cache without rounds that is fed one token at a time, and what its last layer gave: the oracle.
class StraightRun {
 public:
  explicit StraightRun(const memra_test::OpModel& m) : m_(m) { restart(); }

  /// The cache after exactly `tokens`.
  const memra::Cache<memra::HostDev>& after(const Tokens& tokens) {
    const bool goes_on = fed_.size() <= tokens.size() && std::equal(fed_.begin(), fed_.end(), tokens.begin());
    if (!goes_on) restart();
    std::vector<float> row;
    for (std::size_t i = fed_.size(); i < tokens.size(); ++i) {
      memra::check(m_.feed(*cache_, {&tokens[i], 1}, row));
      out_.insert(out_.end(), row.begin(), row.end());
      fed_.push_back(tokens[i]);
    }
    return *cache_;
  }
  /// [tokens][OpModel::width], of the last call of after.
  const std::vector<float>& out() const { return out_; }

 private:
  void restart() {
    cache_.emplace(memra::check(memra::Cache<memra::HostDev>::create(dev_, m_.config(), short_ctx)));
    fed_.clear();
    out_.clear();
  }

  const memra_test::OpModel& m_;
  memra::HostDev dev_;
  std::optional<memra::Cache<memra::HostDev>> cache_;
  Tokens fed_;
  std::vector<float> out_;
};

/// setup: model kind, K format, V format, layout, placement, whether a draft cache moves along from the start (an odd
/// half).
///
/// The rules (R3, R7, C8): a round that did not commit is as if it had never begun. A call that failed has changed
/// nothing or has tainted; after a rollback to a valid snapshot, or a reset, every byte is right again.
template <class Dev>
class RoundMachine {
  using Cache = memra::Cache<Dev>;
  using Round = memra::Round<Dev>;
  using Strategy = memra::Strategy;
  static constexpr std::size_t most_rows = 7;

 public:
  RoundMachine(const std::vector<unsigned>& setup, RoundPlant plant)
      : plant_(plant), m_(model(at(setup, 0), at(setup, 1), at(setup, 2), at(setup, 3))), straight_(m_) {
    const auto all = memra_test::placements(m_.config().layers.size());
    memra::CacheOptions options = memra_test::all_rounds(most_rows);
    // Mamba-1 has a decay per element: too much to stash.
    options.rounds.stash = stash_ =
        std::none_of(m_.config().layers.begin(), m_.config().layers.end(), [](const memra::LayerSpec& l) {
          return std::any_of(l.states.begin(), l.states.end(), [](const memra::StateSpec& s) {
            const auto* r = std::get_if<memra::RecurrentSpec>(&s);
            return r != nullptr && r->rule == memra::ScanRule::mamba1;
          });
        });
    for (Dev& d : d_.dev) d.share(d_.dev[0].plan());  // the n-th call of them all fails
    const auto& where = all[at(setup, 4) % all.size()];
    std::vector<Dev*> devs;
    for (const std::size_t d : where.devices) devs.push_back(&d_.dev[d]);
    cache_.emplace(memra::check(Cache::create_ppn(devs, where.fence, m_.config(), short_ctx, options)));
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
        if (good(cache_->reset())) cut(0), part_company();
        forgot_ = failed_;
        break;
      case 'd':
        pair_ ? leave_or_move(op.a) : join(op.a % 2 == 1);
        break;
      default:
        look_ = true;
        break;
    }
    const bool fired = d_.disarm();
    faults += fired ? 1 : 0;
    // Giving a round up has no Status when a destructor does it: then the taint says so.
    expect(!failed_ || fired, "a call failed without a fault");
    expect(!fired || failed_ || cache_->tainted(), "a failure was reported by no call");
    if (pair_ && pair_->draft.tainted() && !cache_->tainted() && !owes_) level();
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

 private:
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

  Strategy strategy(unsigned b) const {
    return b % 3 == 0 ? Strategy::replay : b % 3 == 1 || !stash_ ? Strategy::planes : Strategy::stash;
  }

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
  void keep(const Tokens& t, const std::vector<float>& out) {
    rows_ = memra_test::join(rows_, t);
    out_.insert(out_.end(), out.begin(),
                out.begin() + static_cast<std::ptrdiff_t>(t.size() * memra_test::OpModel::width));
    if (pair_) pair_->longest = std::max(pair_->longest, rows_.size());
  }
  void cut(std::size_t end) {
    rows_.resize(end);
    out_.resize(end * memra_test::OpModel::width);
    for (Held& h : held_) {
      if (!h.snap || h.tokens.size() <= end) continue;
      expect(!h.snap->valid(), "a snapshot above a cut is valid");
      ++stale;
      h = {};
    }
  }

  void feed(std::size_t n, unsigned branch) {
    n = std::min(n, short_ctx - rows_.size());
    if (n == 0) return;
    const Tokens t = tokens(n, branch);
    auto step = pair_ ? pair_->spec->begin_step(n) : cache_->begin_step(n);
    if (!good(step)) return;
    std::vector<float> out;
    if (!good(m_.forward(*cache_, *step, t, out)) || (pair_ && !good(pair_->write(n, 0)))) {
      owes_ = true;  // a step that died half way
    } else if (good(pair_ ? pair_->spec->advance() : cache_->advance()) || only_draft_failed()) {
      keep(t, out);
    } else {
      expect(cache_->tainted(), "an advance that failed did not taint");
    }
  }

  // --- a draft cache beside it ---

  /// The draft begins where the trunk is.
  void join(bool ring) {
    if (!good(cache_->catch_up())) return;
    auto draft = memra::DflashKv<Dev>::create_cold_at(d_.dev[2], Pair<Dev>::config(ring), short_ctx, rows_.size());
    if (!good(draft)) return;
    pair_.emplace(Pair<Dev>{*std::move(draft)});
    pair_->floor = pair_->longest = rows_.size();
    auto spec = memra::Speculation<Dev>::create(*cache_, pair_->draft, {m_.config().layers.size() - 1},
                                                memra_test::OpModel::width, most_rows);
    if (!good(spec)) return pair_.reset();
    pair_->spec.emplace(*std::move(spec));
  }
  /// The trunk goes on alone. What is armed in it would limit its steps.
  void part_company() {
    pair_.reset();
    static_cast<void>(cache_->take_taps());
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
    const bool must = n >= pair_->floor && (n + Pair<Dev>::block + 1 >= pair_->longest || !pair_->draft.config().ring);
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
    for (std::size_t done = 0; done < left.replay;) {
      const std::size_t n = std::min(most_rows, left.replay - done);
      if (!good(m_.feed(*cache_, memra_test::part(rows_, left.pos + done, n)))) {
        owes_ = true;
        return false;
      }
      done += n;
    }
    replays += left.replay != 0 ? 1 : 0;
    return true;
  }

  /// Verifies tokens of which the first `accept` are kept.
  void round(std::size_t n, unsigned b, unsigned c) {
    n = std::min(n, short_ctx - rows_.size());
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

  /// A round that is given up after some of its layers.
  void give_up(std::size_t n, unsigned b, unsigned c) {
    n = std::min(n, short_ctx - rows_.size());
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
    auto r = pair_->spec->rollback(*h.snap, accept, static_cast<std::int32_t>(accept));
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
    const auto want = memra_test::image(straight_.after(rows_));
    const auto got = memra_test::image(*cache_);
    expect(got == want, "not what a straight run leaves: " + memra_test::difference(got, want));
    expect(memra_test::same_bits(out_, straight_.out()), "an accepted row's output is not that of a straight run");
    if (pair_) compare_draft();
    for (const Held& h : held_) {
      if (h.snap) expect(h.snap->valid() && h.snap->pos() == h.tokens.size(), "a snapshot is not what it was");
    }
  }

  void compare_draft() {
    const auto& kv = pair_->draft;
    expect(pair_->spec->level() && kv.len() == rows_.size() && !kv.tainted(), "trunk and draft stand apart");
    expect(cache_->dflash_taps() == nullptr, "a sink was left in the trunk");
    expect(pair_->spec->pending() == pair_->pending, "another pending token");
    const std::size_t seen = rows_.size() - std::min<std::size_t>(rows_.size(), kv.config().sliding_window - 1);
    const std::size_t first = std::max(pair_->floor, kv.config().ring ? std::max(kv.resident(), kv.base()) : 0);
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
  StraightRun straight_;
  Devices<Dev> d_;
  std::optional<Cache> cache_;
  std::optional<Pair<Dev>> pair_;
  bool stash_ = true;
  std::array<Held, 2> held_;

  Tokens rows_;             ///< what is held
  std::vector<float> out_;  ///< what its rows gave, [rows][OpModel::width]
  bool failed_ = false;     ///< a call of this operation failed
  bool owes_ = false;       ///< a step or a replay died half way
  bool forgot_ = false;     ///< a reset failed
  bool look_ = false;       ///< compare behind this operation
};

}  // namespace property
