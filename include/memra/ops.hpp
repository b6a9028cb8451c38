// The one door to kernels: ops_for<Dev>. It checks arguments; the device's kernel set does the work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/batch_views.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/error.hpp>
#include <memra/op_args.hpp>
#include <memra/round_types.hpp>
#include <memra/round_views.hpp>
#include <memra/views.hpp>
#include <utility>

namespace memra {

namespace detail {

template <class T>
constexpr bool is_complete = requires {
  sizeof(T);
};

inline Status bad_op(const char* op, const char* sentence) noexcept {
  return Status::failure(ErrorKind::bad_argument, op, 0, 0, "%s", sentence);
}

}  // namespace detail

/// Kernels of a device, by argument checks and then `Dev::kernels`.
///
/// Every op is ordered on the device's stream, allocates nothing, reads the position from the device (`pos_d`), and
/// gives for each row exactly the bits it would give if that row came alone (C10): splits are a function of the row's
/// own position and the layer's geometry, never of the rows beside it. A refused call has launched nothing.
template <class Dev>
class ops_for {
  static_assert(
      requires { typename Dev::kernels; },
      "memra: this device has no kernels: give it a member type `kernels` (a wrapper forwards that of the device "
      "it wraps), or let the engine bring its own kernels and use the cache without ops");
  using K = typename Dev::kernels;
  static_assert(
      detail::is_complete<K>,
      "memra: the kernels of this device are declared but not included: include <memra/host_ops.hpp> for HostDev, "
      "or the ops header of the backend");

 public:
  explicit ops_for(Dev& dev) noexcept : dev_(&dev) {}

  /// Writes `at.rows` rows of K and V at stream rows [*pos_d, *pos_d + rows), quantising to the planes' formats.
  /// @param k [rows][n_kv_heads * head_dim_k] f32
  /// @param v [rows][n_kv_heads * head_dim_v] f32; not read where the view has no V plane
  Status append(const KvWriteView& kv, const float* k, const float* v) const noexcept {
    if (kv.at.rows == 0) return {};
    if (!kv.k || k == nullptr || (!kv.v_in_k && (!kv.v || v == nullptr)) || kv.at.pos_d == nullptr) {
      return detail::bad_op("append", "a plane, a source or pos_d is null; expected all of them");
    }
    if (Status s = check_planes("append", kv); !s) return s;
    return K::append(*dev_, kv, k, v);
  }

  /// Softmax attention of `at.rows` query rows over the cached rows, causal inside the call, windowed if the view says
  /// so. Where the view has no V plane (MLA) the values are the first head_dim_v elements of each key: with queries
  /// that absorbed the up-projection of K, the result is in the latent space.
  /// @param ws at least attend_scratch_bytes of this shape (plan.workspace_bytes covers every layer)
  Status attend(const KvReadView& kv, const AttendArgs& a, const WorkspaceView& ws) const noexcept {
    if (kv.at.rows == 0) return {};
    if (Status s = check_attend("attend", kv, a); !s) return s;
    const std::size_t bytes =
        detail::attend_scratch_bytes(a.n_heads, kv.n_kv_heads, kv.head_dim_k, kv.head_dim_v, kv.at.rows);
    if (Status s = need("attend", ws, bytes); !s) return s;
    return K::attend(*dev_, kv, a, ws);
  }

  /// attend of many sequences in one launch, each with its own cache, position and row count; bit for bit what attend
  /// gives to each alone. Where one sees no key its rows become zeros; one without rows in the call sits it out.
  /// @param b   a layer of an AttendBatch
  /// @param a   q and out hold the rows of all sequences, one sequence behind the other, in the batch's order
  /// @param ws  at least AttendBatch::workspace_bytes (plan.workspace_bytes(rows, n) is never less)
  Status attend_batch(const AttendBatchView& b, const AttendArgs& a, const WorkspaceView& ws) const noexcept {
    if (b.n == 0 || b.common.at.rows == 0) return {};
    if (b.table == nullptr || b.starts == nullptr) {
      return detail::bad_op("attend_batch", "the table or its row counts are null; expected a layer of an AttendBatch");
    }
    const KvReadView& kv = b.common;
    if (Status s = check_attend("attend_batch", kv, a); !s) return s;
    const std::size_t bytes = detail::attend_batch_scratch_bytes(a.n_heads, kv.n_kv_heads, kv.head_dim_k, kv.head_dim_v,
                                                                 b.n, kv.at.rows, b.most_keys);
    if (Status s = need("attend_batch", ws, bytes); !s) return s;
    return K::attend_batch(*dev_, b, a, ws);
  }

  /// Convolution of `r.rows` tokens and the update of the ring; works for every rows >= 1, also rows < d_conv - 1. In a
  /// round the ring stays and the raw inputs are kept.
  Status conv_update(const RecurView& r, const ConvArgs& a) const noexcept {
    if (r.rows == 0) return {};
    if ((r.d_conv > 1 && !r.conv_state()) || a.x == nullptr || a.weight == nullptr || a.y == nullptr) {
      return detail::bad_op("conv_update", "the conv state, x, weight or y is null; expected all of them");
    }
    if (r.d_conv == 0) return detail::bad_op("conv_update", "d_conv is 0; expected at least 1");
    if (r.round.mode != RoundMode::none && r.d_conv > 1 && r.round.conv_rows == nullptr) {
      return detail::bad_op("conv_update", "a round without a place for raw inputs; expected conv_rows");
    }
    return K::conv_update(*dev_, r, a);
  }

  /// Delta rules (gated_delta, kda) over `r.rows` tokens, state updated in place; in a round the state stays and what
  /// RoundMode says is kept. The outputs are the same bits in every mode. A view of the chunked class goes through its
  /// tokens in chunks: a call gives the bits of any calls that it could be split into on the grid.
  /// @param ws  chunked: at least chunk_scan_bytes of this shape (plan.workspace_bytes(rows, batch, ScanClass::chunked)
  ///            covers every layer); not read otherwise
  Status delta_scan(const RecurView& r, const ScanArgs& a, const WorkspaceView& ws = {}) const noexcept {
    if (r.rule != ScanRule::gated_delta && r.rule != ScanRule::kda) return other_rule("delta_scan", r.rule);
    if (r.rows != 0 && a.beta == nullptr) return detail::bad_op("delta_scan", "beta is null; a delta rule needs it");
    if (r.scan == ScanClass::chunked) {
      if (Status s = check_chunks(r, ws); !s) return s;
      return scan("delta_scan", r, a, [&](const ScanArgs& dense) { return K::chunk_scan(*dev_, r, dense, ws); });
    }
    return scan("delta_scan", r, a, [&](const ScanArgs& dense) { return K::delta_scan(*dev_, r, dense); });
  }

  /// Rules without a correction (linear: Mamba-2 and lightning; mamba1), as delta_scan.
  Status linear_scan(const RecurView& r, const ScanArgs& a) const noexcept {
    if (r.rule != ScanRule::linear && r.rule != ScanRule::mamba1) return other_rule("linear_scan", r.rule);
    if (r.scan != ScanClass::sequential) return detail::bad_op("linear_scan", "this rule has no chunked class");
    if (r.rows != 0 && r.rule == ScanRule::mamba1) {
      if (a.a == nullptr) return detail::bad_op("linear_scan", "A is null; mamba1 needs it");
      if (r.n_v_heads != 1 || r.n_k_heads != 1) return detail::bad_op("linear_scan", "mamba1 has one head");
      if (r.round.mode == RoundMode::stash) {
        return detail::bad_op("linear_scan", "mamba1 keeps no stash; rounds by planes or replay work");
      }
    }
    return scan("linear_scan", r, a, [&](const ScanArgs& dense) { return K::linear_scan(*dev_, r, dense); });
  }

  /// First half of a stash's commit: ssm of every layer moves on by the accepted tokens, in one launch.
  /// @param many  device: [n] commits of as many caches, or nullptr: `c` alone. With it `c` gives the mode of all, the
  ///              launch's size (the most layers and heads of any of them) and, if it has an accept_d, [n] accept
  ///              lengths instead of the table's own
  Status round_apply(const RoundCommit& c, const RoundCommit* many = nullptr, std::size_t n = 1) const noexcept {
    if (Status s = check_commit("round_apply", c, many); !s) return s;
    if (n == 0 || c.n_layers == 0) return {};
    return K::round_apply(*dev_, c, many, n);
  }

  /// Commit of planes, second half of a stash's: conv columns, current plane, position and generation, in one launch.
  /// @param many  as round_apply; with it `c` also gives the most channels
  Status round_commit(const RoundCommit& c, const RoundCommit* many = nullptr, std::size_t n = 1) const noexcept {
    if (Status s = check_commit("round_commit", c, many); !s) return s;
    if (n == 0) return {};
    return K::round_commit(*dev_, c, many, n);
  }

  /// Writes `d.block_rows` rows of K and V at [*len_d, *len_d + block_rows): rows to commit, or a block's transient
  /// rows.
  /// @param k [block_rows][n_kv * head_dim] normed and roped   @param v the same shape, raw
  Status draft_write(const DraftView& d, const float* k, const float* v) const noexcept {
    if (d.block_rows == 0) return {};
    if (d.k == nullptr || d.v == nullptr || d.len_d == nullptr || k == nullptr || v == nullptr) {
      return detail::bad_op("draft_write",
                            "a plane (Rows that are over have none), len_d or a source is null; expected all of them");
    }
    return K::draft_write(*dev_, d, k, v);
  }

  /// Draft attention over one layer.
  /// @param ws at least draft_scratch_bytes of this shape
  Status draft_attend(const DraftView& d, const DraftAttendArgs& a, const WorkspaceView& ws) const noexcept {
    if (d.block_rows == 0) return {};
    if (d.k == nullptr || d.v == nullptr || d.len_d == nullptr || a.q == nullptr || a.out == nullptr) {
      return detail::bad_op("draft_attend",
                            "a plane (Rows that are over have none), len_d, q or out is null; expected all of them");
    }
    if (d.n_kv == 0 || a.n_heads == 0 || a.n_heads % d.n_kv != 0) {
      return Status::failure(ErrorKind::bad_argument, "draft_attend", 0, 0,
                             "%zu query heads over %zu kv heads; expected a positive multiple", a.n_heads, d.n_kv);
    }
    if (Status s = need("draft_attend", ws,
                        detail::draft_scratch_bytes(a.n_heads, d.n_kv, d.head_dim, d.block_rows, d.most_keys()));
        !s) {
      return s;
    }
    return K::draft_attend(*dev_, d, a, ws);
  }

  /// out[r] = index of the largest of x[r][0..n): the first wins ties, NaN never wins, a row of NaN only gives -1.
  Status argmax_rows(const float* x, std::size_t rows, std::size_t n, std::int32_t* out) const noexcept {
    if (rows == 0) return {};
    if (x == nullptr || out == nullptr) return detail::bad_op("argmax_rows", "x or out is null");
    if (n == 0 || n > 0x7fffffffU) {
      return Status::failure(ErrorKind::bad_argument, "argmax_rows", 0, 0, "%zu columns; expected 1 to 2147483647", n);
    }
    return K::argmax_rows(*dev_, x, rows, n, out);
  }

  /// out[i] = decoded row index[i] of the table, [n][width] f32. An index outside the table gives a row of NaN.
  Status gather_rows(const TableView& table, const std::int32_t* index, std::size_t n, float* out) const noexcept {
    if (n == 0) return {};
    if (table.data == nullptr || index == nullptr || out == nullptr) {
      return detail::bad_op("gather_rows", "the table, index or out is null; expected all of them");
    }
    if (!whole_blocks(table.format, table.width)) return detail::bad_op("gather_rows", "the width is not whole blocks");
    return K::gather_rows(*dev_, table, index, n, out);
  }

  /// Copies `rows` runs of `row_bytes`, strides in bytes. Ranges must not overlap.
  Status copy_rows(std::byte* dst, std::size_t dst_stride, const std::byte* src, std::size_t src_stride,
                   std::size_t row_bytes, std::size_t rows) const noexcept {
    if (rows == 0 || row_bytes == 0) return {};
    if (dst == nullptr || src == nullptr) return detail::bad_op("copy_rows", "source or destination is null");
    return K::copy_rows(*dev_, dst, dst_stride, src, src_stride, row_bytes, rows);
  }

  /// Moves `rows` physical rows between planes of one format and width whose layouts may differ, bit for bit.
  Status repack(const PlaneView& dst, std::size_t dst_row, const ConstPlaneView& src, std::size_t src_row,
                std::size_t rows) const noexcept {
    if (rows == 0) return {};
    if (!dst || !src) return detail::bad_op("repack", "a plane is null");
    if (dst.shape.format != src.shape.format || dst.shape.width != src.shape.width) {
      return detail::bad_op("repack", "formats or widths differ; expected planes that differ in layout only");
    }
    if (dst_row > dst.shape.rows || rows > dst.shape.rows - dst_row || src_row > src.shape.rows ||
        rows > src.shape.rows - src_row) {
      return detail::bad_op("repack", "the rows do not lie inside both planes");
    }
    return K::repack(*dev_, dst, dst_row, src, src_row, rows);
  }

  /// Decodes `rows` stream rows from `first` on: out is [rows][width] f32.
  Status read_rows(const ConstPlaneView& plane, std::size_t first, std::size_t rows, float* out) const noexcept {
    if (rows == 0) return {};
    if (!plane || out == nullptr) return detail::bad_op("read_rows", "the plane or out is null");
    if (first < plane.base || first - plane.base > plane.phys_rows() ||
        rows > plane.phys_rows() - (first - plane.base)) {
      return detail::bad_op("read_rows", "the rows are not resident in the plane");
    }
    return K::read_rows(*dev_, plane, first, rows, out);
  }

 private:
  template <class View>
  static Status check_planes(const char* op, const View& kv) noexcept {
    const std::size_t v_width = kv.v_in_k ? 0 : kv.n_kv_heads * kv.head_dim_v;
    if (kv.k.shape.width != kv.n_kv_heads * kv.head_dim_k || kv.v.shape.width != v_width) {
      return detail::bad_op(op, "a plane's width is not n_kv_heads * head_dim (none for V with v_in_k)");
    }
    if (kv.v_in_k && kv.head_dim_v > kv.head_dim_k) {
      return detail::bad_op(op, "V is to be the first head_dim_v elements of K, which has fewer");
    }
    const bool ring = kv.k.ring || kv.v.ring;
    if (ring && (kv.k.shape.rows % ring_tile != 0 || kv.k.shape.rows < kv.at.rows ||
                 (!kv.v_in_k && (kv.v.ring != kv.k.ring || kv.v.shape.rows != kv.k.shape.rows)))) {
      return detail::bad_op(op, "a ring needs whole tiles of 64 rows, as many for K as for V and for all of the call");
    }
    return {};
  }

  static Status check_attend(const char* op, const KvReadView& kv, const AttendArgs& a) noexcept {
    if (!kv.k || (!kv.v && !kv.v_in_k) || a.q == nullptr || a.out == nullptr || kv.at.pos_d == nullptr) {
      return detail::bad_op(op, "a plane, q, out or pos_d is null; expected all of them");
    }
    if (kv.head_dim_v == 0) return detail::bad_op(op, "the rows have no values; they are keys of an indexer");
    if (kv.n_kv_heads == 0 || a.n_heads == 0 || a.n_heads % kv.n_kv_heads != 0) {
      return Status::failure(ErrorKind::bad_argument, op, 0, 0,
                             "%zu query heads over %zu kv heads; expected a positive multiple", a.n_heads,
                             kv.n_kv_heads);
    }
    return check_planes(op, kv);
  }

  static Status other_rule(const char* op, ScanRule rule) noexcept {
    return Status::failure(ErrorKind::bad_argument, op, 0, 0,
                           "the layer's rule is %s; delta_scan takes gated_delta and kda, linear_scan linear and "
                           "mamba1",
                           to_string(rule).data());
  }

  template <class Launch>
  static Status scan(const char* op, const RecurView& r, const ScanArgs& a, const Launch& launch) noexcept {
    if (r.rows == 0) return {};
    if (!r.plane_state(0) || a.q == nullptr || a.k == nullptr || a.v == nullptr || a.g == nullptr || a.out == nullptr) {
      return detail::bad_op(op, "the ssm state or an input is null; expected all of them");
    }
    if (!r.map.fits(r.n_k_heads, r.n_v_heads)) {
      return Status::failure(ErrorKind::bad_argument, op, 0, 0,
                             "the key-head map does not fit %zu key heads and %zu value heads", r.n_k_heads,
                             r.n_v_heads);
    }
    if (Status s = check_round(op, r); !s) return s;
    ScanArgs dense = a;
    if (dense.q_stride == 0) dense.q_stride = r.n_k_heads * r.d_k;
    if (dense.k_stride == 0) dense.k_stride = r.n_k_heads * r.d_k;
    if (dense.v_stride == 0) dense.v_stride = r.n_v_heads * r.d_v;
    return launch(dense);
  }

  static Status check_round(const char* op, const RecurView& r) noexcept {
    const RecurRound& k = r.round;
    if (k.mode == RoundMode::none) return {};
    if (r.rows > max_round_rows) {
      return Status::failure(ErrorKind::bad_argument, op, 0, 0, "%zu rows in a round; expected at most %zu", r.rows,
                             max_round_rows);
    }
    const bool planes = r.ssm_format == Format::f32 ? k.planes != nullptr : k.planes16 != nullptr;
    if (k.mode == RoundMode::planes && (!planes || r.rows >= k.n_planes)) {
      return detail::bad_op(op, "the round has no plane for every row");
    }
    if (k.mode == RoundMode::stash &&
        (k.k == nullptr || k.u == nullptr || k.decay == nullptr || r.d_k > max_stash_d_k)) {
      return detail::bad_op(op, "the round has no stash, or d_k is beyond what a stash takes");
    }
    return {};
  }

  static Status check_chunks(const RecurView& r, const WorkspaceView& ws) noexcept {
    if (!r.has_chunks()) return detail::bad_op("delta_scan", "only the gated delta rule in f32 has a chunked class");
    if (r.round.mode != RoundMode::none) {
      return detail::bad_op("delta_scan", "a round is never chunked: its bits are those of single tokens");
    }
    if (r.at.pos_bound % scan_chunk != 0) {
      return Status::failure(ErrorKind::bad_argument, "delta_scan", 0, 0,
                             "a chunked call at position %zu; expected a multiple of %zu", r.at.pos_bound, scan_chunk);
    }
    return need("delta_scan", ws, detail::chunk_scan_bytes(r.n_v_heads, r.rows));
  }

  static Status check_commit(const char* op, const RoundCommit& c, const RoundCommit* many) noexcept {
    if (many == nullptr && (c.pos_d == nullptr || c.words == nullptr || (c.layers == nullptr && c.n_layers != 0))) {
      return detail::bad_op(op, "pos_d, the words or the layers are null; expected all of them");
    }
    return {};
  }

  static Status need(const char* op, const WorkspaceView& ws, std::size_t bytes) noexcept {
    if (ws.bytes >= bytes && (ws.data != nullptr || bytes == 0)) return {};
    return Status::failure(ErrorKind::bad_argument, op, 0, bytes, "the workspace has %zu bytes; this call needs %zu",
                           ws.data == nullptr ? 0 : ws.bytes, bytes);
  }

  Dev* dev_;
};

}  // namespace memra
