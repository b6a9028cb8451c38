// EXPECT: memra: guard_planes needs a cache on a CanaryDev or on wrappers around one
#include <memra/canary_dev.hpp>
#include <memra/guard_planes.hpp>
#include <memra/host_dev.hpp>

#if MEMRA_TEST_CORRECTED
using Dev = memra::CanaryDev<memra::HostDev>;
#else
using Dev = memra::HostDev;
#endif

memra::Status guard(const memra::Cache<Dev>& cache) {
  return memra::guard_planes(cache);
}
