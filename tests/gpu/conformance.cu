// CudaDev keeps every promise of the device contract: the suite that every device passes.
#include <memra/cuda/ops.cuh>

#include <conformance/catch_suite.hpp>

#include "support.hpp"

namespace {

/// A fresh device object, its context shared with every other test of the program.
struct FreshCuda {
  static constexpr bool beyond_4_gib = true;  // NOLINT: the suite asks whether it is there
  memra::CudaDev& dev() { return device; }
  memra::CudaDev device = memra_test::make_cuda();
};

TEST_CASE("CudaDev conforms", "[conformance]") {
  memra_conformance::require_conformance<FreshCuda>();
}

}  // namespace
