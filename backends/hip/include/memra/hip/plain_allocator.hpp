// PlainHipAllocator: memory for a HipDev without a pool.
#pragma once

#include <hip/hip_runtime_api.h>

#include <cstddef>

namespace memra {

/// For releases of ROCm whose stream-ordered pools cannot be trusted: HipDev::adopt(allocator) takes every allocation
/// from hipMalloc. Slower to allocate and to free, each of which waits for the device; decoding does neither.
struct PlainHipAllocator {
  /// @return at least 256-byte aligned, contents undefined; nullptr when out of memory
  void* allocate(hipStream_t /*stream*/, std::size_t bytes, std::size_t /*align*/) noexcept {
    void* p = nullptr;
    if (hipMalloc(&p, bytes) == hipSuccess) return p;
    (void)hipGetLastError();
    return nullptr;
  }
  /// Waits until the stream is done with the memory.
  void deallocate(hipStream_t stream, void* p, std::size_t /*bytes*/, std::size_t /*align*/) noexcept {
    (void)hipStreamSynchronize(stream);
    (void)hipFree(p);
  }
};

}  // namespace memra
