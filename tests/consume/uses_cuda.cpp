// What a plain C++ engine does first: a CudaDev, a cache on it, some bytes. Fine with no GPU, if that is what is said.
#include <array>
#include <cstddef>
#include <cstdio>
#include <memra/cache.hpp>
#include <memra/cuda/device.hpp>

int main() {
  auto dev = memra::CudaDev::create();
  if (!dev) {
    std::printf("%s\n", dev.status().message().c_str());
    return dev.status().kind() == memra::ErrorKind::unsupported ? 0 : 1;
  }
  memra::ModelConfig model;
  model.layers = {memra::full_attention({.n_heads = 4, .n_kv_heads = 2, .head_dim_k = 64, .head_dim_v = 64})};
  auto cache = memra::check(memra::Cache<memra::CudaDev>::create(*dev, model, 64));
  auto plane = memra::check(dev->zeros(64));
  std::array<std::byte, 64> bytes;
  bytes.fill(std::byte{7});
  memra::check(dev->download(bytes.data(), plane.data(), plane.size()));
  for (const std::byte b : bytes) {
    if (b != std::byte{0}) return 1;
  }
  std::printf("a cache of %zu bytes on a GPU\n", cache.plan().totals.total_bytes);
  return 0;
}
