#!/usr/bin/env bash
# bench_start.sh IWP DATA: the start-up bench runs a golden checkpoint twice and its server once, and prints their rows;
# the times are not judged here.
set -eu
bench="$(dirname "$0")/../../scripts/bench-start" iwp=$1 data=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$iwp" convert "$data/golden/models/llava-ov" -o "$dir/m.gguf" --mmproj "$dir/p.gguf" --type f32 -lv 1 >/dev/null
run() { "$bench" --iwp "$iwp" -t 1 -m "$dir/m.gguf" -mm "$dir/p.gguf" "$@"; }
out=$(run -r 2 --image "$data/media/source.png" && run -r 1 --server)
echo "$out"
for what in all load encode prefill ready; do
    grep -qE "^\| [^|]+ \| $what \| [0-9]+ \| [0-9]+ \| [0-9]+ \| [0-9]+ \|$" <<<"$out"
done
