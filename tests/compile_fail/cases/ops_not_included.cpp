// EXPECT: memra: the kernels of this device are declared but not included
// NEEDS: memra/host_ops.hpp
#include <memra/host_dev.hpp>
#include <memra/ops.hpp>
#if MEMRA_TEST_CORRECTED
#include <memra/host_ops.hpp>
#endif

memra::ops_for<memra::HostDev> ops(memra::HostDev& dev) {
  return memra::ops_for<memra::HostDev>(dev);
}
