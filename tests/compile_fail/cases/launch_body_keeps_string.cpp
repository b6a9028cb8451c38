// EXPECT: memra: a launch body must be trivially copyable: values and pointers into device memory
#include <cstddef>
#include <memra/host_dev.hpp>
#include <memra/ordered_dev.hpp>
#include <string>

struct Body {
#if MEMRA_TEST_CORRECTED
  const char* name;
#else
  std::string name;  // its bytes, copied to a device, still point into the host's heap
#endif
  void operator()(const memra::Item&) const noexcept {}
};

memra::Status run(memra::OrderedDev<memra::HostDev>& dev) {
  return dev.launch("body", memra::Grid{1, 1, 1}, Body{"name"});
}
