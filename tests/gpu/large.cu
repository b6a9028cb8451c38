// Planes above 4 GiB and 2^32 elements: append and attend where 32 bits of offset have wrapped.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memra/cache.hpp>
#include <memra/codec.hpp>
#include <memra/host_ops.hpp>
#include <memra/workspace.hpp>
#include <support/catch.hpp>
#include <support/planes.hpp>
#include <vector>

#include "gpu_ops.hpp"
#include "support.hpp"

namespace large_cu {
namespace {

using memra::check;
using memra::Format;
using memra_test::Gpu;
using Bytes = std::vector<std::byte>;

constexpr std::size_t n_kv = 8;
constexpr std::size_t dim = 128;
constexpr std::size_t n_heads = 16;
constexpr std::size_t width = n_kv * dim;
constexpr std::size_t t = 8;       // rows of a step
constexpr std::size_t near = 512;  // rows before a step that the small copy has
constexpr std::size_t two_32 = std::size_t{1} << 32;

memra::ModelConfig config(Format k, Format v, memra::Layout layout) {
  memra::AttentionSpec a;
  a.n_heads = n_heads;
  a.n_kv_heads = n_kv;
  a.head_dim_k = a.head_dim_v = dim;
  a.k_format = k;
  a.v_format = v;
  a.k_layout = a.v_layout = layout;
  memra::ModelConfig cfg;
  cfg.layers = {memra::full_attention(a)};
  return cfg;
}

std::vector<float> floats(Gpu& dev, const Gpu::Buffer& b) {
  std::vector<float> x(b.size() / 4);
  check(dev.download(reinterpret_cast<std::byte*>(x.data()), b.data(), b.size()));
  return x;
}
Gpu::Buffer on_device(Gpu& dev, const std::vector<float>& x) {
  auto b = check(dev.alloc(x.size() * 4));
  check(dev.upload(b.data(), reinterpret_cast<const std::byte*>(x.data()), x.size() * 4));
  return b;
}
float* data(const Gpu::Buffer& b) {
  return reinterpret_cast<float*>(b.data());
}

/// ||a - b|| / ||b||; NaN if anything is.
template <class T>
double distance(const std::vector<float>& a, const std::vector<T>& b) {
  double d = 0;
  double n = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    d += (static_cast<double>(a[i]) - static_cast<double>(b[i])) * (static_cast<double>(a[i]) - b[i]);
    n += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(d / n);
}

/// Rows [first, first + n) of a plane on the device, run after run.
Bytes rows_of(Gpu& dev, const memra::ConstPlaneView& plane, std::size_t first, std::size_t n) {
  const memra::Segments runs = memra::segments(plane.shape, first - plane.base, n);
  Bytes all;
  for (std::size_t i = 0; i < runs.count; ++i) {
    all.resize(all.size() + runs[i].bytes);
    check(dev.download(all.data() + all.size() - runs[i].bytes, plane.data + runs[i].offset, runs[i].bytes));
  }
  return all;
}

/// The last rows of a plane on the host: `near` rows of zeros and `t` that were appended, at the same positions.
struct SmallCopy {
  SmallCopy(const memra::ConstPlaneView& big, std::size_t first, const std::vector<float>& x)
      : plane(big.shape.format, big.shape.layout, near + t, width, first - near) {
    std::fill(plane.bytes().begin(), plane.bytes().end(), std::byte{0});
    for (std::size_t r = 0; r < t; ++r) memra::encode_row(plane.view(), near + r, x.data() + r * width);
  }
  Bytes rows(std::size_t first, std::size_t n) const {
    const memra::ConstPlaneView v = plane.view();
    const memra::Segments runs = memra::segments(v.shape, first, n);
    Bytes all;
    for (std::size_t i = 0; i < runs.count; ++i) {
      const std::byte* at = v.data + runs[i].offset;
      all.insert(all.end(), at, at + runs[i].bytes);
    }
    return all;
  }
  std::vector<float> decoded() const {
    std::vector<float> x(t * width);
    for (std::size_t r = 0; r < t; ++r) memra::decode_row(plane.view(), near + r, 0, width, x.data() + r * width);
    return x;
  }
  memra_test::Plane plane;
};

/// attend on the host over the small copies.
std::vector<float> on_host(const memra::KvReadView& like, const SmallCopy& k, const SmallCopy& v, std::size_t first,
                           const std::vector<float>& q, float scale) {
  memra::HostDev dev;
  const auto pos = static_cast<std::int32_t>(first);
  memra::KvReadView view = like;
  view.k = k.plane.view();
  view.v = v.plane.view();
  view.at = {&pos, t, first, first + t};
  std::vector<float> out(t * n_heads * dim);
  memra_test::Scratch scratch(memra::detail::attend_scratch_bytes(n_heads, n_kv, dim, dim, t));
  check(memra::ops_for<memra::HostDev>(dev).attend(view, {q.data(), out.data(), n_heads, scale}, scratch.view()));
  return out;
}

/// Attention in float64 over first rows of zeros (score 0, value 0) and the appended ones.
std::vector<double> in_float64(std::size_t first, const std::vector<float>& q, const std::vector<float>& k,
                               const std::vector<float>& v, float scale) {
  std::vector<double> out(t * n_heads * dim);
  for (std::size_t r = 0; r < t; ++r) {
    for (std::size_t h = 0; h < n_heads; ++h) {
      const std::size_t kv = h / (n_heads / n_kv);
      std::vector<double> score(r + 1);
      double top = 0;
      for (std::size_t j = 0; j <= r; ++j) {
        for (std::size_t d = 0; d < dim; ++d) {
          score[j] += static_cast<double>(q[(r * n_heads + h) * dim + d]) * k[j * width + kv * dim + d];
        }
        score[j] *= static_cast<double>(scale);
        top = std::max(top, score[j]);
      }
      double sum = static_cast<double>(first) * std::exp(-top);
      double* o = out.data() + (r * n_heads + h) * dim;
      for (std::size_t j = 0; j <= r; ++j) {
        const double p = std::exp(score[j] - top);
        sum += p;
        for (std::size_t d = 0; d < dim; ++d) o[d] += p * static_cast<double>(v[j * width + kv * dim + d]);
      }
      for (std::size_t d = 0; d < dim; ++d) o[d] /= sum;
    }
  }
  return out;
}

bool all_zero(const Bytes& b) {
  return std::all_of(b.begin(), b.end(), [](std::byte x) { return x == std::byte{0}; });
}

void across(Gpu& dev, Format kf, Format vf, memra::Layout layout, std::size_t max_ctx) {
  auto cache = check(memra::Cache<Gpu>::create(dev, config(kf, vf, layout), max_ctx));
  auto ws = check(memra::Workspace<Gpu>::create(dev, cache.plan().workspace_bytes(t)));
  const memra::KvLayer big = *cache.kv(0);
  REQUIRE(memra::sub_planes(big.k.shape).bytes > two_32);
  REQUIRE(max_ctx * width > two_32 / 2);

  // Where the first run of K rows (whole rows, or their quants) crosses 2^32 bytes, and the last rows of all.
  const std::size_t row = memra::segments(big.k.shape, 0, 1)[0].bytes;
  memra_test::Rng rng(17);
  const memra::ops_for<Gpu> ops(dev);
  for (const std::size_t first : {two_32 / row - t / 2, max_ctx - t}) {
    // Rows up to there count as written: they are zeros.
    for (const memra::ConstPlaneView* plane : std::array{&big.k, &big.v}) {
      check(dev.fill(const_cast<std::byte*>(plane->data), std::byte{0}, memra::sub_planes(plane->shape).bytes));
    }
    {
      auto step = check(cache.begin_step(first - cache.pos()));
      check(step.kv_write(0));
      check(cache.advance());
    }
    const std::vector<float> k = rng.vector(t * width, 2.0F);
    const std::vector<float> v = rng.vector(t * width, 2.0F);
    const std::vector<float> q = rng.vector(t * n_heads * dim, 2.0F);
    const auto k_d = on_device(dev, k);
    const auto v_d = on_device(dev, v);
    const auto q_d = on_device(dev, q);
    const auto out_d = check(dev.zeros(t * n_heads * dim * 4));
    auto step = check(cache.begin_step(t));
    const memra::KvWriteView w = check(step.kv_write(0));
    check(ops.append(w, data(k_d), data(v_d)));
    const SmallCopy k_small(big.k, first, k);
    const SmallCopy v_small(big.v, first, v);
    REQUIRE((rows_of(dev, big.k, first, t) == k_small.rows(near, t)));
    REQUIRE((rows_of(dev, big.v, first, t) == v_small.rows(near, t)));
    REQUIRE(all_zero(rows_of(dev, big.k, first - near, near)));
    REQUIRE(all_zero(rows_of(dev, big.v, first - near, near)));
    // Red arm: where an offset of 32 bits would have put the last row there is nothing, and that is another place.
    const memra::Segments run = memra::segments(big.k.shape, first + t - 1, 1);
    REQUIRE(run[0].offset >= two_32);
    Bytes wrapped(run[0].bytes);
    check(dev.download(wrapped.data(), big.k.data + run[0].offset % two_32, wrapped.size()));
    REQUIRE(all_zero(wrapped));
    REQUIRE_FALSE(all_zero(k_small.rows(near + t - 1, 1)));

    memra::KvReadView r = check(step.kv_read(0));
    r.window = 400;
    const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
    check(ops.attend(r, {data(q_d), data(out_d), n_heads, scale}, ws.view()));
    const std::vector<float> windowed = floats(dev, out_d);
    const double near_error = distance(windowed, on_host(r, k_small, v_small, first, q, scale));
    CHECK(near_error < 1e-3);  // the class of attend on tensor cores, see attend.cu
    // Every row from 0: millions of zeros, against which a few large scores stand out.
    r.window = 0;
    const float sharp = 0.6F;
    check(ops.attend(r, {data(q_d), data(out_d), n_heads, sharp}, ws.view()));
    const auto want = in_float64(first, q, k_small.decoded(), v_small.decoded(), sharp);
    const double far_error = distance(floats(dev, out_d), want);
    CHECK(far_error < 1e-3);
    // Red arm: a tenth more of zero rows would show.
    CHECK(distance(floats(dev, out_d), in_float64(first + first / 10, q, k_small.decoded(), v_small.decoded(), sharp)) >
          1e-3);
    check(cache.advance());
    std::printf("large: %s/%s %s at row %zu: distance to the host %.1e with a window, %.1e over all rows\n",
                memra::to_string(kf).data(), memra::to_string(vf).data(), memra::to_string(layout).data(), first,
                near_error, far_error);
  }
}

TEST_CASE("append and attend where byte offsets pass 2^32 and elements 2^31", "[large]") {
  std::size_t free_bytes = 0;
  std::size_t total = 0;
  REQUIRE(memra_test::Native::memory(&free_bytes, &total));
  if (free_bytes < (std::size_t{24} << 30)) {
    WARN("SKIPPED: less than 24 GiB free on this device");
    return;
  }
  Gpu dev = memra_test::make_gpu();
  across(dev, Format::q8_0, Format::q5_1, memra::Layout::blocks, 4200000);
  across(dev, Format::q8_0, Format::q5_1, memra::Layout::split, 4200000);
  across(dev, Format::q4_0, Format::q4_0, memra::Layout::split, 8400000);
  across(dev, Format::f16, Format::f16, memra::Layout::blocks, 2200000);
  across(dev, Format::fp8_e4m3, Format::fp8_e4m3, memra::Layout::blocks, 4300000);
}

}  // namespace
}  // namespace large_cu
