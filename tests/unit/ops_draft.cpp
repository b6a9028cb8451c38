// draft_write and draft_attend: float64, visibility, and both arms bit for bit.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memra/host_ops.hpp>
#include <support/catch.hpp>
#include <support/planes.hpp>
#include <vector>

namespace ops_draft_cpp {
namespace {

using memra::DraftArm;
using memra_test::max_error;
using memra_test::Rng;
using memra_test::same_bits;

struct Draft {
  std::size_t n_heads = 4, n_kv = 2, dim = 24;
  std::size_t window = 0, floor = 0, base = 0;
  std::size_t len = 20, block = 8, cap = 64;
  float scale = 0.2F;
  std::vector<float> k{}, v{}, q{};

  void fill() {
    Rng rng(17);
    k.assign((cap + block - base) * n_kv * dim, std::nanf(""));
    v = k;
    for (std::size_t i = 0; i < (len + block - base) * n_kv * dim; ++i) {
      k[i] = 2 * rng.uniform();
      v[i] = 2 * rng.uniform();
    }
    q = rng.vector(block * n_heads * dim, 2.0F);
  }

  memra::DraftView view(const std::int32_t* len_d, std::size_t rows) {
    memra::DraftView d;
    d.k = k.data();
    d.v = v.data();
    d.n_kv = n_kv;
    d.head_dim = dim;
    d.window = window;
    d.floor = floor;
    d.base = base;
    d.phys_rows = cap + block - base;
    d.len_d = len_d;
    d.len_bound = cap;
    d.block_rows = rows;
    return d;
  }

  std::vector<float> run(DraftArm arm) {
    std::vector<float> out(block * n_heads * dim, std::nanf(""));
    const auto len_d = static_cast<std::int32_t>(len);
    memra_test::Scratch scratch(memra::detail::draft_scratch_bytes(n_heads, n_kv, dim, block, cap));
    memra::HostDev dev;
    memra::check(memra::ops_for<memra::HostDev>(dev).draft_attend(
        view(&len_d, block), {q.data(), out.data(), n_heads, scale, arm}, scratch.view()));
    return out;
  }

  std::vector<double> oracle() const {
    std::vector<double> out(block * n_heads * dim, 0.0);
    for (std::size_t i = 0; i < block; ++i) {
      for (std::size_t h = 0; h < n_heads; ++h) {
        const std::size_t kv = h / (n_heads / n_kv);
        const std::size_t p = len + i;
        std::vector<std::size_t> keys;
        for (std::size_t key = base; key < len + block; ++key) {
          const bool in_window = window == 0 || key + window > p;
          if (key >= len || (in_window && key >= floor)) keys.push_back(key);
        }
        std::vector<double> s;
        for (const std::size_t key : keys) {
          double dot = 0;
          for (std::size_t d = 0; d < dim; ++d) {
            dot += static_cast<double>(q[(i * n_heads + h) * dim + d]) *
                   static_cast<double>(k[((key - base) * n_kv + kv) * dim + d]);
          }
          s.push_back(dot * static_cast<double>(scale));
        }
        const double top = *std::max_element(s.begin(), s.end());
        double sum = 0;
        double* o = out.data() + (i * n_heads + h) * dim;
        for (std::size_t j = 0; j < keys.size(); ++j) {
          const double w = std::exp(s[j] - top);
          sum += w;
          for (std::size_t d = 0; d < dim; ++d) {
            o[d] += w * static_cast<double>(v[((keys[j] - base) * n_kv + kv) * dim + d]);
          }
        }
        for (std::size_t d = 0; d < dim; ++d) o[d] /= sum;
      }
    }
    return out;
  }
};

constexpr double tolerance = 1e-5;  // softmax over at most 100 rows of size two in f32

TEST_CASE("draft attention: both arms against float64 and bit for bit", "[ops][draft][identity]") {
  for (const std::size_t dim : {1U, 16U, 24U, 32U, 100U, 128U}) {
    for (const std::size_t window : {0U, 1U, 4U, 8U, 9U, 19U, 64U}) {
      for (const std::size_t len : {0U, 1U, 7U, 20U, 64U}) {
        for (const std::size_t floor : {std::size_t{0}, len / 2, len}) {
          Draft d{.dim = dim, .window = window, .floor = floor, .len = len};
          d.fill();
          CAPTURE(dim, window, len, floor);
          const std::vector<float> clip = d.run(DraftArm::clip);
          REQUIRE(max_error(clip, d.oracle()) < tolerance);
          REQUIRE(same_bits(clip, d.run(DraftArm::full_scan)));
        }
      }
    }
  }
}

TEST_CASE("scratch of draft attention by hand", "[ops][draft]") {
  using memra::detail::draft_most_pieces;
  using memra::detail::draft_scratch_bytes;
  REQUIRE(draft_scratch_bytes(32, 8, 96, 16, 2048) == (2048 + 16) * 4 * 16 + 64);  // scores of one head
  // 2,064 keys fill 17 pieces of 128 at most, and lie in 18; of each 128 sums and four more floats.
  REQUIRE(draft_most_pieces(2064) == 18);
  REQUIRE(draft_scratch_bytes(32, 8, 128, 16, 2048) == std::size_t{16} * 32 * 18 * 132 * 4 + 64);
  REQUIRE(draft_most_pieces(1) == 2);
  REQUIRE(draft_most_pieces(1000000) == 65);  // pieces become larger
  REQUIRE(draft_scratch_bytes(1, 1, 32, 1, 1000000) == 1000001 * 4 + 64);
}

TEST_CASE("draft attention serves group sizes and block sizes", "[ops][draft][identity]") {
  for (const std::size_t group : {1U, 2U, 8U}) {
    for (const std::size_t block : {1U, 2U, 5U, 16U}) {
      Draft d{.n_heads = 2 * group, .window = 6, .block = block};
      d.fill();
      CAPTURE(group, block);
      REQUIRE(max_error(d.run(DraftArm::clip), d.oracle()) < tolerance);
      REQUIRE(same_bits(d.run(DraftArm::clip), d.run(DraftArm::full_scan)));
    }
  }
}

TEST_CASE("a NaN in a masked row reaches the full scan only", "[ops][draft][identity]") {
  for (const std::size_t row : {0U, 3U, 11U}) {
    for (const bool in_v : {false, true}) {
      Draft d{.window = 6, .floor = 2};
      d.fill();
      const std::vector<float> clean = d.run(DraftArm::clip);
      (in_v ? d.v : d.k)[row * d.n_kv * d.dim + 5] = std::nanf("");
      CAPTURE(row, in_v);
      REQUIRE(same_bits(d.run(DraftArm::clip), clean));
      // Red arm: 0 * NaN is NaN, so the arms part where V holds one. A masked score is never used, so K may hold any.
      REQUIRE(same_bits(d.run(DraftArm::full_scan), clean) == !in_v);
    }
  }
  // Red arm of the clipped side: the oldest row the first query sees.
  Draft d{.window = 6};
  d.fill();
  const std::vector<float> clean = d.run(DraftArm::clip);
  d.k[(d.len - 5) * d.n_kv * d.dim] = std::nanf("");
  REQUIRE_FALSE(same_bits(d.run(DraftArm::clip), clean));
}

TEST_CASE("draft planes whose first row is not row 0", "[ops][draft][identity]") {
  Draft whole{.window = 7, .len = 40};
  whole.fill();
  Draft part{.window = 7, .base = 30, .len = 40};
  part.fill();
  const auto skip = static_cast<std::ptrdiff_t>(30 * whole.n_kv * whole.dim);
  part.k.assign(whole.k.begin() + skip, whole.k.end());
  part.v.assign(whole.v.begin() + skip, whole.v.end());
  part.q = whole.q;
  REQUIRE(same_bits(part.run(DraftArm::clip), whole.run(DraftArm::clip)));
  REQUIRE(same_bits(part.run(DraftArm::full_scan), whole.run(DraftArm::clip)));
}

TEST_CASE("draft attention: the window check notices one row more or less", "[ops][draft]") {
  Draft d{.window = 6};
  d.fill();
  const std::vector<double> want = d.oracle();
  for (const std::size_t window : {5U, 7U}) {
    d.window = window;
    REQUIRE(max_error(d.run(DraftArm::clip), want) > tolerance);
  }
  d.window = 6;
  d.floor = 18;
  REQUIRE(max_error(d.run(DraftArm::clip), want) > tolerance);
}

TEST_CASE("draft_write puts rows at the device position and nowhere else", "[ops][draft][identity]") {
  for (const std::int32_t len : {0, 5, 20, 66, 70, 90}) {
    Draft d{.base = 3};
    d.fill();
    d.k.assign(d.k.size(), -1.0F);
    d.v.assign(d.v.size(), -2.0F);
    Rng rng(5);
    const std::vector<float> k = rng.vector(8 * d.n_kv * d.dim);
    const std::vector<float> v = rng.vector(8 * d.n_kv * d.dim);
    Draft single = d;
    memra::HostDev dev;
    const memra::ops_for<memra::HostDev> ops(dev);
    REQUIRE(ops.draft_write(d.view(&len, 8), k.data(), v.data()).ok());
    const std::size_t width = d.n_kv * d.dim;
    for (std::size_t i = 0; i < d.k.size(); ++i) {
      const std::int64_t at = static_cast<std::int64_t>(i / width) + 3 - len;
      const bool mine = at >= 0 && at < 8;
      const std::size_t from = mine ? static_cast<std::size_t>(at) * width + i % width : 0;
      REQUIRE(d.k[i] == (mine ? k[from] : -1.0F));
      REQUIRE(d.v[i] == (mine ? v[from] : -2.0F));
    }
    for (std::int32_t i = 0; i < 8; ++i) {
      const std::int32_t at = len + i;
      const std::size_t from = static_cast<std::size_t>(i) * width;
      REQUIRE(ops.draft_write(single.view(&at, 1), k.data() + from, v.data() + from).ok());
    }
    REQUIRE(same_bits(single.k, d.k));
    REQUIRE(same_bits(single.v, d.v));
  }
}

}  // namespace
}  // namespace ops_draft_cpp
