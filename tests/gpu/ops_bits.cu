// Every op on the GPU against the host, bit for bit.
#include <algorithm>
#include <cstdio>
#include <memra/host_ops.hpp>
#include <support/catch.hpp>
#include <support/distance.hpp>
#include <support/op_cases.hpp>

#include "gpu_ops.hpp"
#include "support.hpp"

namespace ops_bits_cu {
namespace {

using namespace memra_test;

/// Compares every case on `Dev` with the host; a case that `skips` names is left to a test of its own class.
template <class Dev, class Skip>
void compare_with_host(Dev& dev, const Skip& skips) {
  const auto expected = op_cases<memra::HostDev>();
  const auto cases = op_cases<Dev>();
  REQUIRE(cases.size() == expected.size());
  std::size_t compared = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (skips(cases[i].name)) continue;
    memra::HostDev host;
    INFO(cases[i].name);
    const Bytes want = expected[i].run(host);
    const Bytes got = cases[i].run(dev);
    REQUIRE(want.size() > 64);
    CHECK((got == want));
    const Bytes again = cases[i].run(dev);
    CHECK((got == again));
    ++compared;
  }
  REQUIRE(compared > 100);
}

TEST_CASE("portable kernels on the GPU give the host's bits for every op", "[ops][sanitize]") {
  PortableGpu dev;
  compare_with_host(dev, [](const std::string&) { return false; });
}

TEST_CASE("tuned kernels give the host's bits for every op but attend, draft_attend and the chunked scan",
          "[ops][sanitize]") {
  Gpu dev = make_gpu();
  compare_with_host(dev, [](const std::string& name) {
    return name.rfind("attend", 0) == 0 || name.rfind("chunked", 0) == 0 ||
           (draft_class && name.rfind("draft d64", 0) == 0);
  });
}

std::vector<KvShape> attend_shapes() {
  std::vector<KvShape> all = kv_shapes();
  using F = memra::Format;
  const std::pair<F, F> pairs[] = {{F::q8_0, F::q5_1}, {F::q8_0, F::q8_0}, {F::q4_0, F::q4_0},
                                   {F::f16, F::f16},   {F::bf16, F::bf16}, {F::fp8_e4m3, F::fp8_e4m3}};
  for (const auto& [k, v] : pairs) {
    for (const memra::Layout l : {memra::Layout::blocks, memra::Layout::split}) {
      KvShape s;
      s.k_format = k;
      s.v_format = v;
      s.layout = l;
      s.n_heads = 6;  // three heads of one kv head
      all.push_back(s);
      s.n_heads = 16;
      s.dk = s.dv = 128;
      all.push_back(s);
      s.n_heads = 20;  // ten: two passes of queries
      s.dv = 256;
      s.window = 33;
      all.push_back(s);
    }
  }
  return all;
}

TEST_CASE("attend is within its class of the host, and each row's bits are its own", "[ops]") {
  Gpu dev = make_gpu();
  memra::HostDev host;
  double worst = 0;
  for (KvShape s : attend_shapes()) {
    if (!s.ring) s.rows = 700;
    INFO(memra::to_string(s.k_format) << "/" << memra::to_string(s.v_format) << " " << memra::to_string(s.layout)
                                      << " heads " << s.n_heads << " dv " << s.dv << " window " << s.window);
    const std::size_t len = s.base + 650;
    const AttendOn<Gpu> a(dev, s, len, 5);
    const AttendOn<memra::HostDev> b(host, s, len, 5);
    for (const std::size_t pos : {s.base + 0, s.base + 250, s.base + 630}) {
      const std::size_t t = pos == s.base + 630 ? 20 : 7;  // 20: more than one pass of rows
      const Bytes together = a.run(dev, pos, t);
      const double d = distance(together, b.run(host, pos, t));
      CHECK(d < (s.k_format == memra::Format::bf16 ? 6e-3 : 1e-3));  // see attend.cu
      worst = std::max(worst, d);
      Bytes single;
      for (std::size_t i = 0; i < t; ++i) join(single, a.run(dev, pos + i, 1));
      CHECK((together == single));
      CHECK((together == a.run(dev, pos, t)));
    }
  }
  std::printf("attend: largest relative distance to the host %.2e\n", worst);
}

TEST_CASE("rows on both sides of a rung of the key grid", "[ops]") {
  Gpu dev = make_gpu();
  memra::HostDev host;
  KvShape
      s;  // 32 kv heads of 96: at most 16 chunks, so the chunk grows after 16 * 256 keys, with a window after 15 * 256
  s.n_heads = 32;
  s.n_kv = 32;
  s.dk = s.dv = 96;
  s.rows = 4200;
  s.layout = memra::Layout::split;
  using Case = std::pair<std::size_t, std::size_t>;  // window, first row
  for (const auto& [window, first] : {Case{0, 4090}, Case{3000, 4090}, Case{4000, 3834}, Case{4000, 4090}}) {
    INFO("window " << window << ", rows from " << first);
    s.window = window;
    const AttendOn<Gpu> a(dev, s, 4110, 6);
    const AttendOn<memra::HostDev> b(host, s, 4110, 6);
    const Bytes together = a.run(dev, first, 14);
    CHECK(distance(together, b.run(host, first, 14)) < 1e-3);
    Bytes single;
    for (std::size_t i = 0; i < 14; ++i) join(single, a.run(dev, first + i, 1));
    CHECK((together == single));
    CHECK_FALSE((together == a.run(dev, first + 1, 14)));
  }
}

TEST_CASE("keys that a row does not see change none of its bits", "[ops][sanitize]") {
  Gpu dev = make_gpu();
  KvShape s;
  s.rows = 700;
  s.window = 100;
  s.layout = memra::Layout::split;
  // The same seed, fewer rows written: all other bytes of the planes are NaN.
  const AttendOn<Gpu> more(dev, s, 650, 5);
  const AttendOn<Gpu> fewer(dev, s, 401, 5);
  Bytes a = more.run(dev, 400, 1);
  CHECK_FALSE((a == fewer.run(dev, 399, 1)));
  const double d = distance(a, a);
  CHECK(d == 0.0);  // not NaN
}

}  // namespace
}  // namespace ops_bits_cu
