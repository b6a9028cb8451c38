// The kernels of the GPU that support.hpp names. Read by device compilers only.
#pragma once

#if defined(MEMRA_TEST_HIP)
#include <memra/hip/ops.hip.hpp>
#if defined(MEMRA_TEST_HIP_ON_HOST)
#include <support/hip_on_host/launch.hpp>
#endif
#else
#include <memra/cuda/ops.cuh>
#endif
