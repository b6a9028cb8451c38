// A project that uses memra on AMD GPUs from a plain C++ file. Without a GPU it is told so.
#include <cstdio>
#include <memra/cache.hpp>
#include <memra/hip/device.hpp>

int main() {
  auto dev = memra::HipDev::create();
  if (!dev) {
    std::printf("%s\n", dev.status().message().c_str());
    return dev.status().kind() == memra::ErrorKind::unsupported ? 0 : 1;
  }
  memra::ModelConfig model;
  model.layers = {memra::full_attention({.n_heads = 4, .n_kv_heads = 2, .head_dim_k = 64, .head_dim_v = 64})};
  auto cache = memra::check(memra::Cache<memra::HipDev>::create(*dev, model, 4096));
  std::printf("%zu bytes a token\n", cache.plan().totals.bytes_per_token);
}
