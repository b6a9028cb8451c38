#!/bin/sh
# sh check_cases.sh CASES.md TESTS_FOLDER
# Every test that the table of cases names (in double quotes) exists; every row names a test or says "cannot happen:";
# every case id in a test's name has a row that names that test.
set -eu
table=$1
tests=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
complain() {
  echo "$1"
  status=1
}

# Names of test cases, also where the name is on the line after the bracket; and the property tests.
find "$tests" -name '*.cpp' | sort | while read -r file; do
  tr '\n' ' ' <"$file" | grep -o 'TEST_CASE( *"[^"]*"' || true
done | sed 's/^TEST_CASE( *"//; s/"$//' >"$work/names"
if [ -d "$tests/property" ]; then printf 'property.cache\nproperty.draft\nproperty.late\n' >>"$work/names"; fi

grep '^| B[0-9]' "$table" >"$work/rows" || { echo "$table: no rows"; exit 1; }
while IFS= read -r row; do
  id=$(echo "$row" | sed 's/^| \(B[0-9]*\) .*/\1/')
  cell=$(echo "$row" | sed 's/ |$//; s/.*| //')
  echo "$cell" | grep -o '"[^"]*"' | tr -d '"' >"$work/named" || true
  case $cell in *"cannot happen:"*) ;; *) [ -s "$work/named" ] || complain "$id: neither a test nor a reason" ;; esac
  while IFS= read -r name; do
    grep -qxF -e "$name" "$work/names" || complain "$id: there is no test \"$name\""
  done <"$work/named"
  grep -wF -e "$id" "$work/names" >"$work/with_id" || true
  while IFS= read -r name; do
    grep -qxF -e "$name" "$work/named" || complain "$id: the table leaves out \"$name\""
  done <"$work/with_id"
done <"$work/rows"
sed 's/^| \(B[0-9]*\) .*/\1/' "$work/rows" | sort | uniq -d | while read -r id; do echo "$id: two rows"; done >"$work/twice"
[ ! -s "$work/twice" ] || complain "$(cat "$work/twice")"
for id in $(grep -oE '\bB[0-9]{2,3}\b' "$work/names" | sort -u); do
  grep -q "^| $id " "$work/rows" || complain "$id: in the name of a test, without a row"
done
exit $status
