// CudaApi: the CUDA runtime under neutral names. Needs the runtime's headers and library, no device compiler.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace memra {

/// Tag of the kernels a CudaDev runs; defined in <memra/cuda/ops.cuh>.
struct CudaKernels;

/// What GpuDev asks of a vendor's runtime. Every call is on the current device and returns the vendor's own code.
struct CudaApi {
  using Error = cudaError_t;
  using Stream = cudaStream_t;
  using Event = cudaEvent_t;
  using Pool = cudaMemPool_t;
  using Graph = cudaGraph_t;
  using GraphExec = cudaGraphExec_t;
  using kernels = CudaKernels;

  static constexpr Error ok = cudaSuccess;

  static bool is_out_of_memory(Error e) noexcept { return e == cudaErrorMemoryAllocation; }

  /// No device, or none that this runtime can use: the codes that every call gives from the start.
  static bool is_absent(Error e) noexcept {
    return e == cudaErrorInsufficientDriver || e == cudaErrorNoDevice || e == cudaErrorInitializationError ||
           e == cudaErrorSystemNotReady || e == cudaErrorSystemDriverMismatch;
  }

  /// The codes after which a context answers nothing but errors.
  static bool kills_context(Error e) noexcept {
    switch (e) {
      case cudaErrorIllegalAddress:
      case cudaErrorLaunchFailure:
      case cudaErrorLaunchTimeout:
      case cudaErrorAssert:
      case cudaErrorHardwareStackError:
      case cudaErrorIllegalInstruction:
      case cudaErrorMisalignedAddress:
      case cudaErrorInvalidAddressSpace:
      case cudaErrorInvalidPc:
      case cudaErrorECCUncorrectable:
      case cudaErrorNvlinkUncorrectable:
      case cudaErrorContained:
      case cudaErrorContextIsDestroyed:
      case cudaErrorMpsConnectionFailed:
        return true;
      default:
        return false;
    }
  }

  static const char* text(Error e) noexcept { return cudaGetErrorString(e); }
  /// Returns and clears the thread's pending error.
  static Error take_last() noexcept { return cudaGetLastError(); }
  static Error peek_last() noexcept { return cudaPeekAtLastError(); }

  static Error get_device(int* ordinal) noexcept { return cudaGetDevice(ordinal); }
  static Error set_device(int ordinal) noexcept { return cudaSetDevice(ordinal); }

  static Error create_stream(Stream* s) noexcept { return cudaStreamCreateWithFlags(s, cudaStreamNonBlocking); }
  static Error destroy_stream(Stream s) noexcept { return cudaStreamDestroy(s); }
  static Error synchronize(Stream s) noexcept { return cudaStreamSynchronize(s); }
  static Error stream_device(Stream s, int* ordinal) noexcept { return cudaStreamGetDevice(s, ordinal); }

  /// A pool of its own, which keeps what it has: freeing and allocating again does not reach the operating system.
  static Error create_pool(Pool* pool, int ordinal) noexcept {
    cudaMemPoolProps props{};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    props.location.id = ordinal;
    if (const Error e = cudaMemPoolCreate(pool, &props); e != ok) return e;
    std::uint64_t threshold = UINT64_MAX;
    const Error e = cudaMemPoolSetAttribute(*pool, cudaMemPoolAttrReleaseThreshold, &threshold);
    if (e != ok) cudaMemPoolDestroy(*pool);
    return e;
  }
  static Error destroy_pool(Pool pool) noexcept { return cudaMemPoolDestroy(pool); }
  /// Lets device `other` reach what the pool has and will have; devices are closed to each other at first.
  static Error open_pool(Pool pool, int other) noexcept {
    cudaMemAccessDesc access{};
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = other;
    access.flags = cudaMemAccessFlagsProtReadWrite;
    return cudaMemPoolSetAccess(pool, &access, 1);
  }
  /// Whether the hardware lets device `other` reach memory of device `ordinal`.
  static Error can_reach(bool* yes, int other, int ordinal) noexcept {
    int can = 0;
    const Error e = cudaDeviceCanAccessPeer(&can, other, ordinal);
    *yes = e == ok && can != 0;
    return e;
  }
  static Error trim_pool(Pool pool, std::size_t keep) noexcept { return cudaMemPoolTrimTo(pool, keep); }
  static Error allocate(void** p, std::size_t n, Pool pool, Stream s) noexcept {
    return cudaMallocFromPoolAsync(p, n, pool, s);
  }
  static Error deallocate(void* p, Stream s) noexcept { return cudaFreeAsync(p, s); }
  static Error allocate_pinned(void** p, std::size_t n) noexcept { return cudaHostAlloc(p, n, cudaHostAllocPortable); }
  static Error deallocate_pinned(void* p) noexcept { return cudaFreeHost(p); }

  static Error copy(void* dst, const void* src, std::size_t n, Stream s) noexcept {
    return cudaMemcpyAsync(dst, src, n, cudaMemcpyDeviceToDevice, s);
  }
  /// Optional in an Api: `rows` pieces of `n` bytes, each `pitch` bytes behind the one before it.
  static constexpr std::size_t longest_pitch = 0x7fffffff;  // cudaDevAttrMaxPitch of every device so far
  static Error copy_strided(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch, std::size_t n,
                            std::size_t rows, Stream s) noexcept {
    return cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, n, rows, cudaMemcpyDeviceToDevice, s);
  }
  static Error copy_in(void* dst, const void* host, std::size_t n, Stream s) noexcept {
    return cudaMemcpyAsync(dst, host, n, cudaMemcpyHostToDevice, s);
  }
  static Error copy_out(void* host, const void* src, std::size_t n, Stream s) noexcept {
    return cudaMemcpyAsync(host, src, n, cudaMemcpyDeviceToHost, s);
  }
  static Error copy_peer(void* dst, int to, const void* src, int from, std::size_t n, Stream s) noexcept {
    return cudaMemcpyPeerAsync(dst, to, src, from, n, s);
  }
  static Error set_bytes(void* dst, int value, std::size_t n, Stream s) noexcept {
    return cudaMemsetAsync(dst, value, n, s);
  }

  /// Entry points that the runtime lacks, and what kernels ask of the device, looked up once per device object. No
  /// library beyond the runtime is linked.
  struct Driver {
    CUresult(CUDAAPI* set_words)(CUdeviceptr, unsigned int, std::size_t, CUstream) = nullptr;
    /// Describes an array to the copy engine; nullptr where the device has none.
    decltype(&cuTensorMapEncodeTiled) encode_map = nullptr;
    std::size_t shared_bytes = 0;  ///< of a block, on request
  };
  /// On the current device.
  static Error load(Driver* d) noexcept {
    Error e = find("cuMemsetD32Async", 7000, &d->set_words);
    int device = 0;
    int bytes = 0;
    int major = 0;
    if (e == ok) e = cudaGetDevice(&device);
    if (e == ok) e = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (e == ok) e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (e == ok && major >= 9) e = find("cuTensorMapEncodeTiled", 12000, &d->encode_map);
    d->shared_bytes = static_cast<std::size_t>(bytes);
    return e;
  }
  /// `n` 32-bit words become `value`, which travels with the call: nothing is read later, so it may be captured.
  static Error set_words(const Driver& d, void* dst, std::uint32_t value, std::size_t n, Stream s) noexcept {
    // The driver's codes are the runtime's, by value.
    return static_cast<Error>(d.set_words(reinterpret_cast<CUdeviceptr>(dst), value, n, s));
  }

  static Error create_event(Event* e) noexcept { return cudaEventCreateWithFlags(e, cudaEventDisableTiming); }
  static Error destroy_event(Event e) noexcept { return cudaEventDestroy(e); }
  static Error record(Event e, Stream s) noexcept { return cudaEventRecord(e, s); }
  static Error wait_event(Stream s, Event e) noexcept { return cudaStreamWaitEvent(s, e, 0); }
  static Error synchronize_event(Event e) noexcept { return cudaEventSynchronize(e); }

  static Error is_capturing(Stream s, bool* yes) noexcept {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const Error e = cudaStreamIsCapturing(s, &status);
    *yes = status != cudaStreamCaptureStatusNone;
    return e;
  }
  static Error begin_capture(Stream s) noexcept { return cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal); }
  static Error end_capture(Stream s, Graph* g) noexcept { return cudaStreamEndCapture(s, g); }
  static Error instantiate(GraphExec* x, Graph g) noexcept { return cudaGraphInstantiate(x, g, 0); }
  static Error launch_graph(GraphExec x, Stream s) noexcept { return cudaGraphLaunch(x, s); }
  static Error destroy_graph(Graph g) noexcept { return cudaGraphDestroy(g); }
  static Error destroy_exec(GraphExec x) noexcept { return cudaGraphExecDestroy(x); }

  /// Launches a compiled kernel; its own failure comes back, never one that was pending before.
  static Error launch(const void* kernel, unsigned x, unsigned y, unsigned z, unsigned threads, void** args,
                      std::size_t shared_bytes, Stream s) noexcept {
    return cudaLaunchKernel(kernel, dim3(x, y, z), dim3(threads, 1, 1), args, shared_bytes, s);
  }
  /// Optional in an Api: as `launch`, for a kernel that waits for the one before it by itself: where the device can, it
  /// begins early.
  static Error launch_early(const Driver& d, const void* kernel, unsigned x, unsigned y, unsigned z, unsigned threads,
                            void** args, std::size_t shared_bytes, Stream s) noexcept {
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(x, y, z);
    config.blockDim = dim3(threads, 1, 1);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = s;
    config.attrs = &early;
    config.numAttrs = d.encode_map != nullptr ? 1 : 0;
    return cudaLaunchKernelExC(&config, kernel, args);
  }
  /// Lets a kernel have `bytes` of dynamic shared memory.
  static Error allow_shared(const void* kernel, std::size_t bytes) noexcept {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  }

 private:
  template <class Entry>
  static Error find(const char* name, unsigned version, Entry* entry) noexcept {
    void* p = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const Error e = cudaGetDriverEntryPointByVersion(name, &p, version, cudaEnableDefault, &found);
    if (e != ok) return e;
    if (found != cudaDriverEntryPointSuccess || p == nullptr) return cudaErrorSymbolNotFound;
    *entry = reinterpret_cast<Entry>(p);
    return ok;
  }
};

}  // namespace memra
