// CudaDev: memra on NVIDIA GPUs. Usable from a plain .cpp with the CUDA runtime's headers; kernels need ops.cuh.
#pragma once

#include <memra/cuda/api.hpp>
#include <memra/detail/gpu_dev.hpp>
#include <memra/kv_dev.hpp>
#include <memra/launch.hpp>

namespace memra {

/// A device object on a CUDA device: one stream, own or adopted, and memory from a stream-ordered pool or an adopted
/// allocator. See GpuDev.
using CudaDev = GpuDev<CudaApi>;

static_assert(check_kv_dev<CudaDev>());
static_assert(LaunchDev<CudaDev> && BatchedCopyDev<CudaDev> && PeerCopyDev<CudaDev> && CaptureDev<CudaDev>);

}  // namespace memra
