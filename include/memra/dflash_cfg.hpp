// DflashCfg: the geometry of a block-diffusion drafter's KV cache, and the bytes it takes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memra/detail/checked_math.hpp>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <vector>

namespace memra {

struct DflashCfg {
  std::size_t n_layer = 0;  ///< draft layers
  std::size_t n_kv = 0;     ///< kv heads
  std::size_t head_dim = 0;
  std::size_t block_size = 0;      ///< rows of a draft block: the last token and its guesses
  std::size_t sliding_window = 0;  ///< keys a query may look back over, itself included
  /// [n_layer] whether the layer has the window; empty: all of them (none if sliding_window is 0)
  std::vector<bool> layer_sliding = {};
  /// Keep what the windows need and no more: 2 * window_rows + block_size rows, whatever the length. Every layer must
  /// have the window.
  bool ring = false;

  /// Window of layer `l`; 0 means none.
  std::size_t window(std::size_t l) const noexcept {
    return layer_sliding.empty() || layer_sliding[l] ? sliding_window : 0;
  }
  bool every_layer_windowed() const noexcept {
    return sliding_window != 0 && std::find(layer_sliding.begin(), layer_sliding.end(), false) == layer_sliding.end();
  }
  /// Rows a restore must carry: sliding_window + block_size.
  std::size_t window_rows() const noexcept { return sliding_window + block_size; }
  /// Bytes of one f32 row of one layer's K or V.
  std::size_t row_bytes() const noexcept { return n_kv * head_dim * sizeof(float); }
};

/// Where the planes of a DflashKv are, in one allocation: len_d and a ring's base_d, then per layer K and V.
struct DflashPlan {
  std::size_t phys_rows = 0;    ///< cap + block_size; in a ring at most 2 * window_rows + block_size
  std::size_t max_rows = 0;     ///< most rows of one begin_rows: cap, or window_rows in a ring that is shorter than cap
  std::size_t plane_bytes = 0;  ///< payload of one K or V plane
  std::size_t plane_stride = 0;  ///< bytes between planes: payload, gap and alignment
  std::size_t total_bytes = 0;   ///< exactly what DflashKv allocates

  /// Planes in order: K of layer 0, V of layer 0, K of layer 1, ...
  std::size_t plane_offset(std::size_t plane) const noexcept { return plane_alignment + plane * plane_stride; }
  std::size_t k_offset(std::size_t layer) const noexcept { return plane_offset(2 * layer); }
  std::size_t v_offset(std::size_t layer) const noexcept { return plane_offset(2 * layer + 1); }
};

/// @param cap  committed rows; at most 2147483647 with the block (positions on the device are 32-bit)
/// @return bad_argument naming the field
inline Result<DflashPlan> plan(const DflashCfg& cfg, std::size_t cap, std::size_t gap = 0) {
  const auto bad = [](const char* s) { return Status::failure(ErrorKind::bad_argument, "plan", 0, 0, "%s", s); };
  if (cfg.n_layer == 0 || cfg.n_kv == 0 || cfg.head_dim == 0 || cfg.block_size == 0) {
    return bad("a draft cache needs n_layer, n_kv, head_dim and block_size of at least 1");
  }
  if (!cfg.layer_sliding.empty() && cfg.layer_sliding.size() != cfg.n_layer) {
    return bad("layer_sliding has another length than n_layer");
  }
  const detail::CheckedSize flat = detail::CheckedSize(cap) + cfg.block_size;
  if (cap == 0 || !flat.valid() || flat.value() > 0x7fffffffU) {
    return Status::failure(ErrorKind::bad_argument, "plan", 0, 0,
                           "cap is %zu; expected at least 1 and, with the block, at most 2147483647", cap);
  }
  const detail::CheckedSize window = detail::CheckedSize(cfg.sliding_window) + cfg.block_size;
  if (!window.valid()) return bad("sliding_window does not fit");
  if (cfg.ring && !cfg.every_layer_windowed()) {
    return bad("a ring keeps what a window needs, and a layer has none; expected a window in every layer, or no ring");
  }
  // What is kept, as much again to be filled before it is copied to the front, and the block: a round's rows are only
  // without room when what is kept lies behind all that it is copied over.
  const detail::CheckedSize ring = window * 2 + cfg.block_size;
  const bool shorter = cfg.ring && ring.valid() && ring.value() < flat.value();
  const detail::CheckedSize rows = shorter ? ring : flat;
  const detail::CheckedSize payload = rows * cfg.n_kv * cfg.head_dim * sizeof(float);
  const detail::CheckedSize stride = detail::align_up(payload + gap, plane_alignment);
  const detail::CheckedSize total = stride * cfg.n_layer * 2 + plane_alignment;
  if (!total.valid()) return bad("the planes do not fit in memory addresses");
  return DflashPlan{rows.value(), shorter ? window.value() : cap, payload.value(), stride.value(), total.value()};
}

}  // namespace memra
