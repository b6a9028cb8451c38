// What an engine with kernels does first: one of memra's ops and one of its own, through the same door.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memra/cuda/ops.cuh>
#include <vector>

struct Twice {
  float* x;
  MEMRA_HD void operator()(const memra::Item& item) const { x[item.x] = x[item.x] + x[item.x]; }
};

int main() {
  auto dev = memra::CudaDev::create();
  if (!dev) {
    std::printf("%s\n", dev.status().message().c_str());
    return dev.status().kind() == memra::ErrorKind::unsupported ? 0 : 1;
  }
  std::vector<float> x(1000, 1.0F);
  x[321] = 4.0F;
  auto on_gpu = memra::check(dev->alloc(x.size() * sizeof(float) + sizeof(std::int32_t)));
  auto* floats = reinterpret_cast<float*>(on_gpu.data());
  auto* choice = reinterpret_cast<std::int32_t*>(floats + x.size());
  memra::check(dev->upload(on_gpu.data(), reinterpret_cast<const std::byte*>(x.data()), x.size() * sizeof(float)));
  memra::check(memra::launch(*dev, "twice", {x.size(), 1, 1}, Twice{floats}));
  memra::check(memra::ops_for<memra::CudaDev>(*dev).argmax_rows(floats, 1, x.size(), choice));
  std::int32_t got = -1;
  float doubled = 0;
  memra::check(
      dev->download(reinterpret_cast<std::byte*>(&got), reinterpret_cast<const std::byte*>(choice), sizeof got));
  memra::check(dev->download(reinterpret_cast<std::byte*>(&doubled), reinterpret_cast<const std::byte*>(floats + 321),
                             sizeof doubled));
  std::printf("element %d is %g\n", got, static_cast<double>(doubled));
  return got == 321 && doubled == 8.0F ? 0 : 1;
}
