#!/usr/bin/env bash
# bench_prefill.sh BUILD LLAMA_BUILD: the comparison with llama-bench runs and prints a row with a ratio; the
# ratio itself is not judged here.  Left out when llama-bench is not built (scripts/build-llama --peers).
set -eu
[ -x "$2/bin/llama-bench" ] || { echo "no llama-bench: left out (scripts/build-llama --peers)" && exit 77; }
out=$("$(dirname "$0")/../../scripts/bench-prefill" --build "$1" --layers 1 --type q8_0 -p 32 -r 2 -t 1)
echo "$out"
[ "$(wc -l <<<"$out")" = 3 ]
grep -qE '^\| qwen2-0.5b \| q8_0 \| 1 \| 32 \| 1 \| [0-9.]+ \| [0-9.]+ \| [0-9]+\.[0-9]{3} \|' <<<"$out"
