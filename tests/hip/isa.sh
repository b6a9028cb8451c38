#!/bin/sh
# sh tests/hip/isa.sh WORK_DIR TARGET COMPILER...
# Compiles every kernel of HipDev for TARGET to assembly and looks at it (isa.awk); then kernels with planted faults, each
# of which must be reported. COMPILER... makes device code from HIP sources: it is given -S, a source and -o.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$1
target=$2
shift 2
mkdir -p "$work"
"$@" -S "$here/kernels.cpp" -o "$work/kernels.$target.s"
printf '%s: ' "$target"
awk -f "$here/isa.awk" "$work/kernels.$target.s" >"$work/kernels.$target.said" || { cat "$work/kernels.$target.said"; exit 1; }
cat "$work/kernels.$target.said"
# Three widths of a key for three rules and one for Mamba-1; append, conv and draft_write as items, with 32 and 64 bits of
# index, copies of three widths.
grep -q '(10 scans, 1 of drafts).* and 12 portable ones' "$work/kernels.$target.said" || { echo "$target: kernels are missing"; exit 1; }

"$@" -S "$here/isa_red.cpp" -o "$work/red.$target.s"
awk -f "$here/isa.awk" "$work/red.$target.s" >"$work/red.$target.said" && { echo "$target: no planted fault was noticed"; exit 1; }
arm() { # KERNEL WORDS
  grep -q "$1.*: $2" "$work/red.$target.said" || { echo "NOT NOTICED on $target: $1: $2"; cat "$work/red.$target.said"; exit 1; }
}
arm HipRedScratch 'scratch'
arm HipRedNarrow 'no 64-bit multiply'
arm HipRedPermute 'an exchange through shared memory'
arm HipRedGeneric 'an address of unknown kind'
arm HipRedHipScan 'no data-parallel primitive'
arm HipRedHipScan 'no 64-bit multiply'
arm HipRedHipDraft 'no data-parallel primitive'
arm gpu_items.*PortableConv 'scratch'
printf 'x:\n\tv_cvt_f32_fp8 v0, v1\n' | awk -f "$here/isa.awk" | grep -q 'conversion instruction of fp8' || { echo "NOT NOTICED: fp8 instructions"; exit 1; }
printf '_ZN5memra6detail10gpu_blocksINS0_9HipAttendIXEE:\n\tglobal_load_b32 v1, v0, s[2:3]\n' | awk -f "$here/isa.awk" | grep -q 'a plane by 32 bits' || { echo "NOT NOTICED: planes addressed by 32 bits"; exit 1; }
