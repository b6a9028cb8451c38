// The data of a cache and the questions its parts ask of it. Lives on the heap: a Step may outlive a move of its Cache.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memra/cache_types.hpp>
#include <memra/detail/lineage.hpp>
#include <memra/detail/slab.hpp>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <memra/layers.hpp>
#include <memra/model_config.hpp>
#include <memra/plan.hpp>
#include <memra/round_types.hpp>
#include <memra/round_views.hpp>
#include <memra/taps.hpp>
#include <memra/views.hpp>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace memra::detail {

template <class Dev>
struct CacheCore {
  struct DeviceState {
    Dev* dev = nullptr;
    Slab<Dev> rows;
    Slab<Dev> state;
    Slab<Dev> extra;

    std::byte* slab(SlabKind kind) const noexcept {
      return kind == SlabKind::rows ? rows.data() : kind == SlabKind::state ? state.data() : extra.data();
    }
  };
  struct StageState {
    std::size_t device = 0;
    std::int32_t* pos_d = nullptr;
    RoundCommit commit = {};  ///< where the stage's rounds end; no words: no round of planes or stash was paid for
  };

  ModelConfig config;
  Placement placement;
  Plan plan;
  std::vector<DeviceState> devices;
  std::vector<StageState> stages;
  std::vector<std::vector<Component>> layers;
  std::size_t n_components = 0;
  bool has_recurrent = false;

  std::size_t pos = 0;  ///< committed tokens; the replay's position while pos < len
  std::size_t len = 0;  ///< committed rows of every attention layer
  bool tainted = false;
  const char* tainted_by = "";  ///< words for messages, where tainted

  std::size_t mirror = 0;  ///< no stage's pos_d is below this, if what is queued goes well

  bool step_open = false;
  std::uint64_t step_id = 0;
  std::uint64_t round_id = 0;  ///< the step that is a round's; another number: the open step is a plain one
  Strategy round_by = Strategy::replay;
  std::shared_ptr<const bool> life = std::make_shared<const bool>(true);  ///< rounds ask whether this is still there

  std::size_t plane = 0;        ///< the current ssm plane, as every stage's words say
  std::int32_t generation = 0;  ///< rounds committed by kernels
  bool ahead = false;           ///< the device may know better: pos, plane and generation are those of catch_up
  std::size_t pos_bound = 0;    ///< while ahead: pos is at most this
  bool plane_unknown = false;   ///< while ahead: there may have been rounds by planes
  bool untapped = false;        ///< while ahead: there were steps or rounds that knew of no tap sink

  // What rings still hold: row r of one of R rows, if it was written at all, is there while r + R >= high.
  std::size_t high = 0;      ///< rows at or beyond were not written since the last reset, as far as the host knows
  std::size_t longest = 0;   ///< most rows of a call that the device may run where the host does not know
  std::size_t restored = 0;  ///< a prefix brought rows up to here, in rings only what the window there needs

  std::size_t step_rows = 0;
  std::size_t step_written = 0;
  std::size_t step_bound = 0;  ///< pos_d is at most this whenever the step's kernels run
  ScanClass step_scan = ScanClass::sequential;
  ScanClass scan = ScanClass::sequential;  ///< chunked: a step of that class is behind the state

  std::shared_ptr<Lineage> lineage = std::make_shared<Lineage>();

  std::optional<typename Dev::Buffer> parked;  // [n_vocab] f32 on the last stage's device, made on first use
  std::size_t parked_pos = 0;
  bool parked_valid = false;

  std::optional<DflashTapSink<Dev>> taps;

  /// Where the slabs are: (device, kind) -> address.
  auto slabs() const noexcept {
    return [this](std::size_t device, SlabKind kind) { return devices[device].slab(kind); };
  }

  Dev& device_of_layer(std::size_t il) const noexcept { return *devices[stages[stage_of(placement, il)].device].dev; }

  StepPos step_pos(std::size_t il) const noexcept {
    return {stages[stage_of(placement, il)].pos_d, step_rows, step_bound, plan.max_ctx};
  }

  std::size_t bound() const noexcept { return ahead ? pos_bound : pos; }

  /// How the open step's kernels are to treat this state.
  RecurRound how(const RecurComponent& c) const noexcept {
    if (!step_open || round_id != step_id || round_by == Strategy::replay) return {};
    RecurRound r = c.round;
    r.mode = round_by == Strategy::planes ? RoundMode::planes : RoundMode::stash;
    return r;
  }

  /// Refuses rows that do not all fit below max_ctx: before they are begun, and before the host counts those of a step
  /// or round for any position, which may turn out to be where they do not.
  Status fits(const char* call, std::size_t rows, ErrorKind kind) const noexcept {
    const std::size_t room = plan.max_ctx - bound();
    if (rows <= room) return {};
    return Status::failure(kind, call, 0, 0, "%zu rows at position %zu; %zu fit below max_ctx %zu", rows, bound(), room,
                           plan.max_ctx);
  }

  /// Refuses a step or round of `rows` rows that does not fit, or that may not begin now.
  Status admit(const char* call, std::size_t rows) const noexcept {
    const auto refuse = [&](ErrorKind kind, const char* text) { return Status::failure(kind, call, 0, 0, "%s", text); };
    if (rows == 0) return refuse(ErrorKind::bad_argument, "0 rows; expected at least 1");
    if (Status s = fits(call, rows, ErrorKind::bad_argument); !s) return s;
    if (Status s = fits_rings(call, rows); !s) return s;
    if (step_open && has_recurrent) {
      return refuse(ErrorKind::bad_state,
                    "a step is open and may have moved recurrent state; advance, roll back or reset first");
    }
    if (taps && !taps->holds(pos, rows)) {
      return Status::failure(ErrorKind::bad_state, call, 0, 0,
                             "the armed tap sink holds %zu rows from position %zu on; %zu rows at %zu do not fit",
                             taps->cap_rows(), taps->origin(), rows, pos);
    }
    return {};
  }

  /// Refuses a step of the chunked class that may not begin here.
  Status admit_chunks(const char* call) const noexcept {
    if (plan.chunk_heads == 0) {
      return Status::failure(ErrorKind::bad_argument, call, 0, 0,
                             "no layer has a chunked scan: the gated delta rule with an ssm in f32 does");
    }
    if (pos % scan_chunk == 0) return {};
    return Status::failure(ErrorKind::bad_argument, call, 0, 0,
                           "a chunked step at position %zu; expected a multiple of %zu: feed %zu rows sequentially",
                           pos, scan_chunk, scan_chunk - pos % scan_chunk);
  }

  /// As admit, for a step or round whose position only the device knows.
  Status admit_on_device(const char* call, std::size_t rows) const noexcept {
    if (rows == 0 || rows > plan.max_ctx) {
      return Status::failure(ErrorKind::bad_argument, call, 0, 0, "%zu rows; expected 1 to max_ctx %zu", rows,
                             plan.max_ctx);
    }
    if (Status s = fits_rings(call, rows); !s) return s;
    if (taps || (step_open && has_recurrent)) {
      return Status::failure(ErrorKind::bad_state, call, 0, 0,
                             "a tap sink is armed or a step is open; take the sink, advance, roll back or reset first");
    }
    return {};
  }

  /// Opens a step of rows that were admitted.
  /// @param bound     pos_d is at most this whenever the step's kernels run
  /// @param anywhere  they may run, now or again, at a position that the host does not know
  void open_step(std::size_t rows, std::size_t bound, bool anywhere, ScanClass by = ScanClass::sequential) noexcept {
    ++step_id;
    step_open = true;
    step_scan = by;
    if (by == ScanClass::chunked) scan = by;  // the state is of that class from the first kernel on
    step_rows = rows;
    step_written = 0;
    step_bound = bound;
    if (anywhere) longest = std::max(longest, rows);
    wrote(pos, rows);
    rewriting(true);
  }
  void end_step() noexcept {
    step_open = false;
    if constexpr (WorkLogDev<Dev>) lineage->close();
  }

  /// Kernels write where pos_d says: while a replay is owed, rows that snapshots beyond it count on. Those are lost,
  /// too, if what is queued now fails, and until the open step ends if it is one that writes them.
  void rewriting(bool by_step) noexcept {
    if constexpr (WorkLogDev<Dev>) {
      if (mirror < len) lineage->rewrite(mirror, devices, by_step);
    }
  }

  /// Kernels may have written rows [at, at + rows).
  void wrote(std::size_t at, std::size_t rows) noexcept { high = std::max(high, std::min(at + rows, plan.max_ctx)); }

  /// A fresh cache was given the state at `n`: rings hold the window there.
  void restore(std::size_t n, ScanClass by) noexcept {
    pos = len = high = restored = n;
    scan = by;
  }

  /// Position 0, nothing held: what the host knows after a reset.
  void restart() noexcept {
    ahead = plane_unknown = untapped = false;
    pos = len = high = restored = 0;
    scan = ScanClass::sequential;
    cut(0);
    parked_valid = false;
    if (taps) taps->arm(0);
  }

  /// The oldest row that planes of this state still hold.
  std::size_t oldest(const KvComponent& c) const noexcept {
    if (c.spec.ring_slack == 0) return 0;
    const std::size_t rows = c.k.phys_rows();
    const std::size_t wrapped = c.k.ring && high > rows ? high - rows : 0;
    return std::max(wrapped, first_needed(c.spec, restored));
  }

  /// The first row that a query at `at` sees of a ring.
  static std::size_t first_needed(const AttentionSpec& a, std::size_t at) noexcept {
    return at - std::min(at, a.window - 1);
  }

  /// Refuses to stand at `at` with rows up to `end` if a ring does not hold them, the window at `at` included.
  Status rings_hold(const char* call, std::size_t at, std::size_t end) const noexcept {
    for (std::size_t il = 0; il < layers.size(); ++il) {
      for (const Component& component : layers[il]) {
        const auto* c = std::get_if<KvComponent>(&component);
        if (c == nullptr || c->spec.ring_slack == 0) continue;
        const std::size_t need = first_needed(c->spec, at);
        if (need == end || need >= oldest(*c)) continue;
        return Status::failure(ErrorKind::bad_state, call, 0, 0,
                               "position %zu needs rows from %zu on, but the ring of layer %zu holds them from %zu on: "
                               "it was taken back too far, or too late",
                               at, need, il, oldest(*c));
      }
    }
    return {};
  }

  Status fits_rings(const char* call, std::size_t rows) const noexcept {
    if (rows <= plan.max_rows) return {};
    return Status::failure(
        ErrorKind::bad_argument, call, 0, 0,
        "%zu rows, but the smallest ring takes %zu in a call; use pieces, or give it more ring_slack", rows,
        plan.max_rows);
  }

  /// The view of a plane that is handed out: a ring says what it still holds.
  PlaneView shown(const KvComponent& c, PlaneView p) const noexcept {
    if (p.ring) p.base = oldest(c);
    return p;
  }

  /// The open step may be committed: there is one, it is no round's, and every layer was written.
  Status complete(const char* call) const noexcept {
    if (!step_open) return Status::failure(ErrorKind::bad_state, call, 0, 0, "no step is open; begin one first");
    if (round_id == step_id) return Status::failure(ErrorKind::bad_state, call, 0, 0, "a round is open; commit it");
    return step_written == n_components ? Status{} : unwritten(call);
  }

  /// The open step's first rows are committed: everything the host knows moves to `now`.
  void move_to(std::size_t now) noexcept {
    pos = mirror = now;
    len = std::max(len, now);
    end_step();
    if (taps && untapped) taps->arm(now);
    if (taps) taps->commit(now);
    untapped = false;
  }

  /// The `nth` state of layer `il` that is a `C`, or nullptr.
  template <class C>
  C* nth_of(std::size_t il, std::size_t nth) noexcept {
    if (il >= layers.size()) return nullptr;
    for (Component& c : layers[il]) {
      C* hit = std::get_if<C>(&c);
      if (hit != nullptr && nth-- == 0) return hit;
    }
    return nullptr;
  }
  RecurComponent* recurrent(std::size_t il, std::size_t nth) noexcept { return nth_of<RecurComponent>(il, nth); }
  GroupedComponent* grouped(std::size_t il, std::size_t nth) noexcept { return nth_of<GroupedComponent>(il, nth); }

  /// The `nth` attention state of layer `il`, shared ones counted: what owns the rows, and whether that is the layer
  /// itself. No owner: there is no such state.
  struct Attention {
    KvComponent* rows = nullptr;
    bool owned = false;
  };
  Attention attention(std::size_t il, std::size_t nth) noexcept {
    if (il >= layers.size()) return {};
    for (std::size_t i = 0; i < layers[il].size(); ++i) {
      if (!role_of(config.layers[il].states[i]).attention || nth-- != 0) continue;
      Component& c = layers[il][i];
      if (auto* own = std::get_if<KvComponent>(&c)) return {own, true};
      if (auto* shared = std::get_if<SharedKvComponent>(&c)) {
        return {attention(shared->spec.donor, shared->spec.nth).rows, false};
      }
    }
    return {};
  }

  /// Overwrites every stage's pos_d in place. If a store fails later, kernels behind it write where pos_d was before.
  Status store_pos(std::size_t value) noexcept {
    mirror = std::min(mirror, value);
    const auto v = static_cast<std::int32_t>(value);
    for (const StageState& s : stages) {
      if (Status f = devices[s.device].dev->store_i32(s.pos_d, &v, 1); !f) return f;
    }
    rewriting(false);
    mirror = value;
    return {};
  }

  /// `rows` more rows may have been committed on the device.
  void note_ahead(std::size_t rows) noexcept {
    const std::size_t from = ahead ? pos_bound : pos;
    pos_bound = rows > plan.max_ctx - from ? plan.max_ctx : from + rows;
    ahead = true;
  }

  void taint(const char* by) noexcept {
    tainted = true;
    tainted_by = by;
  }

  /// Passes a failure on that has changed nothing, unless it is one of earlier work: that may have been this cache's,
  /// and was reported as done.
  Status noted(const Status& s) noexcept {
    if (!tainted && s.asynchronous()) taint("a device failure that was reported late");
    return s;
  }

  Status usable(const char* call) const noexcept {
    if (!tainted) return {};
    return Status::failure(ErrorKind::bad_state, call, 0, 0,
                           "the cache is tainted by %s; roll back to a valid snapshot or reset", tainted_by);
  }

  /// No step is open and no replay is owed: conv, ssm and rows describe one position.
  Status at_rest(const char* call) const noexcept {
    if (Status s = usable(call); !s) return s;
    if (step_open) {
      return Status::failure(ErrorKind::bad_state, call, 0, 0, "a step is open; advance, roll back or reset first");
    }
    if (pos != len) {
      return Status::failure(ErrorKind::bad_state, call, 0, 0, "a replay of %zu rows is owed; feed them first",
                             len - pos);
    }
    return {};
  }

  /// Names the first layer whose view was not taken in the open step.
  Status unwritten(const char* call) const noexcept {
    std::size_t il = 0;
    while (il < layers.size() && std::all_of(layers[il].begin(), layers[il].end(), [&](const Component& c) {
             return std::visit(Overloaded{[&](const KvComponent& k) { return k.written_in == step_id; },
                                          [&](const RecurComponent& r) { return r.written_in == step_id; },
                                          [&](const GroupedComponent& g) { return g.written_in == step_id; },
                                          [](const SharedKvComponent&) { return true; }},
                               c);
           })) {
      ++il;
    }
    return Status::failure(ErrorKind::bad_state, call, 0, 0,
                           "layer %zu was not written in this step; every layer is written once", il);
  }

  /// Rows at or beyond `end` are given up: closes the step and drops whatever belonged to them.
  void cut(std::size_t end) noexcept {
    end_step();
    lineage->cut(end);
    if (parked_pos > end) parked_valid = false;
    if (taps) taps->cut(end);
  }
};

/// Marks the cache tainted from the first write of a change until done() says that all of it happened.
template <class Dev>
class TaintScope {
 public:
  explicit TaintScope(CacheCore<Dev>& core) noexcept : core_(&core) { core.taint("an earlier device failure"); }
  TaintScope(const TaintScope&) = delete;
  TaintScope& operator=(const TaintScope&) = delete;
  void done() noexcept { core_->tainted = false; }

 private:
  CacheCore<Dev>* core_;
};

}  // namespace memra::detail
