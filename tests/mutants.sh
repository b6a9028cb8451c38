#!/bin/sh
# sh tests/mutants.sh [--plant] [WORDS...]
# Plants one bug after another into a copy of the headers; the test that is there for it must notice each. With WORDS,
# only those whose line has one of them; with --plant nothing is built: the bugs only have to find their place.
# A bug costs one compile of what notices it, 3 to 15 s: of the one test, or the histories of one machine. clang++ takes
# half as long over it as g++ and is used where there is one; CXX names another.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cxx=${CXX:-$(command -v clang++ || echo g++)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
survivors=0
planted=0
plant=
if [ "${1:-}" = --plant ]; then plant=yes && shift; fi
only=$(for words in "$@"; do echo "$words"; done)

# only FILE WORDS: a file of tests without those whose name lacks WORDS; fails if that is all of them.
only() {
  words=$2 awk '
    BEGIN { words = tolower(ENVIRON["words"]) }
    /^TEST_CASE\(/ {
      head = $0
      while (head !~ /\{$/ && (getline line) > 0) head = head "\n" line
      skipped = !index(tolower(head), words)
      if (skipped) next
      kept = 1
      $0 = head
    }
    !skipped { print }
    $0 == "}" { skipped = 0 }
    END { exit !kept }' "$1"
}
# program TEST PROGRAM [INCLUDE]: builds what runs TEST: "cache", "draft", "round" or "late" (histories), or
# "FILE:WORDS", a file of tests/unit and words in the name of one of its tests. With INCLUDE, headers there come first,
# and nothing but the one test is built.
program() {
  source=$root/tests/unit/${1%%:*}.cpp main=$work/main.o flags=
  case $1 in
    *:*)
      if [ -n "${3:-}" ]; then
        only "$source" "${1#*:}" >"$work/only.cpp"
        source=$work/only.cpp
      fi ;;
    *) source=$root/tests/property/main.cpp main= flags="-DMEMRA_ONLY_MACHINE=\"$1\"" ;;
  esac
  # shellcheck disable=SC2086
  $cxx -std=c++20 -O0 $flags -w ${3:+-I"$3"} -I"$root/include" -I"$root/tests" \
    -I"$root/tests/unit" "-DMEMRA_TEST_FIXTURES=\"$root/tests/fixtures\"" "$source" $main -o "$2" 2>"$work/errors"
}
# passes TEST PROGRAM
passes() {
  case $1 in
    *:*) timeout 300 "$2" "*${1#*:}*" >"$work/out" 2>&1 && ! grep -q 'No test' "$work/out" ;;
    *) timeout 300 "$2" "$1" --ops 20000 >"$work/out" 2>&1 ;;
  esac
}
# sound TEST: whether it passes without a bug: one that fails anyway would notice everything. Each is run once, and
# what runs it is built once a file.
sound() {
  seen=$work/seen.$(echo "$1" | tr -c 'A-Za-z0-9\n' _)
  [ ! -e "$seen" ] || return 0
  : >"$seen"
  case $1 in
    *:*) whole=$work/whole.${1%%:*} ;;
    *) whole=$work/histories.$1 ;;  # there is a file of tests of the name, too
  esac
  [ -e "$whole" ] || program "$1" "$whole" || return 1
  passes "$1" "$whole"
}
wanted() {
  [ -n "$only" ] || return 0
  echo "$1" | grep -qF -e "$only"
}
survivor() {
  echo "$*"
  survivors=$((survivors + 1))
}

# mutant TEST NAME FILE FROM TO: the first FROM (a literal) in include/memra/FILE becomes TO.
mutant() {
  wanted "$1 $2 $3" || return 0
  planted=$((planted + 1))
  if [ -z "$plant" ] && ! sound "$1"; then survivor "FAILS WITHOUT A BUG: $1"; fi
  FROM=$4 TO=$5 awk 'BEGIN { from = ENVIRON["FROM"]; to = ENVIRON["TO"] }
    !done && (at = index($0, from)) { $0 = substr($0, 1, at - 1) to substr($0, at + length(from)); done = 1 }
    { print }' "$root/include/memra/$3" >"$work/mutant.hpp"
  if cmp -s "$root/include/memra/$3" "$work/mutant.hpp"; then
    survivor "NOT PLANTED: $1: $2"
    return 0
  fi
  case $1 in *:*)
    if ! only "$root/tests/unit/${1%%:*}.cpp" "${1#*:}" >/dev/null; then
      survivor "NO TEST: $1"
      return 0
    fi ;;
  esac
  [ -z "$plant" ] || return 0
  rm -rf "$work/include"
  mkdir -p "$work/include/memra/$(dirname "$3")"
  mv "$work/mutant.hpp" "$work/include/memra/$3"
  if ! program "$1" "$work/program" "$work/include"; then
    survivor "NOT COMPILED: $1: $2: $(grep -m1 error: "$work/errors")"
  elif passes "$1" "$work/program"; then
    survivor "NOT NOTICED: $1: $2"
  else
    echo "noticed: $1: $2: $(grep '^shrunk' "$work/out" || grep -m1 -A1 'REQUIRE' "$work/out" | tr -s ' \n' ' ' || tail -n 1 "$work/out")"
  fi
}

[ -n "$plant" ] || $cxx -std=c++20 -O1 -w -I"$root/include" -I"$root/tests" -c "$root/tests/support/main.cpp" -o "$work/main.o"

# --- the cases of docs/cases.md ---
c=cache.hpp
core=detail/cache_core.hpp
draft=detail/draft_store.hpp
io=detail/handover_io.hpp
taken='state.data(), snap.state_[d].data(), state.bytes()); !s) return s;'
mutant cache_rollback:B01 'accept 0 keeps the state after the step' $c 'if (state.bytes() == 0) continue;' \
  'if (state.bytes() == 0 || accept == 0) continue;'
mutant 'cache_rollback:B03 B12' 'conv does not come back' $c "$taken" \
  'state.data() + 256, snap.state_[d].data() + 256, state.bytes() - 256); !s) return s;'
mutant cache_rollback:B05 'the rows kept are those of another sequence' $c 'c.len = at + accept;' 'c.len = at + 4;'
mutant cache_rollback:B07 'an accept of -1 wraps round' $c 'accept > c.len - at' 'accept + 1 > c.len - at + 1'
mutant cache_rollback:B08 'a rollback leaves less room behind' $c 'c.len = at + accept;' \
  'c.len = at + accept, c.plan.max_ctx -= 10;'
mutant cases:B10 'a foreign snapshot is taken' snapshot.hpp 'if (lineage_.get() == &lineage) return {};' 'return {};'
mutant cases:B10 'a foreign snapshot is passed over in silence' $c \
  'if (Status s = snap.usable_for(*core_->lineage, "rollback"); !s) return s;' \
  'if (!snap.usable_for(*core_->lineage, "rollback")) return RolledBack{};'
mutant cache_rollback:B11 'a refused rollback has moved' $c 'const std::size_t at = snap.record_->pos;' \
  'const std::size_t at = snap.record_->pos; c.pos = at;'
mutant cache_rollback:B13 'only the first buffers come back' $c "$taken" \
  'state.data(), snap.state_[d].data(), state.bytes() / 2); !s) return s;'
mutant cache_rollback:B14 'pos_d is left behind' $c 'if (Status s = c.store_pos(pos); !s) return s;' ''
mutant cache_rollback:B14 'a recurrent layer names another position' $c 'ssm.f32, core_->pos,' 'ssm.f32, core_->len,'
mutant cache_rollback:B15 'a smaller accept is refused' $c 'accept > c.len - at' 'accept != c.len - at'
mutant 'cache_rollback:B19 B20' 'the state does not start from zero' detail/build_core.hpp 'bytes.state_bytes, true' \
  'bytes.state_bytes, false'
mutant cache_rollback:B22 'reset leaves recurrent state' $c 'd.state.data(), std::byte{0}, d.state.bytes()' \
  'd.state.data(), std::byte{0}, 0'
mutant 'cache_rollback:B22 B31' 'a snapshot takes more than the plan says' $c 'alloc(d.state.bytes())' \
  'alloc(d.state.bytes() + 256)'
mutant cache_rollback:B23 'a restore writes into the snapshot' $c "$taken" \
  'state.data(), snap.state_[d].data(), state.bytes()); !s) return s; snap.state_[d].data()[0] ^= std::byte{1};'
mutant cases:B25 'a snapshot goes into another layout' snapshot.hpp 'if (lineage_.get() == &lineage) return {};' \
  'return {};'
mutant cache_rollback:B26 'state goes through arithmetic' $c "$taken" \
  'state.data(), snap.state_[d].data(), state.bytes()); !s) return s; for (std::size_t z = 0; z < 6; ++z) reinterpret_cast<float*>(state.data() + 256)[z] += 0.0F;'
mutant cache_rollback:B27 'checkpoints on a grid of two' detail/lineage.hpp 'pos = at;' 'pos = at & ~std::size_t{1};'
mutant 'cache_rollback:B30 the n-th call fails: create' 'a half-written snapshot is valid' $c \
  'snap.record_->begin();' ''
mutant 'cache_rollback:B30 the n-th call fails: advance' 'a failure does not taint' $core 'core.taint("an earlier device failure"); }' '}'
mutant cache_prefix:B30 'a half-filled cache is handed out' $c \
  'if (Status s = detail::PrefixIo<Dev>::read(*made->core_, prefix); !s) return s;' \
  'static_cast<void>(detail::PrefixIo<Dev>::read(*made->core_, prefix).ok());'
mutant 'cache_rollback:B03 B12 B32' 'every refresh allocates' $c \
  'if (Status s = snap.made_by(*core_->lineage, "snapshot_into"); !s) return s;' \
  'if (Status s = snap.made_by(*core_->lineage, "snapshot_into"); !s) return s; static_cast<void>(core_->devices[0].dev->alloc(8).ok());'
mutant wrappers_on_caches:B32 'a rollback asks the device' $c 'const std::size_t at = snap.record_->pos;' \
  'const std::size_t at = snap.record_->pos; std::int32_t z; static_cast<void>(c.devices[0].dev->download(reinterpret_cast<std::byte*>(&z), reinterpret_cast<std::byte*>(c.stages[0].pos_d), 4).ok());'
mutant 'wrappers_canary:overruns and fails' 'guards are laid again before anyone looks' canary_dev.hpp \
  'note(found, check_region(dev, b, r, c.name));' ';'
mutant 'wrappers_canary:overruns and fails' 'after a call that failed nobody looks' canary_dev.hpp \
  's.kind() == ErrorKind::device_lost ? Status{} : after(dev, c)' 'Status{}'
mutant 'wrappers_canary:poisoned away' 'a batch lays guards again before anyone looks' detail/wrap_dev.hpp \
  'note(seen, policy().writes(dev_, c, items[i].dst, items[i].bytes));' ';'
mutant 'wrappers_canary:poisoned away' 'guards are replaced before anyone looks' canary_dev.hpp \
  'if (r.offset != region.offset) return;' 'return;'
mutant 'wrappers_canary:calls that fail' 'half a write leaves half the guards' detail/wrap_dev.hpp \
  'note(own, policy().wrote(dev_, dst, bytes));' 'if (own.ok()) note(own, policy().wrote(dev_, dst, bytes));'
mutant 'wrappers_canary:calls that fail' 'a look forgets what is in doubt' detail/wrap_dev.hpp \
  'found = found.as_asynchronous();' ';'
mutant wrappers_canary:guard_planned 'rows of a prefix run over their planes' detail/prefix_io.hpp \
  'here.push_back({{dst.at, src.at, bytes}});' 'here.push_back({{dst.at, src.at, bytes + 16}});'
mutant wrappers_canary:guard_planned 'a state slab is not guarded from its birth' canary_dev.hpp \
  'if (l->region.size == size) return &l->region;' ''
mutant wrappers_on_caches:B33 'a rollback moves rows' $c 'const std::size_t at = snap.record_->pos;' \
  'const std::size_t at = snap.record_->pos; static_cast<void>(c.devices[0].dev->move(c.devices[0].rows.data(), c.devices[0].rows.data() + 64, at * 64).ok());'
mutant cache_prefix:B36 'a prefix without recurrent state' detail/prefix_io.hpp 'copy_runs(to.size(), to' \
  'copy_runs(row_pieces(core.plan, to), to'
mutant 'cache_prefix:B37 export_prefix' 'a layer of as many states is taken' detail/takes_state.hpp \
  'if (a[il] == b[il]) continue;' 'if (a[il].states.size() == b[il].states.size()) continue;'
mutant 'cache_prefix:B37 every pair' 'another row count is not looked at' detail/prefix_io.hpp \
  'from = state_pieces(prefix.plan_, n)' 'from = state_pieces(core.plan, n)'
mutant cache_prefix:B38 'query heads refuse a restore' detail/takes_state.hpp 'a.n_heads = 0;' ';'
mutant cache_prefix:B38 'a second buffer refuses a restore' detail/takes_state.hpp 'r.second_buffer = false;' ''
mutant 'cache_prefix:B37 B40' 'rows are restored and not counted' $core 'pos = len = high = restored = n;' \
  'pos = high = restored = n;'
mutant cases:B42 'a kept view reaches rows given up' $c 'if (Status s = c.store_pos(pos); !s) return s;' ''
mutant cases:B42 'len stays' $c 'c.len = at + accept;' ''
mutant cache_rollback:B44 'an emptied cache is not noticed' $c 'if (!core_) return moved_from("rollback");' ''
mutant cases:B45 'an export overtakes the queue' detail/prefix_io.hpp \
  'if (Status s = dev.copy(fixed->data(), state[d].data(), fixed->size()); !s) return s;' \
  'std::copy_n(state[d].data(), fixed->size(), fixed->data());'
mutant cases:B55 'a tail overtakes the queue' $draft \
  'if (Status s = dev->copy(to->data(), buffer.data() + offset + skip, bytes); !s) return s;' \
  'std::copy_n(buffer.data() + offset + skip, bytes, to->data());'
mutant draft:B47 'the last row of a step is forgotten' dflash_kv.hpp 's_->len += std::exchange(s_->open_rows, 0);' \
  's_->len += std::exchange(s_->open_rows, 0) - 1;'
mutant draft:B49 'a tail ends one row early' $draft 'tail.len = upto;' 'tail.len = upto - 1;'
mutant cases:B50 'a cold start holds what was there' dflash_kv.hpp 'kv->s_->zero_below(pos)' 'kv->s_->zero_below(0)'
mutant cases:B54 'V takes the format of K' plan.hpp '{a.v_format, a.v_layout' '{a.k_format, a.v_layout'
mutant draft:B56 'a short tail is believed' dflash_kv.hpp \
  'if (tail.rows < std::min(cfg.window_rows(), tail.len - tail.floor))' 'if (false)'
mutant draft:B58 'a tail is published at len' $draft 'tail.base = upto - tail.rows;' 'tail.base = len - tail.rows;'
mutant draft:B61 'rows below a tail stay' dflash_kv.hpp 'kv->s_->zero_below(first)' 'kv->s_->zero_below(0)'
mutant draft:B62 'one window for all layers' dflash_cfg.hpp 'layer_sliding.empty() || layer_sliding[l]' 'true'
mutant 'draft:B47 B63' 'a block is committed' dflash_kv.hpp 'return Rows(*s_, b);' \
  's_->open_rows = b; return Rows(*s_, b);'
mutant cases:B65 'a window keeps fewer rows' plan.hpp 'ring_rows(a, max_ctx), a.n_kv' \
  'a.window == 0 ? max_ctx : a.window, a.n_kv'
mutant cases:B69 'a rewind past the window is refused' $c 'const std::size_t at = snap.record_->pos;' \
  'const std::size_t at = snap.record_->pos; if (c.len - at > 8 + accept) return refuse(ErrorKind::bad_state, "rollback", "window");'
mutant 'cases:B65 B66 B68 B71' 'a row sees one key less than its window' detail/window.hpp 'return p + 1 -' 'return p + 2 -'
mutant 'cases:B65 B66 B68 B71' 'all rows of a step land on one position' detail/host_rows.hpp \
  'static_cast<std::size_t>(*kv.at.pos_d) + item.x;' 'static_cast<std::size_t>(*kv.at.pos_d) + 0 * item.x;'
mutant 'cases:B65 B66 B68 B71' 'the view of a sliding layer says no window' step.hpp 'r.window = c->spec.window;' 'r.window = 0;'
mutant kinds_cases:B73 'a donor is read at the position after the step' $core 'step_rows, step_bound, plan.max_ctx' \
  'step_rows, step_bound + step_rows, plan.max_ctx'
mutant kinds_cases:B74 'a layer without state gets a plane' $core 'if (il >= layers.size()) return nullptr;' \
  'if (il >= layers.size()) return nullptr; while (layers[il].empty() && il != 0) --il;'
mutant cases:B76 'V is K' detail/build_core.hpp '(p.kind == PlaneKind::k ? c.k : c.v) = {at, p.shape, 0, p.ring};' \
  'c.k = {at, p.shape, 0, p.ring}, c.v = {at, p.shape, 0, p.ring};'
mutant cases:B77 'one width for all layers' plan.hpp 'max_ctx), a.n_kv_heads * a.head_dim_k' 'max_ctx), std::size_t{16 * 256}'
mutant cases:B78 'a block'"'"'s range includes 0' detail/codec_wide.hpp 'float min = range.min();' \
  'float min = range.min() < 0 ? range.min() : 0.0F;'
mutant cases:B78 'a width that is no multiple of a block' detail/spec_checks.hpp \
  'if (!whole_blocks(a.k_format, a.head_dim_k) ||' 'if (false &&'
mutant cases:B80 'a rollback keeps rows' $c 'c.len = at + accept;' ''
mutant 'cases:B83 append' 'the bytes depend on the rows of a call' detail/host_rows.hpp 'src + item.x * ' \
  'src + item.x / 2 * 2 * '
mutant cases:B82 'a layer without V' detail/spec_checks.hpp '|| (a.head_dim_v == 0 && !a.v_in_k)' ''
mutant cases:B87 'NaN is 480' detail/fp8.hpp 'if (a == 0x7FU) return f32_from_bits(sign | f32_nan_bits);' ''
mutant cases:B89 'overflow is NaN' detail/fp8.hpp 'b = 0x7EU;' 'b = 0x7FU;'
mutant cases:B90 'another bias' detail/fp8.hpp '(a << 20) + 0x3C000000U' '(a << 20) + 0x3C800000U'
mutant 'cases:B77 B96' 'K of all layers is that of the first' plan.hpp 'row_bytes(a.k_format, a.n_kv_heads * a.head_dim_k) +' \
  'row_bytes(a.k_format, plan.attention[0].n_kv_heads * a.head_dim_k) +'
mutant plan:B93 'a payload is rounded to what a plane takes' plan.hpp 'p.payload = payload.value();' \
  'p.payload = payload.value() / 256 * 256;'
mutant plan:B95 'a stage pays again for what those before it hold' plan.hpp 'p.payload = payload.value();' \
  'p.payload = payload.value() * (p.stage + 1);'
mutant plan:B104 'layers past the fence have no stage' plan.hpp 'last ? cfg.layers.size() : placement.fence[s + 1]' \
  'placement.fence[s + 1]'
mutant cases:B102 'all layers on the first device' $core '*devices[stages[stage_of(placement, il)].device].dev' \
  '*devices[0].dev'
mutant cases:B102 'snapshots lie on the first device' $c 'auto buffer = d.dev->alloc' \
  'auto buffer = core_->devices[0].dev->alloc'
mutant 'cases:B105 rows' 'addresses of 32 bits in rows of blocks' codec.hpp 'plane.data + block * f.block_bytes' \
  'plane.data + static_cast<unsigned>(block * f.block_bytes)'
mutant 'cases:B105 rows' 'addresses of 32 bits' codec.hpp '(column * rows + row) * part.row_bytes' \
  'static_cast<unsigned>((column * rows + row) * part.row_bytes)'
mutant layout_test:B105 'offsets of 32 bits' layout.hpp '(i * rows + first) * part.row_bytes, n' \
  'static_cast<unsigned>(i * rows + first) * static_cast<unsigned>(part.row_bytes), n'
mutant layout_test:sub-planes 'columns lie a row short' codec.hpp '(column * rows + row)' '(column * (rows - 1) + row)'
mutant 'layout_test:segments cover' 'a run of the first column for all' layout.hpp '(i * rows + first)' '(i / rows * rows + first)'
mutant cases:B109 'a state changes its address' $c 'c.cut(c.len);' 'c.cut(c.len), c.stages[0].pos_d += 4;'
mutant wrappers_on_caches:B111 'rows below a tail are not zero' dflash_kv.hpp 'kv->s_->zero_below(first)' \
  'kv->s_->zero_below(0)'
mutant ops_attend:B113 'a row sees a key before its window' detail/kv_range.hpp 'window_start(hi - 1, window)' 'window_start(hi - 2, window)'

# --- kinds of layers ---
mutant kinds_cases:B69 'a ring goes back too far' $core 'if (need == end || need >= oldest(*c)) continue;' 'continue;'
mutant kinds_cases:B69 'a rewind is refused although the rows are there' $core 'high - rows : 0' 'high - rows + 1 : 0'
mutant 'kinds_cases:B73 B74' 'a borrower resolves to another layer' $core 'attention(shared->spec.donor, shared->spec.nth).rows' \
  'attention(shared->spec.donor - 1, shared->spec.nth).rows'
mutant 'kinds_cache:C2' 'a ring takes one row too many' model_config.hpp 'rows - (a.window - 1)' 'rows - (a.window - 2)'
mutant 'kinds_cache:C6 accepted rows' 'a rollback looks at the window alone' $c '"rollback", pos, at + accept' \
  '"rollback", pos, pos'
mutant kinds_cache:positions 'what the device wrote alone is forgotten' detail/round_state.hpp \
  'core.wrote(furthest, core.longest);' ''
mutant 'kinds_cache:positions that only' 'every call counts as one of the device' $core 'if (anywhere) longest' 'longest'
mutant 'kinds_cache:positions that only' 'no call of the device counts' $core 'if (anywhere) longest' 'if (false) longest'
mutant 'kinds_cache:C6 rings go back' 'a ring is a row longer than it is' $core 'high > rows ? high - rows : 0' \
  'high > rows ? high - rows - 1 : 0'
mutant 'kinds_groups:C3 grouped rows' 'a row per token' plan.hpp 'max_ctx / g.stride, g.dim' 'max_ctx, g.dim'
mutant 'kinds_groups:which tokens' 'a group seen before its last token' views.hpp \
  '(static_cast<std::size_t>(pos) + i + 1) / stride' '(static_cast<std::size_t>(pos) + i + 2) / stride'
mutant 'kinds_groups:which tokens' 'a row beyond the capacity' views.hpp \
  'pos >= 0 && token < at.capacity' 'pos >= 0'
mutant 'kinds_groups:C6 a group' 'a group that is not full counts' cache.hpp \
  'core_->len / c->spec.stride' '(core_->len + c->spec.stride - 1) / c->spec.stride'
mutant 'kinds_groups:a prefix holds' 'the last whole group stays behind' detail/state_pieces.hpp \
  'return n / p.stride;' 'return n / p.stride - (n < p.stride ? 0 : 1);'
mutant 'kinds_groups:a prefix holds' 'rows of another stride are taken' detail/takes_state.hpp \
  'd.look("stride", theirs.stride, ours.stride);' ''
mutant 'kinds_groups:C2 grouped rows' 'a view of grouped rows is given twice' step.hpp \
  'if (Status s = take("grouped", il, *c); !s) return s;' ''
mutant 'kinds_cache:a prefix takes' 'a window one row short' detail/state_pieces.hpp 'std::min(n, p.window - 1)' \
  'std::min(n, p.window - 2)'
mutant 'kinds_cache:an export whose' 'rings of any fill are exported' $c \
  'core_->rings_hold("export_prefix", snap.record_->pos, snap.record_->pos)' 'Status()'
mutant 'kinds_attend:a ring gives' 'a ring is read off by one' views.hpp 'ring ? row % shape.rows' \
  'ring ? (row + 1) % shape.rows'
mutant 'kinds_attend:latent' 'values come from the end of the row' detail/host_attend.hpp 'std::copy(row, row + head.dv' \
  'std::copy(row + head.dk - head.dv, row + head.dk'
mutant 'kinds_scan:T tokens' 'a state is rounded once per call' detail/host_rule_scan.hpp 'round_all<Fmt>(s, N * r.d_k);' ''
mutant 'kinds_scan:T tokens' 'older taps read what came' detail/host_conv.hpp 'for (float& e : line[next]) e = ring.rounded(e);' ''
mutant 'kinds_scan:rounds' 'a commit rounds once' detail/host_round.hpp 'y[c] = round_elems<Fmt>(' 'y[c] = ('
mutant 'kinds_scan:every rule' 'one decay for all channels' detail/host_rule_scan.hpp \
  'F32x16<Simd>::load(factor + i)' 'F32x16<Simd>::broadcast(*factor)'
mutant kinds_plan:blocks 'all layers are the trunk' plan.hpp 'layer >= cfg.layers.size() - cfg.n_mtp' 'false'
mutant cache 'a ring forgets what was given up' $core 'wrote(pos, rows);' ';'

# --- hostile callers ---
mutant hostile:window 'a window of any size' detail/window.hpp ' || window > static_cast<std::size_t>(p)' ''
mutant 'hostile:scratch that does not fit' 'scratch wraps' detail/scratch.hpp 'return no_scratch;' ';'
mutant 'hostile:C13' 'a sink assigned to itself' taps.hpp 'layer_ids_.swap(taken.layer_ids_);' \
  'layer_ids_ = std::move(other.layer_ids_);'
mutant 'hostile:a step whose' 'the trunk moves before the rows are looked at' speculation.hpp \
  'opened("advance", s_->step_rows)' 'opened("advance", s_->open_rows)'
mutant 'hostile:a rollback the drafter' 'the trunk goes back alone' speculation.hpp \
  'if (Status s = s_->draft->may_truncate(snap.pos() + accept); !s) return s;' ''

# --- D8: the ring of the draft cache ---
mutant draft_ring:D8 'no room for the block' dflash_cfg.hpp 'window * 2 + cfg.block_size' 'window * 2'
mutant draft_ring:needs 'a layer that sees everything loses rows' dflash_cfg.hpp \
  'if (cfg.ring && !cfg.every_layer_windowed())' 'if (false)'
mutant draft_ring:D8 'a move keeps a row less' $draft 'std::min(len - base, cfg.window_rows())' \
  'std::min(len - base, cfg.window_rows() - 1)'
mutant draft_ring:by 'a move in one piece' $draft '(kept + way - 1) / way' '1'
mutant draft_ring:C8 'no room is made for a block' dflash_kv.hpp 'if (!s_->has_room(b))' 'if (false)'
mutant draft_ring:every 'a piece runs over what is still to be read' $draft 'std::min(way, kept - at)' \
  'std::min(way + 1, kept - at)'
mutant draft_ring:C8 'a failed move starts over' $draft 'for (; moved <' 'for (moved = 0; moved <'
mutant draft_ring:C8 'truncate takes a half done move for done' $draft 'n > target ? move_rows() : Status()' \
  'n > target && !tainted ? move_rows() : Status()'
mutant draft_ring:C8 'rows that are overwritten count as there' $draft 'target = resident = first;' 'target = first;'
mutant draft_ring:S5 'a move in doubt is not done again' $draft 'if (len - target <= target - base)' 'if (false)'
mutant draft_ring:S5 'a move in doubt is believed' $draft 'resident = len;' ';'
mutant draft_ring:D8 'the base stays on the device' $draft 'values.data(), cfg.ring ? 2 : 1' 'values.data(), 1'
mutant draft_ring:captured 'kernels have the base baked in' views.hpp 'base_d != nullptr ?' 'false ?'
mutant draft_ring:pinned 'a pinned tail is dropped' $draft 'if (pin && pin->layers.empty() && pin->base < first)' 'if (false)'
mutant draft_ring:pinned 'a pinned tail that failed is given out' $draft 'pin.reset();' ';'
mutant draft_ring:pinned 'the pin of another boundary is given out' dflash_kv.hpp 'pinned() == upto;' 'pinned() != 0;'
mutant draft_ring:pins 'a pin outlives its branch' dflash_kv.hpp 'if (s_->pin && s_->pin->len > n) s_->pin.reset();' ''
mutant draft_ring:refused 'a call longer than the ring' dflash_kv.hpp 'std::min(s_->cap - s_->len, s_->plan.max_rows)' \
  's_->cap - s_->len'
mutant draft_ring:truncate 'the base stays above the length' $draft 'store(n, std::min(target, n))' 'store(n, target)'
mutant draft_ring:cold 'a cold ring begins at row 0' dflash_kv.hpp 'base = cfg.ring ? pos : 0;' 'base = 0;'
mutant draft_ring:tails 'a longer tail is put from its start' dflash_kv.hpp 'from = (first - tail.base)' 'from = 0 * (first - tail.base)'
mutant 'draft_ring:bytes by hand' 'scratch grows with the length' dflash_kv.hpp 'std::min(s_->cap, s_->plan.phys_rows)' 's_->cap'
mutant 'speculation:leaves the trunk untapped' 'a sink stays behind' speculation.hpp \
  'if (auto* const taps = armed.in_trunk(); taps != nullptr) taps->reset();' ''
mutant 'speculation:its own sink only' 'the sink of another is taken' speculation.hpp 'core->taps->id_ == id' 'true'
mutant 'speculation:its own sink only' 'the sink of another is replaced' speculation.hpp \
  'if (core.taps && !armed) {' 'if (false) {'
mutant 'speculation:over an open step' 'a refusal takes the sink of an open step' speculation.hpp \
  'if (!s_->trunk->core_->step_open) take_sink();' 'take_sink();'
mutant 'speculation:over an open step' "the step before's draft rows are counted" speculation.hpp \
  's_->step_rows = rows;' 's_->step_rows = rows; return s;'
mutant 'speculation:abandon gives up' 'abandon takes the sink of an open step' speculation.hpp \
  'if (in_round || !s_->armed.step_open(*s_->trunk)) {' 'if (true) {'
mutant "speculation:this speculation's last begin" 'any open step is its own' speculation.hpp \
  'core->step_id == step_id' 'true'
mutant 'speculation:where the device says' 'a stale position is believed' speculation.hpp 'if (!trunk.tainted()) {' 'if (false) {'
mutant 'late_reports:a repair that reports' 'rows in doubt are repaired' speculation.hpp ' && !d.doubtful' ''
mutant 'device_steps:R5' 'the host counts rows beyond max_ctx' cache.hpp \
  'if (Status s = c.fits("advance", c.step_rows, ErrorKind::bad_state); !s) return s;' ''
mutant 'round_device:R5 the host' 'the host commits rows beyond max_ctx' round.hpp \
  'if (Status s = c.fits("commit", rows(), ErrorKind::bad_state); !s) return s;' ''
mutant 'round_batch:R5 R8' 'a batch commits rows beyond max_ctx' round_batch.hpp \
  'if (Status s = members_[i]->fits("RoundBatch", rounds[i]->rows(), ErrorKind::bad_state); !s) return s;' ''
mutant 'round_device:R5 device steps' 'a plane that may have moved is the first' detail/device_pos.hpp \
  '(core.plane != 0 || core.plane_unknown)' 'core.plane != 0'
mutant 'taps:replayed without' 'replayed rows count as tapped' detail/cache_core.hpp \
  'if (taps && untapped) taps->arm(now);' ''
mutant 'speculation:C13' 'a moved-from draft is taken' speculation.hpp 'draft.cap() == 0' 'false'
mutant speculation:D8 'a step the draft cannot follow' speculation.hpp 'if (rows > s_->draft->max_rows())' 'if (false)'
mutant speculation:D8 'a move half done ends the round' speculation.hpp \
  'if (d.target != d.base && !d.doubtful)' 'if (false)'

# --- the random histories ---
mutant late 'a failure of earlier work does not taint' $core 'if (!tainted && s.asynchronous())' 'if (false)'
mutant late 'a snapshot says nothing of a failure' $c 'return core_->noted(buffer.status());' 'return buffer.status();'
mutant late 'a lost snapshot is taken' snapshot.hpp 'if (record_->work.failed()) {' 'if (false) {'
mutant late 'a lost snapshot says that it is valid' snapshot.hpp '&& !record_->work.failed();' ';'
mutant late 'a snapshot does not know what it was queued with' detail/lineage.hpp 'work.add(*d.dev);' ';'
mutant late 'a lost prefix is taken' detail/prefix_io.hpp 'if (prefix.work_.failed()) {' 'if (false) {'
mutant lost_copies:S5 'what began behind a failure is believed' detail/late_queue.hpp 'end_batch(true);  // begun' '// begun'
mutant 'lost_copies:a replay' 'rows that a replay wrote again are believed' $core 'if (mirror < len)' 'if (false)'
mutant 'lost_copies:in doubt from' 'a step is in doubt only as it begins' detail/lineage.hpp \
  'open ? record->work.open(*d.dev) : record->work.add(*d.dev);' 'record->work.add(*d.dev);'
mutant 'lost_copies:in doubt from' 'a step that has ended is in doubt' detail/queued_work.hpp \
  'p.last = std::min(p.last, p.log->batch);' 'p.last = p.last;'
mutant 'lost_copies:in doubt from' 'a position that is asked for ends the step' detail/round_state.hpp \
  'if (was_open) core.rewriting(true);' ''
mutant 'lost_copies:in doubt from' 'a graph that is queued again writes nothing' device_steps.hpp 'c->rewriting(false);' ''
mutant 'lost_copies:kernels write' 'kernels write where the host is' $core 'rewriting(false);' ''
mutant 'lost_copies:a replay' 'what failed once is whole again' detail/queued_work.hpp 'failed_ = failed_ || p->failed();' ''
mutant 'lost_copies:a replay' 'a replay spoils what is below it' detail/lineage.hpp ' || record->pos <= from' ''
mutant 'lost_copies:stays short' 'a lost device logs every call' detail/late_queue.hpp \
  ' || log->failed.back() != log->batch' ' || true'
mutant 'lost_copies:stays short' 'every copy that fails is logged' detail/late_queue.hpp 'if (!s && late.ok()) {' \
  'if (!s) {'
mutant late 'work that was waited for is lost, too' ordered_dev.hpp 'if (s.ok() || s.asynchronous()) queue_' 'if (s.asynchronous()) queue_'
mutant lost_copies:S5 'a lost tail is taken' dflash_kv.hpp 'if (tail.work.failed()) {' 'if (false) {'
mutant lost_copies:S5 'a lost prefix is sent' detail/handover_io.hpp 'if (prefix.work_.failed())' 'if (false)'
mutant lost_copies:S5 'a lost tail is sent' detail/handover_io.hpp 'if (tail->work.failed())' 'if (false)'
mutant cache 'rollback keeps all rows' $c 'c.len = at + accept;' 'c.len = c.len;'
mutant cache 'rollback leaves recurrent state' $c 'state.data(), snap.state_[d].data(), state.bytes()' \
  'state.data(), state.data(), 0'
mutant cache 'rollback takes one row too many' $c 'if (accept > c.len - at)' 'if (accept > c.len - at + 1)'
mutant cache 'a failed rollback does not taint' $core 'core.taint("an earlier device failure"); }' '}'
mutant cache 'a rollback makes no snapshot stale' $core 'lineage->cut(end);' ';'
mutant cache 'reset leaves recurrent state' $c 'd.state.data(), std::byte{0}, d.state.bytes()' \
  'd.state.data(), std::byte{0}, 0'
mutant cache 'reset keeps snapshots valid' $core 'cut(0);' ';'
mutant cache 'a tap sink keeps rows given up' $core 'if (taps) taps->cut(end);' ';'
mutant 'taps:leaves no hole' 'a tap sink may get a hole' taps.hpp 'pos - origin_ <= rows_' 'true'
mutant cache 'positions of only the first stage' $core 'for (const StageState& s : stages) {' \
  'for (const StageState& s : std::span(stages).first(1)) {'
mutant cache 'a step may be opened twice' $core 'if (step_open && has_recurrent) {' 'if (false) {'
mutant cache 'steps that are replayed are not counted' device_steps.hpp 'c->note_ahead(rows);' ''
mutant cache 'a ring forgets what a graph writes' $core 'if (anywhere) longest = std::max(longest, rows);' ''
mutant round 'the current plane is not brought home' detail/round_state.hpp 'if (core.plane == 0) return {};' 'return {};'
mutant round 'a plane after all rows' detail/portable_round.hpp 'w.plane = (w.plane + accept)' 'w.plane = (w.plane + rows)'
mutant round 'conv keeps what fell out' detail/portable_round.hpp 'ring.load(a + j)' 'ring.load(j)'
mutant round 'one token alone is not applied' detail/host_round.hpp 'item.x >= r.n_v_heads || accept == 0' \
  'item.x >= r.n_v_heads || accept < 2'
mutant round 'a round that is given up leaves its state' round.hpp 'if (by_ == Strategy::replay) {' 'if (false) {'
mutant round 'a failed commit does not taint' $core 'core.taint("an earlier device failure"); }' '}'
mutant round 'a replay is owed from behind the round' round.hpp 'if (!all) c.pos = c.mirror = at;' ''
mutant round 'a draft row that failed is not owed' speculation.hpp 's_->owed = n;' ';'
mutant round 'a draft does not follow a rollback' speculation.hpp 's_->draft->truncate(s_->trunk->len())' \
  's_->draft->truncate(s_->draft->len())'
mutant round 'a drafter makes a chunked step a plain one' speculation.hpp 's_->trunk->begin_step(rows, scan)' \
  's_->trunk->begin_step(rows)'
mutant round 'a round keeps its sink in the trunk' speculation.hpp 's_->sink = std::exchange(*taps, std::nullopt);' ';'
mutant round 'a batch that fails taints nobody' round_batch.hpp 'r->core_->taint("an earlier device failure");' '(void)r;'
mutant round 'a batch reads the rows of one cache' round_batch.hpp 'c.rows_d = words + i;' 'c.rows_d = words;'
mutant round 'who sits out a batch is committed' round_batch.hpp 'r == nullptr ? -1 :' 'r == nullptr ? 0 :'
mutant round 'a batch has the layers of its first cache' round_batch.hpp 'std::max(size.n_layers, c.n_layers)' \
  'i == 0 ? c.n_layers : size.n_layers'
mutant round 'a step is of the class of the one before' $core 'step_scan = by;' \
  'if (by == ScanClass::chunked) step_scan = by;'
mutant round 'chunks are cut otherwise where a call has several' detail/host_chunk_scan.hpp \
  'std::min(scan_chunk, r.rows - first)' 'std::min(scan_chunk - (r.rows > scan_chunk ? 1 : 0), r.rows - first)'
mutant cache 'a chunked step leaves no mark' $core 'if (by == ScanClass::chunked) scan = by;' ''
mutant cache 'a chunked step begins off the grid' $core 'if (pos % scan_chunk == 0) return {};' 'return {};'
mutant cache 'a rollback keeps the class of what it gives up' $c 'c.scan = snap.record_->scan;' ''
mutant cache 'layers are not told of a chunked step' step.hpp 'if (r.has_chunks()) r.scan = core_->step_scan;' ''
mutant cache 'every layer is told of a chunked step' step.hpp 'if (r.has_chunks()) r.scan' 'r.scan'
mutant cache 'two stages are cut one layer late' $c 'fence = {0, split, cfg.layers.size()}' \
  'fence = {0, split + 1, cfg.layers.size()}'
mutant cache 'two stages are on one device' $c 'devs = {&d0, &d1}' 'devs = {&d0, &d0}'
mutant cache 'memory is used beside what was handed over' detail/slab.hpp 's.data_ = adopted.data;' \
  's.data_ = adopted.data + 256;'
mutant cache 'memory that was handed over is not zeroed' detail/slab.hpp 'if (zeroed) {' 'if (false) {'
mutant cache 'too little memory is taken' detail/build_core.hpp 'b.bytes < used(i) || ' ''
mutant cache 'a received state is not looked at' $io 'if ((*sums)[i] == h.pieces[i].sum) continue;' 'continue;'
mutant cache 'a received state is of the other class' $io 'core.restore(header->pos, header->scan);' \
  'core.restore(header->pos, ScanClass::sequential);'
mutant cache 'a chunked state goes to who does not take it' $io 'if (h.scan == ScanClass::chunked &&' 'if (false &&'
mutant cache 'logits are received and not shown' $io 'core.parked_valid = header->has_logits;' ''
mutant cache 'a receiver refuses in silence' $io 'const Status told = link.send_verdict(why);' 'const Status told;'
mutant round 'a tail is received with another floor' $io 'tail.floor = h.tail->floor;' 'tail.floor = h.tail->base;'
mutant round 'a batch attends as often as its last one has rows' attend_batch.hpp 'longest = std::max(longest, r);' \
  'longest = r;'
mutant late 'a late draft: the drafter alone hears of it' speculation.hpp 'static_cast<void>(core->noted(s).ok());' ';'
mutant late 'a late draft: the trunk alone hears of it' speculation.hpp 'draft->tainted = draft->doubtful = true;' ';'
mutant late 'a late draft: a tail does not know what it was queued with' $draft 'tail.work.add(*dev);' ''
mutant late 'a late draft: a lost tail is taken' dflash_kv.hpp 'if (tail.work.failed()) {' 'if (false) {'
mutant late 'a stash keeps a late failure to itself' round.hpp \
  'if (Status s = ops.round_apply(c, many, n); !s) return s;' 'static_cast<void>(ops.round_apply(c, many, n).ok());'
mutant late 'a stash applies the first of its tokens only' detail/host_round.hpp \
  'product(k[t * key_row + i], u[t * u_row + c])' 'product(k[t * key_row + i], u[c])'
mutant late 'a hand-over keeps a late failure to itself' $io 'core.noted(send(link' '(send(link'
mutant late 'a kernel follows a table that got lost' detail/handover_pieces.hpp \
  'if (Status s = dev.synchronize(); !s) return s;' ''
mutant 'lost_copies:who meets' 'a batch keeps a late failure to itself' round_batch.hpp 'b.members_.noted(made.status())' \
  'made.status()'
mutant 'lost_copies:who meets' 'a batch of attention does' attend_batch.hpp 'members.noted(made.status())' \
  'made.status()'
mutant 'late_reports:a call of a batch' 'row counts keep a late failure to themselves' attend_batch.hpp \
  'starts); !s) return members_.noted(s);' 'starts); !s) return s;'
mutant 'late_reports:a call of a batch' 'who catches up for a batch does' round_batch.hpp \
  '!s) return members_.noted(s);' '!s) return s;'
mutant 'late_reports:a call of a batch' 'who sits out is not told' round_batch.hpp \
  'stage.rows, rows); !f) return members_.noted(f);' 'stage.rows, rows); !f) return f;'
mutant 'late_reports:a call of a drafter' 'the drafter alone hears of it' speculation.hpp \
  'static_cast<void>(core->noted(s).ok());' ';'
mutant 'late_reports:a call of a drafter' 'the trunk alone hears of it' speculation.hpp 'draft->tainted = draft->doubtful = true;' ';'
mutant 'late_reports:beside an open step' 'the trunk moves, the draft refuses' speculation.hpp \
  'if (Status s = draft_sound(call); !s) return s;' ''
mutant 'lost_copies:tables that kernels' 'tables of rounds may get lost' detail/round_state.hpp \
  'if (Status s = device.dev->synchronize(); !s) return s;' ''
mutant 'lost_copies:tables that kernels' 'the table of a batch may get lost' round_batch.hpp \
  'if (Status f = dev->synchronize(); !f) return f;' ''
mutant 'lost_copies:tables that kernels' 'the tables of attention may get lost' attend_batch.hpp \
  'if (Status s = part.dev->synchronize(); !s) return s;' ''
mutant draft 'a question gives open rows up' dflash_kv.hpp 'if (n > s_->len || n < s_->floor) {' \
  's_->open_rows = 0; if (n > s_->len || n < s_->floor) {'
mutant draft 'truncate does not ask' dflash_kv.hpp 'if (Status s = may_truncate(n); !s) return s;' ''
mutant draft 'commit forgets a row' dflash_kv.hpp 's_->len += std::exchange' 's_->len += 0 * std::exchange'
mutant draft 'truncate looks at no window' dflash_kv.hpp 'if (first < s_->resident && first < n)' 'if (false)'
mutant draft 'rows below a tail stay' dflash_kv.hpp 'kv->s_->zero_below(first)' 'kv->s_->zero_below(0)'
mutant draft 'a tail of the wrong floor' dflash_kv.hpp 'cfg.every_layer_windowed() ? tail.floor' 'true ? tail.floor'
mutant draft 'a tail starts one row late' $draft 'skip = (tail.base - base) * tail.row_bytes;' \
  'skip = (tail.base + 1 - base) * tail.row_bytes;'
mutant draft 'a ring that moves keeps a row less' $draft 'std::min(len - base, cfg.window_rows())' \
  'std::min(len - base, cfg.window_rows() - 1)'
mutant draft 'a move is not ended' $draft 'n > target ? move_rows()' 'n > target && !tainted ? move_rows()'
mutant draft 'a pin outlives its branch' dflash_kv.hpp 'if (s_->pin && s_->pin->len > n) s_->pin.reset();' ''
if [ $survivors -ne 0 ]; then
  echo "$survivors of $planted bugs were not planted or not noticed"
  exit 1
fi
if [ $planted -eq 0 ]; then
  echo "no bug has any of these words: $*" >&2
  exit 2
fi
[ -n "$plant" ] && echo "all $planted bugs found their place" || echo "all $planted bugs were noticed"
