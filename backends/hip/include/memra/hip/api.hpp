// HipApi: the HIP runtime under neutral names. Needs the runtime's headers and library, no device compiler.
//
// A plain C++ compiler reads HIP's headers once __HIP_PLATFORM_AMD__ is defined; the CMake targets do that.
#pragma once

#include <hip/hip_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace memra {

/// Tag of the kernels a HipDev runs; defined in <memra/hip/ops.hip.hpp>.
struct HipKernels;

/// What GpuDev asks of a vendor's runtime. Every call is on the current device and returns the vendor's own code.
/// Names that ROCm 5.2 and 7 both have, but for one, are used.
struct HipApi {
  using Error = hipError_t;
  using Stream = hipStream_t;
  using Event = hipEvent_t;
  using Pool = hipMemPool_t;
  using Graph = hipGraph_t;
  using GraphExec = hipGraphExec_t;
  using kernels = HipKernels;

  static constexpr Error ok = hipSuccess;

  static bool is_out_of_memory(Error e) noexcept { return e == hipErrorOutOfMemory; }

  /// No device, or none that this runtime can use: the codes that every call gives from the start.
  static bool is_absent(Error e) noexcept {
    return e == hipErrorNoDevice || e == hipErrorInsufficientDriver || e == hipErrorNotInitialized;
  }

  /// The codes after which a context answers nothing but errors. Where the runtime aborts the process instead, as it
  /// does for a wild address on most AMD GPUs, no code comes back at all.
  static bool kills_context(Error e) noexcept {
    switch (e) {
      case hipErrorIllegalAddress:
      case hipErrorLaunchFailure:
      case hipErrorLaunchTimeOut:
      case hipErrorAssert:
      case hipErrorECCNotCorrectable:
      case hipErrorContextIsDestroyed:
        return true;
      default:
        return false;
    }
  }

  static const char* text(Error e) noexcept { return hipGetErrorString(e); }
  /// Returns and clears the thread's pending error. Before ROCm 7 that is the code of the last call, good or bad.
  static Error take_last() noexcept { return hipGetLastError(); }
  static Error peek_last() noexcept { return hipPeekAtLastError(); }

  static Error get_device(int* ordinal) noexcept {
    const Error e = hipGetDevice(ordinal);
    if (e != hipErrorInvalidDevice) return e;
    // What a machine without a GPU answers, too: the count tells them apart.
    int n = 0;
    const Error counted = hipGetDeviceCount(&n);
    if (counted != ok) return counted;
    return n == 0 ? hipErrorNoDevice : e;
  }
  static Error set_device(int ordinal) noexcept { return hipSetDevice(ordinal); }

  static Error create_stream(Stream* s) noexcept { return hipStreamCreateWithFlags(s, hipStreamNonBlocking); }
  static Error destroy_stream(Stream s) noexcept { return hipStreamDestroy(s); }
  static Error synchronize(Stream s) noexcept { return hipStreamSynchronize(s); }
  static Error stream_device(Stream s, int* ordinal) noexcept {
#if HIP_VERSION >= 60000000  // ROCm 5 may lack the newer name
    return hipStreamGetDevice(s, ordinal);
#else
    const int found = hipGetStreamDeviceId(s);
    if (found < 0) return hipErrorInvalidHandle;
    *ordinal = found;
    return ok;
#endif
  }

  /// A pool of its own, which keeps what it has: freeing and allocating again does not reach the operating system. Some
  /// releases of ROCm also lose live memory of pools that give theirs back; PlainHipAllocator goes without a pool.
  static Error create_pool(Pool* pool, int ordinal) noexcept {
    hipMemPoolProps props{};
    props.allocType = hipMemAllocationTypePinned;
    props.location.type = hipMemLocationTypeDevice;
    props.location.id = ordinal;
    if (const Error e = hipMemPoolCreate(pool, &props); e != ok) return e;
    std::uint64_t threshold = UINT64_MAX;
    const Error e = hipMemPoolSetAttribute(*pool, hipMemPoolAttrReleaseThreshold, &threshold);
    if (e != ok) (void)hipMemPoolDestroy(*pool);
    return e;
  }
  static Error destroy_pool(Pool pool) noexcept {
    return hipMemPoolDestroy(pool);
  }
  static Error trim_pool(Pool pool, std::size_t keep) noexcept {
    return hipMemPoolTrimTo(pool, keep);
  }
  /// Lets device `other` reach what the pool has and will have; devices are closed to each other at first.
  static Error open_pool(Pool pool, int other) noexcept {
    hipMemAccessDesc access{};
    access.location.type = hipMemLocationTypeDevice;
    access.location.id = other;
    access.flags = hipMemAccessFlagsProtReadWrite;
    return hipMemPoolSetAccess(pool, &access, 1);
  }
  /// Whether the hardware lets device `other` reach memory of device `ordinal`.
  static Error can_reach(bool* yes, int other, int ordinal) noexcept {
    int can = 0;
    const Error e = hipDeviceCanAccessPeer(&can, other, ordinal);
    *yes = e == ok && can != 0;
    return e;
  }
  static Error allocate(void** p, std::size_t n, Pool pool, Stream s) noexcept {
    return hipMallocFromPoolAsync(p, n, pool, s);
  }
  static Error deallocate(void* p, Stream s) noexcept {
    return hipFreeAsync(p, s);
  }
  static Error allocate_pinned(void** p, std::size_t n) noexcept {
    return hipHostMalloc(p, n, hipHostMallocPortable);
  }
  static Error deallocate_pinned(void* p) noexcept {
    return hipHostFree(p);
  }

  static Error copy(void* dst, const void* src, std::size_t n, Stream s) noexcept {
    return hipMemcpyAsync(dst, src, n, hipMemcpyDeviceToDevice, s);
  }
  /// Optional in an Api: `rows` pieces of `n` bytes, each `pitch` bytes behind the one before it.
  static constexpr std::size_t longest_pitch = 0x7fffffff;  // hipDeviceAttributeMaxPitch of every device so far
  static Error copy_strided(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch, std::size_t n,
                            std::size_t rows, Stream s) noexcept {
    return hipMemcpy2DAsync(dst, dst_pitch, src, src_pitch, n, rows, hipMemcpyDeviceToDevice, s);
  }
  static Error copy_in(void* dst, const void* host, std::size_t n, Stream s) noexcept {
    return hipMemcpyAsync(dst, host, n, hipMemcpyHostToDevice, s);
  }
  static Error copy_out(void* host, const void* src, std::size_t n, Stream s) noexcept {
    return hipMemcpyAsync(host, src, n, hipMemcpyDeviceToHost, s);
  }
  static Error copy_peer(void* dst, int to, const void* src, int from, std::size_t n, Stream s) noexcept {
    return hipMemcpyPeerAsync(dst, to, src, from, n, s);
  }
  static Error set_bytes(void* dst, int value, std::size_t n, Stream s) noexcept {
    return hipMemsetAsync(dst, value, n, s);
  }

  /// HIP's runtime has all that is needed: nothing to look up.
  struct Driver {};
  static Error load(Driver* /*driver*/) noexcept {
    return ok;
  }
  /// `n` 32-bit words become `value`, which travels with the call: nothing is read later, so it may be captured.
  static Error set_words(const Driver& /*driver*/, void* dst, std::uint32_t value, std::size_t n, Stream s) noexcept {
    return hipMemsetD32Async(static_cast<hipDeviceptr_t>(dst), static_cast<int>(value), n, s);
  }

  static Error create_event(Event* e) noexcept {
    return hipEventCreateWithFlags(e, hipEventDisableTiming);
  }
  static Error destroy_event(Event e) noexcept {
    return hipEventDestroy(e);
  }
  static Error record(Event e, Stream s) noexcept {
    return hipEventRecord(e, s);
  }
  static Error wait_event(Stream s, Event e) noexcept {
    return hipStreamWaitEvent(s, e, 0);
  }
  static Error synchronize_event(Event e) noexcept {
    return hipEventSynchronize(e);
  }

  static Error is_capturing(Stream s, bool* yes) noexcept {
    hipStreamCaptureStatus status = hipStreamCaptureStatusNone;
    const Error e = hipStreamIsCapturing(s, &status);
    *yes = status != hipStreamCaptureStatusNone;
    return e;
  }
  static Error begin_capture(Stream s) noexcept {
    return hipStreamBeginCapture(s, hipStreamCaptureModeThreadLocal);
  }
  static Error end_capture(Stream s, Graph* g) noexcept {
    return hipStreamEndCapture(s, g);
  }
  static Error instantiate(GraphExec* x, Graph g) noexcept {
    return hipGraphInstantiateWithFlags(x, g, 0);
  }
  static Error launch_graph(GraphExec x, Stream s) noexcept {
    return hipGraphLaunch(x, s);
  }
  static Error destroy_graph(Graph g) noexcept {
    return hipGraphDestroy(g);
  }
  static Error destroy_exec(GraphExec x) noexcept {
    return hipGraphExecDestroy(x);
  }

  /// Launches a compiled kernel; its own failure comes back, never one that was pending before.
  static Error launch(const void* kernel, unsigned x, unsigned y, unsigned z, unsigned threads, void** args,
                      std::size_t shared_bytes, Stream s) noexcept {
    return hipLaunchKernel(kernel, dim3(x, y, z), dim3(threads, 1, 1), args, shared_bytes, s);
  }
  /// Lets a kernel have `bytes` of dynamic shared memory.
  static Error allow_shared(const void* kernel, std::size_t bytes) noexcept {
    return hipFuncSetAttribute(kernel, hipFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  }
};

}  // namespace memra
