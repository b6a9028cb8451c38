// EXPECT: memra: the kernels of the wrapped device are declared but not included: include <memra/host_ops.hpp> for a
// EXPECT: wrapped HostDev, or the ops header of the backend
#include <memra/counting_dev.hpp>
#include <memra/host_dev.hpp>
#include <memra/ops.hpp>
#if MEMRA_TEST_CORRECTED
#include <memra/host_ops.hpp>
#endif

memra::Status append(memra::CountingDev<memra::HostDev>& dev, const memra::KvWriteView& kv, const float* k) {
  return memra::ops_for<memra::CountingDev<memra::HostDev>>(dev).append(kv, k, k);
}
