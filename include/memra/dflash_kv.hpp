// DflashKv: the KV cache of a block-diffusion drafter.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memra/detail/copy_between.hpp>
#include <memra/detail/draft_store.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/dflash_cfg.hpp>
#include <memra/dflash_tail.hpp>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <memra/views.hpp>
#include <optional>
#include <utility>

namespace memra {

/// Per layer K (normed, roped) and V (raw), f32, rows [phys_rows][n_kv * head_dim] in committed order.
///
/// Committed rows [0, len) grow by begin_rows + commit. A block's rows are transient: written at [len, len + b) in each
/// round, read by that round's attention, never counted. A committed key is visible to the query at position p iff
/// key >= max(p - (window - 1), floor). Addresses never change. One thread at a time; the device must outlive it. After
/// a device failure in a begin, commit or truncate it is tainted: only truncate and destruction are left.
///
/// With DflashCfg::ring it holds what the windows need, whatever its length: a begin that finds no room behind len
/// first copies the last window_rows to the front and drops what was before them. Rows of the stream stay contiguous,
/// and attention gives the bits of a cache without a ring. Begin, commit and truncate are calls of the host: a graph
/// may hold the kernels between them, not them.
template <class Dev>
class DflashKv {
  template <class D>
  friend class Speculation;
  static_assert(check_kv_dev<Dev>());

  using State = detail::DraftStore<Dev>;  // on the heap, so that Rows and addresses survive a move of the cache

 public:
  /// Views of the rows one call may write. Valid while the cache lives, until the next begin, commit or truncate.
  class Rows {
   public:
    std::size_t first() const noexcept { return first_; }
    std::size_t rows() const noexcept { return rows_; }
    /// Planes of layer `l`; block_rows is rows(), and *len_d is first(). A view without planes, which every op refuses,
    /// if these rows are over or there is no such layer: it would be at other rows by now.
    DraftView view(std::size_t l) const noexcept {
      if (state_->turn == turn_ && l < state_->cfg.n_layer) return state_->view(l, rows_);
      DraftView over;
      over.block_rows = rows_;  // not 0: an op over no rows would be no refusal
      return over;
    }

   private:
    friend class DflashKv;
    Rows(const State& state, std::size_t rows) noexcept
        : state_(&state), turn_(state.turn), first_(state.len), rows_(rows) {}
    const State* state_;
    std::uint64_t turn_;
    std::size_t first_;
    std::size_t rows_;
  };

  /// An empty cache for `cap` committed rows; row contents are undefined.
  /// @return bad_argument naming the field; out_of_memory; device_failure
  static Result<DflashKv> create(Dev& dev, const DflashCfg& cfg, std::size_t cap) {
    auto planned = memra::plan(cfg, cap, plane_gap_of(dev));
    if (!planned) return planned.status();
    auto buffer = dev.alloc(planned->total_bytes);
    if (!buffer) return buffer.status();
    DflashKv kv(std::make_unique<State>(State{&dev, cfg, cap, *planned, *std::move(buffer)}));
    if (Status s = kv.s_->store(0, 0); !s) return s;
    return kv;
  }

  /// A cache at position `pos` without history: len = floor = pos, rows below zero (a ring has none there). Drafts stay
  /// exact, only fewer are accepted until a window of rows has been committed.
  static Result<DflashKv> create_cold_at(Dev& dev, const DflashCfg& cfg, std::size_t cap, std::size_t pos) {
    if (pos > cap) {
      return Status::failure(ErrorKind::bad_argument, "create_cold_at", 0, 0, "position %zu is beyond cap %zu", pos,
                             cap);
    }
    auto kv = create(dev, cfg, cap);
    if (!kv) return kv;
    kv->s_->base = cfg.ring ? pos : 0;
    if (Status s = kv->s_->zero_below(pos); !s) return s;
    if (Status s = kv->s_->store(pos, kv->s_->base); !s) return s;
    kv->s_->len = pos;
    kv->s_->floor = pos;
    kv->s_->resident = pos;
    return kv;
  }

  DflashKv(DflashKv&&) noexcept = default;
  DflashKv& operator=(DflashKv&&) noexcept = default;

  std::size_t len() const noexcept { return s_ ? s_->len : 0; }      ///< committed rows
  std::size_t cap() const noexcept { return s_ ? s_->cap : 0; }      ///< committed rows it can hold
  std::size_t floor() const noexcept { return s_ ? s_->floor : 0; }  ///< rows below are never visible
  /// First row that holds what was committed; rows below were never here, or a ring has dropped them.
  std::size_t resident() const noexcept { return s_ ? s_->resident : 0; }
  /// Stream row that is physical row 0 of k() and v(): 0, but in a ring.
  std::size_t base() const noexcept { return s_ ? s_->base : 0; }
  /// Most rows of one begin_rows, if they fit below cap: cap, in a ring shorter than cap window_rows.
  std::size_t max_rows() const noexcept { return s_ ? s_->plan.max_rows : 0; }
  /// Boundary of the tail that a pin keeps; 0: none.
  std::size_t pinned() const noexcept { return s_ && s_->pin ? s_->pin->len : 0; }
  /// Rows of the last begin_rows, if they were neither committed nor given up.
  std::size_t open_rows() const noexcept { return s_ ? s_->open_rows : 0; }
  std::size_t n_layer() const noexcept { return s_ ? s_->cfg.n_layer : 0; }
  std::size_t row_bytes() const noexcept { return s_ ? s_->cfg.row_bytes() : 0; }
  /// Rows a restore must carry: sliding_window + block_size.
  std::size_t cfg_window_rows() const noexcept { return s_ ? s_->cfg.window_rows() : 0; }
  bool tainted() const noexcept { return s_ && s_->tainted; }
  /// @pre not moved-from
  const DflashCfg& config() const noexcept { return s_->cfg; }
  const DflashPlan& plan() const noexcept { return s_->plan; }
  Dev& device() const noexcept { return *s_->dev; }

  /// [plan().phys_rows][n_kv * head_dim] f32 of layer `l`, from row base() on. @pre l < n_layer()
  const float* k(std::size_t l) const noexcept { return s_->plane(s_->plan.k_offset(l)); }
  const float* v(std::size_t l) const noexcept { return s_->plane(s_->plan.v_offset(l)); }

  /// Scratch that draft attention over this cache needs at any length, for `n_heads` query heads.
  std::size_t workspace_bytes(std::size_t n_heads) const noexcept {
    if (!s_) return 0;
    return detail::draft_scratch_bytes(n_heads, s_->cfg.n_kv, s_->cfg.head_dim, s_->cfg.block_size,
                                       std::min(s_->cap, s_->plan.phys_rows));
  }

  /// Rows [len, len + t) to be written and committed. Asking again instead of committing starts over.
  /// @return bad_argument for 0 rows or more than fit (the text says how many do); a device failure while a ring makes
  ///         room taints, and no rows are open
  Result<Rows> begin_rows(std::size_t t) noexcept {
    if (Status s = usable("begin_rows"); !s) return s;
    const std::size_t most = std::min(s_->cap - s_->len, s_->plan.max_rows);
    if (t == 0 || t > most) {
      return Status::failure(ErrorKind::bad_argument, "begin_rows", 0, 0,
                             "%zu rows at row %zu; expected 1 to %zu (cap %zu, max_rows %zu)", t, s_->len, most,
                             s_->cap, s_->plan.max_rows);
    }
    s_->open_rows = 0;
    ++s_->turn;
    if (!s_->has_room(t)) {
      if (Status s = s_->make_room(); !s) return s;
    }
    s_->open_rows = t;
    return Rows(*s_, t);
  }

  /// Counts the rows of the last begin_rows as committed.
  /// @return bad_state if none are open; a device failure taints
  Status commit() noexcept {
    if (Status s = usable("commit"); !s) return s;
    if (s_->open_rows == 0) return refuse(ErrorKind::bad_state, "commit", "no rows are open; call begin_rows first");
    ++s_->turn;
    if (Status s = s_->store(s_->len + s_->open_rows, s_->base); !s) return s_->noted(s);
    s_->len += std::exchange(s_->open_rows, 0);
    return {};
  }

  /// Transient rows [len, len + b) of a block. Rows opened by begin_rows and not committed are given up.
  /// @return bad_argument unless 1 <= b <= block_size; a device failure as begin_rows
  Result<Rows> begin_block(std::size_t b) noexcept {
    if (Status s = usable("begin_block"); !s) return s;
    if (b == 0 || b > s_->cfg.block_size) {
      return Status::failure(ErrorKind::bad_argument, "begin_block", 0, 0, "%zu rows; expected 1 to block_size %zu", b,
                             s_->cfg.block_size);
    }
    s_->open_rows = 0;
    ++s_->turn;
    if (!s_->has_room(b)) {
      if (Status s = s_->make_room(); !s) return s;
    }
    return Rows(*s_, b);
  }

  /// What truncate(n) would refuse, without doing it.
  Status may_truncate(std::size_t n) const noexcept {
    if (!s_) return moved_from("truncate");
    if (n > s_->len || n < s_->floor) {
      return Status::failure(ErrorKind::bad_argument, "truncate", 0, 0,
                             "to %zu rows; expected %zu (floor) to %zu (len)", n, s_->floor, s_->len);
    }
    for (std::size_t l = 0; l < s_->cfg.n_layer; ++l) {
      const std::size_t window = s_->cfg.window(l);
      const std::size_t first = window == 0 || n < window ? s_->floor : std::max(n - (window - 1), s_->floor);
      if (first < s_->resident && first < n) {
        return Status::failure(ErrorKind::bad_argument, "truncate", 0, 0,
                               "to %zu rows: layer %zu would see rows from %zu on, but they are resident from %zu only",
                               n, l, first, s_->resident);
      }
    }
    return {};
  }

  /// Gives up committed rows at or beyond `n`, and a pin beyond `n`. Clears a taint; a ring that a failure left half
  /// moved is moved to the end first. A ring reaches block_size + 1 rows back from the longest it has been, further if
  /// it has not moved since. What an asynchronous failure left in doubt (S5) stays so: if a ring has moved since the
  /// last wait, that is all of its rows; one that learns of it in the move itself either does it again or, if that is
  /// too late, refuses every length that sees a row.
  /// @return bad_argument if n > len, or if a row that the query at n may see is not resident; a device failure taints
  Status truncate(std::size_t n) noexcept {
    if (Status s = may_truncate(n); !s) return s;
    s_->open_rows = 0;
    ++s_->turn;
    if (Status s = s_->settle(n); !s) return s;
    s_->doubtful = false;
    s_->len = n;
    s_->resident = std::min(s_->resident, n);
    if (s_->pin && s_->pin->len > n) s_->pin.reset();
    return {};
  }

  /// Announces export_tail(upto), which will be asked for when more rows have been committed: a ring that is about to
  /// drop rows of that tail takes it first, which allocates; if that fails the pin ends and the export gives nothing.
  /// The export ends it, too, and so do unpin and truncate to below `upto`.
  /// @return bad_argument if export_tail(upto) would give nothing now; bad_state if another boundary is pinned
  Status pin(std::size_t upto) {
    if (Status s = usable("pin"); !s) return s;
    if (pinned() == upto && upto != 0) return {};
    if (s_->pin) {
      return Status::failure(ErrorKind::bad_state, "pin", 0, 0, "boundary %zu is pinned; export or unpin it first",
                             pinned());
    }
    s_->pin = s_->outline(upto);
    if (s_->pin) return {};
    return Status::failure(ErrorKind::bad_argument, "pin", 0, 0,
                           "no tail ends at %zu; expected rows above floor %zu, resident from %zu, at most len %zu",
                           upto, s_->floor, s_->resident, s_->len);
  }
  /// Ends a pin and frees what it has taken.
  void unpin() noexcept {
    if (s_) s_->pin.reset();
  }

  /// Copies out the readable tail that ends at `upto`, the publication boundary: NOT len, which has moved on by the
  /// time a prompt is published. Publication is optional and never fails the caller.
  ///
  /// @return nullopt for upto 0, upto > len, nothing above the floor, rows that are not resident (unless a pin has
  ///         taken them: that tail is given out, once), or a failed allocation or copy (an asynchronous failure of
  ///         earlier work taints, or it would be lost here). Synchronises nothing; ordered on this device's stream
  std::optional<DflashKvTail<Dev>> export_tail(std::size_t upto) const {
    if (!s_ || s_->tainted) return std::nullopt;
    const bool was_pinned = upto != 0 && pinned() == upto;
    if (was_pinned && !s_->pin->layers.empty()) return *std::exchange(s_->pin, std::nullopt);
    auto tail = s_->outline(upto);
    if (!tail) return std::nullopt;
    if (Status s = s_->take(*tail); !s) {
      s_->tainted = s_->doubtful = s.asynchronous();
      return std::nullopt;
    }
    if (was_pinned) s_->pin.reset();
    return tail;
  }

  /// A fresh cache at tail.len with the tail's rows at the same absolute positions and zeroes below them: the full-scan
  /// arm relies on masked rows being finite (0 * NaN is NaN). A ring has nothing below them, and takes the last
  /// window_rows of a longer tail. Rows at or above len are undefined.
  ///
  /// @param why  receives the reason of a refusal; nullptr: nobody is told, not even of an asynchronous failure of
  ///             earlier work (S5), which is reported once
  /// @return nullopt unless layer count and row bytes match, tail.len <= cap, base + rows == len, floor <= base,
  ///         rows >= min(window_rows, len - floor), and every stored plane has exactly rows * row_bytes bytes; also
  ///         when a device call fails. The caller then primes cold
  static std::optional<DflashKv> from_tail(Dev& dev, const DflashCfg& cfg, std::size_t cap,
                                           const DflashKvTail<Dev>& tail, Status* why = nullptr) {
    Result<DflashKv> made = restore(dev, cfg, cap, tail);
    if (why != nullptr) *why = made.status();
    if (!made) return std::nullopt;
    return *std::move(made);
  }

 private:
  explicit DflashKv(std::unique_ptr<State> state) noexcept : s_(std::move(state)) {}

  static Status refuse(ErrorKind kind, const char* call, const char* sentence) noexcept {
    return Status::failure(kind, call, 0, 0, "%s", sentence);
  }
  static Status moved_from(const char* call) noexcept {
    return refuse(ErrorKind::bad_state, call, "the draft cache is empty (moved-from); expected one made by create");
  }
  Status usable(const char* call) const noexcept {
    if (!s_) return moved_from(call);
    if (s_->tainted) {
      return refuse(ErrorKind::bad_state, call, "the draft cache is tainted by an earlier device failure; truncate it");
    }
    return {};
  }

  static Status check_tail(const DflashCfg& cfg, std::size_t cap, const DflashKvTail<Dev>& tail) noexcept {
    const auto bad = [](const char* s) { return refuse(ErrorKind::bad_argument, "from_tail", s); };
    if (tail.dev == nullptr) return bad("the tail names no device");
    if (tail.work.failed()) {
      return refuse(ErrorKind::bad_state, "from_tail",
                    "the tail is lost: work that was queued with its copies failed later");
    }
    if (tail.layers.size() != cfg.n_layer) {
      return Status::failure(ErrorKind::bad_argument, "from_tail", 0, 0, "the tail has %zu layers, the drafter %zu",
                             tail.layers.size(), cfg.n_layer);
    }
    if (tail.row_bytes != cfg.row_bytes()) {
      return Status::failure(ErrorKind::bad_argument, "from_tail", 0, 0,
                             "the tail's rows have %zu bytes, the drafter's %zu", tail.row_bytes, cfg.row_bytes());
    }
    if (tail.len > cap) {
      return Status::failure(ErrorKind::bad_argument, "from_tail", 0, 0, "the tail ends at row %zu, cap is %zu",
                             tail.len, cap);
    }
    const detail::CheckedSize end = detail::CheckedSize(tail.base) + tail.rows;
    if (!end.valid() || end.value() != tail.len) {
      return Status::failure(ErrorKind::bad_argument, "from_tail", 0, 0, "base %zu + rows %zu is not len %zu",
                             tail.base, tail.rows, tail.len);
    }
    if (tail.floor > tail.base) {
      return Status::failure(ErrorKind::bad_argument, "from_tail", 0, 0, "floor %zu is above base %zu", tail.floor,
                             tail.base);
    }
    if (tail.rows < std::min(cfg.window_rows(), tail.len - tail.floor)) {
      return Status::failure(ErrorKind::bad_argument, "from_tail", 0, 0,
                             "%zu rows do not cover the window of %zu rows above floor %zu; prime cold", tail.rows,
                             cfg.window_rows(), tail.floor);
    }
    const detail::CheckedSize bytes = detail::CheckedSize(tail.rows) * tail.row_bytes;
    for (const auto& layer : tail.layers) {
      if (!bytes.valid() || layer.k.size() != bytes.value() || layer.v.size() != bytes.value()) {
        return Status::failure(ErrorKind::corrupt, "from_tail", 0, 0,
                               "a stored plane has %zu and %zu bytes; expected rows * row_bytes = %zu", layer.k.size(),
                               layer.v.size(), bytes.value());
      }
    }
    return {};
  }

  static Result<DflashKv> restore(Dev& dev, const DflashCfg& cfg, std::size_t cap, const DflashKvTail<Dev>& tail) {
    if (Status s = check_tail(cfg, cap, tail); !s) return s;
    Result<DflashKv> kv = create(dev, cfg, cap);
    if (!kv) return kv;
    const std::size_t rows = cfg.ring ? std::min(tail.rows, cfg.window_rows()) : tail.rows;
    const std::size_t first = tail.len - rows;
    kv->s_->base = cfg.ring ? first : 0;
    if (Status s = kv->s_->zero_below(first); !s) return s;
    const std::size_t to = (first - kv->s_->base) * tail.row_bytes;
    const std::size_t from = (first - tail.base) * tail.row_bytes;
    for (std::size_t l = 0; l < cfg.n_layer; ++l) {
      std::byte* const planes[2] = {kv->s_->buffer.data() + kv->s_->plan.k_offset(l),
                                    kv->s_->buffer.data() + kv->s_->plan.v_offset(l)};
      const typename Dev::Buffer* const stored[2] = {&tail.layers[l].k, &tail.layers[l].v};
      for (std::size_t i = 0; i < 2; ++i) {
        if (Status s =
                detail::copy_between(dev, planes[i] + to, *tail.dev, stored[i]->data() + from, rows * tail.row_bytes);
            !s) {
          return s;
        }
      }
    }
    if (Status s = kv->s_->store(tail.len, kv->s_->base); !s) return s;
    kv->s_->len = tail.len;
    kv->s_->floor = cfg.every_layer_windowed() ? tail.floor : std::max(tail.floor, tail.base);
    kv->s_->resident = first;
    return kv;
  }

  std::unique_ptr<State> s_;
};

}  // namespace memra
