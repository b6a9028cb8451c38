// AttendBatch: many sequences attend in one launch per layer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memra/batch_views.hpp>
#include <memra/cache.hpp>
#include <memra/detail/attend_sequence.hpp>
#include <memra/detail/batch_members.hpp>
#include <memra/detail/scratch.hpp>
#include <memra/detail/store_values.hpp>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <memra/layers.hpp>
#include <memra/views.hpp>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace memra {

/// Tables for attend_batch, made once for as long as the same sequences decode together.
///
/// Every attention state of every layer has a table of the sequences' planes, written by create: addresses of a cache
/// never change (S4), so it is never touched again. What changes are numbers on the device: positions, which the caches
/// move on by themselves, and how many rows each sequence has in the calls to come, which set_rows stores. So
/// attend_batch may stand in a captured graph and be replayed with other positions and row counts.
///
/// A step (or round) per cache and its appends come first, as for attend; that they have is not checked here. Caches
/// may be moved meanwhile, but neither they nor the batch may go while an attend_batch is queued, or a graph that holds
/// one may be replayed. Move-only; a moved-from one has no sequences and refuses.
template <class Dev>
class AttendBatch {
  static_assert(check_kv_dev<Dev>());

 public:
  AttendBatch(AttendBatch&& other) noexcept
      : n_(std::exchange(other.n_, 0)),
        most_rows_(std::exchange(other.most_rows_, 0)),
        rows_(other.rows_),
        pos_bound_(other.pos_bound_),
        tables_(std::move(other.tables_)),
        parts_(std::move(other.parts_)),
        members_(std::move(other.members_)) {}
  /// By way of a temporary: a vector assigned to itself is emptied.
  AttendBatch& operator=(AttendBatch&& other) noexcept {
    AttendBatch taken(std::move(other));
    std::swap(n_, taken.n_);
    std::swap(most_rows_, taken.most_rows_);
    std::swap(rows_, taken.rows_);
    std::swap(pos_bound_, taken.pos_bound_);
    tables_.swap(taken.tables_);
    parts_.swap(taken.parts_);
    std::swap(members_, taken.members_);
    return *this;
  }

  /// Without a bound that the host knows: kernels are launched for a position at the end of the planes.
  static constexpr std::size_t anywhere = std::numeric_limits<std::size_t>::max();

  /// @param caches     [n] different caches of one model: the same attention layers in geometry, formats and layouts,
  ///                   each on the same device object in all of them; their max_ctx may differ
  /// @param most_rows  most rows that a sequence has in a call; at least 1
  /// @return bad_argument; out_of_memory; device_failure, which taints all of the caches if it is one of earlier work.
  ///         Until set_rows every sequence has one row. Waits for the devices: kernels follow the tables
  static Result<AttendBatch> create(std::span<Cache<Dev>* const> caches, std::size_t most_rows) {
    if (Status s = check(caches, most_rows); !s) return s;
    detail::BatchMembers<Dev> members;
    for (Cache<Dev>* const c : caches) members.add(*c->core_);
    auto made = of_caches(caches, most_rows);
    if (!made) return members.noted(made.status());
    made->members_ = std::move(members);
    return made;
  }

  /// One layer of planes that an engine keeps by itself; it is layer 0.
  /// @param sequences  [n] views on `dev` with one geometry, formats, layouts and window; at.rows is not read
  static Result<AttendBatch> create(Dev& dev, std::span<const KvReadView> sequences, std::size_t most_rows) {
    if (sequences.empty()) return refuse("no sequence; expected at least one");
    if (most_rows == 0) return refuse("0 rows; expected at least 1");
    AttendBatch b(sequences.size(), most_rows);
    if (Status s = b.add(dev, 0, 0, {sequences.begin(), sequences.end()}); !s) return s;
    return finish(std::move(b));
  }

  std::size_t size() const noexcept { return n_; }
  std::size_t most_rows() const noexcept { return most_rows_; }

  /// How many rows each sequence has from the next attend_batch on: query rows and outputs of sequence i begin behind
  /// those of the ones before it. Ordered on the device's stream; inside a capture every replay stores them again.
  ///
  /// A call is launched for as many rows as the longest sequence has in it. Set before a replay, outside of the graph,
  /// row counts up to that may differ from those of the capture.
  /// @param rows       [size()]; 0: it sits the calls out, and has no row in q and out
  /// @param pos_bound  no sequence is at a position beyond: calls are launched for fewer keys than planes hold
  /// @return bad_argument (nothing has changed); device_failure: row counts are undefined, set them again. One of
  ///         earlier work taints all of the caches that are still there
  Status set_rows(std::span<const std::size_t> rows, std::size_t pos_bound = anywhere) {
    if (n_ == 0) return moved_from();
    if (rows.size() != n_) return refuse("another number of row counts than sequences");
    std::vector<std::int32_t> starts(1);
    std::size_t longest = 0;
    for (const std::size_t r : rows) {
      if (r > most_rows_) {
        return Status::failure(ErrorKind::bad_argument, "AttendBatch", 0, 0,
                               "%zu rows of a sequence; the batch was made for %zu", r, most_rows_);
      }
      if (r > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max() - starts.back())) {
        return refuse("more rows in all than 2147483647");
      }
      starts.push_back(starts.back() + static_cast<std::int32_t>(r));
      longest = std::max(longest, r);
    }
    for (const Part& part : parts_) {
      if (Status s = detail::store_values(*part.dev, part.starts, starts); !s) return members_.noted(s);
    }
    rows_ = longest;
    pos_bound_ = pos_bound;
    return {};
  }

  /// What attend_batch takes for attention state `nth` of layer `il`, with the rows set last.
  /// @return bad_argument if the caches have no such state; bad_state for a moved-from one, as for set_rows
  Result<AttendBatchView> layer(std::size_t il, std::size_t nth = 0) const noexcept {
    if (n_ == 0) return moved_from();
    for (const Table& t : tables_) {
      if (t.il != il || t.nth != nth) continue;
      AttendBatchView v = t.view;
      v.common.at.rows = rows_;
      v.common.at.pos_bound = std::min(v.common.at.pos_bound, pos_bound_);
      return v;
    }
    return Status::failure(ErrorKind::bad_argument, "AttendBatch", 0, 0, "layer %zu has no attention state %zu", il,
                           nth);
  }

  /// Scratch for most_rows rows of every sequence in every layer, which have at most `n_heads` query heads. At most
  /// plan.workspace_bytes(most_rows, size()), and less where max_ctx is short.
  std::size_t workspace_bytes(std::size_t n_heads) const noexcept {
    std::size_t most = 0;
    for (const Table& t : tables_) {
      const KvReadView& kv = t.view.common;
      most = std::max(most, detail::attend_batch_scratch_bytes(n_heads, kv.n_kv_heads, kv.head_dim_k, kv.head_dim_v, n_,
                                                               most_rows_, t.view.most_keys));
    }
    return most;
  }

 private:
  struct Table {
    std::size_t il;
    std::size_t nth;
    std::size_t part;
    AttendBatchView view;
  };
  /// What lies on one device: its tables, then [n + 1] starts.
  struct Part {
    Dev* dev;
    std::vector<detail::AttendSequence> sequences;  // until they are on the device
    typename Dev::Buffer memory;
    std::int32_t* starts = nullptr;
  };

  AttendBatch(std::size_t n, std::size_t most_rows) noexcept : n_(n), most_rows_(most_rows) {}

  static Status refuse(const char* sentence) noexcept {
    return Status::failure(ErrorKind::bad_argument, "AttendBatch", 0, 0, "%s", sentence);
  }

  static Status moved_from() noexcept {
    return Status::failure(ErrorKind::bad_state, "AttendBatch", 0, 0, "the batch is empty (moved-from)");
  }

  static Status check(std::span<Cache<Dev>* const> caches, std::size_t most_rows) noexcept {
    if (caches.empty()) return refuse("no cache; expected at least one");
    if (most_rows == 0) return refuse("0 rows; expected at least 1");
    for (std::size_t i = 0; i < caches.size(); ++i) {
      if (caches[i] == nullptr || caches[i]->n_stages() == 0) return refuse("a cache is null or moved-from");
      const auto before = caches.begin() + static_cast<std::ptrdiff_t>(i);
      if (std::find(caches.begin(), before, caches[i]) != before) return refuse("a cache comes twice");
      if (caches[i]->n_layer() != caches[0]->n_layer()) return refuse("the caches have different numbers of layers");
      if (most_rows > caches[i]->plan().max_rows) {
        return Status::failure(ErrorKind::bad_argument, "AttendBatch", 0, 0,
                               "%zu rows; a step of cache %zu takes at most %zu", most_rows, i,
                               caches[i]->plan().max_rows);
      }
    }
    return {};
  }

  static Result<AttendBatch> of_caches(std::span<Cache<Dev>* const> caches, std::size_t most_rows) {
    AttendBatch b(caches.size(), most_rows);
    for (std::size_t il = 0; il < caches[0]->n_layer(); ++il) {
      for (std::size_t nth = 0; caches[0]->kv(il, nth); ++nth) {
        if (caches[0]->kv(il, nth)->spec.head_dim_v == 0) continue;  // keys of an indexer
        std::vector<KvReadView> views;
        for (const Cache<Dev>* c : caches) {
          const std::optional<KvLayer> kv = c->kv(il, nth);
          if (!kv) return refuse("a cache lacks an attention layer that the first one has");
          if (&c->dev(il) != &caches[0]->dev(il)) return refuse("a layer is on different devices in two caches");
          views.push_back(view_of(*kv, c->max_ctx()));
        }
        if (Status s = b.add(caches[0]->dev(il), il, nth, views); !s) return s;
      }
    }
    if (b.tables_.empty()) return refuse("the caches have no attention layer; expected at least one");
    return finish(std::move(b));
  }

  static KvReadView view_of(const KvLayer& kv, std::size_t max_ctx) noexcept {
    KvReadView v;
    v.k = kv.k;
    v.v = kv.v;
    v.n_kv_heads = kv.spec.n_kv_heads;
    v.head_dim_k = kv.spec.head_dim_k;
    v.head_dim_v = kv.spec.head_dim_v;
    v.window = kv.spec.window;
    v.v_in_k = kv.spec.v_in_k;
    v.at = {kv.pos_d, 0, max_ctx, max_ctx};
    return v;
  }

  /// What keeps a sequence from being attended beside the first one; nullptr: nothing does.
  static const char* odd(const KvReadView& a, const KvReadView& first, std::size_t most_rows) noexcept {
    const auto same = [](const ConstPlaneView& x, const ConstPlaneView& y) {
      return x.shape.format == y.shape.format && x.shape.layout == y.shape.layout;
    };
    if (!a.k || (!a.v && !a.v_in_k) || a.at.pos_d == nullptr) return "a plane or pos_d is null";
    if (a.n_kv_heads != first.n_kv_heads || a.head_dim_k != first.head_dim_k || a.head_dim_v != first.head_dim_v ||
        a.v_in_k != first.v_in_k || a.k.shape.width != first.k.shape.width || a.v.shape.width != first.v.shape.width) {
      return "it has other heads or head dimensions than the first";
    }
    if (!same(a.k, first.k) || !same(a.v, first.v)) return "it has other formats or layouts than the first";
    const auto aligned = [](const ConstPlaneView& p) { return reinterpret_cast<std::uintptr_t>(p.data) % 16 == 0; };
    if (aligned(a.k) != aligned(first.k) || aligned(a.v) != aligned(first.v)) {
      return "its planes begin at a multiple of 16 and the first's do not, or the other way round";
    }
    if (a.window != first.window) return "it has another window than the first";
    if (a.k.ring != first.k.ring || a.v.ring != first.v.ring) return "one of it and the first is a ring";
    if (a.k.ring && (a.k.shape.rows % ring_tile != 0 || a.k.shape.rows < most_rows ||
                     (!a.v_in_k && a.v.shape.rows != a.k.shape.rows))) {
      return "a ring needs whole tiles of 64 rows, as many for K as for V and for all of the call";
    }
    return nullptr;
  }

  /// First key that no row of a sequence sees. What a ring holds does not bound it.
  static std::size_t keys_of(const KvReadView& kv) noexcept {
    const ConstPlaneView& v = kv.v_in_k ? kv.k : kv.v;
    return kv.k.ring ? anywhere : std::min(kv.k.base + kv.k.phys_rows(), v.base + v.phys_rows());
  }

  Status add(Dev& dev, std::size_t il, std::size_t nth, const std::vector<KvReadView>& views) {
    std::size_t p = 0;
    while (p < parts_.size() && parts_[p].dev != &dev) ++p;
    if (p == parts_.size()) parts_.push_back(Part{&dev, {}, {}, nullptr});
    Table t{il, nth, p, {}};
    t.view.n = n_;
    t.view.common = views[0];
    for (std::size_t i = 0; i < views.size(); ++i) {
      const KvReadView& kv = views[i];
      if (const char* why = odd(kv, views[0], most_rows_); why != nullptr) {
        return Status::failure(ErrorKind::bad_argument, "AttendBatch", 0, 0, "sequence %zu, layer %zu: %s", i, il, why);
      }
      StepPos& at = t.view.common.at;
      at.pos_bound = std::max(at.pos_bound, kv.at.pos_bound);
      at.capacity = std::max(at.capacity, kv.at.capacity);
      t.view.most_keys = std::max(t.view.most_keys, keys_of(kv));
      parts_[p].sequences.emplace_back(kv);
      if (Status s = Dev::kernels::describe(dev, parts_[p].sequences.back()); !s) return s;
      t.view.described = (i == 0 || t.view.described) && parts_[p].sequences.back().described;
    }
    tables_.push_back(t);
    return {};
  }

  /// Brings the tables to the devices.
  static Result<AttendBatch> finish(AttendBatch b) {
    for (std::size_t p = 0; p < b.parts_.size(); ++p) {
      Part& part = b.parts_[p];
      const std::size_t bytes = part.sequences.size() * sizeof(detail::AttendSequence);
      auto memory = part.dev->alloc(bytes + (b.n_ + 1) * sizeof(std::int32_t));
      if (!memory) return memory.status();
      part.memory = *std::move(memory);
      std::byte* const at = part.memory.data();
      part.starts = reinterpret_cast<std::int32_t*>(at + bytes);
      const auto* next = reinterpret_cast<const detail::AttendSequence*>(at);
      for (Table& t : b.tables_) {
        if (t.part != p) continue;
        t.view.table = next;
        t.view.starts = part.starts;
        next += b.n_;
      }
      const auto* host = reinterpret_cast<const std::byte*>(part.sequences.data());
      if (Status s = part.dev->upload(at, host, bytes); !s) return s;
      part.sequences = {};
    }
    if (Status s = b.set_rows(std::vector<std::size_t>(b.n_, 1)); !s) return s;
    for (Part& part : b.parts_) {
      if (Status s = part.dev->synchronize(); !s) return s;  // kernels follow the addresses that stand there
    }
    return b;
  }

  std::size_t n_;
  std::size_t most_rows_;
  std::size_t rows_ = 1;  ///< of the longest sequence
  std::size_t pos_bound_ = anywhere;
  std::vector<Table> tables_;
  std::vector<Part> parts_;
  detail::BatchMembers<Dev> members_;  ///< none: planes that an engine keeps by itself
};

}  // namespace memra
