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
# What a compiler does not do when asked to, as it would be printed.
text() { # WORDS ASSEMBLY
  printf '%b' "$2" | awk -f "$here/isa.awk" | grep -q ": $1" || { echo "NOT NOTICED: $1"; exit 1; }
}
attend=_ZN5memra6detail10gpu_blocksINS0_9HipAttendILNS_6FormatE1ELS3_1ELb1ELj128EEEEEvT_
text 'a conversion instruction of fp8' 'x:\n\tv_cvt_f32_fp8 v0, v1\n'
text 'a conversion instruction of fp8' 'x:\n\tv_cvt_pk_bf8_f32 v0, v1, v2\n'
text 'a plane by 32 bits' "$attend:\n\tglobal_load_b32 v1, v0, s[2:3]\n"
text 'memory of its own' "$attend:\n\tscratch_store_dword off, v1, s0\n"
text 'memory of its own' "$attend:\n\tbuffer_load_dword v1, off, s[0:3], 0\n"
text 'narrow loads' "$attend:\n\tglobal_load_dwordx2 v[0:1], v[2:3], off\n.Lfunc_end0:\n"
text 'no 16-byte load' '_Z10gpu_blocksI9HipAppendE:\n.Lfunc_end0:\n'
text 'no 16-byte store' '_Z10gpu_blocksI9HipAppendE:\n.Lfunc_end0:\n'
facts='amdhsa.kernels:\n  - .args: []\n'
text 'scratch' "$facts    .name: $attend\n    .private_segment_fixed_size: 8\namdhsa.target: x\n"
text 'vector registers spilled' "$facts    .name: $attend\n    .vgpr_spill_count: 1\namdhsa.target: x\n"
text 'scalar registers spilled' "$facts    .name: $attend\n    .sgpr_spill_count: 1\namdhsa.target: x\n"
text 'shared memory' "$facts    .name: $attend\n    .group_segment_fixed_size: 70000\namdhsa.target: x\n"

# rocPRIM has the argmax where its headers are, a portable body where not.
printf '#if __has_include(<rocprim/block/block_reduce.hpp>) && !defined(MEMRA_HIP_WITHOUT_ROCPRIM)\nthere_it_is\n#endif\n' >"$work/rocprim.cpp"
argmax=PortableArgmax
other=HipArgmax
if "$@" -E "$work/rocprim.cpp" -o - | grep -q '^there_it_is'; then
  argmax=HipArgmax
  other=PortableArgmax
fi
grep -q "^_Z.*$argmax" "$work/kernels.$target.s" || { echo "$target: no $argmax"; exit 1; }
if grep -q "^_Z.*$other" "$work/kernels.$target.s"; then echo "$target: $other beside $argmax"; exit 1; fi
