#!/bin/sh
# sh tests/hip.sh [--build-only]
# The HIP backend on a machine with an AMD GPU: builds every suite for it (rocminfo names it, or MEMRA_HIP_ARCH) and runs
# them. Without one, or with --build-only: compiles and links everything with hipcc for gfx90a, gfx940 and gfx1030, the
# device code of what newer compilers know with clang++-19, and looks at the assembly of all; where there is an nvcc, it
# reads every suite with tests/support/hip_on_cuda. Some 15 minutes of one core. Says what it skips.
#
# sh tests/hip.sh --on-cuda [--build-only | BUILT_FOLDER]
# The same suites and spec_decode, HIP's names by CUDA's calls, on an NVIDIA GPU: builds them with nvcc (MEMRA_CUDA_ARCH,
# 90a) and runs them. With BUILT_FOLDER, `--on-cuda --build-only` was run before, here or on another machine of the same
# system: its programs are run instead. Needs nvcc 13, g++, Catch2, nlohmann-json and CLI11, no package of ROCm.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 2
out=$root/build/hip
mkdir -p "$out"
failed=0
include="-Iinclude -Ibackends/hip/include -Itests -Iexamples"

suites="tests/hip/tuned.cpp tests/gpu/ops_bits.cu tests/gpu/conformance.cu tests/gpu/graph.cu tests/gpu/rounds.cu
  tests/gpu/streams.cu tests/gpu/two.cu tests/gpu/handover.cu tests/gpu/lost.cu tests/gpu/large.cu tests/gpu/property.cu
  tests/gpu/engine.cu"
plain="tests/gpu/device.cpp tests/hip/absent.cpp tests/hip/adopt.cpp"

# Catch2 3 brings its own main; 2.13 is in main.o.
catch=
if echo '#include <catch2/catch_all.hpp>' | g++ -E -x c++ - >/dev/null 2>&1; then catch="-lCatch2Main -lCatch2"; fi

# objects "COMPILER FLAGS": starts to compile the suites and spec_decode into $to, as many at a time as there are
# processors. Half of the suites to a file: most of a compile is what they share.
objects() {
  command=$1
  started=0
  # shellcheck disable=SC2086
  printf '#include "%s"\n' $suites | awk -v to="$to" '{ print >(to "/suites_" int((NR - 1) / 6) ".cu") }'
  for source in "$to"/suites_*.cu examples/spec_decode.cpp; do
    name=$(basename "$source")
    object=$to/${name%.*}.o
    defined=-DMEMRA_TEST_HIP
    if [ "$name" = spec_decode.cpp ]; then
      object=$to/spec_decode.obj
      defined=-DMEMRA_SPEC_DECODE_HIP
    fi
    # shellcheck disable=SC2086
    { $command $defined -DMEMRA_TEST_FIXTURES='"tests/fixtures"' -DMEMRA_DEFAULT_MODEL='"tests/fixtures/tiny"' \
      -c "$source" -o "$object" >"$object.log" 2>&1 || echo "$source" >>"$to/broken"; } &
    started=$((started + 1))
    [ $((started % $(nproc))) -ne 0 ] || wait
  done
}
# compiled: whether all in $to were; else says what was not.
compiled() {
  [ -e "$to/broken" ] || return 0
  while IFS= read -r source; do
    name=$(basename "$source")
    echo "NOT COMPILED: $source"
    grep -hE -A3 'error|fatal' "$to/${name%.*}".o*.log | head -12
  done <"$to/broken"
  return 1
}

# build FOLDER FLAGS TARGET...: every program, its device code for each target, in $out/FOLDER.
build() {
  to=$out/$1
  optimise=$2
  shift 2
  mkdir -p "$to"
  rm -f "$to"/*.o "$to"/*.obj "$to"/*.cu "$to/broken"
  arches=
  for target in "$@"; do arches="$arches --offload-arch=$target"; done
  # HIP's own header first: the engine's headers use std::memcpy and threads on the device.
  flags="-x hip -include hip/hip_runtime.h -std=c++20 -Wall -Wextra $optimise $arches -I. $include"
  objects "$hipcc $flags"
  for source in $plain; do
    # shellcheck disable=SC2086
    g++ -std=c++20 -O1 -DMEMRA_TEST_HIP -D__HIP_PLATFORM_AMD__ $include -c $source -o "$to/$(basename $source .cpp).o" || return 1
  done
  g++ -std=c++20 -O0 -Itests -c tests/support/main.cpp -o "$to/main.o" || return 1
  wait
  compiled || return 1
  # shellcheck disable=SC2086
  "$hipcc" $arches "$to"/*.o -o "$to/memra_hip_tests" $catch && "$hipcc" $arches "$to/spec_decode.obj" -o "$to/spec_decode"
}
isa() { # TARGET COMPILER...
  # shellcheck disable=SC2086
  sh tests/hip/isa.sh "$out/isa" "$@" -std=c++20 -O2 -w $include 2>"$out/isa.$1.log" || { failed=1; cat "$out/isa.$1.log"; }
}

# run COMMAND...: a line that says how it went (a filter that finds no test is a failure), and what it printed itself.
run() {
  if timeout 300 "$@" >"$log" 2>&1 && grep -qE 'All tests passed|^verdict +identical' "$log"; then
    echo "ok      $* $(grep -hE 'All tests passed' "$log")"
  else
    failed=1
    echo "FAILED  $*"
    tail -30 "$log"
  fi
  grep -hE '^([a-z][a-z0-9_, ]*: | *SKIPPED|(plain|speculative|verdict) )' "$log"
}
# run_all FOLDER: every suite that was built there, and spec_decode.
run_all() {
  log=$1/log
  for tag in device cache conformance ops tuned graph rounds streams two handover large property engine; do
    run "$1/memra_hip_tests" "[$tag]~[.]"
  done
  for kv in q8_0/q5_1 f16/f16; do
    run "$1/spec_decode" --device hip --tokens 200 --model tests/fixtures/tiny --kv $kv
  done
}

# The same by nvcc, in $out/on_cuda.
build_on_cuda() {
  nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  [ -x "$nvcc" ] || { echo "SKIPPED: no nvcc here"; exit 77; }
  lib=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
  to=$out/on_cuda
  mkdir -p "$to"
  rm -f "$to"/*.o "$to"/*.obj "$to"/*.cu "$to/broken"
  names="-Itests/support/hip_on_cuda $include"
  flags="-x cu -std=c++20 -O1 -arch=sm_${MEMRA_CUDA_ARCH:-90a} -I. $names"
  objects "$nvcc $flags"
  for source in $plain; do
    # shellcheck disable=SC2086
    g++ -std=c++20 -O1 -DMEMRA_TEST_HIP $names -isystem "$lib/include" -c $source -o "$to/$(basename $source .cpp).o" ||
      return 1
  done
  g++ -std=c++20 -O0 -Itests -c tests/support/main.cpp -o "$to/main.o" || return 1
  wait
  compiled || return 1
  # The C++ library inside: the programs may run on another machine.
  libs="-static-libstdc++ -static-libgcc -L$lib/lib64 -lcudart_static -ldl -lrt -lpthread"
  # shellcheck disable=SC2086
  g++ "$to"/*.o -o "$to/memra_hip_tests" $catch $libs && g++ "$to/spec_decode.obj" -o "$to/spec_decode" $libs
}
run_on_cuda() { # FOLDER
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1
  run_all "$1"
  # Nothing works in a process after this one. (AMD's runtime may end the process instead.)
  run "$1/memra_hip_tests" "[.lost]"
}
if [ "${1-}" = --on-cuda ]; then
  case ${2-} in
    --build-only) build_on_cuda && echo "built in $out/on_cuda" ;;
    "") build_on_cuda && run_on_cuda "$out/on_cuda" ;;
    *) run_on_cuda "$2" ;;
  esac || exit 1
  exit $failed
fi

hipcc=$(command -v hipcc || echo /opt/rocm/bin/hipcc)
[ -x "$hipcc" ] || { echo "SKIPPED: no hipcc here"; exit 77; }
arch=${MEMRA_HIP_ARCH:-$(rocminfo 2>/dev/null | grep -o 'gfx[1-9][0-9a-f]*' | head -1)}
if [ "${1-}" = --build-only ] || [ -z "$arch" ]; then
  [ -n "$arch" ] || echo "no AMD GPU here: everything is compiled, nothing but the check for a GPU is run"
  targets="gfx90a gfx940 gfx1030"
  # Nobody runs these: the machine code that is looked at is made at -O2 below.
  # shellcheck disable=SC2086
  if build linked "-O1 -Xarch_host -O0" $targets; then
    echo "built and linked for $targets"
    "$out/linked/memra_hip_tests" "[absent]" || failed=1
  else
    failed=1
    echo "FAILED: build for $targets"
  fi
  for target in $targets; do isa "$target" "$hipcc" -x hip "--offload-arch=$target" --cuda-device-only; done
  if command -v clang++-19 >/dev/null; then
    # Releases of rocPRIM before 6 do not know these: the library goes without it.
    for target in gfx906 gfx908 gfx942 gfx1100 gfx1201; do
      isa $target clang++-19 -x hip --offload-device-only -nogpulib --offload-arch=$target -D__HIP_PLATFORM_AMD__ \
        -DMEMRA_HIP_WITHOUT_ROCPRIM
    done
  else
    echo "SKIPPED: gfx942, gfx1100 and gfx1201 need clang++-19"
  fi
  if command -v nvcc >/dev/null; then
    for source in $suites; do echo "#include \"$root/$source\""; done >"$out/on_cuda.cu"
    # shellcheck disable=SC2086
    if nvcc -x cu -std=c++20 -arch=sm_90a -Itests/support/hip_on_cuda $include -DMEMRA_TEST_HIP \
      -DMEMRA_TEST_FIXTURES='"tests/fixtures"' -fdevice-syntax-only -c "$out/on_cuda.cu" -o "$out/none" \
      >"$out/on_cuda.log" 2>&1; then
      echo "every suite read by nvcc, HIP's names by CUDA's calls"
    else
      failed=1
      echo "FAILED: nvcc with HIP's names by CUDA's calls"
      grep -A3 error "$out/on_cuda.log" | head -20
    fi
  else
    echo "SKIPPED: the layer of HIP's names on CUDA needs nvcc"
  fi
  exit $failed
fi

build "$arch" -O2 "$arch" || exit 1
run_all "$out/$arch"
exit $failed
