// What the bookkeeping of state costs: a plain step of a 64-layer model, and snapshot_into and rollback against one
// plain copy of the same bytes in the same run. The geometry is that of Qwen3.6-27B: 48 gated-delta and 16 attention
// layers.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memra/cache.hpp>
#include <memra/host_dev.hpp>
#include <vector>

namespace {

using memra::HostDev;

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> t) {
  const auto middle = t.begin() + static_cast<std::ptrdiff_t>(t.size() / 2);
  std::nth_element(t.begin(), middle, t.end());
  return *middle;
}

template <class F>
double time_us(const F& f) {
  const double start = now_us();
  f();
  return now_us() - start;
}

memra::ModelConfig model() {
  memra::ModelConfig m;
  for (int il = 0; il < 64; ++il) {
    m.layers.push_back(
        il % 4 == 3 ? memra::full_attention({.n_heads = 24, .n_kv_heads = 4, .head_dim_k = 256, .head_dim_v = 256})
                    : memra::recurrent({.n_k_heads = 16, .n_v_heads = 48, .d_k = 128, .d_v = 128, .d_conv = 4}));
  }
  return m;
}

/// begin_step, every view that kernels would ask for, advance.
void step(memra::Cache<HostDev>& cache) {
  auto s = check(cache.begin_step(1));
  for (std::size_t il = 0; il < 64; ++il) {
    if (il % 4 == 3) {
      if (!check(s.kv_write(il)).k || !check(s.kv_read(il)).v) std::abort();
    } else if (check(s.recur(il)).ssm == nullptr) {
      std::abort();
    }
  }
  check(cache.advance());
}

}  // namespace

int main() {
  HostDev dev;
  auto cache = check(memra::Cache<HostDev>::create(dev, model(), 4096));
  constexpr int runs = 31;
  constexpr std::size_t steps = 500;
  std::vector<double> plain;
  for (int r = 0; r < runs; ++r) {
    check(cache.reset());
    plain.push_back(time_us([&] {
                      for (std::size_t i = 0; i < steps; ++i) step(cache);
                    }) /
                    static_cast<double>(steps));
  }
  std::printf("plain step of 64 layers (begin, 80 views, advance): %.3f us, target under 2\n", median(plain));

  // Something to copy: never time zeros.
  for (std::size_t il = 0; il < 64; ++il) {
    if (const auto layer = cache.recur(il)) {
      auto* ssm = const_cast<float*>(layer->ssm);
      for (std::size_t i = 0; i < layer->ssm_elems(); ++i) ssm[i] = static_cast<float>(i % 977) + 0.5F;
    }
  }
  auto snap = check(cache.snapshot());
  const std::size_t bytes = snap.bytes();
  auto from = check(dev.alloc(bytes));
  auto to = check(dev.alloc(bytes));
  std::memset(from.data(), 0x5a, bytes);
  std::vector<double> copy, into, back;
  for (int r = 0; r < runs; ++r) {
    copy.push_back(time_us([&] { check(dev.copy(to.data(), from.data(), bytes)); }));
    into.push_back(time_us([&] { check(cache.snapshot_into(snap)); }));
    back.push_back(time_us([&] { check(cache.rollback(snap, 0)); }));
  }
  if (cache.recur(0)->ssm[1] != 1.5F) return EXIT_FAILURE;
  std::printf("one copy of %zu bytes: %.0f us; snapshot_into %.3f of it, rollback %.3f of it\n", bytes, median(copy),
              median(into) / median(copy), median(back) / median(copy));
}
