#!/bin/sh
# usage: check_format.sh CLANG_FORMAT SOURCE_DIR
# Every tracked C++ file (outside git: every C++ file) is as .clang-format wants it.
set -eu
CLANG_FORMAT=$1
cd "$2"
list=$(mktemp)
trap 'rm -f "$list"' EXIT
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  git ls-files -- '*.hpp' '*.cpp' '*.inc' >"$list"
else
  find include examples tests -name '*.hpp' -o -name '*.cpp' -o -name '*.inc' >"$list"
fi
set --
while IFS= read -r file; do [ ! -f "$file" ] || set -- "$@" "$file"; done <"$list"
"$CLANG_FORMAT" --dry-run -Werror "$@"
echo "$# files are formatted"
