// The smallest device that models KvDev: every requirement once, nothing optional, no kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <utility>

namespace memra_test {

struct MinimalDev {
  class Buffer {
   public:
    Buffer() noexcept = default;
    explicit Buffer(std::size_t bytes) noexcept
        : memory_(static_cast<std::byte*>(std::aligned_alloc(memra::plane_alignment, round_up(bytes)))),
          size_(memory_ ? bytes : 0) {}
    Buffer(Buffer&& o) noexcept : memory_(std::move(o.memory_)), size_(std::exchange(o.size_, 0)) {}
    Buffer& operator=(Buffer&& o) noexcept {
      memory_ = std::move(o.memory_);
      size_ = std::exchange(o.size_, 0);
      return *this;
    }
    ~Buffer() = default;

    std::byte* data() const noexcept { return memory_.get(); }
    std::size_t size() const noexcept { return size_; }

   private:
    struct Free {
      void operator()(std::byte* p) const noexcept { std::free(p); }
    };
    static std::size_t round_up(std::size_t n) noexcept {
      if (n > SIZE_MAX - memra::plane_alignment) return SIZE_MAX / memra::plane_alignment * memra::plane_alignment;
      return (n + memra::plane_alignment - 1) / memra::plane_alignment * memra::plane_alignment;
    }

    std::unique_ptr<std::byte, Free> memory_;
    std::size_t size_ = 0;
  };
  struct Event {};

  memra::Result<Buffer> alloc(std::size_t bytes) noexcept {
    if (bytes == 0) return Buffer{};
    Buffer made(bytes);
    if (made.data() == nullptr) {
      return memra::Status::failure(memra::ErrorKind::out_of_memory, "alloc", 0, bytes, "no memory");
    }
    return made;
  }
  memra::Result<Buffer> zeros(std::size_t bytes) noexcept {
    memra::Result<Buffer> made = alloc(bytes);
    if (made && bytes != 0) std::memset(made->data(), 0, bytes);
    return made;
  }
  memra::Status copy(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    if (n != 0 && memra::detail::ranges_overlap(dst, src, n)) {
      return memra::Status::failure(memra::ErrorKind::bad_argument, "copy", 0, n, "the ranges overlap");
    }
    return move(dst, src, n);
  }
  memra::Status move(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    if (n != 0) std::memmove(dst, src, n);
    return {};
  }
  memra::Status fill(std::byte* dst, std::byte value, std::size_t n) noexcept {
    if (n != 0) std::memset(dst, std::to_integer<int>(value), n);
    return {};
  }
  memra::Status upload(std::byte* dst, const std::byte* host, std::size_t n) noexcept { return move(dst, host, n); }
  memra::Status download(std::byte* host, const std::byte* src, std::size_t n) noexcept { return move(host, src, n); }
  memra::Status store_i32(std::int32_t* dst, const std::int32_t* values, std::size_t n) noexcept {
    if (n != 0) std::memcpy(dst, values, n * sizeof *dst);
    return {};
  }
  memra::Status synchronize() noexcept { return {}; }
  memra::Status publish(Event&) noexcept { return {}; }
  memra::Status wait(const Event&) noexcept { return {}; }
};

static_assert(memra::check_kv_dev<MinimalDev>());

}  // namespace memra_test
