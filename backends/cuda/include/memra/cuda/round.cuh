// The end of a round on CUDA, all layers of a stage and all caches of a batch at once. Same bits as the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/detail/portable_round.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/launch.hpp>
#include <memra/round_views.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// round_commit: a channel per thread, whose columns are read before the first is overwritten.
struct CudaRoundCommit {
  static constexpr unsigned block_threads = 256;

  RoundCommit one;
  const RoundCommit* many;  ///< nullptr: `one`

  static bool fits(const RoundCommit& c, std::size_t n) noexcept { return n <= 65535 && c.n_layers <= 65535; }
  /// At least one block per cache: it moves the words.
  static Grid grid(const RoundCommit& c, std::size_t n) noexcept {
    return {c.conv_dim == 0 ? 1 : (c.conv_dim + block_threads - 1) / block_threads, c.n_layers == 0 ? 1 : c.n_layers,
            n};
  }

  /// Item: (block of channels, layer, cache).
  __device__ void block(const Item& item) const {
    const RoundCommit c = RoundCommit::of(one, many, item.z);
    const std::int32_t accept = c.accepted();
    if (item.x == 0 && item.y == 0 && threadIdx.x == 0) RoundCommitBody::move_words(c, accept);
    if (item.y >= c.n_layers || accept == 0) return;
    const RecurView& r = c.layers[item.y];
    const std::size_t width = r.conv_dim();
    const std::size_t kept = r.d_conv - 1;
    const std::size_t ch = item.x * block_threads + threadIdx.x;
    if (ch >= width) return;
    float* const ring = r.conv + ch * kept;
    const float* const rows = r.round.conv_rows + ch;
    const auto a = static_cast<std::size_t>(accept);
    const auto column = [&](std::size_t j) { return a + j < kept ? ring[a + j] : rows[(a + j - kept) * width]; };
    if (kept == 3) {
      const float x = column(0);
      const float y = column(1);
      const float z = column(2);
      ring[0] = x;
      ring[1] = y;
      ring[2] = z;
      return;
    }
    for (std::size_t j = 0; j < kept; ++j) ring[j] = column(j);  // ascending: read before it is overwritten
  }
};

/// round_apply: a warp goes over four columns of S at a time, four elements per lane, through all accepted tokens.
struct CudaRoundApply {
  static constexpr unsigned block_threads = 128;
  static constexpr unsigned warp_columns = 4;
  static constexpr unsigned head_blocks = 2;  ///< blocks that share a head's columns
  static constexpr unsigned slot_columns = block_threads / 32 * warp_columns;

  RoundCommit one;
  const RoundCommit* many;  ///< nullptr: `one`

  static bool fits(const RoundCommit& c, std::size_t n) noexcept { return n <= 65535 && c.n_layers <= 65535; }
  static Grid grid(const RoundCommit& c, std::size_t n) noexcept { return {c.heads * head_blocks, c.n_layers, n}; }

  /// Item: (part of a head, layer, cache).
  __device__ void block(const Item& item) const {
    const RoundCommit c = RoundCommit::of(one, many, item.z);
    if (item.y >= c.n_layers || c.mode != RoundMode::stash) return;
    const RecurView r = c.layers[item.y];
    const std::size_t h = item.x / head_blocks;
    const auto accept = static_cast<unsigned>(c.accepted());
    if (h >= r.n_v_heads || accept == 0) return;
    const std::size_t kh = r.map.key_head(h, r.n_k_heads, r.n_v_heads);
    const Kept from{r.round.k + kh * r.d_k,
                    r.round.u + h * r.d_v,
                    r.round.decay + h,
                    r.n_k_heads * r.d_k,
                    r.n_v_heads * r.d_v,
                    r.n_v_heads,
                    accept};
    float* const state = r.plane(r.current()) + h * r.d_v * r.d_k;
    const std::size_t lane = threadIdx.x % 32;
    std::size_t v = (item.x % head_blocks) * slot_columns + threadIdx.x / 32 * warp_columns;
    if (r.d_k % 4 == 0 && r.d_v % warp_columns == 0) {  // planes begin on multiples of 256 bytes
      for (std::size_t i = lane * 4; i < r.d_k; i += 128) four_columns(from, state + i, r, v, i);
      return;
    }
    for (; v < r.d_v; v += head_blocks * slot_columns) {
      for (std::size_t n = v; n < v + warp_columns && n < r.d_v; ++n) {
        for (std::size_t i = lane; i < r.d_k; i += 32) one_element(from, state + n * r.d_k + i, n, i);
      }
    }
  }

 private:
  /// What the round kept, of one head.
  struct Kept {
    const float* k;
    const float* u;
    const float* decay;
    std::size_t k_row, u_row, decay_row;  ///< elements from token to token
    unsigned accept;
  };

  /// Four elements of four columns at a time; the next ones are on their way meanwhile.
  static __device__ void four_columns(const Kept& from, float* state, const RecurView& r, std::size_t v,
                                      std::size_t i) {
    float4 next[warp_columns];
    fetch(next, state + v * r.d_k, r.d_k, v < r.d_v);
    for (; v < r.d_v; v += head_blocks * slot_columns) {
      float4 s[warp_columns];
#pragma unroll
      for (unsigned c = 0; c < warp_columns; ++c) s[c] = next[c];
      const std::size_t after = v + head_blocks * slot_columns;
      fetch(next, state + after * r.d_k, r.d_k, after < r.d_v);
      const float* k = from.k + i;
      const float* u = from.u + v;
      const float* decay = from.decay;
#pragma unroll 4
      for (unsigned t = 0; t < from.accept; ++t) {
        const float4 x = *reinterpret_cast<const float4*>(k);
        const float4 w4 = *reinterpret_cast<const float4*>(u);
        const float w[warp_columns] = {w4.x, w4.y, w4.z, w4.w};
        const float factor = *decay;
        k += from.k_row;
        u += from.u_row;
        decay += from.decay_row;
#pragma unroll
        for (unsigned c = 0; c < warp_columns; ++c) {
          s[c].x = product(s[c].x, factor) + product(x.x, w[c]);
          s[c].y = product(s[c].y, factor) + product(x.y, w[c]);
          s[c].z = product(s[c].z, factor) + product(x.z, w[c]);
          s[c].w = product(s[c].w, factor) + product(x.w, w[c]);
        }
      }
#pragma unroll
      for (unsigned c = 0; c < warp_columns; ++c) *reinterpret_cast<float4*>(state + (v + c) * r.d_k) = s[c];
    }
  }
  static __device__ void fetch(float4 (&x)[warp_columns], const float* at, std::size_t column, bool there) {
#pragma unroll
    for (unsigned c = 0; c < warp_columns; ++c) {
      if (there) x[c] = *reinterpret_cast<const float4*>(at + c * column);
    }
  }

  static __device__ void one_element(const Kept& from, float* at, std::size_t v, std::size_t i) {
    float y = *at;
    for (unsigned t = 0; t < from.accept; ++t) {
      y = product(y, from.decay[t * from.decay_row]) + product(from.k[t * from.k_row + i], from.u[t * from.u_row + v]);
    }
    *at = y;
  }
};

}  // namespace memra::detail
