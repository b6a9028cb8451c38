// The block-diffusion drafter: reads the trunk's taps, keeps its own KV, proposes a block of tokens at once.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memra/dflash_kv.hpp>
#include <memra/error.hpp>
#include <memra/ops.hpp>
#include <memra/workspace.hpp>
#include <optional>
#include <string>
#include <tiny_engine/draft_config.hpp>
#include <tiny_engine/norms.hpp>
#include <tiny_engine/stage.hpp>
#include <tiny_engine/trunk.hpp>
#include <utility>
#include <vector>

namespace tiny {

/// Geometry of the drafter's KV cache.
/// @param ring  keep what the window needs, whatever the context
inline memra::DflashCfg draft_kv_config(const DraftConfig& c, bool ring = false) {
  memra::DflashCfg kv;
  kv.n_layer = c.n_layers;
  kv.n_kv = c.n_kv_heads;
  kv.head_dim = c.head_dim;
  kv.block_size = c.block_size;
  kv.sliding_window = c.window;
  kv.ring = ring;
  return kv;
}

/// Lives on the trunk's head device and shares its embedding and head. Making one reports by Status; running throws
/// memra::Error.
template <class Dev>
class Drafter {
 public:
  /// As Trunk::check_files.
  static memra::Status check_files(const DraftConfig& config, const SafeTensors& file) {
    WeightReader<Dev> r(file, "");
    r.matrix("fc.weight", config.hidden, config.hidden * config.n_taps());
    r.norm("hidden_norm.weight", config.hidden, false);
    r.norm("norm.weight", config.hidden, false);
    for (std::size_t l = 0; l < config.n_layers && r.status(); ++l) read_layer(r, config, l);
    return r.status();
  }

  /// @param trunk  must outlive the drafter
  /// @param cap    committed rows of the draft KV: the context
  /// @param ring   as draft_kv_config
  static memra::Result<Drafter> create(const DraftConfig& config, const SafeTensors& file, Trunk<Dev>& trunk,
                                       std::size_t cap, bool ring = false) {
    if (memra::Status s = check_files(config, file); !s) return s;
    Dev& dev = trunk.head_device();
    auto kv = memra::DflashKv<Dev>::create(dev, draft_kv_config(config, ring), cap);
    if (!kv) return kv.status();
    Drafter d(config, trunk, *std::move(kv));
    WeightReader<Dev> r(dev, file, "");
    const std::size_t hidden = config.hidden;
    d.fc_ = r.matrix("fc.weight", hidden, hidden * config.n_taps());
    d.hidden_norm_ = r.norm("hidden_norm.weight", hidden, false);
    d.norm_ = r.norm("norm.weight", hidden, false);
    for (std::size_t l = 0; l < config.n_layers; ++l) d.layers_.push_back(read_layer(r, config, l));
    if (!r.status()) return r.status();
    if (memra::Status s = d.allocate(cap); !s) return s;
    return d;
  }

  const DraftConfig& config() const noexcept { return config_; }
  memra::DflashKv<Dev>& kv() noexcept { return kv_; }
  const memra::DflashKv<Dev>& kv() const noexcept { return kv_; }
  /// Puts another draft KV in place, such as one restored from a tail. @pre same geometry, device and cap
  void replace_kv(memra::DflashKv<Dev>&& kv) { kv_ = std::move(kv); }

  /// Computes K and V of opened rows of kv() from the taps of their tokens. The values do not depend on the batching.
  /// @param taps  [open.rows()][n_taps * hidden] on the head device; row 0 belongs to token open.first()
  void write(const typename memra::DflashKv<Dev>::Rows& open, const float* taps) {
    Dev& dev = trunk_->head_device();
    const std::size_t hidden = config_.hidden;
    const std::size_t t = open.rows();
    memra::check(matmul(dev, fc_.view, taps, t, x_.data()));
    memra::check(memra::launch(dev, "hidden_norm", {t, 1, 1},
                               RmsNormBody{x_.data(), hidden_norm_.data(), xn_.data(), hidden, config_.eps}));
    for (std::size_t l = 0; l < layers_.size(); ++l) write_kv(layers_[l], open.view(l), xn_.data(), t);
  }

  /// Proposes b - 1 tokens to follow `last`, which stands at position kv().len(). Commits nothing.
  /// @param b  rows of the block, 1 to block_size; 1 proposes nothing and runs nothing
  std::vector<std::int32_t> propose(std::int32_t last, std::size_t b, memra::DraftArm arm = memra::DraftArm::clip) {
    if (b <= 1) return {};
    run_block(last, b, arm);
    const std::size_t hidden = config_.hidden;
    Dev& dev = trunk_->head_device();
    memra::check(memra::launch(dev, "draft_norm", {b - 1, 1, 1},
                               RmsNormBody{x_.data() + hidden, norm_.data(), xn_.data(), hidden, config_.eps}));
    memra::check(matmul(dev, trunk_->head_view(), xn_.data(), b - 1, logits_.data()));
    return trunk_->argmax(logits_.data(), b - 1);
  }

  /// The block's hidden rows after the last layer, [b][hidden] on the head device, for comparing arms and devices.
  const float* run_block(std::int32_t last, std::size_t b, memra::DraftArm arm) {
    Dev& dev = trunk_->head_device();
    const memra::ops_for<Dev> ops(dev);
    std::vector<std::int32_t> ids(b, config_.mask_token);
    ids[0] = last;
    auto block = memra::check(kv_.begin_block(b));
    auto* ids_d = reinterpret_cast<std::int32_t*>(ids_->data());
    memra::check(dev.store_i32(ids_d, ids.data(), b));
    memra::check(ops.gather_rows(trunk_->embedding(), ids_d, b, x_.data()));
    const std::size_t hidden = config_.hidden;
    const std::size_t d = config_.head_dim;
    const float scale = 1.0F / std::sqrt(static_cast<float>(d));
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const Layer& w = layers_[l];
      const memra::DraftView view = block.view(l);
      memra::check(memra::launch(dev, "draft_norm", {b, 1, 1},
                                 RmsNormBody{x_.data(), w.input_norm.data(), xn_.data(), hidden, config_.eps}));
      write_kv(w, view, xn_.data(), b);
      memra::check(matmul(dev, w.q.view, xn_.data(), b, q_raw_.data()));
      memra::check(memra::launch(dev, "draft_q_rope", {b, config_.n_heads, 1},
                                 HeadNormRopeBody{q_raw_.data(), config_.n_heads * d, d, w.q_norm.data(), q_.data(),
                                                  config_.n_heads, d, config_.eps, rope_->view, view.len_d}));
      memra::check(ops.draft_attend(view, {q_.data(), att_.data(), config_.n_heads, scale, arm}, workspace_->view()));
      memra::check(matmul(dev, w.o.view, att_.data(), b, x_.data(), true));
      w.mlp.run(dev, x_.data(), b, config_.eps, xn_.data(), f0_.data(), f1_.data());
    }
    return x_.data();
  }

 private:
  struct Layer {
    Floats<Dev> input_norm, q_norm, k_norm;
    Matrix<Dev> q, k, v, o;
    Mlp<Dev> mlp;
  };

  Drafter(const DraftConfig& config, Trunk<Dev>& trunk, memra::DflashKv<Dev>&& kv)
      : config_(config), trunk_(&trunk), kv_(std::move(kv)) {}

  static Layer read_layer(WeightReader<Dev>& r, const DraftConfig& c, std::size_t l) {
    const std::string at = "layers." + std::to_string(l) + ".";
    Layer w;
    w.input_norm = r.norm(at + "input_layernorm.weight", c.hidden, false);
    w.q = r.matrix(at + "q_proj.weight", c.n_heads * c.head_dim, c.hidden);
    w.k = r.matrix(at + "k_proj.weight", c.n_kv_heads * c.head_dim, c.hidden);
    w.v = r.matrix(at + "v_proj.weight", c.n_kv_heads * c.head_dim, c.hidden);
    w.o = r.matrix(at + "o_proj.weight", c.hidden, c.n_heads * c.head_dim);
    w.q_norm = r.norm(at + "q_norm.weight", c.head_dim, false);
    w.k_norm = r.norm(at + "k_norm.weight", c.head_dim, false);
    w.mlp = read_mlp(r, at + "post_attention_layernorm.weight", at, c.hidden, c.n_ff, false);
    return w;
  }

  memra::Status allocate(std::size_t cap) {
    Dev& dev = trunk_->head_device();
    rows_ = std::max(trunk_->max_rows(), config_.block_size);
    auto rope = Rope<Dev>::create(dev, cap + config_.block_size, config_.head_dim, config_.rope_theta);
    if (!rope) return rope.status();
    rope_.emplace(*std::move(rope));
    auto workspace = memra::Workspace<Dev>::create(dev, kv_.workspace_bytes(config_.n_heads));
    if (!workspace) return workspace.status();
    workspace_.emplace(*std::move(workspace));
    auto ids = dev.alloc(config_.block_size * sizeof(std::int32_t));
    if (!ids) return ids.status();
    ids_.emplace(*std::move(ids));
    const std::size_t heads = config_.n_heads * config_.head_dim;
    const std::size_t kv = config_.n_kv_heads * config_.head_dim;
    const std::pair<Floats<Dev>*, std::size_t> wanted[] = {{&x_, config_.hidden},
                                                           {&xn_, config_.hidden},
                                                           {&q_raw_, heads},
                                                           {&q_, heads},
                                                           {&k_raw_, kv},
                                                           {&k_, kv},
                                                           {&v_, kv},
                                                           {&att_, heads},
                                                           {&f0_, config_.n_ff},
                                                           {&f1_, config_.n_ff},
                                                           {&logits_, trunk_->config().n_vocab}};
    for (const auto& [floats, width] : wanted) {
      auto made = Floats<Dev>::alloc(dev, rows_ * width);
      if (!made) return made.status();
      *floats = *std::move(made);
    }
    return {};
  }

  /// K (normed, roped) and V (raw) of `t` rows of features, at the view's rows.
  void write_kv(const Layer& w, const memra::DraftView& view, const float* features, std::size_t t) {
    Dev& dev = trunk_->head_device();
    const std::size_t d = config_.head_dim;
    const std::size_t n = config_.n_kv_heads;
    memra::check(matmul(dev, w.k.view, features, t, k_raw_.data()));
    memra::check(matmul(dev, w.v.view, features, t, v_.data()));
    memra::check(memra::launch(dev, "draft_k_rope", {t, n, 1},
                               HeadNormRopeBody{k_raw_.data(), n * d, d, w.k_norm.data(), k_.data(), n, d, config_.eps,
                                                rope_->view, view.len_d}));
    memra::check(memra::ops_for<Dev>(dev).draft_write(view, k_.data(), v_.data()));
  }

  DraftConfig config_;
  Trunk<Dev>* trunk_;
  memra::DflashKv<Dev> kv_;
  Matrix<Dev> fc_;
  Floats<Dev> hidden_norm_, norm_;
  std::vector<Layer> layers_;
  std::size_t rows_ = 0;  // of every activation
  std::optional<Rope<Dev>> rope_;
  std::optional<memra::Workspace<Dev>> workspace_;
  std::optional<typename Dev::Buffer> ids_;  // [block_size] i32
  Floats<Dev> x_, xn_, q_raw_, q_, k_raw_, k_, v_, att_, f0_, f1_, logits_;
};

}  // namespace tiny
