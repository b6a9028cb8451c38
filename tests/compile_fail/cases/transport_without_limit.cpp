// EXPECT: memra: a hand-over needs a Transport: noexcept `Status send(const std::byte*, std::size_t)`, `Status
// EXPECT: receive(std::byte*, std::size_t)`, `Status flush()` and `limit()` in milliseconds
#include <chrono>
#include <cstddef>
#include <memra/handover.hpp>
#include <memra/host_dev.hpp>

struct Link {
  memra::Status send(const std::byte*, std::size_t) noexcept { return {}; }
  memra::Status receive(std::byte*, std::size_t) noexcept { return {}; }
  memra::Status flush() noexcept { return {}; }
#if MEMRA_TEST_CORRECTED
  std::chrono::milliseconds limit() const noexcept {
    return std::chrono::seconds(1);
  }
#endif
};

memra::Status send(Link& link, memra::Cache<memra::HostDev>& cache) {
  return memra::send_state(link, cache, memra::HandoverTag{});
}
