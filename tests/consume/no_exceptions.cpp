// Without exceptions check() calls memra::unhandled, which the program defines. Seen to be called: exit status 0.
#include <cstdio>
#include <cstdlib>
#include <memra/host_dev.hpp>

#if defined(__cpp_exceptions)
#error "this program is to be built with -fno-exceptions"
#endif

void memra::unhandled(const memra::Status& status) noexcept {
  std::printf("%s\n", status.message().c_str());
  std::exit(status.kind() == memra::ErrorKind::bad_argument ? 0 : 2);
}

int main() {
  memra::HostDev dev;
  auto plane = memra::check(dev.alloc(64));
  memra::check(dev.copy(plane.data(), plane.data() + 8, 32));  // overlaps
  return 1;
}
