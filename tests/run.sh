#!/bin/sh
# sh tests/run.sh [--strict] [flags of ctest]
# Builds and runs every test: with this machine's compiler, with clang++, under the sanitizers, with a race detector,
# under memcheck, and the fuzz targets for a short fixed time. What takes longer is in tests/long.sh.
# Installs what is missing with apt when it may; else names the packages and exits with status 1.
# The last lines are ctest's own summary over all of it; what cannot run here is said before. With --strict it is an
# error, unless it is for another kind of machine: a part that CI loses in silence protects nothing.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/cmake/machine.sh"
strict=
if [ "${1:-}" = --strict ]; then strict=yes && shift; fi

packages="g++ cmake catch2 nlohmann-json3-dev"
if uses 'CLI/' "$root/examples" "$root/tests"; then packages="$packages libcli11-dev"; fi
if uses 'benchmark/benchmark\.h' "$root/tests/bench"; then packages="$packages libbenchmark-dev"; fi
if ! have ninja && ! have make; then packages="$packages ninja-build"; fi
# shellcheck disable=SC2086
require $packages

notices=$root/build/notices
mkdir -p "$root/build"
: >"$notices"
# notice WORDS: for another kind of machine. lost WORDS: what a tool or package would bring back.
notice() { echo "SKIPPED HERE: $*" >>"$notices"; }
losses=
lost() {
  notice "$@"
  losses=yes
}
# Before the long work and after it has said what it leaves out.
refuse_losses() {
  [ -n "$strict" ] && [ -n "$losses" ] || return 0
  cat "$notices"
  echo "tests/run.sh --strict: parts of the tests are lost here (above); a missing tool is an error"
  exit 1
}

for package in $(wish ninja-build ccache clang clang-format-14 clang-tidy-14 valgrind libopenmpi-dev openmpi-bin \
  hipcc libamdhip64-dev rocm-device-libs librocprim-dev); do
  case $package in
    clang) lost "everything that needs clang++ (second compiler, its identity and compile-fail tests): not found" ;;
    clang-format-14) lost "the format check: clang-format 14 not found" ;;
    valgrind) lost "the unit tests under memcheck: valgrind not found" ;;
    clang-tidy-14) lost "the clang-tidy check: clang-tidy 14 not found" ;;
    hipcc) lost "the HIP backend for a GPU (compiled, linked, its assembly): hipcc not found" ;;
  esac
done
refuse_losses

# leg NAME [ARGUMENT...]: configures and builds build/NAME.
legs=
leg() {
  name=$1
  shift
  echo "== $name: configure and build"
  (cd "$root" && configure "$root/build/$name" "$name" "$@" && cmake --build "$root/build/$name" --parallel "$(jobs)")
  legs="$legs $name"
}

leg release -DMEMRA_BUILD_TESTS=ON -DMEMRA_BUILD_EXAMPLES=ON -DMEMRA_BUILD_BENCH=ON -DMEMRA_WERROR=ON \
  -DMEMRA_TEST_MEMCHECK=ON
case $("$(cxx)" --version) in
  *clang*) notice "a second compiler: the main one is clang++ itself" ;;
  *) if have clang++; then leg clang; fi ;;
esac

if have clang++; then wish "libclang-rt-$(clang++ -dumpversion | cut -d. -f1)-dev" >/dev/null; fi
sanitizer=$(sanitizer_cxx)
probe=$root/build/probe
rm -f "$probe"
echo 'int main() {}' >"$probe.cpp"
if "$sanitizer" -fsanitize=address,undefined "$probe.cpp" -o "$probe" 2>/dev/null && "$probe" 2>/dev/null; then
  leg asan
elif ASAN_OPTIONS=detect_leaks=0 "$probe" 2>/dev/null; then
  notice "the search for leaks: LeakSanitizer cannot trace here"
  export ASAN_OPTIONS=detect_leaks=0
  leg asan
else
  lost "the sanitizers: $sanitizer cannot build or run with -fsanitize=address,undefined"
fi
if "$sanitizer" -fsanitize=thread "$probe.cpp" -o "$probe" 2>/dev/null && "$probe" 2>/dev/null; then
  leg tsan
else
  lost "the race detector: $sanitizer cannot build or run with -fsanitize=thread"
fi
if have clang++; then leg fuzz; fi

# The parts of a leg that its configure step left out, in its own words.
for name in $legs; do
  while IFS= read -r words; do
    case $words in
      '[elsewhere] '*) notice "$name: ${words#?elsewhere? }" ;;
      *) lost "$name: $words" ;;
    esac
  done <"$root/build/$name/skipped.txt"
done
refuse_losses
# Their tools alone are no GPU: rocminfo comes with hipcc.
if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/kfd ]; then notice "tests on a GPU: there is none here"; fi

# One ctest run over the build directories of all legs, so that there is one summary.
all=$root/build/all
mkdir -p "$all"
: >"$all/CTestTestfile.cmake"
for name in $legs; do echo "subdirs(\"$root/build/$name\")" >>"$all/CTestTestfile.cmake"; done

echo "== test"
cat "$notices"
ctest --test-dir "$all" --output-on-failure --parallel "$(jobs)" "$@"
