// Sequences of one geometry that attend together or each alone, on any device with kernels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memra/attend_batch.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/ops.hpp>
#include <support/op_cases.hpp>
#include <vector>

namespace memra_test {

/// Where one sequence of a call stands; a position below 0 is one that ran out of rows.
struct Turn {
  std::int32_t pos = 0;
  std::size_t rows = 1;
};

/// Layers of one shape that differ in length, rows of their planes and contents, and their positions on the device.
template <class Dev>
struct BatchOn {
  std::vector<AttendOn<Dev>> members;
  std::vector<OnDev<Dev>> pos_d;

  /// @param lens  rows written of each; its planes have some more
  BatchOn(Dev& dev, const KvShape& shape, const std::vector<std::size_t>& lens, std::uint64_t seed) {
    for (std::size_t i = 0; i < lens.size(); ++i) {
      KvShape s = shape;
      if (!s.ring) s.rows = lens[i] - s.base + 3 + i;
      members.emplace_back(dev, s, lens[i], seed + 7 * i);
      pos_d.emplace_back(dev, std::vector<std::int32_t>{0});
    }
  }

  const KvShape& shape() const { return members[0].s; }

  memra::KvReadView view(std::size_t i) const {
    const AttendOn<Dev>& a = members[i];
    const std::size_t held = a.s.rows + a.s.base;
    memra::KvReadView view{{a.k.data(), a.ks, a.s.base, a.s.ring},
                           {a.v.data(), a.vs, a.s.base, a.s.ring},
                           a.s.n_kv,
                           a.s.dk,
                           a.s.dv,
                           a.s.window,
                           {pos_d[i].ints(), 0, a.s.ring ? a.len : held, a.s.ring ? a.len : held},
                           a.s.v_in_k};
    if (a.s.v_in_k) view.v = {};
    return view;
  }
  std::vector<memra::KvReadView> views() const {
    std::vector<memra::KvReadView> all;
    for (std::size_t i = 0; i < members.size(); ++i) all.push_back(view(i));
    return all;
  }

  void move_to(Dev& dev, const std::vector<Turn>& turns) const {
    for (std::size_t i = 0; i < turns.size(); ++i) memra::check(dev.store_i32(pos_d[i].ints(), &turns[i].pos, 1));
  }
  static std::vector<std::size_t> rows(const std::vector<Turn>& turns) {
    std::vector<std::size_t> r;
    for (const Turn& t : turns) r.push_back(t.rows);
    return r;
  }
  static std::size_t most(const std::vector<Turn>& turns) {
    std::size_t n = 1;
    for (const Turn& t : turns) n = std::max(n, t.rows);
    return n;
  }
  std::size_t out_bytes(std::size_t rows) const { return rows * shape().n_heads * shape().dv * 4; }

  /// Query rows of all sequences, one behind the other: what the members have at their positions.
  std::vector<float> queries(const std::vector<Turn>& turns) const {
    std::vector<float> q;
    for (std::size_t i = 0; i < turns.size(); ++i) {
      const std::size_t row = shape().n_heads * shape().dk;
      const auto at = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(std::max(turns[i].pos, 0)) * row);
      const auto from = members[i].q_host.begin() + at;
      q.insert(q.end(), from, from + static_cast<std::ptrdiff_t>(turns[i].rows * row));
    }
    return q;
  }

  /// The outputs of one call, those of all sequences one behind the other.
  Bytes together(Dev& dev, const std::vector<Turn>& turns) const {
    auto batch = memra::check(memra::AttendBatch<Dev>::create(dev, views(), most(turns)));
    memra::check(batch.set_rows(rows(turns)));
    return run(dev, batch, turns);
  }
  Bytes run(Dev& dev, const memra::AttendBatch<Dev>& batch, const std::vector<Turn>& turns) const {
    move_to(dev, turns);
    std::size_t all = 0;
    for (const Turn& t : turns) all += t.rows;
    const OnDev<Dev> q(dev, queries(turns));
    const OnDev<Dev> out(dev, out_bytes(all));
    const std::size_t bytes = batch.workspace_bytes(shape().n_heads);
    const OnDev<Dev> scratch(dev, bytes);
    memra::check(memra::ops_for<Dev>(dev).attend_batch(
        memra::check(batch.layer(0)), {q.floats(), out.floats(), shape().n_heads, 0.125F}, {scratch.data(), bytes}));
    const Bytes beyond = scratch.bytes();
    for (std::size_t i = bytes; i < beyond.size(); ++i) {
      if (beyond[i] != std::byte{0xFF}) return {};  // written behind its end
    }
    return out.bytes();
  }

  /// The same rows, a call of attend each, and what lies behind them.
  Bytes alone(Dev& dev, const std::vector<Turn>& turns) const {
    Bytes all;
    for (std::size_t i = 0; i < turns.size(); ++i) {
      if (turns[i].rows == 0) continue;
      if (turns[i].pos >= 0) {
        join(all, members[i].run(dev, static_cast<std::size_t>(turns[i].pos), turns[i].rows));
      } else {
        all.resize(all.size() + out_bytes(turns[i].rows));
      }
    }
    all.resize(all.size() + 64, std::byte{0xFF});
    return all;
  }
};

/// Five sequences of a shape with `base + 3` to `base + 89` rows, in one launch: positions and row counts of all kinds.
template <class Dev>
Bytes run_attend_batch(Dev& dev, const KvShape& s, std::uint64_t seed) {
  const BatchOn<Dev> b(dev, s, {s.base + 89, s.base + 5, s.base + 70, s.base + 40, s.base + 66}, seed);
  const auto at = static_cast<std::int32_t>(s.base);
  Bytes all = b.together(dev, {{at + 88, 1}, {at, 5}, {at + 60, 0}, {-3, 2}, {at + 49, 17}});
  join(all, b.together(dev, {{at + 80, 9}, {at + 4, 1}, {at + 69, 1}, {at + 39, 1}, {at + 65, 1}}));
  return all;
}

}  // namespace memra_test
