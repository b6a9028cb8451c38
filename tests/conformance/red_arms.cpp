// The suite is itself tested: devices that break one rule each, and the property that must notice.
#include <array>
#include <concepts/minimal_dev.hpp>
#include <conformance/capturing_dev.hpp>
#include <conformance/conformance.hpp>
#include <conformance/erased.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memra/any_dev.hpp>
#include <memra/counting_dev.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <set>
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
void must_fail(void (*rules)(std::vector<Property>&), const std::string& start) {
  INFO(start);
  std::vector<Property> properties;
  rules(properties);
  REQUIRE(!failing(properties, start).empty());
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

/// Keeps small buffers in the object that stands for them, as some strings do: they move with it.
struct KeepsInside : MinimalDev {
  class Buffer {
   public:
    Buffer() noexcept = default;
    explicit Buffer(std::size_t bytes) noexcept : size_(bytes) {}
    Buffer(Buffer&& o) noexcept : inside_(o.inside_), size_(std::exchange(o.size_, 0)) {}
    Buffer& operator=(Buffer&& o) noexcept {
      inside_ = o.inside_;
      size_ = std::exchange(o.size_, 0);
      return *this;
    }
    ~Buffer() = default;
    std::byte* data() const noexcept { return size_ == 0 ? nullptr : inside_.data(); }
    std::size_t size() const noexcept { return size_; }
    static constexpr std::size_t room = 1024;

   private:
    alignas(memra::plane_alignment) mutable std::array<std::byte, room> inside_{};
    std::size_t size_ = 0;
  };
  memra::Result<Buffer> alloc(std::size_t n) noexcept {
    if (n > Buffer::room) return Status::failure(memra::ErrorKind::out_of_memory, "alloc", 0, n, "no memory");
    return Buffer(n);
  }
  memra::Result<Buffer> zeros(std::size_t n) noexcept { return alloc(n); }
};
/// Uploads late, from a copy of its own; who copies from it to another object does not wait for that.
struct PeerGoesAhead : MinimalDev {
  memra::Result<Buffer> alloc(std::size_t n) noexcept { return zeros(n); }
  Status upload(std::byte* dst, const std::byte* host, std::size_t n) noexcept {
    late.push_back({dst, std::vector<std::byte>(host, host + n)});
    return {};
  }
  Status download(std::byte* host, const std::byte* src, std::size_t n) noexcept {
    for (const auto& l : std::exchange(late, {})) std::memcpy(l.dst, l.bytes.data(), l.bytes.size());
    return MinimalDev::download(host, src, n);
  }
  Status copy_peer(std::byte* dst, PeerGoesAhead&, const std::byte* src, std::size_t n) noexcept {
    return MinimalDev::copy(dst, src, n);
  }
  struct Late {
    std::byte* dst;
    std::vector<std::byte> bytes;
  };
  std::vector<Late> late;
};

struct IgnoresAllocator : HostDev {
  template <class A>
  static IgnoresAllocator adopt(A&) {
    return {};
  }
};

/// What a device whose fills fail late does with that failure.
enum class Late {
  right,
  silent,           // nobody is told
  at_once,          // the call says so itself, as if it had not been late
  unnamed,          // reported as if it were that of the call which reports
  twice,            // reported again and again, though nothing is lost
  lost_for_once,    // says that it is lost, and goes on
  quiet_downloads,  // a download that waited for it says ok
  unlogged,         // its log has no batch that failed
  logs_all,         // its log has batches that went well, too
};
template <Late How>
struct FailsLate : MinimalDev {
  void fail_late() { armed = true; }
  Status fill(std::byte* dst, std::byte v, std::size_t n) noexcept {
    if (!std::exchange(armed, false)) return MinimalDev::fill(dst, v, n);
    failed = true;
    return How == Late::at_once ? failure("fill") : Status();
  }
  Status synchronize() noexcept { return waited("synchronize"); }
  Status download(std::byte* host, const std::byte* src, std::size_t n) noexcept {
    const Status s = waited("download");
    return s.ok() || How == Late::quiet_downloads ? MinimalDev::download(host, src, n) : s;
  }
  std::shared_ptr<const memra::WorkLog> work_log() noexcept { return log; }

 private:
  static Status failure(const char* call) noexcept {
    const auto kind = How == Late::lost_for_once ? memra::ErrorKind::device_lost : memra::ErrorKind::device_failure;
    return Status::failure(kind, call, 7, 0, "a fill that was queued earlier has failed");
  }
  Status waited(const char* call) noexcept {
    const std::uint64_t batch = log->batch++;
    if (How == Late::logs_all || (failed && How != Late::unlogged)) log->failed.push_back(batch);
    if (!failed) return {};
    failed = How == Late::twice;
    if (How == Late::silent) return {};
    return How == Late::unnamed ? failure(call) : failure(call).as_asynchronous();
  }
  bool armed = false;
  bool failed = false;
  std::shared_ptr<memra::WorkLog> log = std::make_shared<memra::WorkLog>();
};

TEST_CASE("the suite notices a device that keeps a late failure to itself, or tells it wrong", "[conformance]") {
  using memra_conformance::late_properties;
  std::vector<Property> right;
  late_properties<FailsLate<Late::right>>(right);
  for (const Property& p : right) {
    const auto report = memra_conformance::attempt(p);
    INFO(report.text());
    REQUIRE((report.ok() && report.checked()));
  }
  must_fail(late_properties<FailsLate<Late::silent>>, "S5 work that fails late");
  must_fail(late_properties<FailsLate<Late::at_once>>, "S5 work that fails late");
  must_fail(late_properties<FailsLate<Late::unnamed>>, "S5 work that fails late");
  must_fail(late_properties<FailsLate<Late::twice>>, "S5 work that fails late");
  must_fail(late_properties<FailsLate<Late::lost_for_once>>, "S5 work that fails late");
  must_fail(late_properties<FailsLate<Late::quiet_downloads>>, "S5 work that fails late");
  must_fail(late_properties<FailsLate<Late::unlogged>>, "S5 a work log names");
  must_fail(late_properties<FailsLate<Late::logs_all>>, "S5 a work log names");
}

using memra_test::CapturingDev;
struct UploadsAtOnce : CapturingDev {
  Status upload(std::byte* dst, const std::byte* host, std::size_t n) noexcept {
    return MinimalDev::upload(dst, host, n);
  }
};
struct RecordsUploads : CapturingDev {
  Status upload(std::byte* dst, const std::byte* host, std::size_t n) noexcept {
    return run([=, this] { return MinimalDev::upload(dst, host, n); });
  }
};
struct WaitsInside : CapturingDev {
  Status synchronize() noexcept { return {}; }
};
struct FillsAtOnce : CapturingDev {
  Status fill(std::byte* dst, std::byte v, std::size_t n) noexcept { return MinimalDev::fill(dst, v, n); }
};
/// Refuses an upload, and with it the whole capture, as vendors do.
struct DiesOfRefusal : CapturingDev {
  Status upload(std::byte* dst, const std::byte* host, std::size_t n) noexcept {
    dead = capturing();
    return CapturingDev::upload(dst, host, n);
  }
  memra::Result<Graph> end_capture() noexcept {
    auto graph = CapturingDev::end_capture();
    if (dead) return Status::failure(memra::ErrorKind::device_failure, "end_capture", 901, 0, "it was invalidated");
    return graph;
  }
  bool dead = false;
};
/// Bakes what lay in the source when the copy was recorded.
struct BakesBytes : CapturingDev {
  Status copy(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    return run([=, this, baked = std::vector<std::byte>(src, src + n)] {
      return MinimalDev::move(dst, baked.data(), baked.size());
    });
  }
};
struct StoresByAddress : CapturingDev {
  Status store_i32(std::int32_t* dst, const std::int32_t* values, std::size_t n) noexcept {
    return run([=, this] { return MinimalDev::store_i32(dst, values, n); });
  }
};

TEST_CASE("the suite notices a device that captures what it must refuse, or replays something else", "[conformance]") {
  using memra_conformance::capture_properties;
  must_fail(capture_properties<UploadsAtOnce>, "S9 inside a capture");
  must_fail(capture_properties<RecordsUploads>, "S9 inside a capture");
  must_fail(capture_properties<WaitsInside>, "S9 inside a capture");
  must_fail(capture_properties<FillsAtOnce>, "S9 inside a capture");
  must_fail(capture_properties<DiesOfRefusal>, "S9 inside a capture");
  must_fail(capture_properties<BakesBytes>, "S4 a replay");
  must_fail(capture_properties<StoresByAddress>, "S4 a replay");
}

TEST_CASE("the suite notices a device that breaks one rule", "[conformance]") {
  using namespace memra_conformance;
  must_fail(order_properties<LosesOrder>, "S1");
  must_fail(memory_properties<ZerosAreNot>, "S2 zeros");
  must_fail(order_properties<FillsOneTooFew>, "S1");
  must_fail(copy_properties<CopiesOverlap>, "S3 copy refuses");
  must_fail(copy_properties<MovesUpwardsOnly>, "S3 move");
  must_fail(failure_properties<SaysLittle>, "S5");
  must_fail(failure_properties<OneBatch>, "S5 a work log");
  must_fail(boundary_properties<IgnoresAllocator>, "S6");
  must_fail(memory_properties<KeepsInside>, "S4");
  must_fail(boundary_properties<PeerGoesAhead>, "S7");
  must_fail(boundary_properties<LaunchesOneTooFew>, "S10");
  if (memra_conformance::under_address_sanitizer()) return;  // it ends the program at the first late read
  must_fail(boundary_properties<UploadsLate>, "S9 upload");
  must_fail(copy_properties<CountsIn32Bits>, "S3 offsets");
}

/// Drops the second half of every copy above 64 bytes: what a cache keeps is then not what it was given.
struct CopiesShort : HostDev {
  Status copy(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    return HostDev::copy(dst, src, n > 64 ? n / 2 : n);
  }
};
/// Stores the first of several ints only: a ring's base stays what it was.
struct StoresOne : HostDev {
  Status store_i32(std::int32_t* dst, const std::int32_t* values, std::size_t n) noexcept {
    return HostDev::store_i32(dst, values, n == 0 ? 0 : 1);
  }
};
/// A kernel set whose append forgets the second row of a call, and whose batches take the next sequence's rows for a
/// sequence's own.
struct ForgetfulKernels : memra::HostKernels {
  template <class D>
  static Status append(D& d, memra::KvWriteView kv, const float* k, const float* v) noexcept {
    if (kv.at.rows > 1) --kv.at.rows;
    return memra::HostKernels::append(d, kv, k, v);
  }
  template <class D>
  static memra::Status attend_batch(D& d, memra::AttendBatchView b, const memra::AttendArgs& a,
                                    const memra::WorkspaceView& ws) noexcept {
    ++b.starts;
    --b.n;
    return memra::HostKernels::attend_batch(d, b, a, ws);
  }
};
/// One that wants more scratch than the plan says.
struct HungryKernels : memra::HostKernels {
  template <class D>
  static Status attend(D& d, const memra::KvReadView& kv, const memra::AttendArgs& a,
                       const memra::WorkspaceView& ws) noexcept {
    const std::size_t bytes =
        memra::detail::attend_scratch_bytes(a.n_heads, kv.n_kv_heads, kv.head_dim_k, kv.head_dim_v, kv.at.rows) + 1;
    if (ws.bytes < bytes) {
      return Status::failure(memra::ErrorKind::bad_argument, "attend", 0, bytes, "the workspace is too small");
    }
    return memra::HostKernels::attend(d, kv, a, ws);
  }
};
/// One whose rounds by stash keep the state of before, and one that moves no position at a round's end.
struct IdleKernels : memra::HostKernels {
  template <class D>
  static Status round_apply(D&, const memra::RoundCommit&, const memra::RoundCommit*, std::size_t) noexcept {
    return {};
  }
};
struct StuckKernels : memra::HostKernels {
  template <class D>
  static Status round_commit(D&, const memra::RoundCommit&, const memra::RoundCommit*, std::size_t) noexcept {
    return {};
  }
};
template <class Kernels>
struct With : HostDev {
  using kernels = Kernels;
};

using Erased = memra_conformance::Behind<memra_conformance::ErasedDev>;

template <class Dev>
std::vector<std::string> cache_failures(const std::string& start = "") {
  Erased::use<Dev>();
  return failing(memra_conformance::cache_properties<Erased>(), start);
}
template <class Dev>
std::vector<std::string> kernel_failures(const std::string& start = "") {
  Erased::use<Dev>();
  return failing(memra_conformance::kernel_properties<Erased>(), start);
}

TEST_CASE("the cache and kernel suites notice what gets lost", "[conformance]") {
  REQUIRE(cache_failures<CopiesShort>().size() >= 3);  // rollback, prefix and tails all copy
  REQUIRE(cache_failures<CopiesShort>("D8").size() == 1);
  REQUIRE(cache_failures<StoresOne>("D8").size() == 1);
  REQUIRE(kernel_failures<With<ForgetfulKernels>>().size() >= 3);
  REQUIRE(kernel_failures<With<ForgetfulKernels>>("C10 sequences").size() == 1);
  REQUIRE(kernel_failures<With<HungryKernels>>("S8").size() == 1);
  REQUIRE(kernel_failures<With<IdleKernels>>("R").size() == 1);
  REQUIRE(kernel_failures<With<StuckKernels>>("R").size() == 1);
  REQUIRE(kernel_failures<HostDev>().empty());
  REQUIRE(cache_failures<HostDev>().empty());
}

/// The door does not do by itself what it is asked: all that the suites do arrives at the device behind it.
struct Watched : memra::CountingDev<HostDev> {
  Watched() { seen = shared_counters(); }
  static inline std::shared_ptr<const memra::DevCounters> seen = nullptr;
};

TEST_CASE("what the suites ask of an ErasedDev is asked of the device behind it", "[conformance]") {
  using memra::DevOp;
  Erased::use<Watched>();
  std::set<std::string> ops;
  std::set<std::string> kernels;
  for (const auto& suite :
       {memra_conformance::cache_properties<Erased>(), memra_conformance::kernel_properties<Erased>()}) {
    for (const Property& p : suite) {
      REQUIRE(memra_conformance::attempt(p).ok());
      for (std::size_t i = 0; i < memra::n_dev_ops; ++i) {
        if (Watched::seen->calls_of[i] != 0) ops.insert(to_string(static_cast<DevOp>(i)));
      }
      for (const auto& l : Watched::seen->launches) {
        if (l.name != nullptr) kernels.insert(l.name);
      }
    }
  }
  for (const DevOp op : {DevOp::alloc, DevOp::zeros, DevOp::copy, DevOp::fill, DevOp::upload, DevOp::download,
                         DevOp::store_i32, DevOp::copy_peer, DevOp::launch}) {
    INFO(to_string(op));
    CHECK(ops.contains(to_string(op)));
  }
  for (const char* kernel : {"append", "attend", "conv_update", "delta_scan", "round_apply", "round_commit"}) {
    INFO(kernel);
    CHECK(kernels.contains(kernel));
  }
}

}  // namespace
}  // namespace red_arms_cpp
