#!/bin/sh
# The red arms of mutants.sh: sh mutants_selftest.sh ROOT COMPILER. In a copy of the tree with tests that test nothing.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/tests/support" "$dir/tests/unit"
cp -r "$1/include" "$dir/include"
cp "$1/tests/mutants.sh" "$dir/tests/mutants.sh"
run() { CXX=$cxx sh "$dir/tests/mutants.sh" "$@" >"$dir/out" 2>&1; }
cxx=$2
says() { grep -qF "$1" "$dir/out" || { echo "does not say \"$1\": $(cat "$dir/out")"; exit 1; }; }
refuses() { ! run "$@" || { echo "passes: $*"; exit 1; }; }

cp "$1"/tests/unit/*.cpp "$dir/tests/unit"
run --plant || { cat "$dir/out"; exit 1; }
refuses --plant 'no bug has these words'
says 'no bug has any of these words'
: >"$dir/tests/unit/cases.cpp"
refuses --plant cases:B54
says 'NO TEST: cases:B54'
test='#define TEST_CASE(name) static void test()\nTEST_CASE("B54") {\n}\n'
# shellcheck disable=SC2059  # a format
printf "$test" >"$dir/tests/unit/cases.cpp"
echo 'int main() { return 0; }' >"$dir/tests/support/main.cpp"
refuses cases:B54
says 'NOT NOTICED: cases:B54'
echo 'int main() { return 1; }' >"$dir/tests/support/main.cpp"
refuses cases:B54
says 'FAILS WITHOUT A BUG: cases:B54'
echo 'int main() { return 0; }' >"$dir/tests/support/main.cpp"
printf "#include <memra/plan.hpp>\n$test" >"$dir/tests/unit/cases.cpp"
sed 's|{a.v_format, a.v_layout|{a.v_format  , a.v_layout|' "$1/include/memra/plan.hpp" >"$dir/include/memra/plan.hpp"
refuses --plant cases:B54
says 'NOT PLANTED: cases:B54'
sed 's|{a.k_format, a.v_layout|{no_such_name, a.v_layout|' "$1/tests/mutants.sh" >"$dir/tests/mutants.sh"
cp "$1/include/memra/plan.hpp" "$dir/include/memra/plan.hpp"
refuses cases:B54
says 'NOT COMPILED: cases:B54'
echo "every red arm was noticed"
