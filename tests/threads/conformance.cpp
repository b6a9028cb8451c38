// The suite's own property of two threads, alone: the race detector of the leg tsan looks on at it.
#include <conformance/catch_suite.hpp>
#include <cstddef>
#include <memra/error.hpp>
#include <memra/host_dev.hpp>
#include <memra/ordered_dev.hpp>
#include <memra/poison_dev.hpp>
#include <support/catch.hpp>
#include <vector>

namespace conformance_cpp {
namespace {

using memra_conformance::Property;

template <class Make>
std::vector<Property> of_two_threads() {
  std::vector<Property> properties;
  memra_conformance::independence_properties<Make>(properties);
  return properties;
}

TEST_CASE("S9 the property of two threads, alone", "[threads]") {
  memra_conformance::require_all(of_two_threads<memra::HostDev>());
}
TEST_CASE("S9 the property of two threads on a stack of wrappers, alone", "[threads]") {
  memra_conformance::require_all(of_two_threads<memra::OrderedDev<memra::PoisonDev<memra::HostDev>>>());
}

/// Counts the fills of all its objects in one place. The bytes are right: only a race detector can object.
struct CountsTogether : memra::HostDev {
  memra::Status fill(std::byte* dst, std::byte v, std::size_t n) noexcept {
    ++fills;
    return HostDev::fill(dst, v, n);
  }
  static inline std::size_t fills = 0;
};

// The red arm, hidden from everything else.
TEST_CASE("a race between two devices", "[.][planted][race_of_devices]") {
  memra_conformance::require_all(of_two_threads<CountsTogether>());
}

}  // namespace
}  // namespace conformance_cpp
