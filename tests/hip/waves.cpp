// The blocks of lanes that the host emulates notice what hardware would punish: the red arms of every test on them.
#include <gpu/gpu_ops.hpp>
#include <gpu/support.hpp>
#include <support/catch.hpp>
#include <support/op_cases.hpp>
#include <utility>
#include <vector>

namespace memra_hip_test {

using namespace memra_test;

/// What each of 128 lanes wrote, and what went wrong.
template <class Body>
std::pair<std::vector<std::int32_t>, const char*> run_lanes(unsigned wave, bool last_first) {
  Gpu dev = make_gpu();
  const OnDev<Gpu> out(dev, 128 * 4, 0);
  hip_on_host::settings() = {wave, last_first};
  hip_on_host::fault() = nullptr;
  memra::check(memra::launch(dev, "lanes", memra::Grid{1, 1, 1}, Body{out.ints()}));
  hip_on_host::settings() = {};
  std::vector<std::int32_t> got(128);
  memra::check(dev.download(reinterpret_cast<std::byte*>(got.data()), out.data(), 128 * 4));
  return {got, std::exchange(hip_on_host::fault(), nullptr)};
}

struct Exchanges {
  static constexpr unsigned block_threads = 128;
  std::int32_t* out;
  __device__ void block(const memra::Item&) const {
    const std::uint32_t i = threadIdx.x;
    const std::uint32_t x = memra::detail::row_partner<1>(i) * 1000000 + memra::detail::row_partner<2>(i) * 10000 +
                            memra::detail::row_partner<4>(i) * 100 + memra::detail::row_rotate<8>(i) % 16;
    out[i] = static_cast<std::int32_t>(x);
  }
};

TEST_CASE("lanes of a row exchange values", "[waves]") {
  for (const unsigned wave : {32U, 64U}) {
    const auto [got, fault] = run_lanes<Exchanges>(wave, false);
    REQUIRE(fault == nullptr);
    for (std::int32_t i = 0; i < 128; ++i) {
      const std::int32_t want = (i ^ 1) * 1000000 + (i ^ 2) * 10000 + (i ^ 4) * 100 + (i ^ 8) % 16;
      REQUIRE(got[static_cast<std::size_t>(i)] == want);
    }
  }
}

/// Sums in an order that only a reader of the host's definition expects.
struct RowSums {
  static constexpr unsigned block_threads = 128;
  std::int32_t* out;
  __device__ void block(const memra::Item&) const {
    const auto i = static_cast<float>(threadIdx.x % 16 + 1);
    const float x = threadIdx.x % 3 == 0 ? 1e8F / i : 0.3F * i;
    out[threadIdx.x] = static_cast<std::int32_t>(memra::detail::f32_bits(memra::detail::row_sum(x)));
  }
};

TEST_CASE("the sum over a row is the host's, bit for bit, in every lane", "[waves]") {
  const auto [got, fault] = run_lanes<RowSums>(64, false);
  REQUIRE(fault == nullptr);
  std::size_t other_order = 0;
  for (unsigned row = 0; row < 8; ++row) {
    memra::detail::PortableLanes lanes;
    float ascending = 0;
    for (unsigned i = 0; i < 16; ++i) {
      const auto n = static_cast<float>(i + 1);
      const float x = (row * 16 + i) % 3 == 0 ? 1e8F / n : 0.3F * n;
      lanes.add(i, x);
      ascending = ascending + x;
    }
    for (unsigned i = 0; i < 16; ++i) {
      REQUIRE(got[row * 16 + i] == static_cast<std::int32_t>(memra::detail::f32_bits(lanes.sum())));
    }
    other_order += memra::detail::f32_bits(ascending) != memra::detail::f32_bits(lanes.sum()) ? 1 : 0;
  }
  REQUIRE(other_order > 0);  // the inputs tell orders apart
}

struct HalfARow {
  static constexpr unsigned block_threads = 128;
  std::int32_t* out;
  __device__ void block(const memra::Item&) const {
    if (threadIdx.x % 16 >= 8) return;
    out[threadIdx.x] = static_cast<std::int32_t>(memra::detail::row_rotate<8>(std::uint32_t{threadIdx.x}));
  }
};
struct AcrossRows {
  static constexpr unsigned block_threads = 128;
  std::int32_t* out;
  __device__ void block(const memra::Item&) const {
    out[threadIdx.x] =
        static_cast<std::int32_t>(memra::detail::row_move<0x142>(std::uint32_t{threadIdx.x}));  // row_bcast
  }
};
struct TwoBarriers {
  static constexpr unsigned block_threads = 128;
  std::int32_t* out;
  __device__ void block(const memra::Item&) const {
    if (threadIdx.x < 64) {
      __syncthreads();
    } else {
      __syncthreads();
    }
    out[threadIdx.x] = 1;
  }
};
struct SomeLeave {
  static constexpr unsigned block_threads = 128;
  std::int32_t* out;
  __device__ void block(const memra::Item&) const {
    if (threadIdx.x == 5) return;
    __syncthreads();
    out[threadIdx.x] = 1;
  }
};
template <bool Waits>
struct ReadsNeighbour {
  static constexpr unsigned block_threads = 128;
  std::int32_t* out;
  __device__ void block(const memra::Item&) const {
    __shared__ std::int32_t seen[128];
    seen[threadIdx.x] = static_cast<std::int32_t>(threadIdx.x) + 1;
    if (Waits) __syncthreads();
    out[threadIdx.x] = seen[(threadIdx.x + 64) % 128];
    if (Waits) __syncthreads();
    seen[threadIdx.x] = 0;
  }
};

TEST_CASE("red arms: absent lanes, other rows, barriers that not all lanes reach", "[waves]") {
  for (const unsigned wave : {32U, 64U}) {
    CHECK(run_lanes<HalfARow>(wave, false).second != nullptr);
    CHECK(run_lanes<AcrossRows>(wave, false).second != nullptr);
    CHECK(run_lanes<TwoBarriers>(wave, false).second != nullptr);
    CHECK(run_lanes<SomeLeave>(wave, false).second != nullptr);
  }
}

TEST_CASE("red arm: a missing barrier shows in one of the orders", "[waves]") {
  for (const unsigned wave : {32U, 64U}) {
    const auto right = run_lanes<ReadsNeighbour<true>>(wave, false);
    REQUIRE(right.second == nullptr);
    REQUIRE((right.first == run_lanes<ReadsNeighbour<true>>(wave, true).first));
    CHECK_FALSE((run_lanes<ReadsNeighbour<false>>(wave, false).first == right.first));
    CHECK_FALSE((run_lanes<ReadsNeighbour<false>>(wave, true).first == right.first));
  }
}

}  // namespace memra_hip_test
