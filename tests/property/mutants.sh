#!/bin/sh
# sh tests/property/mutants.sh
# Plants one bug after another into a copy of the headers; the random histories must notice each. About 15 s a bug.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
cxx=${CXX:-g++}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
survivors=0

# mutant NAME MACHINE FILE FROM TO: the first FROM (a literal) in include/memra/FILE becomes TO.
mutant() {
  rm -rf "$work/include"
  cp -r "$root/include" "$work/include"
  FROM=$4 TO=$5 awk 'BEGIN { from = ENVIRON["FROM"]; to = ENVIRON["TO"] }
    !done && (at = index($0, from)) { $0 = substr($0, 1, at - 1) to substr($0, at + length(from)); done = 1 }
    { print }' "$root/include/memra/$3" >"$work/include/memra/$3"
  if cmp -s "$root/include/memra/$3" "$work/include/memra/$3"; then
    echo "NOT PLANTED: $1"
    survivors=$((survivors + 1))
    return
  fi
  if ! $cxx -std=c++20 -O1 -w -I"$work/include" -I"$root/tests" "$root/tests/property/main.cpp" -o "$work/mutant"; then
    echo "NOT COMPILED: $1"
    survivors=$((survivors + 1))
  elif timeout 120 "$work/mutant" "$2" --ops 50000 >"$work/out" 2>&1; then
    echo "NOT NOTICED: $1"
    survivors=$((survivors + 1))
  else
    echo "noticed: $1: $(grep '^shrunk' "$work/out" || tail -n 1 "$work/out")"
  fi
}

mutant 'rollback keeps all rows' cache cache.hpp 'c.len = at + accept;' 'c.len = c.len;'
mutant 'rollback leaves recurrent state' cache cache.hpp 'state.data(), snap.state_[d].data(), state.bytes()' \
  'state.data(), state.data(), 0'
mutant 'rollback takes one row too many' cache cache.hpp 'if (accept > c.len - at)' 'if (accept > c.len - at + 1)'
mutant 'a failed rollback does not taint' cache detail/cache_core.hpp 'core.tainted = true; }' '(void)0; }'
mutant 'a rollback makes no snapshot stale' cache detail/cache_core.hpp 'lineage->cut(end);' ';'
mutant 'reset leaves recurrent state' cache cache.hpp 'd.state.data(), std::byte{0}, d.state.bytes()' \
  'd.state.data(), std::byte{0}, 0'
mutant 'reset keeps parked logits' cache cache.hpp 'c.cut(0);' ';'
mutant 'a tap sink keeps rows given up' cache detail/cache_core.hpp 'if (taps) taps->cut(end);' ';'
mutant 'a tap sink may get a hole' cache taps.hpp 'pos - origin_ <= rows_' 'true'
mutant 'positions of only the first stage' cache detail/cache_core.hpp 'for (const StageState& s : stages) {' \
  'for (const StageState& s : std::span(stages).first(1)) {'
mutant 'a step may be opened twice' cache detail/cache_core.hpp 'if (step_open && has_recurrent) {' 'if (false) {'
mutant 'draft: commit forgets a row' draft dflash_kv.hpp 's_->len += std::exchange' 's_->len += 0 * std::exchange'
mutant 'draft: truncate looks at no window' draft dflash_kv.hpp 'if (first < s_->resident && first < n)' 'if (false)'
mutant 'draft: rows below a tail stay' draft dflash_kv.hpp 'kv->s_->zero_below(tail.base)' 'kv->s_->zero_below(0)'
mutant 'draft: a tail of the wrong floor' draft dflash_kv.hpp 'cfg.every_layer_windowed() ? tail.floor' \
  'true ? tail.floor'
mutant 'draft: a tail starts one row late' draft dflash_kv.hpp 'const std::size_t skip = base * row_bytes();' \
  'const std::size_t skip = (base + 1) * row_bytes();'
[ $survivors -eq 0 ] || { echo "$survivors bugs were not planted or not noticed"; exit 1; }
echo "every bug was noticed"
