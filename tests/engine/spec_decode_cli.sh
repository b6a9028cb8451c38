#!/bin/sh
# usage: spec_decode_cli.sh SPEC_DECODE FIXTURES
# The command line of spec_decode: what it prints, what it writes, and that every bad input is one sentence and a
# non-zero exit status.
set -u
program=$1
fixtures=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# good NAME PATTERN FLAGS...: exit status 0 and PATTERN in the output.
good() {
  name=$1 pattern=$2
  shift 2
  "$program" "$@" >"$work/out" 2>"$work/err"
  status=$?
  [ $status -eq 0 ] || fail "$name: exit status $status: $(cat "$work/err")"
  grep -qE -- "$pattern" "$work/out" || fail "$name: the output has no '$pattern'"
}

# bad NAME PATTERN FLAGS...: exit status not 0, one line on stderr with PATTERN, no crash.
bad() {
  name=$1 pattern=$2
  shift 2
  # A hang is a failure, too.
  timeout 120 "$program" "$@" >"$work/out" 2>"$work/err"
  status=$?
  [ $status -ne 0 ] || fail "$name: exit status 0"
  [ $status -lt 124 ] || fail "$name: exit status $status, a crash or a hang"
  [ "$(wc -l <"$work/err")" -eq 1 ] || fail "$name: expected one sentence, got: $(cat "$work/err")"
  grep -qE -- "$pattern" "$work/err" || fail "$name: no '$pattern' in: $(cat "$work/err")"
}

good plain 'verdict +identical: 40 tokens' --tokens 40
good stages 'verdict +identical: 24 tokens' --tokens 24 --stages 3 --kv f32/f32 --prompt 'Mt5:3 Blessed are the'
good formats 'verdict +identical: 16 tokens' --tokens 16 --kv fp8/q4_0
good replay 'by replay' --tokens 24 --strategy replay
good planes 'by planes' --tokens 24 --strategy planes --stages 2
good stash 'by stash' --tokens 24 --strategy stash
good all 'by stash' --tokens 24 --strategy all
[ "$(grep -c 'verdict *identical: 24 tokens' "$work/out")" -eq 3 ] || fail "all: expected three verdicts"
# A ring of 2 * (64 + 8) + 8 rows of 512 bytes in four planes, at any context: the text is longer than that.
good ring 'verdict +identical: 180 tokens' --tokens 180 --ignore-eos --draft-ring --ctx 4000
grep -q 'draft KV 311552 bytes' "$work/out" || fail "ring: the draft KV is not 256 + 4 * 152 * 512 bytes"
good off 'drafting +off; there is one output' --tokens 16 --draft off
good help 'ignore-eos' --help
good nothing 'verdict +identical: 0 tokens' --tokens 0
good short 'after 7 tokens: the context is full' --tokens 40 --prompt abc --ctx 10
grep -q 'verdict *identical: 7 tokens' "$work/out" || fail "short: no verdict over 7 tokens"

echo '5 6
 7	8' >"$work/ids"
good ids '^5 6 7 8 [0-9]+ [0-9]+ [0-9]+ $' --model "$fixtures/next_random" --ids "$work/ids" --tokens 3
good 'no drafter' 'has no draft/' --model "$fixtures/next_random" --ids "$work/ids" --tokens 3
good logits 'verdict' --prompt abc --tokens 0 --logits "$work/logits"
[ "$(wc -c <"$work/logits")" -eq 3120 ] || fail "logits: expected 3 x 260 x 4 bytes, got $(wc -c <"$work/logits")"
# The same ids as text and as numbers, drafting or not, give the same logits.
echo '97 98 99' >"$work/abc"
good 'logits of ids' '^97 98 99' --ids "$work/abc" --tokens 0 --draft off --logits "$work/logits2"
cmp -s "$work/logits" "$work/logits2" || fail "logits: text and ids differ"

bad 'unknown flag' 'no-such' --no-such
bad 'tokens' 'whole number' --tokens -3
bad 'tokens' 'whole number' --tokens 1e3
bad 'tokens' 'whole number' --tokens 99999999999999999999
bad 'kv' 'expected K/V' --kv q8_0/q9
bad 'kv' 'expected K/V' --kv /
bad 'draft' 'on or off' --draft maybe
bad 'strategy' 'expected automatic' --strategy best
bad 'device' 'host only' --device cuda
bad 'stages' 'from 1 to 6' --stages 7
bad 'stages' 'from 1 to 6' --stages 0
bad 'context' 'prompt has 21 tokens' --ctx 5
bad 'context' 'max_position_embeddings' --ctx 100000
bad 'empty prompt' 'empty' --prompt ''
bad 'both' 'one of them' --prompt a --ids "$work/ids"
bad 'no ids' 'cannot read' --ids "$work/none"
echo '5 x' >"$work/junk"
bad 'junk ids' "'x'" --ids "$work/junk"
echo '5 260' >"$work/junk"
bad 'large id' "'260'" --ids "$work/junk"
: >"$work/junk"
bad 'no ids in the file' 'empty' --ids "$work/junk"
bad 'not bytes' 'not bytes' --model "$fixtures/next_random"
bad 'logits' 'cannot write' --logits "$work/none/logits" --tokens 0
if [ -c /dev/full ]; then
  # Known after the first chunk of the prompt, before anything is decoded.
  bad 'logits on a full disk' 'could not write all of' --logits /dev/full --tokens 1
  ! grep -q '^model' "$work/out" || fail "logits on a full disk: noticed at the end only"
fi
# Not over what the run reads, by any name of it.
cp -r "$fixtures/next_random" "$work/model"
ln -s "$work/model/model.safetensors" "$work/link"
ln "$work/model/config.json" "$work/hard"
for file in "$work/model/model.safetensors" "$work/link" "$work/hard"; do
  bad 'logits over the model' 'is a file of the model' --model "$work/model" --ids "$work/ids" --logits "$file" --tokens 1
done
bad 'logits over the ids' 'is the file of --ids' --model "$work/model" --ids "$work/ids" --logits "$work/ids" --tokens 1
cmp -s "$fixtures/next_random/model.safetensors" "$work/model/model.safetensors" || fail "logits over the model: it changed"
good 'logits beside the model' 'has no draft/' --model "$work/model" --ids "$work/ids" --logits "$work/model/out" --tokens 0
bad 'no model' 'cannot read' --model "$work/none"
if [ -w /dev/full ]; then
  "$program" --tokens 2 >/dev/full 2>"$work/err" && fail "full disk: exit status 0"
  grep -q 'standard output' "$work/err" || fail "full disk: no sentence about it: $(cat "$work/err")"
fi

# Hostile model folders: copies of the shipped one with one thing wrong.
fresh() {
  rm -rf "$work/model"
  mkdir -p "$work/model/draft"
  cp "$fixtures/tiny/config.json" "$fixtures/tiny/model.safetensors" "$work/model"
  cp "$fixtures/tiny/draft/config.json" "$fixtures/tiny/draft/model.safetensors" "$work/model/draft"
}
fresh
good 'copied model' 'verdict +identical' --model "$work/model" --tokens 8
rm -r "$work/model/draft"
good 'no draft folder' 'has no draft/' --model "$work/model" --tokens 8
fresh
rm "$work/model/model.safetensors"
bad 'missing weights' 'cannot read' --model "$work/model"
echo '{"weight_map": {}}' >"$work/model/model.safetensors.index.json"
bad 'sharded weights' 'shards' --model "$work/model"
fresh
rm "$work/model/model.safetensors"
mkfifo "$work/model/model.safetensors"
bad 'a pipe for weights' 'not a regular file' --model "$work/model"
fresh
head -c 100000 "$fixtures/tiny/model.safetensors" >"$work/model/model.safetensors"
bad 'truncated weights' 'do not lie in' --model "$work/model"
head -c 5 "$fixtures/tiny/model.safetensors" >"$work/model/model.safetensors"
bad 'five bytes' 'at least 8' --model "$work/model"
printf '\377\377\377\377\377\377\377\177{}' >"$work/model/model.safetensors"
bad 'huge header' 'claims' --model "$work/model"
fresh
cp "$fixtures/next_random/model.safetensors" "$work/model/model.safetensors"
bad 'another model' 'shape|missing' --model "$work/model"
fresh
sed 's/"hidden_size": 192/"hidden_size": 191/' "$fixtures/tiny/config.json" >"$work/model/config.json"
bad 'wrong hidden size' 'hidden|shape' --model "$work/model"
sed 's/"vocab_size": 260/"vocab_size": "many"/' "$fixtures/tiny/config.json" >"$work/model/config.json"
bad 'vocabulary' 'vocab_size' --model "$work/model"
# Numbers that no file backs must not be allocated for: the weights are compared with the config first.
sed 's/"linear_num_value_heads": 4/"linear_num_value_heads": 4096/' "$fixtures/tiny/config.json" >"$work/model/config.json"
bad 'claimed value heads' 'shape' --model "$work/model"
sed 's/"intermediate_size": 512/"intermediate_size": 16777216/' "$fixtures/tiny/config.json" >"$work/model/config.json"
bad 'claimed width' 'shape' --model "$work/model"
fresh
: >"$work/model/draft/config.json"
bad 'empty draft config' 'draft/config.json' --model "$work/model"
fresh
sed 's/"n_layer": 2/"n_layer": 3/' "$fixtures/tiny/draft/config.json" >"$work/model/draft/config.json"
bad 'missing draft layer' 'layers.2' --model "$work/model"

[ $failures -eq 0 ] || exit 1
echo "spec_decode's command line keeps its word"
