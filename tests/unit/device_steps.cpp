// Steps whose positions move on the device, on a device without capture: each is run where a graph would replay it.
#include <memra/host_ops.hpp>
#include <memra/portable_ops.hpp>
#include <string>
#include <support/catch.hpp>
#include <support/kernel_model.hpp>
#include <support/says.hpp>
#include <support/stand_in.hpp>

namespace device_steps_cpp {
namespace {

using memra::ErrorKind;
using memra::HostDev;
using namespace memra_test;

struct PortableHost : HostDev {
  using kernels = memra::PortableKernels;
};

/// What a replay of a recorded step of `rows` rows does.
template <class Dev>
void replay(KernelModel<Dev>& m, std::size_t rows) {
  auto step = memra::check(m.cache.begin_device_step(rows));
  memra::check(m.forward(step));
  memra::check(m.cache.advance_d());
}

template <class Dev>
void device_steps_equal_host_steps() {
  Dev dev;
  KernelModel<Dev> host_driven(dev, 64);
  for (int i = 0; i < 40; ++i) REQUIRE(host_driven.feed(1).ok());
  KernelModel<Dev> m(dev, 64);
  replay(m, 8);
  replay(m, 8);
  REQUIRE(m.cache.pos() == 0);  // stale
  REQUIRE(m.cache.pos_bound() == 16);
  auto snap = memra::check(m.cache.snapshot());  // catches up
  REQUIRE(m.cache.pos() == 16);
  m.salts({0, 0, 0, 5, 5, 5, 5, 5});
  replay(m, 8);
  m.salts({});
  REQUIRE(memra::check(m.cache.rollback(snap, 3)).replay == 3);
  replay(m, 3);
  for (int i = 0; i < 3; ++i) replay(m, 7);
  REQUIRE(m.cache.catch_up().ok());
  REQUIRE((image(m.cache) == image(host_driven.cache)));
  REQUIRE((m.history(40) == host_driven.history(40)));
}

TEST_CASE("device steps, rollbacks between them, and host steps give the same state") {
  device_steps_equal_host_steps<HostDev>();
  device_steps_equal_host_steps<PortableHost>();
}

TEST_CASE("a device step past max_ctx changes nothing and is reported") {
  HostDev dev;
  KernelModel<HostDev> m(dev, 20);
  replay(m, 8);
  auto snap = memra::check(m.cache.snapshot());
  replay(m, 8);
  REQUIRE(m.cache.catch_up().ok());
  const Image before = image(m.cache);
  replay(m, 8);  // 24 rows do not fit
  replay(m, 1);  // inert from then on
  REQUIRE(m.cache.pos_bound() == 20);
  REQUIRE(m.cache.catch_up().kind() == ErrorKind::bad_state);
  REQUIRE(m.cache.tainted());
  REQUIRE(m.cache.pos() == 16);
  const memra::Status refused = m.cache.begin_device_step(1).status();
  REQUIRE(refused.kind() == ErrorKind::bad_state);
  REQUIRE(std::string(refused.text()).find("tainted by a step on the device that would have passed max_ctx") !=
          std::string::npos);
  Image after = image(m.cache);
  after.mirrors_agree = before.mirrors_agree;  // pos_d holds the mark
  REQUIRE((after == before));
  REQUIRE(memra::check(m.cache.rollback(snap, 8)).replay == 8);
  REQUIRE(m.feed(8).ok());
  REQUIRE((image(m.cache) == before));
}

TEST_CASE("R5 the host does not count a device step whose rows do not all fit where it turned out to be") {
  HostDev dev;
  KernelModel<HostDev> m(dev, 20);
  for (int i = 0; i < 2; ++i) REQUIRE(m.feed(8).ok());
  auto snap = memra::check(m.cache.snapshot());
  REQUIRE(m.feed(2).ok());
  const Image before = image(m.cache);
  auto step = memra::check(m.cache.begin_device_step(3));
  REQUIRE(m.forward(step).ok());
  REQUIRE(says(m.cache.advance(), ErrorKind::bad_state, "3 rows at position 18; 2 fit below max_ctx 20"));
  REQUIRE(m.cache.pos() == 18);
  REQUIRE(m.cache.begin_step(3).status().kind() == ErrorKind::bad_argument);
  REQUIRE(memra::check(m.cache.rollback(snap, 2)).replay == 2);
  REQUIRE(m.feed(2).ok());
  REQUIRE((image(m.cache) == before));
  step = memra::check(m.cache.begin_device_step(2));
  REQUIRE(m.forward(step).ok());
  REQUIRE(m.cache.advance().ok());  // as many as fit
  REQUIRE(m.cache.pos() == 20);
}

TEST_CASE("device steps refuse what they cannot do") {
  HostDev dev;
  KernelModel<HostDev> m(dev, 20);
  REQUIRE(m.cache.begin_device_step(0).status().kind() == ErrorKind::bad_argument);
  REQUIRE(m.cache.begin_device_step(21).status().kind() == ErrorKind::bad_argument);
  REQUIRE(m.cache.advance_d().kind() == ErrorKind::bad_state);
  const auto step = m.cache.begin_device_step(1);
  REQUIRE(step.ok());
  REQUIRE(m.cache.advance_d().kind() == ErrorKind::bad_state);  // no layer was written
  REQUIRE(m.cache.begin_device_step(1).status().kind() == ErrorKind::bad_state);
}

}  // namespace
}  // namespace device_steps_cpp
