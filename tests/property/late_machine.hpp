// A Cache, and a draft beside it, on devices whose work fails after it was queued: what an engine must do then, and
// what it may count on.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memra/cache.hpp>
#include <memra/counting_dev.hpp>
#include <memra/fault_dev.hpp>
#include <memra/handover.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/launch.hpp>
#include <memra/ordered_dev.hpp>
#include <memra/poison_dev.hpp>
#include <optional>
#include <property/cache_machine.hpp>
#include <property/draft_machine.hpp>
#include <property/late_draft.hpp>
#include <property/reference.hpp>
#include <property/script.hpp>
#include <string>
#include <support/placed_on.hpp>
#include <support/stand_in.hpp>
#include <support/tape.hpp>
#include <utility>
#include <variant>
#include <vector>

namespace property {

using Async = memra::OrderedDev<memra::FaultDev<memra::CountingDev<memra::PoisonDev<memra::HostDev>>>>;

/// Bugs planted into what the machine does, for the self test.
enum class LatePlant {
  none,
  doubt_is_ignored,  ///< the engine goes on after an asynchronous failure
  rows_are_trusted,  ///< it keeps rows that were never confirmed
  failure_is_lost,   ///< it throws the Status of a synchronize away
  draft_is_trusted,  ///< it keeps a draft that was not waited for since its ring moved
};

/// The stand-in model in a round by planes or stash: conv stays and its raw inputs are kept; the ssm after each token
/// goes to a plane of its own, or stays, too, and what moves it on is kept.
struct RoundBody {
  memra::RecurView w;
  memra::RecurrentSpec spec;
  std::size_t layer;
  std::size_t nth;
  StepTokens t;

  void operator()(const memra::Item&) const noexcept {
    for (std::size_t i = 0; i < t.n; ++i) {
      if (w.d_conv > 1) keep(w.round.conv_rows, w.conv_dim(), memra_test::stand_in::kind_conv, i);
    }
    w.round.mode == memra::RoundMode::planes ? planes() : stash();
  }

 private:
  void keep(float* to, std::size_t width, memra_test::stand_in::Kind kind, std::size_t i) const {
    for (std::size_t e = 0; e < width; ++e) {
      to[i * width + e] = memra_test::stand_in::value(kind, layer, nth, e, t.token[i], 0);
    }
  }
  void stash() const {
    const std::size_t decays = spec.n_v_heads * w.decay_width();
    for (std::size_t i = 0; i < t.n; ++i) {
      keep(w.round.k, spec.n_k_heads * spec.d_k, memra_test::stand_in::kind_key, i);
      keep(w.round.u, spec.n_v_heads * spec.d_v, memra_test::stand_in::kind_value, i);
      std::fill_n(w.round.decay + i * decays, decays, memra_test::stand_in::decay);
    }
  }
  void planes() const {
    std::size_t from = w.current();
    for (std::size_t i = 0; i < t.n; ++i) {
      const std::size_t to = (from + 1) % w.round.n_planes;
      const std::size_t bytes = memra_test::stand_in::ssm_bytes(spec);
      if (bytes != 0) std::memcpy(w.plane_state(to).data(), w.plane_state(from).data(), bytes);
      Bytes conv(memra_test::stand_in::conv_bytes(spec));
      memra_test::stand_in::move_on(spec, layer, nth, t.token[i],
                                    memra_test::stand_in::elems(spec.conv_format, conv.data()), w.plane_state(to));
      from = to;
    }
  }
};

/// setup: model kind, K format, V format, layout, placement, whether a draft comes along from the start.
///
/// The rules (S5, C8): a failure is reported once, by whatever call comes next. It leaves in doubt everything queued
/// since all devices were last waited for without a failure. If a call of the cache reports it, the cache is tainted.
/// Back to a snapshot that still says it is valid, or a reset, and every byte is right again. A snapshot that was
/// waited for is valid, and so are a prefix and a tail, whatever fails later. A draft that moves with the trunk is in
/// doubt with it; if its ring has moved since the last wait, all of it is.
class LateMachine {
  using Cache = memra::Cache<Async>;
  using Snapshot = memra::CacheSnapshot<Async>;
  using Pair = LateDraft<Async>;
  using Prefix = memra::CachePrefix<Async>;
  using Tail = memra::DflashKvTail<Async>;

 public:
  LateMachine(const std::vector<unsigned>& setup, LatePlant plant)
      : plant_(plant), cfg_(model_of(at(setup, 0), at(setup, 1), at(setup, 2), at(setup, 3))), parts_(parts_of(cfg_)) {
    for (Async& d : dev_) d.inner().share(plan_);
    const auto all = memra_test::placements(cfg_.layers.size());
    where_ = all[at(setup, 4) % all.size()];
    std::vector<Async*> devs;
    for (const std::size_t d : where_.devices) devs.push_back(&dev_[d]);
    memra::CacheOptions options;
    options.rounds.rows = max_step;
    options.rounds.replay = options.rounds.planes = true;
    options.rounds.stash = stash_ = may_stash(cfg_);
    cache_.emplace(memra::check(Cache::create_ppn(devs, where_.fence, cfg_, short_ctx, options)));
    if (at(setup, 5) % 2 == 1) join(dev_[at(setup, 5) / 4 % 3], at(setup, 5) / 2 % 2 == 1);
    expect(wait(), "a device failed without a fault");
    confirm();
  }

  void apply(const Op& op) {
    if (op.fault != 0) arm(op.fault);
    switch (op.code) {
      case 'f':
        feed(1 + op.a % 6, op.b);
        break;
      case 'k':
        round(1 + op.a % 6, op.b, op.c);
        break;
      case 's':
        snapshot(held_[op.a % 3]);
        break;
      case 'r':
        rollback(held_[op.a % 3], op.b, op.c);
        break;
      case 'z':
        part_company();
        if (good(cache_->reset())) after_cut({}, 0);
        break;
      case 'p':
        park();
        break;
      case 'x':
        publish(held_[op.a % 3]);
        break;
      case 'y':
        use(published_, true);
        break;
      case 'o':
        hand_over(op.a);
        break;
      case 'g':
        device_feed(1 + op.a % 3, op.b);
        break;
      case 'd':
        if (!pair_) {
          join(dev_[op.a % 3], op.b % 4 != 0);
        } else if (op.a % 4 == 0) {
          part_company();
        }
        break;
      case 'b':
        block(1 + op.a % 2, op.b);
        break;
      case 't':
        keep_tail(op.a % 6, op.b % 3 == 0);
        break;
      case 'i':
        use(tail_, dev_[op.a % 3], op.b % 2 == 1);
        break;
      case 'e':
        unasked_ = op.a;
        run_unasked();
        break;
      default:
        look();
        break;
    }
    if (doubt_) repair();
    expect(!cache_->tainted(), "tainted without a failure");
  }

  void finish() {
    look();
    if (doubt_) repair();
    for (Held& h : held_) h = {};
    published_ = {};
    tail_ = {};
    pair_.reset();
    cache_.reset();
    for (Async& d : dev_) {
      expect(d.synchronize().ok(), "a failure without a fault");
      expect(d.inner().inner().counters().live == 0, "memory was left when everything was gone");
    }
  }

  std::size_t refusals = 0;
  std::size_t taints = 0;
  std::size_t faults = 0;
  std::size_t published = 0;
  std::size_t handed = 0;
  std::size_t together = 0;  ///< steps and rounds of trunk and draft
  std::size_t moves = 0;     ///< of the draft's ring
  std::size_t kept = 0;      ///< pinned tails given out
  std::size_t tails = 0;     ///< drafts made of a tail

 private:
  struct Held {
    std::optional<Snapshot> snap;
    Tokens tokens;
    bool confirmed = false;  ///< it, and whatever wrote its rows again, was waited for
  };
  template <class T>
  struct Published {
    std::optional<T> thing;
    Tokens tokens;
    bool confirmed = false;
    bool in_doubt = false;  ///< something failed before it was waited for: it may be lost
  };
  /// Whose call it was.
  enum class Of { nobody, trunk, draft, both };

  static unsigned at(const std::vector<unsigned>& v, std::size_t i) { return i < v.size() ? v[i] : 0; }

  void arm(unsigned fault) {
    constexpr std::size_t nth[8] = {1, 2, 3, 4, 6, 9, 14, 25};
    memra::Fault f;
    f.nth = nth[fault % 8];
    f.forever = fault / 8 % 4 == 3;
    f.torn = fault / 32 % 2 == 1;
    f.kind = memra::ErrorKind::device_failure;           // a lack of memory is no failure yet: frees may be waiting
    if (fault / 64 % 2 == 1) f.op = memra::DevOp::copy;  // what snapshots and rollbacks do
    plan_->arm(f);
    if (fault % 3 == 0) unasked_ = fault / 3;
  }

  /// Takes a Status apart. Of the cache's calls: a failure of earlier work must have tainted it.
  bool good(const memra::Status& s, Of of = Of::trunk) {
    if (s.ok()) return true;
    const bool trunk = of == Of::trunk || of == Of::both;
    const bool draft = of == Of::draft || of == Of::both;
    if (s.asynchronous()) {
      expect((!trunk || cache_->tainted()) && (!draft || pair_->kv.tainted()),
             "an asynchronous failure did not taint: " + s.message());
      if (plant_ != LatePlant::doubt_is_ignored) doubt_ = true;
      return false;
    }
    ++refusals;  // the call itself failed, and has changed nothing
    const bool tainted = (trunk && cache_->tainted()) || (draft && pair_->kv.tainted());
    expect(s.kind() == memra::ErrorKind::device_failure && plan_->fired() != 0 && !tainted,
           "refused, or failed without a fault: " + s.message());
    plan_->disarm();
    return false;
  }
  template <class T>
  bool good(const memra::Result<T>& r, Of of = Of::trunk) {
    return good(r.status(), of);
  }
  Of all() const { return pair_ ? Of::both : Of::trunk; }

  /// Waits for every device. @return whether all that was queued has been done
  bool wait() {
    bool ok = true;
    for (Async& d : dev_) {
      memra::Status s = d.synchronize();
      if (!s && !s.asynchronous() && !good(s, Of::nobody)) s = d.synchronize();  // waiting failed, not the work
      if (plant_ != LatePlant::failure_is_lost) ok = good(s, Of::nobody) && ok;
    }
    return ok;
  }
  void confirm() {
    expect(plan_->fired() == 0, "a failure was never reported");
    plan_->disarm();
    sure_ = rows_.size();
    for (Held& h : held_) h.confirmed = h.snap.has_value();
    published_.confirmed = !published_.in_doubt;
    tail_.confirmed = !tail_.in_doubt;
    if (pair_) pair_->sure = true;
  }
  /// Everything is waited for and compared.
  void look() {
    // A question that failed may be asked again; it taints only if earlier work failed.
    if (!good(cache_->catch_up()) && !doubt_) good(cache_->catch_up());
    if (!wait() || doubt_) return;
    confirm();
    const auto got = memra_test::image(*cache_);
    expect(got == memra_test::straight(cfg_, rows_),
           "not what a straight run leaves: " + difference(got, memra_test::straight(cfg_, rows_)));
    if (pair_) Pair::expect_rows(pair_->kv, rows_, tapped());
    for (const Held& h : held_) {
      if (h.snap) expect(h.snap->valid() && h.snap->pos() == h.tokens.size(), "a snapshot is not what it was");
    }
  }

  /// The tokens of a forward from `pos` on: those the cache holds already, then new ones.
  Tokens tokens_at(std::size_t pos, std::size_t n, unsigned branch) const {
    Tokens t = memra_test::part(rows_, pos, std::min(n, rows_.size() - pos));
    for (std::size_t i = t.size(); i < n; ++i) t.push_back(static_cast<Token>((branch * 5 + i + pos) % 7));
    return t;
  }
  bool write(memra::Step<Async>& step, const Tokens& t, memra::Strategy by = memra::Strategy::replay) {
    for (const Part& p : parts_) {
      const auto* spec = std::get_if<memra::RecurrentSpec>(&p.spec);
      memra::Status s;
      if (spec == nullptr || by == memra::Strategy::replay) {
        s = write_part(*cache_, step, p, t, false);
      } else {
        const memra::RecurView w = memra::check(step.recur(p.layer, p.nth));
        s = memra::launch(cache_->dev(p.layer), "round", {}, RoundBody{w, *spec, p.layer, p.nth, StepTokens(t)});
      }
      if (!good(s, Of::nobody)) return false;
    }
    if (const auto tap = step.tap(tapped())) {
      const TapBody body{*tap, tapped(), step.pos(), StepTokens(t)};
      const auto s = memra::launch(cache_->dflash_taps()->device(), "tap", {t.size()}, body);
      if (!good(s, Of::nobody)) return false;
    }
    return run_unasked();
  }
  bool forward(const Tokens& t) {
    auto step = cache_->begin_step(t.size());
    if (!good(step)) return false;
    if (!write(*step, t)) return false;
    return good(cache_->advance());
  }
  bool forward_both(const Tokens& t) {
    auto step = pair_->spec->begin_step(t.size());
    if (!good(step, Of::both)) return false;
    if (!write(*step, t) || !follow(t.size())) return false;
    return good(pair_->spec->advance(), Of::both);
  }
  /// What a take-back left to do, in steps the model has room for.
  bool replay(const memra::RolledBack& left) {
    if (left.replay != 0) rows_in_doubt(left.pos);
    for (std::size_t done = 0; done < left.replay;) {
      const std::size_t n = std::min(max_step, left.replay - done);
      if (!forward(memra_test::part(rows_, left.pos + done, n))) return false;
      done += n;
    }
    return true;
  }
  /// What is queued from here on writes rows again that were sure.
  void rows_in_doubt(std::size_t from) {
    sure_ = std::min(sure_, from);
    for (Held& h : held_) h.confirmed = h.confirmed && h.tokens.size() <= from;
  }
  void feed(std::size_t n, unsigned branch) {
    n = std::min(n, short_ctx - rows_.size());
    if (n == 0) return;
    const Tokens t = tokens_at(rows_.size(), n, branch);
    if (!(pair_ ? forward_both(t) : forward(t))) return;
    rows_ = memra_test::join(rows_, t);
    together += pair_ ? 1 : 0;
  }
  void device_feed(std::size_t n, unsigned branch) {
    if (pair_ || n > short_ctx - rows_.size()) return;  // a draft would be left behind
    const Tokens t = tokens_at(rows_.size(), n, branch);
    auto step = cache_->begin_device_step(n);
    if (step.status().kind() == memra::ErrorKind::bad_state) return;  // rounds by planes left the state elsewhere
    if (!good(step)) return;
    if (!write(*step, t)) return;
    if (!good(cache_->advance_d())) return;
    rows_ = memra_test::join(rows_, t);
    good(cache_->catch_up());
  }
  /// A round, committed by the host's word or the device's, or given up.
  void round(std::size_t n, unsigned branch, unsigned c) {
    n = std::min(n, short_ctx - rows_.size());
    if (n == 0) return;
    const Tokens t = tokens_at(rows_.size(), n, branch);
    const auto by = strategy_of(branch, stash_);
    if (pair_) return round_of_both(t, by, c);
    auto round = cache_->begin_round(n, by);
    if (!good(round)) return;
    if (!write(round->step(), t, by)) return;
    if (c % 8 == 7) {
      good(round->abandon());
      return;
    }
    const std::size_t accept = c % (n + 1);
    const Tokens kept = memra_test::part(t, 0, accept);
    if (by != memra::Strategy::replay && branch / 3 % 2 == 1) {
      if (!commit_on_device(*round, accept)) return;
      rows_ = memra_test::join(rows_, kept);
      return;
    }
    auto left = round->commit(accept);
    if (!good(left)) return;
    rows_ = memra_test::join(rows_, kept);
    replay(*left);
  }

  void round_of_both(const Tokens& t, memra::Strategy by, unsigned c) {
    auto step = pair_->spec->begin_round(t.size(), by);
    if (!good(step, Of::both)) return;
    if (!write(*step, t, by)) return;
    if (c % 8 == 7) {
      good(pair_->spec->abandon(), Of::both);
      return;
    }
    const std::size_t accept = c % (t.size() + 1);
    if (accept != 0 && !follow(accept)) return;
    auto left = pair_->spec->commit(accept, 0);
    if (!good(left, Of::both)) return;
    rows_ = memra_test::join(rows_, memra_test::part(t, 0, accept));
    ++together;
    replay(*left);
  }

  bool commit_on_device(memra::Round<Async>& round, std::size_t accept) {
    const auto value = static_cast<std::int32_t>(accept);
    std::vector<Async::Buffer> words;
    std::vector<const std::int32_t*> at;
    for (std::size_t s = 0; s < cache_->n_stages(); ++s) {
      auto b = cache_->stage_dev(s).alloc(sizeof value);
      if (!good(b, Of::nobody)) return false;
      auto* word = reinterpret_cast<std::int32_t*>(b->data());
      words.push_back(*std::move(b));
      if (!good(cache_->stage_dev(s).store_i32(word, &value, 1), Of::nobody)) return false;
      at.push_back(word);
    }
    return good(round.commit_d(at));
  }

  // --- a draft beside it ---

  std::size_t tapped() const { return parts_[0].layer; }
  void join(Async& dev, bool ring) {
    auto kv = Pair::Kv::create_cold_at(dev, Pair::config(ring), short_ctx, rows_.size());
    if (good(kv, Of::nobody)) pair_with(*std::move(kv));
  }
  void pair_with(Pair::Kv kv) {
    if (!good(cache_->catch_up())) return;
    pair_.emplace(Pair{std::move(kv)});
    auto spec = memra::Speculation<Async>::create(*cache_, pair_->kv, {tapped()}, tap_hidden, max_step);
    if (!good(spec, Of::both)) return pair_.reset();
    pair_->spec.emplace(*std::move(spec));
  }
  void part_company() { pair_.reset(); }
  /// The first `n` tokens' rows.
  bool follow(std::size_t n) {
    const Before was{pair_->kv.pinned(), plan_->fired()};
    auto open = pair_->spec->open_rows(n);
    if (!good(open, Of::both)) return false;
    note_move(was);
    const TapsToRowsBody body{open->rows.view(0), open->taps};
    return good(memra::launch(pair_->kv.device(), "rows", {n}, body), Of::nobody);
  }
  struct Before {
    std::size_t pinned;
    std::size_t fired;
  };
  /// A move takes a pinned tail first; one that finds no memory for it goes on, and the pin is lost.
  void note_move(const Before& was) {
    moves += pair_->base == pair_->kv.base() ? 0 : 1;
    pair_->note_move();
    if (was.pinned == pair_->kv.pinned()) return;
    expect(plan_->fired() > was.fired, "a pin was lost, and no call failed");
    plan_->disarm();
  }
  void block(std::size_t n, unsigned token) {
    if (!pair_) return;
    const Before was{pair_->kv.pinned(), plan_->fired()};
    auto rows = pair_->kv.begin_block(n);
    if (!good(rows, Of::draft)) return;
    note_move(was);
    good(write_draft(pair_->kv.device(), rows->view(0), n, 0, static_cast<int>(token)), Of::nobody);
  }
  /// A tail that ends `back` rows ago, now or, pinned, later.
  void keep_tail(std::size_t back, bool pin) {
    if (!pair_) return;
    auto& kv = pair_->kv;
    const std::size_t pinned = kv.pinned();
    const std::size_t upto = pinned != 0 ? pinned : rows_.size() - std::min(back, rows_.size());
    const std::size_t floor = std::min(kv.floor(), upto);
    const bool there = upto - std::min(kv.cfg_window_rows(), upto - floor) >= kv.resident() && upto != floor;
    if (pin && pinned == 0) return expect(kv.pin(upto).ok() == there, "pin: another answer");
    tail_ = {};
    const std::size_t fired = plan_->fired();
    tail_.thing = kv.export_tail(upto);
    if (tail_.thing) {
      tail_.tokens = memra_test::part(rows_, 0, upto);
      kept += pinned != 0 ? 1 : 0;
      use(tail_, kv.device(), kv.config().ring, pinned != 0);  // one that was pinned was taken before
      return;
    }
    if (kv.tainted()) {  // it had no other way to say it
      doubt_ = plant_ != LatePlant::doubt_is_ignored;
    } else {
      expect(plan_->fired() > fired || !(there || pinned != 0), "a tail that is there is not given out");
      if (plan_->fired() > fired) plan_->disarm();
    }
  }

  void snapshot(Held& h) {
    h.confirmed = false;
    if (h.snap) {
      if (!good(cache_->snapshot_into(*h.snap))) return h.snap.reset();
    } else {
      auto s = cache_->snapshot();
      if (!good(s)) return;
      h.snap.emplace(*std::move(s));
    }
    h.tokens = rows_;
  }

  void after_cut(const Tokens& base, std::size_t accept) {
    rows_.resize(base.size() + accept);
    sure_ = std::min(sure_, rows_.size());
    for (Held& h : held_) {
      if (h.snap && h.tokens.size() > rows_.size()) {
        expect(!h.snap->valid(), "a snapshot above a cut is valid");
        h = {};
      }
    }
  }
  /// A snapshot that says it is not valid, and is refused.
  bool lost(Held& h) {
    if (!h.snap || h.snap->valid()) return false;
    expect(!h.confirmed, "a snapshot that was waited for is not valid");
    expect(cache_->rollback(*h.snap, 0).status().kind() == memra::ErrorKind::bad_state, "a lost snapshot was taken");
    h = {};
    ++refusals;
    return true;
  }
  /// A draft that cannot go back so far stays behind.
  memra::Result<memra::RolledBack> take_back(const Held& h, std::size_t accept) {
    if (pair_ && !pair_->kv.may_truncate(h.tokens.size() + accept)) part_company();
    if (!pair_) return cache_->rollback(*h.snap, accept);
    auto r = pair_->spec->rollback(*h.snap, accept, 0);
    pair_->note_move();
    return r;
  }
  /// @param c  may say: if a replay is owed, go on to a snapshot whose rows it would write again, before it does
  void rollback(Held& h, unsigned b, unsigned c) {
    if (!h.snap || lost(h)) return;
    const std::size_t accept = b % (rows_.size() - h.tokens.size() + 1);
    auto r = take_back(h, accept);
    const bool done = good(r, all());
    // The trunk may have gone back before the draft heard of a failure.
    if (done || (pair_ && cache_->len() < rows_.size())) after_cut(Tokens(h.tokens), accept);
    if (!done) return;
    Held& on = held_[c / 4 % 3];
    if (c % 4 != 0 || !on.snap || on.tokens.size() <= r->pos || lost(on)) {
      replay(*r);
      return;
    }
    rows_in_doubt(r->pos);  // kernels go by pos_d
    if (c / 16 % 2 == 0) {
      if (!wait() || doubt_) return;
      confirm();
      rows_in_doubt(r->pos);  // should its next value be lost, they still write from here on
    }
    rollback(on, b / 8, 1);
  }

  /// What a device has queued is run, but nobody asks it how that went: whichever call comes next says so.
  /// @return false: what was queued before had failed, and this was the next call
  bool run_unasked() {
    if (!unasked_) return true;
    Async& dev = dev_[*unasked_ % 3];
    Async& other = dev_[(*unasked_ + 1) % 3];
    unasked_.reset();
    Async::Event here;
    if (good(dev.publish(here), Of::nobody) && good(other.wait(here), Of::nobody)) {
      good(other.synchronize(), Of::nobody);
    }
    return !doubt_;
  }

  void park() {
    Async& dev = cache_->stage_dev(cache_->n_stages() - 1);
    auto row = dev.zeros(cfg_.n_vocab * sizeof(float));
    if (!good(row, Of::nobody)) return;
    good(cache_->park_logits(reinterpret_cast<const float*>(row->data())));
  }

  void publish(Held& h) {
    if (!h.snap || h.tokens.empty() || lost(h)) return;
    auto p = cache_->export_prefix(*h.snap);
    if (!good(p)) return;
    published_ = {};
    published_.thing.emplace(*std::move(p));
    published_.tokens = h.tokens;
    use(published_, false);
  }
  /// Whether it has been lost since it was made, and says so.
  template <class T>
  bool gone(const Published<T>& p, const memra::Status& s, bool later) {
    if (s.kind() != memra::ErrorKind::bad_state || !later) return false;
    expect(!p.confirmed, "what was waited for is lost: " + s.message());
    ++refusals;
    return true;
  }
  /// Makes a cache of a prefix.
  void use(const Published<Prefix>& p, bool later) {
    if (!p.thing) return;
    auto made = Cache::from_prefix(dev_[2], cfg_, short_ctx, *p.thing);
    if (gone(p, made.status(), later) || !good(made, Of::nobody)) return;
    if (!wait() || doubt_) return;
    confirm();
    expect(memra_test::image(*made) == memra_test::straight(cfg_, p.tokens), "a prefix holds something else");
    ++published;
  }
  /// Makes a draft of a tail, which goes on beside the trunk if it ends there.
  void use(const Published<Tail>& p, Async& dev, bool ring, bool later = true) {
    if (!p.thing) return;
    memra::Status why;
    auto made = Pair::Kv::from_tail(dev, Pair::config(ring), short_ctx, *p.thing, &why);
    if (gone(p, why, later) || !good(why, Of::nobody)) return;
    if (!wait() || doubt_) return;
    confirm();
    Pair::expect_rows(*made, p.tokens, tapped());
    ++tails;
    if (!later || p.tokens != rows_) return;
    part_company();
    pair_with(*std::move(made));
  }

  /// The state goes over a link; what was lost before that is not sent, and says so.
  void hand_over(unsigned from) {
    const bool prefix = from % 2 == 1 && published_.thing;
    if (!prefix && rows_.empty()) return;
    const Tokens tokens = prefix ? published_.tokens : rows_;
    const Tail* const tail = tail_.thing && tail_.tokens == tokens ? &*tail_.thing : nullptr;
    memra_test::TapeWriter sender;
    const memra::Status sent =
        prefix ? memra::send_state(sender, *published_.thing, {}, tail) : memra::send_state(sender, *cache_, {}, tail);
    if (sent.kind() == memra::ErrorKind::bad_state) {
      const bool lost = (prefix && !published_.confirmed) || (tail != nullptr && !tail_.confirmed);
      expect(lost, "what was waited for is not sent: " + sent.message());
      ++refusals;
      return;
    }
    if (!good(sent, prefix ? Of::nobody : Of::trunk)) return;
    memra_test::TapeReader receiver(sender.tape);
    memra::HandoverTarget<Async> target;
    target.stages = {&dev_[2], &dev_[from / 2 % 3]};
    target.config = cfg_;
    target.max_ctx = short_ctx;
    target.draft = Pair::config(from / 8 % 2 == 1);
    target.draft_dev = &dev_[from / 16 % 3];
    auto got = memra::receive_state(receiver, target);
    if (!good(got, Of::nobody)) return;
    if (!wait() || doubt_) return;
    confirm();
    expect(memra_test::image(got->cache) == memra_test::straight(cfg_, tokens), "what was received is something else");
    expect(got->tail.has_value() == (tail != nullptr), "a tail where none was sent, or none");
    if (got->tail) {
      tail_ = {};
      tail_.thing = std::move(got->tail);
      tail_.tokens = tokens;
      tail_.confirmed = true;
      use(tail_, *target.draft_dev, target.draft->ring);
    }
    ++handed;
  }

  void repair() {
    ++taints;
    faults += plan_->fired();
    plan_->disarm();
    for (Async& d : dev_) {
      static_cast<void>(d.synchronize().ok());  // what had failed before
      expect(d.synchronize().ok(), "a failure without a fault");
    }
    doubt_ = false;
    published_.in_doubt = !published_.confirmed;
    tail_.in_doubt = !tail_.confirmed;
    const Held* back = nullptr;
    for (Held& h : held_) {
      if (!lost(h) && h.snap) back = &h;
    }
    if (back != nullptr) {
      const std::size_t sure = plant_ == LatePlant::rows_are_trusted ? rows_.size() : sure_;
      const std::size_t accept = sure - std::min(sure, back->tokens.size());
      const bool trusted = plant_ == LatePlant::draft_is_trusted || (pair_ && pair_->sure);
      if (!trusted || back->tokens.size() + accept > sure) part_company();
      const auto r = memra::check(take_back(*back, accept));
      after_cut(Tokens(back->tokens), accept);
      expect(replay(r), "a replay failed without a fault");
    } else {
      part_company();
      memra::check(cache_->reset());
      after_cut({}, 0);
    }
    expect(!cache_->tainted(), "a repair left the taint");
    look();
  }

  LatePlant plant_;
  memra::ModelConfig cfg_;
  std::vector<Part> parts_;
  std::shared_ptr<memra::FaultPlan> plan_ = std::make_shared<memra::FaultPlan>();
  std::array<Async, 3> dev_;
  memra_test::PlacedOn where_;
  bool stash_ = false;
  std::optional<Cache> cache_;
  std::array<Held, 3> held_;
  std::optional<Pair> pair_;
  Published<Prefix> published_;
  Published<Tail> tail_;

  std::optional<unsigned> unasked_;  ///< a device to be run behind the next writes, see run_unasked
  Tokens rows_;                      ///< what is fed, as far as the calls said
  std::size_t sure_ = 0;             ///< rows of it that are known to be there
  bool doubt_ = false;               ///< a failure of earlier work was reported
};

}  // namespace property
