#!/bin/sh
# sh tests/gpu.sh [BUILT_FOLDER]
# Builds and runs every test of the CUDA backend on a machine with a GPU, in under 8 minutes, and writes a report to
# build/gpu/report.txt. With BUILT_FOLDER, `sh tests/gpu.sh --build-only` was run before, here or on another machine of
# the same system: its programs are run instead. Needs nvcc 13, g++ and Catch2; CLI11 and
# nlohmann-json for spec_decode; compute-sanitizer for the last part. Says what it skips.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
out=$root/build/gpu
arch=${MEMRA_CUDA_ARCH:-90a}
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
failed=0

build() {
  mkdir -p "$out" && cd "$root" || exit 2
  lib=$(dirname "$(dirname "$nvcc")")
  flags="-std=c++20 -O2 -gencode=arch=compute_$arch,code=sm_$arch -Iinclude -Ibackends/cuda/include -Itests -Iexamples"
  jobs=
  for name in ops_bits graph snapshot bench conformance lost two; do
    "$nvcc" $flags -c tests/gpu/$name.cu -o "$out/$name.o" &
    jobs="$jobs $!"
  done
  "$nvcc" -x cu $flags -DMEMRA_SPEC_DECODE_CUDA -DMEMRA_DEFAULT_MODEL='"tests/fixtures/tiny"' \
    -c examples/spec_decode.cpp -o "$out/spec_decode.obj" 2>"$out/spec_decode.log" &
  spec=$!
  g++ -std=c++20 -O1 -Iinclude -Ibackends/cuda/include -Itests -isystem "$lib/include" -c tests/gpu/device.cpp \
    -o "$out/device.o" &
  jobs="$jobs $!"
  g++ -std=c++20 -O0 -Itests -c tests/support/main.cpp -o "$out/main.o" &
  jobs="$jobs $!"
  for job in $jobs; do wait "$job" || broken=1; done
  [ -z "${broken-}" ] || exit 2
  # Catch2 3 brings its own main; 2.13 is in main.o.
  catch=
  if echo '#include <catch2/catch_all.hpp>' | g++ -E -x c++ - >/dev/null 2>&1; then catch="-lCatch2Main -lCatch2"; fi
  # The C++ library inside: the programs may run on another machine.
  g++ -static-libstdc++ -static-libgcc "$out"/*.o -o "$out/memra_gpu_tests" $catch -L"$lib/lib64" -lcudart_static -ldl -lrt \
    -lpthread || exit 2
  if wait "$spec"; then
    g++ -static-libstdc++ -static-libgcc "$out/spec_decode.obj" -o "$out/spec_decode" -L"$lib/lib64" -lcudart_static \
      -ldl -lrt -lpthread || exit 2
  else
    echo "SKIPPED: spec_decode was not built (see spec_decode.log)"
  fi
}

# run LIMIT_S WHAT COMMAND...: one line of the report, the output where it failed.
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
  grep -hE '^(snapshot_into|attend:)' "$log"
  grep -h '^SKIPPED' "$log" | sort -u
}

report() {
  echo "date    $(date -u +%Y-%m-%d)"
  echo "GPU     $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -1)"
  echo "built   $("$nvcc" --version 2>/dev/null | grep -o 'release [0-9.]*, V[0-9.]*'), sm_$arch"
  for tag in device cache conformance large ops graph snapshot two; do run 60 "[$tag]" "$bin/memra_gpu_tests" "[$tag]"; done
  run 30 "a lost context" "$bin/memra_gpu_tests" "[.lost]"
  if [ -x "$bin/spec_decode" ]; then
    for flags in "" "--kv f16/f16" "--stages 2"; do
      # shellcheck disable=SC2086
      run 60 "spec_decode --device cuda $flags" "$bin/spec_decode" --device cuda --tokens 200 --model "$model" $flags
      grep -E '^(plain|speculative|verdict|devices)' "$log"
    done
  else
    echo "SKIPPED spec_decode: not built"
  fi
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck initcheck synccheck; do
      # All four at once: they spend their time on the host.
      (
        log=$work/$tool.log
        run 200 "compute-sanitizer $tool" compute-sanitizer --tool $tool --error-exitcode 9 "$bin/memra_gpu_tests" \
          "[sanitize]"
        exit $failed
      ) >"$work/$tool.txt" &
      tools="${tools-} $!:$tool"
    done
    for pair in $tools; do
      wait "${pair%%:*}" || failed=1
      cat "$work/${pair##*:}.txt"
    done
  else
    echo "SKIPPED compute-sanitizer: not found"
  fi
  echo
  timeout 60 "$bin/memra_gpu_tests" "[.bench]" | grep -vE '^(Filters|Randomness|====|All tests|$)' || failed=1
  exit $failed
}

bin=$out
if [ $# -gt 0 ] && [ "$1" = --build-only ]; then
  build
  exit
elif [ $# -gt 0 ]; then
  bin=$(cd "$1" && pwd)
else
  if ! command -v nvidia-smi >/dev/null; then
    echo "SKIPPED: there is no GPU here; sh tests/gpu.sh --build-only compiles everything"
    exit 77
  fi
  build
fi
model=${MEMRA_TEST_MODEL:-$root/tests/fixtures/tiny}
work=$bin/work
log=$work/log
mkdir -p "$work"
report >"$bin/report.txt"
status=$?
cat "$bin/report.txt"
exit $status
