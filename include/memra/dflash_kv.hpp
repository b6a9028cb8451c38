// DflashKv: the KV cache of a block-diffusion drafter.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memra/detail/copy_between.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/dflash_cfg.hpp>
#include <memra/dflash_tail.hpp>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <memra/views.hpp>
#include <optional>
#include <utility>

namespace memra {

/// Per layer K (normed, roped) and V (raw), f32, rows [cap + block_size][n_kv * head_dim] in committed order.
///
/// Committed rows [0, len) grow by begin_rows + commit. A block's rows are transient: written at [len, len + b) in each
/// round, read by that round's attention, never counted. A committed key is visible to the query at position p iff
/// key >= max(p - (window - 1), floor). Addresses never change. One thread at a time; the device must outlive it. After
/// a device failure in commit or truncate it is tainted: only truncate and destruction are left.
template <class Dev>
class DflashKv {
  static_assert(check_kv_dev<Dev>());

  // On the heap, so that Rows and addresses survive a move of the cache.
  struct State {
    Dev* dev;
    DflashCfg cfg;
    std::size_t cap;
    DflashPlan plan;
    typename Dev::Buffer buffer;
    std::size_t len = 0;
    std::size_t floor = 0;
    std::size_t resident = 0;   // rows below were never written here, or zeroed
    std::size_t open_rows = 0;  // of begin_rows, not committed
    std::uint64_t turn = 0;     // of the last begin, commit or truncate: Rows of an earlier one are over
    bool tainted = false;

    float* plane(std::size_t offset) const noexcept { return reinterpret_cast<float*>(buffer.data() + offset); }

    DraftView view(std::size_t l, std::size_t rows) const noexcept {
      return {plane(plan.k_offset(l)),
              plane(plan.v_offset(l)),
              cfg.n_kv,
              cfg.head_dim,
              cfg.window(l),
              floor,
              0,
              plan.phys_rows,
              reinterpret_cast<const std::int32_t*>(buffer.data()),
              len,
              rows};
    }

    /// Overwrites len_d in place; tainted until it is stored.
    Status store_len(std::size_t n) noexcept {
      const auto value = static_cast<std::int32_t>(n);
      tainted = true;
      if (Status f = dev->store_i32(reinterpret_cast<std::int32_t*>(buffer.data()), &value, 1); !f) return f;
      tainted = false;
      return {};
    }

    /// A publication that failed is none of the caller's business, but one of earlier work may not get lost with it.
    std::nullopt_t no_tail(const Status& s) noexcept {
      tainted = tainted || s.asynchronous();
      return std::nullopt;
    }

    Status zero_below(std::size_t row) noexcept {
      for (std::size_t l = 0; l < cfg.n_layer; ++l) {
        for (const std::size_t offset : std::array{plan.k_offset(l), plan.v_offset(l)}) {
          if (Status f = dev->fill(buffer.data() + offset, std::byte{0}, row * cfg.row_bytes()); !f) return f;
        }
      }
      return {};
    }
  };

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
    if (Status s = kv.s_->store_len(0); !s) return s;
    return kv;
  }

  /// A cache at position `pos` without history: len = floor = pos, rows below zero. Drafts stay exact, only fewer are
  /// accepted until a window of rows has been committed.
  static Result<DflashKv> create_cold_at(Dev& dev, const DflashCfg& cfg, std::size_t cap, std::size_t pos) {
    if (pos > cap) {
      return Status::failure(ErrorKind::bad_argument, "create_cold_at", 0, 0, "position %zu is beyond cap %zu", pos,
                             cap);
    }
    auto kv = create(dev, cfg, cap);
    if (!kv) return kv;
    if (Status s = kv->s_->zero_below(pos); !s) return s;
    if (Status s = kv->s_->store_len(pos); !s) return s;
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
  /// First row that holds what was committed; rows below were never here.
  std::size_t resident() const noexcept { return s_ ? s_->resident : 0; }
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

  /// [cap + block_size][n_kv * head_dim] f32 of layer `l`. @pre l < n_layer()
  const float* k(std::size_t l) const noexcept { return s_->plane(s_->plan.k_offset(l)); }
  const float* v(std::size_t l) const noexcept { return s_->plane(s_->plan.v_offset(l)); }

  /// Scratch that draft attention over this cache needs, for `n_heads` query heads.
  std::size_t workspace_bytes(std::size_t n_heads) const noexcept {
    if (!s_) return 0;
    return detail::draft_scratch_bytes(n_heads, s_->cfg.n_kv, s_->cfg.head_dim, s_->cfg.block_size, s_->cap);
  }

  /// Rows [len, len + t) to be written and committed. Asking again instead of committing starts over.
  /// @return bad_argument for 0 rows or more than fit (the text says how many do)
  Result<Rows> begin_rows(std::size_t t) noexcept {
    if (Status s = usable("begin_rows"); !s) return s;
    if (t == 0 || t > s_->cap - s_->len) {
      return Status::failure(ErrorKind::bad_argument, "begin_rows", 0, 0,
                             "%zu rows at row %zu; expected 1 to %zu (cap %zu)", t, s_->len, s_->cap - s_->len,
                             s_->cap);
    }
    s_->open_rows = t;
    ++s_->turn;
    return Rows(*s_, t);
  }

  /// Counts the rows of the last begin_rows as committed.
  /// @return bad_state if none are open; a device failure taints
  Status commit() noexcept {
    if (Status s = usable("commit"); !s) return s;
    if (s_->open_rows == 0) return refuse(ErrorKind::bad_state, "commit", "no rows are open; call begin_rows first");
    ++s_->turn;
    if (Status s = s_->store_len(s_->len + s_->open_rows); !s) return s;
    s_->len += std::exchange(s_->open_rows, 0);
    return {};
  }

  /// Transient rows [len, len + b) of a block. Rows opened by begin_rows and not committed are given up.
  /// @return bad_argument unless 1 <= b <= block_size
  Result<Rows> begin_block(std::size_t b) noexcept {
    if (Status s = usable("begin_block"); !s) return s;
    if (b == 0 || b > s_->cfg.block_size) {
      return Status::failure(ErrorKind::bad_argument, "begin_block", 0, 0, "%zu rows; expected 1 to block_size %zu", b,
                             s_->cfg.block_size);
    }
    s_->open_rows = 0;
    ++s_->turn;
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

  /// Gives up committed rows at or beyond `n`. Clears a taint.
  /// @return bad_argument if n > len, or if a row that the query at n may see is not resident; a device failure taints
  Status truncate(std::size_t n) noexcept {
    if (Status s = may_truncate(n); !s) return s;
    s_->open_rows = 0;
    ++s_->turn;
    if (Status s = s_->store_len(n); !s) return s;
    s_->len = n;
    s_->resident = std::min(s_->resident, n);
    return {};
  }

  /// Copies out the readable tail that ends at `upto`, the publication boundary: NOT len, which has moved on by the
  /// time a prompt is published. Publication is optional and never fails the caller.
  ///
  /// @return nullopt for upto 0, upto > len, nothing above the floor, rows that are not resident, or a failed
  ///         allocation or copy (an asynchronous failure of earlier work taints, or it would be lost here).
  ///         Synchronises nothing; ordered on this device's stream
  std::optional<DflashKvTail<Dev>> export_tail(std::size_t upto) const {
    if (!s_ || s_->tainted || upto == 0 || upto > s_->len) return std::nullopt;
    const std::size_t floor = std::min(s_->floor, upto);
    const std::size_t rows = std::min(s_->cfg.window_rows(), upto - floor);
    const std::size_t base = upto - rows;
    if (rows == 0 || base < s_->resident) return std::nullopt;
    DflashKvTail<Dev> tail;
    tail.dev = s_->dev;
    tail.base = base;
    tail.rows = rows;
    tail.len = upto;
    tail.row_bytes = row_bytes();
    tail.floor = floor;
    const std::size_t bytes = rows * row_bytes();
    tail.layers.reserve(s_->cfg.n_layer);
    for (std::size_t l = 0; l < s_->cfg.n_layer; ++l) {
      auto k = s_->dev->alloc(bytes);
      if (!k) return s_->no_tail(k.status());
      auto v = s_->dev->alloc(bytes);
      if (!v) return s_->no_tail(v.status());
      const std::size_t skip = base * row_bytes();
      for (const auto& [to, offset] :
           std::array{std::pair{&*k, s_->plan.k_offset(l)}, std::pair{&*v, s_->plan.v_offset(l)}}) {
        if (Status s = s_->dev->copy(to->data(), s_->buffer.data() + offset + skip, bytes); !s) return s_->no_tail(s);
      }
      tail.layers.push_back({*std::move(k), *std::move(v)});
    }
    return tail;
  }

  /// A fresh cache at tail.len with the tail's rows at the same absolute positions and zeroes below them: the full-scan
  /// arm relies on masked rows being finite (0 * NaN is NaN). Rows at or above len are undefined.
  ///
  /// @param why  receives the reason of a refusal; may be nullptr
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
    if (Status s = kv->s_->zero_below(tail.base); !s) return s;
    const std::size_t skip = tail.base * tail.row_bytes;
    for (std::size_t l = 0; l < cfg.n_layer; ++l) {
      std::byte* const planes[2] = {kv->s_->buffer.data() + kv->s_->plan.k_offset(l),
                                    kv->s_->buffer.data() + kv->s_->plan.v_offset(l)};
      const typename Dev::Buffer* const stored[2] = {&tail.layers[l].k, &tail.layers[l].v};
      for (std::size_t i = 0; i < 2; ++i) {
        if (Status s = detail::copy_between(dev, planes[i] + skip, *tail.dev, stored[i]->data(), stored[i]->size());
            !s) {
          return s;
        }
      }
    }
    if (Status s = kv->s_->store_len(tail.len); !s) return s;
    kv->s_->len = tail.len;
    kv->s_->floor = cfg.every_layer_windowed() ? tail.floor : std::max(tail.floor, tail.base);
    kv->s_->resident = tail.base;
    return kv;
  }

  std::unique_ptr<State> s_;
};

}  // namespace memra
