// EXPECT: memra: AnyDev with batched_copy wraps a device without copy_batch
#include <concepts/minimal_dev.hpp>
#include <memra/any_dev.hpp>

using Any = memra::BasicAnyDev<memra::AnyCaps{.ops = false, .batched_copy = !MEMRA_TEST_CORRECTED}>;

Any any(memra_test::MinimalDev& dev) {
  return Any(dev);
}
