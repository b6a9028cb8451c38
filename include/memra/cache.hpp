// Cache: what a model must remember of one sequence while it decodes, and how it takes back what speculation got wrong.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memra/cache_types.hpp>
#include <memra/detail/build_core.hpp>
#include <memra/detail/cache_core.hpp>
#include <memra/detail/prefix_io.hpp>
#include <memra/detail/round_state.hpp>
#include <memra/device_steps.hpp>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <memra/layers.hpp>
#include <memra/model_config.hpp>
#include <memra/plan.hpp>
#include <memra/prefix.hpp>
#include <memra/round.hpp>
#include <memra/snapshot.hpp>
#include <memra/step.hpp>
#include <memra/taps.hpp>
#include <memra/views.hpp>
#include <optional>
#include <span>
#include <utility>

namespace memra {

/// State of one sequence, over one device or the stages of a pipeline.
///
/// At rest every attention layer holds rows [0, pos) and every recurrent layer the state after pos tokens. All calls
/// return a Status; a refusal (bad_argument, bad_state) has changed nothing. A device failure after the first write of
/// a change taints the cache: it then refuses everything but rollback to a valid snapshot, reset and destruction. So
/// does an asynchronous failure (Status::asynchronous) in any call: earlier work of this cache may be what failed. A
/// snapshot whose own copy may be among it is no longer valid; rows to keep are those that were waited for (S5).
/// Addresses never change. One thread at a time; devices outlive it. Move-only; moved-from it answers bad_state, 0.
template <class Dev>
class Cache : public DeviceSteps<Cache<Dev>, Dev> {
  friend class DeviceSteps<Cache<Dev>, Dev>;
  friend struct detail::HandoverIo<Dev>;
  friend struct detail::SlabsOf<Dev>;
  friend class RoundBatch<Dev>;
  template <class D>
  friend class AttendBatch;
  template <class D>
  friend class Speculation;
  static_assert(check_kv_dev<Dev>());
  using Core = detail::CacheCore<Dev>;

 public:
  /// All layers on one device, at position 0, recurrent state zero, K and V rows undefined.
  ///
  /// @param max_ctx  rows of every K and V plane
  /// @return bad_argument naming the layer and field; out_of_memory; device_failure. Nothing is left allocated then
  static Result<Cache> create(Dev& dev, const ModelConfig& cfg, std::size_t max_ctx, const CacheOptions& options = {}) {
    const std::array<std::size_t, 2> fence = {0, cfg.layers.size()};
    const std::array<Dev*, 1> devs = {&dev};
    return create_ppn(devs, fence, cfg, max_ctx, options);
  }

  /// Layers [0, split) on d0, the rest on d1. The same object twice gives the layout of create plus one mirror.
  static Result<Cache> create_pp2(Dev& d0, Dev& d1, std::size_t split, const ModelConfig& cfg, std::size_t max_ctx,
                                  const CacheOptions& options = {}) {
    const std::array<std::size_t, 3> fence = {0, split, cfg.layers.size()};
    const std::array<Dev*, 2> devs = {&d0, &d1};
    return create_ppn(devs, fence, cfg, max_ctx, options);
  }

  /// Stage s runs layers [fence[s], fence[s+1]) on *devs[s]; layers past the fence belong to the last stage.
  ///
  /// @param fence  [devs.size() + 1], starts with 0, does not decrease (an empty stage is legal); see pp_cuts
  static Result<Cache> create_ppn(std::span<Dev* const> devs, std::span<const std::size_t> fence,
                                  const ModelConfig& cfg, std::size_t max_ctx, const CacheOptions& options = {}) {
    auto core = detail::build_core<Dev>(devs, fence, cfg, max_ctx, options);
    if (!core) return core.status();
    return Cache(*std::move(core));
  }

  Cache(Cache&&) noexcept = default;
  Cache& operator=(Cache&&) noexcept = default;

  // --- what it is ---

  /// Committed tokens; while a replay is owed, the replay's position.
  std::size_t pos() const noexcept { return core_ ? core_->pos : 0; }
  /// Committed rows of every attention layer: pos, or more while a replay is owed.
  std::size_t len() const noexcept { return core_ ? core_->len : 0; }
  std::size_t replay_owed() const noexcept { return len() - pos(); }
  std::size_t max_ctx() const noexcept { return core_ ? core_->plan.max_ctx : 0; }
  std::size_t n_layer() const noexcept { return core_ ? core_->layers.size() : 0; }
  /// Chunked if a step of that class is behind the state: it continues, but not with the bits of a sequential one.
  ScanClass scan_class() const noexcept { return core_ ? core_->scan : ScanClass::sequential; }
  bool tainted() const noexcept { return core_ && core_->tainted; }
  /// @pre not moved-from, as for config, stage_of and dev
  const Plan& plan() const noexcept { return core_->plan; }
  const ModelConfig& config() const noexcept { return core_->config; }
  std::size_t n_stages() const noexcept { return core_ ? core_->stages.size() : 0; }
  std::size_t stage_of(std::size_t il) const noexcept { return memra::stage_of(core_->placement, il); }
  /// Device of layer `il`'s stage.
  Dev& dev(std::size_t il) const noexcept { return core_->device_of_layer(il); }
  /// Device of stage `s`. @pre s < n_stages()
  Dev& stage_dev(std::size_t s) const noexcept { return *core_->devices[core_->stages[s].device].dev; }
  /// Device: stage `s`'s mirror of pos, on the stage's device; nullptr for a stage there is not.
  const std::int32_t* pos_d(std::size_t s) const noexcept { return s < n_stages() ? core_->stages[s].pos_d : nullptr; }

  /// Attention state of layer `il`, or of the layer it shares with; nullopt where it has none.
  std::optional<KvLayer> kv(std::size_t il, std::size_t nth = 0) const noexcept {
    const auto* c = core_ ? core_->attention(il, nth).rows : nullptr;
    if (c == nullptr) return std::nullopt;
    return KvLayer{c->spec,    core_->shown(*c, c->k), core_->shown(*c, c->v),
                   core_->len, pos_d(stage_of(il)),    core_->oldest(*c)};
  }

  /// Recurrent state of layer `il`, nullopt where it has none. Rounds of planes change which address is current.
  std::optional<RecurLayer> recur(std::size_t il, std::size_t nth = 0) const noexcept {
    const auto* c = core_ ? core_->recurrent(il, nth) : nullptr;
    if (c == nullptr) return std::nullopt;
    const StateElems ssm = c->view({}, c->round).plane_state(core_->plane);
    return RecurLayer{c->spec, c->conv.f32, ssm.f32, core_->pos, c->conv.data(), ssm.data()};
  }

  /// Rows of layer `il` that stand for several tokens each.
  std::optional<GroupedLayer> grouped(std::size_t il, std::size_t nth = 0) const noexcept {
    const auto* c = core_ ? core_->grouped(il, nth) : nullptr;
    if (c == nullptr) return std::nullopt;
    return GroupedLayer{c->spec, c->rows, core_->len / c->spec.stride, pos_d(stage_of(il))};
  }

  // --- decoding ---

  /// Opens a forward of `rows` tokens at pos. Writes nothing, unless rounds of planes came before: then the current
  /// plane is copied to where a step expects it (R4 says what a failure of that leaves).
  ///
  /// @return bad_argument for 0 rows or more rows than fit (the text says how many do); bad_state while tainted, while
  ///         an armed tap sink has no place for the rows, or with a recurrent layer while another step is open: a
  ///         forward that died half way is repaired by rollback or reset
  /// @param scan  chunked: recurrent layers that have that class go through the rows in chunks, for long prompts. It
  ///              starts at a multiple of scan_chunk and may end anywhere; else, or without such a layer, bad_argument
  Result<Step<Dev>> begin_step(std::size_t rows, ScanClass scan = ScanClass::sequential) noexcept {
    if (Status s = usable("begin_step"); !s) return s;
    if (Status s = detail::open_plain_step(*core_, rows, scan); !s) return s;
    return Step<Dev>(*core_);
  }

  /// Commits the open step: pos moves on by its rows, on the host and in every stage's pos_d.
  ///
  /// @return bad_state if no step is open, a layer was not written, or a step of begin_device_step has more rows than
  ///         fit where it turned out to be (nothing changed); a device failure taints
  Status advance() noexcept {
    if (Status s = usable("advance"); !s) return s;
    Core& c = *core_;
    if (Status s = c.complete("advance"); !s) return s;
    if (Status s = c.fits("advance", c.step_rows, ErrorKind::bad_state); !s) return s;
    detail::TaintScope<Dev> taint(c);
    if (Status s = c.store_pos(c.pos + c.step_rows); !s) return s;
    c.move_to(c.pos + c.step_rows);
    taint.done();
    return {};
  }

  /// Opens a round: a forward of `rows` tokens of which commit keeps the first few. See Round.
  ///
  /// @return as begin_step; bad_argument for a strategy or rows that were not paid for (CacheOptions::rounds);
  ///         bad_state also while a replay is owed; a device failure of a replay's copy leaves the cache as it was
  Result<Round<Dev>> begin_round(std::size_t rows, Strategy by = Strategy::automatic) noexcept {
    if (!core_) return moved_from("begin_round");
    return Round<Dev>::begin(*core_, rows, by);
  }

  /// Opens a round whose kernels may run at any position: what a captured graph holds. End it with Round::commit_d.
  ///
  /// The views' pos_bound is max_ctx. Nothing is asked of the device, so it may stand inside a capture; after replays
  /// say replayed(). Rows that do not fit below max_ctx end the stream there, which catch_up reports.
  /// @return as begin_round; bad_argument for replay; bad_state also while a tap sink is armed
  Result<Round<Dev>> begin_device_round(std::size_t rows, Strategy by = Strategy::automatic) noexcept {
    if (!core_) return moved_from("begin_device_round");
    return Round<Dev>::begin_on_device(*core_, rows, by);
  }

  // --- taking back ---

  /// Copies conv and ssm of every layer into memory of its own: one copy per device object.
  /// @return bad_state while a step is open, a replay is owed or the cache is tainted; out_of_memory; device_failure
  Result<CacheSnapshot<Dev>> snapshot() {
    if (Status s = settled("snapshot"); !s) return s;
    CacheSnapshot<Dev> snap;
    snap.lineage_ = core_->lineage;
    for (auto& d : core_->devices) {
      auto buffer = d.dev->alloc(d.state.bytes());
      if (!buffer) return core_->noted(buffer.status());
      snap.state_.push_back(*std::move(buffer));
    }
    snap.record_ = core_->lineage->add(core_->devices.size());
    if (Status s = fill(snap); !s) return s;
    return snap;
  }

  /// Refreshes `snap`, made by snapshot() of this cache, in place: no allocation, nothing through the host.
  /// @return as snapshot; bad_argument for another cache's snapshot. After a device failure the cache is as before and
  ///         `snap` is invalid until refreshed
  Status snapshot_into(CacheSnapshot<Dev>& snap) noexcept {
    if (Status s = settled("snapshot_into"); !s) return s;
    if (Status s = snap.made_by(*core_->lineage, "snapshot_into"); !s) return s;
    return fill(snap);
  }

  /// Back to `snap`, keeping the first `accept` of the rows committed since.
  ///
  /// Attention layers keep rows [0, snap.pos + accept) without copying. Recurrent layers get conv and ssm of the
  /// snapshot back, pos becomes snap.pos, and the accepted tokens are to be fed again (`replay`): they rewrite their
  /// rows in place. Without recurrent layers pos is snap.pos + accept at once. Repeatable with the same or a smaller
  /// accept. Closes an open step. Snapshots taken beyond snap.pos + accept become stale. A tap sink keeps the accepted
  /// rows; one armed beyond the new pos, or whose rows end before it, is armed again at it, empty.
  ///
  /// @return bad_argument for another cache's snapshot or an accept beyond the rows committed since and not given up;
  ///         bad_state for a stale or half-written snapshot, or if a ring no longer holds the window there: nothing
  ///         moved. A device failure taints; the same rollback may be repeated
  Result<RolledBack> rollback(const CacheSnapshot<Dev>& snap, std::size_t accept) noexcept {
    if (!core_) return moved_from("rollback");
    if (Status s = snap.usable_for(*core_->lineage, "rollback"); !s) return s;
    Core& c = *core_;
    // Having run out of rows is what a rollback repairs; a position that cannot be had is not.
    if (Status s = detail::catch_up(c); !s && c.ahead) return s;
    const std::size_t at = snap.record_->pos;
    if (accept > c.len - at) {
      return Status::failure(ErrorKind::bad_argument, "rollback", 0, 0,
                             "accept %zu, but %zu rows are committed since the snapshot at position %zu", accept,
                             c.len - at, at);
    }
    const std::size_t pos = c.has_recurrent ? at : at + accept;
    if (Status s = c.rings_hold("rollback", pos, at + accept); !s) return s;
    detail::TaintScope<Dev> taint(c);
    for (std::size_t d = 0; d < c.devices.size(); ++d) {
      auto& state = c.devices[d].state;
      if (state.bytes() == 0) continue;
      if (Status s = c.devices[d].dev->copy(state.data(), snap.state_[d].data(), state.bytes()); !s) return s;
    }
    if (Status s = detail::store_words(c, 0); !s) return s;
    if (Status s = c.store_pos(pos); !s) return s;
    c.pos = pos;
    c.len = at + accept;
    c.scan = snap.record_->scan;
    if (c.len == 0) c.high = 0;  // no row is held: rings start again
    c.cut(c.len);
    // A sink armed above pos has no place for the next step's rows, and one whose rows end below pos would get a hole
    // (back by one snapshot, forward again by a later one): it starts again here.
    if (c.taps && !c.taps->reaches(pos)) c.taps->arm(pos);
    taint.done();
    return RolledBack{pos, c.len - pos};
  }

  /// Position 0, conv and ssm zero, parked logits gone, an armed tap sink re-armed at 0. A device failure taints; it
  /// may be repeated, and may have forgotten rows that only the device knew to be committed (Round::commit_d).
  Status reset() noexcept {
    if (!core_) return moved_from("reset");
    Core& c = *core_;
    detail::TaintScope<Dev> taint(c);
    for (auto& d : c.devices) {
      if (d.state.bytes() == 0) continue;
      if (Status s = d.dev->fill(d.state.data(), std::byte{0}, d.state.bytes()); !s) return s;
    }
    if (Status s = detail::store_words(c, 0); !s) return s;
    if (Status s = c.store_pos(0); !s) return s;
    c.restart();
    taint.done();
    return {};
  }

  // --- what travels with it ---

  /// Keeps a copy of the logits of the last committed row. The first call allocates.
  /// @param row  [n_vocab] f32 on the last stage's device
  Status park_logits(const float* row) noexcept {
    if (Status s = usable("park_logits"); !s) return s;
    Core& c = *core_;
    if (c.step_open) return refuse(ErrorKind::bad_state, "park_logits", "a step is open; advance first");
    if (row == nullptr || c.config.n_vocab == 0) {
      return refuse(ErrorKind::bad_argument, "park_logits", "no row, or a model without n_vocab; expected both");
    }
    Dev& dev = *c.devices[c.stages.back().device].dev;
    const std::size_t bytes = c.config.n_vocab * sizeof(float);
    if (c.parked && detail::ranges_overlap(c.parked->data(), reinterpret_cast<const std::byte*>(row), bytes)) {
      return refuse(ErrorKind::bad_argument, "park_logits", "the row is in the parking place itself; expected another");
    }
    c.parked_valid = false;
    if (!c.parked) {
      auto made = dev.alloc(bytes);
      if (!made) return c.noted(made.status());
      c.parked.emplace(*std::move(made));
    }
    if (Status s = dev.copy(c.parked->data(), reinterpret_cast<const std::byte*>(row), bytes); !s) return c.noted(s);
    c.parked_pos = c.pos;
    c.parked_valid = true;
    return {};
  }

  /// The logits parked at this very position of this very branch, nullopt otherwise.
  std::optional<ParkedLogits> last_logits_dev() const noexcept {
    if (!core_ || core_->tainted || core_->ahead || !core_->parked_valid || core_->parked_pos != core_->pos)
      return std::nullopt;
    return ParkedLogits{reinterpret_cast<const float*>(core_->parked->data()), core_->config.n_vocab, core_->pos};
  }

  /// Arms a tap sink from the current position on; steps then ask Step::tap where to write. Replaces a former one.
  /// @return bad_argument for a moved-from sink or a layer this model does not have (`sink` keeps its buffer then)
  Status arm_taps(DflashTapSink<Dev>&& sink) noexcept {
    if (Status s = usable("arm_taps"); !s) return s;
    if (core_->step_open) return refuse(ErrorKind::bad_state, "arm_taps", "a step is open; advance first");
    if (sink.layer_ids().empty()) return refuse(ErrorKind::bad_argument, "arm_taps", "the sink is empty (moved-from)");
    if (Status s = detail::check_tapped("arm_taps", sink.layer_ids(), core_->layers.size()); !s) return s;
    core_->taps.emplace(std::move(sink));
    core_->taps->arm(core_->pos);
    return {};
  }

  /// Disarms and hands the sink out with the rows committed since; nullopt if none was armed, or while tainted.
  std::optional<DflashTapSink<Dev>> take_taps() noexcept {
    if (!core_ || !usable("take_taps")) return std::nullopt;
    return std::exchange(core_->taps, std::nullopt);
  }

  const DflashTapSink<Dev>* dflash_taps() const noexcept { return core_ && core_->taps ? &*core_->taps : nullptr; }

  /// Publishes the prompt that ends at `snap`: rows [0, snap.pos) of the live cache, conv and ssm of the snapshot, and
  /// the logits if they are parked there. The cache may have moved on since; its own state is not touched. Of a ring it
  /// takes the rows of the window that ends there.
  /// @return as rollback for the snapshot and for rings; bad_argument at position 0; out_of_memory; device_failure
  Result<CachePrefix<Dev>> export_prefix(const CacheSnapshot<Dev>& snap) {
    if (Status s = usable("export_prefix"); !s) return s;
    if (Status s = snap.usable_for(*core_->lineage, "export_prefix"); !s) return s;
    if (snap.record_->pos == 0) {
      return refuse(ErrorKind::bad_argument, "export_prefix", "the snapshot is at position 0: no rows to publish");
    }
    if (Status s = core_->rings_hold("export_prefix", snap.record_->pos, snap.record_->pos); !s) return s;
    auto prefix = detail::PrefixIo<Dev>::write(*core_, snap.state_, snap.record_->pos, snap.record_->scan);
    if (!prefix) return core_->noted(prefix.status());
    return prefix;
  }

  /// A fresh cache at prefix.pos() holding what the prefix holds, as if it had been fed those tokens.
  /// What only sizes scratch (n_heads, second_buffer) may differ from the model that made it.
  /// @return bad_argument if layers, formats or layouts differ or the prefix does not fit max_ctx; as create otherwise.
  ///         All or nothing: there is no cache then
  static Result<Cache> from_prefix(Dev& dev, const ModelConfig& cfg, std::size_t max_ctx,
                                   const CachePrefix<Dev>& prefix, const CacheOptions& options = {}) {
    const std::array<std::size_t, 2> fence = {0, cfg.layers.size()};
    const std::array<Dev*, 1> devs = {&dev};
    return from_prefix_ppn(devs, fence, cfg, max_ctx, prefix, options);
  }

  /// As from_prefix, placed as create_ppn does; the prefix may come from another placement.
  static Result<Cache> from_prefix_ppn(std::span<Dev* const> devs, std::span<const std::size_t> fence,
                                       const ModelConfig& cfg, std::size_t max_ctx, const CachePrefix<Dev>& prefix,
                                       const CacheOptions& options = {}) {
    if (Status s = detail::PrefixIo<Dev>::check(cfg, max_ctx, prefix); !s) return s;
    auto made = create_ppn(devs, fence, cfg, max_ctx, options);
    if (!made) return made.status();
    if (Status s = detail::PrefixIo<Dev>::read(*made->core_, prefix); !s) return s;
    return made;
  }

 private:
  explicit Cache(std::unique_ptr<Core> core) noexcept : core_(std::move(core)) {}

  static Status refuse(ErrorKind kind, const char* call, const char* sentence) noexcept {
    return Status::failure(kind, call, 0, 0, "%s", sentence);
  }
  static Status moved_from(const char* call) noexcept {
    return refuse(ErrorKind::bad_state, call, "the cache is empty (moved-from); expected one made by create");
  }

  // Both first learn where the device is, if it moved on by itself.
  Status usable(const char* call) const noexcept { return core_ ? detail::current(*core_, call) : moved_from(call); }
  Status settled(const char* call) const noexcept { return core_ ? detail::settle(*core_, call) : moved_from(call); }

  Status fill(CacheSnapshot<Dev>& snap) noexcept {
    snap.record_->begin();
    for (std::size_t d = 0; d < core_->devices.size(); ++d) {
      auto& state = core_->devices[d].state;
      if (state.bytes() == 0) continue;
      if (Status s = core_->devices[d].dev->copy(snap.state_[d].data(), state.data(), state.bytes()); !s) {
        return core_->noted(s);
      }
    }
    snap.record_->complete(core_->pos, core_->scan, core_->devices);
    return {};
  }

  std::unique_ptr<Core> core_;
};

}  // namespace memra
