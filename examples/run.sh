#!/bin/sh
# sh examples/run.sh [flags of spec_decode]
# Builds the examples and runs the main job: a real hybrid model decodes speculatively on memra's state.
# Installs what is missing with apt when it may; else names the packages and exits with status 1.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/cmake/machine.sh"

packages="g++ cmake nlohmann-json3-dev"
if uses 'CLI/' "$root/examples"; then packages="$packages libcli11-dev"; fi
if ! have ninja && ! have make; then packages="$packages ninja-build"; fi
# shellcheck disable=SC2086
require $packages

build=$root/build/examples
log=$root/build/examples-build.log
mkdir -p "$root/build"
echo "== building the examples in $build"
# The build's own words are of interest only when it fails.
if ! (cd "$root" && configure "$build" release -DMEMRA_BUILD_TESTS=OFF -DMEMRA_BUILD_BENCH=OFF \
        -DMEMRA_WERROR=OFF &&
      cmake --build "$build" --parallel "$(jobs)") >"$log" 2>&1; then
  cat "$log" >&2
  echo "The examples could not be built; the compiler's words are above." >&2
  exit 1
fi
exec "$build/examples/spec_decode" "$@"
