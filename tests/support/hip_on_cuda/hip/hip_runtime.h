// What HIP's device language adds to CUDA's, as far as memra's kernels use it. For tests only.
#pragma once

#include <cuda_runtime.h>
#include <hip/hip_runtime_api.h>

/// Data-parallel primitive: what another lane of the row of sixteen has in `source`. Rows of a warp may be apart.
__device__ inline int __builtin_amdgcn_update_dpp(int /*old*/, int source, int control, int /*row_mask*/,
                                                  int /*bank_mask*/, bool /*bound_control*/) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned row = lane / 16 * 16;
  const unsigned i = lane % 16;
  unsigned from = 0;
  if (control < 0x100) {  // quad_perm
    from = row + i / 4 * 4 + ((static_cast<unsigned>(control) >> (2 * (i % 4))) & 3U);
  } else if (control == 0x141) {  // row_half_mirror
    from = row + i / 8 * 8 + 7 - i % 8;
  } else {  // row_ror
    from = row + (i + 16 - (static_cast<unsigned>(control) - 0x120)) % 16;
  }
  return __shfl_sync(0xFFFFU << row, source, static_cast<int>(from));
}
