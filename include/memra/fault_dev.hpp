// FaultDev: a device whose n-th call fails, for finding out what a caller does then.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memra/detail/wrap_dev.hpp>
#include <memra/dev_call.hpp>
#include <memra/error.hpp>
#include <memra/host_dev.hpp>
#include <memra/kv_dev.hpp>
#include <optional>

namespace memra {

namespace detail {
struct FaultPolicy;
}  // namespace detail

/// Which call fails, and how.
struct Fault {
  std::size_t nth = 1;              ///< the nth call that matches fails, counted from 1 when the fault is armed
  std::optional<DevOp> op{};        ///< only calls of this operation match; nullopt: every call
  const char* launch = nullptr;     ///< only launches of this name match; nullptr: no matter
  bool forever = false;             ///< every matching call from the nth on fails, not only the nth
  std::optional<ErrorKind> kind{};  ///< nullopt: out_of_memory for alloc and zeros, device_failure for the rest
  std::int64_t native = 999;        ///< native code of the Status
  /// A failed copy (or batch of them), move, fill, upload, download or store has done its first half, not nothing. Not
  /// above a CanaryDev that guards planes: half of a write over a whole slab, gaps and all, looks like a stray one to
  /// it.
  bool torn = false;
};

/// Which calls fail, and how many have. Several FaultDev may share one (FaultDev::share): "the n-th call" is then the
/// n-th of all of them, in the order in which they were made. It may be asked after the devices are gone.
class FaultPlan {
 public:
  /// Arms a fault and forgets the former one with its counts; lost devices work again.
  /// @pre fault.nth >= 1
  void arm(const Fault& fault) noexcept {
    disarm();
    armed_ = fault;
  }
  /// No call fails any more.
  void disarm() noexcept {
    armed_.reset();
    matched_ = fired_ = 0;
    ++turn_;
  }
  /// Calls that failed since arm, the refusals of a lost device included.
  std::size_t fired() const noexcept { return fired_; }
  /// Calls that the armed fault matched since arm, failed or not.
  std::size_t matched() const noexcept { return matched_; }

 private:
  friend struct detail::FaultPolicy;

  std::optional<Fault> armed_;
  std::size_t matched_ = 0;
  std::size_t fired_ = 0;
  std::uint64_t turn_ = 1;  // a device lost in an earlier turn works again
};

namespace detail {

struct FaultPolicy : WrapPolicy {
  std::shared_ptr<FaultPlan> plan = std::make_shared<FaultPlan>();
  std::uint64_t lost_in = 0;  // turn of the plan in which this device was lost
  std::int64_t lost_native = 0;
  std::array<std::size_t, n_dev_ops> calls{};

  bool matches(const DevCall& c) const noexcept {
    const Fault& armed = *plan->armed_;
    const bool allocates = c.op == DevOp::alloc || c.op == DevOp::zeros;
    if (armed.op && *armed.op != c.op) return false;
    if (armed.launch != nullptr && (c.op != DevOp::launch || std::strcmp(armed.launch, c.name) != 0)) return false;
    return armed.kind != ErrorKind::out_of_memory || allocates;
  }

  bool lost() const noexcept { return lost_in == plan->turn_; }
  bool torn() const noexcept { return plan->armed_ && plan->armed_->torn && !lost(); }

  Status before(const DevCall& c) noexcept {
    ++calls[static_cast<std::size_t>(c.op)];
    if (lost()) {
      ++plan->fired_;
      return Status::failure(ErrorKind::device_lost, to_string(c.op), lost_native, c.bytes,
                             "the device was lost on purpose by an earlier call; %s is refused as every call is",
                             c.name);
    }
    if (!plan->armed_ || !matches(c)) return {};
    const Fault& armed = *plan->armed_;
    ++plan->matched_;
    if (armed.forever ? plan->matched_ < armed.nth : plan->matched_ != armed.nth) return {};
    ++plan->fired_;
    const bool allocates = c.op == DevOp::alloc || c.op == DevOp::zeros;
    const ErrorKind kind = armed.kind.value_or(allocates ? ErrorKind::out_of_memory : ErrorKind::device_failure);
    if (kind == ErrorKind::device_lost) {
      lost_in = plan->turn_;
      lost_native = armed.native;
    }
    return Status::failure(kind, to_string(c.op), armed.native, c.bytes,
                           "fault on purpose: matching call %zu, %s, was not carried out", plan->matched_, c.name);
  }
};

}  // namespace detail

/// A KvDev over `Dev` that fails on command. A failed call is not passed on (unless it is to be torn): no byte
/// changes, nothing is allocated.
///
/// To try every place where an operation can fail (see also CountingDev for leaks):
///
///     for (std::size_t n = 1;; ++n) {
///       dev.arm({.nth = n});
///       if (Status s = operation(); dev.fired() == 0) break;  // passed untouched: every call has had its turn
///       // ... look at the state the failure left behind
///     }
///
/// Owns the wrapped device and is neither copied nor moved. Calls that do nothing (zero bytes, empty grid) are not
/// counted and cannot fail, as the contract says. Kernels count as launches under their op's name. Optional
/// capabilities are those of `Dev`.
template <class Dev>
class FaultDev : public detail::WrapDev<Dev, detail::FaultPolicy> {
  using Base = detail::WrapDev<Dev, detail::FaultPolicy>;

 public:
  using Base::Base;

  /// See FaultPlan for the next four.
  /// @pre fault.nth >= 1
  void arm(const Fault& fault) noexcept { plan()->arm(fault); }
  void disarm() noexcept { plan()->disarm(); }
  std::size_t fired() const noexcept { return plan()->fired(); }
  std::size_t matched() const noexcept { return plan()->matched(); }

  /// What decides over this device's calls.
  const std::shared_ptr<FaultPlan>& plan() const noexcept { return this->policy().plan; }
  /// From now on `plan` does, which may decide over other devices, too.
  /// @pre plan is not null
  void share(const std::shared_ptr<FaultPlan>& plan) noexcept { this->policy().plan = plan; }

  /// Calls of one operation since the device was made, failed ones included.
  std::size_t calls(DevOp op) const noexcept { return this->policy().calls[static_cast<std::size_t>(op)]; }
  std::size_t calls() const noexcept {
    std::size_t n = 0;
    for (const std::size_t c : this->policy().calls) n += c;
    return n;
  }
};

static_assert(check_kv_dev<FaultDev<HostDev>>());

}  // namespace memra
