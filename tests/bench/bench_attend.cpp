// Host attention over q8_0 / q5_1: rows per second of one row, and what eight rows in one call cost.
//
// The result is checked against float64 before anything is timed. Times are medians of processor time, so that other
// programs on the machine count less; the ratio compares two times of one run. Build with -O3 -march=native and run on
// one core.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <support/attend_case.hpp>
#include <vector>

namespace {

using memra_test::AttendCase;
using memra_test::AttendShape;

double median_seconds(const AttendCase& c, std::size_t rows, std::size_t repeats) {
  const std::size_t pos = c.total - rows;
  const auto pos_d = static_cast<std::int32_t>(pos);
  const AttendShape& s = c.shape;
  std::vector<float> out(rows * s.n_heads * s.dv);
  memra_test::Scratch scratch(memra::detail::attend_scratch_bytes(s.n_heads, s.n_kv, s.dk, s.dv, rows));
  memra::HostDev dev;
  const memra::ops_for<memra::HostDev> ops(dev);
  const memra::AttendArgs a{c.q.data() + pos * s.n_heads * s.dk, out.data(), s.n_heads, c.scale};
  std::vector<double> times;
  for (std::size_t i = 0; i < repeats; ++i) {
    const std::clock_t start = std::clock();
    memra::check(ops.attend(c.view(&pos_d, rows), a, scratch.view()));
    times.push_back(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void report(std::size_t n_heads, std::size_t n_kv, std::size_t dim, std::size_t keys, std::size_t repeats) {
  AttendShape s;
  s.n_heads = n_heads;
  s.n_kv = n_kv;
  s.dk = s.dv = dim;
  const AttendCase c(s, keys, 0, 1);
  const double error = memra_test::max_error(c.run(keys - 8, 8), c.oracle(keys - 8, 8));
  if (!(error < 2e-5)) {
    std::printf("attend is wrong: error %g against float64\n", error);
    std::exit(1);
  }
  // Warm up, then one and eight rows in turn, so that a busy machine meets both.
  median_seconds(c, 1, 2);
  std::vector<double> one, eight;
  for (std::size_t i = 0; i < repeats; ++i) {
    one.push_back(median_seconds(c, 1, 3));
    eight.push_back(median_seconds(c, 8, 1));
  }
  std::sort(one.begin(), one.end());
  std::sort(eight.begin(), eight.end());
  const double t1 = one[one.size() / 2];
  const double t8 = eight[eight.size() / 2];
  std::printf(
      "%zu heads, %zu kv, d%zu, %zu keys, q8_0/q5_1: error %.1e, 1 row %.2f ms (%.0f rows/s), 8 rows %.2f ms (%.0f "
      "rows/s), ratio %.2f\n",
      n_heads, n_kv, dim, keys, error, t1 * 1e3, 1 / t1, t8 * 1e3, 8 / t8, t8 / t1);
}

}  // namespace

int main() {
  report(64, 8, 128, 4096, 15);
  report(16, 2, 256, 4096, 15);
  return 0;
}
