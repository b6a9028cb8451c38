// Random histories of Cache and DflashKv against models of the rules; "round" is a Cache in rounds of every strategy,
// "late" one whose devices fail afterwards.
//
//   memra_property cache|draft|round|late [--ops N] [--seed S]   random scripts; a failure is shrunk, printed as a line
//   memra_property replay "LINE"                            runs such a line again
//   memra_property words                                    what the letters of a line do
//   memra_property self-test                                planted bugs are found, shrunk, and found again from their
//   line
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <property/cache_machine.hpp>
#include <property/draft_machine.hpp>
#include <property/history.hpp>
#include <property/late_machine.hpp>
#include <property/round_machine.hpp>
#include <property/script.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace {

using property::CachePlant;
using property::Did;
using property::DraftPlant;
using property::Failure;
using property::LatePlant;
using property::make;
using property::RoundPlant;
using property::run_on;
using property::Script;

/// A bug to be planted, in the machine that knows it.
struct Planted {
  CachePlant cache = CachePlant::none;
  DraftPlant draft = DraftPlant::none;
  LatePlant late = LatePlant::none;
  RoundPlant round = RoundPlant::none;
};

/// Whether the machine is in this program: tests/mutants.sh builds one at a time.
constexpr bool in_program(std::string_view machine) {
#ifdef MEMRA_ONLY_MACHINE
  return machine == MEMRA_ONLY_MACHINE;
#else
  return !machine.empty();
#endif
}

/// A template, so that what is left out is not compiled. The last number of a setup says which devices.
template <class S>
std::optional<Failure> run_with(const S& s, const Planted& plant, Did* did) {
  const bool other = !s.setup.empty() && s.setup.back() % 2 == 1;
  if constexpr (in_program("late")) {
    if (s.machine == "late") return run_on<property::LateMachine>(s, plant.late, did);
  }
  if constexpr (in_program("round")) {
    if (s.machine == "round" && other) return run_on<property::RoundMachine<property::Guarded>>(s, plant.round, did);
    if (s.machine == "round") return run_on<property::RoundMachine<property::Plain>>(s, plant.round, did);
  }
  if constexpr (in_program("draft")) {
    if (s.machine == "draft" && other) return run_on<property::DraftMachine<property::Late>>(s, plant.draft, did);
    if (s.machine == "draft") return run_on<property::DraftMachine<property::Plain>>(s, plant.draft, did);
  }
  if constexpr (in_program("cache")) {
    if (s.machine == "cache" && other) return run_on<property::CacheMachine<property::Late>>(s, plant.cache, did);
    if (s.machine == "cache") return run_on<property::CacheMachine<property::Plain>>(s, plant.cache, did);
  }
  return Failure{0, "this program has no machine " + s.machine};
}
std::optional<Failure> run(const Script& s, const Planted& plant = {}, Did* did = nullptr) {
  return run_with(s, plant, did);
}

bool is_machine(const std::string& name) {
  return name == "cache" || name == "draft" || name == "round" || name == "late";
}

int report(const Script& s, const Failure& f) {
  const Script small = property::shrink(s, [](const Script& t) { return run(t); });
  const auto again = run(small);
  std::printf("FAILED at operation %zu of %zu: %s\nshrunk to %zu: %s\nreplay: memra_property replay \"%s\"\n", f.op,
              s.ops.size(), f.what.c_str(), small.ops.size(), again ? again->what.c_str() : "?",
              property::to_line(small).c_str());
  return 1;
}

int histories(const std::string& machine, std::size_t ops, std::uint64_t seed) {
  constexpr std::size_t length = 100;
  Did did;
  for (std::uint64_t i = 0; did.ops < ops; ++i) {
    const Script s = make(machine, seed + i, length);
    if (const auto f = run(s, {}, &did)) return report(s, *f);
  }
  std::printf(
      "%s: %zu operations: %zu refused, %zu device failures, %zu taints, %zu replays, %zu snapshots gone stale, "
      "%zu published, %zu rollbacks beyond a ring, %zu rings moved, %zu pinned tails given out, %zu rounds, %zu "
      "graphs replayed, %zu rounds of trunk and draft, %zu drafts brought level, %zu batches of rounds, %zu of "
      "attention, %zu chunked steps, %zu caches in memory of the engine's, %zu of two stages, %zu states handed over, "
      "%zu not taken, %zu with a draft's tail, %zu questions whether a draft may be cut\n",
      machine.c_str(), did.ops, did.refusals, did.faults, did.taints, did.replays, did.stale, did.published, did.lapped,
      did.moves, did.kept, did.rounds, did.graphs, did.together, did.levelled, did.batches, did.attended, did.chunks,
      did.adopted, did.pairs, did.handed, did.turned, did.tails, did.asked);
  const bool enough = property::did_enough(did, machine);
  if (!enough) std::printf("FAILED: some kind of event hardly happened\n");
  return enough ? 0 : 1;
}

/// A planted bug: found within `most` scripts, shrunk to at most `longest` operations, found again from its line, and
/// only there because it was planted.
bool finds(const char* what, const std::string& machine, const Planted& plant, std::size_t longest) {
  constexpr std::uint64_t most = 400;
  const auto planted = [&](const Script& s) { return run(s, plant); };
  for (std::uint64_t seed = 1; seed <= most; ++seed) {
    const Script s = make(machine, seed, 100);
    if (!planted(s)) continue;
    const Script small = property::shrink(s, planted);
    const std::string line = property::to_line(small);
    std::printf("%s: script %u, shrunk to %zu operations: %s\n", what, static_cast<unsigned>(seed), small.ops.size(),
                line.c_str());
    const auto read = property::parse_line(line);
    const bool good = read && *read == small && planted(*read) && !run(*read) && small.ops.size() <= longest;
    if (!good) std::printf("FAILED: not replayed from its line, not due to the bug, or longer than %zu\n", longest);
    return good;
  }
  std::printf("FAILED: NOT NOTICED: %s\n", what);
  return false;
}

int self_test() {
  bool good = true;
  const auto cache = [&](const char* what, CachePlant p, std::size_t longest) {
    good = finds(what, "cache", {p, {}, {}, {}}, longest) && good;
  };
  const auto draft = [&](const char* what, DraftPlant p, std::size_t longest) {
    good = finds(what, "draft", {{}, p, {}, {}}, longest) && good;
  };
  const auto late = [&](const char* what, LatePlant p, std::size_t longest) {
    good = finds(what, "late", {{}, {}, p, {}}, longest) && good;
  };
  const auto round = [&](const char* what, RoundPlant p, std::size_t longest) {
    good = finds(what, "round", {{}, {}, {}, p}, longest) && good;
  };
  cache("a rollback leaves a byte of conv behind", CachePlant::conv_not_restored, 3);
  cache("snapshot_into does nothing", CachePlant::refresh_does_nothing, 4);
  cache("an accept that is too large is cut", CachePlant::accept_is_clamped, 3);
  cache("a failed export leaks", CachePlant::export_leaks, 4);
  cache("advance forgets a stage's position", CachePlant::mirror_forgotten, 2);
  cache("an engine does not say that it replayed", CachePlant::replay_untold, 1);
  cache("a chunked step is fed as a plain one", CachePlant::chunks_are_plain, 1);
  cache("a received cache has another byte", CachePlant::sent_is_spoiled, 2);
  cache("a byte beside the engine's memory changes", CachePlant::margin_is_written, 1);
  draft("truncate keeps one row", DraftPlant::truncate_keeps_one, 3);
  draft("rows below a tail are not zero", DraftPlant::tail_rows_not_zeroed, 5);
  draft("commit counts a block", DraftPlant::block_is_committed, 3);
  draft("a move spoils a row", DraftPlant::move_spoils_a_row, 5);
  draft("a pinned tail is taken late", DraftPlant::pinned_row_is_late, 9);
  draft("may_truncate is asked about other rows", DraftPlant::question_is_answered, 3);
  late("an engine goes on after an asynchronous failure", LatePlant::doubt_is_ignored, 3);
  late("it keeps rows that were not waited for", LatePlant::rows_are_trusted, 5);
  late("it throws a failure away", LatePlant::failure_is_lost, 3);
  late("it keeps a draft that was not waited for", LatePlant::draft_is_trusted, 9);
  round("a commit by planes keeps one token more", RoundPlant::keeps_one_more, 1);
  round("a commit by stash leaves a byte of conv behind", RoundPlant::stash_forgets_conv, 1);
  round("an accept length on the device is one less", RoundPlant::device_is_told_less, 1);
  round("a round that is given up is kept", RoundPlant::given_up_is_kept, 1);
  round("the tokens of a commit that failed are believed", RoundPlant::failure_is_forgotten, 2);
  round("a draft gets the taps of other tokens", RoundPlant::draft_gets_other_taps, 2);
  round("rows of a batch's attention go to the wrong cache", RoundPlant::attend_rows_swapped, 1);
  round("the last cache of a batch is told one token less", RoundPlant::batch_tells_one_less, 1);
  round("a draft's rows arrive with another byte", RoundPlant::sent_tail_is_spoiled, 4);
  round("a chunked step is begun as a plain one", RoundPlant::chunks_are_plain, 1);
  round("a replay goes through a chunk as a plain step", RoundPlant::replay_is_plain, 3);
  for (const char* junk :
       {"", "cache", "cache:1.x", "cache:1 f1.2", "cache:1 f1.2.3!", "cache:1 f1.2.3!x", "cache:1 7"}) {
    if (!property::parse_line(junk)) continue;
    std::printf("FAILED: taken for a script: %s\n", junk);
    good = false;
  }
  return good ? 0 : 1;
}

int usage() {
  std::fprintf(stderr,
               "usage: memra_property cache|draft|round|late [--ops N] [--seed S] | replay LINE | words | self-test\n");
  return 2;
}

int words() {
  std::printf("MACHINE:SETUP WORD...; a word is a letter, three numbers, and after ! which device call fails\n");
  for (const char* machine : {"cache", "draft", "round", "late"}) {
    std::printf("%s\n", machine);
    for (const property::Word& w : property::words_of(machine)) {
      std::printf("  %c  %2u  %.*s\n", w.letter, w.often, static_cast<int>(w.what.size()), w.what.data());
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.empty()) return usage();
  if (args[0] == "self-test" && args.size() == 1) return self_test();
  if (args[0] == "words" && args.size() == 1) return words();
  if (args[0] == "replay" && args.size() == 2) {
    const auto s = property::parse_line(args[1]);
    if (!s || !is_machine(s->machine)) {
      std::fprintf(stderr, "not a script: %s\n", args[1].c_str());
      return 2;
    }
    const auto f = run(*s);
    if (f) std::printf("FAILED at operation %zu: %s\n", f->op, f->what.c_str());
    return f ? 1 : 0;
  }
  if (!is_machine(args[0])) return usage();
  std::size_t ops = 100000;
  std::uint64_t seed = 1;
  for (std::size_t i = 1; i + 1 < args.size(); i += 2) {
    const std::uint64_t n = std::strtoull(args[i + 1].c_str(), nullptr, 10);
    if (args[i] == "--ops") {
      ops = static_cast<std::size_t>(n);
    } else if (args[i] == "--seed") {
      seed = n;
    } else {
      return usage();
    }
  }
  return histories(args[0], ops, seed);
}
