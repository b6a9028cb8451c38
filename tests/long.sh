#!/bin/sh
# sh tests/long.sh [PART...]     parts: histories mutants fuzz memcheck engine; all of them if none is named
# What takes too long for tests/run.sh. On one core of 2 GHz: histories about 25 minutes (20 million operations of each
# machine on the plain build, 2 million under the sanitizers), mutants 10, fuzz 60 (20 minutes a target, on all
# cores), memcheck 40 (all unit tests, those of arithmetic too), engine 10 (all engine tests under the
# sanitizers).
# Needs what tests/run.sh needs; says at the end what failed.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/cmake/machine.sh"
parts=${*:-histories mutants fuzz memcheck engine}
failed=
wants() { case " $parts " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }
try() { # WHAT COMMAND...
  what=$1
  shift
  echo "== $what"
  "$@" || failed="$failed; $what"
}
build() { # PRESET TARGET...
  preset=$1
  shift
  (cd "$root" && configure "$root/build/$preset" "$preset" >/dev/null &&
    cmake --build "$root/build/$preset" --parallel "$(jobs)" --target "$@")
}

if wants histories; then
  build release memra_property
  build asan memra_property
  for machine in cache draft; do
    try "histories of $machine" "$root/build/release/tests/property/memra_property" $machine --ops 20000000 --seed 500000
    try "histories of $machine, sanitizers" "$root/build/asan/tests/property/memra_property" $machine --ops 2000000 \
      --seed 900000
  done
fi
if wants mutants; then try "mutants" sh "$root/tests/mutants.sh"; fi
if wants fuzz; then
  build fuzz all
  for target in safetensors config ids; do
    found=$root/build/fuzz/tests/fuzz/$target
    try "fuzz $target" "$root/build/fuzz/tests/fuzz/memra_fuzz_$target" -max_total_time=1200 -max_len=4096 -timeout=10 \
      -rss_limit_mb=2048 -fork="$(jobs)" "-artifact_prefix=$found/" "$found" "$root/tests/fuzz/corpus/$target"
  done
fi
if wants memcheck; then
  build release memra_unit_tests
  try "memcheck of all unit tests" valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
    "$root/build/release/tests/memra_unit_tests" '~[.]'
fi
if wants engine; then
  build asan memra_engine_tests
  try "engine under the sanitizers" "$root/build/asan/tests/memra_engine_tests" '~[.]'
fi
if [ -n "$failed" ]; then
  echo "FAILED: ${failed#; }"
  exit 1
fi
echo "all passed: $parts"
