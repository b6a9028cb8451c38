// PortableKernels: every op as independent items, for any device that launches. The oracle of tuned kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/batch_views.hpp>
#include <memra/detail/attend_sequence.hpp>
#include <memra/detail/chunk_scan.hpp>
#include <memra/detail/portable_attend.hpp>
#include <memra/detail/portable_chunk_scan.hpp>
#include <memra/detail/portable_plane.hpp>
#include <memra/detail/portable_recurrent.hpp>
#include <memra/detail/portable_round.hpp>
#include <memra/detail/portable_rows.hpp>
#include <memra/error.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/round_views.hpp>
#include <memra/views.hpp>

namespace memra {

/// A kernel set for every LaunchDev: name it as the device's `kernels`. Items do not communicate, the warp size is
/// never assumed, nothing allocates, and every op gives the bits that HostKernels gives. Simple, not fast.
struct PortableKernels {
  template <class D>
  static Status append(D& dev, const KvWriteView& kv, const float* k, const float* v) noexcept {
    const detail::PortableAppend body{
        detail::PortableTarget(kv.k), detail::PortableTarget(kv.v), k, v, kv.at.pos_d, kv.at.capacity};
    const std::size_t width = kv.k.shape.width > kv.v.shape.width ? kv.k.shape.width : kv.v.shape.width;
    return launch(dev, "append", Grid{detail::portable_groups(width), kv.at.rows, kv.v_in_k ? 1U : 2U}, body);
  }

  template <class D>
  static Status attend(D& dev, const KvReadView& kv, const AttendArgs& a, const WorkspaceView&) noexcept {
    return launch(dev, "attend", Grid{detail::portable_groups(kv.head_dim_v), a.n_heads, kv.at.rows},
                  detail::PortableAttend(kv, a));
  }

  /// Before a sequence goes into a table of attend_batch, on the host: adds what the kernels of a device want to find
  /// there. Portable ones have all they need.
  template <class D>
  static Status describe(D&, detail::AttendSequence&) noexcept {
    return {};
  }

  template <class D>
  static Status attend_batch(D& dev, const AttendBatchView& b, const AttendArgs& a, const WorkspaceView&) noexcept {
    return launch(dev, "attend_batch",
                  Grid{detail::portable_groups(b.common.head_dim_v), a.n_heads, b.n * b.common.at.rows},
                  detail::PortableAttendBatch(b, a));
  }

  template <class D>
  static Status conv_update(D& dev, const RecurView& r, const ConvArgs& a) noexcept {
    return launch(dev, "conv_update", Grid{r.conv_dim(), 1, 1}, detail::PortableConv{r, a});
  }

  template <class D>
  static Status delta_scan(D& dev, const RecurView& r, const ScanArgs& a) noexcept {
    return launch(dev, "delta_scan", Grid{r.d_v, r.n_v_heads, 1}, detail::PortableScan(r, a));
  }

  template <class D>
  static Status chunk_scan(D& dev, const RecurView& r, const ScanArgs& a, const WorkspaceView& ws) noexcept {
    return detail::each_chunk_group(r, [&](const detail::ChunkGroup& g) {
      const detail::PortableChunkFactors factors{r, a, g, detail::chunk_factors(ws)};
      if (Status s = launch(dev, "chunk_factors", Grid{scan_chunk * scan_chunk, r.n_v_heads, g.count}, factors); !s) {
        return s;
      }
      return launch(dev, "chunk_scan", Grid{r.d_v, r.n_v_heads, 1},
                    detail::PortableChunkScan(r, a, g, detail::chunk_factors(ws)));
    });
  }

  template <class D>
  static Status linear_scan(D& dev, const RecurView& r, const ScanArgs& a) noexcept {
    return launch(dev, "linear_scan", Grid{r.d_v, r.n_v_heads, 1}, detail::PortableScan(r, a));
  }

  template <class D>
  static Status round_apply(D& dev, const RoundCommit& c, const RoundCommit* many, std::size_t n) noexcept {
    return launch(dev, "round_apply", detail::PortableRoundApply::grid(c, n), detail::PortableRoundApply{c, many});
  }

  template <class D>
  static Status round_commit(D& dev, const RoundCommit& c, const RoundCommit* many, std::size_t n) noexcept {
    return launch(dev, "round_commit", detail::RoundCommitBody::grid(c, n), detail::RoundCommitBody{c, many});
  }

  template <class D>
  static Status draft_write(D& dev, const DraftView& d, const float* k, const float* v) noexcept {
    return launch(dev, "draft_write", Grid{d.n_kv * d.head_dim, d.block_rows, 2}, detail::PortableDraftWrite{d, k, v});
  }

  template <class D>
  static Status draft_attend(D& dev, const DraftView& d, const DraftAttendArgs& a, const WorkspaceView&) noexcept {
    return launch(dev, "draft_attend", Grid{detail::portable_groups(d.head_dim), a.n_heads, d.block_rows},
                  detail::PortableDraftAttend{d, a});
  }

  template <class D>
  static Status argmax_rows(D& dev, const float* x, std::size_t rows, std::size_t n, std::int32_t* out) noexcept {
    return launch(dev, "argmax_rows", Grid{rows, 1, 1}, detail::PortableArgmax{x, n, out});
  }

  template <class D>
  static Status gather_rows(D& dev, const TableView& table, const std::int32_t* index, std::size_t n,
                            float* out) noexcept {
    const ConstPlaneView plane{table.data, {table.format, Layout::blocks, table.rows, table.width}, 0};
    return launch(dev, "gather_rows", Grid{detail::portable_groups(table.width), n, 1},
                  detail::PortableGatherRows{detail::PortableSource(plane), index, out});
  }

  template <class D>
  static Status copy_rows(D& dev, std::byte* dst, std::size_t dst_stride, const std::byte* src, std::size_t src_stride,
                          std::size_t row_bytes, std::size_t rows) noexcept {
    const std::size_t bits = reinterpret_cast<std::uintptr_t>(dst) | reinterpret_cast<std::uintptr_t>(src) |
                             dst_stride | src_stride | row_bytes;
    if (bits % 16 == 0) return copy_words<detail::Word16>(dev, dst, dst_stride, src, src_stride, row_bytes, rows);
    if (bits % 4 == 0) return copy_words<detail::Word4>(dev, dst, dst_stride, src, src_stride, row_bytes, rows);
    return copy_words<std::byte>(dev, dst, dst_stride, src, src_stride, row_bytes, rows);
  }

  template <class D>
  static Status repack(D& dev, const PlaneView& dst, std::size_t dst_row, const ConstPlaneView& src,
                       std::size_t src_row, std::size_t rows) noexcept {
    const FormatFacts f = facts(src.shape.format);
    const detail::PortableRepack body{detail::PortableTarget(dst),
                                      dst_row,
                                      detail::PortableSource(src),
                                      src_row,
                                      f.quant_bytes,
                                      f.fifth_bytes,
                                      f.scale_bytes};
    return launch(dev, "repack", Grid{src.shape.width / f.block_elems, rows, 1}, body);
  }

  template <class D>
  static Status read_rows(D& dev, const ConstPlaneView& plane, std::size_t first, std::size_t rows,
                          float* out) noexcept {
    return launch(dev, "read_rows", Grid{detail::portable_groups(plane.shape.width), rows, 1},
                  detail::PortableReadRows{detail::PortableSource(plane), first, out});
  }

 private:
  template <class Word, class D>
  static Status copy_words(D& dev, std::byte* dst, std::size_t dst_stride, const std::byte* src, std::size_t src_stride,
                           std::size_t row_bytes, std::size_t rows) noexcept {
    return launch(dev, "copy_rows", Grid{row_bytes / sizeof(Word), rows, 1},
                  detail::PortableCopyRows<Word>{dst, dst_stride, src, src_stride});
  }
};

}  // namespace memra
