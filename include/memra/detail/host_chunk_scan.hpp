// Host kernel of delta_scan's chunked class, and the definition of that class.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memra/detail/chunk_scan.hpp>
#include <memra/detail/host_dot.hpp>
#include <memra/detail/math.hpp>
#include <memra/detail/simd.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// The gated delta rule in chunks, one value head per item.
///
/// Over a chunk of n tokens whose state before it is S, the rule's recursion has the closed form
///   u_i   = beta_i (v_i - E_i S k_i - sum over j < i of D_ij (k_i . k_j) u_j)
///   out_i = (E_i S q_i + sum over j <= i of D_ij (q_i . k_j) u_j) / sqrt(d_k)
///   S    <- E_n-1 S + sum over j of D_n-1,j u_j k_j^T
/// where D_ij is the product of the decays of tokens j + 1 to i, and E_i that of tokens 0 to i. What depends on the
/// state is then a few products of matrices per chunk instead of two passes over the state per token.
///
/// Definition per value head, column c of S and chunk, in f32 without contraction, in this order:
///   w_i  = exp_f32(g_i); E_0 = w_0, E_i = E_i-1 * w_i; D_jj = 1, D_ij = D_i-1,j * w_i   products, never quotients or
///          differences of sums: a strong decay early in the chunk costs later ones no digit
///   A_ij = D_ij * dot(k_i, k_j); P_ij = D_ij * dot(q_i, k_j)                            dot in the order of dot16
///   x    = v_i[c] - E_i * dot(S, k_i); x = x - A_ij * u_j for j = 0 ... i - 1; u_i = beta_i * x
///   y    = E_i * dot(S, q_i); y = y + P_ij * u_j for j = 0 ... i; out_i = y * (1 / sqrt(d_k)), rounded to f32 once
///   S[d] = E_n-1 * S[d]; S[d] = S[d] + (F_j * u_j) * k_j[d] for j = 0 ... n - 1, where F_j = D_n-1,j
/// A token's output depends on no later one: the chunk that a prompt ends in gives the bits of a whole chunk's start.
template <class Simd>
struct ChunkScanBody {
  RecurView r;
  ScanArgs a;
  float* factors;

  void operator()(const Item& item) const noexcept {
    if (!r.fits()) return;
    const std::size_t h = item.x;
    const ChunkFactors f = ChunkFactors::of(factors, 0, h, r.n_v_heads);
    for (std::size_t first = 0; first < r.rows; first += scan_chunk) {
      const Chunk chunk{h, r.map.key_head(h, r.n_k_heads, r.n_v_heads), first, std::min(scan_chunk, r.rows - first)};
      prepare(chunk, f);
      for (std::size_t c = 0; c < r.d_v; c += simd_lanes) columns(chunk, f, c, std::min(simd_lanes, r.d_v - c));
    }
  }

 private:
  using F = F32x16<Simd>;
  struct Chunk {
    std::size_t h, key_head, first, n;
  };

  const float* k(const Chunk& chunk, std::size_t i) const noexcept {
    return a.k + (chunk.first + i) * a.k_stride + chunk.key_head * r.d_k;
  }
  const float* q(const Chunk& chunk, std::size_t i) const noexcept {
    return a.q + (chunk.first + i) * a.q_stride + chunk.key_head * r.d_k;
  }

  void prepare(const Chunk& chunk, const ChunkFactors& f) const noexcept {
    for (std::size_t i = 0; i < chunk.n; ++i) {
      const float w = exp_f32(a.g[(chunk.first + i) * r.n_v_heads + chunk.h]);
      f.e[i] = i == 0 ? w : product(f.e[i - 1], w);
      // f.f is the row D_i of the token: of the last one it is F.
      for (std::size_t j = 0; j < i; ++j) f.f[j] = product(f.f[j], w);
      f.f[i] = 1.0F;
      float* const below = f.a + i * scan_chunk;
      float* const up_to = f.p + i * scan_chunk;
      for (std::size_t j = 0; j <= i; ++j) {
        if (j < i) below[j] = product(f.f[j], dot16<Simd>(k(chunk, i), k(chunk, j), r.d_k));
        up_to[j] = product(f.f[j], dot16<Simd>(q(chunk, i), k(chunk, j), r.d_k));
      }
    }
  }

  /// Columns [c, c + n) of S, in lanes: the sums over j of all of them advance together.
  void columns(const Chunk& chunk, const ChunkFactors& f, std::size_t c, std::size_t n) const noexcept {
    float u[scan_chunk][simd_lanes];
    float lane[simd_lanes] = {};
    float* const s = r.ssm + (chunk.h * r.d_v + c) * r.d_k;
    const F inv = F::broadcast(1.0F / std::sqrt(static_cast<float>(r.d_k)));
    for (std::size_t i = 0; i < chunk.n; ++i) {
      const std::size_t t = chunk.first + i;
      const F e = F::broadcast(f.e[i]);
      std::memcpy(lane, a.v + t * a.v_stride + chunk.h * r.d_v + c, n * sizeof(float));
      F x = F::load(lane) - e * read(s, k(chunk, i), n);
      for (std::size_t j = 0; j < i; ++j) x = x - F::broadcast(f.a[i * scan_chunk + j]) * F::load(u[j]);
      (F::broadcast(a.beta[t * r.n_v_heads + chunk.h]) * x).store(u[i]);
      F y = e * read(s, q(chunk, i), n);
      for (std::size_t j = 0; j <= i; ++j) y = y + F::broadcast(f.p[i * scan_chunk + j]) * F::load(u[j]);
      (y * inv).store(lane);
      std::memcpy(a.out + (t * r.n_v_heads + chunk.h) * r.d_v + c, lane, n * sizeof(float));
    }
    for (std::size_t l = 0; l < n; ++l) {
      float* const column = s + l * r.d_k;
      scale<Simd>(column, column, f.e[chunk.n - 1], r.d_k);
      for (std::size_t j = 0; j < chunk.n; ++j) {
        add_scaled<Simd>(column, k(chunk, j), product(f.f[j], u[j][l]), r.d_k);
      }
    }
  }

  /// dot(S, x) of n columns, a lane each; the other lanes are 0.
  F read(const float* s, const float* x, std::size_t n) const noexcept {
    float lane[simd_lanes] = {};
    for (std::size_t l = 0; l < n; ++l) lane[l] = dot16<Simd>(s + l * r.d_k, x, r.d_k);
    return F::load(lane);
  }
};

}  // namespace memra::detail
