// Row-independent matmul: checked against float64, then timed against a read-bandwidth probe of the same run. Then the
// shipped trunk: a forward of 8 rows against one row, at several positions.
// Usage: bench_matmul [out in]   (build with -O3 -march=native)
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memra/cache.hpp>
#include <memra/error.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <random>
#include <span>
#include <tiny_engine/matmul.hpp>
#include <tiny_engine/model.hpp>
#include <tiny_engine/trunk.hpp>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

/// Best time of `f` over about `seconds`.
template <class F>
double best(double seconds, F&& f) {
  double least = 1e9;
  const double stop = now() + seconds;
  do {
    const double t = now();
    f();
    least = std::min(least, now() - t);
  } while (now() < stop);
  return least;
}

/// Reads every byte once, in four streams, as little work as a core can do with them.
std::uint64_t read_all(const std::byte* p, std::size_t n) {
  typedef std::uint64_t Words __attribute__((vector_size(64)));
  Words sum[4] = {};
  const std::size_t quarter = n / 4 / 64 * 64;
  for (std::size_t i = 0; i < quarter; i += 64) {
    for (std::size_t s = 0; s < 4; ++s) {
      Words w;
      std::memcpy(&w, p + s * quarter + i, sizeof w);
      sum[s] += w;
    }
  }
  const Words all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < 8; ++i) total += all[i];
  return total;
}

double decoded(const std::vector<std::byte>& w, tiny::WeightType type, std::size_t i) {
  if (type == tiny::WeightType::f32) {
    float f;
    std::memcpy(&f, w.data() + 4 * i, 4);
    return static_cast<double>(f);
  }
  std::uint16_t h;
  std::memcpy(&h, w.data() + 2 * i, 2);
  if (type == tiny::WeightType::bf16) {
    const std::uint32_t bits = static_cast<std::uint32_t>(h) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return static_cast<double>(f);
  }
  const int exponent = (h >> 10) & 31;
  const double mantissa = h & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (h & 0x8000) != 0 ? -magnitude : magnitude;
}

std::vector<std::byte> weights(tiny::WeightType type, std::size_t n, std::mt19937& random) {
  std::vector<std::byte> w(n * tiny::weight_bytes(type));
  std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
  for (std::size_t i = 0; i < n; ++i) {
    const float f = uniform(random);
    std::uint32_t bits;
    std::memcpy(&bits, &f, 4);
    if (type == tiny::WeightType::f32) {
      std::memcpy(w.data() + 4 * i, &f, 4);
    } else {
      // bf16: the upper half. f16: a random normal number below 1.
      const std::uint32_t half =
          type == tiny::WeightType::bf16 ? bits >> 16 : ((bits & 0x83ffU) | ((8U + bits % 7U) << 10));
      const auto h = static_cast<std::uint16_t>(half);
      std::memcpy(w.data() + 2 * i, &h, 2);
    }
  }
  return w;
}

void run(const char* name, tiny::WeightType type, std::size_t n_out, std::size_t n_in) {
  std::mt19937 random(1);
  const std::vector<std::byte> w = weights(type, n_out * n_in, random);
  constexpr std::size_t rows = 8;
  std::vector<float> x(rows * n_in);
  std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
  for (float& f : x) f = uniform(random);
  std::vector<float> y(rows * n_out);
  std::vector<float> single(n_out);
  memra::HostDev dev;
  const tiny::MatrixView m{w.data(), type, n_out, n_in};

  memra::check(tiny::matmul(dev, m, x.data(), rows, y.data()));
  double worst = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    memra::check(tiny::matmul(dev, m, x.data() + r * n_in, 1, single.data()));
    if (std::memcmp(single.data(), y.data() + r * n_out, n_out * 4) != 0) {
      std::printf("%s: row %zu alone differs from row %zu of 8\n", name, r, r);
      std::exit(1);
    }
    for (std::size_t o = 0; o < n_out; o += 17) {
      double sum = 0;
      double size = 0;
      for (std::size_t k = 0; k < n_in; ++k) {
        const double p = decoded(w, type, o * n_in + k) * static_cast<double>(x[r * n_in + k]);
        sum += p;
        size += std::fabs(p);
      }
      worst = std::max(worst, std::fabs(sum - static_cast<double>(y[r * n_out + o])) / size);
    }
  }
  if (!(worst < 1e-6)) {
    std::printf("%s: relative error %g against float64\n", name, worst);
    std::exit(1);
  }

  volatile std::uint64_t sink = 0;
  const double bytes = static_cast<double>(w.size());
  double probe = 1e9;
  double one = 1e9;
  double eight = 1e9;
  for (int turn = 0; turn < 3; ++turn) {  // interleaved, so that a noisy neighbour hits all three alike
    probe = std::min(probe, best(0.15, [&] { sink = sink + read_all(w.data(), w.size()); }));
    one = std::min(one, best(0.15, [&] { memra::check(tiny::matmul(dev, m, x.data(), 1, single.data())); }));
    eight = std::min(eight, best(0.15, [&] { memra::check(tiny::matmul(dev, m, x.data(), rows, y.data())); }));
  }
  std::printf(
      "%-5s %5zu x %-5zu %8.1f KiB  error %.1e  probe %6.2f GB/s  one row %6.2f GB/s (%3.0f %%)  8 rows %.2f x one\n",
      name, n_out, n_in, bytes / 1024, worst, bytes / probe * 1e-9, bytes / one * 1e-9, 100 * probe / one, eight / one);
}

/// Forwards of 8 rows and of one row from the same position; rollback puts the state back outside the timed part.
void trunk(std::size_t pos) {
  using Dev = memra::HostDev;
  Dev dev;
  const tiny::ModelFiles files = memra::check(tiny::load_model(MEMRA_DEFAULT_MODEL));
  const auto config = tiny::state_config(files.config, memra::Format::q8_0, memra::Format::q5_1);
  auto cache = memra::check(memra::Cache<Dev>::create(dev, config, pos + 8));
  auto model = memra::check(tiny::Trunk<Dev>::create(files.config, files.weights, cache));
  const std::vector<std::int32_t> block = {84, 104, 101, 32, 76, 79, 82, 68};
  while (cache.pos() < pos) {
    model.forward(cache, std::span(block).first(std::min<std::size_t>(8, pos - cache.pos())), 0);
  }
  auto snapshot = memra::check(cache.snapshot());
  double least[2] = {1e9, 1e9};
  std::vector<float> row;
  for (int turn = 0; turn < 200; ++turn) {
    for (const std::size_t rows : {std::size_t{1}, std::size_t{8}}) {
      const double t = now();
      model.forward(cache, std::span(block).first(rows), 0);
      double& best_time = least[rows == 8];
      best_time = std::min(best_time, now() - t);
      std::vector<float> first = model.logits();
      first.resize(files.config.n_vocab);
      if (row.empty()) row = first;
      if (row != first) {
        std::printf("trunk: row 0 of %zu differs from row 0 alone\n", rows);
        std::exit(1);
      }
      memra::check(memra::check(cache.rollback(snapshot, 0)).replay == 0
                       ? memra::Status()
                       : memra::Status::failure(memra::ErrorKind::bad_state, "bench", 0, 0, "a replay is owed"));
    }
  }
  std::printf("trunk at position %4zu, q8_0/q5_1: one row %.0f us, 8 rows %.0f us: %.2f x one\n", pos, 1e6 * least[0],
              1e6 * least[1], least[1] / least[0]);
}

}  // namespace

int main(int argc, char** argv) {
  struct Shape {
    std::size_t out, in;
  };
  std::vector<Shape> shapes = {{4096, 4096}, {512, 192}, {192, 512}, {260, 192}};
  if (argc == 3) shapes = {{std::strtoull(argv[1], nullptr, 10), std::strtoull(argv[2], nullptr, 10)}};
  for (const Shape& s : shapes) {
    run("bf16", tiny::WeightType::bf16, s.out, s.in);
    run("f16", tiny::WeightType::f16, s.out, s.in);
    run("f32", tiny::WeightType::f32, s.out, s.in);
  }
  for (const std::size_t pos : {std::size_t{64}, std::size_t{512}, std::size_t{2048}}) trunk(pos);
  return 0;
}
