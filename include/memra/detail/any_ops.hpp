// The ops of a device behind AnyDev: one table of functions per wrapped type, and the kernel set that calls it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/batch_views.hpp>
#include <memra/error.hpp>
#include <memra/ops.hpp>
#include <memra/round_views.hpp>
#include <memra/views.hpp>

namespace memra {

namespace detail {

/// Every op of ops_for, on an erased device.
struct AnyOps {
  Status (*append)(void*, const KvWriteView&, const float*, const float*) noexcept;
  Status (*attend)(void*, const KvReadView&, const AttendArgs&, const WorkspaceView&) noexcept;
  Status (*describe)(void*, AttendSequence&) noexcept;
  Status (*attend_batch)(void*, const AttendBatchView&, const AttendArgs&, const WorkspaceView&) noexcept;
  Status (*conv_update)(void*, const RecurView&, const ConvArgs&) noexcept;
  Status (*delta_scan)(void*, const RecurView&, const ScanArgs&) noexcept;
  Status (*chunk_scan)(void*, const RecurView&, const ScanArgs&, const WorkspaceView&) noexcept;
  Status (*linear_scan)(void*, const RecurView&, const ScanArgs&) noexcept;
  Status (*round_apply)(void*, const RoundCommit&, const RoundCommit*, std::size_t) noexcept;
  Status (*round_commit)(void*, const RoundCommit&, const RoundCommit*, std::size_t) noexcept;
  Status (*draft_write)(void*, const DraftView&, const float*, const float*) noexcept;
  Status (*draft_attend)(void*, const DraftView&, const DraftAttendArgs&, const WorkspaceView&) noexcept;
  Status (*argmax_rows)(void*, const float*, std::size_t, std::size_t, std::int32_t*) noexcept;
  Status (*gather_rows)(void*, const TableView&, const std::int32_t*, std::size_t, float*) noexcept;
  Status (*copy_rows)(void*, std::byte*, std::size_t, const std::byte*, std::size_t, std::size_t, std::size_t) noexcept;
  Status (*repack)(void*, const PlaneView&, std::size_t, const ConstPlaneView&, std::size_t, std::size_t) noexcept;
  Status (*read_rows)(void*, const ConstPlaneView&, std::size_t, std::size_t, float*) noexcept;
};

/// The table of one wrapped type, filled where the wrapper is made: its kernels must be included there.
template <class D>
inline constexpr AnyOps any_ops = {
    [](void* d, const KvWriteView& v, const float* k, const float* x) noexcept {
      return D::kernels::append(*static_cast<D*>(d), v, k, x);
    },
    [](void* d, const KvReadView& v, const AttendArgs& a, const WorkspaceView& ws) noexcept {
      return D::kernels::attend(*static_cast<D*>(d), v, a, ws);
    },
    [](void* d, AttendSequence& s) noexcept { return D::kernels::describe(*static_cast<D*>(d), s); },
    [](void* d, const AttendBatchView& b, const AttendArgs& a, const WorkspaceView& ws) noexcept {
      return D::kernels::attend_batch(*static_cast<D*>(d), b, a, ws);
    },
    [](void* d, const RecurView& r, const ConvArgs& a) noexcept {
      return D::kernels::conv_update(*static_cast<D*>(d), r, a);
    },
    [](void* d, const RecurView& r, const ScanArgs& a) noexcept {
      return D::kernels::delta_scan(*static_cast<D*>(d), r, a);
    },
    [](void* d, const RecurView& r, const ScanArgs& a, const WorkspaceView& ws) noexcept {
      return D::kernels::chunk_scan(*static_cast<D*>(d), r, a, ws);
    },
    [](void* d, const RecurView& r, const ScanArgs& a) noexcept {
      return D::kernels::linear_scan(*static_cast<D*>(d), r, a);
    },
    [](void* d, const RoundCommit& c, const RoundCommit* many, std::size_t n) noexcept {
      return D::kernels::round_apply(*static_cast<D*>(d), c, many, n);
    },
    [](void* d, const RoundCommit& c, const RoundCommit* many, std::size_t n) noexcept {
      return D::kernels::round_commit(*static_cast<D*>(d), c, many, n);
    },
    [](void* d, const DraftView& v, const float* k, const float* x) noexcept {
      return D::kernels::draft_write(*static_cast<D*>(d), v, k, x);
    },
    [](void* d, const DraftView& v, const DraftAttendArgs& a, const WorkspaceView& ws) noexcept {
      return D::kernels::draft_attend(*static_cast<D*>(d), v, a, ws);
    },
    [](void* d, const float* x, std::size_t rows, std::size_t n, std::int32_t* out) noexcept {
      return D::kernels::argmax_rows(*static_cast<D*>(d), x, rows, n, out);
    },
    [](void* d, const TableView& t, const std::int32_t* index, std::size_t n, float* out) noexcept {
      return D::kernels::gather_rows(*static_cast<D*>(d), t, index, n, out);
    },
    [](void* d, std::byte* dst, std::size_t ds, const std::byte* src, std::size_t ss, std::size_t bytes,
       std::size_t rows) noexcept { return D::kernels::copy_rows(*static_cast<D*>(d), dst, ds, src, ss, bytes, rows); },
    [](void* d, const PlaneView& dst, std::size_t dr, const ConstPlaneView& src, std::size_t sr,
       std::size_t n) noexcept { return D::kernels::repack(*static_cast<D*>(d), dst, dr, src, sr, n); },
    [](void* d, const ConstPlaneView& p, std::size_t first, std::size_t n, float* out) noexcept {
      return D::kernels::read_rows(*static_cast<D*>(d), p, first, n, out);
    },
};

}  // namespace detail

/// Kernel set of an AnyDev: calls the table of the device it wraps.
struct AnyKernels {
  template <class D>
  static Status append(D& d, const KvWriteView& kv, const float* k, const float* v) noexcept {
    return d.ops().append(d.target(), kv, k, v);
  }
  template <class D>
  static Status attend(D& d, const KvReadView& kv, const AttendArgs& a, const WorkspaceView& ws) noexcept {
    return d.ops().attend(d.target(), kv, a, ws);
  }
  template <class D>
  static Status describe(D& d, detail::AttendSequence& s) noexcept {
    return d.ops().describe(d.target(), s);
  }
  template <class D>
  static Status attend_batch(D& d, const AttendBatchView& b, const AttendArgs& a, const WorkspaceView& ws) noexcept {
    return d.ops().attend_batch(d.target(), b, a, ws);
  }
  template <class D>
  static Status conv_update(D& d, const RecurView& r, const ConvArgs& a) noexcept {
    return d.ops().conv_update(d.target(), r, a);
  }
  template <class D>
  static Status delta_scan(D& d, const RecurView& r, const ScanArgs& a) noexcept {
    return d.ops().delta_scan(d.target(), r, a);
  }
  template <class D>
  static Status chunk_scan(D& d, const RecurView& r, const ScanArgs& a, const WorkspaceView& ws) noexcept {
    return d.ops().chunk_scan(d.target(), r, a, ws);
  }
  template <class D>
  static Status linear_scan(D& d, const RecurView& r, const ScanArgs& a) noexcept {
    return d.ops().linear_scan(d.target(), r, a);
  }
  template <class D>
  static Status round_apply(D& d, const RoundCommit& c, const RoundCommit* many, std::size_t n) noexcept {
    return d.ops().round_apply(d.target(), c, many, n);
  }
  template <class D>
  static Status round_commit(D& d, const RoundCommit& c, const RoundCommit* many, std::size_t n) noexcept {
    return d.ops().round_commit(d.target(), c, many, n);
  }
  template <class D>
  static Status draft_write(D& d, const DraftView& view, const float* k, const float* v) noexcept {
    return d.ops().draft_write(d.target(), view, k, v);
  }
  template <class D>
  static Status draft_attend(D& d, const DraftView& view, const DraftAttendArgs& a, const WorkspaceView& ws) noexcept {
    return d.ops().draft_attend(d.target(), view, a, ws);
  }
  template <class D>
  static Status argmax_rows(D& d, const float* x, std::size_t rows, std::size_t n, std::int32_t* out) noexcept {
    return d.ops().argmax_rows(d.target(), x, rows, n, out);
  }
  template <class D>
  static Status gather_rows(D& d, const TableView& t, const std::int32_t* index, std::size_t n, float* out) noexcept {
    return d.ops().gather_rows(d.target(), t, index, n, out);
  }
  template <class D>
  static Status copy_rows(D& d, std::byte* dst, std::size_t dst_stride, const std::byte* src, std::size_t src_stride,
                          std::size_t row_bytes, std::size_t rows) noexcept {
    return d.ops().copy_rows(d.target(), dst, dst_stride, src, src_stride, row_bytes, rows);
  }
  template <class D>
  static Status repack(D& d, const PlaneView& dst, std::size_t dst_row, const ConstPlaneView& src, std::size_t src_row,
                       std::size_t rows) noexcept {
    return d.ops().repack(d.target(), dst, dst_row, src, src_row, rows);
  }
  template <class D>
  static Status read_rows(D& d, const ConstPlaneView& plane, std::size_t first, std::size_t rows, float* out) noexcept {
    return d.ops().read_rows(d.target(), plane, first, rows, out);
  }
};

}  // namespace memra
