// A GPU keeps every promise of the device contract: the suite that every device passes.
#include <conformance/catch_suite.hpp>

#include "gpu_ops.hpp"
#include "support.hpp"

namespace conformance_cu {
namespace {

/// A fresh device object, its context shared with every other test of the program.
struct FreshGpu {
  static constexpr bool beyond_4_gib = true;  // NOLINT: the suite asks whether it is there
  memra_test::Gpu& dev() { return device; }
  memra_test::Gpu device = memra_test::make_gpu();
};

TEST_CASE("a GPU conforms", "[conformance]") {
  memra_conformance::require_conformance<FreshGpu>();
}

}  // namespace
}  // namespace conformance_cu
