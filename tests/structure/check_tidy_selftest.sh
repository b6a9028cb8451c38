#!/bin/sh
# usage: check_tidy_selftest.sh CLANG_TIDY SOURCE_DIR
# The red arm of check_tidy.sh.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/include/memra"
cp "$2/.clang-tidy" "$dir/"
printf '#pragma once\ninline int f(int* p) { return p ? 1 : 0; }\n' >"$dir/include/memra/good.hpp"
sh "$here/check_tidy.sh" "$1" "$dir" >/dev/null 2>&1 || { echo "a good header is refused"; exit 1; }
printf '#pragma once\ninline int* g() { return 0; }\n' >"$dir/include/memra/bad.hpp"
! sh "$here/check_tidy.sh" "$1" "$dir" >/dev/null 2>&1 || { echo "NOT NOTICED: a null pointer written 0"; exit 1; }
echo "the red arm was noticed"
