// The tuned kernels of HipDev: every format and geometry they take, against the host. One source for three builds: a
// HIP compiler, the host with waves of 32 and of 64 lanes, and a CUDA device.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <gpu/gpu_ops.hpp>
#include <gpu/support.hpp>
#include <memra/host_ops.hpp>
#include <support/batch_case.hpp>
#include <support/catch.hpp>
#include <support/distance.hpp>
#include <support/op_cases.hpp>
#include <utility>
#include <vector>

namespace memra_hip_test {

using namespace memra_test;
using F = memra::Format;

#if defined(MEMRA_TEST_HIP_ON_HOST)
/// f() with every width of a wave and both orders of waves. What is left open by the hardware must not matter. Once
/// only if no lane asked for anything of another: such kernels know of no waves.
template <class Fn>
void on_every_wave(const Fn& f) {
  const std::size_t before = hip_on_host::exchanges();
  for (const unsigned wave : {32U, 64U}) {
    for (const bool last_first : {false, true}) {
      hip_on_host::settings() = {wave, last_first};
      INFO("waves of " << wave << (last_first ? ", the last one first" : ""));
      f();
      if (hip_on_host::exchanges() == before) break;
    }
    if (hip_on_host::exchanges() == before) break;
  }
  hip_on_host::settings() = {};
  REQUIRE(hip_on_host::fault() == nullptr);
}
#else
template <class Fn>
void on_every_wave(const Fn& f) {
  f();
}
#endif

std::vector<KvShape> tuned_shapes() {
  std::vector<KvShape> all;
  const std::pair<F, F> pairs[] = {{F::q8_0, F::q5_1}, {F::q8_0, F::q8_0}, {F::q4_0, F::q4_0},
                                   {F::f16, F::f16},   {F::bf16, F::bf16}, {F::fp8_e4m3, F::fp8_e4m3}};
  for (const auto& [k, v] : pairs) {
    for (const memra::Layout layout : {memra::Layout::split, memra::Layout::blocks}) {
      if (layout == memra::Layout::blocks && v != F::q5_1) continue;
      for (const std::size_t dim : {64U, 128U, 256U}) {
        KvShape s;
        s.k_format = k;
        s.v_format = v;
        s.layout = layout;
        s.dk = s.dv = dim;
        s.n_heads = dim == 64 ? 6 : 2;  // three heads of a kv head, or one
        s.n_kv = dim == 256 ? 1 : 2;
        s.rows = 300;
        s.window = dim == 128 ? 90 : 0;
        all.push_back(s);
      }
    }
  }
  KvShape many;  // ten heads of one kv head: three passes, the last one with two
  many.n_heads = 10;
  many.n_kv = 1;
  many.dk = many.dv = 64;
  many.rows = 40;
  many.base = 200;
  all.push_back(many);
  for (const std::size_t dim : {64U, 256U}) {  // rings that went round: a row's keys cross their end
    KvShape ring;
    ring.layout = memra::Layout::split;
    ring.dk = ring.dv = dim;
    ring.n_heads = 3;
    ring.n_kv = 1;
    ring.ring = true;
    ring.rows = 128;
    ring.window = 100;
    all.push_back(ring);
  }
  return all;
}

TEST_CASE("tuned attend is within its class of the host, and each row's bits are its own", "[tuned]") {
  memra::HostDev host;
  double worst = 0;
  for (const KvShape& s : tuned_shapes()) {
    INFO(memra::to_string(s.k_format) << "/" << memra::to_string(s.v_format) << " " << memra::to_string(s.layout)
                                      << " heads " << s.n_heads << " dim " << s.dk << " window " << s.window);
    const std::size_t len = s.ring ? 2 * s.rows + 70 : s.base + s.rows - 10;
    Gpu dev = make_gpu();
    const AttendOn<Gpu> a(dev, s, len, 5);
    const AttendOn<memra::HostDev> b(host, s, len, 5);
    Bytes first;
    on_every_wave([&] {
      for (const std::size_t pos : {s.ring ? len - 20 : s.base, len - 4}) {
        const Bytes together = a.run(dev, pos, 3);
        const double d = distance(together, b.run(host, pos, 3));
        CHECK(d < 1e-5);
        worst = std::max(worst, d);
        Bytes single;
        for (std::size_t i = 0; i < 3; ++i) join(single, a.run(dev, pos + i, 1));
        CHECK((together == single));
        if (pos != len - 4) continue;
        if (first.empty()) first = together;
        CHECK((together == first));  // whatever the wave
      }
    });
  }
  std::printf("attend: largest relative distance to the host %.2e\n", worst);
  CHECK(worst > 0);  // not the portable kernel, which gives the host's bits
}

TEST_CASE("tuned attend behind a window, where chunks take the places of those before it", "[tuned]") {
  KvShape s;
  s.layout = memra::Layout::split;
  s.dk = s.dv = 64;
  s.n_heads = 3;
  s.n_kv = 1;
  s.ring = true;
  s.rows = 704;
  s.window = 600;  // in three or four chunks
  const std::size_t len = memra::detail::attend_most_chunks(s.n_kv, s.dv) * 256 + 700;
  Gpu dev = make_gpu();
  memra::HostDev host;
  const AttendOn<Gpu> a(dev, s, len, 5);
  const AttendOn<memra::HostDev> b(host, s, len, 5);
  on_every_wave([&] {
    const Bytes together = a.run(dev, len - 4, 4);
    CHECK(distance(together, b.run(host, len - 4, 4)) < 1e-5);
    Bytes single;
    for (std::size_t i = 0; i < 4; ++i) join(single, a.run(dev, len - 4 + i, 1));
    CHECK((together == single));
  });
}

TEST_CASE("tuned attend behind a window as long as all places: it lies in one chunk more than it fills", "[tuned]") {
  KvShape s;
  s.k_format = s.v_format = F::f16;
  s.dk = s.dv = 128;
  s.n_heads = s.n_kv = 33;
  s.rows = 4460;
  s.window = memra::detail::attend_most_chunks(s.n_kv, s.dv) * 256;
  REQUIRE(s.window == 4096);
  Gpu dev = make_gpu();
  memra::HostDev host;
  const AttendOn<Gpu> a(dev, s, 4450, 5);
  const AttendOn<memra::HostDev> b(host, s, 4450, 5);
  CHECK(distance(a.run(dev, 4449, 1), b.run(host, 4449, 1)) < 1e-5);
}

TEST_CASE("sequences that attend in one launch get the bits of a call each", "[tuned]") {
  Gpu dev = make_gpu();
  for (const F f : {F::q8_0, F::f16, F::f32}) {  // the last by portable kernels
    KvShape s;
    s.k_format = f;
    s.v_format = f == F::q8_0 ? F::q5_1 : f;
    s.n_heads = 6;
    s.dk = s.dv = f == F::f16 ? 128 : 64;
    s.layout = memra::Layout::split;
    s.window = f == F::f16 ? 100 : 0;
    const BatchOn<Gpu> b(dev, s, {300, 5, 70}, 3);                 // two pieces, one
    const std::vector<Turn> turns = {{280, 17}, {4, 1}, {66, 3}};  // two passes of rows
    const std::vector<Turn> others = {{299, 1}, {-2, 1}, {60, 0}};
    on_every_wave([&] {
      const Bytes want = b.alone(dev, turns);
      CHECK((b.together(dev, turns) == want));
      CHECK((b.together(dev, others) == b.alone(dev, others)));
      CHECK_FALSE((b.together(dev, {{279, 17}, {4, 1}, {66, 3}}) == want));
    });
  }
}

TEST_CASE("tuned attend: infinite values, a query that is not a number, keys that no row sees", "[tuned]") {
  KvShape s;
  s.k_format = s.v_format = F::f16;
  s.dk = s.dv = 64;
  s.rows = 100;
  memra::HostDev host;
  Gpu dev = make_gpu();
  // Rows of the planes beyond those written are NaN: none may be met.
  const AttendOn<Gpu> a(dev, s, 50, 8);
  const AttendOn<memra::HostDev> b(host, s, 50, 8);
  on_every_wave([&] {
    const Bytes got = a.run(dev, 37, 2);
    CHECK(distance(got, b.run(host, 37, 2)) < 1e-5);
    CHECK_FALSE((got == a.run(dev, 38, 2)));
  });
  // An infinite element of the first value reaches the outputs of rows that see it, as infinity and not as NaN.
  std::vector<std::uint16_t> inf{0x7C00};
  memra::check(dev.upload(a.v.data(), reinterpret_cast<const std::byte*>(inf.data()), 2));
  on_every_wave([&] {
    const Bytes got = a.run(dev, 0, 3);
    for (std::size_t row = 0; row < 3; ++row) {
      float x = 0;
      std::memcpy(&x, got.data() + row * s.n_heads * s.dv * 4, 4);
      CHECK(x == std::numeric_limits<float>::infinity());
      std::memcpy(&x, got.data() + row * s.n_heads * s.dv * 4 + 4, 4);
      CHECK(std::isfinite(x));
    }
  });
  std::vector<float> nan(1, std::numeric_limits<float>::quiet_NaN());
  memra::check(dev.upload(a.q.data(), reinterpret_cast<const std::byte*>(nan.data()), 4));
  on_every_wave([&] {
    const Bytes got = a.run(dev, 0, 1);
    float x = 0;
    std::memcpy(&x, got.data(), 4);
    CHECK(std::isnan(x));
    std::memcpy(&x, got.data() + s.dv * 4, 4);  // the next head has its own query
    CHECK_FALSE(std::isnan(x));
  });
}

// Attention here is mostly of shapes that no tuned kernel takes: latent rows, odd widths.
TEST_CASE("every op gives the host's bits on every wave, tuned attend its class", "[tuned]") {
  const auto on_host = op_cases<memra::HostDev>();
  const auto cases = op_cases<Gpu>();
  REQUIRE(cases.size() == on_host.size());
  std::size_t compared = 0;
  std::size_t in_class = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const bool attends = cases[i].name.rfind("attend", 0) == 0;
    memra::HostDev host;
    const Bytes want = on_host[i].run(host);
    on_every_wave([&] {
      Gpu dev = make_gpu();
      INFO(cases[i].name);
      const Bytes got = cases[i].run(dev);
      const bool same = got == want;
      CHECK((same || (attends && distance(got, want) < 1e-5)));
      ++(same ? compared : in_class);
    });
  }
  CHECK(compared > 200);
  CHECK(in_class > 0);
  CHECK(in_class < 20);  // of every wave
}

TEST_CASE("scans of every rule and width, and drafts longer than shared memory, give the host's bits", "[tuned]") {
  memra::HostDev host;
  const auto same = [&](const auto& run) {
    const Bytes want = run(host);
    on_every_wave([&] {
      Gpu dev = make_gpu();
      CHECK((run(dev) == want));
    });
  };
  for (const memra::ScanRule rule : scan_rules) {
    if (rule == memra::ScanRule::mamba1) continue;  // its one width is among the cases above
    for (const std::size_t d_k : {64U, 128U}) {
      RecurShape s;
      s.rule = rule;
      s.d_k = d_k;
      s.d_v = 17;  // the last block of columns has one
      s.mode = d_k == 64 ? memra::KeyHeadMode::grouped : memra::KeyHeadMode::interleaved;
      INFO(memra::to_string(rule) << " d_k " << d_k);
      same([&](auto& dev) { return run_scan(dev, s, 5, 3, d_k); });
      same([&](auto& dev) { return run_round(dev, s, memra::RoundMode::planes, 3, 2, d_k); });
      same([&](auto& dev) { return run_round(dev, s, memra::RoundMode::stash, 3, 2, d_k); });
    }
  }
  DraftShape d;
  d.n_heads = d.n_kv = 1;
  d.head_dim = 32;
  d.len = 4200;
  d.rows = d.len + 10;
  d.floor = 30;
  d.block = 2;
  for (const memra::DraftArm arm : {memra::DraftArm::clip, memra::DraftArm::full_scan}) {
    for (const std::size_t head_dim : {32U, 256U}) {
      d.head_dim = head_dim;
      if (head_dim == 256) d.len = 40;
      same([&](auto& dev) { return run_draft(dev, d, arm, 3); });
    }
    d.len = 4200;
  }
}

#if defined(MEMRA_TEST_HIP_ON_HOST)
TEST_CASE("scans run tuned at the usual widths, draft attention at heads of thirty-twos, the rest portable",
          "[tuned]") {
  const auto exchanges = [](const auto& run) {
    Gpu dev = make_gpu();
    const std::size_t before = hip_on_host::exchanges();
    (void)run(dev);
    return hip_on_host::exchanges() - before;
  };
  for (const memra::ScanRule rule : scan_rules) {
    RecurShape s;
    s.rule = rule;
    const auto scan = [&](Gpu& dev) { return run_scan(dev, s, 3, 3, 1); };
    // Sums over sixteen lanes, four exchanges each, per column, head and row: one for the output, one to correct by.
    const std::size_t sums = rule == memra::ScanRule::gated_delta || rule == memra::ScanRule::kda ? 2 : 1;
    if (rule == memra::ScanRule::mamba1) {
      s.n_k = s.n_v = 1;
      s.d_k = 16;
      CHECK(exchanges(scan) == 4 * memra::detail::row_lanes * s.d_v * 3);
    } else {
      for (const std::size_t d_k : {32U, 64U, 128U}) {
        s.d_k = d_k;
        CHECK(exchanges(scan) == sums * 4 * memra::detail::row_lanes * s.d_v * s.n_v * 3);
      }
    }
    s.d_k = 24;
    CHECK(exchanges(scan) == 0);
  }
  DraftShape d;
  const auto draft = [&](Gpu& dev) { return run_draft(dev, d, memra::DraftArm::clip, 1); };
  d.head_dim = 96;
  CHECK(exchanges(draft) == 4 * memra::detail::row_lanes * (d.len + d.block) * d.block * d.n_heads);
  d.head_dim = 48;
  CHECK(exchanges(draft) == 0);
  d.head_dim = 288;
  CHECK(exchanges(draft) == 0);
}
#endif

/// Every byte of fp8 and every f16 by the conversions of attend.
struct ConvertBody {
  float* out;

  __device__ void operator()(const memra::Item& item) const {
    const auto i = static_cast<std::uint32_t>(item.x);
    out[i] =
        i < 256 ? memra::detail::hip_fp8_to_f32(i) : memra::detail::hip_f16_to_f32(static_cast<std::uint16_t>(i - 256));
  }
};

TEST_CASE("conversions of fp8 (OCP) and f16 are those of the codecs, bit for bit", "[tuned]") {
  constexpr std::size_t n = 256 + 65536;
  Gpu dev = make_gpu();
  const OnDev<Gpu> out(dev, n * 4);
  memra::check(memra::launch(dev, "convert", memra::Grid{n, 1, 1}, ConvertBody{out.floats()}));
  const std::vector<std::byte> bytes = out.bytes();
  std::size_t nans = 0;
  for (std::size_t i = 0; i < n; ++i) {
    float got = 0;
    std::memcpy(&got, bytes.data() + 4 * i, 4);
    const float want = i < 256 ? memra::detail::fp8_to_f32(static_cast<std::uint8_t>(i))
                               : memra::detail::f16_to_f32(static_cast<std::uint16_t>(i - 256));
    if (std::isnan(want)) {
      ++nans;
      REQUIRE(std::isnan(got));
    } else {
      REQUIRE(memra::detail::f32_bits(got) == memra::detail::f32_bits(want));
    }
  }
  REQUIRE(nans == 2 + 2 * 1023);
}

}  // namespace memra_hip_test
