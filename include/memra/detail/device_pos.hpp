// Positions that move on the device: what captured decode steps need, and how the host learns what they did.
//
// A captured step ends with an increment of every stage's pos_d. The host's pos is then a guess until it catches up.
// An increment that would pass max_ctx does not happen: pos_d becomes ~pos, which is negative, so that this and every
// later replay writes nothing, and catch_up sees both that it happened and where the stream ends.
#pragma once

#include <algorithm>
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
  core.open_step(rows, core.plan.max_ctx);
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
  core.step_open = false;
  taint.done();
  return {};
}

/// Takes pos from the device: waits for what is queued. Taints if a step ran out of rows, or if the stages disagree: an
/// advance that failed half way. What every stage has passed is committed then, so that a rollback can bring it back.
template <class Dev>
Status catch_up(CacheCore<Dev>& core) noexcept {
  if (!core.ahead) return {};
  std::int32_t pos = 0;
  bool ran_out = false;
  bool agree = true;
  for (std::size_t s = 0; s < core.stages.size(); ++s) {
    std::int32_t now = 0;
    Dev& dev = *core.devices[core.stages[s].device].dev;
    const auto* at = reinterpret_cast<const std::byte*>(core.stages[s].pos_d);
    if (Status f = dev.download(reinterpret_cast<std::byte*>(&now), at, sizeof now); !f) return f;
    const std::int32_t reached = now < 0 ? ~now : now;
    agree = agree && (s == 0 || (reached == pos && (now < 0) == ran_out));
    ran_out = ran_out || now < 0;
    pos = s == 0 ? reached : std::min(pos, reached);
  }
  core.ahead = false;
  core.pos = static_cast<std::size_t>(pos);
  core.len = std::max(core.len, core.pos);
  if (agree && !ran_out) return {};
  core.tainted = true;
  if (!agree) {
    return Status::failure(ErrorKind::device_failure, "catch_up", 0, 0,
                           "the stages' positions disagree: an advance failed half way; the stream ends at position "
                           "%zu: roll back or reset",
                           core.pos);
  }
  return Status::failure(ErrorKind::bad_state, "catch_up", 0, 0,
                         "a step on the device would have passed max_ctx %zu; the stream ends at position %zu: roll "
                         "back or reset",
                         core.plan.max_ctx, core.pos);
}

/// As CacheCore::usable, of a cache that knows where it is.
template <class Dev>
Status usable(CacheCore<Dev>& core, const char* call) noexcept {
  if (Status s = core.usable(call); !s) return s;
  return catch_up(core);
}
template <class Dev>
Status at_rest(CacheCore<Dev>& core, const char* call) noexcept {
  if (Status s = usable(core, call); !s) return s;
  return core.at_rest(call);
}

}  // namespace memra::detail
