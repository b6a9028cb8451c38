// Rounds on the portable kernels: the bits of the host's kernels, for every strategy and accept length.
#include <cstring>
#include <memra/cache.hpp>
#include <memra/portable_ops.hpp>
#include <string>
#include <support/catch.hpp>
#include <support/op_model.hpp>
#include <vector>

namespace round_portable_cpp {
namespace {

using memra::Strategy;
using memra_test::OpModel;
using memra_test::Token;

struct PortableHost : memra::HostDev {
  using kernels = memra::PortableKernels;
};

memra::ModelConfig model() {
  memra::ModelConfig m;
  m.layers = {memra::recurrent({.n_k_heads = 2, .n_v_heads = 4, .d_k = 20, .d_v = 6, .d_conv = 4}),
              memra::full_attention({.n_heads = 4, .n_kv_heads = 2, .head_dim_k = 32, .head_dim_v = 32}),
              memra::recurrent({.n_k_heads = 1, .n_v_heads = 3, .d_k = 16, .d_v = 5, .d_conv = 7})};
  return m;
}

/// Outputs of every round and the state at the end, as bytes.
template <class Dev>
std::string history(Strategy by) {
  Dev dev;
  memra::CacheOptions options;
  options.rounds.rows = 5;
  options.rounds.replay = options.rounds.planes = options.rounds.stash = true;
  auto cache = memra::check(memra::Cache<Dev>::create(dev, model(), 200, options));
  const OpModel m(model());
  std::string all;
  std::vector<float> out;
  Token next = 1;
  for (std::size_t turn = 0; turn < 18; ++turn) {
    const std::size_t rows = 1 + turn % 5;
    std::vector<Token> tokens;
    for (std::size_t i = 0; i < rows; ++i) tokens.push_back(next++);
    auto round = memra::check(cache.begin_round(rows, by));
    memra::check(m.forward(cache, round.step(), tokens, out));
    all.append(reinterpret_cast<const char*>(out.data()), out.size() * sizeof(float));
    memra::check(round.commit(turn % (rows + 1)));
  }
  auto snap = memra::check(cache.snapshot());  // brings the planes home
  for (const std::size_t il : {0U, 2U}) {
    const memra::RecurLayer layer = *cache.recur(il);
    all.append(reinterpret_cast<const char*>(layer.conv), layer.conv_elems() * sizeof(float));
    all.append(reinterpret_cast<const char*>(layer.ssm), layer.ssm_elems() * sizeof(float));
  }
  return all + std::to_string(cache.pos());
}

TEST_CASE("rounds by planes and stash on portable kernels give the host's bits", "[identity]") {
  for (const Strategy by : {Strategy::planes, Strategy::stash}) {
    const std::string host = history<memra::HostDev>(by);
    const std::string portable = history<PortableHost>(by);
    REQUIRE(host.size() > 1000);
    CHECK((host == portable));
  }
  CHECK((history<memra::HostDev>(Strategy::planes) == history<PortableHost>(Strategy::stash)));
}

}  // namespace
}  // namespace round_portable_cpp
