// Captured decode and verify steps: positions on the device, hundreds of replays, rollbacks between them.
#include <memra/host_ops.hpp>
#include <support/catch.hpp>
#include <support/stand_in.hpp>

#include <support/kernel_model.hpp>
#include "gpu_ops.hpp"
#include "support.hpp"

namespace graph_cu {
namespace {

using namespace memra_test;
using memra::ErrorKind;

/// Records one step of `rows` rows at whatever position the device is at.
template <class Dev>
typename Dev::Graph record(KernelModel<Dev>& m, std::size_t rows) {
  memra::check(m.dev->begin_capture());
  auto step = memra::check(m.cache.begin_device_step(rows));
  memra::check(m.forward(step));
  memra::check(m.cache.advance_d());
  return memra::check(m.dev->end_capture());
}

template <class Dev>
void replay(KernelModel<Dev>& m, const typename Dev::Graph& g, std::size_t rows, std::size_t times) {
  for (std::size_t i = 0; i < times; ++i) memra::check(m.dev->replay(g));
  m.cache.replayed(rows * times);
}

/// Feeds `n` true tokens one by one, driven by the host.
template <class Dev>
std::unique_ptr<KernelModel<Dev>> straight_run(Dev& dev, std::size_t n, std::size_t max_ctx, memra::Layout layout) {
  auto m = std::make_unique<KernelModel<Dev>>(dev, max_ctx, layout);
  for (std::size_t i = 0; i < n; ++i) memra::check(m->feed(1));
  return m;
}

template <class Dev, class Oracle>
void long_run(Dev& dev, Oracle& oracle_dev, memra::Layout layout) {
  // Beyond one chunk of keys; where lanes are fibers, one must do (tuned.cpp has more).
  constexpr std::size_t end = emulated ? 130 : 420;
  constexpr std::size_t first = emulated ? 30 : 100;
  constexpr std::size_t max_ctx = end + 40;
  auto oracle = straight_run(oracle_dev, end, max_ctx, layout);
  KernelModel<Dev> m(dev, max_ctx, layout);
  const auto one = record(m, 1);
  const auto verify = record(m, 8);
  REQUIRE(m.cache.catch_up().ok());
  REQUIRE(m.cache.pos() == 0);  // recorded, not run

  replay(m, one, 1, first);
  REQUIRE(m.cache.pos_bound() == first);
  REQUIRE(m.cache.catch_up().ok());
  REQUIRE(m.cache.pos() == first);
  auto snap = memra::check(m.cache.snapshot());
  const auto* address = m.cache.kv(1)->k.data;
  std::size_t at = first;
  for (std::size_t round = 0; at < end - 20; ++round) {
    const std::size_t accept = 1 + round % 8;
    std::vector<std::int32_t> salts(8, 0);
    for (std::size_t i = accept; i < 8; ++i) salts[i] = static_cast<std::int32_t>(round + i);  // tokens that will fall
    m.salts(salts);
    replay(m, verify, 8, 1);
    m.salts({});
    const auto back = memra::check(m.cache.rollback(snap, accept));  // catches up by itself
    REQUIRE(back.pos == at);
    REQUIRE(back.replay == accept);
    if (round % 3 == 0 && accept == 8) {
      replay(m, verify, 8, 1);
    } else if (round % 3 == 1) {
      REQUIRE(m.feed(accept).ok());  // by the host
    } else {
      replay(m, one, 1, accept);
    }
    at += accept;
    REQUIRE(m.cache.snapshot_into(snap).ok());  // catches up by itself
    REQUIRE(m.cache.pos() == at);
  }
  replay(m, one, 1, end - at);
  REQUIRE(m.cache.catch_up().ok());
  REQUIRE(m.cache.kv(1)->k.data == address);
  const Image want = image(oracle->cache);
  const Image got = image(m.cache);
  INFO(difference(got, want));
  CHECK((got == want));
  const auto outputs = m.history(end);
  CHECK((outputs == oracle->history(end)));
  CHECK_FALSE((m.history(end - 1) == outputs));
}

TEST_CASE("portable kernels: graphs, rollbacks and replays give the host's bits", "[graph]") {
  for (const memra::Layout layout : {memra::Layout::blocks, memra::Layout::split}) {
    PortableGpu dev;
    memra::HostDev host;
    long_run(dev, host, layout);
  }
}

TEST_CASE("tuned kernels: graphs, rollbacks and replays give the bits of single steps", "[graph]") {
  for (const memra::Layout layout : {memra::Layout::blocks, memra::Layout::split}) {
    Gpu dev = make_gpu();
    Gpu other = make_gpu();
    long_run(dev, other, layout);
  }
}

TEST_CASE("a replay past max_ctx writes nothing and catch_up says so", "[graph][sanitize]") {
  Gpu dev = make_gpu();
  KernelModel<Gpu> m(dev, 30);
  const auto one = record(m, 1);
  const auto four = record(m, 4);
  replay(m, one, 1, 20);
  auto snap = memra::check(m.cache.snapshot());
  replay(m, four, 4, 2);
  REQUIRE(m.cache.catch_up().ok());
  REQUIRE(m.cache.pos() == 28);
  const Image before = image(m.cache);
  replay(m, four, 4, 3);  // 32 rows do not fit
  replay(m, one, 1, 5);   // inert from then on
  const memra::Status s = m.cache.catch_up();
  REQUIRE(s.kind() == ErrorKind::bad_state);
  REQUIRE(m.cache.tainted());
  REQUIRE(m.cache.pos() == 28);
  REQUIRE_FALSE(m.cache.begin_step(1).ok());
  Image after = image(m.cache);
  after.mirrors_agree = before.mirrors_agree;  // pos_d holds the mark
  REQUIRE((after == before));
  REQUIRE(memra::check(m.cache.rollback(snap, 8)).replay == 8);
  replay(m, four, 4, 2);
  REQUIRE(m.cache.catch_up().ok());
  REQUIRE((image(m.cache) == before));
}

}  // namespace
}  // namespace graph_cu
