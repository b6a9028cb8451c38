// A Cache in rounds of every strategy, over the real ops: what is held must be what a straight run leaves, byte for
// byte.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memra/cache.hpp>
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
  keeps_one_more,        ///< a commit by planes keeps a token more than was accepted
  stash_forgets_conv,    ///< a commit by stash leaves one byte of conv as it was not
  device_is_told_less,   ///< the accept length on the device is one less
  given_up_is_kept,      ///< a round that is given up is committed
  failure_is_forgotten,  ///< the engine does not repair what a failed commit left
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

/// setup: model kind, K format, V format, layout, placement.
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
        if (good(cache_->reset())) cut(0);
        forgot_ = failed_;
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
    auto step = cache_->begin_step(n);
    if (!good(step)) return;
    std::vector<float> out;
    if (!good(m_.forward(*cache_, *step, t, out))) {
      owes_ = true;  // a step that died half way
    } else if (good(cache_->advance())) {
      keep(t, out);
    } else {
      expect(cache_->tainted(), "an advance that failed did not taint");
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
    auto r = cache_->begin_round(n, by);
    if (!good(r)) return;
    std::vector<float> out;
    const std::size_t layers = m_.config().layers.size();
    const std::size_t skip = lends(c % (layers + 1)) ? layers : c % (layers + 1);
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
    auto r = cache_->rollback(*h.snap, accept);
    if (!good(r)) return;
    cut(h.tokens.size() + accept);
    replay(*r);
  }

  /// Back to a snapshot, keeping all that is held since, or to the start. A reset that failed half way may have
  /// forgotten what was committed on the device only.
  void repair(unsigned c) {
    taints += cache_->tainted() ? 1 : 0;
    owes_ = false;
    for (Held& h : held_) {
      if (!h.snap || !h.snap->valid() || c % 4 == 3) continue;
      const std::size_t accept = forgot_ ? 0 : rows_.size() - h.tokens.size();
      const auto left = memra::check(cache_->rollback(*h.snap, accept));
      cut(h.tokens.size() + accept);
      expect(replay(left), "a replay failed without a fault");
      expect(!cache_->tainted(), "a rollback left the taint");
      return;
    }
    memra::check(cache_->reset());
    cut(0);
    expect(!cache_->tainted(), "a reset left the taint");
  }

  void compare() {
    memra::check(cache_->catch_up());
    expect(cache_->replay_owed() == 0, "a replay is owed and nobody said so");
    const auto want = memra_test::image(straight_.after(rows_));
    const auto got = memra_test::image(*cache_);
    expect(got == want, "not what a straight run leaves: " + memra_test::difference(got, want));
    expect(memra_test::same_bits(out_, straight_.out()), "an accepted row's output is not that of a straight run");
    for (const Held& h : held_) {
      if (h.snap) expect(h.snap->valid() && h.snap->pos() == h.tokens.size(), "a snapshot is not what it was");
    }
  }

  RoundPlant plant_;
  memra_test::OpModel m_;
  StraightRun straight_;
  Devices<Dev> d_;
  std::optional<Cache> cache_;
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
