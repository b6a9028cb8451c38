// HostDev: plain memory and plain loops. The reference every other device is compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <memra/launch.hpp>
#include <new>
#include <utility>

namespace memra {

/// Tag of the kernels a HostDev runs; defined in <memra/host_ops.hpp>.
struct HostKernels;

/// The stream a HostDev hands to an adopted allocator: host work is done when the call returns, so it carries nothing.
struct HostStream {};

/// A KvDev on the CPU. Single-threaded and synchronous: each call is complete when it returns.
///
/// Copyable-free and cheap; keep it alive while caches made on it are in use (their memory may outlive it).
class HostDev {
  // Where memory comes from; shared with every buffer so that a buffer may outlive the device.
  struct Pool {
    virtual ~Pool() = default;
    virtual void* allocate(std::size_t bytes) noexcept = 0;
    virtual void deallocate(void* p, std::size_t bytes) noexcept = 0;
  };
  struct NewPool final : Pool {
    void* allocate(std::size_t bytes) noexcept override {
      // Standard libraries round the size up to the alignment, and a size that wraps there comes back as a few bytes.
      if (bytes > SIZE_MAX - plane_alignment) return nullptr;
      return ::operator new (bytes, std::align_val_t{plane_alignment}, std::nothrow);
    }
    void deallocate(void* p, std::size_t) noexcept override {
      ::operator delete (p, std::align_val_t{plane_alignment}, std::nothrow);
    }
  };
  template <class A>
  struct AdoptedPool final : Pool {
    explicit AdoptedPool(A& a) noexcept : allocator(&a) {}
    void* allocate(std::size_t bytes) noexcept override {
      return allocator->allocate(HostStream{}, bytes, plane_alignment);
    }
    void deallocate(void* p, std::size_t bytes) noexcept override {
      allocator->deallocate(HostStream{}, p, bytes, plane_alignment);
    }
    A* allocator;
  };

 public:
  using kernels = HostKernels;

  /// Memory of a HostDev. See DevBuffer.
  class Buffer {
   public:
    Buffer() noexcept = default;
    Buffer(Buffer&& o) noexcept
        : pool_(std::move(o.pool_)), data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
    Buffer& operator=(Buffer&& o) noexcept {
      Buffer taken(std::move(o));
      std::swap(pool_, taken.pool_);
      std::swap(data_, taken.data_);
      std::swap(size_, taken.size_);
      return *this;
    }
    ~Buffer() {
      if (data_ != nullptr) pool_->deallocate(data_, size_);
    }

    std::byte* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }

   private:
    friend class HostDev;
    Buffer(std::shared_ptr<Pool> pool, std::byte* data, std::size_t size) noexcept
        : pool_(std::move(pool)), data_(data), size_(size) {}

    std::shared_ptr<Pool> pool_;
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
  };

  /// Host work is done when a call returns, so an event has nothing to carry.
  struct Event {};

  HostDev() : pool_(std::make_shared<NewPool>()) {}

  /// Takes memory from the engine's allocator instead.
  ///
  /// @param allocator  `void* allocate(HostStream, std::size_t bytes, std::size_t align) noexcept` (nullptr when out of
  ///                   memory) and `void deallocate(HostStream, void*, std::size_t bytes, std::size_t align) noexcept`;
  ///                   must outlive the device and every buffer made by it
  template <class A>
  static HostDev adopt(A& allocator) {
    return HostDev(std::make_shared<AdoptedPool<A>>(allocator));
  }

  HostDev(HostDev&&) noexcept = default;
  HostDev& operator=(HostDev&&) noexcept = default;

  /// @return out_of_memory if the allocator has none, device_failure if it ignores the alignment; contents undefined
  Result<Buffer> alloc(std::size_t bytes) noexcept {
    if (pool_ == nullptr) {
      return Status::failure(ErrorKind::bad_state, "alloc", 0, bytes, "the device is empty (moved-from)");
    }
    if (bytes == 0) return Buffer{};
    void* p = pool_->allocate(bytes);
    if (p == nullptr) {
      return Status::failure(ErrorKind::out_of_memory, "alloc", 0, bytes, "the host has no %zu bytes to give", bytes);
    }
    if (reinterpret_cast<std::uintptr_t>(p) % plane_alignment != 0) {
      pool_->deallocate(p, bytes);
      return Status::failure(ErrorKind::device_failure, "alloc", 0, bytes,
                             "the allocator gave %p; expected a multiple of %zu", p, plane_alignment);
    }
    return Buffer(pool_, static_cast<std::byte*>(p), bytes);
  }

  Result<Buffer> zeros(std::size_t bytes) noexcept {
    Result<Buffer> made = alloc(bytes);
    if (made && bytes != 0) std::memset(made->data(), 0, bytes);
    return made;
  }

  /// @return bad_argument if the ranges overlap; nothing was copied then
  Status copy(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    if (n == 0) return {};
    if (detail::ranges_overlap(dst, src, n)) {
      return Status::failure(ErrorKind::bad_argument, "copy", 0, n,
                             "source and destination overlap; expected separate ranges (use move)");
    }
    return move(dst, src, n);  // not memcpy: g++ warns of the overlap just refused where it sees both addresses
  }

  Status move(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    if (n != 0) std::memmove(dst, src, n);
    return {};
  }

  Status fill(std::byte* dst, std::byte value, std::size_t n) noexcept {
    if (n != 0) std::memset(dst, std::to_integer<int>(value), n);
    return {};
  }

  Status upload(std::byte* dst, const std::byte* host, std::size_t n) noexcept {
    if (n != 0) std::memcpy(dst, host, n);
    return {};
  }

  Status download(std::byte* host, const std::byte* src, std::size_t n) noexcept {
    if (n != 0) std::memcpy(host, src, n);
    return {};
  }

  Status store_i32(std::int32_t* dst, const std::int32_t* values, std::size_t n) noexcept {
    if (n != 0) std::memcpy(dst, values, n * sizeof(std::int32_t));
    return {};
  }

  Status synchronize() noexcept { return {}; }
  Status publish(Event&) noexcept { return {}; }
  Status wait(const Event&) noexcept { return {}; }

  /// BatchedCopyDev. Items are checked one by one; those before a refused one were copied.
  Status copy_batch(const CopyItem* items, std::size_t n) noexcept {
    for (std::size_t i = 0; i < n; ++i) {
      if (Status s = copy(items[i].dst, items[i].src, items[i].bytes); !s) return s;
    }
    return {};
  }

  /// PeerCopyDev: all host devices share one address space.
  Status copy_peer(std::byte* dst, HostDev&, const std::byte* src, std::size_t n) noexcept { return copy(dst, src, n); }

  /// LaunchDev: runs the items one after another, x fastest.
  template <class Body>
  Status launch(const char* /*name*/, Grid grid, const Body& body) noexcept {
    for (std::size_t z = 0; z < grid.z; ++z) {
      for (std::size_t y = 0; y < grid.y; ++y) {
        for (std::size_t x = 0; x < grid.x; ++x) body(Item{x, y, z});
      }
    }
    return {};
  }

 private:
  explicit HostDev(std::shared_ptr<Pool> pool) noexcept : pool_(std::move(pool)) {}

  std::shared_ptr<Pool> pool_;
};

static_assert(check_kv_dev<HostDev>());
static_assert(LaunchDev<HostDev> && BatchedCopyDev<HostDev> && PeerCopyDev<HostDev>);

}  // namespace memra
