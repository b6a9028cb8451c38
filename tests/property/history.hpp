// One history: a script's operations on a machine, what happened in it, and how random scripts are made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <property/script.hpp>
#include <string>
#include <support/planes.hpp>

namespace property {

struct Did {
  std::size_t ops = 0;
  std::size_t taints = 0;
  std::size_t faults = 0;
  std::size_t refusals = 0;
  std::size_t replays = 0;
  std::size_t stale = 0;
  std::size_t published = 0;
  std::size_t lapped = 0;
  std::size_t moves = 0;
  std::size_t kept = 0;
  std::size_t rounds = 0;
  std::size_t graphs = 0;
  std::size_t together = 0;
  std::size_t levelled = 0;
  std::size_t batches = 0;
};

template <class Machine, class Plant>
std::optional<Failure> run_on(const Script& s, Plant plant, Did* did) {
  std::size_t at = 0;
  try {
    Machine m(s.setup, plant);
    for (; at < s.ops.size(); ++at) m.apply(s.ops[at]);
    m.finish();
    if (did != nullptr) {
      did->ops += s.ops.size();
      did->taints += m.taints;
      did->faults += m.faults;
      did->refusals += m.refusals;
      if constexpr (requires { m.published; }) did->published += m.published;
      if constexpr (requires { m.replays; }) did->replays += m.replays, did->stale += m.stale;
      if constexpr (requires { m.lapped; }) did->lapped += m.lapped;
      if constexpr (requires { m.graphs; }) did->graphs += m.graphs;
      if constexpr (requires { m.together; }) did->together += m.together, did->levelled += m.levelled;
      if constexpr (requires { m.batches; }) did->batches += m.batches;
      if constexpr (requires { m.rounds; }) did->rounds += m.rounds;
      if constexpr (requires { m.moves; }) did->moves += m.moves, did->kept += m.kept;
    }
    return std::nullopt;
  } catch (const Broken& b) {
    return Failure{at, b.what};
  } catch (const std::exception& e) {  // a call that may not fail here did
    return Failure{at, e.what()};
  }
}

/// One script of `n` operations. The letters' frequencies are those of their string.
inline Script make(const std::string& machine, std::uint64_t seed, std::size_t n) {
  memra_test::Rng rng(seed);
  const std::string letters = machine == "cache"   ? "ffffffffffffffgggghhhbwwassssssrrrrrrrrrrdmzppptuuxxvqqqqql"
                              : machine == "draft" ? "bbbbbbbbbbbbccckkkkttttttteeeeeiiiggnvlppppu"
                              : machine == "round" ? "ffffkkkkkkkkkkkkbbnnnsssrrrrzdml"
                                                   : "ffffffggkkkkkksssssrrrrrrzpppxxyyyllleee";
  Script s;
  s.machine = machine;
  for (int i = 0; i < 6; ++i) s.setup.push_back(rng.next() % 84);
  for (std::size_t i = 0; i < n; ++i) {
    Op op;
    op.code = letters[rng.next() % letters.size()];
    op.a = rng.next() % 64;
    op.b = rng.next() % 64;
    op.c = rng.next() % 64;
    op.fault = rng.next() % 4 == 0 ? 1 + rng.next() % 215 : 0;
    s.ops.push_back(op);
  }
  return s;
}

/// Every kind of thing happened, or a run says nothing.
inline bool did_enough(const Did& did, const std::string& machine) {
  const auto once_in = [&](std::size_t n, std::size_t count) { return count > did.ops / n; };
  const bool troubled =
      once_in(machine == "late" ? 1000 : 100, did.refusals) && once_in(50, did.faults) && once_in(200, did.taints);
  const bool taken_back = once_in(200, did.replays) && once_in(500, did.stale);
  if (machine == "round") {
    return troubled && taken_back && once_in(5, did.rounds) && once_in(20, did.together) &&
           once_in(5000, did.levelled) && once_in(50, did.batches);
  }
  if (!troubled || !once_in(500, did.published)) return false;
  if (machine == "draft") return once_in(1000, did.moves) && did.kept >= did.ops / 10000;
  return machine != "cache" || (taken_back && once_in(8000, did.lapped) && once_in(50, did.graphs));
}

}  // namespace property
