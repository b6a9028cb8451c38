// conv_update and delta_scan against float64, and T tokens in one call against T calls.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memra/host_ops.hpp>
#include <support/catch.hpp>
#include <support/planes.hpp>
#include <vector>

namespace ops_recurrent_cpp {
namespace {

using memra_test::max_error;
using memra_test::Rng;
using memra_test::same_bits;

/// A recurrent layer with its state and the inputs of `tokens` tokens.
struct Layer {
  std::size_t n_k, n_v, d_k, d_v, d_conv, tokens;
  memra::KeyHeadMap map{};
  std::vector<float> conv, ssm, x, weight, bias, q, k, v, g, beta;

  Layer(std::size_t n_k_, std::size_t n_v_, std::size_t d_k_, std::size_t d_v_, std::size_t d_conv_,
        std::size_t tokens_)
      : n_k(n_k_), n_v(n_v_), d_k(d_k_), d_v(d_v_), d_conv(d_conv_), tokens(tokens_) {
    Rng rng(n_k * 1000 + n_v * 100 + d_k + d_v + d_conv);
    const std::size_t c = view(0).conv_dim();
    conv = rng.vector(c * (d_conv - 1) + 1);
    ssm = rng.vector(n_v * d_v * d_k);
    x = rng.vector(tokens * c, 2.0F);
    weight = rng.vector(c * d_conv);
    bias = rng.vector(c);
    q = unit_rows(rng, tokens * n_k);
    k = unit_rows(rng, tokens * n_k);
    v = rng.vector(tokens * n_v * d_v, 2.0F);
    g = rng.vector(tokens * n_v);
    for (float& e : g) e = -std::fabs(e);
    beta = rng.vector(tokens * n_v);
    for (float& e : beta) e = std::fabs(e);
  }

  std::vector<float> unit_rows(Rng& rng, std::size_t rows) const {
    std::vector<float> r = rng.vector(rows * d_k);
    for (std::size_t i = 0; i < rows; ++i) {
      double sum = 1e-6;
      for (std::size_t d = 0; d < d_k; ++d) sum += static_cast<double>(r[i * d_k + d]) * r[i * d_k + d];
      for (std::size_t d = 0; d < d_k; ++d) r[i * d_k + d] /= static_cast<float>(std::sqrt(sum));
    }
    return r;
  }

  memra::RecurView view(std::size_t rows) {
    memra::RecurView r;
    r.conv = conv.data();
    r.ssm = ssm.data();
    r.n_k_heads = n_k;
    r.n_v_heads = n_v;
    r.d_k = d_k;
    r.d_v = d_v;
    r.d_conv = d_conv;
    r.map = map;
    r.rows = rows;
    return r;
  }

  /// Convolves tokens [first, first + rows); the state moves on.
  std::vector<float> run_conv(std::size_t first, std::size_t rows, bool silu, bool with_bias) {
    const std::size_t c = view(0).conv_dim();
    std::vector<float> y(rows * c, std::nanf(""));
    memra::HostDev dev;
    memra::check(memra::ops_for<memra::HostDev>(dev).conv_update(
        view(rows), {x.data() + first * c, weight.data(), with_bias ? bias.data() : nullptr, y.data(), silu}));
    return y;
  }

  std::vector<float> run_scan(std::size_t first, std::size_t rows) {
    std::vector<float> out(rows * n_v * d_v, std::nanf(""));
    memra::ScanArgs a;
    a.q = q.data() + first * n_k * d_k;
    a.k = k.data() + first * n_k * d_k;
    a.v = v.data() + first * n_v * d_v;
    a.g = g.data() + first * n_v;
    a.beta = beta.data() + first * n_v;
    a.out = out.data();
    memra::HostDev dev;
    memra::check(memra::ops_for<memra::HostDev>(dev).delta_scan(view(rows), a));
    return out;
  }
};

void append(std::vector<float>& to, const std::vector<float>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

/// The convolution written over the whole history: ring, then inputs.
struct ConvOracle {
  std::vector<double> y;
  std::vector<float> ring;

  ConvOracle(Layer& l, std::size_t rows, bool silu, bool with_bias) {
    const std::size_t c = l.view(0).conv_dim();
    const std::size_t kept = l.d_conv - 1;
    y.resize(rows * c);
    ring.resize(l.conv.size());
    ring.back() = l.conv.back();
    for (std::size_t ch = 0; ch < c; ++ch) {
      std::vector<float> line(l.conv.begin() + static_cast<std::ptrdiff_t>(ch * kept),
                              l.conv.begin() + static_cast<std::ptrdiff_t>((ch + 1) * kept));
      for (std::size_t t = 0; t < rows; ++t) line.push_back(l.x[t * c + ch]);
      for (std::size_t t = 0; t < rows; ++t) {
        double sum = with_bias ? static_cast<double>(l.bias[ch]) : 0.0;
        for (std::size_t j = 0; j < l.d_conv; ++j) {
          sum += static_cast<double>(l.weight[ch * l.d_conv + j]) * static_cast<double>(line[t + j]);
        }
        y[t * c + ch] = silu ? sum / (1.0 + std::exp(-sum)) : sum;
      }
      for (std::size_t j = 0; j < kept; ++j) ring[ch * kept + j] = line[rows + j];
    }
  }
};

TEST_CASE("conv_update against float64, and the ring holds the last raw inputs", "[ops][conv]") {
  for (const std::size_t d_conv : {1U, 2U, 3U, 4U, 8U, 9U, 12U}) {
    for (const std::size_t rows : {1U, 2U, 3U, 4U, 7U, 16U, 33U}) {
      for (const bool silu : {false, true}) {
        // 75 channels: whole blocks of channels and a rest.
        Layer l(1, 3, 6, 21, d_conv, rows);
        CAPTURE(d_conv, rows, silu);
        const ConvOracle want(l, rows, silu, rows % 2 == 0);
        const std::vector<float> y = l.run_conv(0, rows, silu, rows % 2 == 0);
        REQUIRE(max_error(y, want.y) < 4e-6);  // at most 12 products of size 2 in f32
        REQUIRE(same_bits(l.conv, want.ring));
        // Red arm: one column off is noticed.
        if (d_conv > 1) {
          std::vector<float> wrong = want.ring;
          wrong[d_conv - 2] = l.x[0] + 1;
          REQUIRE_FALSE(same_bits(l.conv, wrong));
        }
      }
    }
  }
}

TEST_CASE("conv_update of T tokens is T calls of one token", "[ops][conv][identity]") {
  for (const std::size_t d_conv : {1U, 2U, 4U, 8U, 10U}) {
    for (const std::size_t rows : {2U, 3U, 7U, 8U, 16U, 17U, 64U, 139U}) {
      for (const bool silu : {false, true}) {
        Layer whole(2, 4, 16, 16, d_conv, rows);
        Layer single = whole;
        Layer chunks = whole;
        CAPTURE(d_conv, rows, silu);
        const std::vector<float> want = whole.run_conv(0, rows, silu, true);
        std::vector<float> got;
        for (std::size_t t = 0; t < rows; ++t) append(got, single.run_conv(t, 1, silu, true));
        REQUIRE(same_bits(got, want));
        REQUIRE(same_bits(single.conv, whole.conv));
        got.clear();
        for (std::size_t t = 0; t < rows; t += 3)
          append(got, chunks.run_conv(t, std::min<std::size_t>(3, rows - t), silu, true));
        REQUIRE(same_bits(got, want));
        REQUIRE(same_bits(chunks.conv, whole.conv));
      }
    }
  }
}

TEST_CASE("conv_update gives a channel the same bits in a block and in the rest", "[ops][conv][identity]") {
  // 32 channels are a block, 31 of them a rest: the same numbers must come out.
  Layer block(1, 1, 8, 16, 4, 9);
  Layer rest(1, 1, 8, 15, 4, 9);
  REQUIRE(block.view(0).conv_dim() == 32);
  for (std::size_t c = 0; c < 31; ++c) {
    for (std::size_t j = 0; j < 3; ++j) rest.conv[c * 3 + j] = block.conv[c * 3 + j];
    for (std::size_t j = 0; j < 4; ++j) rest.weight[c * 4 + j] = block.weight[c * 4 + j];
    rest.bias[c] = block.bias[c];
    for (std::size_t t = 0; t < 9; ++t) rest.x[t * 31 + c] = block.x[t * 32 + c];
  }
  const std::vector<float> a = block.run_conv(0, 9, true, true);
  const std::vector<float> b = rest.run_conv(0, 9, true, true);
  std::vector<float> cut;
  for (std::size_t t = 0; t < 9; ++t) {
    for (std::size_t c = 0; c < 31; ++c) cut.push_back(a[t * 32 + c]);
  }
  REQUIRE(same_bits(cut, b));
}

/// The gated delta rule as the design states it, in float64.
struct ScanOracle {
  std::vector<double> out, s;

  ScanOracle(const Layer& l, std::size_t rows) : out(rows * l.n_v * l.d_v), s(l.ssm.begin(), l.ssm.end()) {
    for (std::size_t t = 0; t < rows; ++t) {
      for (std::size_t h = 0; h < l.n_v; ++h) {
        const std::size_t kh = l.map.mode == memra::KeyHeadMode::grouped ? h / (l.n_v / l.n_k) : h % l.n_k;
        const float* k = l.k.data() + (t * l.n_k + kh) * l.d_k;
        const float* q = l.q.data() + (t * l.n_k + kh) * l.d_k;
        for (std::size_t c = 0; c < l.d_v; ++c) {
          double* col = s.data() + (h * l.d_v + c) * l.d_k;
          double sk = 0, sq = 0;
          for (std::size_t i = 0; i < l.d_k; ++i) {
            col[i] *= std::exp(static_cast<double>(l.g[t * l.n_v + h]));
            sk += col[i] * static_cast<double>(k[i]);
          }
          const double u =
              static_cast<double>(l.beta[t * l.n_v + h]) * (static_cast<double>(l.v[(t * l.n_v + h) * l.d_v + c]) - sk);
          for (std::size_t i = 0; i < l.d_k; ++i) {
            col[i] += static_cast<double>(k[i]) * u;
            sq += col[i] * static_cast<double>(q[i]);
          }
          out[(t * l.n_v + h) * l.d_v + c] = sq / std::sqrt(static_cast<double>(l.d_k));
        }
      }
    }
  }
};

TEST_CASE("delta_scan against float64, for both key-head maps", "[ops][scan]") {
  for (const auto mode : {memra::KeyHeadMode::grouped, memra::KeyHeadMode::interleaved}) {
    for (const std::size_t d_k : {1U, 8U, 16U, 20U, 32U, 64U, 100U, 128U}) {
      for (const std::size_t d_v : {1U, 3U, 4U, 33U}) {
        Layer l(2, 6, d_k, d_v, 4, 40);
        l.map.mode = mode;
        CAPTURE(d_k, d_v, mode == memra::KeyHeadMode::grouped);
        const ScanOracle want(l, 40);
        const Layer before = l;
        REQUIRE(max_error(l.run_scan(0, 40), want.out) < 1e-5);
        REQUIRE(max_error(l.ssm, want.s) < 1e-5);
        // Red arm: the other map is another answer, and so is one token twice.
        Layer other = before;
        other.map.mode =
            mode == memra::KeyHeadMode::grouped ? memra::KeyHeadMode::interleaved : memra::KeyHeadMode::grouped;
        REQUIRE(max_error(other.run_scan(0, 40), want.out) > 1e-3);
        Layer twice = before;
        (void)twice.run_scan(0, 40);
        (void)twice.run_scan(39, 1);
        REQUIRE(max_error(twice.ssm, want.s) > 1e-5);
      }
    }
  }
}

TEST_CASE("delta_scan of T tokens is T calls of one token", "[ops][scan][identity]") {
  for (const std::size_t d_k : {16U, 20U, 64U, 128U}) {
    for (const std::size_t rows : {2U, 3U, 7U, 8U, 16U, 17U, 64U, 139U}) {
      Layer whole(1, 2, d_k, 9, 2, rows);
      Layer single = whole;
      Layer chunks = whole;
      CAPTURE(d_k, rows);
      const std::vector<float> want = whole.run_scan(0, rows);
      std::vector<float> got;
      for (std::size_t t = 0; t < rows; ++t) append(got, single.run_scan(t, 1));
      REQUIRE(same_bits(got, want));
      REQUIRE(same_bits(single.ssm, whole.ssm));
      got.clear();
      for (std::size_t t = 0; t < rows; t += 5) append(got, chunks.run_scan(t, std::min<std::size_t>(5, rows - t)));
      REQUIRE(same_bits(got, want));
      REQUIRE(same_bits(chunks.ssm, whole.ssm));
    }
  }
}

TEST_CASE("delta_scan gives a column the same bits whatever columns stand beside it", "[ops][scan][identity]") {
  Layer l(1, 1, 48, 7, 2, 12);
  Layer narrow(1, 1, 48, 1, 2, 12);
  const Layer before = l;
  const std::vector<float> all = l.run_scan(0, 12);
  for (std::size_t c = 0; c < 7; ++c) {
    narrow.q = before.q;
    narrow.k = before.k;
    narrow.g = before.g;
    narrow.beta = before.beta;
    std::vector<float> want;
    for (std::size_t i = 0; i < 48; ++i) narrow.ssm[i] = before.ssm[c * 48 + i];
    for (std::size_t t = 0; t < 12; ++t) {
      narrow.v[t] = before.v[t * 7 + c];
      want.push_back(all[t * 7 + c]);
    }
    REQUIRE(same_bits(narrow.run_scan(0, 12), want));
  }
}

TEST_CASE("delta_scan reads rows at their strides", "[ops][scan]") {
  Layer dense(2, 2, 16, 4, 2, 5);
  Layer apart = dense;
  const std::vector<float> want = dense.run_scan(0, 5);
  // q, k and v of a token side by side, as a fused projection leaves them, with a gap.
  const std::size_t stride = 2 * 2 * 16 + 2 * 4 + 3;
  std::vector<float> fused(5 * stride, std::nanf(""));
  for (std::size_t t = 0; t < 5; ++t) {
    float* row = fused.data() + t * stride;
    for (std::size_t i = 0; i < 32; ++i) row[i] = apart.q[t * 32 + i];
    for (std::size_t i = 0; i < 32; ++i) row[32 + i] = apart.k[t * 32 + i];
    for (std::size_t i = 0; i < 8; ++i) row[64 + i] = apart.v[t * 8 + i];
  }
  std::vector<float> out(5 * 8);
  memra::ScanArgs a;
  a.q = fused.data();
  a.k = fused.data() + 32;
  a.v = fused.data() + 64;
  a.q_stride = a.k_stride = a.v_stride = stride;
  a.g = apart.g.data();
  a.beta = apart.beta.data();
  a.out = out.data();
  memra::HostDev dev;
  REQUIRE(memra::ops_for<memra::HostDev>(dev).delta_scan(apart.view(5), a).ok());
  REQUIRE(same_bits(out, want));
  REQUIRE(same_bits(apart.ssm, dense.ssm));
}

}  // namespace
}  // namespace ops_recurrent_cpp
