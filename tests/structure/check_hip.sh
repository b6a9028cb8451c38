#!/bin/sh
# usage: check_hip.sh SOURCE_DIR
# What keeps the HIP backend portable: no name of the other vendor, no width of a wave, no fp8 instruction (some mean
# FNUZ), no name that later releases of ROCm removed, and an Api with the same names as the other. Nor has the CUDA
# backend a name of HIP's. Comments are free.
set -eu
cd "$1"
status=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# code FILE...: file:line:text without comments.
code() {
  for file in "$@"; do sed 's,//.*,,' "$file" | grep -nE '[^ ]' | sed "s|^|$file:|"; done
}
# forbid RULE REGEX WHY: reads the output of code.
forbid() {
  if grep -E "$2" "$work/code" >"$work/found"; then
    sed "s|^|$1: |" "$work/found"
    echo "$1: $3"
    status=1
  fi
}

# shellcheck disable=SC2046  # names without spaces
code $(find backends/hip -type f | LC_ALL=C sort) >"$work/code"
[ -s "$work/code" ] || { echo "no HIP backend in $1"; exit 2; }
forbid cuda-token '[Cc][Uu][Dd][Aa]|NVCC|nvcc|__nv_|[^a-z]cub::|\.cuh|_sync\(|__syncwarp|__ldg|__ldcs|__stcs|__byte_perm|asm volatile\("[a-z.]*global|__grid_constant__|cooperative_groups|least_blocks' \
  "the HIP backend names what only CUDA has"
forbid removed 'hip(HostAlloc|MallocHost|MemAllocHost|FreeHost|ErrorMemoryAllocation|ErrorInitializationError|ErrorMapBufferObjectFailed|ErrorInvalidResourceHandle|Ctx[A-Z]|LaunchKernelGGL|BindTexture|MemcpyToArray|MemcpyFromArray|GraphInstantiate\()|__HIP_PLATFORM_(HCC|NVCC)__|hcc_detail|HIP_KERNEL_NAME' \
  "a name that ROCm has deprecated or removed, or whose signature changed"
forbid fp8-instruction 'cvt_[a-z0-9_]*(fp8|bf8)|__hip_fp8|hip_fp8[.]h|[Ff][Nn][Uu][Zz]' "fp8 is OCP's and converted in software"

# shellcheck disable=SC2046
code $(find backends/hip include/memra/detail -type f \( -path '*/hip/*' -o -name 'portable_*' -o -name 'gpu_*' \) | LC_ALL=C sort) \
  include/memra/portable_ops.hpp >"$work/code"
forbid wave-size 'warpSize|AMDGCN_WAVEFRONT|wavefrontsize|threadIdx\.x *[%/&] *\(?(31|32|63|64)[^0-9]|threadIdx\.x *>> *[56][^0-9]|__shfl|__ballot|__activemask|__any|__all|__popcll?\(|[wW](arp|ave)[a-z_]* *= *(32|64)|0x[Ff]{8}' \
  "the width of a wave: kernels keep to rows of sixteen lanes"

# shellcheck disable=SC2046
code $(find backends/cuda -type f | LC_ALL=C sort) >"$work/code"
forbid hip-token '[^a-z_]hip[A-Z_/]|__HIP|HIPCC|amdgcn|amdhip|rocprim|hipcub' "the CUDA backend names what only HIP has"

# The two Api structs offer the same names.
names() {
  sed 's,//.*,,; /^ private:/q' "$1" | grep -oE '^  (using [A-Za-z]+|static [A-Za-z_:*& ]+[ *&][a-z_]+\(|static constexpr Error [a-z]+|struct [A-Z][a-z]+)' |
    sed 's/.*[ *&]\([A-Za-z_]*\)(*$/\1/' | LC_ALL=C sort -u
}
# Those that one of them may have alone: their docs begin with "Optional in an Api".
optional() {
  sed -n '/Optional in an Api/,/^  }/p' "$1" >"$work/optional"
  names "$work/optional"
}
for api in cuda hip; do
  names backends/$api/include/memra/$api/api.hpp >"$work/$api"
  optional backends/$api/include/memra/$api/api.hpp >"$work/$api.optional"
done
[ "$(grep -c . "$work/cuda")" -gt 40 ] || { echo "api: no names found"; exit 2; }
{
  LC_ALL=C comm -23 "$work/cuda" "$work/hip" | grep -vxFf "$work/cuda.optional" | sed 's/^/only CudaApi has /' || true
  LC_ALL=C comm -13 "$work/cuda" "$work/hip" | grep -vxFf "$work/hip.optional" | sed 's/^/only HipApi has /' || true
} >"$work/found"
if [ -s "$work/found" ]; then
  cat "$work/found"
  echo "api: CudaApi and HipApi differ in names"
  status=1
fi
[ $status -eq 0 ] && echo "the HIP backend keeps its rules; both Apis have the same $(LC_ALL=C comm -12 "$work/cuda" "$work/hip" | grep -c .) names"
exit $status
