#!/bin/sh
# usage: check_format.sh CLANG_FORMAT SOURCE_DIR
# Every tracked C++ and CUDA file (outside git: every such file) is as .clang-format wants it.
set -eu
CLANG_FORMAT=$1
cd "$2"
list=$(mktemp)
trap 'rm -f "$list"' EXIT
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  git ls-files -- '*.hpp' '*.cpp' '*.inc' '*.h' '*.cu' '*.cuh' >"$list"
else
  find include backends transports examples tests -name '*.hpp' -o -name '*.cpp' -o -name '*.inc' -o -name '*.h' \
    -o -name '*.cu' -o -name '*.cuh' >"$list"
fi
set --
while IFS= read -r file; do [ ! -f "$file" ] || set -- "$@" "$file"; done <"$list"
"$CLANG_FORMAT" --dry-run -Werror "$@"
echo "$# files are formatted"
