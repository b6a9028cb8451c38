// One trunk layer's weights on its device.
#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <tiny_engine/config.hpp>
#include <tiny_engine/stage.hpp>
#include <tiny_engine/weights.hpp>

namespace tiny {

/// Attention layers fill the first group, delta-rule layers the second; all have the norms and the MLP.
template <class Dev>
struct LayerWeights {
  Floats<Dev> input_norm;
  Mlp<Dev> mlp;

  Matrix<Dev> q;  ///< per head [query head_dim | gate head_dim]
  Matrix<Dev> k, v, o;
  Floats<Dev> q_norm, k_norm;

  Matrix<Dev> qkv, z, b, a;  ///< Qwen3.5
  Matrix<Dev> qkvz, ba;      ///< Qwen3-Next
  Floats<Dev> conv;          ///< [conv_dim][d_conv]
  Floats<Dev> neg_rate;      ///< [n_v] -exp(A_log)
  Floats<Dev> dt_bias;       ///< [n_v]
  Floats<Dev> out_norm;      ///< [d_v]
  Matrix<Dev> out;
};

/// @param il  layer; tensor names start with "layers.<il>."
template <class Dev>
LayerWeights<Dev> read_layer(WeightReader<Dev>& r, const TrunkConfig& c, std::size_t il) {
  const std::string at = "layers." + std::to_string(il) + ".";
  LayerWeights<Dev> w;
  w.input_norm = r.norm(at + "input_layernorm.weight", c.hidden, true);
  w.mlp = read_mlp(r, at + "post_attention_layernorm.weight", at + "mlp.", c.hidden, c.n_ff, true);
  if (c.full_attention[il]) {
    const std::string sa = at + "self_attn.";
    w.q = r.matrix(sa + "q_proj.weight", 2 * c.n_heads * c.head_dim, c.hidden);
    w.k = r.matrix(sa + "k_proj.weight", c.n_kv_heads * c.head_dim, c.hidden);
    w.v = r.matrix(sa + "v_proj.weight", c.n_kv_heads * c.head_dim, c.hidden);
    w.o = r.matrix(sa + "o_proj.weight", c.hidden, c.n_heads * c.head_dim);
    w.q_norm = r.norm(sa + "q_norm.weight", c.head_dim, true);
    w.k_norm = r.norm(sa + "k_norm.weight", c.head_dim, true);
    return w;
  }
  const std::string la = at + "linear_attn.";
  const std::size_t values = c.n_v * c.d_v;
  if (c.family == Family::qwen3_next) {
    w.qkvz = r.matrix(la + "in_proj_qkvz.weight", c.conv_dim() + values, c.hidden);
    w.ba = r.matrix(la + "in_proj_ba.weight", 2 * c.n_v, c.hidden);
  } else {
    w.qkv = r.matrix(la + "in_proj_qkv.weight", c.conv_dim(), c.hidden);
    w.z = r.matrix(la + "in_proj_z.weight", values, c.hidden);
    w.b = r.matrix(la + "in_proj_b.weight", c.n_v, c.hidden);
    w.a = r.matrix(la + "in_proj_a.weight", c.n_v, c.hidden);
  }
  w.conv = r.floats(la + "conv1d.weight", {c.conv_dim(), 1, c.d_conv});
  w.neg_rate = r.floats(la + "A_log", {c.n_v}, [](float x) { return -std::exp(x); });
  w.dt_bias = r.floats(la + "dt_bias", {c.n_v});
  w.out_norm = r.norm(la + "norm.weight", c.d_v, false);
  w.out = r.matrix(la + "out_proj.weight", c.hidden, values);
  return w;
}

}  // namespace tiny
