// DeviceSteps: decoding at positions that move on the device, as a part of Cache. What captured graphs need.
#pragma once

#include <cstddef>
#include <memra/detail/cache_core.hpp>
#include <memra/detail/device_pos.hpp>
#include <memra/detail/round_state.hpp>
#include <memra/error.hpp>
#include <memra/step.hpp>

namespace memra {

/// The members of Cache for steps that are recorded once and replayed at other positions. `Self` is Cache<Dev>.
template <class Self, class Dev>
class DeviceSteps {
 public:
  /// Opens a step whose kernels may run at any position: what a captured graph holds. End it with advance_d.
  ///
  /// The views' pos_bound is max_ctx. Nothing is asked of the device, so it may stand inside a capture.
  /// @return as begin_step; bad_state also while a tap sink is armed (taps are placed by host positions), or while
  ///         rounds by planes have the state elsewhere, or may have (a snapshot brings it home; do so before replaying,
  ///         too)
  Result<Step<Dev>> begin_device_step(std::size_t rows) noexcept {
    auto* c = core();
    if (c == nullptr) return moved_from("begin_device_step");
    if (Status s = detail::open_device_step(*c, rows); !s) return s;
    return Step<Dev>(*c);
  }

  /// Commits the open step on the device: queues the increment of every stage's pos_d. pos() is stale from here to
  /// catch_up, which every other call that needs it does by itself.
  /// @return bad_state if no step is open or a layer was not written; a device failure taints
  Status advance_d() noexcept {
    auto* c = core();
    return c == nullptr ? moved_from("advance_d") : detail::advance_on_device(*c);
  }

  /// Says that recorded steps or rounds of `rows` rows in all were queued again: pos() is stale until catch_up. They
  /// were recorded without taps: catch_up arms a tap sink again where they end, empty.
  void replayed(std::size_t rows) noexcept {
    auto* c = core();
    if (c == nullptr) return;
    c->note_ahead(rows);
    c->untapped = true;
    if (c->plan.round.planes) c->plane_unknown = true;
    c->rewriting(false);
  }

  /// pos, or while it is stale (replayed steps, Round::commit_d) the largest it can be.
  std::size_t pos_bound() const noexcept {
    const auto* c = static_cast<const Self*>(this)->core_.get();
    return c == nullptr ? 0 : c->bound();
  }

  /// Takes pos from the device; waits for what is queued there. Every call that needs it does so by itself.
  /// @return bad_state if a step would have passed max_ctx (it wrote nothing beyond), an accept length was out of range
  ///         or the stages disagree: the cache is tainted then; a device failure
  Status catch_up() noexcept {
    auto* c = core();
    return c == nullptr ? moved_from("catch_up") : detail::catch_up(*c);
  }

 private:
  detail::CacheCore<Dev>* core() noexcept { return static_cast<Self*>(this)->core_.get(); }
  static Status moved_from(const char* call) noexcept { return Self::moved_from(call); }
};

}  // namespace memra
