// The bits of the ops that compute, in every vector width and against checksums written down here, so that every
// compiler and flag set must give the same ones.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/codec.hpp>
#include <memra/detail/host_attend.hpp>
#include <memra/detail/host_conv.hpp>
#include <memra/detail/host_draft.hpp>
#include <memra/detail/host_scan.hpp>
#include <memra/host_ops.hpp>
#include <support/catch.hpp>
#include <support/planes.hpp>
#include <vector>

namespace ops_identity_cpp {
namespace {

using memra::Format;
using memra::detail::NativeSimd;
using memra::detail::PortableSimd;
using memra_test::Plane;
using memra_test::Rng;

/// FNV-1a over the bits.
std::uint64_t checksum(const std::vector<float>& x) {
  std::uint64_t h = 0xcbf29ce484222325ULL;
  for (const float f : x) {
    std::uint32_t u;
    std::memcpy(&u, &f, sizeof u);
    for (int i = 0; i < 4; ++i, u >>= 8) h = (h ^ (u & 0xFFU)) * 0x100000001b3ULL;
  }
  return h;
}

// Inputs are integers times powers of two and the scales are given: nothing in here depends on how it was compiled.

template <class Simd>
std::vector<float> attend(Format kf, Format vf, std::size_t dk, std::size_t dv, std::size_t heads, std::size_t window) {
  constexpr std::size_t n_kv = 2, rows = 21, total = 150;
  Rng rng(3);
  Plane k(kf, memra::Layout::split, total, n_kv * dk);
  Plane v(vf, memra::Layout::blocks, total, n_kv * dv);
  for (std::size_t r = 0; r < total; ++r) {
    memra::encode_row(k.view(), r, rng.vector(n_kv * dk, 2.0F).data());
    memra::encode_row(v.view(), r, rng.vector(n_kv * dv, 2.0F).data());
  }
  const std::vector<float> q = rng.vector(rows * heads * dk, 4.0F);
  std::vector<float> out(rows * heads * dv);
  const std::int32_t pos = static_cast<std::int32_t>(total - rows);
  memra_test::Scratch scratch(memra::detail::attend_scratch_bytes(heads, n_kv, dk, dv, rows));
  const memra::KvReadView view{k.view(), v.view(), n_kv, dk, dv, window, {&pos, rows, total, total}};
  memra::HostDev dev;
  memra::check(memra::launch(
      dev, "attend", {n_kv, 1, 1},
      memra::detail::AttendBody<Simd>{view, {q.data(), out.data(), heads, 0.171875F}, scratch.view().data}));
  return out;
}

template <class Simd>
std::vector<float> draft(std::size_t dim, memra::DraftArm arm) {
  constexpr std::size_t n_kv = 2, heads = 4, rows = 5, phys = 64;
  Rng rng(4);
  std::vector<float> k = rng.vector(phys * n_kv * dim, 2.0F);
  std::vector<float> v = rng.vector(phys * n_kv * dim, 2.0F);
  const std::vector<float> q = rng.vector(rows * heads * dim, 2.0F);
  std::vector<float> out(rows * heads * dim);
  const std::int32_t len = 50;
  const memra::DraftView d{k.data(), v.data(), n_kv, dim, 40, 3, 0, phys, &len, 59, rows};
  memra_test::Scratch scratch(memra::detail::draft_scratch_bytes(heads, n_kv, dim, rows, 59));
  memra::HostDev dev;
  memra::check(memra::launch(
      dev, "draft_attend", {rows, 1, 1},
      memra::detail::DraftAttendBody<Simd>{d, {q.data(), out.data(), heads, 0.171875F, arm}, scratch.view().data}));
  return out;
}

/// Outputs, then the state they leave.
template <class Simd>
std::vector<float> recurrent(std::size_t d_k, std::size_t d_v, std::size_t d_conv) {
  constexpr std::size_t rows = 9, n_k = 2, n_v = 4;
  Rng rng(5);
  memra::RecurView r;
  r.n_k_heads = n_k;
  r.n_v_heads = n_v;
  r.d_k = d_k;
  r.d_v = d_v;
  r.d_conv = d_conv;
  r.rows = rows;
  const std::size_t channels = r.conv_dim();
  std::vector<float> conv = rng.vector(channels * (d_conv - 1) + 1);
  std::vector<float> ssm = rng.vector(n_v * d_v * d_k);
  r.conv = conv.data();
  r.ssm = ssm.data();
  const std::vector<float> x = rng.vector(rows * channels, 2.0F);
  const std::vector<float> weight = rng.vector(channels * d_conv);
  std::vector<float> y(rows * channels);
  memra::HostDev dev;
  using Conv = memra::detail::ConvBody<Simd>;
  memra::check(memra::launch(dev, "conv_update", {Conv::blocks(r), 1, 1},
                             Conv{r, {x.data(), weight.data(), nullptr, y.data(), true}}));
  const std::vector<float> q = rng.vector(rows * n_k * d_k, 0.25F);
  const std::vector<float> k = rng.vector(rows * n_k * d_k, 0.25F);
  const std::vector<float> v = rng.vector(rows * n_v * d_v);
  std::vector<float> g = rng.vector(rows * n_v, 0.5F);
  for (float& e : g) e -= 0.5F;
  std::vector<float> beta = rng.vector(rows * n_v, 0.5F);
  for (float& e : beta) e += 0.5F;
  std::vector<float> out(rows * n_v * d_v);
  memra::check(memra::launch(
      dev, "delta_scan", {n_v, 1, 1},
      memra::detail::ScanBody<Simd>{
          r, {q.data(), k.data(), v.data(), g.data(), beta.data(), out.data(), n_k * d_k, n_k * d_k, n_v * d_v}}));
  for (const std::vector<float>* more : {&conv, &ssm, &out}) y.insert(y.end(), more->begin(), more->end());
  return y;
}

template <class Simd>
std::vector<std::vector<float>> everything() {
  return {attend<Simd>(Format::q8_0, Format::q5_1, 128, 128, 16, 0),
          attend<Simd>(Format::f16, Format::fp8_e4m3, 20, 45, 6, 70),
          attend<Simd>(Format::q4_0, Format::bf16, 96, 80, 2, 0),
          draft<Simd>(64, memra::DraftArm::clip),
          draft<Simd>(21, memra::DraftArm::full_scan),
          recurrent<Simd>(128, 32, 4),
          recurrent<Simd>(20, 9, 1),
          recurrent<Simd>(16, 5, 9)};
}

TEST_CASE("ops give the same bits in every vector width", "[ops][identity]") {
  const auto want = everything<PortableSimd>();
  for (const auto& w : want) {
    for (const float x : w) REQUIRE(x == x);
  }
  const auto same = [&](const std::vector<std::vector<float>>& got) {
    bool all = got.size() == want.size();
    for (std::size_t i = 0; i < want.size(); ++i) all = all && memra_test::same_bits(got[i], want[i]);
    return all;
  };
  REQUIRE(same(everything<NativeSimd>()));
#if defined(__GNUC__)
  REQUIRE(same(everything<memra::detail::VectorSimd<16>>()));
#if defined(__AVX2__)
  REQUIRE(same(everything<memra::detail::VectorSimd<32>>()));
#endif
#endif
}

TEST_CASE("ops give the bits written down here on every compiler and flag set", "[ops][identity]") {
  const std::vector<std::uint64_t> want = {0x3417ccd3180fefb9U, 0x3ed2b3e0adc14bc0U, 0xe70b7b00d75b4aaaU,
                                           0x31c1ee387054899bU, 0x3c3526b903926cf6U, 0x05628abd9f5b2bacU,
                                           0x39d3566616a910b4U, 0x7e54ca94254a5067U};
  auto got = everything<NativeSimd>();
  for (std::size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    CHECK(checksum(got[i]) == want[i]);
    // Red arm: one bit of one number is another checksum.
    got[i][got[i].size() / 2] = -got[i][got[i].size() / 2];
    CHECK(checksum(got[i]) != want[i]);
  }
}

}  // namespace
}  // namespace ops_identity_cpp
