#!/bin/sh
# usage: check_sentences.sh ROOT
# Every sentence that a static_assert or #error of include/memra has for its users ("memra: ...") is what a case of
# tests/compile_fail expects, or begins with it. Else nobody has seen that it is said: an error before it may hide it.
set -eu
cd "$1"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Literals side by side are one.
find include/memra -type f -exec sed 's,//.*,,' {} + | tr '\n' ' ' | grep -oE '"memra: [^"]+"( *"[^"]*")*' |
  sed 's/" *"//g; s/^"//; s/"$//' | LC_ALL=C sort -u >"$work/sentences"
[ -s "$work/sentences" ] || { echo "no sentences found"; exit 1; }
for case in tests/compile_fail/cases/*.cpp; do
  sed -n 's,^// EXPECT: ,,p' "$case" | tr '\n' ' ' | sed 's/ *$//'
  echo
done >"$work/expected"
# Those that no compiler here can be brought to say; and the one that run_new_kind.cmake looks for.
cat >>"$work/expected" <<'END'
memra: state is handed over as little-endian bytes
memra: a hand-over needs 64-bit sizes
memra: say here what the new kind of state is
END
status=0
while IFS= read -r sentence; do
  found=
  while IFS= read -r text; do
    # Shorter than this it would stand for more than one.
    [ ${#text} -ge 25 ] || continue
    case $sentence in "$text"*) found=yes && break ;; esac
  done <"$work/expected"
  [ -n "$found" ] || { echo "no case of tests/compile_fail expects: $sentence"; status=1; }
done <"$work/sentences"
[ $status -eq 0 ] && echo "all of $(grep -c . "$work/sentences") sentences have a case"
exit $status
