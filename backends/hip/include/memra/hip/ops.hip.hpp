// Kernels of HipDev: include this, in files that a HIP compiler reads, to use ops_for on a HipDev or to launch your
// own.
//
// Results are defined to the last bit only with the compiler's default arithmetic: no -ffast-math,
// -fgpu-flush-denormals-to-zero or -fno-hip-fp32-correctly-rounded-divide-sqrt. -ffp-contract may be anything: products
// that meet an addition round on their own.
#pragma once

#include <hip/hip_runtime.h>

#include <memra/detail/gpu_launch.hpp>
#include <memra/hip/device.hpp>
#include <memra/portable_ops.hpp>

namespace memra {

/// The kernel set behind ops_for of a HipDev and of wrappers of one.
struct HipKernels : PortableKernels {};

}  // namespace memra
