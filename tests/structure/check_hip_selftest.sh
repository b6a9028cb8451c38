#!/bin/sh
# usage: check_hip_selftest.sh SOURCE_DIR
# The red arms of check_hip.sh: planted in a copy of the backends, each must be reported under its rule.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/include/memra"
cp -r "$1/backends" "$dir/"
cp -r "$1/include/memra/detail" "$1/include/memra/portable_ops.hpp" "$dir/include/memra/"
sh "$here/check_hip.sh" "$dir" >"$dir/said" || { echo "the good tree is refused:"; cat "$dir/said"; exit 1; }
failed=0
# arm RULE FILE LINE: LINE appended to FILE is reported as RULE.
arm() {
  cp "$dir/$2" "$dir/kept"
  printf '%s\n' "$3" >>"$dir/$2"
  if sh "$here/check_hip.sh" "$dir" >"$dir/said"; then
    echo "NOT NOTICED: $1: $3"; failed=1
  elif ! grep -q "^$1: " "$dir/said"; then
    echo "WRONG REPORT for $1: $3"; cat "$dir/said"; failed=1
  fi
  cp "$dir/kept" "$dir/$2"
}
hip=backends/hip/include/memra/hip
arm cuda-token $hip/device.hpp '#include <cuda_runtime.h>'
arm cuda-token $hip/append.hip.hpp 'x = __shfl_xor_sync(0xffu, x, 1);'
arm cuda-token $hip/attend.hip.hpp '  __syncwarp();'
arm cuda-token $hip/argmax.hip.hpp '#include <cub/cub.cuh>'
arm cuda-token $hip/attend.hip.hpp '  static constexpr unsigned least_blocks = 2;'
arm hip-token backends/cuda/include/memra/cuda/append.cuh '#include <hip/hip_runtime.h>'
arm hip-token backends/cuda/include/memra/cuda/scan.cuh 'x = __builtin_amdgcn_update_dpp(0, x, 0x141, 15, 15, true);'
arm hip-token backends/cuda/include/memra/cuda/api.hpp 'return hipMemcpyAsync(dst, src, n, kind, s);'
arm removed $hip/api.hpp 'hipHostAlloc(&p, n, 0);'
arm removed $hip/api.hpp 'hipGraphInstantiate(x, g, nullptr, nullptr, 0);'
arm fp8-instruction $hip/piece.hip.hpp 'y = __builtin_amdgcn_cvt_f32_fp8(w, 0);'
arm fp8-instruction $hip/piece.hip.hpp '__hip_fp8_e4m3_fnuz v;'
arm wave-size $hip/lanes.hip.hpp 'const unsigned lane = threadIdx.x % 64;'
arm wave-size $hip/attend.hip.hpp 'const unsigned wave = threadIdx.x / 32;'
arm wave-size $hip/attend.hip.hpp 'const unsigned wave = threadIdx.x >> 6;'
arm wave-size $hip/lanes.hip.hpp 'constexpr unsigned wave_lanes = 64;'
arm wave-size $hip/lanes.hip.hpp 'x += __shfl_xor(x, 16);'
arm wave-size $hip/scan.hip.hpp 'constexpr unsigned columns = blockDim.x / warpSize;'
arm cuda-token $hip/scan.hip.hpp '  __stcs(at, x[i]);'
arm cuda-token $hip/scan.hip.hpp '  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));'
arm wave-size include/memra/detail/portable_sum.hpp 'inline constexpr unsigned warp_size = 32;'
arm wave-size include/memra/detail/gpu_launch.hpp 'if (threadIdx.x % warpSize == 0) f();'
arm api $hip/api.hpp '  static Error newest(Stream s) noexcept { return ok; }'
sed 's/^  static Error take_last/  static Error newest(Stream s) noexcept { return ok; }\n&/' "$dir/backends/cuda/include/memra/cuda/api.hpp" >"$dir/api"
cp "$dir/backends/cuda/include/memra/cuda/api.hpp" "$dir/kept_api" && cp "$dir/api" "$dir/backends/cuda/include/memra/cuda/api.hpp"
! sh "$here/check_hip.sh" "$dir" >"$dir/said" || { echo "NOT NOTICED: a name that only CudaApi has"; failed=1; }
cp "$dir/kept_api" "$dir/backends/cuda/include/memra/cuda/api.hpp"
sed 's/trim_pool(/trim_poll(/' "$dir/$hip/api.hpp" >"$dir/api" && cp "$dir/api" "$dir/$hip/api.hpp"
! sh "$here/check_hip.sh" "$dir" >"$dir/said" || { echo "NOT NOTICED: a name misspelt"; failed=1; }
[ $failed -eq 0 ] && echo "every red arm was noticed"
exit $failed
