#!/bin/sh
# usage: check_rules.sh ROOT
# Every rule of docs/contract.md and docs/handover.md is the first word, or one of the words, of a test's name.
set -eu
cd "$1"
names=$(mktemp)
trap 'rm -f "$names"' EXIT
# Names of Catch2's tests and of conformance properties, also where a line was broken before or in the name.
find tests -type f \( -name '*.cpp' -o -name '*.hpp' -o -name '*.cu' \) -exec cat {} + | tr '\n' ' ' |
  grep -oE '(TEST_CASE\(|push_back\( *\{) *"[^"]*"' >"$names" || true
rules=$(sed -n 's/^- \*\*\([A-Z][0-9]*\)\*\*.*/\1/p' docs/contract.md docs/handover.md)
[ -n "$rules" ] || { echo "no rules found"; exit 1; }
missing=0
for rule in $rules; do
  grep -qE "[\" ]$rule[\" :,]" "$names" || { echo "no test carries $rule"; missing=1; }
done
[ $missing -eq 0 ] && echo "all of $(echo "$rules" | wc -w) rules have a test"
