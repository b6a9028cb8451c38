#!/bin/sh
# The red arms of check_rules.sh.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/docs" "$dir/tests"
printf -- '- **S1** order.\n- **S10** one door.\n' >"$dir/docs/contract.md"
printf -- '- **H1** bits.\n' >"$dir/docs/handover.md"
cat >"$dir/tests/a.cpp" <<'END'
TEST_CASE("C8 S10 a door", "[x]") {}
  out.push_back(
      {"S1 in order", [] {}});
TEST_CASE(
    "H1: to the last bit") {}
END
sh "$here/check_rules.sh" "$dir" >/dev/null || { echo "rules that have a test are refused"; exit 1; }
misses() { # SED RULE
  cp "$dir/tests/a.cpp" "$dir/kept"
  sed "$1" "$dir/kept" >"$dir/tests/a.cpp"
  if sh "$here/check_rules.sh" "$dir" >"$dir/out"; then echo "NOT NOTICED: $1"; exit 1; fi
  grep -q "no test carries $2\$" "$dir/out" || { echo "does not name $2"; exit 1; }
  mv "$dir/kept" "$dir/tests/a.cpp"
}
misses 's/S1 in/in/' S1  # S10 is another one
misses 's/S10 a/a/' S10
misses 's/H1: to/to/' H1
misses 's/S1 in/XS1 in/' S1
echo 'no rules' | tee "$dir/docs/contract.md" >"$dir/docs/handover.md"
if sh "$here/check_rules.sh" "$dir" >/dev/null; then echo "NOT NOTICED: no rules"; exit 1; fi
echo "every red arm was noticed"
