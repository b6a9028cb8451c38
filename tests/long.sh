#!/bin/sh
# sh tests/long.sh [PART...]     parts: histories mutants fuzz memcheck engine; all of them if none is named
# What takes too long for tests/run.sh, as many parts at a time as there are cores: about an hour on two that do nothing
# else.
#   histories  three minutes of each machine, and about one under the sanitizers: on one core of 2 GHz it does 30,000
#              operations a second of a cache, 95,000 of a draft cache, 6,500 of rounds, 65,000 of late failures.
#              HISTORIES=10 for ten times as many
#   mutants    every bug of tests/mutants.sh planted into the headers, one at a time: each must be noticed
#   fuzz       three minutes a target from the kept corpus; FUZZ_SECONDS=1200 for a long run
#   memcheck   the unit tests of arithmetic, which tests/run.sh leaves out
#   engine     the engine tests under the sanitizers, their texts at full length (a tenth in tests/run.sh)
# Needs what tests/run.sh needs. What each part said is in build/long; what failed is said at the end.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/cmake/machine.sh"
logs=$root/build/long

build() { # PRESET TARGET...
  preset=$1
  shift
  (cd "$root" && configure "$root/build/$preset" "$preset" >/dev/null &&
    cmake --build "$root/build/$preset" --parallel "$(jobs)" --target "$@")
}
build_long() { # TARGET...: under the sanitizers, nothing shortened
  (cd "$root" && configure "$root/build/asan_long" asan -DMEMRA_TEST_ONE_IN=1 >/dev/null &&
    cmake --build "$root/build/asan_long" --parallel "$(jobs)" --target "$@")
}
run() { # PART: its programs are built
  case $1 in
    histories)
      for machine in round:1200 cache:5400 draft:18000 late:12000; do
        thousands=$((${machine#*:} * ${HISTORIES:-1}))
        "$root/build/release/tests/property/memra_property" ${machine%:*} --ops ${thousands}000 --seed 500000
        "$root/build/asan/tests/property/memra_property" ${machine%:*} --ops $((thousands * 50)) --seed 900000
      done ;;
    mutants) sh "$root/tests/mutants.sh" ;;
    fuzz)
      for target in safetensors config ids handover hf gguf; do
        found=$root/build/fuzz/tests/fuzz/$target
        "$root/build/fuzz/tests/fuzz/memra_fuzz_$target" "-max_total_time=${FUZZ_SECONDS:-180}" -max_len=4096 \
          -timeout=100 -rss_limit_mb=2048 -print_final_stats=1 "-artifact_prefix=$found/" "$found" \
          "$root/tests/fuzz/corpus/$target"
      done ;;
    memcheck)
      for file in "$root"/tests/unit/codec_*.cpp "$root"/tests/unit/ops_*.cpp "$root"/tests/unit/layout_*.cpp \
        "$root"/tests/unit/kinds_attend.cpp "$root"/tests/unit/kinds_scan.cpp "$root"/tests/unit/kinds_walk.cpp \
        "$root"/tests/unit/portable_ops.cpp "$root"/tests/unit/scan_chunked.cpp; do
        name=$(basename "$file" .cpp)
        valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
          "$root/build/release/tests/memra_unit_tests" '-#' "[#$name]~[.]"
      done ;;
    engine) "$root/build/asan_long/tests/memra_engine_tests" '~[.]' ;;
  esac
}

case ${1:-} in
  --run)  # one part, called by the line below
    start=$(date +%s)
    what=passed
    set +e  # a condition would switch -e off inside, too
    (set -e; run "$2") >"$logs/$2.txt" 2>&1
    [ $? -eq 0 ] || what=FAILED
    set -e
    echo "$what: $2, $(($(date +%s) - start)) s; $(tail -n 1 "$logs/$2.txt")"
    [ $what = passed ]
    exit ;;
esac

parts=${*:-histories mutants fuzz memcheck engine}
mkdir -p "$logs"
for part in $parts; do
  case $part in
    histories) build release memra_property && build asan memra_property ;;
    fuzz) build fuzz all ;;
    memcheck) build release memra_unit_tests ;;
    engine) build_long memra_engine_tests ;;
    mutants) ;;
    *) echo "there is no part $part"; exit 2 ;;
  esac
done
# shellcheck disable=SC2086  # words
printf '%s\n' $parts | xargs -n 1 -P "$(jobs)" sh "$0" --run && echo "all passed: $parts"
