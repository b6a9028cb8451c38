// Host rounds: what taking 8 of 16 tokens costs by every strategy, for 48 recurrent layers, against the scan itself.
//
// conv 10240 x 3 and ssm 48 x 128 x 128 per layer: 156.9 MB of state. Every strategy's state after the commit is
// checked against single plain tokens, bit for bit, before anything is timed. Times are medians of processor time; the
// strategies take turns, so that a busy machine meets all of them. Build with -O3 -march=native and run on one core.
// An argument is the number of layers (default 48): each needs about 60 MB for the planes.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memra/cache.hpp>
#include <memra/host_ops.hpp>
#include <memra/round_cost.hpp>
#include <support/planes.hpp>
#include <vector>

namespace {

using memra::Strategy;
using Cache = memra::Cache<memra::HostDev>;

constexpr std::size_t rows = 16;
constexpr std::size_t accept = 8;
constexpr std::array<Strategy, 3> strategies = {Strategy::replay, Strategy::planes, Strategy::stash};

/// Inputs of `rows` tokens, the same for every layer.
struct Inputs {
  memra::RecurrentSpec spec;
  std::size_t width;
  std::vector<float> x, weight, y, q, k, v, g, beta, out;

  explicit Inputs(const memra::RecurrentSpec& r) : spec(r), width(2 * r.d_k * r.n_k_heads + r.d_v * r.n_v_heads) {
    memra_test::Rng rng(1);
    x = rng.vector(rows * width);
    weight = rng.vector(width * r.d_conv);
    y.resize(rows * width);
    q = rng.vector(rows * r.n_k_heads * r.d_k, 0.1F);
    k = rng.vector(rows * r.n_k_heads * r.d_k, 0.1F);
    v = rng.vector(rows * r.n_v_heads * r.d_v);
    g = rng.vector(rows * r.n_v_heads, 0.05F);
    for (float& e : g) e = -std::fabs(e);
    beta = rng.vector(rows * r.n_v_heads);
    for (float& e : beta) e = std::fabs(e);
    out.resize(v.size());
  }

  /// conv and scan of tokens [first, first + view.rows) for one layer.
  void run(memra::HostDev& dev, const memra::RecurView& view, std::size_t first) {
    const memra::ops_for<memra::HostDev> ops(dev);
    memra::check(ops.conv_update(view, {x.data() + first * width, weight.data(), nullptr, y.data(), true}));
    memra::ScanArgs a;
    a.q = q.data() + first * spec.n_k_heads * spec.d_k;
    a.k = k.data() + first * spec.n_k_heads * spec.d_k;
    a.v = v.data() + first * spec.n_v_heads * spec.d_v;
    a.g = g.data() + first * spec.n_v_heads;
    a.beta = beta.data() + first * spec.n_v_heads;
    a.out = out.data();
    memra::check(ops.delta_scan(view, a));
  }
};

double seconds(auto&& work) {
  const std::clock_t start = std::clock();
  work();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

double median(std::vector<double>& v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

void feed(Cache& c, Inputs& in, std::size_t first, std::size_t n) {
  auto step = memra::check(c.begin_step(n));
  for (std::size_t il = 0; il < c.n_layer(); ++il) in.run(c.dev(il), memra::check(step.recur(il)), first);
  memra::check(c.advance());
}

struct Times {
  std::vector<double> begin, verify, commit, replay, home;
};

/// One round from position 0; the replay, and the way home of the current plane, are timed too.
void run_round(Cache& c, Inputs& in, Strategy by, Times* t) {
  std::array<double, 5> s{};
  memra::check(c.reset());
  {
    std::vector<memra::Round<memra::HostDev>> r;
    s[0] = seconds([&] { r.push_back(memra::check(c.begin_round(rows, by))); });
    s[1] = seconds([&] {
      for (std::size_t il = 0; il < c.n_layer(); ++il) in.run(c.dev(il), memra::check(r[0].recur(il)), 0);
    });
    memra::RolledBack left;
    s[2] = seconds([&] { left = memra::check(r[0].commit(accept)); });
    s[3] = seconds([&] {
      if (left.replay != 0) feed(c, in, 0, left.replay);
    });
  }
  if (t == nullptr) return;
  // A planes round's successor that is none: what copying the chosen plane back in every commit would cost.
  if (by == Strategy::planes) s[4] = seconds([&] { memra::check(c.begin_step(1)); });
  t->begin.push_back(s[0]);
  t->verify.push_back(s[1]);
  t->commit.push_back(s[2]);
  t->replay.push_back(s[3]);
  t->home.push_back(s[4]);
}

bool same_state(const Cache& a, const Cache& b) {
  for (std::size_t il = 0; il < a.n_layer(); ++il) {
    const auto x = *a.recur(il);
    const auto y = *b.recur(il);
    if (std::memcmp(x.conv, y.conv, x.conv_elems() * sizeof(float)) != 0 ||
        std::memcmp(x.ssm, y.ssm, x.ssm_elems() * sizeof(float)) != 0) {
      return false;
    }
  }
  return a.pos() == b.pos();
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t layers = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 48;
  memra::RecurrentSpec spec;
  spec.n_k_heads = 16;
  spec.n_v_heads = 48;
  spec.d_k = spec.d_v = 128;
  spec.d_conv = 4;
  memra::ModelConfig cfg;
  for (std::size_t i = 0; i < layers; ++i) cfg.layers.push_back(memra::recurrent(spec));
  memra::HostDev dev;
  memra::CacheOptions options;
  options.rounds.rows = rows;
  options.rounds.replay = options.rounds.planes = options.rounds.stash = true;
  Cache c = memra::check(Cache::create(dev, cfg, 64, options));
  Cache plain = memra::check(Cache::create(dev, cfg, 64));
  Inputs in(spec);
  for (std::size_t t = 0; t < accept; ++t) feed(plain, in, t, 1);
  for (const Strategy by : strategies) {
    run_round(c, in, by, nullptr);
    if (!same_state(c, plain)) {
      std::printf("%s differs from plain tokens\n", to_string(by).data());
      return 1;
    }
  }

  std::array<Times, 3> times;
  std::vector<double> copy, scan_all, scan_kept;
  auto kept = memra::check(dev.alloc(c.plan().totals.snapshot_bytes));
  auto live = memra::check(dev.zeros(c.plan().totals.snapshot_bytes));
  for (int i = 0; i < 7; ++i) {
    for (std::size_t s = 0; s < 3; ++s) run_round(c, in, strategies[s], &times[s]);
    memra::check(plain.reset());
    scan_all.push_back(seconds([&] { feed(plain, in, 0, rows); }));
    memra::check(plain.reset());
    scan_kept.push_back(seconds([&] { feed(plain, in, 0, accept); }));
    copy.push_back(seconds([&] { memra::check(dev.copy(kept.data(), live.data(), kept.size())); }));
  }
  const double one_copy = median(copy);
  const double all = median(scan_all);
  const double eight = median(scan_kept);
  std::printf("%zu layers, %.1f MB of state, %zu rows, %zu accepted\n", layers,
              1e-6 * static_cast<double>(c.plan().totals.snapshot_bytes), rows, accept);
  std::printf("  one contiguous copy %.2f ms; conv and scan of %zu rows %.2f ms, of %zu rows %.2f ms\n", 1e3 * one_copy,
              rows, 1e3 * all, accept, 1e3 * eight);
  double replay_total = 0;
  for (std::size_t s = 0; s < 3; ++s) {
    Times& t = times[s];
    const double begin = median(t.begin), verify = median(t.verify), commit = median(t.commit),
                 replay = median(t.replay), home = median(t.home);
    const double taking_back = begin + commit + replay;
    const double total = taking_back + verify;
    if (s == 0) replay_total = total;
    std::printf(
        "  %-7s begin %7.3f ms, verify %7.2f (%.2f of the scan), commit %7.3f, replay %6.2f; begin + commit + replay "
        "%.2f copies, %.2f of the scan of %zu; whole round %.2f of replay's, %.0f MB moved\n",
        to_string(strategies[s]).data(), 1e3 * begin, 1e3 * verify, verify / all, 1e3 * commit, 1e3 * replay,
        taking_back / one_copy, taking_back / eight, accept, total / replay_total,
        1e-6 * static_cast<double>(memra::round_traffic(c.plan(), strategies[s], rows, accept)));
    if (home > 0) {
      std::printf("          bringing the current plane home: %.2f ms, %.2f copies\n", 1e3 * home, home / one_copy);
    }
  }
  return 0;
}
