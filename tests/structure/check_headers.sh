#!/bin/sh
# usage: check_headers.sh INCLUDE_DIR
# Checks the rules of check_headers.awk on every header below INCLUDE_DIR/memra. Exit status 1 if one is broken.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$1"
[ -d memra ] || { echo "no folder memra in $1" >&2; exit 2; }
find memra -type f | LC_ALL=C sort >"${TMPDIR:-/tmp}/memra_headers.$$"
trap 'rm -f "${TMPDIR:-/tmp}/memra_headers.$$"' EXIT
set --
while IFS= read -r file; do set -- "$@" "$file"; done <"${TMPDIR:-/tmp}/memra_headers.$$"
[ $# -gt 0 ] || { echo "no headers to check" >&2; exit 2; }
LC_ALL=C awk -f "$here/check_headers.awk" "$@"
echo "$# headers keep the rules"
