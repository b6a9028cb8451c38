#!/bin/sh
# usage: check_readme.sh README QUICKSTART_SOURCE QUICKSTART_PROGRAM
# The README's first program is examples/quickstart.cpp, and the output it shows is what that prints.
# Both stand in fenced blocks after the lines <!-- quickstart.cpp --> and <!-- quickstart output -->.
set -eu
block() {
  awk -v mark="<!-- $2 -->" '
    $0 == mark { armed = 1; next }
    armed && /^```/ { if (inside) exit; inside = 1; next }
    inside { print }' "$1"
}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
block "$1" quickstart.cpp >"$dir/source"
block "$1" "quickstart output" >"$dir/output"
[ -s "$dir/source" ] && [ -s "$dir/output" ] || { echo "the README lacks a quickstart block"; exit 1; }
diff -u "$dir/source" "$2" || { echo "the README's program is not examples/quickstart.cpp"; exit 1; }
"$3" >"$dir/said"
diff -u "$dir/output" "$dir/said" || { echo "the README's output is not what quickstart prints"; exit 1; }
echo "the README tells the truth"
