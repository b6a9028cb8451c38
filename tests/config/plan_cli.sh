#!/bin/sh
# usage: plan_cli.sh MEMRA_PLAN FIXTURES README
# The command line of memra-plan: its figures, its files, that every bad input is one sentence and exit status 2, and
# that the README shows what it prints.
set -u
program=$1
fixtures=$2
readme=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
qwen=$fixtures/qwen3_5_27b.json
oss=$fixtures/gpt_oss_20b.json
nemotron=$fixtures/nemotron_h_4.json

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# good NAME FLAGS...: exit status 0; the output is for `has`.
good() {
  name=$1
  shift
  timeout 120 "$program" "$@" >"$work/out" 2>"$work/err"
  status=$?
  [ $status -eq 0 ] || fail "$name: exit status $status: $(cat "$work/err")"
}
# has TEXT...: every TEXT is in the output of the last `good`.
has() {
  for text in "$@"; do
    grep -qF -- "$text" "$work/out" || fail "$name: the output has no '$text'"
  done
}
# number KEY: the first value of that key in the last output.
number() {
  sed -n "s/^ *\"$1\": \([0-9]*\),\{0,1\}\$/\1/p" "$work/out" | head -n 1
}
# equal WORDS A B
equal() { [ "$2" -eq "$3" ] || fail "$name: $1: $2, expected $3"; }
# bad NAME PATTERN FLAGS...: exit status 2, nothing on stdout, one line on stderr with PATTERN.
bad() {
  name=$1 pattern=$2
  shift 2
  timeout 120 "$program" "$@" >"$work/out" 2>"$work/err"
  status=$?
  [ $status -eq 2 ] || fail "$name: exit status $status, expected 2"
  [ ! -s "$work/out" ] || fail "$name: wrote to the standard output: $(head -n 1 "$work/out")"
  [ "$(wc -l <"$work/err")" -eq 1 ] || fail "$name: expected one sentence, got: $(cat "$work/err")"
  grep -qE -- "$pattern" "$work/err" || fail "$name: no '$pattern' in: $(cat "$work/err")"
}

# --- figures: Qwen3.5-27B by hand ---
row=$((4 * 256 / 32 * 34 + 4 * 256 / 32 * 24))
state=$((4 * (10240 * 3 + 48 * 128 * 128)))
good json "$qwen" --ctx 32768 --json
equal bytes_per_token "$(number bytes_per_token)" $((16 * row))
equal mtp_bytes_per_token "$(number mtp_bytes_per_token)" $row
equal fixed_bytes "$(number fixed_bytes)" $((48 * state))
equal second_buffer_bytes "$(number second_buffer_bytes)" 0
equal round_bytes "$(number round_bytes)" 0
equal draft_bytes "$(number draft_bytes)" 0
equal ring_cap_bytes "$(number ring_cap_bytes)" 0
has '"max_ctx_that_fits": null'
# What the parts leave is padding: the named figures are the whole.
equal total "$(number total_bytes)" $((17 * row * 32768 + 48 * state + $(number pad_bytes)))
[ "$(number pad_bytes)" -lt 65536 ] || fail "json: padding of $(number pad_bytes) bytes"

good formats "$qwen" --ctx 1000 --json --kv f16/bf16 --state bf16 --conv f16 --second-buffer
equal bytes_per_token "$(number bytes_per_token)" $((16 * 2 * 2 * 4 * 256))
equal fixed_bytes "$(number fixed_bytes)" $((48 * state / 2))
equal second_buffer_bytes "$(number second_buffer_bytes)" $((48 * 2 * 48 * 128 * 128))

good rounds "$qwen" --ctx 1000 --json --rows 8 --strategy planes
planes=$(number round_bytes)
[ "$planes" -ge $((48 * 8 * 4 * (48 * 128 * 128 + 10240))) ] || fail "rounds: $planes bytes are too few for eight planes"
has '"round_strategy": "planes"'
good stash "$qwen" --ctx 1000 --json --rows 8 --strategy stash
[ "$(number round_bytes)" -lt "$planes" ] || fail "stash: not less than planes"
good replay "$qwen" --ctx 1000 --json --rows 8 --strategy replay
[ "$(number round_bytes)" -ge $((48 * state)) ] || fail "replay: less than a copy of the state"

good draft "$qwen" --ctx 1000 --json --draft "$fixtures/drafter.json"
plane=$(((1000 + 8) * 2 * 64 * 4))
equal draft_bytes "$(number draft_bytes)" $((256 + 4 * ((plane + 255) / 256 * 256)))

# A ring of 2 * (64 + 8) + 8 rows, where that is less.
for ctx in 145 1000 100000; do
  good draft_ring "$qwen" --ctx $ctx --json --draft "$fixtures/drafter.json" --draft-ring
  equal draft_bytes "$(number draft_bytes)" $((256 + 4 * 152 * 2 * 64 * 4))
  has '"draft_ring": true'
done
good draft_ring "$qwen" --ctx 100 --json --draft "$fixtures/drafter.json" --draft-ring
equal draft_bytes "$(number draft_bytes)" $((256 + 4 * 108 * 2 * 64 * 4))
good draft_ring "$qwen" --ctx 2000 --draft "$fixtures/drafter.json" --draft-ring --verify
has ': equal'

good one "$qwen" --ctx 1000 --json
one=$(number total_bytes)
good sequences "$qwen" --ctx 1000 --json --sequences 3
equal total_bytes "$(number total_bytes)" $((3 * one))
equal bytes_per_token "$(number bytes_per_token)" $((16 * row))

# --- windows: gpt-oss-20b ---
window_row=$((12 * (8 * 64 / 32 * 34 + 8 * 64 / 32 * 24)))
good windows "$oss" --ctx 4096 --json
equal ring_cap_bytes "$(number ring_cap_bytes)" $((128 * window_row))
equal ring_slack_bytes "$(number ring_slack_bytes)" $((64 * window_row))
equal bytes_per_token "$(number bytes_per_token)" $window_row
good short "$oss" --ctx 100 --json
equal ring_cap_bytes "$(number ring_cap_bytes)" $((128 * window_row))
equal ring_bytes "$(number ring_bytes)" $((100 * window_row))
equal ring_slack_bytes "$(number ring_slack_bytes)" 0
good flat "$oss" --ctx 4096 --json --ring-slack 0
equal bytes_per_token "$(number bytes_per_token)" $((2 * window_row))
equal ring_cap_bytes "$(number ring_cap_bytes)" 0

# --- rows of several tokens: three layers of DeepSeek V4 ---
printf '{"model_type":"deepseek_v4","num_hidden_layers":3,"num_attention_heads":64,"compress_ratios":[0,4,128]}' \
  >"$work/v4.json"
latent=$((512 / 32 * 34))
good compressed "$work/v4.json" --ctx 1001 --json
equal grouped_bytes "$(number grouped_bytes)" $(((latent + 128 / 32 * 34) * 250 + latent * 7))
equal bytes_per_token "$(number bytes_per_token)" 0
equal ring_cap_bytes "$(number ring_cap_bytes)" $((3 * 128 * latent))
equal fixed_bytes "$(number fixed_bytes)" $((4 * (4 * (512 + 128) * 7 + 2 * 512 * 127)))
equal sequence_bytes "$(number sequence_bytes)" \
  $(($(number ring_bytes) + $(number grouped_bytes) + $(number fixed_bytes) + $(number pad_bytes)))
good compressed_table "$work/v4.json" --ctx 1001 --stages 3 --rows 4 --verify
has 'grouped rows' '1 x latent rows of 512, window 128 and a row of 512 per 128 tokens and' \
  'rows of several tokens' ': equal'

# --- what fits: the answer fits and one more does not ---
good fit "$qwen" --ctx 1000 --json --fit 8GiB
longest=$(number max_ctx_that_fits)
has '"fits": true'
good at "$qwen" --ctx "$longest" --json
[ "$(number total_bytes)" -le 8589934592 ] || fail "fit: $longest tokens take $(number total_bytes) bytes"
good beyond "$qwen" --ctx $((longest + 16)) --json
[ "$(number total_bytes)" -gt 8589934592 ] || fail "fit: more than $longest tokens fit"
good too_much "$qwen" --ctx 262144 --devices 8GiB,1GiB
has 'this does not fit: stage 1 takes' 'of 1.00 GiB'
good exact "$qwen" --ctx 1000 --json --fit 9007199254740993
has '    9007199254740993'
good units "$qwen" --ctx 1000 --json --fit 8589934592
equal max_ctx_that_fits "$(number max_ctx_that_fits)" "$longest"
good devices "$qwen" --ctx 1000 --json --devices 4GiB,4.5GiB
[ "$(grep -c '"first_layer"' "$work/out")" -eq 2 ] || fail "devices: expected two stages"
good stages "$qwen" --ctx 1000 --stages 4
has '0: layers 0 to 15' '3: layers 48 to 64' 'MTP: attention, 4 kv heads of 256'
printf '{"model_type":"gemma3n_text","num_hidden_layers":35,"sliding_window":512}' >"$work/shared.json"
good shared "$work/shared.json" --ctx 600 --stages 3 --verify
has '1: layers 11 to 17' '2: layers 18 to 34' '12 x shared K and V of layer 18' ': equal'
good nothing "$qwen" --ctx 1000 --fit 1MB
has 'not even one token fits'

# --- the other outputs ---
good table "$qwen" --fit 24GiB
has '64 layers and 1 past the trunk (MTP), made for 262,144 tokens' '48 x gated delta rule, 48 heads of 128 x 128' \
  'the longest context that fits: '
good svg "$oss" --ctx 4096 --stages 3 --fit 1GiB --svg "$work/picture.svg"
grep -q '^</svg>$' "$work/picture.svg" || fail "svg: the picture does not end"
[ "$(grep -c '<polygon' "$work/picture.svg")" -eq 3 ] || fail "svg: expected three bands"
for model in "$qwen" "$oss" "$nemotron"; do
  good verify "$model" --ctx 300 --rows 4 --stages 2 --draft "$fixtures/drafter.json" --verify
  has ': equal'
done
good verify_json "$nemotron" --ctx 300 --verify --json
has '"verified": true'
mkdir "$work/model"
cp "$nemotron" "$work/model/config.json"
good folder "$work/model" --ctx 100
has '2 x no state' '1 x Mamba-2, 8 heads of 64 x 64'
good help --help
has '--second-buffer'

# --- a GGUF file, byte by byte ---
byte() { printf "\\$(printf %03o "$1")"; }
u32() { byte $(($1 & 255)); byte $(($1 >> 8 & 255)); byte 0; byte 0; }
u64() { u32 "$1"; u32 0; }
text() { u64 ${#1}; printf %s "$1"; }
key_u32() { text "$1"; u32 4; u32 "$2"; }
gguf() {
  printf GGUF
  u32 3; u64 0; u64 5
  text general.architecture; u32 8; text lfm2
  key_u32 lfm2.block_count 4
  key_u32 lfm2.attention.head_count 32
  key_u32 lfm2.embedding_length 2048
  text lfm2.attention.head_count_kv; u32 9; u32 5; u64 4; u32 0; u32 0; u32 8; u32 0
}
gguf >"$work/no_taps.gguf"
bad gguf_key 'key lfm2.shortconv.l_cache is missing; expected a whole number' "$work/no_taps.gguf"
{ printf GGUF; u32 3; u64 0; u64 6; gguf | tail -c +25; key_u32 lfm2.shortconv.l_cache 3; } >"$work/whole.gguf"
good gguf "$work/whole.gguf" --ctx 1000 --json
equal bytes_per_token "$(number bytes_per_token)" $((8 * 64 / 32 * (34 + 24)))
equal fixed_bytes "$(number fixed_bytes)" $((3 * 2048 * 2 * 4))
head -c 60 "$work/whole.gguf" >"$work/cut.gguf"
bad gguf_cut 'the file ends|could be there' "$work/cut.gguf"

# --- the user's mistakes ---
bad no_model 'model is required'
for flag in ctx kv rows strategy stages devices sequences state conv ring-slack draft fit svg; do
  bad "empty $flag" "$flag is ''; expected a value" "$qwen" "--$flag" ''
done
bad empty_model "model is ''; expected a value" ''
bad missing 'cannot read .*: No such file' "$work/absent.json"
: >"$work/empty.json"
bad empty 'is empty; expected a config.json or a GGUF file' "$work/empty.json"
mkdir "$work/folder"
bad bare_folder 'is a folder without a config.json' "$work/folder"
mkfifo "$work/fifo"
bad fifo 'is not a regular file' "$work/fifo"
head -c 200 "$qwen" >"$work/cut.json"
bad cut 'it is not JSON at byte' "$work/cut.json"
printf '{"model_type":"llama","num_hidden_layers":"2"}' >"$work/type.json"
bad type "field num_hidden_layers is '2'; expected a whole number from 1 to 4096" "$work/type.json"
for value in -3 2.5 1e30 null; do
  printf '{"model_type":"llama","num_attention_heads":4,"hidden_size":256,"num_hidden_layers":%s}' $value >"$work/n.json"
  bad "layers $value" 'field num_hidden_layers is .*; expected a whole number' "$work/n.json"
done
sed 's/M-\*E/M-*/' "$nemotron" >"$work/list.json"
bad list 'hybrid_override_pattern has 3 letters; expected num_hidden_layers = 4' "$work/list.json"
printf '{"model_type":"new_thing"}' >"$work/new.json"
bad family "field model_type is 'new_thing'" "$work/new.json"
printf '{"block_size":0}' >"$work/draft.json"
bad draft 'field num_hidden_layers is missing' "$qwen" --draft "$work/draft.json"
bad no_draft 'cannot read' "$qwen" --draft "$work/absent.json"
bad draft_ring 'draft-ring was given without --draft' "$qwen" --draft-ring
sed 's/"sliding_window": 64/"sliding_window": 0/' "$fixtures/drafter.json" >"$work/draft.json"
bad draft_window 'expected a window in every layer' "$qwen" --draft "$work/draft.json" --draft-ring
bad empty_draft 'empty.json is empty; expected the config.json of a drafter' "$qwen" --draft "$work/empty.json"
bad gguf_draft 'is a GGUF file; expected the config.json of a drafter' "$qwen" --draft "$work/whole.gguf"
bad newline 'cannot read .*two\?lines: No such file' "$work/two
lines"
bad newline_svg 'cannot write .*two\?lines/there.svg' "$oss" --ctx 100 --svg "$work/two
lines/there.svg"
if [ -c /dev/full ]; then
  "$program" --help >/dev/full 2>"$work/err"
  [ $? -eq 2 ] || fail 'help: a full device went unnoticed'
fi
bad ctx "ctx is '0'; expected a whole number from 1 to" "$qwen" --ctx 0
bad ctx_text "ctx is '12x'" "$qwen" --ctx 12x
bad kv "kv is 'q8/q5'; expected K/V of" "$qwen" --kv q8/q5
printf '{"model_type":"llama","num_hidden_layers":2,"num_attention_heads":4,"head_dim":80}' >"$work/width.json"
bad width 'layer 0: a block format needs a head dimension that is a multiple of 32' "$work/width.json" --ctx 100
good width_f16 "$work/width.json" --ctx 100 --kv f16/f16
bad rows "rows is '65'; expected a whole number from 1 to 64" "$qwen" --rows 65
bad strategy "strategy is 'magic'; expected planes, stash, replay or automatic" "$qwen" --rows 4 --strategy magic
bad strategy_alone 'strategy was given without --rows' "$qwen" --strategy planes
bad stages "stages is '65'; expected a whole number from 1 to 64" "$qwen" --stages 65
bad devices "devices is '80Gib'; expected a size such as 24GiB" "$qwen" --devices 80Gib,1GiB
bad both 'stages and --devices were both given' "$qwen" --devices 80GiB --stages 2
bad fit "fit is '-1GiB'; expected a size" "$qwen" --fit -1GiB
bad fraction "fit is '1.5'; expected a size" "$qwen" --fit 1.5
bad fraction_of_one "fit is '1.5B'; expected a size" "$qwen" --fit 1.5B
bad state "state is 'q8_0'; expected f32, bf16 or f16" "$qwen" --state q8_0
bad sequences "sequences is '0'" "$qwen" --sequences 0
bad svg 'cannot write' "$oss" --ctx 100 --json --svg "$work/none/there.svg"
cp "$oss" "$work/own.json"
bad svg_model 'svg names the model; expected another file' "$work/own.json" --ctx 100 --svg "$work/./own.json"
cmp -s "$oss" "$work/own.json" || fail "svg_model: the model is not what it was"
cp "$fixtures/drafter.json" "$work/own_draft.json"
bad svg_draft 'svg names the drafter; expected another file' "$oss" --ctx 100 --draft "$work/own_draft.json" \
  --svg "$work/own_draft.json"
bad slack "ring-slack is '8'; expected 0 or at least --rows = 16" "$oss" --ctx 100 --rows 16 --ring-slack 8
bad memory 'verify allocates .* and this machine has' "$qwen" --ctx 2147483647 --verify
bad flag 'frobnicate' "$qwen" --frobnicate

# --- the README: what stands in the block after its mark ---
good readme "$qwen" --ctx 131072 --rows 8 --strategy stash --fit 24GiB
awk '$0 == "<!-- memra-plan output -->" { armed = 1; next }
     armed && /^```/ { if (inside) exit; inside = 1; next }
     inside { print }' "$readme" >"$work/shown"
[ -s "$work/shown" ] || fail "readme: no output is shown"
diff -u "$work/shown" "$work/out" >&2 || fail "readme: it shows another output"

[ $failures -eq 0 ] || { echo "$failures failures" >&2; exit 1; }
echo "memra-plan keeps its word"
