// The engine's own kernels against float64, and the rule that rows, tiles and chunks change no bit.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/error.hpp>
#include <memra/host_dev.hpp>
#include <random>
#include <string>
#include <support/catch.hpp>
#include <tiny_engine/gates.hpp>
#include <tiny_engine/matmul.hpp>
#include <tiny_engine/norms.hpp>
#include <tiny_engine/weights.hpp>
#include <vector>

namespace kernels_cpp {
namespace {

using memra::check;

std::mt19937& generator() {
  static std::mt19937 g(11);
  return g;
}
std::vector<float> random_floats(std::size_t n, float lo = -1.0F, float hi = 1.0F) {
  std::uniform_real_distribution<float> uniform(lo, hi);
  std::vector<float> v(n);
  for (float& f : v) f = uniform(generator());
  return v;
}
double wide(float f) {
  return static_cast<double>(f);
}

/// Weights of one type and their exact values.
struct Weights {
  std::vector<std::byte> bytes;
  std::vector<double> values;
};
Weights random_weights(tiny::WeightType type, std::size_t n) {
  Weights w;
  w.bytes.resize(n * tiny::weight_bytes(type));
  for (std::size_t i = 0; i < n; ++i) {
    if (type == tiny::WeightType::f32) {
      const float f = random_floats(1)[0];
      std::memcpy(w.bytes.data() + 4 * i, &f, 4);
      w.values.push_back(wide(f));
      continue;
    }
    auto h = static_cast<std::uint16_t>(generator()());
    double value = 0;
    if (type == tiny::WeightType::bf16) {
      h = static_cast<std::uint16_t>((h & 0x80ffU) | 0x3f00U);  // magnitudes 0.5 to 2
      value = wide(tiny::float_from_bits(static_cast<std::uint32_t>(h) << 16));
    } else {
      h = static_cast<std::uint16_t>(h & 0xbfffU);  // magnitudes below 2, subnormals included
      const int e = h >> 10 & 31;
      value = e == 0 ? std::ldexp(h & 1023, -24) : std::ldexp(1024 + (h & 1023), e - 25);
      if ((h & 0x8000U) != 0) value = -value;
    }
    std::memcpy(w.bytes.data() + 2 * i, &h, 2);
    w.values.push_back(value);
  }
  return w;
}

}  // namespace

TEST_CASE("matmul is right against float64 and independent of its rows") {
  memra::HostDev dev;
  for (const auto type : {tiny::WeightType::f32, tiny::WeightType::f16, tiny::WeightType::bf16}) {
    for (const auto& [n_out, n_in] :
         {std::pair<std::size_t, std::size_t>{1, 1}, {3, 15}, {17, 16}, {35, 33}, {40, 192}}) {
      const Weights w = random_weights(type, n_out * n_in);
      const tiny::MatrixView m{w.bytes.data(), type, n_out, n_in};
      constexpr std::size_t most = 19;
      const std::vector<float> x = random_floats(most * n_in);
      std::vector<float> alone(most * n_out);
      for (std::size_t r = 0; r < most; ++r) {
        check(tiny::matmul(dev, m, x.data() + r * n_in, 1, alone.data() + r * n_out));
        for (std::size_t o = 0; o < n_out; ++o) {
          double sum = 0;
          double size = 1e-30;
          for (std::size_t k = 0; k < n_in; ++k) {
            sum += w.values[o * n_in + k] * wide(x[r * n_in + k]);
            size += std::fabs(w.values[o * n_in + k] * wide(x[r * n_in + k]));
          }
          REQUIRE(std::fabs(sum - wide(alone[r * n_out + o])) <= 1e-6 * size);
        }
      }
      for (std::size_t rows = 1; rows <= most; ++rows) {
        std::vector<float> y(rows * n_out, -7.0F);
        check(tiny::matmul(dev, m, x.data(), rows, y.data()));
        REQUIRE(std::memcmp(y.data(), alone.data(), y.size() * 4) == 0);
        std::vector<float> z(rows * n_out, 0.25F);
        check(tiny::matmul(dev, m, x.data(), rows, z.data(), true));
        for (std::size_t i = 0; i < z.size(); ++i) REQUIRE(z[i] == 0.25F + alone[i]);
      }
    }
  }
}

TEST_CASE("red arm: another order of addition is seen by the bit comparison") {
  memra::HostDev dev;
  constexpr std::size_t n_out = 64;
  constexpr std::size_t n_in = 192;
  const Weights w = random_weights(tiny::WeightType::f32, n_out * n_in);
  const std::vector<float> x = random_floats(n_in);
  std::vector<float> y(n_out);
  check(tiny::matmul(dev, {w.bytes.data(), tiny::WeightType::f32, n_out, n_in}, x.data(), 1, y.data()));
  std::size_t lanes_differ = 0;
  std::size_t plain_differ = 0;
  for (std::size_t o = 0; o < n_out; ++o) {
    float lane[16] = {};
    float plain = 0;
    for (std::size_t k = 0; k < n_in; ++k) {
      volatile float p = static_cast<float>(w.values[o * n_in + k]) * x[k];
      lane[k % 16] += p;
      plain += p;
    }
    for (std::size_t width = 8; width != 0; width /= 2) {
      for (std::size_t i = 0; i < width; ++i) lane[i] += lane[i + width];
    }
    lanes_differ += lane[0] != y[o];
    plain_differ += plain != y[o];
  }
  REQUIRE(lanes_differ == 0);  // the documented order, product and sum each rounded
  REQUIRE(plain_differ > n_out / 4);
}

TEST_CASE("f16 weights: all 65536 values") {
  for (std::uint32_t first = 0; first < 65536; first += 16) {
    std::byte raw[32];
    for (std::uint32_t i = 0; i < 16; ++i) {
      raw[2 * i] = static_cast<std::byte>((first + i) & 0xff);
      raw[2 * i + 1] = static_cast<std::byte>((first + i) >> 8);
    }
    tiny::Lanes lanes;
    tiny::load_f16(lanes, raw);
    float got[16];
    std::memcpy(got, &lanes, sizeof got);
    for (std::uint32_t i = 0; i < 16; ++i) {
      const std::uint32_t h = first + i;
      const int e = static_cast<int>(h >> 10 & 31);
      const double magnitude = e == 0    ? std::ldexp(h & 1023, -24)
                               : e == 31 ? HUGE_VAL
                                         : std::ldexp(1024 + (h & 1023), e - 25);
      if (e == 31 && (h & 1023) != 0) {
        REQUIRE(std::isnan(got[i]));
      } else {
        REQUIRE(wide(got[i]) == ((h & 0x8000U) != 0 ? -magnitude : magnitude));
      }
    }
  }
}

TEST_CASE("exp, sigmoid, silu and softplus against float64; vectors equal scalars bit for bit") {
  std::vector<float> x = random_floats(4099, -30.0F, 30.0F);
  for (const float edge : {0.0F, -0.0F, 87.0F, -87.0F, 88.0F, 100.0F, -100.0F, 1e30F, -1e30F, 1e-30F})
    x.push_back(edge);
  for (const float v : x) {
    const double d = wide(v);
    const double clamped = d < -87 ? -87 : d > 88 ? 88 : d;
    REQUIRE(std::fabs(wide(tiny::exp_clamped(v)) / std::exp(clamped) - 1) < 2.5e-7);
    REQUIRE(std::fabs(wide(tiny::sigmoid(v)) - 1 / (1 + std::exp(-d))) < 1.2e-7);
    REQUIRE(std::fabs(wide(tiny::silu(v)) - d / (1 + std::exp(-d))) < 2.5e-7 * (1 + std::fabs(d)));
    const double soft = d > 40 ? d : std::log1p(std::exp(d));
    REQUIRE(std::fabs(wide(tiny::softplus(v)) - soft) <= 4e-7 * soft + 1e-37);
  }
  REQUIRE(std::isnan(tiny::exp_clamped(NAN)));
  REQUIRE(std::isnan(tiny::sigmoid(NAN)));
  REQUIRE(std::isnan(tiny::softplus(NAN)));

  std::vector<float> out(x.size());
  const std::vector<float> ones(x.size(), 1.0F);
  tiny::zip(x.data(), ones.data(), out.data(), x.size(), tiny::SiluMulBody::SiluTimes{});
  for (std::size_t i = 0; i < x.size(); ++i) REQUIRE(tiny::float_bits(out[i]) == tiny::float_bits(tiny::silu(x[i])));
}

TEST_CASE("norms and rope against float64, at any stride and head") {
  memra::HostDev dev;
  constexpr std::size_t rows = 3;
  constexpr std::size_t heads = 2;
  constexpr std::size_t dim = 40;  // not whole groups of lanes
  constexpr std::size_t rot = 12;
  constexpr float eps = 1e-6F;
  const std::vector<float> x = random_floats(rows * 200);
  const std::vector<float> w = random_floats(dim, 0.5F, 1.5F);
  const std::vector<float> table = tiny::rope_table(64, rot, 10000.0);
  const std::int32_t pos = 37;
  std::vector<float> y(rows * heads * dim);
  const tiny::HeadNormRopeBody body{x.data(), 200, 90, w.data(), y.data(), heads, dim, eps, {table.data(), 64, rot},
                                    &pos};
  check(memra::launch(dev, "test", {rows, heads, 1}, body));
  double worst = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t h = 0; h < heads; ++h) {
      const float* v = x.data() + r * 200 + h * 90;
      double squares = 0;
      for (std::size_t i = 0; i < dim; ++i) squares += wide(v[i]) * wide(v[i]);
      std::vector<double> n(dim);
      for (std::size_t i = 0; i < dim; ++i) n[i] = wide(v[i]) / std::sqrt(squares / dim + 1e-6) * wide(w[i]);
      std::vector<double> want = n;
      for (std::size_t i = 0; i < rot / 2; ++i) {
        const double a = static_cast<double>(37 + r) / std::pow(10000.0, 2.0 * static_cast<double>(i) / rot);
        want[i] = n[i] * std::cos(a) - n[i + rot / 2] * std::sin(a);
        want[i + rot / 2] = n[i + rot / 2] * std::cos(a) + n[i] * std::sin(a);
      }
      for (std::size_t i = 0; i < dim; ++i) {
        worst = std::max(worst, std::fabs(want[i] - wide(y[(r * heads + h) * dim + i])));
      }
    }
  }
  REQUIRE(worst < 5e-6);

  std::vector<float> l2 = x;
  check(memra::launch(dev, "test", {rows, heads, 1}, tiny::L2NormBody{l2.data(), 200, dim}));
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t h = 0; h < heads; ++h) {
      const float* v = x.data() + r * 200 + h * dim;
      double squares = 0;
      for (std::size_t i = 0; i < dim; ++i) squares += wide(v[i]) * wide(v[i]);
      for (std::size_t i = 0; i < dim; ++i) {
        REQUIRE(std::fabs(wide(l2[r * 200 + h * dim + i]) - wide(v[i]) / std::sqrt(squares + 1e-6)) < 1e-6);
      }
    }
    REQUIRE(l2[r * 200 + heads * dim] == x[r * 200 + heads * dim]);  // what follows the heads is left alone
  }
}

TEST_CASE("gates: decay, output gate, gated norm and the fused projections") {
  memra::HostDev dev;
  constexpr std::size_t n_k = 2;
  constexpr std::size_t n_v = 6;
  constexpr std::size_t d_k = 5;
  constexpr std::size_t d_v = 3;
  constexpr std::size_t r = n_v / n_k;
  constexpr std::size_t width = n_k * (2 * d_k + 2 * r * d_v);
  const std::vector<float> qkvz = random_floats(2 * width);
  const std::vector<float> ba = random_floats(2 * 2 * n_v);
  std::vector<float> conv(2 * (2 * n_k * d_k + n_v * d_v)), z(2 * n_v * d_v), a(2 * n_v), b(2 * n_v);
  check(memra::launch(
      dev, "test", {2, n_k, 1},
      tiny::UnfuseBody{qkvz.data(), ba.data(), conv.data(), z.data(), a.data(), b.data(), n_k, n_v, d_k, d_v}));
  for (std::size_t row = 0; row < 2; ++row) {
    for (std::size_t h = 0; h < n_v; ++h) {
      const std::size_t key = h / r;
      const std::size_t in_group = h % r;
      const float* group = qkvz.data() + row * width + key * (width / n_k);
      REQUIRE(b[row * n_v + h] == ba[(row * n_k + key) * 2 * r + in_group]);
      REQUIRE(a[row * n_v + h] == ba[(row * n_k + key) * 2 * r + r + in_group]);
      const float* c = conv.data() + row * (2 * n_k * d_k + n_v * d_v);
      for (std::size_t i = 0; i < d_v; ++i) {
        REQUIRE(c[2 * n_k * d_k + h * d_v + i] == group[2 * d_k + in_group * d_v + i]);
        REQUIRE(z[(row * n_v + h) * d_v + i] == group[2 * d_k + r * d_v + in_group * d_v + i]);
      }
      for (std::size_t i = 0; i < d_k; ++i) {
        REQUIRE(c[key * d_k + i] == group[i]);
        REQUIRE(c[(n_k + key) * d_k + i] == group[d_k + i]);
      }
    }
  }

  const std::vector<float> rate = random_floats(n_v, -9.0F, -0.1F);
  const std::vector<float> dt = random_floats(n_v, -3.0F, 3.0F);
  std::vector<float> g = a;
  std::vector<float> beta = b;
  check(memra::launch(dev, "test", {2, 1, 1}, tiny::DecayBody{g.data(), beta.data(), rate.data(), dt.data(), n_v}));
  for (std::size_t i = 0; i < 2 * n_v; ++i) {
    const double want = wide(rate[i % n_v]) * std::log1p(std::exp(wide(a[i]) + wide(dt[i % n_v])));
    REQUIRE(std::fabs(wide(g[i]) - want) < 1e-6 * std::fabs(want) + 1e-7);
    REQUIRE(std::fabs(wide(beta[i]) - 1 / (1 + std::exp(-wide(b[i])))) < 2e-7);
  }

  constexpr std::size_t dim = 37;
  std::vector<float> att = random_floats(2 * 2 * dim);
  const std::vector<float> before = att;
  const std::vector<float> gates = random_floats(2 * 4 * dim, -4.0F, 4.0F);
  check(memra::launch(dev, "test", {2, 2, 1},
                      tiny::SigmoidGateBody{att.data(), gates.data() + dim, 4 * dim, 2 * dim, 2, dim}));
  for (std::size_t i = 0; i < att.size(); ++i) {
    const std::size_t row = i / (2 * dim);
    const std::size_t head = i / dim % 2;
    const double gate = wide(gates[row * 4 * dim + head * 2 * dim + dim + i % dim]);
    REQUIRE(std::fabs(wide(att[i]) - wide(before[i]) / (1 + std::exp(-gate))) < 2e-7);
  }

  std::vector<float> o = before;
  const std::vector<float> zz = random_floats(o.size(), -4.0F, 4.0F);
  const std::vector<float> w = random_floats(dim, 0.5F, 2.0F);
  check(memra::launch(dev, "test", {2, 2, 1}, tiny::GatedRmsNormBody{o.data(), w.data(), zz.data(), 2, dim, 1e-6F}));
  for (std::size_t v = 0; v < 4; ++v) {
    double squares = 0;
    for (std::size_t i = 0; i < dim; ++i) squares += wide(before[v * dim + i]) * wide(before[v * dim + i]);
    for (std::size_t i = 0; i < dim; ++i) {
      const double gate = wide(zz[v * dim + i]);
      const double want =
          wide(before[v * dim + i]) / std::sqrt(squares / dim + 1e-6) * wide(w[i]) * gate / (1 + std::exp(-gate));
      REQUIRE(std::fabs(wide(o[v * dim + i]) - want) < 4e-6);
    }
  }
}
}  // namespace kernels_cpp
