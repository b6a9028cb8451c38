// EXPECT: memra: a kernel body is copied to the device as bytes
// FOLDERS: backends/hip/include tests/support/hip_on_host
#include <memra/hip/device.hpp>
#include <string>

struct Body {
  std::string name;
  void operator()(const memra::Item&) const noexcept {}
};

memra::Status run(memra::HipDev& dev) {
#if MEMRA_TEST_CORRECTED
  return dev.synchronize();  // a launch needs a device compiler
#else
  return dev.launch("body", memra::Grid{1, 1, 1}, Body{"name"});
#endif
}
