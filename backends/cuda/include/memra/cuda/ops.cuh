// Kernels of CudaDev: include this, in files that nvcc compiles, to use ops_for on a CudaDev or to launch your own.
//
// Results are defined to the last bit only with nvcc's default arithmetic: no -use_fast_math, -ftz=true,
// -prec-div=false or -prec-sqrt=false. -fmad may be anything: products that meet an addition round on their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/cuda/append.cuh>
#include <memra/cuda/argmax.cuh>
#include <memra/cuda/attend.cuh>
#include <memra/cuda/conv.cuh>
#include <memra/cuda/device.hpp>
#include <memra/cuda/draft.cuh>
#include <memra/cuda/round.cuh>
#include <memra/cuda/scan.cuh>
#include <memra/detail/gpu_launch.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/ops.hpp>
#include <memra/portable_ops.hpp>
#include <memra/round_views.hpp>

namespace memra {

namespace detail {

/// Runs attend in passes of up to 16 rows, each a launch of partial results and one that folds them.
template <Format KF, Format VF, bool Split, unsigned Queries, unsigned Quads, class D>
Status cuda_attend(D& dev, const KvReadView& kv, const AttendArgs& a, const WorkspaceView& ws) noexcept {
  const std::size_t group = a.n_heads / kv.n_kv_heads;
  const std::size_t groups = (group + Queries - 1) / Queries;
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
  shape.most_chunks = attend_most_chunks(kv.n_kv_heads);
  shape.pos_d = kv.at.pos_d;
  auto* const partials = reinterpret_cast<float*>(ws.data + (64 - reinterpret_cast<std::uintptr_t>(ws.data) % 64) % 64);
  for (std::size_t row = 0; row < kv.at.rows; row += attend_block_rows) {
    const std::size_t rows = kv.at.rows - row < attend_block_rows ? kv.at.rows - row : attend_block_rows;
    // No row of this pass can have more chunks of the smallest size than this; a row far back has larger ones.
    const std::size_t reach = (kv.at.pos_bound + row + rows + attend_smallest_chunk - 1) / attend_smallest_chunk;
    shape.first_row = row;
    const Grid grid{rows * groups, reach < shape.most_chunks ? reach : shape.most_chunks, kv.n_kv_heads};
    // Scores come out in units of log2: the weights are powers of two.
    const CudaAttend<KF, VF, Split, Queries, Quads> split{shape, PortableSource(kv.k),  PortableSource(kv.v),
                                                          a.q,   a.scale * 1.44269504F, partials};
    if (Status s = launch(dev, "attend", grid, split); !s) return s;
    if (Status s = launch(dev, "attend_fold", Grid{a.n_heads, rows, 1}, CudaAttendFold{shape, partials, a.out}); !s) {
      return s;
    }
  }
  return {};
}

}  // namespace detail

/// The kernel set behind ops_for of a CudaDev and of wrappers of one.
///
/// Tuned kernels where the shape has one, the portable ones otherwise; which of them is a function of formats, layouts
/// and head geometry, never of positions or row counts. Same bits as the host: every op but attend of the
/// pairs below, which is of its own numeric class (see attend.cuh).
struct CudaKernels : PortableKernels {
  template <class D>
  static Status append(D& dev, const KvWriteView& kv, const float* k, const float* v) noexcept {
    if (!detail::CudaAppend::fits(kv, k, v)) return PortableKernels::append(dev, kv, k, v);
    const detail::CudaAppend body(kv, k, v);
    return launch(dev, "append", body.grid(), body);
  }

  template <class D>
  static Status attend(D& dev, const KvReadView& kv, const AttendArgs& a, const WorkspaceView& ws) noexcept {
    const bool fits = kv.head_dim_k % 32 == 0 && kv.head_dim_v % 32 == 0 && kv.head_dim_v <= 256 && !kv.v_in_k &&
                      !kv.k.ring && kv.k.shape.layout == kv.v.shape.layout && aligned(kv.k.data, 16) &&
                      aligned(kv.v.data, 16);
    const Format k = kv.k.shape.format;
    const Format v = kv.v.shape.format;
    const bool split = kv.k.shape.layout == Layout::split;
    if (fits && k == Format::q8_0 && v == Format::q5_1) {
      return split ? attend_as<Format::q8_0, Format::q5_1, true>(dev, kv, a, ws)
                   : attend_as<Format::q8_0, Format::q5_1, false>(dev, kv, a, ws);
    }
    if (fits && k == Format::q8_0 && v == Format::q8_0 && split) {
      return attend_as<Format::q8_0, Format::q8_0, true>(dev, kv, a, ws);
    }
    if (fits && k == Format::q4_0 && v == Format::q4_0 && split) {
      return attend_as<Format::q4_0, Format::q4_0, true>(dev, kv, a, ws);
    }
    if (fits && k == Format::f16 && v == Format::f16) return attend_as<Format::f16, Format::f16, true>(dev, kv, a, ws);
    if (fits && k == Format::bf16 && v == Format::bf16) {
      return attend_as<Format::bf16, Format::bf16, true>(dev, kv, a, ws);
    }
    if (fits && k == Format::fp8_e4m3 && v == Format::fp8_e4m3) {
      return attend_as<Format::fp8_e4m3, Format::fp8_e4m3, true>(dev, kv, a, ws);
    }
    return PortableKernels::attend(dev, kv, a, ws);
  }

  template <class D>
  static Status conv_update(D& dev, const RecurView& r, const ConvArgs& a) noexcept {
    if (detail::CudaConv<4>::fits(r)) return conv_as<4>(dev, r, a);
    if (detail::CudaConv<0>::fits(r)) return conv_as<0>(dev, r, a);
    return PortableKernels::conv_update(dev, r, a);
  }

  template <class D>
  static Status round_apply(D& dev, const RoundCommit& c, const RoundCommit* many, std::size_t n) noexcept {
    using Body = detail::CudaRoundApply;
    if (!c.plain || !Body::fits(c, n)) return PortableKernels::round_apply(dev, c, many, n);
    return launch(dev, "round_apply", Body::grid(c, n), Body{c, many});
  }

  template <class D>
  static Status round_commit(D& dev, const RoundCommit& c, const RoundCommit* many, std::size_t n) noexcept {
    using Body = detail::CudaRoundCommit;
    if (!c.plain || !Body::fits(c, n)) return PortableKernels::round_commit(dev, c, many, n);
    return launch(dev, "round_commit", Body::grid(c, n), Body{c, many});
  }

  template <class D>
  static Status delta_scan(D& dev, const RecurView& r, const ScanArgs& a) noexcept {
    if (!r.plain()) return PortableKernels::delta_scan(dev, r, a);
    switch (r.round.mode) {
      case RoundMode::none:
        return scan_in<RoundMode::none>(dev, r, a);
      case RoundMode::planes:
        return scan_in<RoundMode::planes>(dev, r, a);
      case RoundMode::stash:
        return scan_in<RoundMode::stash>(dev, r, a);
    }
    return detail::bad_op("delta_scan", "the view's round mode is none of ours");
  }

  template <class D>
  static Status draft_attend(D& dev, const DraftView& d, const DraftAttendArgs& a, const WorkspaceView& ws) noexcept {
    if (!detail::CudaDraftAttend::fits(d)) return PortableKernels::draft_attend(dev, d, a, ws);
    return launch(dev, "draft_attend", Grid{a.n_heads, d.block_rows, 1}, detail::CudaDraftAttend{d, a});
  }

  template <class D>
  static Status argmax_rows(D& dev, const float* x, std::size_t rows, std::size_t n, std::int32_t* out) noexcept {
    const detail::CudaArgmax body(x, n, out);
    if (Status s = launch(dev, "argmax_start", Grid{rows, 1, 1}, detail::CudaArgmaxStart{out}); !s) return s;
    return launch(dev, "argmax_rows", body.grid(rows), body);
  }

 private:
  static bool aligned(const std::byte* p, std::size_t n) noexcept {
    return reinterpret_cast<std::uintptr_t>(p) % n == 0;
  }

  template <Format KF, Format VF, bool Split, class D>
  static Status attend_as(D& dev, const KvReadView& kv, const AttendArgs& a, const WorkspaceView& ws) noexcept {
    const bool few = a.n_heads / kv.n_kv_heads <= 4;
    if (kv.head_dim_v <= 128) {
      return few ? detail::cuda_attend<KF, VF, Split, 4, 1>(dev, kv, a, ws)
                 : detail::cuda_attend<KF, VF, Split, 8, 1>(dev, kv, a, ws);
    }
    return few ? detail::cuda_attend<KF, VF, Split, 4, 2>(dev, kv, a, ws)
               : detail::cuda_attend<KF, VF, Split, 8, 2>(dev, kv, a, ws);
  }

  template <unsigned Taps, class D>
  static Status conv_as(D& dev, const RecurView& r, const ConvArgs& a) noexcept {
    const detail::CudaConv<Taps> body(r, a);
    return launch(dev, "conv_update", body.grid(), body);
  }

  template <RoundMode Mode, class D>
  static Status scan_in(D& dev, const RecurView& r, const ScanArgs& a) noexcept {
    if (detail::CudaScan<8, Mode>::fits(r, a)) return scan_as<8, Mode>(dev, r, a);
    if (detail::CudaScan<4, Mode>::fits(r, a)) return scan_as<4, Mode>(dev, r, a);
    if (detail::CudaScan<2, Mode>::fits(r, a)) return scan_as<2, Mode>(dev, r, a);
    return PortableKernels::delta_scan(dev, r, a);
  }

  template <unsigned Steps, RoundMode Mode, class D>
  static Status scan_as(D& dev, const RecurView& r, const ScanArgs& a) noexcept {
    using Body = detail::CudaScan<Steps, Mode>;
    return launch(dev, "delta_scan", Grid{(r.d_v + Body::block_columns - 1) / Body::block_columns, r.n_v_heads, 1},
                  Body(r, a));
  }
};

}  // namespace memra
