// attend over rings and latent rows: a ring gives the bits of a flat plane, latent rows those of float64 and of a V
// plane of their own.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memra/codec.hpp>
#include <memra/host_ops.hpp>
#include <memra/portable_ops.hpp>
#include <string>
#include <support/attend_case.hpp>
#include <support/catch.hpp>
#include <support/planes.hpp>
#include <vector>

namespace kinds_attend_cpp {
namespace {

using memra::Format;
using memra::Layout;
using memra_test::max_error;
using memra_test::Plane;
using memra_test::Rng;
using memra_test::same_bits;
using memra_test::Scratch;

struct PortableHost : memra::HostDev {
  using kernels = memra::PortableKernels;
};

/// A stream of K and V rows that goes through `append` in calls of `step` rows, each attended at once.
struct Stream {
  std::size_t n_heads = 6;
  std::size_t n_kv = 2;
  std::size_t dk = 32;
  std::size_t dv = 64;
  Format k_format = Format::q8_0;
  Format v_format = Format::q5_1;
  Layout layout = Layout::blocks;
  std::size_t window = 0;
  bool v_in_k = false;
  std::size_t rows = 300;

  template <class Dev>
  std::vector<float> run(std::size_t phys_rows, bool ring, std::size_t step, std::uint64_t seed = 3) const {
    Rng rng(seed);
    const auto k_in = rng.vector(rows * n_kv * dk, 2.0F);
    const auto v_in = rng.vector(rows * n_kv * dv, 2.0F);
    const auto q = rng.vector(rows * n_heads * dk, 2.0F);
    std::vector<float> out(rows * n_heads * dv, std::nanf(""));
    Plane k(k_format, layout, phys_rows, n_kv * dk);
    Plane v(v_format, layout, phys_rows, n_kv * dv);
    Dev dev;
    const memra::ops_for<Dev> ops(dev);
    const auto scratch_bytes = [&](std::size_t t) {
      return memra::detail::attend_scratch_bytes(n_heads, n_kv, dk, dv, t);
    };
    Scratch scratch(scratch_bytes(std::min(step, rows)));
    for (std::size_t pos = 0; pos < rows; pos += step) {
      const std::size_t t = std::min(step, rows - pos);
      const auto pos_d = static_cast<std::int32_t>(pos);
      memra::KvWriteView w{k.view(), v.view(), n_kv, dk, dv, {&pos_d, t, pos, rows}, v_in_k};
      memra::KvReadView r{k.view(), v.view(), n_kv, dk, dv, window, {&pos_d, t, pos, rows}, v_in_k};
      w.k.ring = r.k.ring = ring;
      w.v.ring = r.v.ring = ring;
      if (v_in_k) w.v = {};
      if (v_in_k) r.v = {};
      memra::check(ops.append(w, k_in.data() + pos * n_kv * dk, v_in_k ? nullptr : v_in.data() + pos * n_kv * dv));
      const memra::AttendArgs a{q.data() + pos * n_heads * dk, out.data() + pos * n_heads * dv, n_heads, 0.17F};
      memra::check(ops.attend(r, a, scratch.fresh(scratch_bytes(t))));
    }
    return out;
  }
};

TEST_CASE("a ring gives the bits of a flat plane, in calls of any size that it takes", "[ops][attend][ring]") {
  for (const Format f : memra::all_formats) {
    for (const Layout layout : {Layout::blocks, Layout::split}) {
      for (const std::size_t window : {1U, 5U, 64U, 70U}) {
        Stream s;
        s.k_format = f;
        s.v_format = memra::all_formats[(static_cast<std::size_t>(f) + 2) % memra::all_formats.size()];
        s.layout = layout;
        s.window = window;
        const std::vector<float> flat = s.run<memra::HostDev>(s.rows, false, 1);
        for (const std::size_t ring : {64U, 128U}) {
          if (ring < window) continue;
          for (const std::size_t step : {std::size_t{1}, std::size_t{7}, ring - (window - 1)}) {
            CAPTURE(memra::to_string(f), window, ring, step);
            if (step > ring - (window - 1)) continue;
            REQUIRE(same_bits(s.run<memra::HostDev>(ring, true, step), flat));
            if (f == Format::q8_0) REQUIRE(same_bits(s.run<PortableHost>(ring, true, step), flat));
          }
          // Red arm: one row more than it takes, and the first row of a call has lost the end of its window.
          if (f == Format::f32 && window > 1) {
            REQUIRE_FALSE(same_bits(s.run<memra::HostDev>(ring, true, ring - (window - 1) + 1), flat));
          }
        }
      }
    }
  }
}

TEST_CASE("latent rows: V is the first part of K, against float64 and against a V plane", "[ops][attend][latent]") {
  for (const Format f : memra::all_formats) {
    for (const std::size_t rank : {32U, 64U, 512U}) {
      Stream s;
      s.n_kv = 1;
      s.n_heads = 16;
      s.dv = rank;
      s.dk = rank + (f == Format::f32 ? 8U : 32U);  // formats without blocks take any width
      s.k_format = f;
      s.v_in_k = true;
      s.rows = 90;
      CAPTURE(memra::to_string(f), rank);
      const std::vector<float> got = s.run<memra::HostDev>(s.rows, false, 9);
      REQUIRE(same_bits(s.run<memra::HostDev>(s.rows, false, 1), got));
      if (rank == 64) {
        REQUIRE(same_bits(s.run<PortableHost>(s.rows, false, 9), got));
        Stream ring = s;
        ring.window = 40;
        REQUIRE(same_bits(ring.run<memra::HostDev>(64, true, 5), ring.run<memra::HostDev>(s.rows, false, 5)));
      }

      // What the rows decode to, then textbook attention over them in float64.
      Rng rng(3);
      const auto k_in = rng.vector(s.rows * s.dk, 2.0F);
      (void)rng.vector(s.rows * s.dv, 2.0F);
      const auto q = rng.vector(s.rows * s.n_heads * s.dk, 2.0F);
      std::vector<float> k(k_in.size());
      std::vector<std::byte> bytes(memra::row_bytes(f, s.dk));
      for (std::size_t r = 0; r < s.rows; ++r) {
        memra::encode(f, k_in.data() + r * s.dk, bytes.data(), s.dk);
        memra::decode(f, bytes.data(), k.data() + r * s.dk, s.dk);
      }
      std::vector<double> want(got.size());
      for (std::size_t row = 0; row < s.rows; ++row) {
        for (std::size_t h = 0; h < s.n_heads; ++h) {
          std::vector<double> weight(row + 1);
          double top = -1e300;
          for (std::size_t key = 0; key <= row; ++key) {
            double dot = 0;
            for (std::size_t d = 0; d < s.dk; ++d) {
              dot += static_cast<double>(q[(row * s.n_heads + h) * s.dk + d]) * static_cast<double>(k[key * s.dk + d]);
            }
            weight[key] = dot * static_cast<double>(0.17F);
            top = std::max(top, weight[key]);
          }
          double sum = 0;
          for (double& w : weight) sum += w = std::exp(w - top);
          double* o = want.data() + (row * s.n_heads + h) * s.dv;
          for (std::size_t key = 0; key <= row; ++key) {
            for (std::size_t d = 0; d < s.dv; ++d) o[d] += weight[key] / sum * static_cast<double>(k[key * s.dk + d]);
          }
        }
      }
      REQUIRE(max_error(got, want) < 2e-4);  // scores of size 100 in f32
      want[7] += 0.01;
      REQUIRE(max_error(got, want) > 2e-3);  // red arm
    }
  }
}

TEST_CASE("K and V of different widths, heads and formats against float64", "[ops][attend]") {
  for (const auto& [dk, dv] :
       std::array<std::pair<std::size_t, std::size_t>, 4>{{{192, 128}, {128, 192}, {64, 32}, {32, 256}}}) {
    memra_test::AttendShape s;
    s.n_heads = 8;
    s.n_kv = 4;
    s.dk = dk;
    s.dv = dv;
    s.k_format = Format::q5_1;
    s.v_format = Format::q4_0;
    s.window = dk == 64 ? 20 : 0;
    const memra_test::AttendCase c(s, 150, 10, dk + dv);
    CAPTURE(dk, dv);
    REQUIRE(max_error(c.run(140, 10), c.oracle(140, 10)) < 1e-4);
    REQUIRE(same_bits(c.run(140, 10), c.run_single(140, 10)));
  }
}

TEST_CASE("append and attend refuse views that are not whole", "[ops][attend][ring]") {
  memra::HostDev dev;
  const memra::ops_for<memra::HostDev> ops(dev);
  const std::int32_t pos = 0;
  std::vector<float> x(64 * 64);
  Plane k(Format::f32, Layout::blocks, 64, 32);
  Plane v(Format::f32, Layout::blocks, 64, 32);
  const memra::KvWriteView good{k.view(), v.view(), 1, 32, 32, {&pos, 2, 0, 64}, false};
  REQUIRE(ops.append(good, x.data(), x.data()).ok());
  const auto refused = [&](auto change, const char* words) {
    memra::KvWriteView w = good;
    change(w);
    const memra::Status s = ops.append(w, x.data(), x.data());
    INFO(s.text());
    return s.kind() == memra::ErrorKind::bad_argument && std::string(s.text()).find(words) != std::string::npos;
  };
  REQUIRE(refused([](auto& w) { w.v = {}; }, "null"));  // a plane that was forgotten is no latent row
  REQUIRE(refused([](auto& w) { w.v_in_k = true; }, "none for V"));
  REQUIRE(refused([](auto& w) { w.v = {}, w.v_in_k = true, w.head_dim_v = 33; }, "fewer"));
  REQUIRE(refused([](auto& w) { w.k.ring = true; }, "ring"));
  REQUIRE(refused([](auto& w) { w.k.ring = w.v.ring = true, w.k.shape.rows = w.v.shape.rows = 63; }, "ring"));
  REQUIRE(refused([](auto& w) { w.k.ring = w.v.ring = true, w.at.rows = 65; }, "ring"));
  Scratch scratch(1 << 20);
  memra::KvReadView keys{k.view(), {}, 1, 32, 0, 0, {&pos, 1, 0, 64}, true};
  std::vector<float> out(64);
  const memra::Status s = ops.attend(keys, {x.data(), out.data(), 1, 1.0F}, scratch.view());
  REQUIRE(std::string(s.text()).find("indexer") != std::string::npos);
}

}  // namespace
}  // namespace kinds_attend_cpp
