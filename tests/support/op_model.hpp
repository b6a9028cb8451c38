// A model of made-up weights over the real ops: what one layer gives is what the next one takes, so that a wrong bit in
// any state or output shows in everything after it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memra/cache.hpp>
#include <memra/codec.hpp>
#include <memra/host_ops.hpp>
#include <memra/ops.hpp>
#include <memra/step.hpp>
#include <span>
#include <support/planes.hpp>
#include <support/stand_in.hpp>
#include <utility>
#include <variant>
#include <vector>

namespace memra_test {

/// Runs on devices whose memory is host memory.
class OpModel {
 public:
  static constexpr std::size_t width = 8;  ///< elements of the residual stream

  explicit OpModel(memra::ModelConfig cfg) : cfg_(std::move(cfg)) {}

  const memra::ModelConfig& config() const noexcept { return cfg_; }

  /// All layers of an open step or round, in order. `out` receives [rows][width].
  /// @param skip  a layer to leave out
  template <class Dev>
  memra::Status forward(memra::Cache<Dev>& cache, memra::Step<Dev>& step, std::span<const Token> tokens,
                        std::vector<float>& out, std::size_t skip = static_cast<std::size_t>(-1)) const {
    const std::size_t rows = tokens.size();
    out.assign(rows * width, 0.0F);
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t e = 0; e < width; ++e) out[i * width + e] = stand_in::value(90, 0, 0, e, tokens[i], 0);
    }
    for (std::size_t il = 0; il < cfg_.layers.size(); ++il) {
      if (il == skip) continue;
      std::size_t attention = 0;
      std::size_t recurrent = 0;
      std::size_t grouped = 0;
      for (const memra::StateSpec& spec : cfg_.layers[il].states) {
        const auto run = memra::detail::Overloaded{
            [&](const memra::AttentionSpec& a) { return attend(cache.dev(il), step, il, attention++, a, rows, out); },
            [&](const memra::SharedKvSpec& s) {
              const auto& a = std::get<memra::AttentionSpec>(cfg_.layers[s.donor].states[s.nth]);
              return attend(cache.dev(il), step, il, attention++, a, rows, out, false);
            },
            [&](const memra::GroupedRowsSpec& g) { return group(step, il, grouped++, g, rows, out); },
            [&](const memra::RecurrentSpec& r) { return recur(cache.dev(il), step, il, recurrent++, r, rows, out); }};
        if (auto s = std::visit(run, spec); !s) return s;
      }
      if (const auto tap = step.tap(il)) {
        for (std::size_t i = 0; i < rows; ++i) {
          for (std::size_t e = 0; e < tap->hidden; ++e) tap->data[i * tap->row_stride + e] = out[i * width + e % width];
        }
      }
    }
    return {};
  }

  /// One step of all tokens.
  template <class Dev>
  memra::Status feed(memra::Cache<Dev>& cache, std::span<const Token> tokens, std::vector<float>& out,
                     memra::ScanClass scan = memra::ScanClass::sequential) const {
    auto step = cache.begin_step(tokens.size(), scan);
    if (!step) return step.status();
    if (auto s = forward(cache, *step, tokens, out); !s) return s;
    return cache.advance();
  }
  template <class Dev>
  memra::Status feed(memra::Cache<Dev>& cache, std::span<const Token> tokens) const {
    std::vector<float> out;
    return feed(cache, tokens, out);
  }

 private:
  /// Elements that depend on layer, nth and what they are for, plus the row's residual stream.
  static std::vector<float> mixed(std::uint64_t kind, std::size_t il, std::size_t nth, std::size_t rows, std::size_t n,
                                  const std::vector<float>& h, float scale) {
    std::vector<float> x(rows * n);
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t e = 0; e < n; ++e) {
        x[i * n + e] = scale * (stand_in::value(kind, il, nth, e, 0, 0) + h[i * width + (e * 5 + e / width) % width]);
      }
    }
    return x;
  }
  static void add(std::vector<float>& h, const std::vector<float>& y, std::size_t rows, std::size_t n) {
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t e = 0; e < width; ++e) {
        float sum = h[i * width + e];
        for (std::size_t j = e; j < n; j += width) sum = sum + y[i * n + j];
        h[i * width + e] = std::tanh(sum);
      }
    }
  }

  template <class Dev>
  static memra::Status attend(Dev& dev, memra::Step<Dev>& step, std::size_t il, std::size_t nth,
                              const memra::AttentionSpec& a, std::size_t rows, std::vector<float>& h,
                              bool writes = true) {
    const memra::ops_for<Dev> ops(dev);
    const std::size_t heads = a.n_heads == 0 ? a.n_kv_heads : a.n_heads;
    const auto k = mixed(91, il, nth, rows, a.n_kv_heads * a.head_dim_k, h, 1.0F);
    const auto v = mixed(92, il, nth, rows, a.n_kv_heads * a.head_dim_v, h, 1.0F);
    const auto q = mixed(93, il, nth, rows, heads * a.head_dim_k, h, 1.0F);
    std::vector<float> out(rows * heads * a.head_dim_v);
    if (writes) {
      const auto w = step.kv_write(il, nth);
      if (!w) return w.status();
      if (auto s = ops.append(*w, k.data(), v.data()); !s) return s;
    }
    if (a.head_dim_v == 0) return {};  // keys of an indexer
    const auto r = step.kv_read(il, nth);
    if (!r) return r.status();
    Scratch scratch(memra::detail::attend_scratch_bytes(heads, a.n_kv_heads, a.head_dim_k, a.head_dim_v, rows));
    if (auto s = ops.attend(*r, {q.data(), out.data(), heads, 0.25F}, scratch.view()); !s) return s;
    add(h, out, rows, heads * a.head_dim_v);
    return {};
  }

  /// The engine's part: the row of a group from the residual stream of its last token, written where the device's word
  /// for the position says. Host memory, as for the taps.
  template <class Dev>
  static memra::Status group(memra::Step<Dev>& step, std::size_t il, std::size_t nth, const memra::GroupedRowsSpec& g,
                             std::size_t rows, const std::vector<float>& h) {
    const auto view = step.grouped(il, nth);
    if (!view) return view.status();
    const auto x = mixed(100, il, nth, rows, g.dim, h, 1.0F);
    for (std::size_t i = 0; i < rows; ++i) {
      if (!view->ends(*view->at.pos_d, i)) continue;
      memra::encode_row(view->rows, view->seen(*view->at.pos_d, i) - 1, x.data() + i * g.dim);
    }
    return {};
  }

  template <class Dev>
  static memra::Status recur(Dev& dev, memra::Step<Dev>& step, std::size_t il, std::size_t nth,
                             const memra::RecurrentSpec& r, std::size_t rows, std::vector<float>& h) {
    const memra::ops_for<Dev> ops(dev);
    const auto view = step.recur(il, nth);
    if (!view) return view.status();
    const std::size_t n = view->conv_dim();
    const auto x = mixed(94, il, nth, rows, n, h, 1.0F);
    std::vector<float> weight(n * r.d_conv);
    for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = stand_in::value(95, il, nth, i, 0, 0);
    std::vector<float> y(rows * n);
    if (auto s = ops.conv_update(*view, {x.data(), weight.data(), nullptr, y.data(), true}); !s) return s;
    for (float& e : y) e = 0.5F * std::tanh(e);
    if (r.rule == memra::ScanRule::none) {
      add(h, y, rows, n);
      return {};
    }
    const bool mamba1 = r.rule == memra::ScanRule::mamba1;
    const std::size_t decays = mamba1 ? r.d_v : r.n_v_heads * (r.rule == memra::ScanRule::kda ? r.d_k : 1);
    auto g = mixed(96, il, nth, rows, decays, h, 0.125F);
    auto beta = mixed(97, il, nth, rows, r.n_v_heads, h, 0.25F);
    for (float& e : g) e = mamba1 ? std::fabs(e) : -std::fabs(e);
    for (float& e : beta) e = std::fabs(e);
    const auto bc = mixed(98, il, nth, rows, 2 * r.d_k, h, 0.5F);  // B and C, which no convolution of mamba1 sees
    std::vector<float> fixed(r.d_v * r.d_k);
    for (std::size_t i = 0; i < fixed.size(); ++i) fixed[i] = -std::fabs(stand_in::value(99, il, nth, i, 0, 0));
    std::vector<float> out(rows * r.n_v_heads * r.d_v);
    memra::ScanArgs a;
    a.q = mamba1 ? bc.data() : y.data();
    a.k = a.q + r.n_k_heads * r.d_k;
    a.v = mamba1 ? y.data() : a.k + r.n_k_heads * r.d_k;
    a.g = g.data();
    a.beta = beta.data();
    a.a = fixed.data();
    a.out = out.data();
    a.q_stride = a.k_stride = mamba1 ? 2 * r.d_k : n;
    a.v_stride = n;
    const bool delta = r.rule == memra::ScanRule::gated_delta || r.rule == memra::ScanRule::kda;
    Scratch scratch(view->scan == memra::ScanClass::chunked ? memra::detail::chunk_scan_bytes(r.n_v_heads, rows) : 0);
    if (auto s = delta ? ops.delta_scan(*view, a, scratch.view()) : ops.linear_scan(*view, a); !s) return s;
    add(h, out, rows, r.n_v_heads * r.d_v);
    return {};
  }

  memra::ModelConfig cfg_;
};

inline memra::RecurrentSpec recurrent_of(std::size_t n_k, std::size_t n_v, std::size_t d_k, std::size_t d_v,
                                         std::size_t d_conv) {
  memra::RecurrentSpec r;
  r.n_k_heads = n_k;
  r.n_v_heads = n_v;
  r.d_k = d_k;
  r.d_v = d_v;
  r.d_conv = d_conv;
  return r;
}

/// Both kinds of layers, two states in one, vector and scalar columns, no convolution history and more of it than a
/// short round has rows.
inline memra::ModelConfig round_hybrid() {
  memra::AttentionSpec window = attention_spec(memra::Format::f32, memra::Format::q4_0);
  window.window = 5;
  memra::RecurrentSpec interleaved = recurrent_of(2, 4, 20, 3, 1);
  interleaved.map.mode = memra::KeyHeadMode::interleaved;
  memra::ModelConfig cfg;
  cfg.layers = {memra::recurrent(recurrent_of(1, 2, 16, 5, 4)), memra::full_attention(attention_spec()),
                {{recurrent_of(2, 2, 4, 9, 12), window}},       memra::no_state(),
                {{interleaved, recurrent_of(1, 1, 8, 2, 2)}},   memra::full_attention(attention_spec())};
  cfg.n_vocab = 16;
  return cfg;
}
/// As many layers, none of them recurrent.
inline memra::ModelConfig round_attention() {
  memra::ModelConfig cfg;
  cfg.layers.assign(6, memra::full_attention(attention_spec()));
  cfg.n_vocab = 16;
  return cfg;
}
inline memra::ModelConfig round_recurrent() {
  memra::ModelConfig cfg;
  cfg.layers = {memra::recurrent(recurrent_of(1, 2, 16, 4, 4)), memra::recurrent(recurrent_of(1, 1, 5, 3, 3))};
  cfg.n_vocab = 16;
  return cfg;
}

/// Every strategy, rounds of up to `rows`.
inline memra::CacheOptions all_rounds(std::size_t rows) {
  memra::CacheOptions o;
  o.rounds.rows = rows;
  o.rounds.replay = o.rounds.planes = o.rounds.stash = true;
  return o;
}

}  // namespace memra_test
