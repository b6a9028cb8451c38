// What one device needs to run layers: activations for a bounded number of rows, scratch, and the rotary table.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memra/error.hpp>
#include <memra/ops.hpp>
#include <memra/workspace.hpp>
#include <optional>
#include <string>
#include <tiny_engine/config.hpp>
#include <tiny_engine/gates.hpp>
#include <tiny_engine/matmul.hpp>
#include <tiny_engine/norms.hpp>
#include <tiny_engine/weights.hpp>
#include <utility>

namespace tiny {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Adds the time until it ends to a sum. Host time: on a device that runs behind the host, the time of queueing.
class Timed {
 public:
  explicit Timed(double& sum) : sum_(&sum), start_(seconds_now()) {}
  ~Timed() { *sum_ += seconds_now() - start_; }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  double* sum_;
  double start_;
};

/// Rotary table on a device.
template <class Dev>
struct Rope {
  Floats<Dev> table;
  RopeView view;

  static memra::Result<Rope> create(Dev& dev, std::size_t positions, std::size_t rot_dim, double theta) {
    auto table = Floats<Dev>::upload(dev, rope_table(positions, rot_dim, theta));
    if (!table) return table.status();
    Rope r{*std::move(table), {}};
    r.view = {r.table.data(), positions, rot_dim};
    return r;
  }
};

/// SwiGLU with its norm: h += down(silu(gate(n)) * up(n)), n = norm(h).
template <class Dev>
struct Mlp {
  Floats<Dev> norm;
  Matrix<Dev> gate;
  Matrix<Dev> up;
  Matrix<Dev> down;

  /// @param xn  [rows][hidden] scratch   @param f0, f1  [rows][n_ff] scratch
  void run(Dev& dev, float* h, std::size_t rows, float eps, float* xn, float* f0, float* f1) const {
    const std::size_t hidden = down.view.n_out;
    memra::check(memra::launch(dev, "rms_norm", {rows, 1, 1}, RmsNormBody{h, norm.data(), xn, hidden, eps}));
    memra::check(matmul(dev, gate.view, xn, rows, f0));
    memra::check(matmul(dev, up.view, xn, rows, f1));
    memra::check(memra::launch(dev, "silu_mul", {rows, 1, 1}, SiluMulBody{f0, f1, gate.view.n_out}));
    memra::check(matmul(dev, down.view, f0, rows, h, true));
  }
};

/// Reads the MLP of a layer whose tensors start with `at`.
template <class Dev>
Mlp<Dev> read_mlp(WeightReader<Dev>& r, const std::string& norm, const std::string& at, std::size_t hidden,
                  std::size_t n_ff, bool norm_minus_one) {
  Mlp<Dev> m;
  m.norm = r.norm(norm, hidden, norm_minus_one);
  m.gate = r.matrix(at + "gate_proj.weight", n_ff, hidden);
  m.up = r.matrix(at + "up_proj.weight", n_ff, hidden);
  m.down = r.matrix(at + "down_proj.weight", hidden, n_ff);
  return m;
}

/// Activations of up to `rows` rows on one device, allocated once.
template <class Dev>
struct Stage {
  Dev* dev = nullptr;
  std::optional<memra::Workspace<Dev>> workspace;
  std::optional<Rope<Dev>> rope;
  std::optional<typename Dev::Buffer> ids;        // [rows] i32
  Floats<Dev> h, xn;                              // [rows][hidden]: the residual stream, a normed copy
  Floats<Dev> wide;                               // [rows] x the widest projection
  Floats<Dev> q, k_raw, k, v, att;                // attention
  Floats<Dev> conv_in, conv_out, z, a, b, ba, o;  // delta rule
  Floats<Dev> f0, f1;                             // [rows][n_ff]

  std::int32_t* ids_data() const noexcept { return reinterpret_cast<std::int32_t*>(ids->data()); }

  static memra::Result<Stage> create(Dev& dev, const TrunkConfig& c, std::size_t rows, std::size_t positions,
                                     std::size_t workspace_bytes) {
    Stage s;
    s.dev = &dev;
    auto workspace = memra::Workspace<Dev>::create(dev, workspace_bytes);
    if (!workspace) return workspace.status();
    s.workspace.emplace(*std::move(workspace));
    auto rope = Rope<Dev>::create(dev, positions, c.rot_dim, c.rope_theta);
    if (!rope) return rope.status();
    s.rope.emplace(*std::move(rope));
    auto ids = dev.alloc(rows * sizeof(std::int32_t));
    if (!ids) return ids.status();
    s.ids.emplace(*std::move(ids));

    const std::size_t heads = c.n_heads * c.head_dim;
    const std::size_t kv = c.n_kv_heads * c.head_dim;
    const std::size_t values = c.n_v * c.d_v;
    const std::pair<Floats<Dev>*, std::size_t> wanted[] = {{&s.h, c.hidden},
                                                           {&s.xn, c.hidden},
                                                           {&s.wide, std::max(2 * heads, c.conv_dim() + values)},
                                                           {&s.q, heads},
                                                           {&s.k_raw, kv},
                                                           {&s.k, kv},
                                                           {&s.v, kv},
                                                           {&s.att, heads},
                                                           {&s.conv_in, c.conv_dim()},
                                                           {&s.conv_out, c.conv_dim()},
                                                           {&s.z, values},
                                                           {&s.a, c.n_v},
                                                           {&s.b, c.n_v},
                                                           {&s.ba, 2 * c.n_v},
                                                           {&s.o, values},
                                                           {&s.f0, c.n_ff},
                                                           {&s.f1, c.n_ff}};
    for (const auto& [floats, width] : wanted) {
      auto made = Floats<Dev>::alloc(dev, rows * width);
      if (!made) return made.status();
      *floats = *std::move(made);
    }
    return s;
  }
};

}  // namespace tiny
