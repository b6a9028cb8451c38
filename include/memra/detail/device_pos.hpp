// Positions that move on the device: what captured decode steps need, and how the host learns what they did.
//
// A captured step ends with an increment of every stage's pos_d. The host's pos is then a guess until it catches up.
// An increment that would pass max_ctx does not happen: pos_d becomes ~pos, which is negative, so that this and every
// later replay writes nothing, and catch_up sees both that it happened and where the stream ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/detail/cache_core.hpp>
#include <memra/detail/platform.hpp>
#include <memra/error.hpp>
#include <memra/launch.hpp>

namespace memra::detail {

/// pos_d moves on by `rows`, or becomes ~pos_d if that would pass `capacity`.
struct AdvanceBody {
  std::int32_t* pos_d;
  std::int32_t rows;
  std::int32_t capacity;

  MEMRA_HD void operator()(const Item&) const noexcept {
    const std::int32_t pos = *pos_d;
    if (pos < 0) return;
    *pos_d = rows <= capacity - pos ? pos + rows : ~pos;
  }
};

/// Opens a step whose kernels may run at any position.
template <class Dev>
Status open_device_step(CacheCore<Dev>& core, std::size_t rows) noexcept {
  if (Status s = core.usable("begin_device_step"); !s) return s;
  if (Status s = core.admit_on_device("begin_device_step", rows); !s) return s;
  if (core.has_recurrent && (core.plane != 0 || core.plane_unknown)) {
    return Status::failure(ErrorKind::bad_state, "begin_device_step", 0, 0,
                           "rounds by planes %s the state in another plane; a snapshot or a plain step brings it home",
                           core.plane_unknown ? "may have left" : "left");
  }
  core.open_step(rows, core.plan.max_ctx, true);
  return {};
}

/// Queues the increment of every stage and closes the step.
template <class Dev>
Status advance_on_device(CacheCore<Dev>& core) noexcept {
  if (Status s = core.usable("advance_d"); !s) return s;
  if (Status s = core.complete("advance_d"); !s) return s;
  TaintScope<Dev> taint(core);
  for (const auto& stage : core.stages) {
    const AdvanceBody body{stage.pos_d, static_cast<std::int32_t>(core.step_rows),
                           static_cast<std::int32_t>(core.plan.max_ctx)};
    if (Status s = launch(*core.devices[stage.device].dev, "advance", Grid{1, 1, 1}, body); !s) return s;
  }
  core.note_ahead(core.step_rows);
  core.end_step();
  taint.done();
  return {};
}

}  // namespace memra::detail
