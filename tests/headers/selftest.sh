#!/bin/sh
# usage: selftest.sh CXX
# The red arms of the header programs: a header in two translation units builds if it is whole, and not if it needs
# another header, guards itself badly, or has a function that is not inline.
set -eu
cxx=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
printf '#include <h.hpp>\n#include <h.hpp>\n' >"$dir/alone.cpp"
printf '#include <h.hpp>\nint main() {}\n' >"$dir/all.cpp"
builds() {
  printf '%b' "$1" >"$dir/h.hpp"
  $cxx -std=c++20 -O0 -I"$dir" "$dir/alone.cpp" "$dir/all.cpp" -o "$dir/program" >/dev/null 2>&1
}
builds '#pragma once\n#include <cstddef>\ninline std::size_t f() { return 1; }\n' || { echo "a whole header is refused"; exit 1; }
for fault in '#pragma once\ninline std::size_t f() { return 1; }\n' \
  '#include <cstddef>\ninline std::size_t f() { return 1; }\n' \
  '#pragma once\n#include <cstddef>\nstd::size_t f() { return 1; }\n'; do
  ! builds "$fault" || { echo "NOT NOTICED: $fault"; exit 1; }
done
echo "every red arm was noticed"
