// The part of the HIP runtime that memra calls, by the CUDA runtime, so that HipDev runs on a CUDA device. Spelled as
// ROCm 7 spells it. For tests only: what it shows is that the code of the backend is right, not that AMD's runtime is.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>

#define HIP_VERSION 70000000

using hipError_t = cudaError_t;
using hipStream_t = cudaStream_t;
using hipEvent_t = cudaEvent_t;
using hipMemPool_t = cudaMemPool_t;
using hipGraph_t = cudaGraph_t;
using hipGraphExec_t = cudaGraphExec_t;
using hipMemPoolProps = cudaMemPoolProps;
using hipMemAccessDesc = cudaMemAccessDesc;
using hipPointerAttribute_t = cudaPointerAttributes;
using hipStreamCaptureStatus = cudaStreamCaptureStatus;
using hipMemcpyKind = cudaMemcpyKind;
using hipDeviceptr_t = void*;
using hipDevice_t = int;

inline constexpr hipError_t hipSuccess = cudaSuccess;
inline constexpr hipError_t hipErrorInvalidValue = cudaErrorInvalidValue;
inline constexpr hipError_t hipErrorOutOfMemory = cudaErrorMemoryAllocation;
inline constexpr hipError_t hipErrorNotInitialized = cudaErrorInitializationError;
inline constexpr hipError_t hipErrorInsufficientDriver = cudaErrorInsufficientDriver;
inline constexpr hipError_t hipErrorNoDevice = cudaErrorNoDevice;
inline constexpr hipError_t hipErrorInvalidDevice = cudaErrorInvalidDevice;
inline constexpr hipError_t hipErrorECCNotCorrectable = cudaErrorECCUncorrectable;
inline constexpr hipError_t hipErrorInvalidHandle = cudaErrorInvalidResourceHandle;
inline constexpr hipError_t hipErrorNotReady = cudaErrorNotReady;
inline constexpr hipError_t hipErrorIllegalAddress = cudaErrorIllegalAddress;
inline constexpr hipError_t hipErrorLaunchTimeOut = cudaErrorLaunchTimeout;
inline constexpr hipError_t hipErrorContextIsDestroyed = cudaErrorContextIsDestroyed;
inline constexpr hipError_t hipErrorAssert = cudaErrorAssert;
inline constexpr hipError_t hipErrorLaunchFailure = cudaErrorLaunchFailure;

inline constexpr auto hipMemcpyHostToDevice = cudaMemcpyHostToDevice;
inline constexpr auto hipMemcpyDeviceToHost = cudaMemcpyDeviceToHost;
inline constexpr auto hipMemcpyDeviceToDevice = cudaMemcpyDeviceToDevice;
inline constexpr auto hipMemAllocationTypePinned = cudaMemAllocationTypePinned;
inline constexpr auto hipMemLocationTypeDevice = cudaMemLocationTypeDevice;
inline constexpr auto hipMemAccessFlagsProtReadWrite = cudaMemAccessFlagsProtReadWrite;
inline constexpr auto hipMemPoolAttrReleaseThreshold = cudaMemPoolAttrReleaseThreshold;
inline constexpr auto hipStreamCaptureModeThreadLocal = cudaStreamCaptureModeThreadLocal;
inline constexpr auto hipStreamCaptureStatusNone = cudaStreamCaptureStatusNone;
inline constexpr auto hipFuncAttributeMaxDynamicSharedMemorySize = cudaFuncAttributeMaxDynamicSharedMemorySize;
inline constexpr unsigned hipStreamNonBlocking = cudaStreamNonBlocking;
inline constexpr unsigned hipEventDisableTiming = cudaEventDisableTiming;
inline constexpr unsigned hipHostMallocPortable = cudaHostAllocPortable;

inline const char* hipGetErrorString(hipError_t e) {
  return cudaGetErrorString(e);
}
inline hipError_t hipGetLastError() {
  return cudaGetLastError();
}
inline hipError_t hipPeekAtLastError() {
  return cudaPeekAtLastError();
}
inline hipError_t hipGetDeviceCount(int* n) {
  return cudaGetDeviceCount(n);
}
inline hipError_t hipGetDevice(int* d) {
  return cudaGetDevice(d);
}
inline hipError_t hipSetDevice(int d) {
  return cudaSetDevice(d);
}
inline hipError_t hipDeviceSynchronize() {
  return cudaDeviceSynchronize();
}
inline hipError_t hipMemGetInfo(std::size_t* free, std::size_t* total) {
  return cudaMemGetInfo(free, total);
}

inline hipError_t hipStreamCreate(hipStream_t* s) {
  return cudaStreamCreate(s);
}
inline hipError_t hipStreamCreateWithFlags(hipStream_t* s, unsigned flags) {
  return cudaStreamCreateWithFlags(s, flags);
}
inline hipError_t hipStreamDestroy(hipStream_t s) {
  return cudaStreamDestroy(s);
}
inline hipError_t hipStreamSynchronize(hipStream_t s) {
  return cudaStreamSynchronize(s);
}
inline hipError_t hipStreamQuery(hipStream_t s) {
  return cudaStreamQuery(s);
}
inline hipError_t hipStreamAddCallback(hipStream_t s, void (*f)(hipStream_t, hipError_t, void*), void* x,
                                       unsigned flags) {
  return cudaStreamAddCallback(s, f, x, flags);
}
inline hipError_t hipPointerGetAttributes(hipPointerAttribute_t* a, const void* p) {
  return cudaPointerGetAttributes(a, p);
}
inline hipError_t hipStreamGetDevice(hipStream_t s, hipDevice_t* d) {
  return cudaStreamGetDevice(s, d);
}

inline hipError_t hipMemPoolCreate(hipMemPool_t* pool, const hipMemPoolProps* props) {
  return cudaMemPoolCreate(pool, props);
}
inline hipError_t hipMemPoolSetAttribute(hipMemPool_t pool, cudaMemPoolAttr which, void* value) {
  return cudaMemPoolSetAttribute(pool, which, value);
}
inline hipError_t hipMemPoolSetAccess(hipMemPool_t pool, const hipMemAccessDesc* access, std::size_t n) {
  return cudaMemPoolSetAccess(pool, access, n);
}
inline hipError_t hipDeviceCanAccessPeer(int* can, int device, int peer) {
  return cudaDeviceCanAccessPeer(can, device, peer);
}
inline hipError_t hipMemPoolDestroy(hipMemPool_t pool) {
  return cudaMemPoolDestroy(pool);
}
inline hipError_t hipMemPoolTrimTo(hipMemPool_t pool, std::size_t keep) {
  return cudaMemPoolTrimTo(pool, keep);
}
inline hipError_t hipMallocFromPoolAsync(void** p, std::size_t n, hipMemPool_t pool, hipStream_t s) {
  return cudaMallocFromPoolAsync(p, n, pool, s);
}
inline hipError_t hipFreeAsync(void* p, hipStream_t s) {
  return cudaFreeAsync(p, s);
}
inline hipError_t hipMalloc(void** p, std::size_t n) {
  return cudaMalloc(p, n);
}
inline hipError_t hipFree(void* p) {
  return cudaFree(p);
}
inline hipError_t hipHostMalloc(void** p, std::size_t n, unsigned flags) {
  return cudaHostAlloc(p, n, flags);
}
inline hipError_t hipHostFree(void* p) {
  return cudaFreeHost(p);
}

inline hipError_t hipMemcpyAsync(void* dst, const void* src, std::size_t n, hipMemcpyKind kind, hipStream_t s) {
  return cudaMemcpyAsync(dst, src, n, kind, s);
}
inline hipError_t hipMemcpy2DAsync(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch,
                                   std::size_t width, std::size_t height, hipMemcpyKind kind, hipStream_t s) {
  return cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, width, height, kind, s);
}
inline hipError_t hipMemcpyPeerAsync(void* dst, int to, const void* src, int from, std::size_t n, hipStream_t s) {
  return cudaMemcpyPeerAsync(dst, to, src, from, n, s);
}
inline hipError_t hipMemsetAsync(void* dst, int value, std::size_t n, hipStream_t s) {
  return cudaMemsetAsync(dst, value, n, s);
}
/// HIP's runtime has it, CUDA's driver: looked up at every call.
inline hipError_t hipMemsetD32Async(hipDeviceptr_t dst, int value, std::size_t n, hipStream_t s) {
  CUresult(CUDAAPI * set)(CUdeviceptr, unsigned int, std::size_t, CUstream) = nullptr;
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const hipError_t e = cudaGetDriverEntryPointByVersion("cuMemsetD32Async", &entry, 7000, cudaEnableDefault, &found);
  if (e != hipSuccess) return e;
  set = reinterpret_cast<decltype(set)>(entry);
  return static_cast<hipError_t>(set(reinterpret_cast<CUdeviceptr>(dst), static_cast<unsigned>(value), n, s));
}

inline hipError_t hipEventCreateWithFlags(hipEvent_t* e, unsigned flags) {
  return cudaEventCreateWithFlags(e, flags);
}
inline hipError_t hipEventDestroy(hipEvent_t e) {
  return cudaEventDestroy(e);
}
inline hipError_t hipEventRecord(hipEvent_t e, hipStream_t s) {
  return cudaEventRecord(e, s);
}
inline hipError_t hipStreamWaitEvent(hipStream_t s, hipEvent_t e, unsigned flags) {
  return cudaStreamWaitEvent(s, e, flags);
}
inline hipError_t hipEventSynchronize(hipEvent_t e) {
  return cudaEventSynchronize(e);
}

inline hipError_t hipStreamIsCapturing(hipStream_t s, hipStreamCaptureStatus* status) {
  return cudaStreamIsCapturing(s, status);
}
inline hipError_t hipStreamBeginCapture(hipStream_t s, cudaStreamCaptureMode mode) {
  return cudaStreamBeginCapture(s, mode);
}
inline hipError_t hipStreamEndCapture(hipStream_t s, hipGraph_t* g) {
  return cudaStreamEndCapture(s, g);
}
inline hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t* x, hipGraph_t g, unsigned long long flags) {
  return cudaGraphInstantiate(x, g, flags);
}
inline hipError_t hipGraphLaunch(hipGraphExec_t x, hipStream_t s) {
  return cudaGraphLaunch(x, s);
}
inline hipError_t hipGraphDestroy(hipGraph_t g) {
  return cudaGraphDestroy(g);
}
inline hipError_t hipGraphExecDestroy(hipGraphExec_t x) {
  return cudaGraphExecDestroy(x);
}

inline hipError_t hipLaunchKernel(const void* f, dim3 grid, dim3 block, void** args, std::size_t shared,
                                  hipStream_t s) {
  return cudaLaunchKernel(f, grid, block, args, shared, s);
}
inline hipError_t hipFuncSetAttribute(const void* f, cudaFuncAttribute which, int value) {
  return cudaFuncSetAttribute(f, which, value);
}
