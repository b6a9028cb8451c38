// A GPU from a plain C++ file: what the runtime's headers alone must give. No device compiler reads this.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/cache.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/host_dev.hpp>
#include <support/catch.hpp>
#include <support/stand_in.hpp>
#include <utility>
#include <vector>

#include "support.hpp"

namespace memra_device {

using memra::ErrorKind;
using namespace memra_test;
using Ints = std::vector<std::int32_t>;

const std::byte* bytes(const void* p) {
  return static_cast<const std::byte*>(p);
}
Ints download(Gpu& dev, const Gpu::Buffer& b) {
  Ints v(b.size() / 4);
  memra::check(dev.download(reinterpret_cast<std::byte*>(v.data()), b.data(), b.size()));
  return v;
}
Ints counting(std::size_t n) {
  Ints v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<std::int32_t>(i * 7 + 1);
  return v;
}
Gpu::Buffer filled(Gpu& dev, const Ints& v) {
  auto b = memra::check(dev.alloc(v.size() * 4));
  memra::check(dev.upload(b.data(), bytes(v.data()), v.size() * 4));
  return b;
}

TEST_CASE("S3 copy refuses overlap, move allows any", "[device]") {
  Gpu dev = make_gpu();
  const std::size_t n = 5000;
  for (const std::ptrdiff_t shift : {1, 4, 100, 4096, -1, -4, -100, -4096}) {
    const Ints start = counting(n);
    auto b = filled(dev, start);
    const std::size_t count = 4 * n - 4096;
    std::byte* src = b.data() + (shift < 0 ? -shift : 0);
    std::byte* dst = src + shift;
    const memra::Status refused = dev.copy(dst, src, count);
    REQUIRE(refused.kind() == ErrorKind::bad_argument);
    REQUIRE(download(dev, b) == start);
    memra::check(dev.move(dst, src, count));
    Ints want = start;
    auto* w = reinterpret_cast<std::byte*>(want.data());
    std::memmove(w + (dst - b.data()), w + (src - b.data()), count);
    REQUIRE((download(dev, b) == want));
  }
}

TEST_CASE("S9 upload and store_i32 have read their source", "[device]") {
  Gpu dev = make_gpu();
  auto b = memra::check(dev.zeros(64 << 20));
  auto other = memra::check(dev.alloc(64 << 20));
  for (int i = 0; i < 20; ++i) memra::check(dev.copy(other.data(), b.data(), b.size()));  // keeps the stream busy
  Ints big = counting((6 << 20) / 4);
  memra::check(dev.upload(b.data(), bytes(big.data()), big.size() * 4));
  const Ints want = big;
  for (std::int32_t& x : big) x = -1;
  Ints few = {5, 5, 5, -9, 7};
  memra::check(dev.store_i32(reinterpret_cast<std::int32_t*>(b.data()), few.data(), few.size()));
  few.assign(5, 0);
  Ints many = counting(1000);
  memra::check(dev.store_i32(reinterpret_cast<std::int32_t*>(b.data()) + 100, many.data(), many.size()));
  many.assign(1000, 0);
  Ints got = download(dev, b);
  REQUIRE((Ints(got.begin(), got.begin() + 5) == Ints{5, 5, 5, -9, 7}));
  REQUIRE((Ints(got.begin() + 100, got.begin() + 1100) == counting(1000)));
  REQUIRE((Ints(got.begin() + 1100, got.begin() + (6 << 20) / 4) ==
           Ints(want.begin() + 1100, want.begin() + (6 << 20) / 4)));
}

TEST_CASE("S5 failures: out of memory, sticky errors, moved-from", "[device]") {
  Gpu dev = make_gpu();
  const auto huge = dev.alloc(std::size_t{1} << 50);
  REQUIRE_FALSE(huge.ok());
  REQUIRE(huge.status().kind() == ErrorKind::out_of_memory);
  REQUIRE(huge.status().bytes() == std::size_t{1} << 50);
  REQUIRE(GpuApi::peek_last() == GpuApi::ok);  // nothing is left for the next caller to trip over
  auto small = dev.zeros(4096);
  REQUIRE(small.ok());
  const memra::Status bad = dev.copy(small->data(), reinterpret_cast<const std::byte*>(std::uintptr_t{64}), 64);
  const memra::Status after = dev.synchronize();
  REQUIRE((!bad.ok() || !after.ok() || true));  // the runtime may refuse it now or never; it must not be left pending
  REQUIRE(GpuApi::peek_last() == GpuApi::ok);
  Gpu taken(std::move(dev));
  REQUIRE(dev.synchronize().kind() == ErrorKind::bad_state);  // NOLINT(bugprone-use-after-move): that is the point
  REQUIRE(dev.alloc(1).status().kind() == ErrorKind::bad_state);
}

TEST_CASE("a buffer outlives its device object", "[device]") {
  Gpu other = make_gpu();
  Gpu::Buffer b;
  {
    Gpu dev = make_gpu();
    b = filled(dev, counting(100));
    memra::check(dev.synchronize());
  }
  REQUIRE((download(other, b) == counting(100)));
}

TEST_CASE("S1 S7 events and copies between streams are ordered", "[device]") {
  Gpu a = make_gpu();
  Gpu b = make_gpu();
  const std::size_t n = 32 << 20;
  auto x = memra::check(a.zeros(n));
  auto y = memra::check(a.zeros(n));
  auto z = memra::check(b.zeros(n));
  Gpu::Event e;
  memra::check(b.wait(e));  // never published: nothing to wait for
  for (int round = 1; round < 20; ++round) {
    memra::check(a.fill(x.data(), static_cast<std::byte>(round), n));
    memra::check(a.copy(y.data(), x.data(), n));
    memra::check(a.publish(e));
    memra::check(b.wait(e));
    memra::check(b.copy(z.data(), y.data(), n));
    memra::check(b.copy_peer(z.data(), a, y.data(), n));  // and the other way to order it
    memra::check(a.fill(y.data(), std::byte{0xEE}, n));   // after copy_peer has read it
    std::byte got[2] = {};
    memra::check(b.download(&got[0], z.data(), 1));
    memra::check(b.download(&got[1], z.data() + n - 1, 1));
    REQUIRE(got[0] == static_cast<std::byte>(round));
    REQUIRE(got[1] == static_cast<std::byte>(round));
  }
}

TEST_CASE("capture: what is refused inside, what is recorded", "[device]") {
  Gpu dev = make_gpu();
  auto b = filled(dev, counting(64));
  auto given_up = memra::check(dev.alloc(4096));
  memra::check(dev.begin_capture());
  REQUIRE(dev.alloc(16).status().kind() == ErrorKind::bad_state);
  REQUIRE(dev.upload(b.data(), b.data(), 4).kind() == ErrorKind::bad_state);
  REQUIRE(dev.synchronize().kind() == ErrorKind::bad_state);
  std::byte host{};
  REQUIRE(dev.download(&host, b.data(), 1).kind() == ErrorKind::bad_state);
  REQUIRE(dev.begin_capture().kind() == ErrorKind::bad_state);
  { const Gpu::Buffer gone(std::move(given_up)); }  // freed later, not at every replay
  const std::int32_t v[3] = {1000, 1001, 1002};
  memra::check(dev.store_i32(reinterpret_cast<std::int32_t*>(b.data()), v, 3));
  memra::check(dev.copy(b.data() + 128, b.data(), 12));
  memra::check(dev.move(b.data() + 4, b.data(), 8));
  const auto graph = memra::check(dev.end_capture());
  REQUIRE((download(dev, b) == counting(64)));  // recorded, not run
  memra::check(dev.replay(graph));
  const Ints once = download(dev, b);
  REQUIRE((Ints(once.begin(), once.begin() + 3) == Ints{1000, 1000, 1001}));
  REQUIRE((Ints(once.begin() + 32, once.begin() + 35) == Ints{1000, 1001, 1002}));
  memra::check(dev.fill(b.data(), std::byte{0}, b.size()));
  memra::check(dev.replay(graph));
  REQUIRE(download(dev, b)[33] == 1001);
  REQUIRE(dev.alloc(4096).ok());
  REQUIRE(dev.replay(Gpu::Graph()).kind() == ErrorKind::bad_argument);
}

TEST_CASE("copy_batch: pieces at equal distances go in one call, and every byte arrives", "[device]") {
  Gpu dev = make_gpu();
  constexpr std::size_t layers = 48;
  constexpr std::size_t pitch = 40000;
  const std::size_t sizes[] = {17408, 8704, 2176, 12};  // multiples of nothing in common
  auto src = filled(dev, counting(layers * pitch / 4));
  auto dst = memra::check(dev.zeros(layers * pitch));
  std::vector<memra::CopyItem> items;
  Ints want(layers * pitch / 4);
  auto* w = reinterpret_cast<std::byte*>(want.data());
  const Ints from = counting(layers * pitch / 4);
  for (std::size_t l = 0; l < layers; ++l) {
    std::size_t at = 0;
    for (const std::size_t n : sizes) {
      const std::size_t to = (layers - 1) * 256 + l * 30000 + at;  // another pitch
      const std::size_t odd = l == 20 && n == 2176 ? 4 : 0;        // a piece that is elsewhere
      items.push_back({dst.data() + to, src.data() + l * pitch + at + odd, n});
      std::memcpy(w + to, bytes(from.data()) + l * pitch + at + odd, n);
      at += n + 100;
    }
  }
  memra::check(dev.copy_batch(items.data(), items.size()));
  REQUIRE((download(dev, dst) == want));
  memra::check(dev.fill(dst.data(), std::byte{0}, dst.size()));
  memra::check(dev.begin_capture());
  memra::check(dev.copy_batch(items.data(), items.size()));
  const auto graph = memra::check(dev.end_capture());
  memra::check(dev.replay(graph));
  REQUIRE((download(dev, dst) == want));
  // Red arm: one piece from elsewhere is seen.
  items[77].src += 4;
  memra::check(dev.copy_batch(items.data(), items.size()));
  REQUIRE_FALSE((download(dev, dst) == want));
}

TEST_CASE("copy_batch: pieces of several allocations at equal distances", "[device]") {
  Gpu dev = make_gpu();
  constexpr std::size_t n = 4096;
  for (const std::size_t bytes : {std::size_t{n}, std::size_t{1} << 22}) {
    std::vector<Gpu::Buffer> parts;
    for (int i = 0; i < 8; ++i) parts.push_back(filled(dev, Ints(bytes / 4, i + 1)));
    std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.data() < b.data(); });
    std::size_t equal = 0;
    for (std::size_t i = 2; i < parts.size(); ++i) {
      equal += parts[i].data() - parts[i - 1].data() == parts[i - 1].data() - parts[i - 2].data();
    }
    if (equal == 0) WARN("no three allocations at equal distances: the case was not met");
    auto one = memra::check(dev.zeros(parts.size() * n));
    std::vector<memra::CopyItem> gather;
    std::vector<memra::CopyItem> scatter;
    Ints want;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      gather.push_back({one.data() + i * n, parts[i].data(), n});
      scatter.push_back({parts[parts.size() - 1 - i].data(), one.data() + i * n, n});
      const Ints part = download(dev, parts[i]);
      want.insert(want.end(), part.begin(), part.begin() + n / 4);
    }
    memra::check(dev.copy_batch(gather.data(), gather.size()));
    REQUIRE(GpuApi::peek_last() == GpuApi::ok);  // of the call that was refused nothing is left behind
    REQUIRE((download(dev, one) == want));
    memra::check(dev.copy_batch(scatter.data(), scatter.size()));  // turned: no pattern
    std::reverse(scatter.begin(), scatter.end());
    for (std::size_t i = 0; i < scatter.size(); ++i) scatter[i].src = one.data() + i * n;
    memra::check(dev.begin_capture());
    memra::check(dev.copy_batch(scatter.data(), scatter.size()));
    const auto graph = memra::check(dev.end_capture());
    memra::check(dev.replay(graph));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Ints part = download(dev, parts[i]);
      REQUIRE((Ints(part.begin(), part.begin() + n / 4) ==
               Ints(want.begin() + static_cast<std::ptrdiff_t>(i * n / 4),
                    want.begin() + static_cast<std::ptrdiff_t>((i + 1) * n / 4))));
    }
    memra::check(dev.copy(parts[5].data(), parts[4].data(), n));  // red arm: one piece from elsewhere is seen
    memra::check(dev.copy_batch(gather.data(), gather.size()));
    REQUIRE_FALSE((download(dev, one) == want));
  }
}

TEST_CASE("the caller's current device is put back", "[device]") {
  int n = 0;
  REQUIRE(Native::count(&n));
  Gpu::Options last;
  last.ordinal = n - 1;
  Gpu dev = make_gpu_with(last);
  REQUIRE(GpuApi::set_device(0) == GpuApi::ok);
  { auto b = memra::check(dev.zeros(1000)); }
  int now = -1;
  REQUIRE(GpuApi::get_device(&now) == GpuApi::ok);
  REQUIRE(now == 0);
}

TEST_CASE("rollback, snapshots and stages on the GPU equal the oracle", "[cache]") {
  const Tokens t = memra_test::stream(64);
  const Tokens wrong = memra_test::stream(64, 9);
  for (const auto& cfg : {hybrid_model(), attention_model(), recurrent_model()}) {
    Gpu d0 = make_gpu();
    Gpu d1 = make_gpu();
    for (const bool two : {false, true}) {
      auto cache = memra::check(two ? memra::Cache<Gpu>::create_pp2(d0, d1, cfg.layers.size() / 2, cfg, 64)
                                    : memra::Cache<Gpu>::create(d0, cfg, 64));
      REQUIRE(feed_by(cache, part(t, 0, 30), 8).ok());
      auto snap = memra::check(cache.snapshot());
      for (std::size_t round = 0; round < 4; ++round) {
        const std::size_t at = 30 + round * 5;
        REQUIRE(feed(cache, join(part(t, at, 5), part(wrong, at + 5, 3))).ok());
        const auto r = memra::check(cache.rollback(snap, 5));
        if (r.replay != 0) REQUIRE(feed(cache, part(t, at, 5)).ok());
        REQUIRE((image(cache) == straight(cfg, part(t, 0, at + 5))));
        REQUIRE(cache.snapshot_into(snap).ok());
      }
      const auto prefix = memra::check(cache.export_prefix(snap));
      const auto restored = memra::check(memra::Cache<Gpu>::from_prefix(d1, cfg, 70, prefix));
      REQUIRE((image(restored) == straight(cfg, part(t, 0, 50))));
      auto one = image(restored);  // red arm: one changed byte shows
      if (cache.recur(0)) {
        spoil(d1, restored.recur(0)->ssm);
        REQUIRE_FALSE((image(restored) == one));
      }
    }
  }
}

TEST_CASE("a plane above 4 GiB", "[large]") {
  std::size_t free_bytes = 0;
  std::size_t total = 0;
  REQUIRE(Native::memory(&free_bytes, &total));
  if (free_bytes < (std::size_t{16} << 30)) {
    WARN("SKIPPED: less than 16 GiB free on this device");
    return;
  }
  Gpu dev = make_gpu();
  const std::size_t n = (std::size_t{5} << 30) + 4096;
  auto a = memra::check(dev.alloc(n));
  auto b = memra::check(dev.zeros(n));
  memra::check(dev.fill(a.data(), std::byte{1}, n));
  const Ints mark = counting(16);
  memra::check(dev.upload(a.data() + n - 64, bytes(mark.data()), 64));
  memra::check(dev.copy(b.data(), a.data(), n));
  memra::check(dev.move(b.data() + 64, b.data(), n - 64));  // every byte crosses 2^32 by a bounce
  Ints got(16);
  memra::check(dev.download(reinterpret_cast<std::byte*>(got.data()), b.data() + n - 64, 64));
  REQUIRE((got == Ints(16, 0x01010101)));
  memra::check(dev.copy(b.data(), a.data(), n));
  memra::check(dev.download(reinterpret_cast<std::byte*>(got.data()), b.data() + n - 64, 64));
  REQUIRE((got == mark));
}

}  // namespace memra_device
