// Two GPUs: every plane on its stage's device, the bits of one GPU, and copies between them in the order of both.
#include <chrono>
#include <cstdio>
#include <memra/dflash_kv.hpp>
#include <memra/round.hpp>
#include <optional>
#include <string>
#include <support/catch.hpp>
#include <support/kernel_model.hpp>
#include <support/stand_in.hpp>
#include <vector>

#include "gpu_ops.hpp"
#include "support.hpp"

namespace two_gpus {

using namespace memra_test;
using memra::Strategy;
using Cache = memra::Cache<Gpu>;
using Model = KernelModel<Gpu>;

/// Keeps the stream busy for about so many cycles.
struct SpinBody {
  long long cycles;
  MEMRA_HD void operator()(const memra::Item&) const {
#if MEMRA_ON_DEVICE()
    const long long start = clock64();
    while (clock64() - start < cycles) {
    }
#endif
  }
};
struct ReadBody {
  const std::uint8_t* from;
  std::uint8_t* to;
  MEMRA_HD void operator()(const memra::Item& item) const { to[item.x] = from[item.x]; }
};

inline void delay(Gpu& dev) {
  memra::check(memra::launch(dev, "spin", {1, 1, 1}, SpinBody{60'000'000}));  // some 30 ms
}

/// Device objects on GPU 0 and on GPU 1; on a machine with one GPU both are on it, which is said.
struct Pair {
  explicit Pair(bool direct = true) : dev{made(0, direct), made(1, direct)} {}

  static int count() {
    int n = 0;
    if (!Native::count(&n)) n = 0;
    if (n < 2) std::printf("  SKIPPED HERE: two GPUs: this machine has %d; both device objects share it\n", n);
    return n;
  }
  Gpu made(std::size_t i, bool direct) const {
    Gpu::Options o;
    o.ordinal = ordinal(i);
    o.direct_peers = direct;
    return memra::check(Gpu::create(o));
  }
  int ordinal(std::size_t i) const { return gpus < 2 ? 0 : static_cast<int>(i); }

  int gpus = count();
  Gpu dev[2];
};

inline int gpu_of(const void* p) {
  int ordinal = -1;
  REQUIRE(Native::device_of(p, &ordinal));
  return ordinal;
}

struct Place {
  const char* name;
  std::vector<std::size_t> devices;
  std::vector<std::size_t> fence;
};
inline std::vector<Place> places() {
  return {{"GPU 0", {0}, {0, 4}},
          {"GPU 1", {1}, {0, 4}},
          {"two stages", {0, 1}, {0, 2, 4}},
          {"the other way round, layers past the fence", {1, 0}, {0, 1, 3}},
          {"four stages, back and forth", {0, 1, 0, 1}, {0, 1, 2, 3, 4}},
          {"an empty stage between", {0, 1, 0}, {0, 3, 3, 4}}};
}

constexpr std::size_t max_ctx = 128;

inline memra::ModelConfig model() {
  memra::ModelConfig cfg = kernel_config(memra::Layout::split);
  cfg.n_vocab = 64;
  return cfg;
}
inline memra::CacheOptions rounds() {
  memra::CacheOptions o;
  o.rounds.rows = 8;
  o.rounds.replay = o.rounds.planes = o.rounds.stash = true;
  return o;
}

inline std::vector<Gpu*> devs_of(Pair& pair, const Place& p) {
  std::vector<Gpu*> devs;
  for (const std::size_t d : p.devices) devs.push_back(&pair.dev[d]);
  return devs;
}
inline Cache make(Pair& pair, const Place& p) {
  const auto devs = devs_of(pair, p);
  if (devs.size() == 2 && p.fence.back() == 4) {
    return memra::check(Cache::create_pp2(*devs[0], *devs[1], p.fence[1], model(), max_ctx, rounds()));
  }
  return memra::check(Cache::create_ppn(devs, p.fence, model(), max_ctx, rounds()));
}

/// A round of six rows of which the last ones stand for other tokens than the true ones.
inline memra::Round<Gpu> verify(Model& m, Strategy by, std::size_t accept) {
  std::vector<std::int32_t> salts(8, 0);
  for (std::size_t i = accept; i < 6; ++i) salts[i] = static_cast<std::int32_t>(i + 17);
  m.salts(salts);
  auto round = memra::check(m.cache.begin_round(6, by));
  memra::check(m.forward(round.step()));
  m.salts({});
  return round;
}

/// Prompt, rollback, rounds of every strategy with the accept by value and on the devices; ends at rest.
inline void script(Model& m) {
  for (const std::size_t rows : {5, 8}) REQUIRE(m.feed(rows).ok());
  auto snap = memra::check(m.cache.snapshot());
  m.salts({0, 0, 0, 9, 9, 9, 9, 9});
  REQUIRE(m.feed(8).ok());
  m.salts({});
  const auto back = memra::check(m.cache.rollback(snap, 3));
  REQUIRE(back.replay == 3);
  REQUIRE(m.feed(3).ok());
  std::size_t at = 16;
  for (const Strategy by : {Strategy::replay, Strategy::planes, Strategy::stash}) {
    for (const std::size_t accept : {4, 0, 6}) {
      auto round = verify(m, by, accept);
      const auto left = memra::check(round.commit(accept));
      if (left.replay != 0) REQUIRE(m.feed(left.replay).ok());
      at += accept;
      REQUIRE(m.cache.pos() == at);
    }
  }
  for (const Strategy by : {Strategy::planes, Strategy::stash}) {
    for (const std::int32_t accept : {2, 5}) {
      std::vector<Gpu::Buffer> words;  // one on every stage's device
      std::vector<const std::int32_t*> accept_d;
      for (std::size_t s = 0; s < m.cache.n_stages(); ++s) {
        words.push_back(memra::check(m.cache.stage_dev(s).alloc(4)));
        auto* word = reinterpret_cast<std::int32_t*>(words.back().data());
        memra::check(m.cache.stage_dev(s).store_i32(word, &accept, 1));
        accept_d.push_back(word);
      }
      auto round = verify(m, by, static_cast<std::size_t>(accept));
      REQUIRE(round.commit_d(accept_d).ok());
      REQUIRE(m.cache.catch_up().ok());
      at += static_cast<std::size_t>(accept);
      REQUIRE(m.cache.pos() == at);
    }
  }
  REQUIRE(m.feed(7).ok());
  REQUIRE(m.cache.snapshot_into(snap).ok());
}

/// Rows [first, end) of every layer's outputs.
inline std::vector<std::byte> outputs(Model& m, std::size_t first, std::size_t end) {
  const std::vector<std::byte> all = m.history(end);
  const std::size_t row = Model::widest * 4;
  std::vector<std::byte> some;
  for (std::size_t il = 0; il < 4; ++il) {
    const std::byte* layer = all.data() + il * end * row;
    some.insert(some.end(), layer + first * row, layer + end * row);
  }
  return some;
}

TEST_CASE("every plane lives on the GPU of its stage", "[two]") {
  Pair pair;
  for (const Place& p : places()) {
    INFO(p.name);
    Model m(pair.dev[p.devices[0]], make(pair, p));
    Cache& c = m.cache;
    REQUIRE(m.feed(5).ok());
    for (std::size_t s = 0; s < c.n_stages(); ++s) REQUIRE(gpu_of(c.pos_d(s)) == pair.ordinal(p.devices[s]));
    auto round = memra::check(c.begin_round(3, Strategy::planes));
    for (std::size_t il = 0; il < 4; ++il) {
      const int want = pair.ordinal(p.devices[c.stage_of(il)]);
      REQUIRE(c.dev(il).ordinal() == want);
      if (const auto kv = c.kv(il)) {
        REQUIRE(gpu_of(kv->k.data) == want);
        REQUIRE(gpu_of(kv->v.data) == want);
      }
      if (il % 2 != 0) continue;
      const memra::RecurView r = memra::check(round.recur(il));
      REQUIRE(gpu_of(r.conv) == want);
      REQUIRE(gpu_of(r.ssm) == want);
      REQUIRE(gpu_of(r.round.planes) == want);
      REQUIRE(gpu_of(r.round.conv_rows) == want);
      REQUIRE(gpu_of(r.round.plane_d) == want);
    }
    REQUIRE(round.abandon().ok());
    auto row = memra::check(c.stage_dev(c.n_stages() - 1).zeros(64 * 4));
    REQUIRE(c.park_logits(reinterpret_cast<const float*>(row.data())).ok());
    REQUIRE(gpu_of(c.last_logits_dev()->data) == pair.ordinal(p.devices.back()));
  }
}

/// An engine's allocator that notes what it gave, and that it was asked with the right GPU current.
struct NotingAllocator {
  int ordinal = 0;
  std::vector<std::size_t> given;
  bool right_gpu = true;
  void* allocate(GpuApi::Stream, std::size_t n, std::size_t) noexcept {
    int current = -1;
    void* p = nullptr;
    right_gpu = right_gpu && GpuApi::get_device(&current) == GpuApi::ok && current == ordinal;
    if (!Native::allocate(&p, n)) return nullptr;
    given.push_back(n);
    return p;
  }
  void deallocate(GpuApi::Stream, void* p, std::size_t, std::size_t) noexcept { Native::release(p); }
};

TEST_CASE("snapshots and prefixes take what their layers' owners plan, on those GPUs", "[two]") {
  Pair pair;
  NotingAllocator memory[2] = {{pair.ordinal(0), {}}, {pair.ordinal(1), {}}};
  Gpu::Options o[2];
  for (std::size_t i = 0; i < 2; ++i) o[i].ordinal = pair.ordinal(i);
  Gpu devs[2] = {memra::check(Gpu::adopt(memory[0], o[0])), memra::check(Gpu::adopt(memory[1], o[1]))};
  Model m(devs[0], memra::check(Cache::create_pp2(devs[0], devs[1], 1, model(), max_ctx)));
  REQUIRE(m.feed(8).ok());
  for (NotingAllocator& a : memory) a.given.clear();
  auto snap = memra::check(m.cache.snapshot());
  for (std::size_t d = 0; d < 2; ++d) REQUIRE((memory[d].given == std::vector{m.cache.plan().devices[d].state_bytes}));
  for (NotingAllocator& a : memory) a.given.clear();
  auto prefix = memra::check(m.cache.export_prefix(snap));
  for (std::size_t d = 0; d < 2; ++d) {
    REQUIRE(
        (memory[d].given == std::vector{prefix.plan().devices[d].rows_bytes, prefix.plan().devices[d].state_bytes}));
    REQUIRE(memory[d].right_gpu);
  }
  // And to the other GPU, from memory that nobody opened to it.
  const std::size_t fence[2] = {0, 4};
  Gpu* const last[1] = {&devs[1]};
  auto moved = memra::check(Cache::from_prefix_ppn(last, fence, model(), max_ctx, prefix));
  REQUIRE((image(moved) == image(m.cache)));
}

TEST_CASE("two GPUs give the bits of one: rollback, rounds, prefixes between every two placements", "[two]") {
  Pair pair;
  std::optional<Image> want, want_more;
  std::vector<std::byte> rows, more_rows;
  for (const Place& p : places()) {
    INFO(p.name);
    Model m(pair.dev[p.devices[0]], make(pair, p));
    script(m);
    const std::size_t at = m.cache.pos();
    Gpu& last = m.cache.stage_dev(m.cache.n_stages() - 1);
    std::vector<float> logits(64);
    for (std::size_t i = 0; i < 64; ++i) logits[i] = 0.5F * static_cast<float>(i) - 3;
    auto row = memra::check(last.alloc(64 * 4));
    memra::check(last.upload(row.data(), reinterpret_cast<const std::byte*>(logits.data()), 64 * 4));
    REQUIRE(m.cache.park_logits(reinterpret_cast<const float*>(row.data())).ok());
    auto snap = memra::check(m.cache.snapshot());
    const Image now = image(m.cache);
    const auto so_far = outputs(m, 0, at);
    REQUIRE(m.feed(6).ok());  // the live cache moves on
    auto prefix = memra::check(m.cache.export_prefix(snap));
    const Image later = image(m.cache);
    const auto then = outputs(m, at, at + 6);
    if (!want) {
      want = now, want_more = later, rows = so_far, more_rows = then;
    }
    REQUIRE((now == *want));
    REQUIRE((later == *want_more));
    REQUIRE((so_far == rows));
    REQUIRE((then == more_rows));
    for (const Place& q : places()) {
      INFO("to " << q.name);
      Model other(pair.dev[q.devices[0]],
                  memra::check(Cache::from_prefix_ppn(devs_of(pair, q), q.fence, model(), max_ctx, prefix, rounds())));
      REQUIRE((image(other.cache) == now));
      const auto parked = other.cache.last_logits_dev();
      REQUIRE(parked.has_value());
      REQUIRE(gpu_of(parked->data) == pair.ordinal(q.devices.back()));
      std::vector<float> got(64);
      memra::check(other.cache.stage_dev(q.devices.size() - 1)
                       .download(reinterpret_cast<std::byte*>(got.data()),
                                 reinterpret_cast<const std::byte*>(parked->data), 64 * 4));
      REQUIRE((got == logits));
      REQUIRE(other.feed(6).ok());
      REQUIRE((image(other.cache) == later));
      REQUIRE((outputs(other, at, at + 6) == then));
    }
    spoil(m.cache.dev(3), m.cache.kv(3)->v.data);  // red arm
    REQUIRE_FALSE((image(m.cache) == later));
  }
}

TEST_CASE("S7 copy_peer moves the right bytes, directly and through the host", "[two]") {
  for (const bool direct : {true, false}) {
    INFO((direct ? "direct" : "staged"));
    Pair pair(direct);
    for (const std::size_t from : {0, 1}) {
      Gpu& a = pair.dev[from];
      Gpu& b = pair.dev[1 - from];
      for (const std::size_t n : {std::size_t{1}, std::size_t{255}, std::size_t{4097}, (std::size_t{9} << 20) + 3}) {
        std::vector<std::byte> host(n);
        for (std::size_t i = 0; i < n; ++i) host[i] = static_cast<std::byte>(i * 7 + (i >> 8) + from);
        auto x = memra::check(a.alloc(n + 5));
        auto z = memra::check(b.zeros(n + 8));
        memra::check(a.upload(x.data() + 5, host.data(), n));
        memra::check(b.copy_peer(z.data() + 3, a, x.data() + 5, n));
        std::vector<std::byte> got(n + 8);
        memra::check(b.download(got.data(), z.data(), n + 8));
        REQUIRE((std::vector<std::byte>(got.begin() + 3, got.end() - 5) == host));
        for (const std::size_t i : {std::size_t{0}, std::size_t{2}, n + 3, n + 7}) REQUIRE(got[i] == std::byte{0});
      }
      if (!direct) continue;
      // The pools are open now: a kernel of one GPU reads what the other has.
      auto x = memra::check(a.alloc(4096));
      auto z = memra::check(b.alloc(4096));
      memra::check(a.fill(x.data(), std::byte{0x5A}, 4096));
      Gpu::Event written;
      memra::check(a.publish(written));
      memra::check(b.wait(written));
      memra::check(memra::launch(
          b, "read", {4096, 1, 1},
          ReadBody{reinterpret_cast<const std::uint8_t*>(x.data()), reinterpret_cast<std::uint8_t*>(z.data())}));
      std::vector<std::byte> got(4096);
      memra::check(b.download(got.data(), z.data(), 4096));
      REQUIRE((got == std::vector<std::byte>(4096, std::byte{0x5A})));
    }
  }
}

TEST_CASE("S7 copies between two GPUs keep the order of both streams", "[two]") {
  const std::size_t n = std::size_t{6} << 20;
  for (const bool direct : {true, false}) {
    INFO((direct ? "direct" : "staged"));
    Pair pair(direct);
    Gpu& a = pair.dev[0];
    Gpu& b = pair.dev[1];
    auto x = memra::check(a.alloc(n));
    auto z = memra::check(b.alloc(n));
    const auto ends = [&] {
      std::byte got[2] = {};
      memra::check(b.download(&got[0], z.data(), 1));
      memra::check(b.download(&got[1], z.data() + n - 1, 1));
      return got[0] == got[1] ? std::to_integer<int>(got[0]) : -1;
    };
    const auto settle = [&](int was) {
      memra::check(a.fill(x.data(), static_cast<std::byte>(was), n));
      memra::check(a.synchronize());
      memra::check(b.fill(z.data(), std::byte{0}, n));
      memra::check(b.synchronize());
    };
    const auto raw = [&] {  // a copy that keeps no order
      REQUIRE(GpuApi::copy_peer(z.data(), b.ordinal(), x.data(), a.ordinal(), n, b.stream()) == GpuApi::ok);
    };
    for (int late = 0; late < 2; ++late) {
      INFO((late == 0 ? "the source is late" : "the target is late"));
      settle(1);
      delay(late == 0 ? a : b);
      memra::check(a.fill(x.data(), std::byte{2}, n));
      memra::check(b.copy_peer(z.data(), a, x.data(), n));
      memra::check(a.fill(x.data(), std::byte{3}, n));  // behind the reading of it
      REQUIRE(ends() == 2);
      if (!direct || emulated) continue;
      settle(1);  // red arm: the delay is long enough to be seen
      delay(late == 0 ? a : b);
      memra::check(a.fill(x.data(), std::byte{2}, n));
      raw();
      if (late != 0) memra::check(a.fill(x.data(), std::byte{3}, n));
      REQUIRE(ends() == (late == 0 ? 1 : 3));
      memra::check(a.synchronize());
    }
  }
}

TEST_CASE("a draft tail goes to the other GPU", "[two]") {
  Pair pair;
  memra::DflashCfg cfg;
  cfg.n_layer = 3;
  cfg.n_kv = 2;
  cfg.head_dim = 32;
  cfg.block_size = 8;
  cfg.sliding_window = 16;
  auto kv = memra::check(memra::DflashKv<Gpu>::create(pair.dev[0], cfg, 100));
  REQUIRE(kv.begin_rows(70).ok());
  std::vector<float> rows(70 * 64);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 977) * 0.25F - 100;
  const auto* host = reinterpret_cast<const std::byte*>(rows.data());
  for (std::size_t l = 0; l < 3; ++l) {
    for (const float* p : std::vector<const float*>{kv.k(l), kv.v(l)}) {
      memra::check(pair.dev[0].upload(reinterpret_cast<std::byte*>(const_cast<float*>(p)), host, rows.size() * 4));
    }
  }
  REQUIRE(kv.commit().ok());
  const auto tail = kv.export_tail(66);
  REQUIRE(tail.has_value());
  auto moved = memra::DflashKv<Gpu>::from_tail(pair.dev[1], cfg, 90, *tail);
  REQUIRE(moved.has_value());
  REQUIRE(moved->len() == 66);
  for (std::size_t l = 0; l < 3; ++l) {
    REQUIRE(gpu_of(moved->k(l)) == pair.ordinal(1));
    std::vector<float> got(66 * 64);
    memra::check(pair.dev[1].download(reinterpret_cast<std::byte*>(got.data()),
                                      reinterpret_cast<const std::byte*>(moved->k(l)), got.size() * 4));
    for (std::size_t i = 0; i < got.size(); ++i) REQUIRE(got[i] == (i < 42 * 64 ? 0.0F : rows[i]));
  }
}

TEST_CASE("copy_peer, GB/s", "[.bench]") {
  const std::size_t n = std::size_t{1} << 30;
  for (const bool direct : {true, false}) {
    Pair pair(direct);
    Gpu& a = pair.dev[0];
    Gpu& b = pair.dev[1];
    auto x = memra::check(a.alloc(n));
    auto z = memra::check(b.alloc(n));
    memra::check(a.fill(x.data(), std::byte{0x3C}, n));
    for (int round = 0; round < 3; ++round) {
      memra::check(b.fill(z.data(), std::byte{0}, n));
      memra::check(a.synchronize());
      memra::check(b.synchronize());
      const auto start = std::chrono::steady_clock::now();
      memra::check(b.copy_peer(z.data(), a, x.data(), n));
      memra::check(b.synchronize());
      const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      std::byte got{};
      memra::check(b.download(&got, z.data() + n - 1, 1));
      REQUIRE(got == std::byte{0x3C});
      std::printf("copy_peer %s: 1 GiB in %.2f ms, %.1f GB/s\n", direct ? "direct" : "staged", 1000 * s,
                  static_cast<double>(n) / s / 1e9);
    }
  }
}

#if !defined(MEMRA_TEST_HIP)
/// What CUDA's runtime does where nobody opened the memory: for the notes of docs/gpu.md.
TEST_CASE("pool memory that is not open", "[.two_probe]") {
  Pair pair;
  if (pair.gpus < 2) return;
  void* x = nullptr;
  void* z = nullptr;
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  REQUIRE(cudaMallocAsync(&x, 1 << 20, pair.dev[0].stream()) == cudaSuccess);
  REQUIRE(cudaMemsetAsync(x, 0x11, 1 << 20, pair.dev[0].stream()) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(pair.dev[0].stream()) == cudaSuccess);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  REQUIRE(cudaMallocAsync(&z, 1 << 20, pair.dev[1].stream()) == cudaSuccess);
  const auto queued = cudaMemcpyPeerAsync(z, 1, x, 0, 1 << 20, pair.dev[1].stream());
  const auto done = cudaStreamSynchronize(pair.dev[1].stream());
  std::byte got{};
  const auto read = cudaMemcpy(&got, z, 1, cudaMemcpyDeviceToHost);
  std::printf("cudaMemcpyPeerAsync between pools that are closed to each other: %s, %s, read %s, byte 0x%x\n",
              cudaGetErrorString(queued), cudaGetErrorString(done), cudaGetErrorString(read),
              std::to_integer<int>(got));
  (void)cudaGetLastError();
  (void)cudaSetDevice(0);
}
#endif

}  // namespace two_gpus
