#!/bin/sh
# The red arms of check_cases.sh.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/tests"
printf 'TEST_CASE("B01 one thing", "[x]") {}\nTEST_CASE("B02 B03 a long name",\n          "[x]") {}\n' >"$dir/tests/a.cpp"
row() { printf '| %s | bad | %s |\n' "$1" "$2" >>"$dir/cases.md"; }
good() {
  : >"$dir/cases.md"
  row B01 '"B01 one thing"'
  row B02 '"B02 B03 a long name"'
  row B03 '"B02 B03 a long name"'
}
check() { sh "$here/check_cases.sh" "$dir/cases.md" "$dir/tests" >/dev/null 2>&1; }
good
row B04 'cannot happen: there is no such thing'
check || { echo "a true table is refused"; exit 1; }
noticed() { ! check || { echo "NOT NOTICED: $1"; exit 1; }; }
good; row B05 '"B05 no such test"'; noticed "a test that does not exist"
good; row B05 'none'; noticed "neither test nor reason"
good; row B01 '"B01 one thing"'; noticed "two rows of one case"
: >"$dir/cases.md"; row B01 '"B01 one thing"'; row B02 '"B02 B03 a long name"'; noticed "a case in a name without a row"
good; row B06 '"B01 one thing"'; printf 'TEST_CASE("B06 more") {}\n' >"$dir/tests/b.cpp"; noticed "a test left out"
: >"$dir/cases.md"; noticed "an empty table"
echo "every red arm was noticed"
