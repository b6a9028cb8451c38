// A cache on a device of our own: nothing of memra knows CustomDev, and no kernel of memra runs on it.
#include <cstdio>
#include <cstring>
#include <memra/cache.hpp>
#include <vector>

#include "custom_dev.hpp"

int main() {
  CustomDev dev;
  memra::ModelConfig model;
  model.layers = {memra::recurrent({.n_k_heads = 1, .n_v_heads = 1, .d_k = 4, .d_v = 4, .d_conv = 4}),
                  memra::full_attention({.n_kv_heads = 1, .head_dim_k = 32, .head_dim_v = 32})};
  auto cache = check(memra::Cache<CustomDev>::create(dev, model, 64));

  // The engine's forward. Here it writes one number per token; a real one launches its own kernels on these addresses.
  const auto forward = [&](std::size_t rows, float token) {
    auto step = check(cache.begin_step(rows));
    const memra::RecurView state = check(step.recur(0));
    float sum = 0;
    check(dev.download(reinterpret_cast<std::byte*>(&sum), reinterpret_cast<std::byte*>(state.ssm), sizeof sum));
    sum += token * static_cast<float>(rows);
    check(dev.upload(reinterpret_cast<std::byte*>(state.ssm), reinterpret_cast<std::byte*>(&sum), sizeof sum));
    const memra::KvWriteView kv = check(step.kv_write(1));
    const std::vector<std::byte> row(memra::row_bytes(kv.k.shape.format, kv.k.shape.width), std::byte{1});
    for (std::size_t r = 0; r < rows; ++r) {
      check(dev.upload(kv.k.data + (step.pos() + r) * row.size(), row.data(), row.size()));
    }
    check(cache.advance());
  };
  const auto state = [&] {
    float sum = 0;
    check(dev.download(reinterpret_cast<std::byte*>(&sum), reinterpret_cast<const std::byte*>(cache.recur(0)->ssm),
                       sizeof sum));
    return static_cast<double>(sum);
  };

  forward(10, 1);
  const auto snap = check(cache.snapshot());
  forward(4, 100);
  std::printf("after the draft:    %zu tokens, state %g\n", cache.pos(), state());
  const auto back = check(cache.rollback(snap, 1));
  forward(back.replay, 100);
  std::printf("one draft accepted: %zu tokens, state %g\n", cache.pos(), state());
  return cache.pos() == 11 && state() == 110 ? 0 : 1;
}
