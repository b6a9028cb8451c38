// Devices that are MinimalDev but for one thing, each with its corrected twin: NearMiss<true> models KvDev.
// tests/concepts asserts what each one lacks; tests/compile_fail shows the sentence its author reads.
#pragma once

#include <concepts/minimal_dev.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <type_traits>
#include <vector>

namespace memra_test {

/// A vector can be copied, so two owners would free one plane.
template <bool corrected>
struct BufferIsVector : MinimalDev {
  using Buffer = std::conditional_t<corrected, MinimalDev::Buffer, std::vector<std::byte>>;
};

/// Null for "out of memory" instead of a Result.
template <bool corrected>
struct AllocReturnsBuffer : MinimalDev {
  std::conditional_t<corrected, memra::Result<Buffer>, Buffer> alloc(std::size_t n) noexcept { return Buffer(n); }
};

/// Zeroes memory that exists instead of making some.
template <bool corrected>
struct ZerosInPlace : MinimalDev {
  memra::Result<Buffer> zeros(std::conditional_t<corrected, std::size_t, Buffer*>) noexcept { return Buffer{}; }
};

/// May throw: a half-done change would be left behind.
template <bool corrected>
struct CopyMayThrow : MinimalDev {
  memra::Status copy(std::byte* dst, const std::byte* src, std::size_t n) noexcept(corrected) {
    return move(dst, src, n);
  }
};

/// Reports nothing.
template <bool corrected>
struct MoveReturnsVoid : MinimalDev {
  std::conditional_t<corrected, memra::Status, void> move(std::byte*, const std::byte*, std::size_t) noexcept {
    return std::conditional_t<corrected, memra::Status, void>();
  }
};

/// memset's argument type.
template <bool corrected>
struct FillTakesInt : MinimalDev {
  memra::Status fill(std::byte*, std::conditional_t<corrected, std::byte, int>, std::size_t) noexcept { return {}; }
};

/// The source is not const.
template <bool corrected>
struct UploadWantsMutableSource : MinimalDev {
  memra::Status upload(std::byte*, std::conditional_t<corrected, const std::byte, std::byte>*, std::size_t) noexcept {
    return {};
  }
};

/// A bool cannot say what went wrong.
template <bool corrected>
struct DownloadReturnsBool : MinimalDev {
  std::conditional_t<corrected, memra::Status, bool> download(std::byte*, const std::byte*, std::size_t) noexcept {
    return {};
  }
};

/// Wrong width.
template <bool corrected>
struct StoreTakesInt64 : MinimalDev {
  using Int = std::conditional_t<corrected, std::int32_t, std::int64_t>;
  memra::Status store_i32(Int*, const Int*, std::size_t) noexcept { return {}; }
};

/// Asks for a flag that nobody passes.
template <bool corrected>
struct SyncTakesArgument : MinimalDev {
  template <class... Flags>
  requires(corrected || sizeof...(Flags) == 1) memra::Status synchronize(Flags...)
  noexcept { return {}; }
};

/// An event that needs its stream to be made.
template <bool corrected>
struct EventNeedsStream : MinimalDev {
  struct StreamEvent {
    explicit StreamEvent(int) noexcept {}
  };
  using Event = std::conditional_t<corrected, MinimalDev::Event, StreamEvent>;
  memra::Status publish(Event&) noexcept { return {}; }
  memra::Status wait(const Event&) noexcept { return {}; }
};

/// Reports nothing.
template <bool corrected>
struct PublishReturnsVoid : MinimalDev {
  std::conditional_t<corrected, memra::Status, void> publish(Event&) noexcept {
    return std::conditional_t<corrected, memra::Status, void>();
  }
};

/// May throw: a half-done change would be left behind.
template <bool corrected>
struct WaitMayThrow : MinimalDev {
  memra::Status wait(const Event&) noexcept(corrected) { return {}; }
};

/// Optional, but not like this.
template <bool corrected>
struct WorkLogMayThrow : MinimalDev {
  std::shared_ptr<const memra::WorkLog> work_log() noexcept(corrected) { return nullptr; }
};

}  // namespace memra_test
