// CustomDev: the smallest real device. Its own memory, its own order, nothing optional. See README.md beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <memra/kv_dev.hpp>

struct CustomDev {
  struct Buffer {  // unique_ptr makes it move-only; the moved-from one must say 0 bytes
    std::unique_ptr<void, void (*)(void*)> memory = {nullptr, std::free};
    std::size_t bytes = 0;
    std::byte* data() const noexcept { return static_cast<std::byte*>(memory.get()); }
    std::size_t size() const noexcept { return memory ? bytes : 0; }
  };
  struct Event {};  // every call is done when it returns, so there is nothing to wait for

  memra::Result<Buffer> alloc(std::size_t n) noexcept {
    if (n == 0) return Buffer{};
    const std::size_t whole = (n / memra::plane_alignment + 1) * memra::plane_alignment;
    void* p = whole < n ? nullptr : std::aligned_alloc(memra::plane_alignment, whole);
    if (p == nullptr)
      return memra::Status::failure(memra::ErrorKind::out_of_memory, "alloc", 0, n, "malloc has no more");
    return Buffer{{p, std::free}, n};
  }
  memra::Result<Buffer> zeros(std::size_t n) noexcept {
    auto made = alloc(n);
    if (made && n != 0) std::memset(made->data(), 0, n);
    return made;
  }
  memra::Status copy(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    const auto to = reinterpret_cast<std::uintptr_t>(dst), from = reinterpret_cast<std::uintptr_t>(src);
    if (to < from + n && from < to + n)
      return memra::Status::failure(memra::ErrorKind::bad_argument, "copy", 0, n, "the ranges overlap; use move");
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
    return move(reinterpret_cast<std::byte*>(dst), reinterpret_cast<const std::byte*>(values), n * sizeof(*values));
  }
  memra::Status synchronize() noexcept { return {}; }
  memra::Status publish(Event&) noexcept { return {}; }
  memra::Status wait(const Event&) noexcept { return {}; }
};

static_assert(memra::check_kv_dev<CustomDev>());  // names the requirement that is missing, if one is
