// TestDev: the device most tests run on. Its calls fail on command, half done; it counts; memory nobody wrote is NaN.
#pragma once

#include <cstddef>
#include <memra/counting_dev.hpp>
#include <memra/fault_dev.hpp>
#include <memra/host_dev.hpp>
#include <memra/poison_dev.hpp>

namespace memra_test {

/// A HostDev that wants bytes between planes.
class GapDev : public memra::HostDev {
 public:
  explicit GapDev(std::size_t gap = 0) noexcept : gap_(gap) {}
  std::size_t plane_gap() const noexcept { return gap_; }

 private:
  std::size_t gap_;
};

/// Made from nothing, or from a gap.
using TestDev = memra::FaultDev<memra::CountingDev<memra::PoisonDev<GapDev>>>;

/// The n-th call from now on fails, half done.
inline memra::Fault torn(std::size_t n) noexcept {
  memra::Fault f;
  f.nth = n;
  f.torn = true;
  return f;
}

}  // namespace memra_test
