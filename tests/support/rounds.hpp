// What tests of rounds share: caches that paid for every strategy, the straight run they must equal, and one round.
#pragma once

#include <cstddef>
#include <memra/cache.hpp>
#include <span>
#include <support/catch.hpp>
#include <support/op_model.hpp>
#include <support/placements.hpp>
#include <support/stand_in.hpp>
#include <vector>

namespace memra_test::rounds {

using memra::Strategy;
using Cache = memra::Cache<TestDev>;
using Round = memra::Round<TestDev>;

inline constexpr std::size_t ctx = 64;
inline constexpr Strategy strategies[] = {Strategy::replay, Strategy::planes, Strategy::stash};

inline Cache make(Devices& d, const OpModel& m, std::size_t rows, std::size_t place = 0) {
  return memra::check(d.create(placements(m.config().layers.size())[place], m.config(), ctx, all_rounds(rows)));
}

/// A cache without rounds, fed one token at a time: state and outputs that everything must equal.
struct Straight {
  Image state;
  std::vector<float> out;  ///< [tokens][width]
};
inline Straight straight(const OpModel& m, const Tokens& tokens) {
  Straight s;
  TestDev dev;
  Cache c = memra::check(Cache::create(dev, m.config(), ctx));
  std::vector<float> row;
  for (const auto& t : tokens) {
    memra::check(m.feed(c, {&t, 1}, row));
    s.out.insert(s.out.end(), row.begin(), row.end());
  }
  s.state = image(c);
  return s;
}

inline void require_straight(const Cache& c, const OpModel& m, const Tokens& tokens) {
  const auto got = image(c);
  const auto want = straight(m, tokens).state;
  INFO(difference(got, want));
  REQUIRE(got == want);
}

inline std::size_t rows_of(const std::vector<float>& out) {
  return out.size() / OpModel::width;
}
/// The last rows of `out` are the straight run's.
inline bool same_rows(const std::vector<float>& out, const std::vector<float>& all) {
  const auto n = static_cast<std::ptrdiff_t>(out.size());
  return same_bits(out, std::vector<float>(all.end() - n, all.end()));
}

/// Begins a round at the cache's position and verifies `tokens`.
inline Round verify(Cache& c, const OpModel& m, const Tokens& tokens, Strategy by, std::vector<float>* out = nullptr) {
  Round r = memra::check(c.begin_round(tokens.size(), by));
  std::vector<float> rows;
  memra::check(m.forward(c, r.step(), tokens, rows));
  if (out != nullptr) *out = rows;
  return r;
}

/// Commits, and feeds what is owed.
inline void commit(Cache& c, const OpModel& m, Round& r, std::size_t accept, const Tokens& verified) {
  const std::size_t at = r.pos();
  const auto left = memra::check(r.commit(accept));
  REQUIRE(left.pos + left.replay == at + accept);
  if (r.strategy() != Strategy::replay) REQUIRE(left.replay == 0);
  REQUIRE(c.pos() == left.pos);
  if (left.replay != 0) REQUIRE(m.feed(c, part(verified, 0, left.replay)).ok());
  REQUIRE_FALSE(r.open());
}

}  // namespace memra_test::rounds
