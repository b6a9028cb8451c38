// DevCall: one call on a device as the wrapper devices (FaultDev, CanaryDev, CountingDev ...) see it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace memra {

/// The operations of a device that a wrapper can count, fail or check. Freeing is not among them: it cannot fail.
enum class DevOp : std::uint8_t {
  alloc,
  zeros,
  copy,
  move,
  fill,
  upload,
  download,
  store_i32,
  synchronize,
  publish,
  wait,
  copy_batch,
  copy_peer,
  launch,  ///< a kernel: one `launch`, or one op of ops_for
};
inline constexpr std::size_t n_dev_ops = 14;

/// The operation's name, as a Status spells it.
constexpr const char* to_string(DevOp op) noexcept {
  constexpr const char* names[n_dev_ops] = {"alloc",  "zeros",      "copy",      "move",        "fill",
                                            "upload", "download",   "store_i32", "synchronize", "publish",
                                            "wait",   "copy_batch", "copy_peer", "launch"};
  return static_cast<std::size_t>(op) < n_dev_ops ? names[static_cast<std::size_t>(op)] : "unknown";
}

/// One call. A call of zero bytes, or with an empty grid, does nothing and is not seen by wrappers.
struct DevCall {
  DevOp op = DevOp::copy;
  const char* name = "";           ///< of the kernel for a launch, else to_string(op)
  std::size_t bytes = 0;           ///< asked for, written or read; 0 for launch, synchronize, publish and wait
  const std::byte* dst = nullptr;  ///< device memory that the call overwrites; nullptr: none, or several
};

}  // namespace memra
