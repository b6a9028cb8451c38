// Which attend kernel a shape takes, and its launches.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/batch_views.hpp>
#include <memra/cuda/attend.cuh>
#include <memra/cuda/attend_any.cuh>
#include <memra/cuda/attend_batch.cuh>
#include <memra/cuda/attend_fold.cuh>
#include <memra/detail/attend_sequence.hpp>
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

/// What attend is called with. With a batch `kv` is what its sequences have in common.
struct CudaAttendCall {
  const KvReadView& kv;
  const AttendBatchView* batch;
  const AttendArgs& a;
  const WorkspaceView& ws;

  float* partials() const noexcept {
    return reinterpret_cast<float*>(ws.data + (64 - reinterpret_cast<std::uintptr_t>(ws.data) % 64) % 64);
  }
  std::size_t stride() const noexcept {
    return attend_batch_stride(
        attend_batch_floats(a.n_heads, kv.n_kv_heads, kv.head_dim_v, kv.at.rows, batch->most_keys));
  }
};

template <unsigned Ahead, class D>
Status cuda_attend_fold_as(D& dev, const CudaAttendCall& c, const CudaAttendShape& shape) noexcept {
  using Fold = CudaAttendFold<Ahead>;
  const Fold fold{shape, c.partials(), c.a.out};
  const Grid grid{c.a.n_heads, shape.rows, c.batch == nullptr ? 1 : c.batch->n};
  if (c.batch == nullptr) return launch(dev, "attend_fold", grid, fold);
  return launch(dev, "attend_batch_fold", grid, CudaAttendBatchBounded<Fold>{{fold, *c.batch, c.stride()}});
}

/// Partial results become outputs.
/// @param full  the first half's blocks leave little room beside them
template <class D>
Status cuda_attend_fold(D& dev, const CudaAttendCall& c, const CudaAttendShape& shape, bool full) noexcept {
  const bool few = CudaAttendFold<4>::team_chunks(shape.row_chunks(c.kv.at.pos_bound), shape.dv) <= 4;
  return few && (full || c.batch != nullptr) ? cuda_attend_fold_as<4>(dev, c, shape)
                                             : cuda_attend_fold_as<9>(dev, c, shape);
}

/// What the device behind `dev`, a CudaDev or a wrapper of one, has of something.
template <class D>
std::size_t cuda_has(D& dev, cudaDeviceAttr what) noexcept {
  if constexpr (requires { dev.inner(); }) {
    return cuda_has(dev.inner(), what);
  } else {
    int n = 0;
    return cudaDeviceGetAttribute(&n, what, dev.ordinal()) == cudaSuccess ? static_cast<std::size_t>(n) : 0;
  }
}

/// Shared memory that a block may have.
template <class D>
std::size_t cuda_shared_limit(D& dev) noexcept {
  return cuda_has(dev, cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

/// One pass of up to attend_block_rows rows: partial results, then their fold.
template <class Body, class D>
Status cuda_attend_pass(D& dev, const CudaAttendCall& c, const CudaAttendShape& shape) noexcept {
  const std::size_t resident = Body::resident(cuda_shared_limit(dev));
  const Body body(c.kv, c.a, shape, c.partials());
  Grid grid{body.tiles * body.slices * c.kv.n_kv_heads, shape.grid_chunks(c.kv.at.pos_bound), 1};
  if (c.batch == nullptr) {
    if (Status s = launch(dev, "attend", grid, body); !s) return s;
  } else {
    const std::size_t places = resident * cuda_has(dev, cudaDevAttrMultiProcessorCount);
    const CudaAttendShares<Body> all(body, *c.batch, c.stride(), places / grid.x);
    grid.y = all.shares;
    if (Status s = launch(dev, "attend_batch", grid, all); !s) return s;
  }
  return cuda_attend_fold(dev, c, shape, resident * Body::block_threads >= 512);
}

/// Head dimensions beside those: chunks by the kernel of attend_any.cuh.
template <Format KF, Format VF, bool Split, class D>
Status cuda_attend_any_as(D& dev, const CudaAttendCall& c, CudaAttendShape shape) noexcept {
  constexpr unsigned queries = 4;
  using Body = CudaAttendAny<KF, VF, Split, queries, 2>;
  const KvReadView& kv = c.kv;
  shape.unit = attend_any_unit;
  const std::size_t groups = (c.a.n_heads / kv.n_kv_heads + queries - 1) / queries;
  for (std::size_t row = 0; row < kv.at.rows; row += attend_block_rows) {
    shape.first_row = row;
    shape.rows = kv.at.rows - row < attend_block_rows ? kv.at.rows - row : attend_block_rows;
    const Body body{shape, PortableSource(kv.k), PortableSource(kv.v), c.a.q, c.a.scale * 1.44269504F, c.partials()};
    Grid grid{shape.rows * groups, shape.grid_chunks(kv.at.pos_bound), kv.n_kv_heads};
    if (c.batch == nullptr) {
      if (Status s = launch(dev, "attend", grid, body); !s) return s;
    } else {
      grid.z *= c.batch->n;
      const CudaAttendBatchShared<Body> all{{body, *c.batch, c.stride()}};
      if (Status s = launch(dev, "attend_batch", grid, all); !s) return s;
    }
    if (Status s = cuda_attend_fold(dev, c, shape, false); !s) return s;
  }
  return {};
}

template <class D>
Status cuda_attend_any(D& dev, const CudaAttendCall& c, const CudaAttendShape& shape) noexcept {
  const auto aligned = [](const std::byte* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  const KvReadView& kv = c.kv;
  const bool split = kv.k.shape.layout == Layout::split;
  if (!kv.v_in_k && !kv.k.ring && !kv.v.ring && kv.head_dim_k % 32 == 0 && kv.head_dim_v % 32 == 0 &&
      kv.head_dim_v <= 256 && kv.k.shape.layout == kv.v.shape.layout && aligned(kv.k.data) && aligned(kv.v.data)) {
    using F = Format;
    const Format k = kv.k.shape.format;
    const Format v = kv.v.shape.format;
    if (k == F::q8_0 && v == F::q5_1) {
      return split ? cuda_attend_any_as<F::q8_0, F::q5_1, true>(dev, c, shape)
                   : cuda_attend_any_as<F::q8_0, F::q5_1, false>(dev, c, shape);
    }
    if (k == F::q8_0 && v == F::q8_0 && split) return cuda_attend_any_as<F::q8_0, F::q8_0, true>(dev, c, shape);
    if (k == F::q4_0 && v == F::q4_0 && split) return cuda_attend_any_as<F::q4_0, F::q4_0, true>(dev, c, shape);
    if (k == F::f16 && v == F::f16) return cuda_attend_any_as<F::f16, F::f16, true>(dev, c, shape);
    if (k == F::bf16 && v == F::bf16) return cuda_attend_any_as<F::bf16, F::bf16, true>(dev, c, shape);
    if (k == F::fp8_e4m3 && v == F::fp8_e4m3) {
      return cuda_attend_any_as<F::fp8_e4m3, F::fp8_e4m3, true>(dev, c, shape);
    }
  }
  return c.batch == nullptr ? PortableKernels::attend(dev, kv, c.a, c.ws)
                            : PortableKernels::attend_batch(dev, *c.batch, c.a, c.ws);
}

/// The kernels of a pair of formats and head dimension. How many columns a block takes changes no bit of any: the
/// number of rows may choose it.
template <Format KF, Format VF, unsigned D, unsigned Warps, unsigned Groups>
struct CudaAttendKind {
  static constexpr unsigned most = D == 64 ? 4 : 8;
  using Few = CudaAttend<CudaAttendBlock<KF, VF, D, 1, Warps, Groups>>;
  using Some = CudaAttend<CudaAttendBlock<KF, VF, D, D == 128 ? 4 : most, Warps, Groups>>;
  using Many = CudaAttend<CudaAttendBlock<KF, VF, D, most, Warps, Groups>>;
};

/// All passes.
template <class Kind, class Dev>
Status cuda_attend_passes(Dev& dev, const CudaAttendCall& c, CudaAttendShape shape) noexcept {
  using Few = typename Kind::Few;
  using Some = typename Kind::Some;
  using Many = typename Kind::Many;
  const KvReadView& kv = c.kv;
  static_assert(Few::chunk_unit == Some::chunk_unit && Few::chunk_unit == Many::chunk_unit);
  shape.unit = Few::chunk_unit;
  const std::size_t limit = cuda_shared_limit(dev);
  if (Few(kv, c.a, shape, nullptr).shared_bytes() > limit) return cuda_attend_any(dev, c, shape);
  const bool many = Many(kv, c.a, shape, nullptr).shared_bytes() <= limit;
  for (std::size_t row = 0; row < kv.at.rows; row += attend_block_rows) {
    shape.first_row = row;
    shape.rows = kv.at.rows - row < attend_block_rows ? kv.at.rows - row : attend_block_rows;
    const std::size_t columns = shape.rows * (c.a.n_heads / kv.n_kv_heads);
    Status s = !many || columns <= Few::columns ? cuda_attend_pass<Few>(dev, c, shape)
               : columns <= Some::columns       ? cuda_attend_pass<Some>(dev, c, shape)
                                                : cuda_attend_pass<Many>(dev, c, shape);
    if (!s) return s;
  }
  return {};
}

/// Calls `tuned` with the kind of this head dimension: warps and groups of 32 elements of V for each. Steps of two
/// warpgroups are twice as many keys: too much where an element takes two bytes.
template <Format KF, Format VF, class Tuned>
Status cuda_attend_as(const KvReadView& kv, const Tuned& tuned) noexcept {
  constexpr bool small = AttendFormat<KF>::group_bytes <= 32;
  constexpr unsigned warps = small ? 8 : 4;
  if (kv.head_dim_v == 64) return tuned(CudaAttendKind<KF, VF, 64, 2, 1>{});
  if (kv.head_dim_v == 128) return tuned(CudaAttendKind<KF, VF, 128, 4, 1>{});
  if (kv.head_dim_v == 256) return tuned(CudaAttendKind<KF, VF, 256, warps, 8 / warps>{});
  return tuned(CudaAttendKind<KF, VF, 512, 4, 2>{});
}

/// @pre cuda_attend_fits(kv)
template <class Tuned>
Status cuda_attend_by(const KvReadView& kv, const Tuned& tuned) noexcept {
  const Format k = kv.k.shape.format;
  const Format v = kv.v.shape.format;
  using F = Format;
  if (k == F::q8_0 && v == F::q5_1) return cuda_attend_as<F::q8_0, F::q5_1>(kv, tuned);
  if (k == F::q8_0 && v == F::q8_0) return cuda_attend_as<F::q8_0, F::q8_0>(kv, tuned);
  if (k == F::q8_0) return cuda_attend_as<F::q8_0, F::q4_0>(kv, tuned);
  if (k == F::q4_0) return cuda_attend_as<F::q4_0, F::q4_0>(kv, tuned);
  if (k == F::f16) return cuda_attend_as<F::f16, F::f16>(kv, tuned);
  if (k == F::bf16) return cuda_attend_as<F::bf16, F::bf16>(kv, tuned);
  return cuda_attend_as<F::fp8_e4m3, F::fp8_e4m3>(kv, tuned);
}

inline CudaAttendShape cuda_attend_shape(const CudaAttendCall& c) noexcept {
  const KvReadView& kv = c.kv;
  CudaAttendShape shape{};
  shape.n_heads = c.a.n_heads;
  shape.n_kv_heads = kv.n_kv_heads;
  shape.dk = kv.head_dim_k;
  shape.dv = kv.head_dim_v;
  shape.window = kv.window;
  shape.base = kv.k.base > kv.v.base ? kv.k.base : kv.v.base;
  const std::size_t k_end = kv.k.base + kv.k.phys_rows();
  const std::size_t v_end = kv.v.base + kv.v.phys_rows();
  shape.end = k_end < v_end ? k_end : v_end;
  shape.most_chunks = cuda_attend_chunks(kv.n_kv_heads, kv.head_dim_v);
  shape.places = shape.most_chunks;
  if (c.batch != nullptr) {
    const std::size_t there = attend_batch_chunks(kv.n_kv_heads, kv.head_dim_v, c.batch->most_keys);
    shape.places = there < shape.places ? there : shape.places;
  }
  shape.pos_d = kv.at.pos_d;
  return shape;
}

/// Every shape: by the tensor cores' kernel, the one beside it, or the portable one.
template <class D>
Status cuda_attend(D& dev, const CudaAttendCall& c) noexcept {
  const CudaAttendShape shape = cuda_attend_shape(c);
  if (!cuda_attend_fits(c.kv)) return cuda_attend_any(dev, c, shape);
  return cuda_attend_by(c.kv, [&](auto kind) { return cuda_attend_passes<decltype(kind)>(dev, c, shape); });
}

/// Describes a sequence's planes to the copy engine, as the kernels of `Block` want them.
template <class Block>
void cuda_describe_as(const CudaApi::Driver& driver, AttendSequence& s) noexcept {
  typename Block::KStage k(s.k, s.kv.k.shape.layout == Layout::split);
  typename Block::VStage v(s.v, s.kv.v.shape.layout == Layout::split);
  static_assert(sizeof k.maps <= sizeof s.k_boxes && sizeof v.maps <= sizeof s.v_boxes);
  s.described = k.describe(driver) && v.describe(driver);
  std::memcpy(s.k_boxes, k.maps, sizeof k.maps);
  std::memcpy(s.v_boxes, v.maps, sizeof v.maps);
}

/// Where there are kernels that use it.
template <class D>
void cuda_describe(D& dev, AttendSequence& s) noexcept {
  if constexpr (requires { dev.inner(); }) {
    cuda_describe(dev.inner(), s);
  } else if (cuda_attend_fits(s.kv)) {
    (void)cuda_attend_by(s.kv, [&](auto kind) -> Status {
      cuda_describe_as<typename decltype(kind)::Few>(dev.driver(), s);
      return {};
    });
  }
}

}  // namespace memra::detail
