// DraftStore: the planes and positions of a draft cache, and how a ring makes room in them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memra/dflash_cfg.hpp>
#include <memra/dflash_tail.hpp>
#include <memra/error.hpp>
#include <memra/views.hpp>
#include <optional>
#include <utility>

namespace memra::detail {

/// What a DflashKv owns. Row r of the stream is physical row r - base of every plane.
///
/// A ring without room copies the rows from `target` on to the front of every plane, and then its base is `target`. The
/// copies run in pieces no longer than the way they go, first piece first: none overwrites what another still reads, so
/// a call that failed is repeated and the move goes on.
template <class Dev>
struct DraftStore {
  using Tail = DflashKvTail<Dev>;

  Dev* dev;
  DflashCfg cfg;
  std::size_t cap;
  DflashPlan plan;
  typename Dev::Buffer buffer;
  std::size_t len = 0;
  std::size_t floor = 0;
  std::size_t base = 0;
  std::size_t target = 0;        // base, but for a move that was begun and not ended
  std::size_t moved = 0;         // copies of that move that are done
  std::size_t resident = 0;      // rows below were never written here, zeroed, or dropped
  std::size_t open_rows = 0;     // of begin_rows, not committed
  std::uint64_t turn = 0;        // of the last begin, commit or truncate: Rows of an earlier one are over
  std::optional<Tail> pin = {};  // a tail asked for in advance; without layers while its rows are in the planes
  bool tainted = false;
  bool doubtful = false;  // by work that was queued before: what rows hold may not be what was written

  std::int32_t* ints() const noexcept { return reinterpret_cast<std::int32_t*>(buffer.data()); }
  float* plane(std::size_t offset) const noexcept { return reinterpret_cast<float*>(buffer.data() + offset); }

  DraftView view(std::size_t l, std::size_t rows) const noexcept {
    return {plane(plan.k_offset(l)),
            plane(plan.v_offset(l)),
            cfg.n_kv,
            cfg.head_dim,
            cfg.window(l),
            floor,
            base,
            plan.phys_rows,
            ints(),
            len,
            rows,
            cfg.ring ? ints() + 1 : nullptr};
  }

  /// Passes a failure on that has tainted.
  Status noted(const Status& s) noexcept {
    doubtful = doubtful || s.asynchronous();
    return s;
  }

  /// Overwrites len_d, and a ring's base_d, in place; tainted until they are stored. `len` is the caller's to set.
  Status store(std::size_t n, std::size_t first) noexcept {
    const std::array<std::int32_t, 2> values = {static_cast<std::int32_t>(n), static_cast<std::int32_t>(first)};
    tainted = true;
    if (Status f = dev->store_i32(ints(), values.data(), cfg.ring ? 2 : 1); !f) return f;
    tainted = false;
    base = target = first;
    moved = 0;
    return {};
  }

  /// Zeroes the rows below `row` that there is a place for.
  Status zero_below(std::size_t row) noexcept {
    for (std::size_t p = 0; p < 2 * cfg.n_layer; ++p) {
      const std::size_t bytes = (row - base) * cfg.row_bytes();
      if (Status f = dev->fill(buffer.data() + plan.plane_offset(p), std::byte{0}, bytes); !f) return f;
    }
    return {};
  }

  /// The tail that ends at `upto` without its rows; nullopt if there is none to be had.
  std::optional<Tail> outline(std::size_t upto) const {
    if (upto == 0 || upto > len) return std::nullopt;
    Tail tail;
    tail.dev = dev;
    tail.len = upto;
    tail.row_bytes = cfg.row_bytes();
    tail.floor = std::min(floor, upto);
    tail.rows = std::min(cfg.window_rows(), upto - tail.floor);
    tail.base = upto - tail.rows;
    if (tail.rows == 0 || tail.base < resident) return std::nullopt;
    tail.layers.reserve(cfg.n_layer);
    tail.work.reserve(1);
    return tail;
  }

  /// Copies the rows of an outline out. Allocates device memory only.
  Status take(Tail& tail) noexcept {
    const std::size_t bytes = tail.rows * tail.row_bytes;
    const std::size_t skip = (tail.base - base) * tail.row_bytes;
    for (std::size_t l = 0; l < cfg.n_layer; ++l) {
      auto k = dev->alloc(bytes);
      if (!k) return k.status();
      auto v = dev->alloc(bytes);
      if (!v) return v.status();
      for (const auto& [to, offset] : std::array{std::pair{&*k, plan.k_offset(l)}, std::pair{&*v, plan.v_offset(l)}}) {
        if (Status s = dev->copy(to->data(), buffer.data() + offset + skip, bytes); !s) return s;
      }
      tail.layers.push_back({*std::move(k), *std::move(v)});
    }
    tail.work.add(*dev);
    return {};
  }

  /// Whether `n` rows have room behind len. In a flat cache they have, if they fit below cap or are a block's.
  bool has_room(std::size_t n) const noexcept { return len - base + n <= plan.phys_rows; }

  /// Makes room in a ring for as many rows as a call may open: the last window_rows move to the front. Pinned rows that
  /// would be lost are taken first; if that fails they are lost.
  /// @pre there was no room for so many
  Status make_room() noexcept {
    const std::size_t first = len - std::min(len - base, cfg.window_rows());
    if (pin && pin->layers.empty() && pin->base < first) {
      if (Status s = take(*pin); !s) {
        pin.reset();
        tainted = s.asynchronous();  // it is of earlier work and may not get lost here
        if (tainted) return noted(s);
      }
    }
    target = resident = first;
    return settle(len);
  }

  /// Does what is left of a move and stores `n` as the length: rows at or beyond it are given up.
  Status settle(std::size_t n) noexcept {
    Status s = n > target ? move_rows() : Status();
    if (s) s = store(n, std::min(target, n));
    if (!s && s.asynchronous() && target != base) {
      // Any of the copies may have failed. Where all of their sources are still there they are done again; else no row
      // is believed to be.
      if (len - target <= target - base) {
        moved = 0;
      } else {
        resident = len;
      }
    }
    return noted(s);
  }

  /// Does what is left of a move; until store the base is where it was.
  Status move_rows() noexcept {
    if (target == base) return {};
    tainted = true;
    const std::size_t row = cfg.row_bytes();
    const std::size_t way = target - base;
    const std::size_t kept = len - target;
    const std::size_t pieces = (kept + way - 1) / way;
    for (; moved < pieces * 2 * cfg.n_layer; ++moved) {
      std::byte* const rows = buffer.data() + plan.plane_offset(moved / pieces);
      const std::size_t at = moved % pieces * way;
      const std::size_t n = std::min(way, kept - at);
      if (Status s = dev->copy(rows + at * row, rows + (at + way) * row, n * row); !s) return s;
    }
    return {};
  }
};

}  // namespace memra::detail
