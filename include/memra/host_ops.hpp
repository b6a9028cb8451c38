// Kernels of HostDev: include this to use ops_for on a HostDev or a wrapper of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/batch_views.hpp>
#include <memra/detail/attend_sequence.hpp>
#include <memra/detail/chunk_scan.hpp>
#include <memra/detail/host_argmax.hpp>
#include <memra/detail/host_attend.hpp>
#include <memra/detail/host_chunk_scan.hpp>
#include <memra/detail/host_conv.hpp>
#include <memra/detail/host_draft.hpp>
#include <memra/detail/host_round.hpp>
#include <memra/detail/host_rows.hpp>
#include <memra/detail/host_rule_scan.hpp>
#include <memra/detail/host_scan.hpp>
#include <memra/detail/portable_recurrent.hpp>
#include <memra/detail/portable_round.hpp>
#include <memra/detail/simd.hpp>
#include <memra/error.hpp>
#include <memra/host_dev.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/round_views.hpp>
#include <memra/views.hpp>

namespace memra {

/// The kernel set behind ops_for of every device whose memory is host memory.
///
/// Each op is exactly one launch named as the op; nothing is read or written before the launch runs (positions are read
/// from `pos_d` then). The numeric definition of each op stands at its body in detail/host_*.hpp: f32 without
/// contraction, every reduction in one written order, so results do not depend on compiler, flags or vector width.
/// Arguments were checked by ops_for.
struct HostKernels {
  template <class D>
  static Status append(D& dev, const KvWriteView& kv, const float* k, const float* v) noexcept {
    return launch(dev, "append", Grid{kv.at.rows, kv.v_in_k ? 1U : 2U, 1}, detail::AppendBody{kv, k, v});
  }

  template <class D>
  static Status attend(D& dev, const KvReadView& kv, const AttendArgs& a, const WorkspaceView& ws) noexcept {
    return launch(dev, "attend", Grid{kv.n_kv_heads, 1, 1}, detail::AttendBody<detail::NativeSimd>{kv, a, ws.data});
  }

  template <class D>
  static Status describe(D&, detail::AttendSequence&) noexcept {
    return {};
  }

  template <class D>
  static Status attend_batch(D& dev, const AttendBatchView& b, const AttendArgs& a, const WorkspaceView& ws) noexcept {
    return launch(dev, "attend_batch", Grid{b.common.n_kv_heads, 1, 1},
                  detail::AttendBatchBody<detail::NativeSimd>{b, a, ws.data});
  }

  template <class D>
  static Status conv_update(D& dev, const RecurView& r, const ConvArgs& a) noexcept {
    return launch(dev, "conv_update", Grid{detail::ConvBody<detail::NativeSimd>::blocks(r), 1, 1},
                  detail::ConvBody<detail::NativeSimd>{r, a});
  }

  template <class D>
  static Status delta_scan(D& dev, const RecurView& r, const ScanArgs& a) noexcept {
    if (!r.plain()) return rule_scan(dev, "delta_scan", r, a);
    return launch(dev, "delta_scan", Grid{r.n_v_heads, 1, 1}, detail::ScanBody<detail::NativeSimd>{r, a});
  }

  template <class D>
  static Status chunk_scan(D& dev, const RecurView& r, const ScanArgs& a, const WorkspaceView& ws) noexcept {
    return launch(dev, "chunk_scan", Grid{r.n_v_heads, 1, 1},
                  detail::ChunkScanBody<detail::NativeSimd>{r, a, detail::chunk_factors(ws)});
  }

  template <class D>
  static Status linear_scan(D& dev, const RecurView& r, const ScanArgs& a) noexcept {
    return rule_scan(dev, "linear_scan", r, a);
  }

  template <class D>
  static Status round_apply(D& dev, const RoundCommit& c, const RoundCommit* many, std::size_t n) noexcept {
    return launch(dev, "round_apply", Grid{c.heads, c.n_layers, n},
                  detail::RoundApplyBody<detail::NativeSimd>{c, many});
  }

  template <class D>
  static Status round_commit(D& dev, const RoundCommit& c, const RoundCommit* many, std::size_t n) noexcept {
    return launch(dev, "round_commit", detail::RoundCommitBody::grid(c, n), detail::RoundCommitBody{c, many});
  }

  template <class D>
  static Status draft_write(D& dev, const DraftView& d, const float* k, const float* v) noexcept {
    return launch(dev, "draft_write", Grid{d.block_rows, 2, 1}, detail::DraftWriteBody{d, k, v});
  }

  template <class D>
  static Status draft_attend(D& dev, const DraftView& d, const DraftAttendArgs& a, const WorkspaceView& ws) noexcept {
    return launch(dev, "draft_attend", Grid{d.block_rows, 1, 1},
                  detail::DraftAttendBody<detail::NativeSimd>{d, a, ws.data});
  }

  template <class D>
  static Status argmax_rows(D& dev, const float* x, std::size_t rows, std::size_t n, std::int32_t* out) noexcept {
    return launch(dev, "argmax_rows", Grid{rows, 1, 1}, detail::ArgmaxBody{x, n, out});
  }

  template <class D>
  static Status gather_rows(D& dev, const TableView& table, const std::int32_t* index, std::size_t n,
                            float* out) noexcept {
    return launch(dev, "gather_rows", Grid{n, 1, 1}, detail::GatherRowsBody{table, index, out});
  }

  template <class D>
  static Status copy_rows(D& dev, std::byte* dst, std::size_t dst_stride, const std::byte* src, std::size_t src_stride,
                          std::size_t row_bytes, std::size_t rows) noexcept {
    return launch(dev, "copy_rows", Grid{rows, 1, 1},
                  detail::CopyRowsBody{dst, dst_stride, src, src_stride, row_bytes});
  }

  template <class D>
  static Status repack(D& dev, const PlaneView& dst, std::size_t dst_row, const ConstPlaneView& src,
                       std::size_t src_row, std::size_t rows) noexcept {
    return launch(dev, "repack", Grid{rows, 1, 1}, detail::RepackBody{dst, dst_row, src, src_row});
  }

  template <class D>
  static Status read_rows(D& dev, const ConstPlaneView& plane, std::size_t first, std::size_t rows,
                          float* out) noexcept {
    return launch(dev, "read_rows", Grid{rows, 1, 1}, detail::ReadRowsBody{plane, first, out});
  }

 private:
  template <class D>
  static Status rule_scan(D& dev, const char* name, const RecurView& r, const ScanArgs& a) noexcept {
    using Body = detail::RuleScanBody<detail::NativeSimd>;
    if (r.d_k > Body::most_d_k) {
      return launch(dev, name, Grid{r.d_v, r.n_v_heads, 1}, detail::PortableScan(r, a));
    }
    return launch(dev, name, Grid{r.n_v_heads, 1, 1}, Body{r, a});
  }
};

}  // namespace memra
