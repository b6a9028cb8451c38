// One recurrent layer of any rule and format over plain vectors, with the inputs of some tokens and room for a round.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memra/codec.hpp>
#include <memra/model_config.hpp>
#include <memra/ops.hpp>
#include <memra/round_views.hpp>
#include <support/planes.hpp>
#include <vector>

namespace memra_test {

/// Elements in the format they are kept in, and the view of them.
class StateVector {
 public:
  StateVector() = default;
  StateVector(const std::vector<float>& x, memra::Format f) : format_(f), bytes_(memra::row_bytes(f, x.size())) {
    memra::encode(f, x.data(), bytes_.data(), x.size());
  }
  memra::StateElems view() {
    auto* p = bytes_.data();
    return format_ == memra::Format::f32 ? memra::StateElems{reinterpret_cast<float*>(p), nullptr, format_}
                                         : memra::StateElems{nullptr, reinterpret_cast<std::uint16_t*>(p), format_};
  }
  std::vector<float> decoded() const {
    std::vector<float> x(bytes_.size() / memra::row_bytes(format_, 1));
    memra::decode(format_, bytes_.data(), x.data(), x.size());
    return x;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  friend bool operator==(const StateVector&, const StateVector&) = default;

 private:
  memra::Format format_ = memra::Format::f32;
  std::vector<std::byte> bytes_;
};

struct RuleLayer {
  memra::RecurrentSpec spec;
  std::size_t tokens;
  std::vector<float> x, weight, q, k, v, g, beta, a;
  StateVector conv, ssm, planes;
  std::vector<float> conv_rows, kept_k, kept_u, kept_decay;
  memra::RoundWords words;
  std::int32_t pos = 100;

  RuleLayer(const memra::RecurrentSpec& s, std::size_t n, std::uint64_t seed = 1) : spec(s), tokens(n) {
    Rng rng(seed);
    const std::size_t c = spec.conv_dim();
    conv = {rng.vector(c * (spec.d_conv - 1) + 1), spec.conv_format};
    ssm = {rng.vector(state() + 1), spec.ssm_format};
    planes = {std::vector<float>(n * state() + 1, std::nanf("")), spec.ssm_format};
    x = rng.vector(n * c);
    weight = rng.vector(c * spec.d_conv);
    const float unit = 1.0F / std::sqrt(static_cast<float>(spec.d_k + 1));
    q = rng.vector(n * spec.n_k_heads * spec.d_k, unit);
    k = rng.vector(n * spec.n_k_heads * spec.d_k, unit);
    v = rng.vector(n * spec.n_v_heads * spec.d_v);
    g = rng.vector(n * g_row());
    beta = rng.vector(n * spec.n_v_heads);
    a = rng.vector(spec.d_v * spec.d_k);
    for (float& e : g) e = (spec.rule == memra::ScanRule::mamba1 ? 0.5F : -0.5F) * std::fabs(e);
    for (float& e : beta) e = std::fabs(e);
    for (float& e : a) e = -std::fabs(e);
    conv_rows.assign(n * c, std::nanf(""));
    kept_k.assign(k.size(), std::nanf(""));
    kept_u.assign(v.size(), std::nanf(""));
    kept_decay.assign(n * spec.n_v_heads * (spec.rule == memra::ScanRule::kda ? spec.d_k : 1), std::nanf(""));
  }

  std::size_t state() const { return spec.n_v_heads * spec.d_v * spec.d_k; }
  std::size_t g_row() const {
    return spec.rule == memra::ScanRule::mamba1 ? spec.d_v
                                                : spec.n_v_heads * (spec.rule == memra::ScanRule::kda ? spec.d_k : 1);
  }

  memra::RecurView view(std::size_t rows, memra::RoundMode mode) {
    memra::RecurView r;
    r.conv = conv.view().f32;
    r.conv16 = conv.view().bits;
    r.ssm = ssm.view().f32;
    r.ssm16 = ssm.view().bits;
    r.n_k_heads = spec.n_k_heads;
    r.n_v_heads = spec.n_v_heads;
    r.d_k = spec.d_k;
    r.d_v = spec.d_v;
    r.d_conv = spec.d_conv;
    r.map = spec.map;
    r.rows = rows;
    r.rule = spec.rule;
    r.conv_channels = spec.conv_channels;
    r.conv_format = spec.conv_format;
    r.ssm_format = spec.ssm_format;
    r.round = {mode,          &words.plane,  planes.view().f32, tokens + 1,        conv_rows.data(),
               kept_k.data(), kept_u.data(), kept_decay.data(), planes.view().bits};
    return r;
  }

  struct Outputs {
    std::vector<float> y, out;
    friend bool operator==(const Outputs& l, const Outputs& r) {
      return same_bits(l.y, r.y) && same_bits(l.out, r.out);
    }
    void append(const Outputs& more) {
      y.insert(y.end(), more.y.begin(), more.y.end());
      out.insert(out.end(), more.out.begin(), more.out.end());
    }
  };

  memra::ScanArgs scan_args(std::size_t first, float* out) const {
    memra::ScanArgs s;
    s.q = q.data() + first * spec.n_k_heads * spec.d_k;
    s.k = k.data() + first * spec.n_k_heads * spec.d_k;
    s.v = v.data() + first * spec.n_v_heads * spec.d_v;
    s.g = g.data() + first * g_row();
    s.beta = beta.data() + first * spec.n_v_heads;
    s.a = a.data();
    s.out = out;
    return s;
  }

  /// Tokens [first, first + rows) through the convolution and the scan.
  template <class Dev>
  Outputs run(std::size_t first, std::size_t rows, memra::RoundMode mode = memra::RoundMode::none) {
    Outputs o;
    const std::size_t c = spec.conv_dim();
    o.y.assign(rows * c, std::nanf(""));
    o.out.assign(rows * spec.n_v_heads * spec.d_v, std::nanf(""));
    Dev dev;
    const memra::ops_for<Dev> ops(dev);
    const memra::RecurView r = view(rows, mode);
    memra::check(ops.conv_update(r, {x.data() + first * c, weight.data(), nullptr, o.y.data(), true}));
    const memra::ScanArgs s = scan_args(first, o.out.data());
    if (spec.rule == memra::ScanRule::none) return o;
    const bool delta = spec.rule == memra::ScanRule::gated_delta || spec.rule == memra::ScanRule::kda;
    memra::check(delta ? ops.delta_scan(r, s) : ops.linear_scan(r, s));
    return o;
  }

  memra::RoundCommit commit(const memra::RecurView& table, std::size_t rows, std::size_t accept,
                            memra::RoundMode mode) {
    memra::RoundCommit c;
    c.layers = &table;
    c.n_layers = 1;
    c.conv_dim = spec.conv_dim();
    c.heads = spec.n_v_heads;
    c.pos_d = &pos;
    c.words = &words;
    c.accept = static_cast<std::int32_t>(accept);
    c.rows = static_cast<std::int32_t>(rows);
    c.capacity = 1000;
    c.n_planes = static_cast<std::int32_t>(tokens + 1);
    c.mode = mode;
    c.plain = table.plain();
    return c;
  }

  /// The current ssm, as f32.
  std::vector<float> current() {
    const memra::StateElems s = view(0, memra::RoundMode::none).plane_state(static_cast<std::size_t>(words.plane));
    std::vector<float> all(state());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = s.load(i);
    return all;
  }
};

}  // namespace memra_test
