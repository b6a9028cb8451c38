#!/bin/sh
# usage: run_conformance.sh ROOT COMPILER
# The program that the guide of examples/custom_device shows runs the conformance suite on a device, as a stranger would
# build it: one file, two folders, no test framework, at most ten lines. With the device at hand, and with one whose
# zeros does not zero, which the program must say. It must also say what it did not check.
set -eu
root=$1
cxx=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() {
  echo "$*"
  exit 1
}
awk '/^```cpp$/ { text = ""; inside = 1; next }
  /^```$/ { if (inside && text ~ /run_all/) printf "%s", text; inside = 0; next }
  inside { text = text $0 "\n" }' "$root/examples/custom_device/README.md" >"$dir/main.cpp"
grep -q run_all "$dir/main.cpp" || fail "the guide shows no program that calls run_all"
[ "$(wc -l <"$dir/main.cpp")" -le 10 ] || fail "the program has $(wc -l <"$dir/main.cpp") lines; expected at most ten"
cp "$root/examples/custom_device/custom_dev.hpp" "$dir"
build() { "$cxx" -std=c++20 -O0 -I"$root/include" -I"$root/tests" "$dir/main.cpp" -pthread -o "$dir/program"; }

build
"$dir/program" >"$dir/out" || fail "$(cat "$dir/out")"
grep -q '^ok .*S2' "$dir/out" || fail "no property of S2 ran: $(cat "$dir/out")"
# The guide quotes what the program says, and every rule of which it cannot see all has a line.
grep '^not checked CustomDev: S' "$root/examples/custom_device/README.md" >"$dir/quoted" || fail "the guide quotes no line"
while IFS= read -r line; do
  grep -qxF "$line" "$dir/out" || fail "the guide quotes \"$line\", but the program says: $(cat "$dir/out")"
done <"$dir/quoted"
for rule in S3 S4 S5 S6 S9 S10 C10 R1 S8; do
  grep -q "^not checked CustomDev: $rule [a-zA-Z0-9].*: .*[a-z]" "$dir/out" || fail "nothing of $rule is said to be not checked"
done
sed 's/std::memset(made->data(), 0, n)/std::memset(made->data(), 1, n)/' "$dir/custom_dev.hpp" >"$dir/broken.hpp"
! cmp -s "$dir/custom_dev.hpp" "$dir/broken.hpp" || fail "nothing was broken"
mv "$dir/broken.hpp" "$dir/custom_dev.hpp"
build
! "$dir/program" >"$dir/out" || fail "a device that does not zero passes"
grep -q '^FAILED .*S2' "$dir/out" || fail "it does not say that S2 failed: $(cat "$dir/out")"
echo "the guide's program runs the suite, and notices"
