// What rounds keep on the devices: tables and words of every stage, and how the host and the state slabs catch up.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memra/detail/cache_core.hpp>
#include <memra/error.hpp>
#include <memra/format.hpp>
#include <memra/layers.hpp>
#include <memra/round_views.hpp>
#include <memra/views.hpp>
#include <variant>
#include <vector>

namespace memra::detail {

/// Calls `f(device, component)` for every recurrent state, until one fails.
template <class Core, class F>
Status each_recurrent_state(Core& core, const F& f) {
  for (std::size_t il = 0; il < core.layers.size(); ++il) {
    for (Component& component : core.layers[il]) {
      auto* c = std::get_if<RecurComponent>(&component);
      if (c == nullptr) continue;
      if (Status s = f(core.device_of_layer(il), *c); !s) return s;
    }
  }
  return {};
}

/// Overwrites every stage's words in place: the current plane is `plane`, no error, the generation the host knows.
template <class Dev>
Status store_words(CacheCore<Dev>& core, std::size_t plane) noexcept {
  core.plane = plane;
  const std::int32_t words[4] = {static_cast<std::int32_t>(plane), core.generation, 0, 0};
  static_assert(sizeof words == sizeof(RoundWords));
  for (const auto& stage : core.stages) {
    if (stage.commit.words == nullptr) continue;
    auto* at = reinterpret_cast<std::int32_t*>(stage.commit.words);
    if (Status s = core.devices[stage.device].dev->store_i32(at, words, 4); !s) return s;
  }
  return {};
}

/// Makes the rounds' tables and words on the devices.
template <class Dev>
Status place_rounds(CacheCore<Dev>& core) {
  const RoundPlan& paid = core.plan.round;
  if (!paid.planes && !paid.stash) return {};
  for (std::size_t s = 0; s < core.stages.size(); ++s) {
    const StagePlan& stage = core.plan.stages[s];
    auto& device = core.devices[stage.device];
    std::byte* at = device.extra.data() + stage.round_offset;
    RoundCommit& commit = core.stages[s].commit;
    commit.words = reinterpret_cast<RoundWords*>(at);
    commit.pos_d = core.stages[s].pos_d;
    commit.capacity = static_cast<std::int32_t>(core.plan.max_ctx);
    commit.n_planes = static_cast<std::int32_t>(paid.planes ? paid.rows + 1 : 1);
    std::vector<RecurView> table;
    for (std::size_t il = stage.first_layer; il < stage.end_layer; ++il) {
      for (Component& component : core.layers[il]) {
        auto* c = std::get_if<RecurComponent>(&component);
        if (c == nullptr) continue;
        c->round.plane_d = reinterpret_cast<const std::int32_t*>(at);  // RoundWords::plane
        c->round.n_planes = static_cast<std::size_t>(commit.n_planes);
        table.push_back(c->view({nullptr, paid.rows, 0, 0}, c->round));
        commit.conv_dim = std::max(commit.conv_dim, table.back().conv_dim());
        commit.heads = std::max(commit.heads, table.back().n_v_heads);
        commit.plain = commit.plain && table.back().plain();
      }
    }
    commit.n_layers = table.size();
    if (table.empty()) continue;
    std::byte* views = at + plane_alignment;
    commit.layers = reinterpret_cast<const RecurView*>(views);
    const auto* host = reinterpret_cast<const std::byte*>(table.data());
    if (Status f = device.dev->upload(views, host, table.size() * sizeof(RecurView)); !f) return f;
  }
  if (Status s = store_words(core, 0); !s) return s;
  // Kernels follow the addresses in the tables, and no reset writes those again: they are there, or there is no cache.
  for (auto& device : core.devices) {
    if (Status s = device.dev->synchronize(); !s) return s;
  }
  return {};
}

/// Brings the current ssm plane of every layer home to the state slab, where steps, snapshots and engines expect it.
///
/// Plane 0 is not the current one until the words say so: a copy that fails has cost nothing.
template <class Dev>
Status land(CacheCore<Dev>& core) noexcept {
  if (core.plane == 0) return {};
  const Status copied = each_recurrent_state(core, [&](Dev& dev, RecurComponent& c) {
    const RecurView r = c.view({}, c.round);
    const std::size_t bytes = row_bytes(r.ssm_format, r.ssm_elems());
    return bytes == 0 ? Status() : dev.copy(c.ssm.data(), r.plane_state(core.plane).data(), bytes);
  });
  if (!copied) return core.noted(copied);
  TaintScope<Dev> taint(core);
  if (Status s = store_words(core, 0); !s) return s;
  taint.done();
  return {};
}

/// After steps or rounds that were committed on the device: takes position, plane and generation from there. Waits for
/// what is queued. Taints if a step ran out of rows, a kernel raised its status word, or a stage has missed something.
template <class Dev>
Status catch_up(CacheCore<Dev>& core) noexcept {
  if (!core.ahead) return {};
  std::int32_t pos = 0;
  RoundWords words;
  bool agree = true;
  bool ran_out = false;
  std::int32_t status = 0;
  std::size_t furthest = 0;
  for (std::size_t s = 0; s < core.stages.size(); ++s) {
    const auto& stage = core.stages[s];
    Dev& dev = *core.devices[stage.device].dev;
    std::int32_t now = 0;
    RoundWords w;
    const auto get = [&](void* to, const void* from, std::size_t n) {
      return dev.download(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), n);
    };
    if (Status f = get(&now, stage.pos_d, sizeof now); !f) return core.noted(f);
    if (stage.commit.words != nullptr) {
      if (Status f = get(&w, stage.commit.words, sizeof w); !f) return core.noted(f);
    }
    if (s == 0) words = w;
    const std::int32_t reached = now < 0 ? ~now : now;
    agree = agree && (s == 0 || (reached == pos && (now < 0) == ran_out)) && w.plane == words.plane &&
            w.generation == words.generation;
    furthest = std::max(furthest, static_cast<std::size_t>(reached));
    ran_out = ran_out || now < 0;
    status |= w.status;
    pos = s == 0 ? reached : std::min(pos, reached);  // what every stage has passed is committed
  }
  core.ahead = core.plane_unknown = false;
  core.plane = static_cast<std::size_t>(words.plane);
  core.generation = words.generation;
  const bool was_open = core.step_open;
  core.wrote(furthest, core.longest);
  core.move_to(static_cast<std::size_t>(pos));
  core.step_open = was_open;
  if (was_open) core.rewriting(true);
  if (agree && status == 0 && !ran_out) return {};
  if (!agree) {
    core.taint("stages that were at different steps or rounds");
    return Status::failure(
        ErrorKind::bad_state, "catch_up", 0, 0,
        "the stages are at different steps or rounds: one was missed, or an advance failed half way; "
        "the stream ends at position %zu: roll back or reset",
        core.pos);
  }
  if (status != 0 && !ran_out) {
    core.taint("an accept length that was outside its round");
    return Status::failure(ErrorKind::bad_state, "catch_up", 0, 0,
                           "an accept length was outside the round; roll back or reset");
  }
  core.taint("a step on the device that would have passed max_ctx");
  return Status::failure(ErrorKind::bad_state, "catch_up", 0, 0,
                         "rows on the device would have passed max_ctx %zu; the stream ends at position %zu: roll back "
                         "or reset",
                         core.plan.max_ctx, core.pos);
}

/// Usable, and the host knows what the devices know.
template <class Dev>
Status current(CacheCore<Dev>& core, const char* call) noexcept {
  if (Status s = core.usable(call); !s) return s;
  return catch_up(core);
}

/// At rest, with all of the state in the state slabs: what a snapshot copies.
template <class Dev>
Status settle(CacheCore<Dev>& core, const char* call) noexcept {
  if (Status s = current(core, call); !s) return s;
  if (Status s = core.at_rest(call); !s) return s;
  return land(core);
}

/// Opens a step at the position that the host knows.
template <class Dev>
Status open_plain_step(CacheCore<Dev>& core, std::size_t rows, ScanClass scan) noexcept {
  if (Status s = core.admit("begin_step", rows); !s) return s;
  if (scan == ScanClass::chunked) {
    if (Status s = core.admit_chunks("begin_step"); !s) return s;
  }
  if (Status s = land(core); !s) return s;
  core.open_step(rows, core.pos, false, scan);
  return {};
}

/// Copies every state slab to where a replay round keeps it, or back.
template <class Dev>
Status copy_replay(CacheCore<Dev>& core, bool back) noexcept {
  for (std::size_t d = 0; d < core.devices.size(); ++d) {
    auto& device = core.devices[d];
    if (device.state.bytes() == 0) continue;
    std::byte* kept = device.extra.data() + core.plan.devices[d].replay_offset;
    std::byte* live = device.state.data();
    if (Status s = device.dev->copy(back ? live : kept, back ? kept : live, device.state.bytes()); !s) return s;
  }
  return {};
}

}  // namespace memra::detail
