// A gated delta layer's tokens for tests of the chunked scan, and what float64 makes of them token by token.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memra/detail/scratch.hpp>
#include <memra/error.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>
#include <support/planes.hpp>
#include <vector>

namespace memra_test {

struct ChunkShape {
  std::size_t n_k, n_v, d_k, d_v;
  memra::KeyHeadMap map = {};
};

/// Inputs of `rows` tokens, q and k of length 1, and a state; log decays in (-decay, 0].
struct ChunkLayer {
  ChunkShape shape;
  std::size_t rows;
  std::vector<float> q, k, v, g, beta, ssm;

  ChunkLayer(const ChunkShape& s, std::size_t n, float decay) : shape(s), rows(n) {
    Rng rng(7);
    q = unit(rng.vector(n * s.n_k * s.d_k));
    k = unit(rng.vector(n * s.n_k * s.d_k));
    v = rng.vector(n * s.n_v * s.d_v);
    g = rng.vector(n * s.n_v);
    beta = rng.vector(n * s.n_v);
    ssm = rng.vector(s.n_v * s.d_v * s.d_k);
    for (float& x : g) x = -decay * x * x;
    for (float& x : beta) x = 0.5F + 0.5F * x;
  }

  memra::RecurView view(std::size_t n, memra::ScanClass scan) {
    memra::RecurView r;
    r.ssm = ssm.data();
    r.n_k_heads = shape.n_k;
    r.n_v_heads = shape.n_v;
    r.d_k = shape.d_k;
    r.d_v = shape.d_v;
    r.d_conv = 1;
    r.map = shape.map;
    r.rows = n;
    r.scan = scan;
    return r;
  }
  /// @param with_strides  for bodies that are called without ops_for
  memra::ScanArgs args(std::size_t first, float* out, bool with_strides) const {
    memra::ScanArgs a;
    a.q = q.data() + first * shape.n_k * shape.d_k;
    a.k = k.data() + first * shape.n_k * shape.d_k;
    a.v = v.data() + first * shape.n_v * shape.d_v;
    a.g = g.data() + first * shape.n_v;
    a.beta = beta.data() + first * shape.n_v;
    a.out = out;
    if (with_strides) {
      a.q_stride = a.k_stride = shape.n_k * shape.d_k;
      a.v_stride = shape.n_v * shape.d_v;
    }
    return a;
  }
  /// Tokens [first, first + n) on a device of host memory; the state moves on.
  template <class Dev>
  std::vector<float> run(Dev& dev, std::size_t first, std::size_t n, memra::ScanClass scan) {
    std::vector<float> out(n * shape.n_v * shape.d_v, std::nanf(""));
    // Its contents are undefined: NaN shows what is read before it is written.
    std::vector<float> scratch(memra::detail::chunk_scan_bytes(shape.n_v, n) / sizeof(float), std::nanf(""));
    memra::check(memra::ops_for<Dev>(dev).delta_scan(
        view(n, scan), args(first, out.data(), false),
        {reinterpret_cast<std::byte*>(scratch.data()), scratch.size() * sizeof(float)}));
    return out;
  }

 private:
  std::vector<float> unit(std::vector<float> x) const {
    for (std::size_t i = 0; i < x.size(); i += shape.d_k) {
      double sum = 1e-6;
      for (std::size_t d = 0; d < shape.d_k; ++d) sum += static_cast<double>(x[i + d]) * static_cast<double>(x[i + d]);
      for (std::size_t d = 0; d < shape.d_k; ++d) x[i + d] /= static_cast<float>(std::sqrt(sum));
    }
    return x;
  }
};

/// The rule itself, token by token in float64.
struct ChunkOracle {
  std::vector<double> out, state;

  explicit ChunkOracle(const ChunkLayer& l) : state(l.ssm.begin(), l.ssm.end()) {
    const ChunkShape& s = l.shape;
    for (std::size_t t = 0; t < l.rows; ++t) {
      for (std::size_t h = 0; h < s.n_v; ++h) {
        const std::size_t kh = s.map.mode == memra::KeyHeadMode::grouped ? h / (s.n_v / s.n_k) : h % s.n_k;
        const double decay = std::exp(static_cast<double>(l.g[t * s.n_v + h]));
        for (std::size_t c = 0; c < s.d_v; ++c) {
          double* const col = state.data() + (h * s.d_v + c) * s.d_k;
          const float* const k = l.k.data() + (t * s.n_k + kh) * s.d_k;
          const float* const q = l.q.data() + (t * s.n_k + kh) * s.d_k;
          double read = 0;
          for (std::size_t i = 0; i < s.d_k; ++i) {
            col[i] *= decay;
            read += col[i] * static_cast<double>(k[i]);
          }
          const double u = static_cast<double>(l.beta[t * s.n_v + h]) *
                           (static_cast<double>(l.v[(t * s.n_v + h) * s.d_v + c]) - read);
          double y = 0;
          for (std::size_t i = 0; i < s.d_k; ++i) {
            col[i] += static_cast<double>(k[i]) * u;
            y += col[i] * static_cast<double>(q[i]);
          }
          out.push_back(y / std::sqrt(static_cast<double>(s.d_k)));
        }
      }
    }
  }

  /// Largest error, relative to the largest number there is.
  static double error(const std::vector<double>& truth, const std::vector<float>& x) {
    double worst = 0;
    double most = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double e = std::abs(static_cast<double>(x[i]) - truth[i]);
      worst = e <= worst ? worst : e;  // NaN counts
      most = std::max(most, std::abs(truth[i]));
    }
    return worst / most;
  }
  double out_error(const std::vector<float>& x) const { return error(out, x); }
  double state_error(const std::vector<float>& x) const { return error(state, x); }
};

}  // namespace memra_test
