// Rounds on other kinds of devices: behind AnyDev, over two at once, and on one that has no kernels.
#include <concepts/minimal_dev.hpp>
#include <cstddef>
#include <memra/any_dev.hpp>
#include <memra/cache.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <support/catch.hpp>
#include <support/op_model.hpp>
#include <support/stand_in.hpp>
#include <vector>

namespace round_kinds_cpp {
namespace {

using memra::ErrorKind;
using memra::Strategy;
using memra_test::all_rounds;
using memra_test::image;
using memra_test::join;
using memra_test::OpModel;
using memra_test::part;
using memra_test::stream;
using memra_test::Tokens;

TEST_CASE("rounds behind AnyDev leave what the devices themselves would", "[round]") {
  const OpModel m(memra_test::round_hybrid());
  const Tokens t = stream(30);
  memra::HostDev a, b;
  memra::AnyDev any_a(a), any_b(b);
  auto c = memra::check(memra::Cache<memra::AnyDev>::create_pp2(any_a, any_b, 3, m.config(), 40, all_rounds(6)));
  auto plain = memra::check(memra::Cache<memra::HostDev>::create(a, m.config(), 40));
  REQUIRE(m.feed(c, part(t, 0, 5)).ok());
  std::size_t at = 5;
  for (const Strategy by : {Strategy::planes, Strategy::stash, Strategy::replay, Strategy::planes}) {
    auto r = memra::check(c.begin_round(6, by));
    std::vector<float> out;
    const Tokens block = join(part(t, at, 4), stream(2, 9));
    REQUIRE(m.forward(c, r.step(), block, out).ok());
    const auto left = memra::check(r.commit(4));
    if (left.replay != 0) REQUIRE(m.feed(c, part(block, 0, left.replay)).ok());
    at += 4;
  }
  REQUIRE(m.feed(plain, part(t, 0, at)).ok());
  REQUIRE(image(c) == image(plain));
}

TEST_CASE("a device without kernels runs replay rounds; planes and stash are refused", "[round]") {
  memra_test::MinimalDev dev;
  const auto cfg = memra_test::hybrid_model();
  const Tokens t = stream(20);
  auto c = memra::check(memra::Cache<memra_test::MinimalDev>::create(dev, cfg, 40, all_rounds(6)));
  REQUIRE(memra_test::feed(c, part(t, 0, 5)).ok());
  REQUIRE(c.begin_round(4, Strategy::planes).status().kind() == ErrorKind::unsupported);
  REQUIRE(c.begin_round(4, Strategy::stash).status().kind() == ErrorKind::unsupported);
  auto r = memra::check(c.begin_round(4, Strategy::replay));
  REQUIRE(memra_test::stand_in::forward(c, r.step(), join(part(t, 5, 3), stream(1, 9))).ok());
  REQUIRE(memra::check(r.commit(3)).replay == 3);
  REQUIRE(memra_test::feed(c, part(t, 5, 3)).ok());
  REQUIRE(image(c) == memra_test::straight(cfg, part(t, 0, 8)));
  REQUIRE(memra_test::feed(c, part(t, 8, 2)).ok());
  REQUIRE(image(c) == memra_test::straight(cfg, part(t, 0, 10)));
}

}  // namespace
}  // namespace round_kinds_cpp
