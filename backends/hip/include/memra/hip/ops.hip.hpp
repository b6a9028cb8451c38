// Kernels of HipDev: include this, in files that a HIP compiler reads, to use ops_for on a HipDev or to launch your
// own.
//
// Results are defined to the last bit only with the compiler's default arithmetic: no -ffast-math,
// -fgpu-flush-denormals-to-zero or -fno-hip-fp32-correctly-rounded-divide-sqrt. -ffp-contract may be anything: products
// that meet an addition round on their own.
//
// rocPRIM is used if it is there; define MEMRA_HIP_WITHOUT_ROCPRIM to go without.
#pragma once

#include <hip/hip_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memra/batch_views.hpp>
#include <memra/detail/gpu_launch.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/hip/append.hip.hpp>
#include <memra/hip/attend.hip.hpp>
#include <memra/hip/attend_grid.hip.hpp>
#include <memra/hip/device.hpp>
#include <memra/hip/draft.hip.hpp>
#include <memra/hip/scan.hip.hpp>
#include <memra/ops.hpp>
#include <memra/portable_ops.hpp>
#include <type_traits>
#include <utility>

#if __has_include(<rocprim/block/block_reduce.hpp>) && !defined(MEMRA_HIP_WITHOUT_ROCPRIM)
#include <memra/hip/argmax.hip.hpp>
#define MEMRA_DETAIL_ROCPRIM() 1
#else
#define MEMRA_DETAIL_ROCPRIM() 0
#endif

namespace memra {

namespace detail {

/// @param done  whether a tuned kernel takes the rule with one of these d_k = 16 * Steps; false: nothing was launched
template <ScanRule Rule, unsigned... Steps, class D>
Status hip_scan(D& dev, const char* name, const RecurView& r, const ScanArgs& a, bool& done) noexcept {
  Status s;
  const auto run = [&]<unsigned N>(std::integral_constant<unsigned, N>) {
    using Body = HipScan<Rule, N>;
    if (!Body::fits(r)) return false;
    const Body body(r, a);
    s = launch(dev, name, body.grid(), body);
    return true;
  };
  done = (run(std::integral_constant<unsigned, Steps>{}) || ...);
  return s;
}

/// Runs attend in passes of up to 16 rows, each a launch of partial results and one that folds them. With a batch `kv`
/// is what its sequences have in common.
template <class Body, class D>
Status hip_attend(D& dev, const KvReadView& kv, const AttendBatchView* batch, const AttendArgs& a,
                  const WorkspaceView& ws) noexcept {
  const std::size_t groups = (a.n_heads / kv.n_kv_heads + Body::queries - 1) / Body::queries;
  HipAttendShape shape(kv);
  shape.n_heads = a.n_heads;
  shape.n_kv_heads = kv.n_kv_heads;
  shape.dim = kv.head_dim_k;
  shape.most_chunks = attend_most_chunks(kv.n_kv_heads, kv.head_dim_v);
  shape.places =
      batch == nullptr ? shape.most_chunks : attend_batch_chunks(kv.n_kv_heads, kv.head_dim_v, batch->most_keys);
  shape.pos_d = kv.at.pos_d;
  auto* const partials = reinterpret_cast<float*>(ws.data + (64 - reinterpret_cast<std::uintptr_t>(ws.data) % 64) % 64);
  for (std::size_t row = 0; row < kv.at.rows; row += attend_block_rows) {
    const std::size_t rows = kv.at.rows - row < attend_block_rows ? kv.at.rows - row : attend_block_rows;
    // No row of this pass can have more chunks of the smallest size than this; a row far back has larger ones.
    const std::size_t reach =
        (kv.at.pos_bound + row + rows + hip_attend_smallest_chunk - 1) / hip_attend_smallest_chunk;
    shape.first_row = row;
    const Grid grid{rows * groups, reach < shape.places ? reach : shape.places, kv.n_kv_heads};
    // Scores come out in units of log2: the weights are powers of two.
    const Body split{shape, PortableSource(kv.k), PortableSource(kv.v), a.q, a.scale * 1.44269504F, partials};
    const HipAttendFold fold{shape, partials, a.out};
    if (batch == nullptr) {
      if (Status s = launch(dev, "attend", grid, split); !s) return s;
      if (Status s = launch(dev, "attend_fold", Grid{a.n_heads, rows, 1}, fold); !s) return s;
      continue;
    }
    const std::size_t stride =
        attend_batch_stride(attend_batch_floats(a.n_heads, kv.n_kv_heads, kv.head_dim_v, kv.at.rows, batch->most_keys));
    const Grid all{grid.x, grid.y, grid.z * batch->n};
    if (Status s = launch(dev, "attend_batch", all, HipAttendBatch<Body>{split, *batch, stride}); !s) return s;
    const HipAttendBatch<HipAttendFold> folds{fold, *batch, stride};
    if (Status s = launch(dev, "attend_batch_fold", Grid{a.n_heads, rows, batch->n}, folds); !s) return s;
  }
  return {};
}

/// Names a kernel of attend.
template <class Body>
struct HipAttendBy {
  using Kernel = Body;
};

}  // namespace detail

/// The kernel set behind ops_for of a HipDev and of wrappers of one.
///
/// Tuned kernels where the shape has one, the portable ones otherwise; which of them is a function of formats, layouts
/// and head geometry, never of positions or row counts. Same bits as the host: every op but attend of the pairs below,
/// which is of its own numeric class (see attend.hip.hpp).
struct HipKernels : PortableKernels {
  template <class D>
  static Status append(D& dev, const KvWriteView& kv, const float* k, const float* v) noexcept {
    const detail::HipAppend body(kv, k, v);
    if (!body.fits()) return PortableKernels::append(dev, kv, k, v);
    return launch(dev, "append", body.grid(), body);
  }

  template <class D>
  static Status attend(D& dev, const KvReadView& kv, const AttendArgs& a, const WorkspaceView& ws) noexcept {
    return attend_by(
        kv, [&](auto by) { return detail::hip_attend<typename decltype(by)::Kernel>(dev, kv, nullptr, a, ws); },
        [&] { return PortableKernels::attend(dev, kv, a, ws); });
  }

  template <class D>
  static Status attend_batch(D& dev, const AttendBatchView& b, const AttendArgs& a, const WorkspaceView& ws) noexcept {
    return attend_by(
        b.common, [&](auto by) { return detail::hip_attend<typename decltype(by)::Kernel>(dev, b.common, &b, a, ws); },
        [&] { return PortableKernels::attend_batch(dev, b, a, ws); });
  }

  template <class D>
  static Status delta_scan(D& dev, const RecurView& r, const ScanArgs& a) noexcept {
    bool done = false;
    Status s = detail::hip_scan<ScanRule::gated_delta, 2, 4, 8>(dev, "delta_scan", r, a, done);
    if (!done) s = detail::hip_scan<ScanRule::kda, 2, 4, 8>(dev, "delta_scan", r, a, done);
    return done ? std::move(s) : PortableKernels::delta_scan(dev, r, a);
  }

  template <class D>
  static Status linear_scan(D& dev, const RecurView& r, const ScanArgs& a) noexcept {
    bool done = false;
    Status s = detail::hip_scan<ScanRule::linear, 2, 4, 8>(dev, "linear_scan", r, a, done);
    if (!done) s = detail::hip_scan<ScanRule::mamba1, 1>(dev, "linear_scan", r, a, done);
    return done ? std::move(s) : PortableKernels::linear_scan(dev, r, a);
  }

  template <class D>
  static Status draft_attend(D& dev, const DraftView& d, const DraftAttendArgs& a, const WorkspaceView& ws) noexcept {
    const detail::HipDraftAttend body{d, a};
    if (!body.fits(d)) return PortableKernels::draft_attend(dev, d, a, ws);
    return launch(dev, "draft_attend", Grid{a.n_heads, d.block_rows, 1}, body);
  }

#if MEMRA_DETAIL_ROCPRIM()
  template <class D>
  static Status argmax_rows(D& dev, const float* x, std::size_t rows, std::size_t n, std::int32_t* out) noexcept {
    return launch(dev, "argmax_rows", Grid{rows, 1, 1}, detail::HipArgmax{x, n, out});
  }
#endif

 private:
  static bool aligned(const std::byte* p, std::size_t n) noexcept {
    return reinterpret_cast<std::uintptr_t>(p) % n == 0;
  }

  /// Calls `tuned` with the kernel for this shape, or `portable`.
  template <class Tuned, class Portable>
  static Status attend_by(const KvReadView& kv, const Tuned& tuned, const Portable& portable) noexcept {
    const bool fits = kv.head_dim_k == kv.head_dim_v && !kv.v_in_k && kv.k.shape.layout == kv.v.shape.layout &&
                      aligned(kv.k.data, 16) && aligned(kv.v.data, 16);
    using F = Format;
    const F k = kv.k.shape.format;
    const F v = kv.v.shape.format;
    const bool split = kv.k.shape.layout == Layout::split;
    if (fits && k == F::q8_0 && v == F::q5_1) {
      return split ? attend_in<F::q8_0, F::q5_1, true>(kv, tuned, portable)
                   : attend_in<F::q8_0, F::q5_1, false>(kv, tuned, portable);
    }
    if (fits && split && k == F::q8_0 && v == k) return attend_in<F::q8_0, F::q8_0, true>(kv, tuned, portable);
    if (fits && split && k == F::q4_0 && v == k) return attend_in<F::q4_0, F::q4_0, true>(kv, tuned, portable);
    if (fits && k == F::f16 && v == k) return attend_in<F::f16, F::f16, true>(kv, tuned, portable);
    if (fits && k == F::bf16 && v == k) return attend_in<F::bf16, F::bf16, true>(kv, tuned, portable);
    if (fits && k == F::fp8_e4m3 && v == k) return attend_in<F::fp8_e4m3, F::fp8_e4m3, true>(kv, tuned, portable);
    return portable();
  }

  template <Format KF, Format VF, bool Split, class Tuned, class Portable>
  static Status attend_in(const KvReadView& kv, const Tuned& tuned, const Portable& portable) noexcept {
    switch (kv.head_dim_k) {
      case 64:
        return tuned(detail::HipAttendBy<detail::HipAttend<KF, VF, Split, 64>>{});
      case 128:
        return tuned(detail::HipAttendBy<detail::HipAttend<KF, VF, Split, 128>>{});
      case 256:
        return tuned(detail::HipAttendBy<detail::HipAttend<KF, VF, Split, 256>>{});
      default:
        return portable();
    }
  }
};

}  // namespace memra

#undef MEMRA_DETAIL_ROCPRIM
