// What HIP's device language adds to C++, for a block of lanes on the host: see wave.hpp. For tests only.
#pragma once

#include <hip/hip_runtime_api.h>
#include <support/hip_on_host/wave.hpp>

#define __host__
#define __device__
#define __forceinline__ inline
#define __global__
#define __shared__ static
#define __launch_bounds__(...)

#define threadIdx (hip_on_host::here().thread)
#define blockIdx (hip_on_host::here().block)
#define blockDim (hip_on_host::here().block_size)
#define gridDim (hip_on_host::here().grid_size)

#define __syncthreads() hip_on_host::barrier(__FILE__, __LINE__)

/// Data-parallel primitive: what another lane of the row of sixteen has in `source`.
inline int __builtin_amdgcn_update_dpp(int /*old*/, int source, int control, int /*row_mask*/, int /*bank_mask*/,
                                       bool /*bound_control*/) {
  return hip_on_host::exchange(source, control);
}
