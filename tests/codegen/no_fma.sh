#!/bin/sh
# Proves that no product of ours is fused with an addition, whatever the user's flags, and that including our headers
# leaves the user's own arithmetic alone.
#
#   no_fma.sh COMPILER SOURCE_DIR WORK_DIR
set -eu
compiler=$1
source_dir=$2
work_dir=$3
mkdir -p "$work_dir"
for flags in "-O3 -march=x86-64-v3 -ffp-contract=fast" "-O2 -march=x86-64-v3 -ffp-contract=fast" \
  "-O3 -march=x86-64-v4 -ffp-contract=fast" "-O3 -march=x86-64-v3"; do
  object=$work_dir/no_fma.o
  # shellcheck disable=SC2086 -- the flags are words
  "$compiler" -std=c++20 $flags -Wall -Wextra -Wpedantic -Wconversion -Werror -I"$source_dir/include" \
    -c "$source_dir/tests/codegen/no_fma.cpp" -o "$object"
  # One line per fused instruction: the function it is in.
  fused=$(objdump -d --no-show-raw-insn "$object" |
    awk '/^[0-9a-f]+ <.*>:$/ { name = $2 } /vfn?m(add|sub)/ { print name }' | sort | uniq -c)
  ours=$(printf '%s\n' "$fused" | grep -v '<user_code>:' | grep -v '^$' || true)
  if [ -n "$ours" ]; then
    printf 'no_fma: %s %s: fused instructions in our functions:\n%s\n' "$compiler" "$flags" "$ours"
    exit 1
  fi
  # Red arm: the search finds what is there.
  if ! printf '%s\n' "$fused" | grep -q '<user_code>:'; then
    printf 'no_fma: %s %s: the user'\''s own product was not fused: the search is blind or our headers leak\n' \
      "$compiler" "$flags"
    exit 1
  fi
  printf 'no_fma: %s %s: ok\n' "$compiler" "$flags"
done
