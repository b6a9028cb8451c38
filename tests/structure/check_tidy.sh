#!/bin/sh
# usage: check_tidy.sh CLANG_TIDY SOURCE_DIR
# The library's headers pass .clang-tidy, read through one file that includes them all.
set -eu
cd "$2"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# A header without #pragma once is half of a pair and has no meaning alone; detail/gpu_* needs a device compiler.
(cd include && find memra -name '*.hpp' ! -path '*/detail/gpu_*' -exec grep -l '^#pragma once' {} + | LC_ALL=C sort | sed 's/.*/#include <&>/') \
  >"$dir/all.cpp"
"$1" --quiet --config-file=.clang-tidy --header-filter="include/memra/" "$dir/all.cpp" -- -std=c++20 -Iinclude
echo "$(grep -c . "$dir/all.cpp") headers are tidy"
