// Which attend kernel a shape takes, and its launches.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memra/cuda/attend.cuh>
#include <memra/cuda/attend_any.cuh>
#include <memra/cuda/attend_fold.cuh>
#include <memra/detail/scratch.hpp>
#include <memra/error.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/portable_ops.hpp>
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
  const auto fits = [](std::size_t d) { return d == 64 || d == 128 || d == 256 || d == 512; };
  if (kv.v_in_k || kv.k.ring || kv.v.ring || !fits(kv.head_dim_k) || kv.head_dim_k != kv.head_dim_v ||
      !aligned(kv.k.data) || !aligned(kv.v.data))
    return false;
  for (const CudaAttendPair& p : cuda_attend_pairs) {
    if (p.k == kv.k.shape.format && p.v == kv.v.shape.format) return true;
  }
  return false;
}

inline float* cuda_attend_partials(const WorkspaceView& ws) noexcept {
  return reinterpret_cast<float*>(ws.data + (64 - reinterpret_cast<std::uintptr_t>(ws.data) % 64) % 64);
}

/// One pass of up to attend_block_rows rows: partial results, then their fold.
template <class Body, class D>
Status cuda_attend_pass(D& dev, const KvReadView& kv, const AttendArgs& a, const CudaAttendShape& shape,
                        float* partials) noexcept {
  const Body body(kv, a, shape, partials);
  const Grid grid{body.tiles * body.slices * kv.n_kv_heads, shape.grid_chunks(kv.at.pos_bound), 1};
  if (Status s = launch(dev, "attend", grid, body); !s) return s;
  return launch(dev, "attend_fold", Grid{a.n_heads, shape.rows, 1}, CudaAttendFold{shape, partials, a.out});
}

/// Head dimensions beside those: chunks by the kernel of attend_any.cuh.
template <Format KF, Format VF, bool Split, class D>
Status cuda_attend_any_as(D& dev, const KvReadView& kv, const AttendArgs& a, const WorkspaceView& ws,
                          CudaAttendShape shape) noexcept {
  constexpr unsigned queries = 4;
  shape.unit = attend_any_unit;
  auto* const partials = cuda_attend_partials(ws);
  const std::size_t groups = (a.n_heads / kv.n_kv_heads + queries - 1) / queries;
  for (std::size_t row = 0; row < kv.at.rows; row += attend_block_rows) {
    shape.first_row = row;
    shape.rows = kv.at.rows - row < attend_block_rows ? kv.at.rows - row : attend_block_rows;
    const CudaAttendAny<KF, VF, Split, queries, 2> body{shape, PortableSource(kv.k),  PortableSource(kv.v),
                                                        a.q,   a.scale * 1.44269504F, partials};
    const Grid grid{shape.rows * groups, shape.grid_chunks(kv.at.pos_bound), kv.n_kv_heads};
    if (Status s = launch(dev, "attend", grid, body); !s) return s;
    const CudaAttendFold fold{shape, partials, a.out};
    if (Status s = launch(dev, "attend_fold", Grid{a.n_heads, shape.rows, 1}, fold); !s) return s;
  }
  return {};
}

template <class D>
Status cuda_attend_any(D& dev, const KvReadView& kv, const AttendArgs& a, const WorkspaceView& ws,
                       const CudaAttendShape& shape) noexcept {
  const auto aligned = [](const std::byte* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  const bool split = kv.k.shape.layout == Layout::split;
  if (!kv.v_in_k && !kv.k.ring && !kv.v.ring && kv.head_dim_k % 32 == 0 && kv.head_dim_v % 32 == 0 &&
      kv.head_dim_v <= 256 && kv.k.shape.layout == kv.v.shape.layout && aligned(kv.k.data) && aligned(kv.v.data)) {
    using F = Format;
    const Format k = kv.k.shape.format;
    const Format v = kv.v.shape.format;
    if (k == F::q8_0 && v == F::q5_1) {
      return split ? cuda_attend_any_as<F::q8_0, F::q5_1, true>(dev, kv, a, ws, shape)
                   : cuda_attend_any_as<F::q8_0, F::q5_1, false>(dev, kv, a, ws, shape);
    }
    if (k == F::q8_0 && v == F::q8_0 && split) return cuda_attend_any_as<F::q8_0, F::q8_0, true>(dev, kv, a, ws, shape);
    if (k == F::q4_0 && v == F::q4_0 && split) return cuda_attend_any_as<F::q4_0, F::q4_0, true>(dev, kv, a, ws, shape);
    if (k == F::f16 && v == F::f16) return cuda_attend_any_as<F::f16, F::f16, true>(dev, kv, a, ws, shape);
    if (k == F::bf16 && v == F::bf16) return cuda_attend_any_as<F::bf16, F::bf16, true>(dev, kv, a, ws, shape);
    if (k == F::fp8_e4m3 && v == F::fp8_e4m3) {
      return cuda_attend_any_as<F::fp8_e4m3, F::fp8_e4m3, true>(dev, kv, a, ws, shape);
    }
  }
  return PortableKernels::attend(dev, kv, a, ws);
}

/// Shared memory that a block may have on the device behind `dev`, a CudaDev or a wrapper of one.
template <class D>
std::size_t cuda_shared_limit(D& dev) noexcept {
  if constexpr (requires { dev.inner(); }) {
    return cuda_shared_limit(dev.inner());
  } else {
    int bytes = 0;
    if (cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, dev.ordinal()) != cudaSuccess) return 0;
    return static_cast<std::size_t>(bytes);
  }
}

/// All passes. How many columns a block takes changes no bit of any: the number of rows may choose it.
template <Format KF, Format VF, unsigned D, unsigned Warps, unsigned Groups, class Dev>
Status cuda_attend_passes(Dev& dev, const KvReadView& kv, const AttendArgs& a, const WorkspaceView& ws,
                          CudaAttendShape shape) noexcept {
  constexpr unsigned most = D == 64 ? 4 : 8;
  using Few = CudaAttend<CudaAttendBlock<KF, VF, D, 1, Warps, Groups>>;
  using Some = CudaAttend<CudaAttendBlock<KF, VF, D, D == 128 ? 4 : most, Warps, Groups>>;
  using Many = CudaAttend<CudaAttendBlock<KF, VF, D, most, Warps, Groups>>;
  auto* const partials = cuda_attend_partials(ws);
  const std::size_t limit = cuda_shared_limit(dev);
  if (Few(kv, a, shape, partials).shared_bytes() > limit) return cuda_attend_any(dev, kv, a, ws, shape);
  const bool many = Many(kv, a, shape, partials).shared_bytes() <= limit;
  for (std::size_t row = 0; row < kv.at.rows; row += attend_block_rows) {
    shape.first_row = row;
    shape.rows = kv.at.rows - row < attend_block_rows ? kv.at.rows - row : attend_block_rows;
    const std::size_t columns = shape.rows * (a.n_heads / kv.n_kv_heads);
    Status s = !many || columns <= Few::columns ? cuda_attend_pass<Few>(dev, kv, a, shape, partials)
               : columns <= Some::columns       ? cuda_attend_pass<Some>(dev, kv, a, shape, partials)
                                                : cuda_attend_pass<Many>(dev, kv, a, shape, partials);
    if (!s) return s;
  }
  return {};
}

/// Warps and groups of 32 elements of V for each. Steps of two warpgroups are twice as many keys: too much where an
/// element takes two bytes.
template <Format KF, Format VF, class D>
Status cuda_attend_as(D& dev, const KvReadView& kv, const AttendArgs& a, const WorkspaceView& ws,
                      const CudaAttendShape& shape) noexcept {
  constexpr bool small = AttendFormat<KF>::group_bytes <= 32;
  if (kv.head_dim_v == 64) return cuda_attend_passes<KF, VF, 64, 2, 1>(dev, kv, a, ws, shape);
  if (kv.head_dim_v == 128) return cuda_attend_passes<KF, VF, 128, 4, 1>(dev, kv, a, ws, shape);
  if (kv.head_dim_v == 256)
    return cuda_attend_passes < KF, VF, 256, small ? 8 : 4, small ? 1 : 2 > (dev, kv, a, ws, shape);
  return cuda_attend_passes<KF, VF, 512, 4, 2>(dev, kv, a, ws, shape);
}

/// Every shape: by the tensor cores' kernel, the one beside it, or the portable one.
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
  shape.most_chunks = cuda_attend_chunks(kv.n_kv_heads, kv.head_dim_v);
  shape.unit = attend_chunk_unit;
  shape.pos_d = kv.at.pos_d;
  if (!cuda_attend_fits(kv)) return cuda_attend_any(dev, kv, a, ws, shape);
  const Format k = kv.k.shape.format;
  const Format v = kv.v.shape.format;
  using F = Format;
  if (k == F::q8_0 && v == F::q5_1) return cuda_attend_as<F::q8_0, F::q5_1>(dev, kv, a, ws, shape);
  if (k == F::q8_0 && v == F::q8_0) return cuda_attend_as<F::q8_0, F::q8_0>(dev, kv, a, ws, shape);
  if (k == F::q8_0) return cuda_attend_as<F::q8_0, F::q4_0>(dev, kv, a, ws, shape);
  if (k == F::q4_0) return cuda_attend_as<F::q4_0, F::q4_0>(dev, kv, a, ws, shape);
  if (k == F::f16) return cuda_attend_as<F::f16, F::f16>(dev, kv, a, ws, shape);
  if (k == F::bf16) return cuda_attend_as<F::bf16, F::bf16>(dev, kv, a, ws, shape);
  return cuda_attend_as<F::fp8_e4m3, F::fp8_e4m3>(dev, kv, a, ws, shape);
}

}  // namespace memra::detail
