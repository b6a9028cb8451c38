// Streams: two caches on two of them, a cache used from one that is not its own, stages on two; and what goes wrong
// without the events.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memra/cache.hpp>
#include <support/catch.hpp>
#include <support/kernel_model.hpp>
#include <support/stand_in.hpp>
#include <vector>

#include "gpu_ops.hpp"
#include "support.hpp"

namespace streams_cu {
namespace {

using memra::check;
using namespace memra_test;

constexpr std::size_t n_tokens = 60;
constexpr std::size_t n_rows = 64;

/// The model fed one true token after the other on one device.
std::unique_ptr<KernelModel<Gpu>> straight_run(Gpu& dev) {
  auto m = std::make_unique<KernelModel<Gpu>>(dev, n_rows);
  for (std::size_t i = 0; i < n_tokens; ++i) check(m->feed(1));
  return m;
}

TEST_CASE("two caches on two streams of one device", "[streams][sanitize]") {
  Gpu a = make_gpu();
  Gpu b = make_gpu();
  REQUIRE(a.stream() != b.stream());
  const auto oracle = straight_run(a);
  const Image want = image(oracle->cache);
  KernelModel<Gpu> x(a, n_rows);
  KernelModel<Gpu> y(b, n_rows);
  for (std::size_t i = 0; i < n_tokens; i += 4) {
    REQUIRE(x.feed(4).ok());
    REQUIRE(y.feed(4).ok());
  }
  REQUIRE((image(x.cache) == want));
  REQUIRE((image(y.cache) == want));
  REQUIRE((x.history(n_tokens) == oracle->history(n_tokens)));
  REQUIRE((y.history(n_tokens) == oracle->history(n_tokens)));
  spoil(b, y.cache.kv(1)->k.data);  // red arm; and x does not share it
  REQUIRE_FALSE((image(y.cache) == want));
  REQUIRE((image(x.cache) == want));
}

/// One step whose kernels run on `f` while the cache's own work is on `own`: each waits for the other.
memra::Status feed_from(KernelModel<Gpu>& m, Gpu& own, Gpu& f, std::size_t rows, Gpu::Event& ready,
                        Gpu::Event& written) {
  auto step = m.cache.begin_step(rows);
  if (!step) return step.status();
  if (auto s = own.publish(ready); !s) return s;  // positions, and what a rollback or a snapshot still does
  if (auto s = f.wait(ready); !s) return s;
  if (auto s = m.forward(*step); !s) return s;
  if (auto s = f.publish(written); !s) return s;
  if (auto s = own.wait(written); !s) return s;
  return m.cache.advance();
}

TEST_CASE("a cache used from a stream that is not its own", "[streams]") {
  GpuApi::Stream engine = nullptr;
  REQUIRE(GpuApi::create_stream(&engine) == GpuApi::ok);
  {
    Gpu own = make_gpu();
    Gpu::Options options;
    options.stream = engine;
    Gpu f = check(Gpu::create(options));
    const auto oracle = straight_run(own);
    Gpu::Event ready;
    Gpu::Event written;
    // The model launches on f; its cache lives on `own`.
    KernelModel<Gpu> m(f, check(memra::Cache<Gpu>::create(own, kernel_config(), n_rows)));
    auto snap = check(m.cache.snapshot());
    for (std::size_t at = 0; at < n_tokens;) {
      // Eight rows of which the last ones are wrong, taken back, and the right ones again.
      const std::size_t accept = std::min(1 + at % 4, n_tokens - at);
      std::vector<std::int32_t> salts(8, 0);
      for (std::size_t i = accept; i < 8; ++i) salts[i] = static_cast<std::int32_t>(at + i + 1);
      if (at + 8 <= n_rows) {
        m.salts(salts);
        REQUIRE(feed_from(m, own, f, 8, ready, written).ok());
        m.salts({});
        REQUIRE(check(m.cache.rollback(snap, accept)).replay == accept);
      }
      REQUIRE(feed_from(m, own, f, accept, ready, written).ok());
      at += accept;
      REQUIRE(m.cache.snapshot_into(snap).ok());
    }
    const Image got = image(m.cache);
    const Image want = image(oracle->cache);
    INFO(difference(got, want));
    REQUIRE((got == want));
    check(f.synchronize());
    REQUIRE((m.history(n_tokens) == oracle->history(n_tokens)));
  }
  REQUIRE(GpuApi::destroy_stream(engine) == GpuApi::ok);
}

TEST_CASE("a reader on another stream: with the event it sees the rows, without it what was there before",
          "[streams]") {
  Gpu own = make_gpu();
  Gpu reader = make_gpu();
  const auto oracle = straight_run(own);
  KernelModel<Gpu> m(own, n_rows);
  const auto layer = *m.cache.kv(1);
  const std::size_t width = layer.k.shape.width;
  auto out = check(reader.alloc(n_tokens * width * 4));
  const auto read = [&](const memra::ConstPlaneView& k) {
    check(memra::ops_for<Gpu>(reader).read_rows(k, 0, n_tokens, reinterpret_cast<float*>(out.data())));
  };
  const auto got = [&] {
    std::vector<float> x(n_tokens * width);
    check(reader.download(reinterpret_cast<std::byte*>(x.data()), out.data(), x.size() * 4));
    return x;
  };
  check(own.synchronize());
  read(oracle->cache.kv(1)->k);
  const std::vector<float> want = got();
  const auto fill = [&] {
    REQUIRE(m.cache.reset().ok());
    for (std::size_t i = 0; i < n_tokens; i += 6) REQUIRE(m.feed(6).ok());
  };
  const auto clear = [&] {
    check(own.fill(const_cast<std::byte*>(layer.k.data), std::byte{0}, memra::sub_planes(layer.k.shape).bytes));
    check(own.synchronize());
  };
  fill();  // everything has run once
  clear();
  Gpu::Event written;
  for (int round = 0; round < 10; ++round) {
    {
      Hold hold(own.stream());
      REQUIRE(hold.held());
      fill();
      check(own.publish(written));
      read(layer.k);
      REQUIRE((got() == std::vector<float>(n_tokens * width)));  // red arm: not ordered, so nothing is there yet
      check(reader.wait(written));
      read(layer.k);
      REQUIRE(Native::busy(reader.stream()));
      (void)GpuApi::take_last();  // the answer counts as an error
      hold.release();
      REQUIRE((got() == want));
    }
    clear();
  }
  REQUIRE(GpuApi::take_last() == GpuApi::ok);
}

TEST_CASE("create_pp2 over two streams gives the bits of one", "[streams]") {
  Gpu a = make_gpu();
  Gpu b = make_gpu();
  const auto oracle = straight_run(a);
  for (const std::size_t split : {std::size_t{1}, std::size_t{2}, std::size_t{3}}) {
    auto cache = check(memra::Cache<Gpu>::create_pp2(a, b, split, kernel_config(), n_rows));
    // Each stage's model is fed on its own stream: nothing orders the two but what the layers themselves need, which
    // here is nothing, since every input is computed from the position.
    KernelModel<Gpu> first(a, check(memra::Cache<Gpu>::create(a, kernel_config(), n_rows)));
    KernelModel<Gpu> second(b, check(memra::Cache<Gpu>::create(b, kernel_config(), n_rows)));
    for (std::size_t i = 0; i < n_tokens; i += 5) {
      auto step = check(cache.begin_step(5));
      REQUIRE(first.forward(step, 0, split).ok());
      REQUIRE(second.forward(step, split, 4).ok());
      REQUIRE(cache.advance().ok());
    }
    const Image got = image(cache);
    const Image want = image(oracle->cache);
    INFO(difference(got, want));
    REQUIRE((got == want));
    spoil(b, cache.kv(3)->v.data);
    REQUIRE_FALSE((image(cache) == want));
  }
}

}  // namespace
}  // namespace streams_cu
