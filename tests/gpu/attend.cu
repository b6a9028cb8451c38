// attend on tensor cores: against float64 and the host, and each row's bits as its own.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memra/cuda/ops.cuh>
#include <memra/host_ops.hpp>
#include <support/catch.hpp>
#include <support/op_cases.hpp>

#include "support.hpp"

namespace attend_cu {
namespace {

using namespace memra_test;
using F = memra::Format;
using L = memra::Layout;

std::vector<float> floats(const Bytes& b) {
  std::vector<float> x(b.size() / 4);
  std::memcpy(x.data(), b.data(), x.size() * 4);
  return x;
}

/// ||a - b|| / ||b||; NaN if anything is.
double distance(const std::vector<float>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double d = 0;
  double n = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    d += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    n += b[i] * b[i];
  }
  return std::sqrt(d / n);
}

std::vector<double> doubles(const std::vector<float>& x) {
  return {x.begin(), x.end()};
}

float as_bf16(float x) {
  return memra::detail::bf16_to_f32(memra::detail::f32_to_bf16(x));
}

/// Attention of rows [pos, pos + t) in float64 over the decoded planes; with `bf16`, as attention in bf16 rounds it:
/// q, k, v and the weights.
std::vector<double> reference(const AttendOn<memra::HostDev>& a, std::size_t pos, std::size_t t, bool bf16) {
  const KvShape& s = a.s;
  std::vector<float> k(a.len * a.ks.width);
  std::vector<float> v(a.len * a.vs.width);
  const memra::ConstPlaneView kp{a.k.data(), a.ks, s.base};
  const memra::ConstPlaneView vp{a.v.data(), a.vs, s.base};
  for (std::size_t r = s.base; r < a.len; ++r) {
    memra::decode_row(kp, r - s.base, 0, a.ks.width, k.data() + r * a.ks.width);
    memra::decode_row(vp, r - s.base, 0, a.vs.width, v.data() + r * a.vs.width);
  }
  const auto round = [&](float x) { return static_cast<double>(bf16 ? as_bf16(x) : x); };
  std::vector<double> out(t * s.n_heads * s.dv);
  for (std::size_t row = 0; row < t; ++row) {
    const std::size_t hi = pos + row + 1;
    const std::size_t lo = std::max(s.base, s.window == 0 || s.window > hi ? 0 : hi - s.window);
    for (std::size_t h = 0; h < s.n_heads; ++h) {
      const std::size_t kv = h / (s.n_heads / s.n_kv);
      const float* q = a.q_host.data() + ((pos + row) * s.n_heads + h) * s.dk;
      std::vector<double> p(hi);
      double top = -std::numeric_limits<double>::infinity();
      for (std::size_t r = lo; r < hi; ++r) {
        double x = 0;
        for (std::size_t d = 0; d < s.dk; ++d) x += round(q[d]) * round(k[r * a.ks.width + kv * s.dk + d]);
        p[r] = x * 0.125;
        top = std::max(top, p[r]);
      }
      double l = 0;
      double* y = out.data() + (row * s.n_heads + h) * s.dv;
      for (std::size_t r = lo; r < hi; ++r) {
        const double w = std::exp(p[r] - top);
        l += w;
        for (std::size_t d = 0; d < s.dv; ++d) {
          y[d] += round(static_cast<float>(w)) * round(v[r * a.vs.width + kv * s.dv + d]);
        }
      }
      for (std::size_t d = 0; d < s.dv; ++d) y[d] /= l;
    }
  }
  return out;
}

std::vector<KvShape> tuned_shapes() {
  std::vector<KvShape> all;
  const std::array<std::pair<F, F>, 7> pairs{{{F::q8_0, F::q5_1},
                                              {F::q8_0, F::q8_0},
                                              {F::q8_0, F::q4_0},
                                              {F::q4_0, F::q4_0},
                                              {F::f16, F::f16},
                                              {F::bf16, F::bf16},
                                              {F::fp8_e4m3, F::fp8_e4m3}}};
  for (const auto& [k, v] : pairs) {
    for (const std::size_t d : {std::size_t{64}, std::size_t{128}, std::size_t{256}, std::size_t{512}}) {
      KvShape s;
      s.k_format = k;
      s.v_format = v;
      s.dk = s.dv = d;
      s.rows = 700;
      s.layout = d == 64 ? L::blocks : L::split;
      s.n_heads = d == 64 ? 6 : d == 128 ? 16 : d == 256 ? 20 : 2;  // 3, 8, 10 and 1 of one kv head
      s.window = d == 256 ? 333 : 0;
      all.push_back(s);
    }
  }
  KvShape mixed;  // widths that differ
  mixed.dk = 256;
  mixed.dv = 128;
  mixed.rows = 700;
  mixed.layout = L::split;
  all.push_back(mixed);
  return all;
}

std::string name_of(const KvShape& s) {
  return std::string(memra::to_string(s.k_format)) + "/" + std::string(memra::to_string(s.v_format)) + " d" +
         std::to_string(s.dk) + "/" + std::to_string(s.dv) + " heads " + std::to_string(s.n_heads) + "/" +
         std::to_string(s.n_kv) + " window " + std::to_string(s.window);
}

TEST_CASE("the error against float64 is at most that of bf16 attention on the same values", "[attend]") {
  memra::CudaDev dev = make_cuda();
  memra::HostDev host;
  std::array<double, 2> worst{};
  double most = 0;
  for (const KvShape& s : tuned_shapes()) {
    INFO(name_of(s));
    const AttendOn<memra::CudaDev> a(dev, s, 650, 5);
    const AttendOn<memra::HostDev> b(host, s, 650, 5);
    for (const std::size_t pos : {std::size_t{0}, std::size_t{250}, std::size_t{647}}) {
      const std::size_t t = pos == 647 ? 3 : 2;
      const std::vector<double> exact = reference(b, pos, t, false);
      std::vector<float> rough;
      for (const double x : reference(b, pos, t, true)) rough.push_back(static_cast<float>(x));
      const double ours = distance(floats(a.run(dev, pos, t)), exact);
      const double theirs = distance(rough, exact);
      const bool bf16 = s.v_format == F::bf16;
      CHECK(ours <= theirs + 1e-6);
      worst[bf16 ? 1 : 0] = std::max(worst[bf16 ? 1 : 0], ours);
      most = std::max(most, theirs);
      // The host's definition is the same function.
      CHECK(distance(floats(a.run(dev, pos, t)), doubles(floats(b.run(host, pos, t)))) < (bf16 ? 6e-3 : 1e-3));
    }
  }
  CHECK(worst[0] > 1e-6);  // a copy of the reference would be nearer
  std::printf("attend: largest error against float64 %.2e, of bf16 planes %.2e, of bf16 attention %.2e\n", worst[0],
              worst[1], most);
}

/// T rows in one call and one by one, and the same call again.
template <class Dev>
bool rows_are_their_own(Dev& dev, const AttendOn<Dev>& a, std::size_t pos, std::size_t t) {
  const Bytes together = a.run(dev, pos, t);
  Bytes single;
  for (std::size_t i = 0; i < t; ++i) join(single, a.run(dev, pos + i, 1));
  return together == single && together == a.run(dev, pos, t);
}

TEST_CASE("a row's bits are its own, for 1 to 16 rows and more", "[attend]") {
  memra::CudaDev dev = make_cuda();
  for (const KvShape& s : tuned_shapes()) {
    INFO(name_of(s));
    const AttendOn<memra::CudaDev> a(dev, s, 650, 6);
    for (std::size_t t = 1; t <= 16; ++t) {
      CHECK(rows_are_their_own(dev, a, 100 + 29 * t, t));
    }
    CHECK(rows_are_their_own(dev, a, 0, 3));
    CHECK(rows_are_their_own(dev, a, 610, 37));  // passes
    CHECK_FALSE((a.run(dev, 300, 2) == a.run(dev, 301, 2)));
  }
}

TEST_CASE("rows behind the last change no bit, be they NaN", "[attend]") {
  memra::CudaDev dev = make_cuda();
  for (KvShape s : tuned_shapes()) {
    for (const L layout : {L::blocks, L::split}) {
      s.layout = layout;
      INFO(name_of(s) << " " << memra::to_string(layout));
      const AttendOn<memra::CudaDev> written(dev, s, 650, 6);
      const AttendOn<memra::CudaDev> last(dev, s, 429, 6);  // the same rows, and NaN behind them
      CHECK((written.run(dev, 428, 1) == last.run(dev, 428, 1)));
      CHECK((written.run(dev, 420, 9) == last.run(dev, 420, 9)));
    }
  }
}

TEST_CASE("every kernel once", "[attend]") {
  memra::CudaDev dev = make_cuda();
  for (KvShape s : tuned_shapes()) {
    INFO(name_of(s));
    s.rows = 160;
    const AttendOn<memra::CudaDev> a(dev, s, 150, 8);
    for (const std::size_t t : {std::size_t{1}, std::size_t{3}, std::size_t{16}}) {
      const std::vector<float> x = floats(a.run(dev, 130, t));
      CHECK(std::all_of(x.begin(), x.end(), [](float y) { return std::isfinite(y); }));
    }
  }
}

TEST_CASE("planes of fewer rows than a step has keys, in both layouts", "[attend]") {
  memra::CudaDev dev = make_cuda();
  memra::HostDev host;
  for (KvShape s : tuned_shapes()) {
    s.rows = 24;
    // Four heads of 64 share a column of q8_0's or q4_0's scales; rows of three of 128 are not whole columns, those of
    // q5_1 are, and threads copy both.
    if (s.dk == 64) s.n_heads = 12, s.n_kv = 4;
    if (s.dk == 128) s.n_heads = 6, s.n_kv = 3;
    for (const L layout : std::array<L, 2>{L::blocks, L::split}) {
      s.layout = layout;
      INFO(name_of(s) << " " << memra::to_string(layout));
      const AttendOn<memra::CudaDev> a(dev, s, 20, 9);
      const AttendOn<memra::HostDev> b(host, s, 20, 9);
      CHECK(rows_are_their_own(dev, a, 15, 5));
      CHECK(distance(floats(a.run(dev, 15, 5)), doubles(floats(b.run(host, 15, 5)))) <
            (s.v_format == F::bf16 ? 6e-3 : 1e-3));
    }
  }
}

TEST_CASE("rows on both sides of a rung of the key grid, windows across chunks and far from the start", "[attend]") {
  memra::CudaDev dev = make_cuda();
  memra::HostDev host;
  KvShape s;  // 32 kv heads: at most 33 chunks; of 128 keys up to 4,096, then of 256, then of 320
  s.n_heads = 64;
  s.n_kv = 32;
  s.dk = s.dv = 64;
  s.rows = 8700;
  s.layout = L::split;
  using memra::detail::attend_long_chunk;
  const std::size_t border = memra::detail::attend_long_keys;
  const std::size_t full = memra::detail::cuda_attend_chunks(s.n_kv, s.dv) * attend_long_chunk;
  REQUIRE(full == 33 * 256);
  AttendOn<memra::CudaDev> a(dev, s, 8690, 6);
  AttendOn<memra::HostDev> b(host, s, 8690, 6);
  for (const std::size_t window :
       {std::size_t{0}, std::size_t{5}, std::size_t{3000}, border - 128, border, std::size_t{5000}}) {
    INFO("window " << window);
    a.s.window = b.s.window = window;
    // Behind a window there is one chunk less for the keys it shows: 32 of 128 keys are `border`.
    for (const std::size_t at :
         {border, border - 128, std::min(window + 1, border), full - attend_long_chunk, full, std::size_t{8600}}) {
      INFO("around " << at);
      for (const std::size_t t : {std::size_t{2}, std::size_t{5}, std::size_t{16}}) {
        CHECK(rows_are_their_own(dev, a, at < t ? 0 : at - t / 2, t));
      }
      const std::size_t from = at < 2 ? 0 : at - 2;
      CHECK(distance(floats(a.run(dev, from, 4)), doubles(floats(b.run(host, from, 4)))) < 1e-3);
    }
  }
}

TEST_CASE("a captured call gives the bits of the call, at other positions too", "[attend]") {
  memra::CudaDev dev = make_cuda();
  KvShape s;
  s.n_heads = 16;
  s.dk = s.dv = 128;
  s.rows = 700;
  s.layout = L::split;
  const AttendOn<memra::CudaDev> a(dev, s, 650, 7);
  const std::size_t t = 4;
  const std::size_t bytes = memra::detail::attend_scratch_bytes(s.n_heads, s.n_kv, s.dk, s.dv, t);
  const OnDev<memra::CudaDev> scratch(dev, bytes);
  const OnDev<memra::CudaDev> out(dev, t * s.n_heads * s.dv * 4);
  const OnDev<memra::CudaDev> q(dev, a.q_host);
  const OnDev<memra::CudaDev> pos_d(dev, std::vector<std::int32_t>{0});
  const memra::KvReadView view{{a.k.data(), a.ks, 0},         {a.v.data(), a.vs, 0}, s.n_kv, s.dk, s.dv, 0,
                               {pos_d.ints(), t, 640, s.rows}};
  memra::check(dev.begin_capture());
  memra::check(memra::ops_for<memra::CudaDev>(dev).attend(view, {q.floats(), out.floats(), s.n_heads, 0.125F},
                                                          {scratch.data(), bytes}));
  const auto graph = memra::check(dev.end_capture());
  for (const std::int32_t pos : {0, 255, 300, 640}) {
    memra::check(dev.store_i32(pos_d.ints(), &pos, 1));
    const auto at = static_cast<std::size_t>(pos);
    memra::check(dev.copy(q.data(), a.q.data() + at * s.n_heads * s.dk * 4, t * s.n_heads * s.dk * 4));
    memra::check(dev.replay(graph));
    Bytes got = out.bytes();
    got.resize(t * s.n_heads * s.dv * 4);
    CHECK((got == a.run(dev, at, t)));
  }
}

/// As AttendOn, with rows of V (or K) that `change` has put its hands on, on both devices.
struct Changed {
  AttendOn<memra::CudaDev> cuda;
  AttendOn<memra::HostDev> host;

  template <class Change>
  Changed(memra::CudaDev& dev, memra::HostDev& host_dev, const KvShape& s, bool keys, const Change& change)
      : cuda(dev, s, 300, 9), host(host_dev, s, 300, 9) {
    const memra::PlaneShape& shape = keys ? host.ks : host.vs;
    Plane p(shape.format, shape.layout, shape.rows, shape.width);
    Rng rng(77);
    for (std::size_t r = 0; r < 300; ++r) {
      std::vector<float> x = rng.vector(shape.width, 2.0F);
      change(r, x);
      memra::encode_row(p.view(), r, x.data());
    }
    std::memcpy(keys ? host.k.data() : host.v.data(), p.bytes().data(), p.bytes().size());
    memra::check(dev.upload(keys ? cuda.k.data() : cuda.v.data(), p.bytes().data(), p.bytes().size()));
  }
};

/// Whether the error against float64 is at most that of bf16 attention on the same values.
bool nearer_than_bf16(memra::CudaDev& dev, const Changed& c, std::size_t pos, std::size_t t) {
  const std::vector<double> exact = reference(c.host, pos, t, false);
  std::vector<float> rough;
  for (const double x : reference(c.host, pos, t, true)) rough.push_back(static_cast<float>(x));
  const double theirs = distance(rough, exact);
  CHECK(theirs > 0);
  return distance(floats(c.cuda.run(dev, pos, t)), exact) <= theirs + 1e-6;
}

KvShape plain_shape(F k, F v, std::size_t d) {
  KvShape s;
  s.k_format = k;
  s.v_format = v;
  s.n_heads = 6;
  s.dk = s.dv = d;
  s.rows = 320;
  s.layout = L::split;
  return s;
}

TEST_CASE("values beyond what halves hold", "[attend]") {
  memra::CudaDev dev = make_cuda();
  memra::HostDev host;
  for (const auto& [k, v] : {std::pair{F::q8_0, F::q5_1}, std::pair{F::q8_0, F::q8_0}, std::pair{F::q4_0, F::q4_0}}) {
    for (const std::size_t d : {std::size_t{64}, std::size_t{128}, std::size_t{256}}) {
      const KvShape s = plain_shape(k, v, d);
      INFO(name_of(s));
      // Among ordinary values some of 300,000: 1,000 times what would do without.
      const Changed values(dev, host, s, false, [v = v](std::size_t r, std::vector<float>& x) {
        if (r % 37 == 5) x[r % x.size()] = 3e5F;
        if (v != F::q5_1 && r % 41 == 7) x[(r * 7) % x.size()] = -2e5F;  // as q5_1's offset it would be infinite
      });
      CHECK(nearer_than_bf16(dev, values, 250, 5));
      CHECK(rows_are_their_own(dev, values.cuda, 250, 5));
      const Changed keys(dev, host, s, true, [](std::size_t r, std::vector<float>& x) {
        if (r % 37 == 5) x[r % x.size()] = 1e5F;  // its key takes all weight of some queries, and none of others
      });
      CHECK(nearer_than_bf16(dev, keys, 250, 5));
      CHECK(rows_are_their_own(dev, keys.cuda, 250, 5));
    }
  }
}

TEST_CASE("what only later rows see does not reach earlier ones, be it infinite", "[attend]") {
  memra::CudaDev dev = make_cuda();
  memra::HostDev host;
  const std::pair<F, F> pairs[] = {{F::q8_0, F::q5_1},        {F::q8_0, F::q8_0}, {F::q8_0, F::q4_0},
                                   {F::q4_0, F::q4_0},        {F::f16, F::f16},   {F::bf16, F::bf16},
                                   {F::fp8_e4m3, F::fp8_e4m3}};
  for (const auto& [k, v] : pairs) {
    for (const std::size_t d : {std::size_t{64}, std::size_t{128}, std::size_t{256}}) {
      for (const std::size_t window : {std::size_t{0}, std::size_t{20}}) {
        KvShape s = plain_shape(k, v, d);
        s.window = window;
        INFO(name_of(s));
        const float bad = std::numeric_limits<float>::quiet_NaN();
        for (const bool keys : {false, true}) {
          const Changed c(dev, host, s, keys, [&](std::size_t r, std::vector<float>& x) {
            if (r == 262 || r == 245) std::fill(x.begin(), x.end(), bad);
          });
          const std::vector<float> x = floats(c.cuda.run(dev, 260, 12));
          CHECK(rows_are_their_own(dev, c.cuda, 260, 12));
          const std::vector<float> y = floats(c.host.run(host, 260, 12));
          std::size_t not_finite = 0;
          std::size_t told_apart = 0;
          for (std::size_t i = 0; i < x.size(); ++i) {
            not_finite += std::isfinite(y[i]) ? 0U : 1U;
            told_apart += std::isfinite(x[i]) == std::isfinite(y[i]) ? 1U : 0U;
          }
          CHECK(told_apart == x.size());
          // Encoders of some formats have a value for NaN.
          if (k == F::f16 || k == F::bf16) CHECK(not_finite > 0);
          if (window != 0) {
            const Changed late(dev, host, s, keys, [&](std::size_t r, std::vector<float>& y) {
              if (r == 263) std::fill(y.begin(), y.end(), bad);
            });
            const std::vector<float> z = floats(late.cuda.run(dev, 261, 4));
            const Bytes first = late.cuda.run(dev, 261, 2);
            CHECK(std::memcmp(z.data(), first.data(), first.size()) == 0);
            CHECK(std::all_of(z.begin(), z.begin() + static_cast<std::ptrdiff_t>(2 * s.n_heads * s.dv),
                              [](float w) { return std::isfinite(w); }));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace attend_cu
