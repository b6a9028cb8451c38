// EXPECT: memra: this device has no kernels
#include <concepts/minimal_dev.hpp>
#include <memra/ops.hpp>

struct SomeKernels {};
struct DevWithKernels : memra_test::MinimalDev {
  using kernels = SomeKernels;
};

#if MEMRA_TEST_CORRECTED
using Dev = DevWithKernels;
#else
using Dev = memra_test::MinimalDev;
#endif

memra::ops_for<Dev> ops(Dev& dev) {
  return memra::ops_for<Dev>(dev);
}
