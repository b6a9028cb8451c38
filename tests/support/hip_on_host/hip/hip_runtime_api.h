// The part of the HIP runtime that memra calls, on the host: memory is host memory, and every call is done when it
// returns, which is one of the orders that a stream allows. Spelled as ROCm 7 spells it. For tests only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#define HIP_VERSION 70000000

enum hipError_t {
  hipSuccess = 0,
  hipErrorInvalidValue = 1,
  hipErrorOutOfMemory = 2,
  hipErrorNotInitialized = 3,
  hipErrorInsufficientDriver = 35,
  hipErrorNoDevice = 100,
  hipErrorInvalidDevice = 101,
  hipErrorECCNotCorrectable = 214,
  hipErrorInvalidHandle = 400,
  hipErrorNotReady = 600,
  hipErrorIllegalAddress = 700,
  hipErrorLaunchTimeOut = 702,
  hipErrorContextIsDestroyed = 709,
  hipErrorAssert = 710,
  hipErrorLaunchFailure = 719,
  hipErrorNotSupported = 801,
  hipErrorStreamCaptureUnsupported = 900,
  hipErrorIllegalState = 401
};
enum hipMemcpyKind { hipMemcpyHostToDevice = 1, hipMemcpyDeviceToHost = 2, hipMemcpyDeviceToDevice = 3 };
enum hipMemAllocationType { hipMemAllocationTypePinned = 1 };
enum hipMemLocationType { hipMemLocationTypeDevice = 1 };
enum hipMemAccessFlags { hipMemAccessFlagsProtReadWrite = 3 };
enum hipMemPoolAttr { hipMemPoolAttrReleaseThreshold = 4 };
enum hipStreamCaptureMode { hipStreamCaptureModeThreadLocal = 1 };
enum hipStreamCaptureStatus { hipStreamCaptureStatusNone = 0, hipStreamCaptureStatusActive = 1 };
enum hipFuncAttribute { hipFuncAttributeMaxDynamicSharedMemorySize = 8 };
inline constexpr unsigned hipStreamNonBlocking = 1;
inline constexpr unsigned hipEventDisableTiming = 2;
inline constexpr unsigned hipHostMallocPortable = 1;

struct hipMemLocation {
  hipMemLocationType type;
  int id;
};
struct hipPointerAttribute_t {
  int device;
};
struct hipMemAccessDesc {
  hipMemLocation location;
  hipMemAccessFlags flags;
};
struct hipMemPoolProps {
  hipMemAllocationType allocType;
  hipMemLocation location;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

using hipDeviceptr_t = void*;
using hipDevice_t = int;
using hip_on_host_work = std::vector<std::function<void()>>;
struct ihipGraph {
  hip_on_host_work work;
};
struct ihipStream {
  int device = 0;
  bool capturing = false;
  hip_on_host_work recorded;
};
struct ihipPool {
  int device = 0;
  std::uint64_t threshold = 0;
};
struct ihipEvent {
  bool recorded = false;
};
using hipStream_t = ihipStream*;
using hipGraph_t = ihipGraph*;
using hipGraphExec_t = ihipGraph*;
using hipMemPool_t = ihipPool*;
using hipEvent_t = ihipEvent*;

namespace hip_on_host {

inline constexpr int n_devices = 2;
inline constexpr std::size_t memory = std::size_t{8} << 30;  ///< more than any test has at once, of each device

/// Of a thread.
struct State {
  int device = 0;
  hipError_t last = hipSuccess;
};
inline State& state() {
  static thread_local State s;
  return s;
}
/// Of the process.
struct Memory {
  std::mutex lock;
  struct Block {
    std::size_t bytes;
    int device;
  };
  std::map<const void*, Block> live;  ///< from any of the allocation calls
  std::size_t in_use = 0;
};
inline Memory& heap() {
  static Memory m;
  return m;
}
inline hipError_t answer(hipError_t e) {
  if (e != hipSuccess) state().last = e;
  return e;
}
/// Runs `f` now, or when the graph that is being recorded is launched.
inline hipError_t enqueue(hipStream_t s, std::function<void()> f) {
  if (s != nullptr && s->capturing) {
    s->recorded.push_back(std::move(f));
  } else {
    f();
  }
  return hipSuccess;
}
inline hipError_t allocate(void** p, std::size_t n, int device) {
  Memory& m = heap();
  const std::lock_guard<std::mutex> guard(m.lock);
  if (n > memory - m.in_use) return answer(hipErrorOutOfMemory);
  *p = std::aligned_alloc(256, (n + 255) / 256 * 256);
  if (*p == nullptr) return answer(hipErrorOutOfMemory);
  if (n < (std::size_t{64} << 20)) std::memset(*p, 0xA5, n);  // nobody may count on zeros
  m.live[*p] = {n, device};
  m.in_use += n;
  return hipSuccess;
}
inline hipError_t release(void* p) {
  Memory& m = heap();
  const std::lock_guard<std::mutex> guard(m.lock);
  const auto it = m.live.find(p);
  if (it == m.live.end()) return answer(hipErrorInvalidValue);
  m.in_use -= it->second.bytes;
  m.live.erase(it);
  std::free(p);
  return hipSuccess;
}
/// Whether bytes [p, p + n) are of one allocation.
inline bool in_one(const void* p, std::size_t n) {
  Memory& m = heap();
  const std::lock_guard<std::mutex> guard(m.lock);
  auto it = m.live.upper_bound(p);
  if (it == m.live.begin()) return false;
  --it;
  return static_cast<const char*>(p) + n <= static_cast<const char*>(it->first) + it->second.bytes;
}

}  // namespace hip_on_host

inline const char* hipGetErrorString(hipError_t e) {
  return e == hipSuccess ? "no error" : e == hipErrorOutOfMemory ? "out of memory" : "an error of HIP on the host";
}
inline hipError_t hipGetLastError() {
  return std::exchange(hip_on_host::state().last, hipSuccess);
}
inline hipError_t hipPeekAtLastError() {
  return hip_on_host::state().last;
}

inline hipError_t hipGetDeviceCount(int* n) {
  *n = hip_on_host::n_devices;
  return hipSuccess;
}
inline hipError_t hipGetDevice(int* d) {
  *d = hip_on_host::state().device;
  return hipSuccess;
}
inline hipError_t hipSetDevice(int d) {
  if (d < 0 || d >= hip_on_host::n_devices) return hip_on_host::answer(hipErrorInvalidDevice);
  hip_on_host::state().device = d;
  return hipSuccess;
}
inline hipError_t hipDeviceSynchronize() {
  return hipSuccess;
}
inline hipError_t hipMemGetInfo(std::size_t* free, std::size_t* total) {
  hip_on_host::Memory& m = hip_on_host::heap();
  const std::lock_guard<std::mutex> guard(m.lock);
  *free = hip_on_host::memory - m.in_use;
  *total = hip_on_host::memory;
  return hipSuccess;
}

inline hipError_t hipStreamCreateWithFlags(hipStream_t* s, unsigned /*flags*/) {
  *s = new ihipStream{hip_on_host::state().device, false, {}};
  return hipSuccess;
}
inline hipError_t hipStreamCreate(hipStream_t* s) {
  return hipStreamCreateWithFlags(s, 0);
}
inline hipError_t hipStreamDestroy(hipStream_t s) {
  delete s;
  return hipSuccess;
}
inline hipError_t hipStreamSynchronize(hipStream_t s) {
  return hip_on_host::answer(s != nullptr && s->capturing ? hipErrorStreamCaptureUnsupported : hipSuccess);
}
inline hipError_t hipStreamQuery(hipStream_t /*s*/) {
  return hipSuccess;
}
inline hipError_t hipStreamAddCallback(hipStream_t s, void (*f)(hipStream_t, hipError_t, void*), void* x,
                                       unsigned /*flags*/) {
  return hip_on_host::enqueue(s, [=] { f(s, hipSuccess, x); });
}
/// @return hipErrorInvalidValue: `p` is in no allocation
inline hipError_t hipPointerGetAttributes(hipPointerAttribute_t* a, const void* p) {
  hip_on_host::Memory& m = hip_on_host::heap();
  const std::lock_guard<std::mutex> guard(m.lock);
  auto it = m.live.upper_bound(p);
  if (it == m.live.begin()) return hip_on_host::answer(hipErrorInvalidValue);
  --it;
  if (static_cast<const char*>(p) >= static_cast<const char*>(it->first) + it->second.bytes) {
    return hip_on_host::answer(hipErrorInvalidValue);
  }
  a->device = it->second.device;
  return hipSuccess;
}
inline hipError_t hipStreamGetDevice(hipStream_t s, hipDevice_t* d) {
  *d = s == nullptr ? hip_on_host::state().device : s->device;
  return hipSuccess;
}

inline hipError_t hipMemPoolCreate(hipMemPool_t* pool, const hipMemPoolProps* props) {
  if (props->location.id < 0 || props->location.id >= hip_on_host::n_devices) {
    return hip_on_host::answer(hipErrorInvalidValue);
  }
  *pool = new ihipPool{props->location.id, 0};
  return hipSuccess;
}
inline hipError_t hipMemPoolSetAttribute(hipMemPool_t pool, hipMemPoolAttr /*which*/, void* value) {
  std::memcpy(&pool->threshold, value, sizeof pool->threshold);
  return hipSuccess;
}
inline hipError_t hipMemPoolSetAccess(hipMemPool_t /*pool*/, const hipMemAccessDesc* access, std::size_t /*n*/) {
  const int other = access->location.id;
  return hip_on_host::answer(other < 0 || other >= hip_on_host::n_devices ? hipErrorInvalidDevice : hipSuccess);
}
inline hipError_t hipDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer ? 1 : 0;
  return hipSuccess;
}
inline hipError_t hipMemPoolDestroy(hipMemPool_t pool) {
  delete pool;
  return hipSuccess;
}
inline hipError_t hipMemPoolTrimTo(hipMemPool_t /*pool*/, std::size_t /*keep*/) {
  return hipSuccess;
}
inline hipError_t hipMallocFromPoolAsync(void** p, std::size_t n, hipMemPool_t pool, hipStream_t s) {
  if (s->capturing) return hip_on_host::answer(hipErrorStreamCaptureUnsupported);
  return hip_on_host::allocate(p, n, pool->device);
}
inline hipError_t hipFreeAsync(void* p, hipStream_t /*s*/) {
  return hip_on_host::release(p);
}
inline hipError_t hipMalloc(void** p, std::size_t n) {
  return hip_on_host::allocate(p, n, hip_on_host::state().device);
}
inline hipError_t hipFree(void* p) {
  return hip_on_host::release(p);
}
inline hipError_t hipHostMalloc(void** p, std::size_t n, unsigned /*flags*/) {
  return hip_on_host::allocate(p, n, hip_on_host::state().device);
}
inline hipError_t hipHostFree(void* p) {
  return hip_on_host::release(p);
}

inline hipError_t hipMemcpyAsync(void* dst, const void* src, std::size_t n, hipMemcpyKind kind, hipStream_t s) {
  // A wild address is refused, as a runtime that knows its allocations does.
  if (reinterpret_cast<std::uintptr_t>(dst) < 4096 || reinterpret_cast<std::uintptr_t>(src) < 4096) {
    return hip_on_host::answer(hipErrorInvalidValue);
  }
  if (kind == hipMemcpyDeviceToDevice) {
    const auto* from = static_cast<const char*>(src);
    const auto* to = static_cast<const char*>(dst);
    if (from < to + n && to < from + n) return hip_on_host::answer(hipErrorInvalidValue);
  }
  return hip_on_host::enqueue(s, [=] { std::memcpy(dst, src, n); });
}
inline hipError_t hipMemcpy2DAsync(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch,
                                   std::size_t width, std::size_t height, hipMemcpyKind /*kind*/, hipStream_t s) {
  if (dst_pitch < width || src_pitch < width) return hip_on_host::answer(hipErrorInvalidValue);
  if (height == 0 || width == 0) return hipSuccess;
  if (!hip_on_host::in_one(dst, (height - 1) * dst_pitch + width) ||
      !hip_on_host::in_one(src, (height - 1) * src_pitch + width)) {
    return hip_on_host::answer(hipErrorInvalidValue);
  }
  return hip_on_host::enqueue(s, [=] {
    for (std::size_t i = 0; i < height; ++i) {
      std::memcpy(static_cast<char*>(dst) + i * dst_pitch, static_cast<const char*>(src) + i * src_pitch, width);
    }
  });
}
inline hipError_t hipMemcpyPeerAsync(void* dst, int to, const void* src, int from, std::size_t n, hipStream_t s) {
  if (to < 0 || to >= hip_on_host::n_devices || from < 0 || from >= hip_on_host::n_devices) {
    return hip_on_host::answer(hipErrorInvalidDevice);
  }
  return hipMemcpyAsync(dst, src, n, hipMemcpyDeviceToDevice, s);
}
inline hipError_t hipMemsetAsync(void* dst, int value, std::size_t n, hipStream_t s) {
  return hip_on_host::enqueue(s, [=] { std::memset(dst, value, n); });
}
inline hipError_t hipMemsetD32Async(hipDeviceptr_t dst, int value, std::size_t n, hipStream_t s) {
  return hip_on_host::enqueue(s, [=] {
    for (std::size_t i = 0; i < n; ++i) std::memcpy(static_cast<char*>(dst) + 4 * i, &value, 4);
  });
}

inline hipError_t hipEventCreateWithFlags(hipEvent_t* e, unsigned /*flags*/) {
  *e = new ihipEvent;
  return hipSuccess;
}
inline hipError_t hipEventDestroy(hipEvent_t e) {
  delete e;
  return hipSuccess;
}
inline hipError_t hipEventRecord(hipEvent_t e, hipStream_t s) {
  // Events belong to the device that is current when they are made; a stream records those of its own.
  if (s->device != hip_on_host::state().device) return hip_on_host::answer(hipErrorInvalidHandle);
  e->recorded = true;
  return hipSuccess;
}
inline hipError_t hipStreamWaitEvent(hipStream_t /*s*/, hipEvent_t /*e*/, unsigned /*flags*/) {
  return hipSuccess;
}
inline hipError_t hipEventSynchronize(hipEvent_t /*e*/) {
  return hipSuccess;
}

inline hipError_t hipStreamIsCapturing(hipStream_t s, hipStreamCaptureStatus* status) {
  *status = s->capturing ? hipStreamCaptureStatusActive : hipStreamCaptureStatusNone;
  return hipSuccess;
}
inline hipError_t hipStreamBeginCapture(hipStream_t s, hipStreamCaptureMode /*mode*/) {
  if (s->capturing) return hip_on_host::answer(hipErrorIllegalState);
  s->capturing = true;
  return hipSuccess;
}
inline hipError_t hipStreamEndCapture(hipStream_t s, hipGraph_t* g) {
  if (!s->capturing) return hip_on_host::answer(hipErrorIllegalState);
  s->capturing = false;
  *g = new ihipGraph{std::exchange(s->recorded, {})};
  return hipSuccess;
}
inline hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t* x, hipGraph_t g, unsigned long long /*flags*/) {
  *x = new ihipGraph(*g);
  return hipSuccess;
}
inline hipError_t hipGraphLaunch(hipGraphExec_t x, hipStream_t s) {
  return hip_on_host::enqueue(s, [work = x->work] {
    for (const auto& f : work) f();
  });
}
inline hipError_t hipGraphDestroy(hipGraph_t g) {
  delete g;
  return hipSuccess;
}
inline hipError_t hipGraphExecDestroy(hipGraphExec_t x) {
  delete x;
  return hipSuccess;
}

/// Kernels are called by their types here: see launch.hpp.
inline hipError_t hipLaunchKernel(const void* /*f*/, dim3 /*grid*/, dim3 /*block*/, void** /*args*/,
                                  std::size_t /*shared*/, hipStream_t /*s*/) {
  return hip_on_host::answer(hipErrorNotSupported);
}
inline hipError_t hipFuncSetAttribute(const void* /*f*/, hipFuncAttribute /*which*/, int /*value*/) {
  return hipSuccess;
}
