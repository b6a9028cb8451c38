// OrderedDev: nothing happens before it must, everything happens in order, and careless code shows.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memra/counting_dev.hpp>
#include <memra/fault_dev.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/launch.hpp>
#include <memra/ordered_dev.hpp>
#include <optional>
#include <string>
#include <support/catch.hpp>
#include <utility>
#include <vector>

namespace wrappers_ordered_cpp {
namespace {

using memra::DevOp;
using memra::ErrorKind;
using Dev = memra::OrderedDev<memra::CountingDev<memra::HostDev>>;

struct Set {
  std::byte* at;
  std::byte value;
  void operator()(const memra::Item&) const noexcept { *at = value; }
};

TEST_CASE("OrderedDev runs nothing before download or synchronize", "[wrappers]") {
  Dev dev;
  auto b = memra::check(dev.zeros(64));
  memra::check(dev.fill(b.data(), std::byte{1}, 64));
  memra::check(memra::launch(dev, "set", memra::Grid{}, Set{b.data(), std::byte{2}}));
  memra::check(memra::ops_for<Dev>(dev).copy_rows(b.data() + 8, 8, b.data(), 8, 8, 1));
  const auto& n = dev.inner().counters();
  REQUIRE(n.total_calls() == 1);  // the allocation
  REQUIRE(dev.pending() == 4);
  std::byte seen[9];
  memra::check(dev.download(seen, b.data(), 9));
  REQUIRE(seen[0] == std::byte{2});
  REQUIRE(seen[1] == std::byte{1});
  REQUIRE(seen[8] == std::byte{2});
  REQUIRE(dev.pending() == 0);
  memra::check(dev.fill(b.data(), std::byte{3}, 64));
  REQUIRE(*b.data() == std::byte{2});  // reading device memory without a download shows the past
  memra::check(dev.synchronize());
  REQUIRE(*b.data() == std::byte{3});
}

TEST_CASE("OrderedDev takes its copy of what it must have read, and keeps freed memory for queued work", "[wrappers]") {
  Dev dev;
  auto kept = memra::check(dev.zeros(400));
  {
    std::vector<std::byte> host(100, std::byte{7});
    memra::check(dev.upload(kept.data(), host.data(), 100));
    host.assign(100, std::byte{9});
    std::vector<std::int32_t> values(25, 5);
    memra::check(dev.store_i32(reinterpret_cast<std::int32_t*>(kept.data() + 100), values.data(), 25));
    values.assign(25, 6);
    auto gone = memra::check(dev.alloc(100));
    memra::check(dev.fill(gone.data(), std::byte{8}, 100));
    memra::check(dev.copy(kept.data() + 200, gone.data(), 100));
  }
  REQUIRE(dev.inner().counters().frees == 0);  // freeing is queued, too
  memra::check(dev.synchronize());
  REQUIRE(dev.inner().counters().frees == 1);
  REQUIRE(kept.data()[99] == std::byte{7});
  REQUIRE(reinterpret_cast<std::int32_t*>(kept.data())[49] == 5);
  REQUIRE(kept.data()[299] == std::byte{8});
}

TEST_CASE("an event of another OrderedDev brings what it covers and no more", "[wrappers]") {
  Dev first, second;
  auto a = memra::check(first.zeros(8));
  auto b = memra::check(second.zeros(8));
  memra::check(first.fill(a.data(), std::byte{1}, 8));
  Dev::Event done;
  memra::check(first.publish(done));
  memra::check(first.fill(a.data(), std::byte{2}, 8));
  memra::check(second.wait(done));
  memra::check(second.move(b.data(), a.data(), 8));  // one address space
  REQUIRE(first.pending() == 4);                     // waiting is queued as well
  memra::check(second.synchronize());
  REQUIRE(*b.data() == std::byte{1});
  REQUIRE(first.pending() == 1);  // the second fill is not covered
  memra::check(first.synchronize());
  REQUIRE(*a.data() == std::byte{2});
}

TEST_CASE("OrderedDev shows a forgotten wait, a late read of the host and an early free", "[wrappers]") {
  {  // Red arm: the wait is missing.
    Dev first, second;
    auto a = memra::check(first.zeros(8));
    auto b = memra::check(second.zeros(8));
    memra::check(first.synchronize());
    memra::check(first.fill(a.data(), std::byte{1}, 8));
    memra::check(second.move(b.data(), a.data(), 8));
    memra::check(second.synchronize());
    REQUIRE(*b.data() == std::byte{0});
  }
  {  // Red arm: a kernel gets a pointer to host memory that changes before the launch runs.
    Dev dev;
    auto b = memra::check(dev.zeros(8));
    std::byte value{1};
    struct FromHost {
      std::byte* dst;
      const std::byte* host;
      void operator()(const memra::Item&) const noexcept { *dst = *host; }
    };
    memra::check(memra::launch(dev, "late", memra::Grid{}, FromHost{b.data(), &value}));
    value = std::byte{2};
    memra::check(dev.synchronize());
    REQUIRE(*b.data() == std::byte{2});
  }
  {  // Red arm: memory of the wrapped device that is freed behind the queue's back.
    memra::OrderedDev<memra::HostDev> dev;
    auto kept = memra::check(dev.zeros(64));
    auto early = memra::check(dev.inner().alloc(64));
    std::memset(early.data(), 1, 64);
    memra::check(dev.copy(kept.data(), early.data(), 64));
    std::memset(early.data(), 0xee, 64);  // what the next owner of the address would do
    memra::check(dev.synchronize());
    REQUIRE(*kept.data() == std::byte{0xee});
  }
}

TEST_CASE("copy_peer of OrderedDev keeps the order of both devices", "[wrappers]") {
  Dev from, to;
  auto dst = memra::check(to.zeros(8));
  {
    auto src = memra::check(from.zeros(8));
    memra::check(from.fill(src.data(), std::byte{1}, 8));
    memra::check(to.copy_peer(dst.data(), from, src.data(), 8));
    memra::check(from.fill(src.data(), std::byte{2}, 8));
  }
  memra::check(from.synchronize());  // must let the copy go first
  REQUIRE(*dst.data() == std::byte{1});
  memra::check(to.synchronize());
  REQUIRE(*dst.data() == std::byte{1});
}

TEST_CASE("S5 errors of queued work are reported by the next call, as asynchronous", "[wrappers]") {
  memra::OrderedDev<memra::FaultDev<memra::HostDev>> dev;
  auto b = memra::check(dev.zeros(8));
  memra::check(dev.synchronize());
  memra::Fault f;
  f.op = DevOp::fill;
  f.native = 700;
  dev.inner().arm(f);
  memra::check(dev.fill(b.data(), std::byte{1}, 8));  // fails later
  memra::check(dev.move(b.data() + 4, b.data(), 2));
  std::byte seen{0x55};
  const memra::Status s = dev.download(&seen, b.data(), 1);
  REQUIRE(s.kind() == ErrorKind::device_failure);
  REQUIRE(std::string(s.operation()) == "download");
  REQUIRE(s.native() == 700);
  REQUIRE(s.bytes() == 8);
  REQUIRE(std::string(s.text()).find("asynchronous error of an earlier fill") == 0);
  REQUIRE(s.asynchronous());
  REQUIRE(seen == std::byte{0x55});  // the call that reports does nothing
  REQUIRE(dev.download(&seen, b.data(), 1).ok());
  REQUIRE(seen == std::byte{0});

  // Found while another device waited: its own next call says so, the other one does not.
  memra::OrderedDev<memra::FaultDev<memra::HostDev>> other;
  dev.inner().arm(f);
  memra::check(dev.fill(b.data(), std::byte{1}, 8));
  decltype(dev)::Event e;
  memra::check(dev.publish(e));
  memra::check(other.wait(e));
  REQUIRE(other.synchronize().ok());
  REQUIRE_FALSE(dev.fill(b.data(), std::byte{3}, 8).ok());
  REQUIRE(dev.synchronize().ok());
  REQUIRE(*b.data() == std::byte{0});

  f.kind = ErrorKind::device_lost;
  dev.inner().arm(f);
  memra::check(dev.fill(b.data(), std::byte{1}, 8));
  for (int i = 0; i < 3; ++i) REQUIRE(dev.synchronize().kind() == ErrorKind::device_lost);
  REQUIRE(dev.alloc(1).status().kind() == ErrorKind::device_lost);
}

TEST_CASE("OrderedDev finishes before it goes, and its buffers and events may stay", "[wrappers]") {
  std::optional<Dev> dev(std::in_place);
  Dev other;
  Dev::Buffer kept = memra::check(dev->zeros(8));
  memra::check(dev->fill(kept.data(), std::byte{4}, 8));
  Dev::Event e;
  memra::check(dev->publish(e));
  memra::check(other.wait(e));
  dev.reset();
  REQUIRE(*kept.data() == std::byte{4});
  REQUIRE(other.synchronize().ok());
}

/// Ten kilobytes and no more.
struct Small {
  std::size_t live = 0;
  void* allocate(memra::HostStream, std::size_t bytes, std::size_t align) noexcept {
    if (live + bytes > 10240) return nullptr;
    live += bytes;
    return ::operator new (bytes, std::align_val_t{align}, std::nothrow);
  }
  void deallocate(memra::HostStream, void* p, std::size_t bytes, std::size_t align) noexcept {
    live -= bytes;
    ::operator delete (p, std::align_val_t{align}, std::nothrow);
  }
};

TEST_CASE("OrderedDev runs its queue when memory is short, because frees wait there", "[wrappers]") {
  Small small;
  memra::OrderedDev<memra::HostDev> dev(memra::HostDev::adopt(small));
  for (int i = 0; i < 5; ++i) REQUIRE(dev.alloc(8000).ok());
  REQUIRE(dev.alloc(20000).status().kind() == ErrorKind::out_of_memory);
}

}  // namespace
}  // namespace wrappers_ordered_cpp
