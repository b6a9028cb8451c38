// A device that fails at every place of a prompt and of a speculative round: the engine says so, nothing leaks, no
// guard is touched, and after the repair its documentation asks for, the same calls give the same bytes.
#include <cstddef>
#include <cstdint>
#include <engine/rig.hpp>
#include <memra/canary_dev.hpp>
#include <memra/counting_dev.hpp>
#include <memra/dev_call.hpp>
#include <memra/fault_dev.hpp>
#include <memra/guard_planes.hpp>
#include <memra/host_dev.hpp>
#include <memra/plan.hpp>
#include <optional>
#include <span>
#include <string>
#include <support/catch.hpp>
#include <utility>
#include <vector>

namespace faults_cpp {
namespace {

using Dev = memra::FaultDev<memra::CountingDev<memra::CanaryDev<memra::HostDev>>>;

/// A whole engine on one device.
struct Engine {
  explicit Engine(const tiny::ModelFiles& files)
      : config(tiny::state_config(files.config, memra::Format::q8_0, memra::Format::q5_1)) {
    // Guards are looked at twice per attempt: there are thousands of calls.
    memra::detail::canary_of(dev).check_every(0);
    cache.emplace(memra::check(memra::Cache<Dev>::create(dev, config, 32, rig::all_rounds(files))));
    memra::check(memra::guard_planes(*cache));
    trunk.emplace(memra::check(tiny::Trunk<Dev>::create(files.config, files.weights, *cache, tiny::TrunkOptions{8})));
    drafter.emplace(memra::check(tiny::Drafter<Dev>::create(files.draft->config, files.draft->weights, *trunk, 32)));
    memra::check(memra::guard_planes(drafter->kv()));
    decoder.emplace(*trunk, *cache, &*drafter);
  }

  /// Committed state of trunk and drafter.
  rig::State state() const {
    rig::State s = rig::look(*cache);
    const memra::DflashKv<Dev>& kv = drafter->kv();
    for (std::size_t l = 0; l < kv.n_layer(); ++l) {
      for (const auto& [name, plane] : {std::pair{"dk", kv.k(l)}, std::pair{"dv", kv.v(l)}}) {
        const auto* b = reinterpret_cast<const std::byte*>(plane);
        s[name + std::to_string(l)].assign(b, b + kv.len() * kv.row_bytes());
      }
    }
    return s;
  }

  /// No guard has been touched, up to now. Asked before a repair, too, which writes over what it does not look at.
  bool guards_whole() {
    auto& canary = memra::detail::canary_of(dev);
    return canary.check_now().ok() && canary.violations() == 0;
  }

  /// Fails call n of `work` for every n until none is left; `repair` is what comes after a failure.
  /// @return calls of one run
  template <class Work, class Repair>
  std::size_t sweep(const Work& work, const Repair& repair) {
    work();
    REQUIRE(guards_whole());
    const rig::State want = state();
    repair();
    const std::size_t live = dev.inner().counters().live;
    for (std::size_t n = 1;; ++n) {
      dev.arm({.nth = n});
      std::string what;
      try {
        work();
      } catch (const memra::Error& e) {
        what = e.what();
      }
      const bool fired = dev.fired() != 0;
      dev.disarm();
      INFO(n << ": " << what);
      REQUIRE(what.empty() == !fired);
      REQUIRE(guards_whole());
      if (!fired) {
        REQUIRE(rig::first_difference(state(), want).empty());
        return n;
      }
      REQUIRE(what.find("fault on purpose") != std::string::npos);  // the device's own words reach the caller
      repair();
      // The tap sink may be with the decoder, in the cache, or gone with the call: never twice.
      REQUIRE(dev.inner().counters().live <= live);
      REQUIRE(dev.inner().counters().live + 1 >= live);
      REQUIRE(guards_whole());
      if (n % (5 * MEMRA_TEST_ONE_IN) != 0) continue;
      work();
      REQUIRE(guards_whole());
      REQUIRE(rig::first_difference(state(), want).empty());
      repair();
    }
  }

  Dev dev;
  memra::ModelConfig config;
  std::optional<memra::Cache<Dev>> cache;
  std::optional<tiny::Trunk<Dev>> trunk;
  std::optional<tiny::Drafter<Dev>> drafter;
  std::optional<tiny::Decoder<Dev>> decoder;
};

TEST_CASE("C8 a device that fails at every place of a prompt and of a speculative round", "[engine]") {
  const auto files = memra::check(tiny::load_model(rig::fixture("tiny")));
  const auto prompt = rig::bytes_of("Ps23");
  Engine e(files);
  const auto prime = [&] { e.decoder->prime(prompt); };
  const auto start_over = [&] {
    memra::check(e.cache->reset());
    memra::check(e.drafter->kv().truncate(0));
  };
  REQUIRE(e.sweep(prime, start_over) > 50);

  // Now primed. A round is repaired by a rollback to where it began.
  const auto snap = memra::check(e.cache->snapshot());
  const std::int32_t next = e.decoder->next();
  tiny::GenerateOptions one_round;
  one_round.max_tokens = 1;  // of a whole block only one token is kept: the others are taken back
  const auto round = [&] {
    const auto g = e.decoder->speculative(one_round);
    REQUIRE((g.rounds.size() == 1 && g.tokens == std::vector<std::int32_t>{next}));
    REQUIRE(g.replayed == (one_round.strategy == memra::Strategy::replay ? 1U : 0U));
  };
  const auto back = [&] {
    memra::check(e.cache->rollback(snap, 0));
    memra::check(e.drafter->kv().truncate(prompt.size()));
    e.decoder->set_next(next);
  };
  for (const memra::Strategy by : {memra::Strategy::replay, memra::Strategy::planes, memra::Strategy::stash}) {
    back();  // a sweep ends with a round that passed
    one_round.strategy = by;
    REQUIRE(e.sweep(round, back) > 50);
  }

  // Red arm: a repair that forgets the drafter is seen.
  memra::check(e.cache->rollback(snap, 0));
  e.decoder->set_next(next);
  bool noticed = false;
  try {
    round();
    noticed = e.drafter->kv().len() != e.cache->len();
  } catch (const memra::Error&) {
    noticed = true;
  }
  REQUIRE(noticed);

  // Red arm: a byte behind a plane is seen, and by a repair that nobody looked before.
  memra::check(e.cache->rollback(snap, 0));
  REQUIRE(e.guards_whole());
  const auto state = *e.cache->recur(0);
  auto* const behind =
      const_cast<std::byte*>(reinterpret_cast<const std::byte*>(state.conv + state.conv_elems()) + memra::kv_tail_pad);
  *behind = std::byte{1};
  REQUIRE_FALSE(e.cache->rollback(snap, 0).ok());
  REQUIRE_FALSE(e.guards_whole());
}

}  // namespace
}  // namespace faults_cpp
