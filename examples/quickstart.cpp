#include <cstdio>
#include <memra/memra.hpp>
#include <vector>

int main() {
  memra::HostDev dev;
  memra::ModelConfig model;  // one linear-attention layer, one full-attention layer with q8_0 keys and q5_1 values
  model.layers = {memra::recurrent({.n_k_heads = 2, .n_v_heads = 4, .d_k = 64, .d_v = 64, .d_conv = 4}),
                  memra::full_attention({.n_heads = 4, .n_kv_heads = 2, .head_dim_k = 64, .head_dim_v = 64})};
  auto cache = check(memra::Cache<memra::HostDev>::create(dev, model, 4096));
  const memra::ops_for<memra::HostDev> ops(dev);
  const std::vector<float> k(8 * 128, 0.5F), v(8 * 128, 0.25F);

  const auto forward = [&](std::size_t rows) {  // your model goes here: it writes the state of every layer once
    auto step = check(cache.begin_step(rows));
    const memra::RecurView state = check(step.recur(0));
    state.ssm[0] += static_cast<float>(rows);
    check(ops.append(check(step.kv_write(1)), k.data(), v.data()));
    check(cache.advance());
  };

  forward(5);                                        // the prompt
  auto snap = check(cache.snapshot());               // one copy of the recurrent state
  forward(8);                                        // verify eight drafted tokens
  const auto back = check(cache.rollback(snap, 3));  // three were right
  forward(back.replay);                              // the recurrent layers see them again
  std::printf("%zu tokens, state %g; %zu bytes a token, %zu bytes a snapshot\n", cache.pos(),
              static_cast<double>(cache.recur(0)->ssm[0]), cache.plan().totals.bytes_per_token, snap.bytes());
  std::puts(cache.begin_step(5000).status().message().c_str());
}
