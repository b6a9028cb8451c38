#!/bin/sh
# sh tests/gpu.sh [BUILT_FOLDER]
# Builds and runs every test of the CUDA backend on a machine with a GPU, in under 8 minutes, and writes a report to
# build/gpu/report.txt. With BUILT_FOLDER, `sh tests/gpu.sh --build-only` was run before, here or on another machine of
# the same system: its programs are run instead. MEMRA_CUDA_ARCH is the GPU to compile for (90a).
# `sh tests/gpu.sh --arches 80 120` compiles every header, test and example for other GPUs and runs nothing.
# MEMRA_GPU_JOBS compilers run at a time (64). Needs nvcc 13, g++, Catch2 and nlohmann-json; CLI11 for spec_decode;
# compute-sanitizer for that part. Says what it skips.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 2
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
lib=$(dirname "$(dirname "$nvcc")")
paths="-Iinclude -Ibackends/cuda/include -Itests -Iexamples"
failed=0

# compile OBJECT COMMAND...: in the background; what fails is named in $to/broken.
compile() {
  object=$to/$1
  shift
  { "$@" -o "$object" >"$object.log" 2>&1 || echo "$object" >>"$to/broken"; } &
  started=$((started + 1))
  [ $((started % ${MEMRA_GPU_JOBS:-64})) -ne 0 ] || wait
}

# objects FOLDER ARCH OPTIMISE: the tests, five to a file since they share most of a compile, as FOLDER/tests_N.o; every
# header alone and spec_decode as .obj. Returns 1 if a file was not compiled, and says which; spec_decode may be missing.
objects() {
  to=$1
  started=0
  mkdir -p "$to"
  rm -f "$to"/*.o "$to"/*.obj "$to"/*.cu "$to/broken"
  flags="-std=c++20 $3 --split-compile=0 -gencode=arch=compute_$2,code=sm_$2 $paths"
  # The quotes below are the program's own.
  # shellcheck disable=SC2089
  flags="$flags -DMEMRA_TEST_FIXTURES=\"tests/fixtures\""
  flags="$flags -DMEMRA_DEFAULT_MODEL=\"tests/fixtures/tiny\""
  # shellcheck disable=SC2086,SC2090
  {
    compile spec_decode.obj "$nvcc" -x cu $flags -DMEMRA_SPEC_DECODE_CUDA -c examples/spec_decode.cpp
    if echo '#include <nccl.h>' | "$nvcc" -x cu -E - >/dev/null 2>&1; then
      compile nccl_two.obj "$nvcc" $flags -Itransports/nccl/include -c tests/handover/nccl_two.cu
    fi
    ls tests/gpu/*.cu | awk -v to="$to" '{ print "#include \"" $0 "\"" >(to "/tests_" int((NR - 1) / 5) ".cu") }'
    for source in "$to"/tests_*.cu; do
      compile "$(basename "$source" .cu).o" "$nvcc" $flags -I. -c "$source"
    done
    for source in tests/gpu/*.cpp; do
      compile "$(basename "$source" .cpp).o" g++ -std=c++20 -O1 $paths -isystem "$lib/include" \
        -isystem "$lib/include/cccl" -c "$source"
    done
    for header in backends/cuda/include/memra/cuda/*.cuh; do
      name=$(basename "$header")
      echo "#include <memra/cuda/$name>" >"$to/$name.cu"
      compile "$name.obj" "$nvcc" $flags -c "$to/$name.cu"
    done
    compile main.o g++ -std=c++20 -O0 -Itests -c tests/support/main.cpp
  }
  wait
  [ -e "$to/broken" ] || return 0
  while IFS= read -r object; do
    echo "NOT COMPILED: $object"
    grep -E 'error|fatal' "$object.log" | head -5
  done <"$to/broken"
  ! grep -vE '/(spec_decode|nccl_two).obj$' "$to/broken" >/dev/null
}

build() {
  objects "$out" "${MEMRA_CUDA_ARCH:-90a}" -O2 || exit 2
  # Catch2 3 brings its own main; 2.13 is in main.o.
  catch=
  if echo '#include <catch2/catch_all.hpp>' | g++ -E -x c++ - >/dev/null 2>&1; then catch="-lCatch2Main -lCatch2"; fi
  # The C++ library inside: the programs may run on another machine.
  libs="-static-libstdc++ -static-libgcc -L$lib/lib64 -lcudart_static -ldl -lrt -lpthread"
  # shellcheck disable=SC2086
  g++ "$out"/*.o -o "$out/memra_gpu_tests" $catch $libs || exit 2
  # shellcheck disable=SC2086
  [ ! -e "$out/spec_decode.obj" ] || g++ "$out/spec_decode.obj" -o "$out/spec_decode" $libs || exit 2
  # shellcheck disable=SC2086
  [ ! -e "$out/nccl_two.obj" ] || g++ "$out/nccl_two.obj" -o "$out/nccl_two" -L"$lib/lib" -lnccl $libs ||
    echo "SKIPPED hand-over over NCCL: not linked"
}

# What was compiled for other GPUs: a program of every test, header and example each. Nobody runs these here.
arches() {
  for arch in "$@"; do
    if objects "$out/sm_$arch" "$arch" "-O1 --Ofast-compile=max -Xcompiler -O0" && [ ! -e "$out/sm_$arch/broken" ]; then
      echo "ok      sm_$arch: $started files compiled, $("$nvcc" --version | grep -o 'release [0-9.]*, V[0-9.]*')"
    else
      echo "FAILED  sm_$arch"
      failed=1
    fi
  done
  exit $failed
}

# run LIMIT_S WHAT COMMAND...: one line of the report, what the tests print themselves (lines that begin with a small
# letter, as "words: figures"), and the end of the output where it failed.
run() {
  limit=$1
  what=$2
  shift 2
  start=$(date +%s)
  timeout "$limit" "$@" >"$log" 2>&1
  rc=$?
  seconds=$(($(date +%s) - start))
  if [ $rc -eq 0 ]; then
    echo "ok      $what (${seconds} s): $(grep -hE 'All tests passed|ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tail -1)"
  elif [ $rc -eq 124 ]; then
    failed=1
    echo "LIMIT   $what: not done after ${limit} s"
    tail -5 "$log"
  else
    failed=1
    echo "FAILED  $what (status $rc)"
    tail -30 "$log"
  fi
  grep -hE '^([a-z][a-zA-Z0-9_,. ]*: | *SKIPPED|(plain|speculative|verdict|devices) )' "$log"
}

# has_tests FILTER: the program has test cases that match.
has_tests() { ! "$bin/memra_gpu_tests" "-#" --list-tests "$1" | grep -q '^0 '; }

# The sanitizers spend their time on the host: all at once, beside the tests.
sanitizers_begin() {
  tools=
  if ! command -v compute-sanitizer >/dev/null; then
    echo "SKIPPED compute-sanitizer: not found"
    return
  fi
  for tool in memcheck racecheck initcheck synccheck; do
    (
      log=$work/$tool.log
      run 200 "compute-sanitizer $tool" compute-sanitizer --tool $tool --error-exitcode 9 "$bin/memra_gpu_tests" \
        "[sanitize]"
      exit $failed
    ) >"$work/$tool.txt" &
    tools="$tools $!:$tool"
  done
}
sanitizers_end() {
  for pair in $tools; do
    wait "${pair%%:*}" || failed=1
    cat "$work/${pair##*:}.txt"
  done
}

report() {
  echo "date    $(date -u +%Y-%m-%d)"
  echo "GPU     $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -1)"
  echo "built   $("$nvcc" --version 2>/dev/null | grep -o 'release [0-9.]*, V[0-9.]*'), sm_${MEMRA_CUDA_ARCH:-90a}"
  sanitizers_begin
  for source in tests/gpu/*.cpp tests/gpu/*.cu; do
    name=$(basename "$source")
    filter="[#${name%.*}]"
    if has_tests "${filter}~[.]"; then run 90 "$name" "$bin/memra_gpu_tests" "-#" "${filter}~[.]"; fi
    if has_tests "${filter}[.lost]"; then run 30 "$name, alone" "$bin/memra_gpu_tests" "-#" "${filter}[.lost]"; fi
  done
  if [ -x "$bin/spec_decode" ]; then
    for flags in "" "--kv f16/f16" "--stages 2"; do
      # shellcheck disable=SC2086
      run 60 "spec_decode --device cuda $flags" "$bin/spec_decode" --device cuda --tokens 200 --model "$model" $flags
    done
  else
    echo "SKIPPED spec_decode: not built"
  fi
  if [ -x "$bin/nccl_two" ] && [ "$(nvidia-smi --list-gpus | wc -l)" -ge 2 ]; then
    run 120 "hand-over over NCCL" "$bin/nccl_two"
    cat "$log"
  else
    echo "SKIPPED hand-over over NCCL: it needs NCCL and two GPUs"
  fi
  sanitizers_end  # the times want the GPU for themselves
  for source in tests/gpu/*.cu; do
    filter="[#$(basename "$source" .cu)][.bench]"
    has_tests "$filter" || continue
    echo
    timeout 90 "$bin/memra_gpu_tests" "-#" "$filter" >"$log" 2>&1 || { failed=1 && echo "FAILED  times of $source"; }
    grep -vE '^(Filters|Randomness|====|All tests|$)' "$log"
  done
  return $failed
}

out=$root/build/gpu
bin=$out
case ${1-} in
  --build-only)
    build
    exit
    ;;
  --arches)
    shift
    arches "$@"
    ;;
  "")
    if ! command -v nvidia-smi >/dev/null; then
      echo "SKIPPED: there is no GPU here; sh tests/gpu.sh --build-only compiles everything"
      exit 77
    fi
    build
    ;;
  *) bin=$(cd "$1" && pwd) || exit 2 ;;
esac
model=${MEMRA_TEST_MODEL:-tests/fixtures/tiny}
work=$bin/work
log=$work/log
mkdir -p "$work"
report >"$bin/report.txt"
status=$?
cat "$bin/report.txt"
exit $status
