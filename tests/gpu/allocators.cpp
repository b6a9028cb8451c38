// CudaDev on the engine's memory: a cuda::mr resource of CCCL, and a caching allocator. Plain C++, no device compiler.
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE  // CCCL 3.0, which comes with CUDA 13.0, asks for it
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cuda/memory_resource>
#include <cuda/stream_ref>
#include <map>
#include <memra/cache.hpp>
#include <memra/cuda/device.hpp>
#include <new>
#include <support/catch.hpp>
#include <support/stand_in.hpp>
#include <utility>
#include <vector>

#include "support.hpp"

namespace {

using memra::check;
using memra::CudaDev;
using memra::ErrorKind;
using namespace memra_test;

/// A resource as engines built on CCCL have one: stream-ordered, with a budget, and it throws when that is spent.
class BudgetResource {
 public:
  explicit BudgetResource(std::size_t budget) : left_(budget) {}

  void* allocate_async(std::size_t n, std::size_t align, cuda::stream_ref stream) {
    void* p = nullptr;
    if (align > 256 || n > left_ || cudaMallocAsync(&p, n, stream.get()) != cudaSuccess) throw std::bad_alloc();
    left_ -= n;
    ++live;
    last = stream.get();
    return p;
  }
  void deallocate_async(void* p, std::size_t n, std::size_t, cuda::stream_ref stream) {
    cudaFreeAsync(p, stream.get());
    left_ += n;
    --live;
    last = stream.get();
  }
  void* allocate(std::size_t n, std::size_t align) { return allocate_async(n, align, cuda::stream_ref{}); }
  void deallocate(void* p, std::size_t n, std::size_t align) { deallocate_async(p, n, align, cuda::stream_ref{}); }

  bool operator==(const BudgetResource& o) const { return this == &o; }
  bool operator!=(const BudgetResource& o) const { return this != &o; }
  [[maybe_unused]] friend void get_property(const BudgetResource&, cuda::mr::device_accessible) noexcept {}

  std::size_t left() const { return left_; }
  std::size_t live = 0;
  cudaStream_t last = nullptr;  ///< the stream of the last call

 private:
  std::size_t left_;
};
static_assert(cuda::mr::async_resource_with<BudgetResource, cuda::mr::device_accessible>);

/// What CudaDev::adopt takes, over any such resource. memra does not throw or catch, so what a resource throws ends
/// here. docs/gpu.md shows it.
struct ResourceAllocator {
  cuda::mr::async_resource_ref<cuda::mr::device_accessible> resource;

  void* allocate(cudaStream_t stream, std::size_t n, std::size_t align) noexcept {
    try {
      return resource.allocate_async(n, align, cuda::stream_ref{stream});
    } catch (...) {
      return nullptr;
    }
  }
  void deallocate(cudaStream_t stream, void* p, std::size_t n, std::size_t align) noexcept {
    resource.deallocate_async(p, n, align, cuda::stream_ref{stream});
  }
};

/// An engine's caching allocator: a freed block waits in the list of its stream and goes out again at once, since
/// whatever uses it next on that stream runs later. `careless`: one list for all streams, which is the mistake.
class CachingAllocator {
 public:
  explicit CachingAllocator(bool careless = false) : careless_(careless) {}
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;
  ~CachingAllocator() {
    cudaDeviceSynchronize();
    for (const auto& [key, blocks] : free_) {
      for (void* p : blocks) cudaFree(p);
    }
  }

  void* allocate(cudaStream_t stream, std::size_t n, std::size_t align) noexcept {
    if (align > 256 || n > limit) return nullptr;
    auto& blocks = free_[key(stream, n)];
    void* p = nullptr;
    if (!blocks.empty()) {
      p = blocks.back();
      blocks.pop_back();
      ++reused;
    } else if (cudaMalloc(&p, n + 256) != cudaSuccess) {
      return nullptr;
    }
    ++live;
    return static_cast<std::byte*>(p) + off;
  }
  void deallocate(cudaStream_t stream, void* p, std::size_t n, std::size_t) noexcept {
    free_[key(stream, n)].push_back(static_cast<std::byte*>(p) - off);
    --live;
  }

  std::size_t live = 0;
  std::size_t reused = 0;
  std::size_t limit = static_cast<std::size_t>(-1);
  std::size_t off = 0;  ///< of what it gives, from where it should

 private:
  using Key = std::pair<cudaStream_t, std::size_t>;
  Key key(cudaStream_t stream, std::size_t n) const { return {careless_ ? nullptr : stream, n}; }

  bool careless_;
  std::map<Key, std::vector<void*>> free_;
};

template <class Allocator>
CudaDev adopt(Allocator& allocator, cudaStream_t stream) {
  CudaDev::Options options;
  options.stream = stream;
  return check(CudaDev::adopt(allocator, options));
}

struct OwnStream {
  OwnStream() { REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  ~OwnStream() { cudaStreamDestroy(stream); }
  cudaStream_t stream = nullptr;
};

std::byte first_byte(CudaDev& dev, const CudaDev::Buffer& b) {
  std::byte got{};
  check(dev.download(&got, b.data(), 1));
  return got;
}

TEST_CASE("S6 a cache on a cuda::mr resource", "[allocators]") {
  OwnStream own;
  BudgetResource resource(64 << 20);
  {
    ResourceAllocator allocator{resource};
    CudaDev dev = adopt(allocator, own.stream);
    auto cache = check(memra::Cache<CudaDev>::create(dev, hybrid_model(), 40));
    REQUIRE((std::size_t{64} << 20) - resource.left() == cache.plan().totals.total_bytes);
    REQUIRE(resource.last == own.stream);
    auto snap = check(cache.snapshot());
    REQUIRE(feed_by(cache, stream(30), 7).ok());
    REQUIRE((image(cache) == straight(hybrid_model(), stream(30))));
    REQUIRE(cache.rollback(snap, 0).ok());
    REQUIRE((image(cache) == straight(hybrid_model(), {})));
    REQUIRE_FALSE((image(cache) == straight(hybrid_model(), stream(1))));
  }
  REQUIRE(resource.live == 0);
  REQUIRE(resource.left() == std::size_t{64} << 20);
}

TEST_CASE("S5 S6 a resource that throws is out_of_memory, and nothing is kept", "[allocators]") {
  OwnStream own;
  BudgetResource resource(100000);
  ResourceAllocator allocator{resource};
  CudaDev dev = adopt(allocator, own.stream);
  auto fits = check(dev.zeros(60000));
  const auto refused = dev.alloc(60000);
  REQUIRE(refused.status().kind() == ErrorKind::out_of_memory);
  REQUIRE(refused.status().bytes() == 60000);
  REQUIRE(resource.live == 1);
  // A cache takes several blocks: those it got before the failure go back.
  const std::size_t left = resource.left();
  const auto cache = memra::Cache<CudaDev>::create(dev, hybrid_model(), 100000);
  REQUIRE(cache.status().kind() == ErrorKind::out_of_memory);
  REQUIRE(resource.live == 1);
  REQUIRE(resource.left() == left);
  REQUIRE(dev.alloc(1000).ok());  // the device goes on
  REQUIRE(cudaPeekAtLastError() == cudaSuccess);
}

TEST_CASE("S6 a caching allocator on an adopted stream", "[allocators]") {
  OwnStream own;
  CachingAllocator allocator;
  {
    CudaDev dev = adopt(allocator, own.stream);
    REQUIRE(dev.stream() == own.stream);
    auto cache = check(memra::Cache<CudaDev>::create(dev, hybrid_model(), 40));
    REQUIRE(allocator.live > 0);
    REQUIRE(feed_by(cache, stream(30), 7).ok());
    REQUIRE((image(cache) == straight(hybrid_model(), stream(30))));
    { auto b = check(dev.alloc(12345)); }
    { auto b = check(dev.alloc(12345)); }
    REQUIRE(allocator.reused == 1);
    allocator.limit = 100;
    REQUIRE(dev.alloc(1000).status().kind() == ErrorKind::out_of_memory);
    allocator.limit = static_cast<std::size_t>(-1);
    // What is given up inside a capture goes back after it, not at every replay.
    auto b = check(dev.alloc(4096));
    const std::size_t before = allocator.live;
    check(dev.begin_capture());
    { const CudaDev::Buffer gone(std::move(b)); }
    REQUIRE(allocator.live == before);
    check(dev.end_capture());
    auto next = check(dev.alloc(777));
    REQUIRE(allocator.live == before);
    // Planes are aligned; an allocator that breaks its word is found out, and gets its block back.
    allocator.off = 16;
    const auto crooked = dev.alloc(888);
    REQUIRE(crooked.status().kind() == ErrorKind::device_failure);
    REQUIRE(allocator.live == before);
    allocator.off = 0;
  }
  REQUIRE(allocator.live == 0);
}

/// Buffer of `first` freed while its work waits, then a buffer of `second`: whether both got what they wrote.
bool ordered(CachingAllocator& allocator, CudaDev& first, CudaDev& second) {
  const std::size_t n = 1 << 20;
  auto kept = check(first.zeros(n));
  check(second.fill(kept.data(), std::byte{9}, n));
  (void)first_byte(second, kept);  // fills and copies are loaded on both
  (void)first_byte(first, kept);
  { auto warm = check(first.alloc(n)); }  // a free block of each stream: nothing is allocated while one is held
  { auto warm = check(second.alloc(n)); }
  const std::size_t reused = allocator.reused;
  Hold hold(first.stream());
  REQUIRE(hold.held());
  {
    auto a = check(first.alloc(n));
    check(first.fill(a.data(), std::byte{1}, n));
    check(first.copy(kept.data(), a.data(), n));
  }  // freed while nothing of this has run
  auto later = check(second.alloc(n));
  REQUIRE(allocator.reused == reused + 2);
  check(second.fill(later.data(), std::byte{2}, n));
  if (&first != &second) check(second.synchronize());
  hold.release();
  check(first.synchronize());
  return first_byte(first, kept) == std::byte{1} && first_byte(second, later) == std::byte{2};
}

TEST_CASE("S2 freed in stream order: a block is not reused before its work is done", "[allocators]") {
  OwnStream one;
  OwnStream two;
  {
    CachingAllocator allocator;
    CudaDev a = adopt(allocator, one.stream);
    CudaDev b = adopt(allocator, two.stream);
    REQUIRE(ordered(allocator, a, a));
    REQUIRE(ordered(allocator, a, b));
  }
  {
    CachingAllocator allocator(true);  // red arm: it hands a block of one stream to another
    CudaDev a = adopt(allocator, one.stream);
    CudaDev b = adopt(allocator, two.stream);
    REQUIRE(ordered(allocator, a, a));
    REQUIRE_FALSE(ordered(allocator, a, b));
  }
}

}  // namespace
