// Step: the writable state of one forward of t rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/detail/cache_core.hpp>
#include <memra/error.hpp>
#include <memra/taps.hpp>
#include <memra/views.hpp>
#include <optional>

namespace memra {

template <class Dev>
class Cache;
template <class Dev>
class Round;
template <class Self, class Dev>
class DeviceSteps;

/// Hands out the views a forward of `rows` tokens writes and reads. Made by Cache::begin_step, ended by Cache::advance
/// (or rollback, reset, a later begin_step): a view asked of an ended step, or of a tainted cache, is bad_state.
///
/// Taking a layer's writable view counts as writing it, so each is given once; advance refuses until all were taken.
/// The kernels that write are the caller's affair: ours (ops_for) or the engine's. Valid as long as the cache lives.
template <class Dev>
class Step {
 public:
  std::size_t pos() const noexcept { return pos_; }
  std::size_t rows() const noexcept { return rows_; }
  /// How the scans of layers that have a chunked class go through the rows; the other layers' are sequential.
  ScanClass scan_class() const noexcept { return open() ? core_->step_scan : ScanClass::sequential; }

  /// K and V of layer `il` for append: rows [pos, pos + rows).
  /// @param nth  which attention state of the layer
  /// @return bad_argument if it has none or shares another layer's; bad_state if the step ended or the view was taken
  ///         before
  Result<KvWriteView> kv_write(std::size_t il, std::size_t nth = 0) {
    const auto [rows, owned] = core_->attention(il, nth);
    if (Status s = usable("kv_write", "attention", il, rows != nullptr); !s) return s;
    if (!owned) {
      return Status::failure(ErrorKind::bad_argument, "kv_write", 0, 0,
                             "layer %zu shares the K and V of an earlier layer, which writes them", il);
    }
    if (Status s = take("kv_write", il, *rows); !s) return s;
    KvWriteView w;
    show(w, *rows, il);
    return w;
  }

  /// K and V of layer `il`, or of the layer it shares with, for attend: row i sees [0, pos + i + 1), or the window's
  /// end of it.
  /// @return bad_argument if it has none; bad_state if the step ended or the rows have not been written in this step
  Result<KvReadView> kv_read(std::size_t il, std::size_t nth = 0) const {
    const detail::KvComponent* c = core_->attention(il, nth).rows;
    if (Status s = usable("kv_read", "attention", il, c != nullptr); !s) return s;
    if (c->written_in != id_) {
      return Status::failure(ErrorKind::bad_state, "kv_read", 0, 0,
                             "the K and V of layer %zu have not been written in this step; append before attending",
                             il);
    }
    KvReadView r;
    show(r, *c, il);
    r.window = c->spec.window;
    return r;
  }

  /// conv and ssm of layer `il`, to be moved on by `rows` tokens. One view for both: they always describe one position.
  /// In a round its RoundMode may ask kernels to leave them as they are. In a step of the chunked class `scan` says so
  /// where the layer has one: kernels must go by it, as the cache notes what class its states are of.
  Result<RecurView> recur(std::size_t il, std::size_t nth = 0) {
    detail::RecurComponent* c = core_->recurrent(il, nth);
    if (Status s = usable("recur", "recurrent", il, c != nullptr); !s) return s;
    if (Status s = take("recur", il, *c); !s) return s;
    RecurView r = c->view(core_->step_pos(il), core_->how(*c));
    if (r.has_chunks()) r.scan = core_->step_scan;
    return r;
  }

  /// Rows of layer `il` that stand for several tokens each: GroupedView::ends says which of the call's tokens write
  /// one.
  Result<GroupedView> grouped(std::size_t il, std::size_t nth = 0) {
    detail::GroupedComponent* c = core_->grouped(il, nth);
    if (Status s = usable("grouped", "grouped", il, c != nullptr); !s) return s;
    if (Status s = take("grouped", il, *c); !s) return s;
    return GroupedView{c->rows, c->spec.stride, core_->step_pos(il)};
  }

  /// Where to leave the residual stream after layer `il`; nullopt if no sink is armed or the layer is not tapped.
  std::optional<TapView> tap(std::size_t il) const noexcept {
    if (!open() || core_->tainted || !core_->taps) return std::nullopt;
    return core_->taps->view(il, pos_, rows_);
  }

 private:
  friend class Cache<Dev>;
  friend class DeviceSteps<Cache<Dev>, Dev>;
  friend class Round<Dev>;
  explicit Step(detail::CacheCore<Dev>& core) noexcept
      : core_(&core), id_(core.step_id), pos_(core.pos), rows_(core.step_rows) {}

  template <class View>
  void show(View& view, const detail::KvComponent& c, std::size_t il) const noexcept {
    view.k = core_->shown(c, c.k);
    view.v = core_->shown(c, c.v);
    view.n_kv_heads = c.spec.n_kv_heads;
    view.head_dim_k = c.spec.head_dim_k;
    view.head_dim_v = c.spec.head_dim_v;
    view.v_in_k = c.spec.v_in_k;
    view.at = core_->step_pos(il);
  }

  bool open() const noexcept { return core_->step_open && core_->step_id == id_; }

  Status usable(const char* call, const char* kind, std::size_t il, bool exists) const noexcept {
    if (core_->tainted) {
      return Status::failure(ErrorKind::bad_state, call, 0, 0,
                             "the cache is tainted by a device failure; roll back to a valid snapshot or reset");
    }
    if (!open()) return Status::failure(ErrorKind::bad_state, call, 0, 0, "this step has ended; begin another");
    if (!exists) {
      return Status::failure(ErrorKind::bad_argument, call, 0, 0, "layer %zu of %zu has no such %s state", il,
                             core_->layers.size(), kind);
    }
    return {};
  }

  template <class C>
  Status take(const char* call, std::size_t il, C& c) noexcept {
    if (c.written_in == id_) {
      return Status::failure(ErrorKind::bad_state, call, 0, 0,
                             "layer %zu was already written in this step; a layer is written once", il);
    }
    c.written_in = id_;
    ++core_->step_written;
    return {};
  }

  detail::CacheCore<Dev>* core_;
  std::uint64_t id_;
  std::size_t pos_;
  std::size_t rows_;
};

}  // namespace memra
