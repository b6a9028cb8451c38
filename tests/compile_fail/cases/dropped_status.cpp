// EXPECT: nodiscard
// FLAGS: -Werror=unused-result
#include <memra/host_dev.hpp>

void sync(memra::HostDev& dev) {
#if MEMRA_TEST_CORRECTED
  memra::check(dev.synchronize());
#else
  dev.synchronize();
#endif
}
