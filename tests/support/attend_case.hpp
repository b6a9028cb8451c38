// One attention layer for tests and benchmarks of attend: planes, queries, and a plain float64 oracle.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memra/codec.hpp>
#include <memra/host_ops.hpp>
#include <support/planes.hpp>
#include <vector>

namespace memra_test {

/// Shape of a layer and of a stream of rows that attend it.
struct AttendShape {
  std::size_t n_heads = 2;
  std::size_t n_kv = 1;
  std::size_t dk = 32;
  std::size_t dv = 32;
  memra::Format k_format = memra::Format::q8_0;
  memra::Format v_format = memra::Format::q5_1;
  memra::Layout layout = memra::Layout::blocks;
  std::size_t window = 0;
  std::size_t base = 0;
};

/// A layer whose rows [written_from, total) were appended; all other bytes are NaN.
struct AttendCase {
  AttendShape shape;
  std::size_t total;  ///< stream rows
  Plane k, v;
  std::vector<float> q;  ///< [total][n_heads][dk], one query row per stream row
  float scale;

  AttendCase(const AttendShape& s, std::size_t rows, std::size_t spare, std::uint64_t seed)
      : shape(s),
        total(rows),
        k(s.k_format, s.layout, rows + spare - s.base, s.n_kv * s.dk, s.base),
        v(s.v_format, s.layout, rows + spare - s.base, s.n_kv * s.dv, s.base),
        scale(1.0F / std::sqrt(static_cast<float>(s.dk))) {
    Rng rng(seed);
    q = rng.vector(rows * s.n_heads * s.dk, 2.0F);
    std::vector<float> x;
    for (std::size_t r = s.base; r < rows; ++r) {
      x = rng.vector(s.n_kv * s.dk, 2.0F);
      memra::encode_row(k.view(), r - s.base, x.data());
      x = rng.vector(s.n_kv * s.dv, 2.0F);
      memra::encode_row(v.view(), r - s.base, x.data());
    }
  }

  memra::KvReadView view(const std::int32_t* pos_d, std::size_t rows) const {
    memra::KvReadView r;
    r.k = k.view();
    r.v = v.view();
    r.n_kv_heads = shape.n_kv;
    r.head_dim_k = shape.dk;
    r.head_dim_v = shape.dv;
    r.window = shape.window;
    r.at = {pos_d, rows, static_cast<std::size_t>(*pos_d), shape.base + k.view().phys_rows()};
    return r;
  }

  /// attend of `rows` query rows at `pos` in one call: [rows][n_heads][dv].
  std::vector<float> run(std::size_t pos, std::size_t rows) const {
    std::vector<float> out(rows * shape.n_heads * shape.dv, std::nanf(""));
    Scratch scratch(memra::detail::attend_scratch_bytes(shape.n_heads, shape.n_kv, shape.dk, shape.dv, rows));
    const auto pos_d = static_cast<std::int32_t>(pos);
    memra::HostDev dev;
    const memra::ops_for<memra::HostDev> ops(dev);
    const memra::AttendArgs a{q.data() + pos * shape.n_heads * shape.dk, out.data(), shape.n_heads, scale};
    memra::check(ops.attend(view(&pos_d, rows), a, scratch.view()));
    return out;
  }

  /// The same rows, one call each.
  std::vector<float> run_single(std::size_t pos, std::size_t rows) const {
    std::vector<float> out;
    for (std::size_t i = 0; i < rows; ++i) {
      const std::vector<float> one = run(pos + i, 1);
      out.insert(out.end(), one.begin(), one.end());
    }
    return out;
  }

  /// Textbook attention in float64 over the decoded bytes.
  std::vector<double> oracle(std::size_t pos, std::size_t rows) const {
    const std::size_t end = pos + rows;
    std::vector<float> kf((end - shape.base) * shape.n_kv * shape.dk);
    std::vector<float> vf((end - shape.base) * shape.n_kv * shape.dv);
    for (std::size_t r = 0; r < end - shape.base; ++r) {
      memra::decode_row(k.view(), r, 0, shape.n_kv * shape.dk, kf.data() + r * shape.n_kv * shape.dk);
      memra::decode_row(v.view(), r, 0, shape.n_kv * shape.dv, vf.data() + r * shape.n_kv * shape.dv);
    }
    std::vector<double> out(rows * shape.n_heads * shape.dv, 0.0);
    std::vector<double> s(end);
    for (std::size_t i = 0; i < rows; ++i) {
      const std::size_t hi = pos + i + 1;
      const std::size_t lo = std::max(shape.base, shape.window == 0 || shape.window >= hi ? 0 : hi - shape.window);
      for (std::size_t h = 0; h < shape.n_heads; ++h) {
        const std::size_t kv = h / (shape.n_heads / shape.n_kv);
        const float* qh = q.data() + ((pos + i) * shape.n_heads + h) * shape.dk;
        double top = -1e300;
        for (std::size_t r = lo; r < hi; ++r) {
          double dot = 0;
          for (std::size_t d = 0; d < shape.dk; ++d) {
            dot += static_cast<double>(qh[d]) * kf[((r - shape.base) * shape.n_kv + kv) * shape.dk + d];
          }
          s[r] = dot * static_cast<double>(scale);
          top = std::max(top, s[r]);
        }
        double sum = 0;
        double* o = out.data() + (i * shape.n_heads + h) * shape.dv;
        for (std::size_t r = lo; r < hi; ++r) {
          const double p = std::exp(s[r] - top);
          sum += p;
          for (std::size_t d = 0; d < shape.dv; ++d) {
            o[d] += p * static_cast<double>(vf[((r - shape.base) * shape.n_kv + kv) * shape.dv + d]);
          }
        }
        for (std::size_t d = 0; d < shape.dv; ++d) o[d] /= sum;
      }
    }
    return out;
  }
};

}  // namespace memra_test
