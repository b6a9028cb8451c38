// Random histories of a cache against a model of the rules: what is allowed, what is refused, what is held afterwards.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/cache.hpp>
#include <optional>
#include <string>
#include <support/catch.hpp>
#include <support/placements.hpp>
#include <support/planes.hpp>
#include <support/stand_in.hpp>
#include <utility>
#include <vector>

namespace {

using memra_test::Devices;
using memra_test::difference;
using memra_test::FailingDev;
using memra_test::feed;
using memra_test::image;
using memra_test::join;
using memra_test::part;
using memra_test::placements;
using memra_test::Rng;
using memra_test::straight;
using memra_test::stream;
using memra_test::Tokens;
using Cache = memra::Cache<FailingDev>;
using Snapshot = memra::CacheSnapshot<FailingDev>;

constexpr std::size_t max_ctx = 48;

/// What a snapshot should be.
struct Held {
  std::optional<Snapshot> snap;
  Tokens tokens;  ///< the branch it stands for
  bool whole = false;
  bool stale = false;
};

/// One cache and what the rules say of it.
class History {
 public:
  History(const memra::ModelConfig& cfg, std::size_t place, std::uint64_t seed)
      : cfg_(cfg), where_(placements(cfg.layers.size())[place]), rng_(seed) {
    cache_.emplace(memra::check(d_.create(where_, cfg_, max_ctx)));
    for (const auto& l : cfg_.layers) {
      for (const auto& s : l.states) hybrid_ = hybrid_ || std::holds_alternative<memra::RecurrentSpec>(s);
    }
  }

  void turn() {
    switch (below(12)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return feed_some();
      case 4:
        return open_only();
      case 5:
      case 6:
        return take();
      case 7:
      case 8:
      case 9:
        return roll_back();
      case 10:
        return below(4) == 0 ? reset() : park();
      default:
        return move_house();
    }
  }

  void finish() {
    if (tainted_ || open_) {
      REQUIRE(cache_->reset().ok());
      after_cut(0, 0);
      parked_ = false;
    }
    settle();
    compare();
  }

  std::size_t did[6] = {};  ///< feeds, refusals, rollbacks with a replay, taints, stale, prefixes

 private:
  std::size_t below(std::size_t n) { return rng_.next() % n; }
  void arm() { d_.calls->arm(below(6) == 0 ? 1 + static_cast<long>(below(8)) : 0); }
  void disarm() { d_.calls->fail_at = 0; }  // keeps `fired` to be asked

  /// rows_ is what attention holds; [0, pos_) is fed for good.
  void compare() {
    REQUIRE((cache_->pos() == pos_ && cache_->len() == rows_.size() && cache_->tainted() == tainted_));
    for (const Held& h : held_) {
      if (h.snap) REQUIRE(h.snap->valid() == (h.whole && !h.stale));
    }
    const auto parked = cache_->last_logits_dev();
    REQUIRE(parked.has_value() == (parked_ && !tainted_ && parked_at_ == part(rows_, 0, pos_)));
    if (tainted_ || open_ || pos_ != rows_.size()) return;
    const auto got = image(*cache_);
    const auto want = straight(cfg_, rows_);
    INFO(difference(got, want));
    REQUIRE(got == want);
  }

  void feed_some() {
    Tokens t = part(rows_, pos_, std::min(rows_.size() - pos_, 1 + below(5)));  // a replay feeds what was accepted
    const std::size_t more = below(5);
    const std::uint32_t branch = 1 + rng_.next() % 3;
    if (t.size() == rows_.size() - pos_) t = join(t, stream(more, branch));
    if (t.empty()) t = stream(1, 9);
    auto step = cache_->begin_step(t.size());
    const bool allowed = !tainted_ && t.size() <= max_ctx - pos_ && !(open_ && hybrid_);
    REQUIRE(step.ok() == allowed);
    if (!allowed) {
      ++did[1];
      return compare();
    }
    open_ = true;
    REQUIRE(memra_test::stand_in::forward(*cache_, *step, t).ok());
    d_.calls->arm(below(12) == 0 ? 1 : 0);
    const bool ok = cache_->advance().ok();
    disarm();
    if (!ok) {
      tainted_ = true;
      ++did[3];
      return compare();
    }
    open_ = false;
    Tokens now = join(part(rows_, 0, pos_), t);
    pos_ = now.size();
    if (now.size() > rows_.size()) rows_ = now;
    ++did[0];
    compare();
  }

  void open_only() {
    const std::size_t n = 1 + below(3);
    auto step = cache_->begin_step(n);
    const bool allowed = !tainted_ && n <= max_ctx - pos_ && !(open_ && hybrid_);
    REQUIRE(step.ok() == allowed);
    if (allowed) {
      open_ = true;
      // Half a forward. During a replay it writes what is there already.
      const Tokens t =
          join(part(rows_, pos_, std::min(n, rows_.size() - pos_)), stream(n - std::min(n, rows_.size() - pos_), 77));
      REQUIRE(memra_test::stand_in::forward(*cache_, *step, t, below(cfg_.layers.size())).ok());
    }
    compare();
  }

  void take() {
    Held& h = held_[below(4)];
    const bool allowed = !tainted_ && !open_ && pos_ == rows_.size();
    arm();
    if (!h.snap) {
      auto s = cache_->snapshot();
      disarm();
      if (s) {
        h.snap.emplace(*std::move(s));
        h.tokens = rows_;
        h.whole = true;
        h.stale = false;
      }
      REQUIRE((!s || allowed));
      REQUIRE((s || !allowed || d_.calls->fired));
    } else {
      const auto s = cache_->snapshot_into(*h.snap);
      disarm();
      REQUIRE((!s || allowed));
      REQUIRE((s || !allowed || d_.calls->fired));
      if (s) {
        h.tokens = rows_;
        h.stale = false;
      }
      if (allowed) h.whole = s.ok();
      if (below(8) == 0) h.snap.reset();
    }
    compare();
  }

  void after_cut(std::size_t pos, std::size_t end) {
    pos_ = pos;
    rows_.resize(end);
    open_ = tainted_ = false;
    for (Held& h : held_) {
      if (h.tokens.size() > end && !h.stale) {
        h.stale = true;
        did[4] += h.snap ? 1 : 0;
      }
    }
    if (parked_ && parked_at_.size() > end) parked_ = false;
  }

  void roll_back() {
    Held& h = held_[below(4)];
    if (!h.snap) return;
    const std::size_t since = rows_.size() - std::min(rows_.size(), h.tokens.size());
    const std::size_t accept = below(5) == 0 ? since + 1 + below(3) : below(since + 1);
    const bool allowed = h.whole && !h.stale && accept <= since;
    arm();
    const auto r = cache_->rollback(*h.snap, accept);
    disarm();
    if (!r) {
      REQUIRE((!allowed || d_.calls->fired));
      if (allowed) {
        tainted_ = true;
        ++did[3];
      } else {
        ++did[1];
      }
      return compare();
    }
    REQUIRE(allowed);
    const std::size_t at = h.tokens.size();
    REQUIRE(part(rows_, 0, at) == h.tokens);  // the model's own check: a valid snapshot is a prefix of what is held
    after_cut(hybrid_ ? at : at + accept, at + accept);
    REQUIRE((r->pos == pos_ && r->replay == rows_.size() - pos_));
    did[2] += r->replay != 0 ? 1 : 0;
    compare();
  }

  void reset() {
    arm();
    const auto s = cache_->reset();
    disarm();
    if (s) {
      after_cut(0, 0);
      parked_ = false;
    } else {
      tainted_ = true;
    }
    compare();
  }

  void park() {
    const std::vector<float> row(cfg_.n_vocab, 1.0F);
    const bool allowed = !tainted_ && !open_;
    REQUIRE(cache_->park_logits(row.data()).ok() == allowed);
    if (allowed) {
      parked_ = true;
      parked_at_ = part(rows_, 0, pos_);
    }
    compare();
  }

  /// Feeds what is owed.
  void settle() {
    if (pos_ == rows_.size()) return;
    REQUIRE(feed(*cache_, part(rows_, pos_, rows_.size() - pos_)).ok());
    pos_ = rows_.size();
  }

  /// Publishes at a snapshot and, now and then, goes on from the prefix in another placement.
  void move_house() {
    Held& h = held_[below(4)];
    if (!h.snap) return;
    arm();
    auto p = cache_->export_prefix(*h.snap);
    disarm();
    const bool allowed = !tainted_ && h.whole && !h.stale && !h.tokens.empty();
    REQUIRE((!p || allowed));
    REQUIRE((p || !allowed || d_.calls->fired));
    compare();
    if (!p) return;
    ++did[5];
    const bool parked = parked_ && parked_at_ == h.tokens;
    REQUIRE(p->has_logits() == parked);
    const auto all = placements(cfg_.layers.size());
    const auto& to = all[below(all.size())];
    const auto devs = d_.of(to);
    Cache c = memra::check(Cache::from_prefix_ppn(devs, to.fence, cfg_, max_ctx, *p));
    REQUIRE(image(c) == straight(cfg_, h.tokens));
    if (below(3) != 0) return;
    rows_ = h.tokens;
    pos_ = rows_.size();
    open_ = false;
    if (!parked) parked_ = false;
    *cache_ = std::move(c);
    for (Held& other : held_) {
      if (other.snap) REQUIRE(!cache_->rollback(*other.snap, 0));
      other = Held();
    }
    compare();
  }

  memra::ModelConfig cfg_;
  memra_test::PlacedOn where_;
  Rng rng_;
  Devices d_;
  std::optional<Cache> cache_;
  bool hybrid_ = false;
  Tokens rows_;
  std::size_t pos_ = 0;
  bool open_ = false;
  bool tainted_ = false;
  Held held_[4];
  bool parked_ = false;
  Tokens parked_at_;  ///< where, while parked_
};

TEST_CASE("random histories hold what the rules say", "[cache][random]") {
  std::size_t did[6] = {};
  for (const auto& cfg : {memra_test::hybrid_model(), memra_test::attention_model(), memra_test::recurrent_model()}) {
    for (std::size_t place = 0; place < 6; ++place) {
      for (std::uint64_t seed = 1; seed <= 6; ++seed) {
        CAPTURE(cfg.layers.size(), place, seed);
        History h(cfg, place, seed * 31 + place);
        for (int i = 0; i < 150; ++i) {
          CAPTURE(i);
          h.turn();
        }
        h.finish();
        for (std::size_t i = 0; i < 6; ++i) did[i] += h.did[i];
      }
    }
  }
  for (const std::size_t n : did) REQUIRE(n > 100);  // every kind of turn was taken, or this test says nothing
}

}  // namespace
