// The suite is itself tested: devices that break one rule each, and the property that must notice.
#include <concepts/minimal_dev.hpp>
#include <conformance/conformance.hpp>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <string>
#include <support/catch.hpp>
#include <utility>
#include <vector>

namespace red_arms_cpp {
namespace {

using memra::HostDev;
using memra::Status;
using memra_conformance::Property;
using memra_test::MinimalDev;

/// Names of the properties that fail, of those whose name starts with `start`.
std::vector<std::string> failing(const std::vector<Property>& properties, const std::string& start = "") {
  std::vector<std::string> names;
  for (const Property& p : properties) {
    if (p.name.rfind(start, 0) == 0 && !memra_conformance::attempt(p).ok()) names.push_back(p.name);
  }
  return names;
}
/// Only the properties of one rule run: on some of these devices others would corrupt the heap.
template <class Make>
void must_fail(const std::string& start) {
  INFO(start);
  REQUIRE(!failing(memra_conformance::device_properties<Make>(), start).empty());
}

struct CopiesOverlap : MinimalDev {
  Status copy(std::byte* dst, const std::byte* src, std::size_t n) noexcept { return move(dst, src, n); }
};
struct MovesUpwardsOnly : MinimalDev {
  Status move(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    for (std::size_t i = 0; i < n; ++i) dst[i] = src[i];
    return {};
  }
};
struct FillsOneTooFew : MinimalDev {
  Status fill(std::byte* dst, std::byte v, std::size_t n) noexcept { return MinimalDev::fill(dst, v, n - (n > 1)); }
};
struct ZerosAreNot : MinimalDev {
  memra::Result<Buffer> zeros(std::size_t n) noexcept {
    auto made = alloc(n);
    if (made && n != 0) std::memset(made->data(), 0xff, n);
    return made;
  }
};
/// Keeps the caller's pointer of an upload until the next download.
struct UploadsLate : MinimalDev {
  Status upload(std::byte* dst, const std::byte* host, std::size_t n) noexcept {
    late.push_back({dst, host, n});
    return {};
  }
  Status download(std::byte* host, const std::byte* src, std::size_t n) noexcept {
    for (const auto& l : std::exchange(late, {})) std::memcpy(l.dst, l.host, l.n);
    return MinimalDev::download(host, src, n);
  }
  struct Late {
    std::byte* dst;
    const std::byte* host;
    std::size_t n;
  };
  std::vector<Late> late;
};
/// Fills run behind everything that is called after them, until a download.
struct LosesOrder : MinimalDev {
  Status fill(std::byte* dst, std::byte v, std::size_t n) noexcept {
    late.push_back({dst, v, n});
    return {};
  }
  Status download(std::byte* host, const std::byte* src, std::size_t n) noexcept {
    for (const auto& l : std::exchange(late, {})) static_cast<void>(MinimalDev::fill(l.dst, l.v, l.n).ok());
    return MinimalDev::download(host, src, n);
  }
  struct Late {
    std::byte* dst;
    std::byte v;
    std::size_t n;
  };
  std::vector<Late> late;
};
struct SaysLittle : MinimalDev {
  Status copy(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    if (Status s = MinimalDev::copy(dst, src, n); !s) return Status::failure(s.kind(), "op", 0, 0, "no");
    return {};
  }
};
struct CountsIn32Bits : HostDev {
  static constexpr bool beyond_4_gib = true;
  Status copy(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    return HostDev::copy(dst, src, static_cast<std::uint32_t>(n));
  }
};
struct LaunchesOneTooFew : HostDev {
  template <class Body>
  Status launch(const char* name, memra::Grid g, const Body& body) noexcept {
    return HostDev::launch(name, memra::Grid{g.x - (g.x > 1), g.y, g.z}, body);
  }
};
/// Says of all its work that it is one batch.
struct OneBatch : MinimalDev {
  std::shared_ptr<const memra::WorkLog> log = std::make_shared<memra::WorkLog>();
  std::shared_ptr<const memra::WorkLog> work_log() noexcept { return log; }
};

struct IgnoresAllocator : HostDev {
  template <class A>
  static IgnoresAllocator adopt(A&) {
    return {};
  }
};

TEST_CASE("the suite notices a device that breaks one rule", "[conformance]") {
  must_fail<LosesOrder>("S1");
  must_fail<ZerosAreNot>("S2 zeros");
  must_fail<FillsOneTooFew>("S1");
  must_fail<CopiesOverlap>("S3 copy refuses");
  must_fail<MovesUpwardsOnly>("S3 move");
  must_fail<SaysLittle>("S5");
  must_fail<OneBatch>("S5 a work log");
  must_fail<IgnoresAllocator>("S6");
  must_fail<LaunchesOneTooFew>("S10");
  if (memra_conformance::under_address_sanitizer()) return;  // it ends the program at the first late read
  must_fail<UploadsLate>("S9 upload");
  must_fail<CountsIn32Bits>("S3 offsets");
}

/// Drops the second half of every copy above 64 bytes: what a cache keeps is then not what it was given.
struct CopiesShort : MinimalDev {
  Status copy(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    return MinimalDev::copy(dst, src, n > 64 ? n / 2 : n);
  }
};
/// Stores the first of several ints only: a ring's base stays what it was.
struct StoresOne : MinimalDev {
  Status store_i32(std::int32_t* dst, const std::int32_t* values, std::size_t n) noexcept {
    return MinimalDev::store_i32(dst, values, n == 0 ? 0 : 1);
  }
};
/// A kernel set whose append forgets the second row of a call.
struct ForgetfulKernels : memra::HostKernels {
  template <class D>
  static Status append(D& d, memra::KvWriteView kv, const float* k, const float* v) noexcept {
    if (kv.at.rows > 1) --kv.at.rows;
    return memra::HostKernels::append(d, kv, k, v);
  }
  /// And whose batches take the next sequence's rows for a sequence's own.
  template <class D>
  static memra::Status attend_batch(D& d, memra::AttendBatchView b, const memra::AttendArgs& a,
                                    const memra::WorkspaceView& ws) noexcept {
    ++b.starts;
    --b.n;
    return memra::HostKernels::attend_batch(d, b, a, ws);
  }
};
struct ForgetfulDev : HostDev {
  using kernels = ForgetfulKernels;
};
/// One whose rounds by stash keep the state of before, and one that moves no position at a round's end.
struct IdleKernels : memra::HostKernels {
  template <class D>
  static Status round_apply(D&, const memra::RoundCommit&, const memra::RoundCommit*, std::size_t) noexcept {
    return {};
  }
};
struct IdleDev : HostDev {
  using kernels = IdleKernels;
};
struct StuckKernels : memra::HostKernels {
  template <class D>
  static Status round_commit(D&, const memra::RoundCommit&, const memra::RoundCommit*, std::size_t) noexcept {
    return {};
  }
};
struct StuckDev : HostDev {
  using kernels = StuckKernels;
};

TEST_CASE("the cache and kernel suites notice what gets lost", "[conformance]") {
  const auto cache = failing(memra_conformance::cache_properties<CopiesShort>());
  REQUIRE(cache.size() >= 3);  // rollback, prefix and tails all copy
  REQUIRE(failing(memra_conformance::cache_properties<CopiesShort>(), "D8").size() == 1);
  REQUIRE(failing(memra_conformance::cache_properties<StoresOne>(), "D8").size() == 1);
  const auto kernels = failing(memra_conformance::kernel_properties<ForgetfulDev>());
  REQUIRE(kernels.size() >= 3);
  REQUIRE(failing(memra_conformance::kernel_properties<ForgetfulDev>(), "C10 sequences").size() == 1);
  REQUIRE(failing(memra_conformance::kernel_properties<IdleDev>(), "R").size() == 1);
  REQUIRE(failing(memra_conformance::kernel_properties<StuckDev>(), "R").size() == 1);
  REQUIRE(failing(memra_conformance::kernel_properties<HostDev>()).empty());
  REQUIRE(failing(memra_conformance::cache_properties<MinimalDev>()).empty());
}

}  // namespace
}  // namespace red_arms_cpp
