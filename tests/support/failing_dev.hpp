// FailingDev: a HostDev that fails its n-th call half way, counts what it does, and fills new and freed memory with
// NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memra/error.hpp>
#include <memra/host_dev.hpp>
#include <memra/kv_dev.hpp>
#include <utility>

namespace memra_test {

/// Shared by devices and their buffers, so that it may be asked after both are gone.
struct Calls {
  long fail_at = 0;  ///< the call that fails, counted from 1; 0: none
  long seen = 0;     ///< calls since arm()
  bool fired = false;
  long allocs = 0;
  long live_buffers = 0;
  std::size_t live_bytes = 0;
  std::size_t allocated_bytes = 0;
  long copies = 0;
  std::size_t copied_bytes = 0;
  long host_copies = 0;  ///< upload and download
  long stores = 0;

  void arm(long n) {
    fail_at = n;
    seen = 0;
    fired = false;
  }
  bool fails() {
    ++seen;
    if (fail_at == 0 || seen != fail_at) return false;
    fired = true;
    return true;
  }
};

class FailingDev {
 public:
  using kernels = memra::HostKernels;

  class Buffer {
   public:
    Buffer() noexcept = default;
    Buffer(memra::HostDev::Buffer b, std::shared_ptr<Calls> calls) noexcept
        : inner_(std::move(b)), calls_(std::move(calls)) {
      ++calls_->live_buffers;
      calls_->live_bytes += inner_.size();
    }
    Buffer(Buffer&& o) noexcept = default;
    Buffer& operator=(Buffer&& o) noexcept {
      Buffer taken(std::move(o));
      std::swap(inner_, taken.inner_);
      std::swap(calls_, taken.calls_);
      return *this;
    }
    ~Buffer() {
      if (!calls_) return;
      --calls_->live_buffers;
      calls_->live_bytes -= inner_.size();
      if (inner_.size() != 0) std::memset(inner_.data(), 0xFF, inner_.size());
    }
    std::byte* data() const noexcept { return inner_.data(); }
    std::size_t size() const noexcept { return inner_.size(); }

   private:
    memra::HostDev::Buffer inner_;
    std::shared_ptr<Calls> calls_;
  };
  struct Event {};

  explicit FailingDev(std::shared_ptr<Calls> calls = std::make_shared<Calls>(), std::size_t gap = 0)
      : calls_(std::move(calls)), gap_(gap) {}

  Calls& calls() const noexcept { return *calls_; }
  std::size_t plane_gap() const noexcept { return gap_; }

  memra::Result<Buffer> alloc(std::size_t n) noexcept {
    if (calls_->fails()) return memra::Status::failure(memra::ErrorKind::out_of_memory, "alloc", 2, n, "told to fail");
    auto made = inner_.alloc(n);
    if (!made) return made.status();
    if (n != 0) std::memset(made->data(), 0xFF, n);
    ++calls_->allocs;
    calls_->allocated_bytes += n;
    return Buffer(*std::move(made), calls_);
  }
  memra::Result<Buffer> zeros(std::size_t n) noexcept {
    auto made = alloc(n);
    if (made && n != 0) std::memset(made->data(), 0, n);
    return made;
  }
  memra::Status copy(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    ++calls_->copies;
    calls_->copied_bytes += n;
    const bool fails = calls_->fails();
    if (auto s = inner_.copy(dst, src, fails ? n / 2 : n); !s) return s;
    return fails ? failed("copy", n) : memra::Status();
  }
  memra::Status move(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    const bool fails = calls_->fails();
    if (auto s = inner_.move(dst, src, fails ? n / 2 : n); !s) return s;
    return fails ? failed("move", n) : memra::Status();
  }
  memra::Status fill(std::byte* dst, std::byte value, std::size_t n) noexcept {
    const bool fails = calls_->fails();
    if (auto s = inner_.fill(dst, value, fails ? n / 2 : n); !s) return s;
    return fails ? failed("fill", n) : memra::Status();
  }
  memra::Status upload(std::byte* dst, const std::byte* host, std::size_t n) noexcept {
    ++calls_->host_copies;
    const bool fails = calls_->fails();
    if (auto s = inner_.upload(dst, host, fails ? n / 2 : n); !s) return s;
    return fails ? failed("upload", n) : memra::Status();
  }
  memra::Status download(std::byte* host, const std::byte* src, std::size_t n) noexcept {
    ++calls_->host_copies;
    if (calls_->fails()) return failed("download", n);
    return inner_.download(host, src, n);
  }
  memra::Status store_i32(std::int32_t* dst, const std::int32_t* values, std::size_t n) noexcept {
    ++calls_->stores;
    if (calls_->fails()) return failed("store_i32", n * sizeof(std::int32_t));
    return inner_.store_i32(dst, values, n);
  }
  memra::Status synchronize() noexcept { return {}; }
  memra::Status publish(Event&) noexcept { return {}; }
  memra::Status wait(const Event&) noexcept { return {}; }

  template <class Body>
  memra::Status launch(const char* name, memra::Grid grid, const Body& body) noexcept {
    if (calls_->fails()) return failed(name, 0);
    return inner_.launch(name, grid, body);
  }

 private:
  static memra::Status failed(const char* call, std::size_t n) noexcept {
    return memra::Status::failure(memra::ErrorKind::device_failure, call, 700, n, "told to fail");
  }

  memra::HostDev inner_;
  std::shared_ptr<Calls> calls_;
  std::size_t gap_;
};

static_assert(memra::check_kv_dev<FailingDev>());

}  // namespace memra_test
