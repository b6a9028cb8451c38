// Random histories: rounds of every strategy, plain steps, rollbacks, resets and failing devices, in any order.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memra/cache.hpp>
#include <optional>
#include <support/catch.hpp>
#include <support/op_model.hpp>
#include <support/placements.hpp>
#include <support/planes.hpp>
#include <support/rounds.hpp>
#include <support/stand_in.hpp>
#include <utility>
#include <vector>

namespace round_random_cpp {
namespace {

using memra_test::attention_model;
using memra_test::Devices;
using memra_test::image;
using memra_test::join;
using memra_test::OpModel;
using memra_test::part;
using memra_test::Rng;
using memra_test::round_hybrid;
using memra_test::round_recurrent;
using memra_test::stream;
using memra_test::Tokens;
using namespace memra_test::rounds;  // NOLINT(google-build-using-namespace): helpers written for these tests

constexpr std::size_t most_rows = 7;

class History {
 public:
  History(const OpModel& m, std::size_t place, std::uint64_t seed)
      : m_(m), rng_(seed), cache_(make(d_, m, most_rows, place)) {}

  void turn() {
    switch (below(10)) {
      case 0:
        return step();
      case 1:
        return take();
      case 2:
        return roll_back();
      case 3:
        if (below(4) == 0) reset();
        return;
      case 4:
        return abandon();
      case 5:
      case 6:
        return round(true);
      default:
        return round(false);
    }
  }

  void compare() {
    if (cache_.tainted()) {
      REQUIRE(cache_.reset().ok());
      held_.clear();
    }
    REQUIRE(cache_.catch_up().ok());
    if (cache_.replay_owed() != 0) REQUIRE(m_.feed(cache_, part(held_, cache_.pos(), cache_.replay_owed())).ok());
    REQUIRE(cache_.pos() == held_.size());
    require_straight(cache_, m_, held_);
  }

  std::size_t did[5] = {};  ///< rounds by value, on the device, given up, rollbacks, failures

 private:
  std::size_t below(std::size_t n) { return rng_.next() % n; }
  void arm() { d_.arm(below(8) == 0 ? 1 + below(30) : 0); }
  bool failed() {
    const bool fired = d_.fired();
    d_.arm(0);
    did[4] += fired ? 1 : 0;
    return fired;
  }
  std::size_t room() const { return ctx - held_.size(); }

  /// A failure is repaired: state goes back to the last snapshot, or to nothing.
  void repair() {
    if (snap_ && snap_->valid() && below(2) == 0) {
      REQUIRE(cache_.rollback(*snap_, 0).ok());
      held_ = at_;
    } else {
      REQUIRE(cache_.reset().ok());
      held_.clear();
    }
    compare();
  }

  void step() {
    const std::size_t rows = std::min(room(), 1 + below(4));  // one draw per statement: the same on every compiler
    const Tokens t = stream(rows, 1 + static_cast<std::uint32_t>(below(3)));
    if (t.empty()) return reset();
    arm();
    const bool ok = m_.feed(cache_, t).ok();
    if (failed()) return repair();
    REQUIRE(ok);
    held_ = join(held_, t);
    if (below(3) == 0) compare();
  }

  void take() {
    arm();
    if (!snap_) {
      auto made = cache_.snapshot();
      if (failed()) return repair();
      snap_.emplace(memra::check(std::move(made)));
    } else {
      const bool ok = cache_.snapshot_into(*snap_).ok();
      if (failed()) {
        snap_.reset();
        return repair();
      }
      REQUIRE(ok);
    }
    at_ = held_;
    compare();
  }

  void roll_back() {
    if (!snap_ || !snap_->valid()) return;
    const std::size_t accept = below(held_.size() - at_.size() + 1);
    REQUIRE(part(held_, 0, at_.size()) == at_);
    REQUIRE(cache_.rollback(*snap_, accept).ok());
    held_.resize(at_.size() + accept);
    ++did[3];
    compare();
  }

  void reset() {
    REQUIRE(cache_.reset().ok());
    held_.clear();
    compare();
  }

  Strategy any() { return strategies[below(3)]; }

  void abandon() {
    const std::size_t rows = std::min(room(), 1 + below(most_rows));
    if (rows == 0) return;
    {
      Round r = memra::check(cache_.begin_round(rows, any()));
      std::vector<float> out;
      REQUIRE(m_.forward(cache_, r.step(), stream(rows, 50), out, below(m_.config().layers.size() + 1)).ok());
    }
    ++did[2];
    if (below(2) == 0) compare();
  }

  void round(bool on_device) {
    const std::size_t rows = std::min(room(), 1 + below(most_rows));
    if (rows == 0) return reset();
    const std::size_t accept = below(rows + 1);
    const Tokens kept = stream(accept, 4 + static_cast<std::uint32_t>(below(5)));
    const Tokens block = join(kept, stream(rows - accept, 60));
    const Strategy by = any();
    on_device = on_device && by != Strategy::replay;
    arm();
    const bool ok = [&] {
      auto r = cache_.begin_round(rows, by);
      if (!r) return false;
      std::vector<float> out;
      if (!m_.forward(cache_, r->step(), block, out)) return false;
      if (on_device) {
        const std::vector<std::int32_t> words(cache_.n_stages(), static_cast<std::int32_t>(accept));
        std::vector<const std::int32_t*> at;
        for (const std::int32_t& w : words) at.push_back(&w);
        return r->commit_d(at).ok();
      }
      const auto left = r->commit(accept);
      if (!left) return false;
      return left->replay == 0 || m_.feed(cache_, part(kept, 0, left->replay)).ok();
    }();
    if (failed()) return repair();
    REQUIRE(ok);
    held_ = join(held_, kept);
    ++did[on_device ? 1 : 0];
    if (below(2) == 0) compare();
  }

  const OpModel& m_;
  Rng rng_;
  Devices d_;
  Cache cache_;
  Tokens held_;
  std::optional<memra::CacheSnapshot<memra_test::TestDev>> snap_;
  Tokens at_;
};

TEST_CASE("random histories with rounds end where straight runs end", "[round][random]") {
  std::size_t did[5] = {};
  for (const auto& cfg : {round_hybrid(), round_recurrent(), attention_model()}) {
    const OpModel m(cfg);
    for (std::size_t place = 0; place < 6; ++place) {
      if (cfg.layers.size() < 4 && place > 2) continue;
      for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        CAPTURE(cfg.layers.size(), place, seed);
        History h(m, place, seed * 37 + place);
        for (int i = 0; i < 60; ++i) {
          CAPTURE(i);
          h.turn();
        }
        h.compare();
        for (std::size_t i = 0; i < 5; ++i) did[i] += h.did[i];
      }
    }
  }
  for (const std::size_t n : did) {
    CAPTURE(did[0], did[1], did[2], did[3], did[4]);
    REQUIRE(n > 10);  // every kind of turn was taken, or this test says nothing
  }
}

}  // namespace
}  // namespace round_random_cpp
