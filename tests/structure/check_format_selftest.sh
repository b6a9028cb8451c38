#!/bin/sh
# usage: check_format_selftest.sh CLANG_FORMAT SOURCE_DIR
# The red arm of check_format.sh.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/include" "$dir/examples" "$dir/tests"
cp "$2/.clang-format" "$dir/"
run() { (cd / && GIT_CEILING_DIRECTORIES=$dir sh "$here/check_format.sh" "$1" "$dir") >/dev/null 2>&1; }
printf 'int f() {\n  return 1;\n}\n' >"$dir/include/good.hpp"
run "$1" || { echo "a good file is refused"; exit 1; }
printf 'int f() { \n return 1; }\n' >"$dir/tests/bad.cpp"
! run "$1" || { echo "NOT NOTICED: a file that is not formatted"; exit 1; }
echo "the red arm was noticed"
