// Which attend kernel a shape takes, and its launches.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memra/cuda/attend.cuh>
#include <memra/detail/scratch.hpp>
#include <memra/error.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// Pairs of K and V formats that have a kernel.
struct CudaAttendPair {
  Format k, v;
};
inline constexpr std::array<CudaAttendPair, 7> cuda_attend_pairs{{{Format::q8_0, Format::q5_1},
                                                                  {Format::q8_0, Format::q8_0},
                                                                  {Format::q8_0, Format::q4_0},
                                                                  {Format::q4_0, Format::q4_0},
                                                                  {Format::f16, Format::f16},
                                                                  {Format::bf16, Format::bf16},
                                                                  {Format::fp8_e4m3, Format::fp8_e4m3}}};

/// By formats, layouts and geometry only: the same for every number of rows.
inline bool cuda_attend_fits(const KvReadView& kv) noexcept {
  const auto aligned = [](const std::byte* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  const auto size = [](std::size_t d) { return d == 512 || (d % 64 == 0 && d != 0 && d <= 256); };
  if (!size(kv.head_dim_k) || !size(kv.head_dim_v) || !aligned(kv.k.data) || !aligned(kv.v.data)) return false;
  for (const CudaAttendPair& p : cuda_attend_pairs) {
    if (p.k == kv.k.shape.format && p.v == kv.v.shape.format) return true;
  }
  return false;
}

/// One pass of up to attend_block_rows rows: partial results, then their fold.
template <Format KF, Format VF, unsigned Tiles, class D>
Status cuda_attend_pass(D& dev, const KvReadView& kv, const AttendArgs& a, const CudaAttendShape& shape,
                        float* partials) noexcept {
  using Body = CudaAttend<KF, VF, Tiles>;
  const std::size_t slices = (kv.head_dim_v + 32 * Body::most_warps - 1) / (32 * Body::most_warps);
  const auto dims = static_cast<unsigned>(kv.head_dim_v / slices);
  const unsigned warps = dims / 32;
  Body body{shape,
            {PortableSource(kv.k), kv.k.shape.layout == Layout::split, static_cast<unsigned>(kv.head_dim_k), 16 * warps},
            {PortableSource(kv.v), kv.v.shape.layout == Layout::split, dims, 16 * warps},
            a.q,
            // Scores come out in units of log2: the weights are powers of two.
            a.scale * 1.44269504F,
            partials,
            warps,
            static_cast<unsigned>(slices),
            4};
  while (body.stages > 2 && body.shared_bytes() > 56 * 1024) --body.stages;
  const std::size_t columns = shape.rows * (a.n_heads / kv.n_kv_heads);
  // No row of this pass can have more chunks of the smallest size than this; a row far back has larger ones.
  const std::size_t reach =
      (kv.at.pos_bound + shape.first_row + shape.rows + attend_smallest_chunk - 1) / attend_smallest_chunk;
  const Grid grid{(columns + Body::columns - 1) / Body::columns,
                  reach < shape.most_chunks ? reach : shape.most_chunks, kv.n_kv_heads * slices};
  if (Status s = launch(dev, "attend", grid, body); !s) return s;
  return launch(dev, "attend_fold", Grid{a.n_heads, shape.rows, 1}, CudaAttendFold{shape, partials, a.out});
}

template <Format KF, Format VF, class D>
Status cuda_attend_as(D& dev, const KvReadView& kv, const AttendArgs& a, const CudaAttendShape& shape,
                      float* partials) noexcept {
  // How many columns a block takes changes no bit of any.
  const std::size_t columns = shape.rows * (a.n_heads / kv.n_kv_heads);
  if (columns <= 8) return cuda_attend_pass<KF, VF, 1>(dev, kv, a, shape, partials);
  if (columns <= 32) return cuda_attend_pass<KF, VF, 4>(dev, kv, a, shape, partials);
  return cuda_attend_pass<KF, VF, 8>(dev, kv, a, shape, partials);
}

/// @pre cuda_attend_fits(kv)
template <class D>
Status cuda_attend(D& dev, const KvReadView& kv, const AttendArgs& a, const WorkspaceView& ws) noexcept {
  CudaAttendShape shape{};
  shape.n_heads = a.n_heads;
  shape.n_kv_heads = kv.n_kv_heads;
  shape.dk = kv.head_dim_k;
  shape.dv = kv.head_dim_v;
  shape.window = kv.window;
  shape.base = kv.k.base > kv.v.base ? kv.k.base : kv.v.base;
  const std::size_t k_end = kv.k.base + kv.k.phys_rows();
  const std::size_t v_end = kv.v.base + kv.v.phys_rows();
  shape.end = k_end < v_end ? k_end : v_end;
  shape.most_chunks = attend_most_chunks(kv.n_kv_heads, kv.head_dim_v);
  shape.pos_d = kv.at.pos_d;
  auto* const partials = reinterpret_cast<float*>(ws.data + (64 - reinterpret_cast<std::uintptr_t>(ws.data) % 64) % 64);
  const Format k = kv.k.shape.format;
  const Format v = kv.v.shape.format;
  for (std::size_t row = 0; row < kv.at.rows; row += attend_block_rows) {
    shape.first_row = row;
    shape.rows = kv.at.rows - row < attend_block_rows ? kv.at.rows - row : attend_block_rows;
    Status s = [&] {
      if (k == Format::q8_0 && v == Format::q5_1) {
        return cuda_attend_as<Format::q8_0, Format::q5_1>(dev, kv, a, shape, partials);
      }
      if (k == Format::q8_0 && v == Format::q8_0) {
        return cuda_attend_as<Format::q8_0, Format::q8_0>(dev, kv, a, shape, partials);
      }
      if (k == Format::q8_0) return cuda_attend_as<Format::q8_0, Format::q4_0>(dev, kv, a, shape, partials);
      if (k == Format::q4_0) return cuda_attend_as<Format::q4_0, Format::q4_0>(dev, kv, a, shape, partials);
      if (k == Format::f16) return cuda_attend_as<Format::f16, Format::f16>(dev, kv, a, shape, partials);
      if (k == Format::bf16) return cuda_attend_as<Format::bf16, Format::bf16>(dev, kv, a, shape, partials);
      return cuda_attend_as<Format::fp8_e4m3, Format::fp8_e4m3>(dev, kv, a, shape, partials);
    }();
    if (!s) return s;
  }
  return {};
}

}  // namespace memra::detail
