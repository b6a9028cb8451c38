// Kernels of CudaDev: include this, in files that nvcc compiles, to use ops_for on a CudaDev or to launch your own.
//
// Results are defined to the last bit only with nvcc's default arithmetic: no -use_fast_math, -ftz=true,
// -prec-div=false or -prec-sqrt=false. -fmad may be anything: products that meet an addition round on their own.
#pragma once

#include <memra/cuda/device.hpp>
#include <memra/detail/gpu_launch.hpp>
#include <memra/ops.hpp>
#include <memra/portable_ops.hpp>

namespace memra {

/// The kernel set behind ops_for of a CudaDev and of wrappers of one.
struct CudaKernels : PortableKernels {};

}  // namespace memra
