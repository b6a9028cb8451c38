// EXPECT: memra: AnyDev with ops wraps a device that has no kernels; use BasicAnyDev with caps whose ops is false
#include <concepts/minimal_dev.hpp>
#include <memra/any_dev.hpp>

#if MEMRA_TEST_CORRECTED
using Any = memra::BasicAnyDev<memra::AnyCaps{.ops = false}>;
#else
using Any = memra::AnyDev;
#endif

Any any(memra_test::MinimalDev& dev) {
  return Any(dev);
}
