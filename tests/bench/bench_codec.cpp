// Codec speed on one core: GB/s of f32 data, and the ratio to a copy of the same f32 bytes in the same run.
//
//   c++ -std=c++20 -O3 -march=native -Iinclude tests/bench/bench_codec.cpp -o bench_codec && ./bench_codec [seconds]
//
// Every result is compared with the scalar twin before it is timed. The working set (1 MiB of f32) fits the last-level
// cache, as rows that an engine has just computed do.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memra/codec.hpp>
#include <random>
#include <vector>

namespace {

constexpr std::size_t width = 1024;
constexpr std::size_t rows = 256;
constexpr double f32_bytes = 4.0 * width * rows;

/// Hides what `p` points at from the optimiser, so that no run can be skipped.
void escape(const void* p) {
  __asm__ volatile("" : : "r"(p) : "memory");
}

/// Median seconds of one call over `seconds` of calls.
template <class Fn>
double median_seconds(double seconds, const Fn& fn) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> samples;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (samples.size() < 15 || Clock::now() < end) {
    const auto start = Clock::now();
    fn();
    samples.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2), samples.end());
  return samples[samples.size() / 2];
}

struct Planes {
  std::vector<std::byte> bytes;
  memra::PlaneView view;
};
Planes make_plane(memra::Format format, memra::Layout layout) {
  Planes p;
  const memra::PlaneShape shape{format, layout, rows, width};
  p.bytes.resize(memra::sub_planes(shape).bytes + 8);
  p.view = {p.bytes.data(), shape, 0};
  return p;
}

template <memra::Format F>
bool matches_scalar(const Planes& plane, const std::vector<float>& x, const std::vector<float>& y) {
  Planes twin = make_plane(F, plane.view.shape.layout);
  std::vector<float> z(y.size());
  const memra::ConstPlaneView read = twin.view;
  constexpr std::size_t elems = memra::facts(F).block_elems;
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t b = 0; b < width / elems; ++b) {  // by block: rows of a split plane lie in columns
      const std::size_t at = r * width + b * elems;
      memra::detail::scalar_encode_blocks<F>(x.data() + at, 1,
                                             memra::detail::row_cursor<memra::detail::BlockCursor>(twin.view, r, b));
      memra::detail::scalar_decode_blocks<F>(memra::detail::row_cursor<memra::detail::ConstBlockCursor>(read, r, b), 1,
                                             z.data() + at);
    }
  }
  return twin.bytes == plane.bytes && std::memcmp(z.data(), y.data(), z.size() * 4) == 0;
}

template <memra::Format F>
bool run(memra::Layout layout, double seconds, const std::vector<float>& x, double copy_seconds) {
  Planes plane = make_plane(F, layout);
  std::vector<float> y(x.size());
  const auto encode = [&] {
    for (std::size_t r = 0; r < rows; ++r) memra::encode_row(plane.view, r, x.data() + r * width);
    escape(plane.bytes.data());
  };
  const auto decode = [&] {
    for (std::size_t r = 0; r < rows; ++r) memra::decode_row(plane.view, r, 0, width, y.data() + r * width);
    escape(y.data());
  };
  encode();
  decode();
  if (!matches_scalar<F>(plane, x, y)) {
    std::printf("%s %s: differs from the scalar twin\n", memra::to_string(F).data(), memra::to_string(layout).data());
    return false;
  }
  const double e = median_seconds(seconds, encode);
  const double d = median_seconds(seconds, decode);
  std::printf("%-5s %-6s  encode %6.2f GB/s  %4.2f of a copy   decode %6.2f GB/s  %4.2f of a copy\n",
              memra::to_string(F).data(), memra::to_string(layout).data(), f32_bytes / e * 1e-9, copy_seconds / e,
              f32_bytes / d * 1e-9, copy_seconds / d);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  using memra::Format;
  using memra::Layout;
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.2;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> x(width * rows);
  for (float& v : x) v = normal(random);
  std::vector<float> to(x.size());
  const double copy = median_seconds(seconds, [&] {
    std::memcpy(to.data(), x.data(), x.size() * 4);
    escape(to.data());
  });
  std::printf("copy of the f32 bytes: %.2f GB/s (%.0f KiB, median)\n", f32_bytes / copy * 1e-9, f32_bytes / 1024);
  bool ok = true;
  for (const Layout layout : {Layout::blocks, Layout::split}) {
    ok &= run<Format::q8_0>(layout, seconds, x, copy);
    ok &= run<Format::q5_1>(layout, seconds, x, copy);
    ok &= run<Format::q4_0>(layout, seconds, x, copy);
  }
  ok &= run<Format::f16>(Layout::blocks, seconds, x, copy);
  ok &= run<Format::bf16>(Layout::blocks, seconds, x, copy);
  ok &= run<Format::fp8_e4m3>(Layout::blocks, seconds, x, copy);
  return ok ? 0 : 1;
}
