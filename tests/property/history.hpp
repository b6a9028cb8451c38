// One history: a script's operations on a machine, what happened in it, and how random scripts are made.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <property/script.hpp>
#include <span>
#include <string>
#include <string_view>
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
  std::size_t attended = 0;
  std::size_t chunks = 0;
  std::size_t adopted = 0;
  std::size_t pairs = 0;
  std::size_t handed = 0;
  std::size_t turned = 0;
  std::size_t asked = 0;
  std::size_t tails = 0;
};

/// A word of the script language. What its numbers a, b, c choose is in the machine; a fault meets one of its calls.
struct Word {
  char letter;
  unsigned often;  ///< of the sum of its machine's
  std::string_view what;
};
inline constexpr std::array<Word, 20> cache_words{{
    {'f', 14, "a step: every layer is written, then advance; now and then given up half way"},
    {'c', 2, "a chunked step, where it stands or behind the steps that lead to the grid"},
    {'b', 3, "begin_step alone"},
    {'w', 2, "one layer of the open step is written"},
    {'a', 1, "advance"},
    {'s', 6, "snapshot, or snapshot_into one that is held"},
    {'r', 10, "rollback"},
    {'d', 1, "a snapshot is dropped"},
    {'m', 1, "a snapshot is moved"},
    {'z', 1, "reset"},
    {'p', 3, "park_logits"},
    {'t', 1, "arm_taps"},
    {'u', 2, "take_taps"},
    {'x', 2, "export_prefix and from_prefix; the history may go on with what was made"},
    {'o', 1, "send_state and receive_state, with harm on the way; the history may go on with what was received"},
    {'v', 1, "the cache is moved"},
    {'g', 4, "steps on the device, then catch_up"},
    {'h', 3, "a step is recorded and queued again, then a snapshot, rollback or export asks"},
    {'q', 5, "repair: back to a valid snapshot, or reset"},
    {'l', 1, "look closely"},
}};
inline constexpr std::array<Word, 13> draft_words{{
    {'b', 13, "begin_rows, written, mostly committed"},
    {'c', 3, "commit"},
    {'k', 4, "begin_block"},
    {'t', 7, "truncate"},
    {'m', 2, "may_truncate, then truncate or not"},
    {'e', 5, "export_tail"},
    {'i', 3, "from_tail; the history may go on with what was made"},
    {'g', 2, "from_tail of a tail that lies"},
    {'n', 1, "create_cold_at"},
    {'v', 1, "it is moved"},
    {'l', 1, "look closely"},
    {'p', 4, "pin"},
    {'u', 1, "unpin"},
}};
inline constexpr std::array<Word, 12> round_words{{
    {'f', 4, "a step"},
    {'c', 2, "a chunked step, where it stands or behind the steps that lead to the grid"},
    {'k', 12, "a round, committed"},
    {'b', 2, "rounds of three caches, two of them attend in one launch, committed together"},
    {'n', 3, "a round that is given up"},
    {'o', 1, "send_state of trunk and draft and receive_state; the history goes on with what was received"},
    {'s', 3, "snapshot"},
    {'r', 4, "rollback"},
    {'z', 1, "reset"},
    {'d', 1, "a draft cache comes along, leaves, or its speculation is moved"},
    {'m', 1, "the batch parts, or one of its caches is moved"},
    {'l', 1, "look closely"},
}};
inline constexpr std::array<Word, 16> late_words{{
    {'f', 6, "a step"},
    {'g', 2, "a step on the device"},
    {'k', 6, "a round"},
    {'s', 5, "snapshot"},
    {'r', 6, "rollback, and one to a later snapshot before what is owed was fed"},
    {'z', 1, "reset"},
    {'p', 3, "park_logits"},
    {'x', 2, "export_prefix and from_prefix"},
    {'y', 3, "from_prefix of what was exported before"},
    {'o', 2, "send_state of the cache or of what was exported before, and receive_state"},
    {'d', 4, "a draft cache comes along or leaves"},
    {'b', 1, "its rows of a block"},
    {'t', 2, "export_tail and from_tail, or pin"},
    {'i', 2, "from_tail of what was exported before; it may come along"},
    {'l', 3, "everything is waited for and compared"},
    {'e', 3, "what is queued is run, and nobody asks how that went; with some faults so is what is written next"},
}};
inline std::span<const Word> words_of(std::string_view machine) {
  if (machine == "cache") return cache_words;
  if (machine == "draft") return draft_words;
  if (machine == "round") return round_words;
  return late_words;
}

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
      if constexpr (requires { m.together; }) did->together += m.together;
      if constexpr (requires { m.levelled; }) did->levelled += m.levelled;
      if constexpr (requires { m.batches; }) did->batches += m.batches, did->attended += m.attended;
      if constexpr (requires { m.rounds; }) did->rounds += m.rounds;
      if constexpr (requires { m.chunks; }) did->chunks += m.chunks;
      if constexpr (requires { m.adopted; }) did->adopted += m.adopted, did->pairs += m.pairs;
      if constexpr (requires { m.handed; }) did->handed += m.handed;
      if constexpr (requires { m.tails; }) did->tails += m.tails;
      if constexpr (requires { m.turned; }) did->turned += m.turned;
      if constexpr (requires { m.asked; }) did->asked += m.asked;
      if constexpr (requires { m.moves; }) did->moves += m.moves, did->kept += m.kept;
    }
    return std::nullopt;
  } catch (const Broken& b) {
    return Failure{at, b.what};
  } catch (const std::exception& e) {  // a call that may not fail here did
    return Failure{at, e.what()};
  }
}

/// One script of `n` operations, each word as often as it says.
inline Script make(const std::string& machine, std::uint64_t seed, std::size_t n) {
  memra_test::Rng rng(seed);
  const std::span<const Word> words = words_of(machine);
  unsigned all = 0;
  for (const Word& w : words) all += w.often;
  Script s;
  s.machine = machine;
  for (int i = 0; i < 6; ++i) s.setup.push_back(rng.next() % 84);
  for (std::size_t i = 0; i < n; ++i) {
    Op op;
    unsigned pick = rng.next() % all;
    const Word* word = words.data();
    for (; pick >= word->often; ++word) pick -= word->often;
    op.code = word->letter;
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
           once_in(5000, did.levelled) && once_in(50, did.batches) && once_in(200, did.attended) &&
           once_in(200, did.handed) && once_in(1000, did.tails) && once_in(200, did.chunks);
  }
  if (!troubled || !once_in(500, did.published)) return false;
  if (machine == "draft") return once_in(1000, did.moves) && did.kept >= did.ops / 10000 && once_in(50, did.asked);
  if (!once_in(2000, did.handed)) return false;
  if (machine == "late") {
    return once_in(20, did.together) && once_in(500, did.moves) && did.kept >= did.ops / 10000 &&
           once_in(500, did.tails);
  }
  const bool made = once_in(100, did.adopted) && once_in(1000, did.pairs) && once_in(2000, did.turned);
  return taken_back && once_in(8000, did.lapped) && once_in(50, did.graphs) && once_in(500, did.chunks) && made;
}

}  // namespace property
