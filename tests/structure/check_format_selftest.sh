#!/bin/sh
# usage: check_format_selftest.sh CLANG_FORMAT SOURCE_DIR
# The red arms of check_format.sh.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/include" "$dir/backends/cuda" "$dir/transports" "$dir/examples" "$dir/tests"
cp "$2/.clang-format" "$dir/"
run() { (cd / && GIT_CEILING_DIRECTORIES=$dir sh "$here/check_format.sh" "$1" "$dir") >/dev/null 2>&1; }
printf 'int f() {\n  return 1;\n}\n' >"$dir/include/good.hpp"
printf '__global__ void f(int* p) {\n  *p = 1;\n}\n' | tee "$dir/backends/cuda/good.cuh" >"$dir/tests/good.cu"
run "$1" || { echo "a good file is refused"; exit 1; }
for bad in tests/bad.cpp include/bad.hpp include/bad.inc tests/bad.h tests/bad.cu backends/cuda/bad.cuh transports/bad.hpp; do
  printf '__global__ void f() { \n return; }\n' >"$dir/$bad"
  ! run "$1" || { echo "NOT NOTICED: $bad that is not formatted"; exit 1; }
  rm "$dir/$bad"
done
echo "every red arm was noticed"
