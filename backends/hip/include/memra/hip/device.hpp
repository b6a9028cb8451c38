// HipDev: memra on AMD GPUs. Usable from a plain .cpp with the HIP runtime's headers; kernels need ops.hip.hpp.
#pragma once

#include <memra/detail/gpu_dev.hpp>
#include <memra/hip/api.hpp>
#include <memra/kv_dev.hpp>
#include <memra/launch.hpp>

namespace memra {

/// A device object on a HIP device: one stream, own or adopted, and memory from a stream-ordered pool or an adopted
/// allocator. See GpuDev.
using HipDev = GpuDev<HipApi>;

static_assert(check_kv_dev<HipDev>());
static_assert(LaunchDev<HipDev> && BatchedCopyDev<HipDev> && PeerCopyDev<HipDev> && CaptureDev<HipDev>);

}  // namespace memra
