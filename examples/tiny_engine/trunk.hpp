// The trunk: a hybrid transformer whose state lives in a memra::Cache, on the devices the cache is on.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memra/cache.hpp>
#include <memra/error.hpp>
#include <memra/ops.hpp>
#include <optional>
#include <span>
#include <string>
#include <tiny_engine/config.hpp>
#include <tiny_engine/layer_weights.hpp>
#include <tiny_engine/safetensors.hpp>
#include <tiny_engine/stage.hpp>
#include <utility>
#include <vector>

namespace tiny {

struct TrunkOptions {
  std::size_t max_rows = 64;  ///< rows of one forward: prefill chunks and verify blocks
};

/// Host seconds spent inside forward, by what they were for. The rest of a forward is the model's own arithmetic.
struct TrunkTimes {
  double forward = 0;    ///< all of it
  double state = 0;      ///< begin_step, views, advance
  double state_ops = 0;  ///< append, attend, conv, scan
};

/// Weights and activations. Runs any cache that has the shape and the devices of the one it was made for; a row's bits
/// depend neither on the rows beside it nor on chunks or stages.
///
/// Making one reports by Status; running throws memra::Error (through check). A forward that threw left a step open:
/// roll back or reset the cache.
template <class Dev>
class Trunk {
 public:
  /// Whether the file has every tensor this config needs, in its shape. Allocates nothing: ask before a cache is made
  /// from a config that nobody vouches for.
  static memra::Status check_files(const TrunkConfig& config, const SafeTensors& file) {
    WeightReader<Dev> reader(file, prefix(file));
    reader.matrix("embed_tokens.weight", config.n_vocab, config.hidden);
    reader.norm("norm.weight", config.hidden, true);
    for (std::size_t il = 0; il < config.n_layers() && reader.status(); ++il) read_layer(reader, config, il);
    if (!reader.status() || config.tied_head) return reader.status();
    WeightReader<Dev> outside(file, "");
    outside.matrix("lm_head.weight", config.n_vocab, config.hidden);
    return outside.status();
  }

  /// @param cache  where the layers live; it is not kept
  static memra::Result<Trunk> create(const TrunkConfig& config, const SafeTensors& file, const memra::Cache<Dev>& cache,
                                     const TrunkOptions& options = {}) {
    Trunk t;
    t.config_ = config;
    t.max_rows_ = options.max_rows;
    if (options.max_rows == 0 || cache.n_layer() != config.n_layers()) {
      return memra::Status::failure(memra::ErrorKind::bad_argument, "Trunk::create", 0, 0,
                                    "a cache of %zu layers for a trunk of %zu, %zu rows", cache.n_layer(),
                                    config.n_layers(), options.max_rows);
    }
    if (memra::Status s = check_files(config, file); !s) return s;
    const std::string base = prefix(file);
    for (std::size_t il = 0; il < config.n_layers(); ++il) {
      Dev& dev = cache.dev(il);
      memra::Result<std::size_t> at = t.stage_on(dev, cache);
      if (!at) return at.status();
      t.stage_of_.push_back(*at);
      WeightReader<Dev> reader(dev, file, base);
      t.layers_.push_back(read_layer(reader, config, il));
      if (!reader.status()) return reader.status();
    }
    if (memra::Status s = t.read_ends(file, base); !s) return s;
    return t;
  }

  const TrunkConfig& config() const noexcept { return config_; }
  std::size_t max_rows() const noexcept { return max_rows_; }
  const TrunkTimes& times() const noexcept { return times_; }
  void clear_times() noexcept { times_ = {}; }

  /// Feeds tokens at cache.pos() and commits them. Logits of rows [first_logits, n) are left on the last device.
  ///
  /// @param tokens  1 to max_rows ids below n_vocab
  /// @param first_logits  n: none
  void forward(memra::Cache<Dev>& cache, std::span<const std::int32_t> tokens, std::size_t first_logits) {
    const Timed timed(times_.forward);
    check_tokens(tokens, first_logits);
    const std::size_t rows = tokens.size();
    std::optional<memra::Step<Dev>> step;
    {
      const Timed state(times_.state);
      step.emplace(memra::check(cache.begin_step(rows)));
    }
    Stage<Dev>* at = &stages_[stage_of_.front()];
    memra::check(at->dev->store_i32(at->ids_data(), tokens.data(), rows));
    memra::check(memra::ops_for<Dev>(*at->dev).gather_rows(embedding_.table(), at->ids_data(), rows, at->h.data()));
    for (std::size_t il = 0; il < layers_.size(); ++il) {
      Stage<Dev>& s = stages_[stage_of_[il]];
      if (&s != at) hand_over(*at, s, rows);
      at = &s;
      rms(s, s.h.data(), layers_[il].input_norm, rows);
      config_.full_attention[il] ? attention(s, il, *step, rows) : delta_rule(s, il, *step, rows);
      layers_[il].mlp.run(*s.dev, s.h.data(), rows, config_.eps, s.xn.data(), s.f0.data(), s.f1.data());
      if (const std::optional<memra::TapView> tap = step->tap(il)) leave_tap(s, *tap, *cache.dflash_taps());
    }
    {
      const Timed state(times_.state);
      memra::check(cache.advance());
    }
    n_logits_ = rows - first_logits;
    if (n_logits_ == 0) return;
    rms(*at, at->h.data() + first_logits * config_.hidden, final_norm_, n_logits_);
    memra::check(matmul(*at->dev, head().view, at->xn.data(), n_logits_, logits_.data()));
  }

  // --- results of the last forward ---

  std::size_t n_logits() const noexcept { return n_logits_; }
  /// [n_logits][n_vocab] on head_device(); overwritten by the next forward.
  const float* logits_dev() const noexcept { return logits_.data(); }
  /// Copies the logits to the host: [n_logits][n_vocab].
  std::vector<float> logits() {
    std::vector<float> out(n_logits_ * config_.n_vocab);
    memra::check(head_device().download(reinterpret_cast<std::byte*>(out.data()),
                                        reinterpret_cast<const std::byte*>(logits_.data()), out.size() * 4));
    return out;
  }
  /// Greedy choice of every logits row.
  std::vector<std::int32_t> choices() { return argmax(logits_.data(), n_logits_); }

  // --- what a drafter shares ---

  Dev& head_device() const noexcept { return *stages_[stage_of_.back()].dev; }
  /// The embedding on head_device().
  memra::TableView embedding() const noexcept {
    return config_.tied_head ? head().table() : (embedding_at_head_.buffer ? embedding_at_head_ : embedding_).table();
  }
  const MatrixView& head_view() const noexcept { return head().view; }
  /// Greedy choice of `rows` rows [rows][n_vocab] on head_device(). @pre rows <= max_rows
  std::vector<std::int32_t> argmax(const float* logits, std::size_t rows) {
    std::vector<std::int32_t> ids(rows);
    Dev& dev = head_device();
    std::int32_t* out = reinterpret_cast<std::int32_t*>(choices_->data());
    memra::check(memra::ops_for<Dev>(dev).argmax_rows(logits, rows, config_.n_vocab, out));
    memra::check(dev.download(reinterpret_cast<std::byte*>(ids.data()), choices_->data(), rows * sizeof(std::int32_t)));
    for (const std::int32_t id : ids) {
      if (id < 0) {
        memra::check(memra::Status::failure(memra::ErrorKind::corrupt, "argmax", 0, 0,
                                            "a row of logits holds only NaN; are the weights sound?"));
      }
    }
    return ids;
  }

 private:
  Trunk() = default;

  /// Multimodal checkpoints keep the text model one level deeper.
  static std::string prefix(const SafeTensors& file) {
    const bool nested = file.find("model.language_model.embed_tokens.weight") != nullptr;
    return nested ? "model.language_model." : "model.";
  }

  const Matrix<Dev>& head() const noexcept { return head_.buffer ? head_ : embedding_; }

  memra::Result<std::size_t> stage_on(Dev& dev, const memra::Cache<Dev>& cache) {
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (stages_[i].dev == &dev) return i;
    }
    auto made = Stage<Dev>::create(dev, config_, max_rows_, cache.max_ctx(), cache.plan().workspace_bytes(max_rows_));
    if (!made) return made.status();
    stages_.push_back(*std::move(made));
    return stages_.size() - 1;
  }

  /// Embedding on the first device; norm, head and, for a drafter, the embedding on the last.
  memra::Status read_ends(const SafeTensors& file, const std::string& base) {
    Dev& first = *stages_[stage_of_.front()].dev;
    Dev& last = head_device();
    WeightReader<Dev> at_first(first, file, base);
    embedding_ = at_first.matrix("embed_tokens.weight", config_.n_vocab, config_.hidden);
    if (!at_first.status()) return at_first.status();
    WeightReader<Dev> at_last(last, file, base);
    final_norm_ = at_last.norm("norm.weight", config_.hidden, true);
    const bool apart = &first != &last;
    if (config_.tied_head) {
      if (apart) head_ = at_last.matrix("embed_tokens.weight", config_.n_vocab, config_.hidden);
    } else if (apart) {
      embedding_at_head_ = at_last.matrix("embed_tokens.weight", config_.n_vocab, config_.hidden);
    }
    if (!at_last.status()) return at_last.status();
    if (!config_.tied_head) {
      WeightReader<Dev> outside(last, file, "");
      head_ = outside.matrix("lm_head.weight", config_.n_vocab, config_.hidden);
      if (!outside.status()) return outside.status();
    }
    auto logits = Floats<Dev>::alloc(last, max_rows_ * config_.n_vocab);
    if (!logits) return logits.status();
    logits_ = *std::move(logits);
    auto choices = last.alloc(max_rows_ * sizeof(std::int32_t));
    if (!choices) return choices.status();
    choices_.emplace(*std::move(choices));
    return {};
  }

  void check_tokens(std::span<const std::int32_t> tokens, std::size_t first_logits) const {
    if (tokens.empty() || tokens.size() > max_rows_ || first_logits > tokens.size()) {
      memra::check(memra::Status::failure(memra::ErrorKind::bad_argument, "forward", 0, 0,
                                          "%zu tokens; expected 1 to %zu", tokens.size(), max_rows_));
    }
    for (const std::int32_t id : tokens) {
      if (id < 0 || static_cast<std::size_t>(id) >= config_.n_vocab) {
        memra::check(memra::Status::failure(memra::ErrorKind::bad_argument, "forward", 0, 0,
                                            "token %d is not below vocab_size %zu", id, config_.n_vocab));
      }
    }
  }

  /// xn = norm(x).
  void rms(Stage<Dev>& s, const float* x, const Floats<Dev>& w, std::size_t rows) {
    memra::check(memra::launch(*s.dev, "rms_norm", {rows, 1, 1},
                               RmsNormBody{x, w.data(), s.xn.data(), config_.hidden, config_.eps}));
  }

  void attention(Stage<Dev>& s, std::size_t il, memra::Step<Dev>& step, std::size_t rows) {
    const TrunkConfig& c = config_;
    const LayerWeights<Dev>& w = layers_[il];
    Dev& dev = *s.dev;
    const std::size_t d = c.head_dim;
    memra::check(matmul(dev, w.q.view, s.xn.data(), rows, s.wide.data()));
    memra::check(matmul(dev, w.k.view, s.xn.data(), rows, s.k_raw.data()));
    memra::check(matmul(dev, w.v.view, s.xn.data(), rows, s.v.data()));
    double views = seconds_now();
    const memra::KvWriteView write = memra::check(step.kv_write(il));
    const memra::KvReadView read = memra::check(step.kv_read(il));
    times_.state += seconds_now() - views;
    const std::size_t q_row = 2 * c.n_heads * d;
    memra::check(memra::launch(dev, "q_norm_rope", {rows, c.n_heads, 1},
                               HeadNormRopeBody{s.wide.data(), q_row, 2 * d, w.q_norm.data(), s.q.data(), c.n_heads, d,
                                                c.eps, s.rope->view, write.at.pos_d}));
    memra::check(memra::launch(dev, "k_norm_rope", {rows, c.n_kv_heads, 1},
                               HeadNormRopeBody{s.k_raw.data(), c.n_kv_heads * d, d, w.k_norm.data(), s.k.data(),
                                                c.n_kv_heads, d, c.eps, s.rope->view, write.at.pos_d}));
    {
      const Timed ops_time(times_.state_ops);
      const memra::ops_for<Dev> ops(dev);
      memra::check(ops.append(write, s.k.data(), s.v.data()));
      const float scale = 1.0F / std::sqrt(static_cast<float>(d));
      memra::check(ops.attend(read, {s.q.data(), s.att.data(), c.n_heads, scale}, s.workspace->view()));
    }
    memra::check(memra::launch(dev, "sigmoid_gate", {rows, c.n_heads, 1},
                               SigmoidGateBody{s.att.data(), s.wide.data() + d, q_row, 2 * d, c.n_heads, d}));
    memra::check(matmul(dev, w.o.view, s.att.data(), rows, s.h.data(), true));
  }

  void delta_rule(Stage<Dev>& s, std::size_t il, memra::Step<Dev>& step, std::size_t rows) {
    const TrunkConfig& c = config_;
    const LayerWeights<Dev>& w = layers_[il];
    Dev& dev = *s.dev;
    if (c.family == Family::qwen3_next) {
      memra::check(matmul(dev, w.qkvz.view, s.xn.data(), rows, s.wide.data()));
      memra::check(matmul(dev, w.ba.view, s.xn.data(), rows, s.ba.data()));
      memra::check(memra::launch(dev, "unfuse", {rows, c.n_k, 1},
                                 UnfuseBody{s.wide.data(), s.ba.data(), s.conv_in.data(), s.z.data(), s.a.data(),
                                            s.b.data(), c.n_k, c.n_v, c.d_k, c.d_v}));
    } else {
      memra::check(matmul(dev, w.qkv.view, s.xn.data(), rows, s.conv_in.data()));
      memra::check(matmul(dev, w.z.view, s.xn.data(), rows, s.z.data()));
      memra::check(matmul(dev, w.b.view, s.xn.data(), rows, s.b.data()));
      memra::check(matmul(dev, w.a.view, s.xn.data(), rows, s.a.data()));
    }
    memra::check(memra::launch(dev, "decay", {rows, 1, 1},
                               DecayBody{s.a.data(), s.b.data(), w.neg_rate.data(), w.dt_bias.data(), c.n_v}));
    double views = seconds_now();
    const memra::RecurView state = memra::check(step.recur(il));
    times_.state += seconds_now() - views;
    const memra::ops_for<Dev> ops(dev);
    {
      const Timed ops_time(times_.state_ops);
      memra::check(ops.conv_update(state, {s.conv_in.data(), w.conv.data(), nullptr, s.conv_out.data(), true}));
    }
    const std::size_t width = c.conv_dim();
    float* q = s.conv_out.data();  // [q | k | v] per row: 2 n_k heads to normalise, then the values
    memra::check(memra::launch(dev, "l2_norm", {rows, 2 * c.n_k, 1}, L2NormBody{q, width, c.d_k}));
    {
      const Timed ops_time(times_.state_ops);
      memra::ScanArgs scan;
      scan.q = q;
      scan.k = q + c.n_k * c.d_k;
      scan.v = q + 2 * c.n_k * c.d_k;
      scan.g = s.a.data();
      scan.beta = s.b.data();
      scan.out = s.o.data();
      scan.q_stride = scan.k_stride = scan.v_stride = width;
      memra::check(ops.delta_scan(state, scan));
    }
    memra::check(memra::launch(dev, "gated_rms_norm", {rows, c.n_v, 1},
                               GatedRmsNormBody{s.o.data(), w.out_norm.data(), s.z.data(), c.n_v, c.d_v, c.eps}));
    memra::check(matmul(dev, w.out.view, s.o.data(), rows, s.h.data(), true));
  }

  /// The residual stream moves to the next device: directly where a pair can, else through the host.
  void hand_over(Stage<Dev>& from, Stage<Dev>& to, std::size_t rows) {
    const std::size_t bytes = rows * config_.hidden * sizeof(float);
    auto* dst = reinterpret_cast<std::byte*>(to.h.data());
    const auto* src = reinterpret_cast<const std::byte*>(from.h.data());
    if constexpr (memra::PeerCopyDev<Dev>) {
      memra::check(to.dev->copy_peer(dst, *from.dev, src, bytes));
    } else {
      staging_.resize(max_rows_ * config_.hidden);
      auto* host = reinterpret_cast<std::byte*>(staging_.data());
      memra::check(from.dev->download(host, src, bytes));
      memra::check(to.dev->upload(dst, host, bytes));
    }
  }

  void leave_tap(Stage<Dev>& s, const memra::TapView& tap, const memra::DflashTapSink<Dev>& sink) {
    const std::size_t row = tap.hidden * sizeof(float);
    auto* dst = reinterpret_cast<std::byte*>(tap.data);
    const auto* src = reinterpret_cast<const std::byte*>(s.h.data());
    const std::size_t stride = tap.row_stride * sizeof(float);
    if (&sink.device() == s.dev) {
      memra::check(memra::ops_for<Dev>(*s.dev).copy_rows(dst, stride, src, row, row, tap.rows));
      return;
    }
    staging_.resize(max_rows_ * config_.hidden);
    auto* host = reinterpret_cast<std::byte*>(staging_.data());
    memra::check(s.dev->download(host, src, tap.rows * row));
    for (std::size_t r = 0; r < tap.rows; ++r)
      memra::check(sink.device().upload(dst + r * stride, host + r * row, row));
  }

  TrunkConfig config_;
  std::size_t max_rows_ = 0;
  std::vector<Stage<Dev>> stages_;     // one per device object
  std::vector<std::size_t> stage_of_;  // [layers]
  std::vector<LayerWeights<Dev>> layers_;
  Matrix<Dev> embedding_;          // on the first device
  Matrix<Dev> embedding_at_head_;  // on the last, if that is another one and the head is not tied
  Matrix<Dev> head_;               // on the last device; empty if it is embedding_
  Floats<Dev> final_norm_;
  Floats<Dev> logits_;                           // [max_rows][n_vocab]
  std::optional<typename Dev::Buffer> choices_;  // [max_rows] i32
  std::vector<float> staging_;                   // [max_rows][hidden] on the host
  std::size_t n_logits_ = 0;
  TrunkTimes times_;
};

}  // namespace tiny
