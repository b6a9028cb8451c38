// Kernels of CudaDev: include this, in files that nvcc compiles, to use ops_for on a CudaDev or to launch your own.
//
// Results are defined to the last bit only with nvcc's default arithmetic: no -use_fast_math, -ftz=true,
// -prec-div=false or -prec-sqrt=false. -fmad may be anything: products that meet an addition round on their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/batch_views.hpp>
#include <memra/cuda/append.cuh>
#include <memra/cuda/argmax.cuh>
#include <memra/cuda/attend_launch.cuh>
#include <memra/cuda/conv.cuh>
#include <memra/cuda/device.hpp>
#include <memra/cuda/draft.cuh>
#include <memra/cuda/round.cuh>
#include <memra/cuda/scan.cuh>
#include <memra/cuda/scan_chunks.cuh>
#include <memra/detail/attend_sequence.hpp>
#include <memra/detail/gpu_launch.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/ops.hpp>
#include <memra/portable_ops.hpp>
#include <memra/round_views.hpp>

namespace memra {

/// The kernel set behind ops_for of a CudaDev and of wrappers of one.
///
/// Tuned kernels where the shape has one, the portable ones otherwise; which of them is a function of formats, layouts
/// and head geometry, never of positions or row counts. Same bits as the host: every op but attend and draft_attend,
/// whose kernels are of numeric classes of their own (attend.cuh, attend_any.cuh, draft_tile.cuh), and delta_scan's
/// chunked class, whose bound they keep (scan_chunks.cuh).
struct CudaKernels : PortableKernels {
  template <class D>
  static Status append(D& dev, const KvWriteView& kv, const float* k, const float* v) noexcept {
    if (!detail::CudaAppend::fits(kv, k, v)) return PortableKernels::append(dev, kv, k, v);
    const detail::CudaAppend body(kv, k, v);
    return launch(dev, "append", body.grid(), body);
  }

  template <class D>
  static Status attend(D& dev, const KvReadView& kv, const AttendArgs& a, const WorkspaceView& ws) noexcept {
    return detail::cuda_attend(dev, {kv, nullptr, a, ws});
  }

  template <class D>
  static Status describe(D& dev, detail::AttendSequence& s) noexcept {
    detail::cuda_describe(dev, s);
    return {};
  }

  template <class D>
  static Status attend_batch(D& dev, const AttendBatchView& b, const AttendArgs& a, const WorkspaceView& ws) noexcept {
    return detail::cuda_attend(dev, {b.common, &b, a, ws});
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
  static Status chunk_scan(D& dev, const RecurView& r, const ScanArgs& a, const WorkspaceView& ws) noexcept {
    if (!detail::cuda_chunks_fit(r)) return PortableKernels::chunk_scan(dev, r, a, ws);
    return r.d_k == 64 ? detail::cuda_chunk_scan<64>(dev, r, a, ws) : detail::cuda_chunk_scan<128>(dev, r, a, ws);
  }

  template <class D>
  static Status draft_attend(D& dev, const DraftView& d, const DraftAttendArgs& a, const WorkspaceView& ws) noexcept {
    return detail::cuda_draft_attend(dev, d, a, ws);
  }

  template <class D>
  static Status argmax_rows(D& dev, const float* x, std::size_t rows, std::size_t n, std::int32_t* out) noexcept {
    const detail::CudaArgmax body(x, n, out);
    if (Status s = launch(dev, "argmax_start", Grid{rows, 1, 1}, detail::CudaArgmaxStart{out}); !s) return s;
    return launch(dev, "argmax_rows", body.grid(rows), body);
  }

 private:
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
