// A model made of kernels only, whose every input is computed on the device from the device's position: what a captured
// decode step of a real engine looks like from the cache's side.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memra/cache.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/workspace.hpp>
#include <utility>
#include <vector>

namespace memra_test {

/// x[row][i] = a number in [-1, 1) that depends on position, salt of the row, layer and i.
struct InputBody {
  float* x;
  std::size_t width;
  const std::int32_t* pos_d;
  const std::int32_t* salt_d;  ///< [rows]; 0: the true token of that position
  std::uint32_t layer;
  float scale;
  bool negative;

  MEMRA_HD void operator()(const memra::Item& item) const noexcept {
    std::uint32_t h = static_cast<std::uint32_t>(*pos_d) + static_cast<std::uint32_t>(item.y);
    h = (h * 2654435761U) ^ (static_cast<std::uint32_t>(salt_d[item.y]) * 0x9E3779B9U) ^ (layer * 40503U);
    h = (h ^ static_cast<std::uint32_t>(item.x)) * 0x85EBCA6BU;
    h = (h ^ (h >> 13)) * 0xC2B2AE35U;
    h ^= h >> 16;
    const float v = static_cast<float>(static_cast<std::int32_t>(h)) * (1.0F / 2147483648.0F) * scale;
    x[item.y * width + item.x] = negative ? (v < 0 ? v : -v) : v;
  }
};

/// history[*pos_d + row] = x[row]: what a row's token gave, wherever it was computed.
struct KeepBody {
  float* history;
  const float* x;
  std::size_t width;   ///< of a row of x
  std::size_t stride;  ///< of a row of history
  const std::int32_t* pos_d;
  std::size_t capacity;

  MEMRA_HD void operator()(const memra::Item& item) const noexcept {
    if (*pos_d < 0) return;
    const std::size_t row = static_cast<std::size_t>(*pos_d) + item.y;
    if (row < capacity) history[row * stride + item.x] = x[item.y * width + item.x];
  }
};

inline memra::ModelConfig kernel_config(memra::Layout layout = memra::Layout::blocks) {
  memra::RecurrentSpec r;
  r.n_k_heads = 2;
  r.n_v_heads = 4;
  r.d_k = 32;
  r.d_v = 32;
  r.d_conv = 4;
  memra::AttentionSpec a;
  a.n_heads = 4;
  a.n_kv_heads = 2;
  a.head_dim_k = a.head_dim_v = 64;
  a.k_layout = a.v_layout = layout;
  memra::AttentionSpec w = a;
  w.window = 70;
  w.k_format = memra::Format::fp8_e4m3;
  w.v_format = memra::Format::bf16;
  memra::ModelConfig cfg;
  cfg.layers = {memra::recurrent(r), memra::full_attention(a), memra::recurrent(r), memra::full_attention(w)};
  return cfg;
}

/// Every layer runs on the device of its stage; layers do not feed each other, so nothing moves between devices.
template <class Dev>
class KernelModel {
  /// What one device needs to run layers.
  struct Desk {
    Dev* dev;
    memra::Workspace<Dev> ws;
    typename Dev::Buffer scratch, weight, salt, zero, history;

    float* at(std::size_t i) const { return reinterpret_cast<float*>(scratch.data()) + i * max_rows * widest; }
    float* weights() const { return reinterpret_cast<float*>(weight.data()); }
    std::int32_t* salts() const { return reinterpret_cast<std::int32_t*>(salt.data()); }
    const std::int32_t* zeros() const { return reinterpret_cast<const std::int32_t*>(zero.data()); }
    memra::Status fill(float* x, std::size_t width, std::size_t rows, std::uint32_t layer, float scale, bool negative,
                       const std::int32_t* pos_d) const {
      const std::int32_t* salt_d = rows > 1 || pos_d != zeros() ? salts() : zeros();
      return memra::launch(*dev, "input", memra::Grid{width, rows, 1},
                           InputBody{x, width, pos_d, salt_d, layer, scale, negative});
    }
  };

 public:
  static constexpr std::size_t max_rows = 8;
  static constexpr std::size_t widest = 512;

  KernelModel(Dev& d, std::size_t max_ctx, memra::Layout layout = memra::Layout::blocks)
      : KernelModel(d, memra::check(memra::Cache<Dev>::create(d, kernel_config(layout), max_ctx))) {}
  /// @param d  the first layer's device
  KernelModel(Dev& d, memra::Cache<Dev> made) : dev(&d), cache(std::move(made)) {
    for (std::size_t il = 0; il < 4; ++il) {
      std::size_t at = 0;
      while (at < desks_.size() && desks_[at].dev != &cache.dev(il)) ++at;
      desk_of_[il] = at;
      if (at == desks_.size()) add_desk(cache.dev(il));
    }
  }

  /// Row i of the next call stands for another token if salts[i] is not 0.
  void salts(const std::vector<std::int32_t>& s) {
    std::vector<std::int32_t> all(max_rows, 0);
    std::copy(s.begin(), s.end(), all.begin());
    for (const Desk& d : desks_) memra::check(d.dev->store_i32(d.salts(), all.data(), max_rows));
  }

  /// Device: [max_rows] the salts of the first layer's device, for kernels that decide them.
  std::int32_t* salts_d() const { return desks_[0].salts(); }

  /// Layers [first, last) of an open step.
  memra::Status forward(memra::Step<Dev>& step, std::size_t first = 0, std::size_t last = 4) {
    const std::size_t t = step.rows();
    for (std::size_t il = first; il < last; ++il) {
      const Desk& d = desks_[desk_of_[il]];
      const memra::ops_for<Dev> ops(*d.dev);
      const auto n = static_cast<std::uint32_t>(il);
      if (il % 2 == 0) {
        auto r = step.recur(il);
        if (!r) return r.status();
        const std::size_t c = r->conv_dim();
        if (auto s = d.fill(d.at(0), c, t, n, 1.0F, false, r->at.pos_d); !s) return s;
        if (auto s = d.fill(d.at(2), 4, t, n + 10, 0.2F, true, r->at.pos_d); !s) return s;
        if (auto s = d.fill(d.at(3), 4, t, n + 20, 1.0F, false, r->at.pos_d); !s) return s;
        if (auto s = ops.conv_update(*r, {d.at(0), d.weights(), nullptr, d.at(1), true}); !s) return s;
        const memra::ScanArgs a{d.at(1), d.at(1) + 64, d.at(1) + 128, d.at(2), d.at(3), d.at(4), c, c, c};
        if (auto s = ops.delta_scan(*r, a); !s) return s;
        if (auto s = keep(d, il, 128, t, r->at); !s) return s;
      } else {
        auto w = step.kv_write(il);
        if (!w) return w.status();
        if (auto s = d.fill(d.at(0), 128, t, n, 1.5F, false, w->at.pos_d); !s) return s;
        if (auto s = d.fill(d.at(1), 128, t, n + 10, 1.0F, false, w->at.pos_d); !s) return s;
        if (auto s = d.fill(d.at(2), 256, t, n + 20, 1.5F, false, w->at.pos_d); !s) return s;
        if (auto s = ops.append(*w, d.at(0), d.at(1)); !s) return s;
        auto r = step.kv_read(il);
        if (!r) return r.status();
        if (auto s = ops.attend(*r, {d.at(2), d.at(4), 4, 0.125F}, d.ws.view()); !s) return s;
        if (auto s = keep(d, il, 256, t, w->at); !s) return s;
      }
    }
    return {};
  }

  /// One step driven by the host.
  memra::Status feed(std::size_t rows) {
    auto step = cache.begin_step(rows);
    if (!step) return step.status();
    if (auto s = forward(*step); !s) return s;
    return cache.advance();
  }

  /// Outputs of every layer for the first `n` tokens.
  std::vector<std::byte> history(std::size_t n) {
    std::vector<std::byte> all;
    for (std::size_t il = 0; il < 4; ++il) {
      const Desk& d = desks_[desk_of_[il]];
      const std::size_t first = all.size();
      const std::size_t bytes = n * widest * 4;
      all.resize(first + bytes);
      memra::check(d.dev->download(all.data() + first, d.history.data() + il * cache.max_ctx() * widest * 4, bytes));
    }
    return all;
  }

  Dev* dev;
  memra::Cache<Dev> cache;

 private:
  void add_desk(Dev& d) {
    desks_.push_back({&d, memra::check(memra::Workspace<Dev>::create(d, cache.plan().workspace_bytes(max_rows))),
                      memra::check(d.zeros(8 * max_rows * widest * 4)), memra::check(d.zeros(widest * 4 * 4)),
                      memra::check(d.zeros(max_rows * 4)), memra::check(d.zeros(max_rows * 4 + widest * 16)),
                      memra::check(d.zeros(4 * cache.max_ctx() * widest * 4))});
    const Desk& made = desks_.back();
    memra::check(made.fill(made.weights(), widest * 4, 1, 99, 0.5F, false, made.zeros()));
    memra::check(d.synchronize());
  }

  memra::Status keep(const Desk& d, std::size_t il, std::size_t width, std::size_t rows, const memra::StepPos& p) {
    float* h = reinterpret_cast<float*>(d.history.data()) + il * cache.max_ctx() * widest;
    return memra::launch(*d.dev, "keep", memra::Grid{width, rows, 1},
                         KeepBody{h, d.at(4), width, widest, p.pos_d, cache.max_ctx()});
  }

  std::vector<Desk> desks_;  // one per device
  std::size_t desk_of_[4] = {};
};

}  // namespace memra_test
