// Kernels of a wrapper device: each op runs the wrapped device's kernel, behind the wrapper's one door for launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/batch_views.hpp>
#include <memra/error.hpp>
#include <memra/ops.hpp>
#include <memra/round_views.hpp>
#include <memra/views.hpp>
#include <type_traits>

namespace memra::detail {

/// Kernel set of a wrapper over `Inner`. `d.through(name, run)` sees one launch of `name` and calls `run(inner)`, now
/// or later: every argument is captured by value.
template <class Inner>
struct WrapKernels {
  template <class D>
  static Status append(D& d, const KvWriteView& kv, const float* k, const float* v) noexcept {
    return run(d, "append", [=](Inner& in) noexcept { return kernels_of<Inner>::append(in, kv, k, v); });
  }
  template <class D>
  static Status attend(D& d, const KvReadView& kv, const AttendArgs& a, const WorkspaceView& ws) noexcept {
    return run(d, "attend", [=](Inner& in) noexcept { return kernels_of<Inner>::attend(in, kv, a, ws); });
  }
  /// No launch, and nothing on the device: passed on at once.
  template <class D>
  static Status describe(D& d, AttendSequence& s) noexcept {
    return kernels_of<Inner>::describe(d.inner(), s);
  }
  template <class D>
  static Status attend_batch(D& d, const AttendBatchView& b, const AttendArgs& a, const WorkspaceView& ws) noexcept {
    return run(d, "attend_batch", [=](Inner& in) noexcept { return kernels_of<Inner>::attend_batch(in, b, a, ws); });
  }
  template <class D>
  static Status conv_update(D& d, const RecurView& r, const ConvArgs& a) noexcept {
    return run(d, "conv_update", [=](Inner& in) noexcept { return kernels_of<Inner>::conv_update(in, r, a); });
  }
  template <class D>
  static Status delta_scan(D& d, const RecurView& r, const ScanArgs& a) noexcept {
    return run(d, "delta_scan", [=](Inner& in) noexcept { return kernels_of<Inner>::delta_scan(in, r, a); });
  }
  template <class D>
  static Status chunk_scan(D& d, const RecurView& r, const ScanArgs& a, const WorkspaceView& ws) noexcept {
    return run(d, "chunk_scan", [=](Inner& in) noexcept { return kernels_of<Inner>::chunk_scan(in, r, a, ws); });
  }
  template <class D>
  static Status linear_scan(D& d, const RecurView& r, const ScanArgs& a) noexcept {
    return run(d, "linear_scan", [=](Inner& in) noexcept { return kernels_of<Inner>::linear_scan(in, r, a); });
  }
  template <class D>
  static Status round_apply(D& d, const RoundCommit& c, const RoundCommit* many, std::size_t n) noexcept {
    return run(d, "round_apply", [=](Inner& in) noexcept { return kernels_of<Inner>::round_apply(in, c, many, n); });
  }
  template <class D>
  static Status round_commit(D& d, const RoundCommit& c, const RoundCommit* many, std::size_t n) noexcept {
    return run(d, "round_commit", [=](Inner& in) noexcept { return kernels_of<Inner>::round_commit(in, c, many, n); });
  }
  template <class D>
  static Status draft_write(D& d, const DraftView& view, const float* k, const float* v) noexcept {
    return run(d, "draft_write", [=](Inner& in) noexcept { return kernels_of<Inner>::draft_write(in, view, k, v); });
  }
  template <class D>
  static Status draft_attend(D& d, const DraftView& view, const DraftAttendArgs& a, const WorkspaceView& ws) noexcept {
    return run(d, "draft_attend", [=](Inner& in) noexcept { return kernels_of<Inner>::draft_attend(in, view, a, ws); });
  }
  template <class D>
  static Status argmax_rows(D& d, const float* x, std::size_t rows, std::size_t n, std::int32_t* out) noexcept {
    return run(d, "argmax_rows",
               [=](Inner& in) noexcept { return kernels_of<Inner>::argmax_rows(in, x, rows, n, out); });
  }
  template <class D>
  static Status gather_rows(D& d, const TableView& t, const std::int32_t* index, std::size_t n, float* out) noexcept {
    return run(d, "gather_rows",
               [=](Inner& in) noexcept { return kernels_of<Inner>::gather_rows(in, t, index, n, out); });
  }
  template <class D>
  static Status copy_rows(D& d, std::byte* dst, std::size_t dst_stride, const std::byte* src, std::size_t src_stride,
                          std::size_t row_bytes, std::size_t rows) noexcept {
    return run(d, "copy_rows", [=](Inner& in) noexcept {
      return kernels_of<Inner>::copy_rows(in, dst, dst_stride, src, src_stride, row_bytes, rows);
    });
  }
  template <class D>
  static Status repack(D& d, const PlaneView& dst, std::size_t dst_row, const ConstPlaneView& src, std::size_t src_row,
                       std::size_t rows) noexcept {
    return run(d, "repack",
               [=](Inner& in) noexcept { return kernels_of<Inner>::repack(in, dst, dst_row, src, src_row, rows); });
  }
  template <class D>
  static Status read_rows(D& d, const ConstPlaneView& plane, std::size_t first, std::size_t rows, float* out) noexcept {
    return run(d, "read_rows",
               [=](Inner& in) noexcept { return kernels_of<Inner>::read_rows(in, plane, first, rows, out); });
  }

 private:
  // A template of its own, so that it is looked up when an op is used: the kernels may be included after the wrapper.
  // The sentence is in here, because a name in an incomplete class would be an error before anything that asks later.
  template <class I>
  struct KernelsOf {
    static_assert(is_complete<typename I::kernels>,
                  "memra: the kernels of the wrapped device are declared but not included: include "
                  "<memra/host_ops.hpp> for a wrapped HostDev, or the ops header of the backend");
    using type = typename I::kernels;
  };
  template <class I>
  using kernels_of = typename KernelsOf<I>::type;

  template <class D, class F>
  static Status run(D& d, const char* name, const F& kernel) noexcept {
    return d.through(name, kernel);
  }
};

struct WithoutWrappedKernels {};
template <class Inner>
struct WithWrappedKernels {
  using kernels = WrapKernels<Inner>;
};

template <class Inner>
constexpr bool has_kernels = requires {
  typename Inner::kernels;
};

/// Base of a wrapper: has a member type `kernels` exactly when the wrapped device has one.
template <class Inner>
using ForwardKernels = std::conditional_t<has_kernels<Inner>, WithWrappedKernels<Inner>, WithoutWrappedKernels>;

}  // namespace memra::detail
