// EXPECT: memra: launching needs the backend's ops header in a file that its device compiler reads; a plain C++ file
// EXPECT: can hold caches and copy, not launch
// FOLDERS: backends/hip/include tests/support/hip_on_host
#include <memra/hip/device.hpp>

struct Body {
  void operator()(const memra::Item&) const noexcept {}
};

memra::Status run(memra::HipDev& dev) {
#if MEMRA_TEST_CORRECTED
  return dev.synchronize();
#else
  return dev.launch("body", memra::Grid{1, 1, 1}, Body{});
#endif
}
