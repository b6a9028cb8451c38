// What the kernels of the chunked scan share: chunks in groups, and where a chunk's factors are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memra/detail/platform.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/error.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

static_assert(scan_chunk == 64, "scan_chunk_bytes counts chunks of 64 tokens");

/// Chunks [first, first + count) of a call, whose factors are held at the same time. A chunk's numbers do not depend on
/// the group it is in.
struct ChunkGroup {
  std::size_t first = 0;
  std::size_t count = 0;

  /// Tokens of chunk `first + i` of a call of `rows`.
  MEMRA_HD constexpr std::size_t tokens(std::size_t i, std::size_t rows) const noexcept {
    const std::size_t left = rows - (first + i) * scan_chunk;
    return left < scan_chunk ? left : scan_chunk;
  }
};

/// Runs a call's groups in order, until one fails.
template <class F>
Status each_chunk_group(const RecurView& r, const F& run) noexcept {
  const std::size_t chunks = (r.rows + scan_chunk - 1) / scan_chunk;
  for (std::size_t first = 0; first < chunks; first += scan_group_chunks) {
    if (Status s = run(ChunkGroup{first, std::min(scan_group_chunks, chunks - first)}); !s) return s;
  }
  return {};
}

/// Start of the factors in a workspace, aligned to 256 bytes.
inline float* chunk_factors(const WorkspaceView& ws) noexcept {
  return reinterpret_cast<float*>(ws.data + (256 - reinterpret_cast<std::uintptr_t>(ws.data) % 256) % 256);
}

/// Factors of one chunk and value head, as the definition (ChunkScanBody) has them: E and F are the decays from the
/// chunk's start to behind a token, and from there to the chunk's end.
struct ChunkFactors {
  float* a;  ///< [64][64] D_ij (k_i . k_j), below the diagonal
  float* p;  ///< [64][64] D_ij (q_i . k_j), up to the diagonal
  float* e;  ///< [64]
  float* f;  ///< [64]

  /// @param at  chunk_factors of the workspace   @param i  chunk of the group
  MEMRA_HD static ChunkFactors of(float* at, std::size_t i, std::size_t h, std::size_t n_v) noexcept {
    float* const x = at + (i * n_v + h) * (scan_chunk_bytes / sizeof(float));
    return {x, x + scan_chunk * scan_chunk, x + 2 * scan_chunk * scan_chunk,
            x + 2 * scan_chunk * scan_chunk + scan_chunk};
  }
};

}  // namespace memra::detail
