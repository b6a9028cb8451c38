#!/bin/sh
# The red arms of check_rules.sh.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/docs" "$dir/tests/conformance"
printf -- '- **S1** order.\n- **S10** one door.\n- **C8** steps.\n' >"$dir/docs/contract.md"
printf -- '- **H1** bits.\n' >"$dir/docs/handover.md"
cat >"$dir/tests/a.cpp" <<'END'
TEST_CASE("C8 S10 a door", "[x]") {}
TEST_CASE("S1 in a test", "[x]") {}
TEST_CASE(
    "H1: to the last bit") {}
END
cat >"$dir/tests/conformance/suite.hpp" <<'END'
  out.push_back(
      {"S1 in order", [] {}});
  out.push_back({"S10 a door", [] {}});
END
cat >"$dir/tests/conformance/red_arms.cpp" <<'END'
  must_fail(order<LosesOrder>, "S1");
  REQUIRE(failures<TwoDoors>("S10 a").size() == 1);
END
sh "$here/check_rules.sh" "$dir" >/dev/null || { echo "rules that have a test are refused"; exit 1; }
misses() { # FILE SED WORDS
  cp "$dir/tests/$1" "$dir/kept"
  sed "$2" "$dir/kept" >"$dir/tests/$1"
  if sh "$here/check_rules.sh" "$dir" >"$dir/out"; then echo "NOT NOTICED: $2"; exit 1; fi
  grep -qx "$3" "$dir/out" || { echo "does not say \"$3\""; cat "$dir/out"; exit 1; }
  mv "$dir/kept" "$dir/tests/$1"
}
misses a.cpp 's/C8 S10/S10/' "no test carries C8"
misses a.cpp 's/H1: to/to/' "no test carries H1"
# A test of another folder is not what a device's author runs.
suite=conformance/suite.hpp
misses $suite 's/S1 in/in/' "no property of tests/conformance carries S1"  # S10 is another one
misses $suite 's/S10 a/a/' "no property of tests/conformance carries S10"
misses $suite 's/S1 in/XS1 in/' "no property of tests/conformance carries S1"
misses $suite 's/S10 a/C8 S10 a/' "no property of tests/conformance carries S10"
misses conformance/red_arms.cpp 's/"S1"/"S10"/' "no broken device is refused by S1"
misses conformance/red_arms.cpp 's/"S10 a"/""/' "no broken device is refused by S10"
mv "$dir/tests/$suite" "$dir/suite"
printf 'TEST_CASE("S1 S10") {}\n' >>"$dir/tests/a.cpp"
misses a.cpp 's/nothing/else/' "no property of tests/conformance carries S1"
mv "$dir/suite" "$dir/tests/$suite"
echo 'no rules' | tee "$dir/docs/contract.md" >"$dir/docs/handover.md"
if sh "$here/check_rules.sh" "$dir" >/dev/null; then echo "NOT NOTICED: no rules"; exit 1; fi
echo "every red arm was noticed"
