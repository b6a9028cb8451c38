#!/bin/sh
# usage: check_rules.sh ROOT
# Every rule of docs/contract.md and docs/handover.md is the first word, or one of the words, of a test's name. A rule of
# devices (S) is the first word of a property in tests/conformance, and a broken device is refused by it in red_arms.cpp.
set -eu
cd "$1"
names=$(mktemp)
properties=$(mktemp)
trap 'rm -f "$names" "$properties"' EXIT
# Names of Catch2's tests and of conformance properties, also where a line was broken before or in the name.
find tests -type f \( -name '*.cpp' -o -name '*.hpp' -o -name '*.cu' \) -exec cat {} + | tr '\n' ' ' |
  grep -oE '(TEST_CASE\(|push_back\( *\{) *"[^"]*"' >"$names" || true
find tests/conformance -type f -name '*.hpp' -exec cat {} + | tr '\n' ' ' |
  grep -oE 'push_back\( *\{ *"[^"]*"' >"$properties" || true
rules=$(sed -n 's/^- \*\*\([A-Z][0-9]*\)\*\*.*/\1/p' docs/contract.md docs/handover.md)
[ -n "$rules" ] || { echo "no rules found"; exit 1; }
missing=0
for rule in $rules; do
  grep -qE "[\" ]${rule}[\" :,]" "$names" || { echo "no test carries $rule"; missing=1; }
  case $rule in
    S*)
      grep -qE "\"${rule}[\" :,]" "$properties" || { echo "no property of tests/conformance carries $rule"; missing=1; }
      grep -qE "[(,] *\"${rule}[ \"]" tests/conformance/red_arms.cpp || { echo "no broken device is refused by $rule"; missing=1; }
      ;;
  esac
done
[ $missing -eq 0 ] && echo "all of $(echo "$rules" | wc -w) rules have a test"
exit $missing
