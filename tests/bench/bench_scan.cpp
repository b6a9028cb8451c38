// Host delta scan and convolution: what T tokens in one call cost against T calls of one token.
//
// Both are checked against T single calls, bit for bit, before anything is timed. Times are medians of
// processor time; the lengths take turns, so that a busy machine meets all of them. Build with -O3 -march=native and
// run on one core.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memra/host_ops.hpp>
#include <support/planes.hpp>
#include <vector>

namespace {

constexpr std::array<std::size_t, 4> lengths = {1, 4, 8, 16};
constexpr std::size_t dim = 128;
constexpr std::size_t d_conv = 4;

/// Floats in memory aligned as the planes of a cache are.
class Floats {
 public:
  Floats() = default;
  Floats(const std::vector<float>& values) : size_(values.size()) {  // NOLINT(google-explicit-constructor)
    memra::HostDev dev;
    buffer_ = memra::check(dev.alloc(size_ * sizeof(float)));
    std::copy(values.begin(), values.end(), data());
  }
  float* data() const { return reinterpret_cast<float*>(buffer_.data()); }
  std::size_t size() const { return size_; }
  std::vector<float> values() const { return {data(), data() + size_}; }

 private:
  memra::HostDev::Buffer buffer_;
  std::size_t size_ = 0;
};

struct Layer {
  std::size_t n_k, n_v;
  Floats conv, ssm, x, weight, y, q, k, v, g, beta, out;

  Layer(std::size_t nk, std::size_t nv) : n_k(nk), n_v(nv) {
    memra_test::Rng rng(1);
    const std::size_t rows = lengths.back();
    const std::size_t channels = view(0).conv_dim();
    const auto magnitudes = [&](float scale) {
      std::vector<float> r = rng.vector(rows * n_v, scale);
      for (float& e : r) e = std::fabs(e);
      return r;
    };
    conv = rng.vector(channels * (d_conv - 1));
    ssm = rng.vector(n_v * dim * dim, 0.1F);
    x = rng.vector(rows * channels);
    weight = rng.vector(channels * d_conv);
    y = std::vector<float>(rows * channels);
    q = rng.vector(rows * n_k * dim, 0.15F);
    k = rng.vector(rows * n_k * dim, 0.15F);
    v = rng.vector(rows * n_v * dim);
    g = magnitudes(0.01F);
    for (std::size_t i = 0; i < g.size(); ++i) g.data()[i] = -g.data()[i];
    beta = magnitudes(1.0F);
    out = std::vector<float>(rows * n_v * dim);
  }

  memra::RecurView view(std::size_t rows) {
    memra::RecurView r;
    r.conv = conv.data();
    r.ssm = ssm.data();
    r.n_k_heads = n_k;
    r.n_v_heads = n_v;
    r.d_k = r.d_v = dim;
    r.d_conv = d_conv;
    r.rows = rows;
    return r;
  }

  void scan(std::size_t first, std::size_t rows) {
    memra::ScanArgs a;
    a.q = q.data() + first * n_k * dim;
    a.k = k.data() + first * n_k * dim;
    a.v = v.data() + first * n_v * dim;
    a.g = g.data() + first * n_v;
    a.beta = beta.data() + first * n_v;
    a.out = out.data() + first * n_v * dim;
    memra::HostDev dev;
    memra::check(memra::ops_for<memra::HostDev>(dev).delta_scan(view(rows), a));
  }

  void convolve(std::size_t first, std::size_t rows) {
    const std::size_t channels = view(0).conv_dim();
    memra::HostDev dev;
    memra::check(memra::ops_for<memra::HostDev>(dev).conv_update(
        view(rows), {x.data() + first * channels, weight.data(), nullptr, y.data() + first * channels, true}));
  }
};

double seconds(auto&& work) {
  const std::clock_t start = std::clock();
  work();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

void print(const char* what, std::array<std::vector<double>, lengths.size()>& times, double bytes) {
  double one = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    std::sort(times[i].begin(), times[i].end());
    const double t = times[i][times[i].size() / 2];
    if (i == 0) one = t;
    std::printf("  %s T=%-2zu %8.1f us, T*t(1)/t(T) %.2f, state moved at %.1f GB/s\n", what, lengths[i], t * 1e6,
                static_cast<double>(lengths[i]) * one / t, bytes / t * 1e-9);
  }
}

void report(std::size_t n_k, std::size_t n_v, std::size_t repeats) {
  Layer whole(n_k, n_v);
  Layer single(n_k, n_v);
  whole.scan(0, lengths.back());
  whole.convolve(0, lengths.back());
  for (std::size_t t = 0; t < lengths.back(); ++t) {
    single.scan(t, 1);
    single.convolve(t, 1);
  }
  const auto same = [](const Floats& a, const Floats& b) { return memra_test::same_bits(a.values(), b.values()); };
  if (!same(whole.out, single.out) || !same(whole.ssm, single.ssm) || !same(whole.y, single.y) ||
      !same(whole.conv, single.conv)) {
    std::printf("T tokens in one call differ from T calls\n");
    std::exit(1);
  }
  std::array<std::vector<double>, lengths.size()> scan, conv;
  for (std::size_t i = 0; i < repeats; ++i) {
    for (std::size_t j = 0; j < lengths.size(); ++j) {
      Layer& l = whole;
      scan[j].push_back(seconds([&] { l.scan(0, lengths[j]); }));
      conv[j].push_back(seconds([&] { l.convolve(0, lengths[j]); }));
    }
  }
  std::printf("%zu value heads, %zu key heads, d%zu, d_conv %zu\n", n_v, n_k, dim, d_conv);
  print("scan", scan, 2.0 * 4.0 * static_cast<double>(whole.ssm.size()));
  print("conv", conv, 2.0 * 4.0 * static_cast<double>(whole.conv.size()));
}

}  // namespace

int main() {
  report(16, 32, 101);
  report(16, 48, 101);
  return 0;
}
