// What a consumer does first: includes a header, makes a device, moves some bytes.
#include <array>
#include <cstddef>
#include <cstdio>
#include <memra/memra.hpp>

int main() {
  memra::HostDev dev;
  auto plane = memra::check(dev.zeros(64));
  std::array<std::byte, 64> bytes;
  bytes.fill(std::byte{7});
  memra::check(dev.download(bytes.data(), plane.data(), plane.size()));
  for (const std::byte b : bytes) {
    if (b != std::byte{0}) return 1;
  }
  std::printf("memra %d.%d.%d\n", memra::version_major, memra::version_minor, memra::version_patch);
  return 0;
}
