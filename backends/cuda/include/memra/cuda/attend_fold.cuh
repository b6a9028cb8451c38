// The second half of attend: a row's chunks become its output.
#pragma once

#include <cstddef>
#include <memra/cuda/attend_grid.cuh>
#include <memra/cuda/attend_mma.cuh>
#include <memra/detail/attend_sequence.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/launch.hpp>

namespace memra::detail {

/// Folds a row's chunks. Item: (head, row). Four elements a thread; chunks are dealt to as many teams of dv / 4 threads
/// as there are, each adds up its own, ascending, and then the teams are added up, ascending.
///
/// @tparam Ahead  chunks of a team that are on their way together: changes no bit. With 4 a block is so small that it
///                finds room on a multiprocessor that is full of blocks of the first half, and has begun when the last
///                of those ends, and more of a batch's run at a time; 9 are better else: of 66 chunks (eight kv heads)
///                each of eight teams has up to nine.
template <unsigned Ahead>
struct CudaAttendFold {
  static constexpr unsigned block_threads = 256;
  static constexpr unsigned least_blocks = Ahead == 4 ? multiprocessor_threads / block_threads : 4;
  static constexpr unsigned warps = block_threads / 32;
  static constexpr bool waits_itself = true;

  CudaAttendShape shape;
  const float* partials;
  float* out;  ///< [rows][n_heads][dv]

  /// Chunks of each team.
  static std::size_t team_chunks(std::size_t row_chunks, std::size_t dv) noexcept {
    const std::size_t teams = block_threads / (dv / 4);
    return (row_chunks + teams - 1) / teams;
  }

  /// For CudaAttendBatch.
  __device__ std::size_t depth() const { return 1; }
  __device__ bool has(const Item& item) const { return item.y < shape.rows; }
  __device__ void take(const AttendSequence&, std::size_t first_row) { out += first_row * shape.n_heads * shape.dv; }

  __device__ void block(const Item& item) const {
    let_next_begin();
    block(item, load_now(shape.pos_d));
  }
  /// @param guess  the position as it is before the kernel before this one has ended, which says how many chunks there
  ///               are: nearly always it stays that, and to read it again then takes no time of its own
  __device__ void block(const Item& item, std::int32_t guess) const {
    guess = uniform(guess);
    const auto dv = static_cast<unsigned>(shape.dv);
    float* const y = out + ((shape.first_row + item.y) * shape.n_heads + item.x) * dv;
    auto* const all = const_cast<float*>(partials);
    const unsigned place = shape.place(item.y, item.x);
    const auto* const at = reinterpret_cast<const float4*>(shape.partial(all, place));
    const float2* const own = shape.weight(all, place);
    const unsigned quads = dv / 4;
    const unsigned teams = block_threads / quads;
    const unsigned team = threadIdx.x / quads;
    const unsigned quad = threadIdx.x - team * quads;

    unsigned n = 0;  // chunks
    float4 x[Ahead];
    const auto load = [&](unsigned c) {
#pragma unroll
      for (unsigned i = 0; i < Ahead; ++i, c += teams) {
        if (c < n && team < teams) x[i] = at[c * quads + quad];
      }
    };
    n = chunks(guess, item.y);
    wait_for_previous();
    const std::int32_t pos = *shape.pos_d;
    load(team);  // on its way while the weights are made
    float2 w = {-INFINITY, 0.0F};
    if (threadIdx.x < n) w = own[threadIdx.x];
    if (uniform(pos) != guess) {
      n = chunks(pos, item.y);
      load(team);
      w = threadIdx.x < n ? own[threadIdx.x] : float2{-INFINITY, 0.0F};
    }
    if (n == 0) {
      for (unsigned d = threadIdx.x; d < dv; d += block_threads) y[d] = 0.0F;
      return;
    }

    __shared__ float weights[attend_chunks_bound];
    __shared__ float tops[warps];
    __shared__ float sums[warps];
    static_assert(attend_chunks_bound <= block_threads);
    float top = w.x;
#pragma unroll
    for (unsigned distance = 16; distance != 0; distance /= 2) {
      top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, distance));
    }
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < warps; ++i) top = fmaxf(top, tops[i]);
    w.x = exp2_fast(__fsub_rn(w.x, top));
    if (threadIdx.x < n) weights[threadIdx.x] = w.x;
    float l = threadIdx.x < n ? __fmul_rn(w.x, w.y) : 0.0F;
#pragma unroll
    for (unsigned distance = 16; distance != 0; distance /= 2) {
      l = __fadd_rn(l, __shfl_xor_sync(0xffffffffU, l, distance));
    }
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = l;
    __syncthreads();

    float4 o = {0.0F, 0.0F, 0.0F, 0.0F};
    for (unsigned c = team; c < n && team < teams; c += Ahead * teams) {
      if (c != team) load(c);
#pragma unroll
      for (unsigned i = 0; i < Ahead; ++i) {
        if (c + i * teams >= n) break;
        const float p = weights[c + i * teams];
        o = {__fmaf_rn(x[i].x, p, o.x), __fmaf_rn(x[i].y, p, o.y), __fmaf_rn(x[i].z, p, o.z),
             __fmaf_rn(x[i].w, p, o.w)};
      }
    }
    __shared__ float4 others[block_threads];
    others[threadIdx.x] = o;
    __syncthreads();
    if (threadIdx.x >= quads) return;
    l = 0.0F;
    for (unsigned i = 0; i < warps; ++i) l = __fadd_rn(l, sums[i]);
    for (unsigned i = 1; i < teams; ++i) {
      const float4 p = others[i * quads + quad];
      o = {__fadd_rn(o.x, p.x), __fadd_rn(o.y, p.y), __fadd_rn(o.z, p.z), __fadd_rn(o.w, p.w)};
    }
    float* const to = y + 4 * quad;
    to[0] = o.x / l;
    to[1] = o.y / l;
    to[2] = o.z / l;
    to[3] = o.w / l;
  }

 private:
  /// That a row sees.
  __device__ unsigned chunks(std::int32_t pos, std::size_t row) const {
    const AttendSpan span = shape.span(pos, row);
    if (span.hi <= span.lo) return 0;
    const unsigned size = shape.chunk_keys(span.hi);
    return (static_cast<unsigned>(span.hi) - 1) / size - static_cast<unsigned>(span.lo) / size + 1;
  }
};

}  // namespace memra::detail
