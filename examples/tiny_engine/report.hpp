// The summary of the main job: what was committed, how fast, in how many bytes, and whether both outputs agree.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <string>
#include <tiny_engine/decoder.hpp>
#include <vector>

namespace tiny {

/// Outcome of comparing two outputs.
struct Verdict {
  bool identical = false;
  std::string sentence;
};

/// The only maker of a verdict: compares token for token, then the bytes of the state both runs ended in.
inline Verdict compare(const std::vector<std::int32_t>& plain, const std::vector<std::int32_t>& speculative,
                       const std::vector<std::byte>& plain_state, const std::vector<std::byte>& speculative_state) {
  const auto [a, b] = std::mismatch(plain.begin(), plain.end(), speculative.begin(), speculative.end());
  if (a != plain.end() || b != speculative.end()) {
    const auto at = std::to_string(a - plain.begin());
    const std::string x = a == plain.end() ? "nothing" : "token " + std::to_string(*a);
    const std::string y = b == speculative.end() ? "nothing" : "token " + std::to_string(*b);
    return {false, "DIFFERENT: at token " + at + " plain decoding has " + x + ", speculative decoding has " + y};
  }
  if (plain_state != speculative_state) {
    return {false, "DIFFERENT: all " + std::to_string(plain.size()) +
                       " tokens agree, but the states (K, V, conv, ssm, positions) do not"};
  }
  return {true, "identical: " + std::to_string(plain.size()) + " tokens and all " + std::to_string(plain_state.size()) +
                    " committed bytes of state agree"};
}

namespace internal {

inline double per(double a, double b) {
  return b > 0 ? a / b : 0;
}
inline double as_double(std::size_t n) {
  return static_cast<double>(n);
}

}  // namespace internal

inline void print_rate(const char* name, const Generated& g) {
  const double n = internal::as_double(g.tokens.size());
  std::printf("%-12s %zu tokens, %.0f tokens/s, %.3f trunk calls per token", name, g.tokens.size(),
              internal::per(n, g.seconds), internal::per(internal::as_double(g.trunk_calls), n));
  if (!g.rounds.empty()) {
    const double committed = internal::as_double(std::accumulate(g.rounds.begin(), g.rounds.end(), std::size_t{0}));
    std::printf(", %.2f committed per round (%zu rounds, %zu rows replayed)",
                internal::per(committed, internal::as_double(g.rounds.size())), g.rounds.size(), g.replayed);
  }
  std::printf("\n");
}

/// Shares of a generation's host time. `times` are the trunk's over the same generation.
inline void print_shares(const char* name, const Generated& g, const TrunkTimes& times) {
  const auto share = [&](double s) { return 100 * internal::per(s, g.seconds); };
  std::printf("%-12s", name);
  if (g.draft > 0) {
    std::printf("draft %.1f %%, verify %.1f %%, replay %.1f %%, ingest %.1f %%;", share(g.draft), share(g.verify),
                share(g.replay), share(g.ingest));
  }
  std::printf(" state bookkeeping %.1f %%, state ops %.1f %%, rest of the trunk %.1f %%\n",
              share(g.state + times.state), share(times.state_ops),
              share(times.forward - times.state - times.state_ops));
}

}  // namespace tiny
