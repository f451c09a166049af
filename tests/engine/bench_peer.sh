#!/usr/bin/env bash
# bench_peer.sh BUILD LLAMA_BUILD: the comparison with llama-bench runs, prints a row with a ratio and writes it
# as JSON; the ratio itself is not judged here.  Left out when llama-bench is not built (scripts/build-llama --peers).
set -eu
python3 - "$(dirname "$0")/../../scripts/bench-peer" <<'EOF' # times are read, and never counted without those of decoding
import runpy, sys
times = runpy.run_path(sys.argv[1])["mtmd_times"]
said = "I mtmd batch encoding done in 14463 ms\nI image decoded (batch 1/2) in 470 ms\nI image decoded (batch 2/2) in 30 ms\n"
assert times(said) == (14463, 500)


def batches(*which):
    return "I mtmd batch encoding done in 9 ms\n" + "".join("I image decoded (batch %s) in 10 ms\n" % b for b in which)


assert times(batches("1/3", "2/3", "3/3", "1/2", "2/2")) == (9, 50)
assert times(batches("1/1", "1/1")) == (9, 20)
for bad in (said[:said.index("I image")], said[:said.index("I image decoded (batch 2")], said[said.index("I image"):],
            batches("1/2", "1/1"), batches("1/2", "2/2", "1/3"), batches("2/2"), batches("1/2", "2/3"), batches("0/0"), batches("1/0")):
    try:
        times(bad)
    except SystemExit as e:
        assert "printed no" in str(e)
    else:
        sys.exit("times were taken from %r" % bad)
EOF
[ -x "$2/bin/llama-bench" ] || { echo "no llama-bench: left out (scripts/build-llama --peers)" && exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
out=$(IWP_CPU=c "$(dirname "$0")/../../scripts/bench-peer" prefill --build "$1" --shape qwen2-0.5b --layers 1 --type q8_0 -p 32 -r 2 -t 1 \
      --json "$tmp/all.json")
echo "$out"
[ "$(grep -c '^| prefill' <<<"$out")" = 1 ]
grep -q ', iwp as c, 1 threads' <<<"$out"
grep -qE '^\| prefill \| qwen2-0.5b q8_0, 1 layers, 32 rows \(-fa [01]\) \| t/s \| [0-9.]+ \| [0-9.]+ \| [0-9]+\.[0-9]{2} \|' <<<"$out"
peer=$(dirname "$0")/../../scripts/bench-peer
for bad in "-r 0" "--layers 0" "--layers 999" "--size foo" "-p 0" "--tower bogus" "--type q4_0,bogus" "--shape bogus" "--peer-fa 2" "--files /dev/null/x" "--json $tmp/gone/x.json"; do # told before anything is measured
    rc=0 && "$peer" prefill --build "$1" --files "$tmp/made" $bad >/dev/null 2>"$tmp/err" || rc=$?
    if [ $rc != 2 ] || grep -q Traceback "$tmp/err" || ls "$tmp/made"/*.gguf >/dev/null 2>&1; then
        echo "bench-peer $bad: exit $rc" && cat "$tmp/err" && exit 1
    fi
done
"$peer" prefill --build "$1" --layers 999 2>&1 | grep -q 'qwen2vl-7b has 28 layers, not 999'
"$peer" decode --build "$1" --shape qwen2-0.5b,qwen2-7b 2>&1 | grep -q 'decode take one'
mkdir "$tmp/own"
TMPDIR=$tmp/own "$peer" prefill --build "$1" --shape qwen2-0.5b --layers 1 -p 512 -r 1000 -t 1 >/dev/null 2>&1 &
until ls "$tmp"/own/*/*.gguf >/dev/null 2>&1; do kill -0 $!; sleep 0.1; done
kill $! # its files go, too
rc=0 && wait $! || rc=$?
if [ $rc != 143 ] || [ -n "$(ls "$tmp/own")" ]; then echo "bench-peer: exit $rc, left $(ls "$tmp/own")" && exit 1; fi
IWP_BUILD=$1 "$(dirname "$0")/../../scripts/make-random-gguf" qwen2-3b f16 "$tmp/big.gguf" 2>/dev/null &
until ls "$tmp"/big.gguf.*.part >/dev/null 2>&1; do kill -0 $!; sleep 0.1; done
kill $! # as Ctrl-C: what was begun goes
rc=0 && wait $! || rc=$?
if [ $rc != 130 ] || ls "$tmp"/big.gguf* 2>/dev/null; then echo "make-random-gguf: exit $rc" && exit 1; fi
python3 -c 'import json, sys; r = json.load(open(sys.argv[1]))["rows"][0]; assert len(r["iwp_all"]) == len(r["llama_cpp_all"]) == 2' "$tmp/all.json"
out=$("$peer" ttft --build "$1" --shape qwen2-0.5b --tower siglip-0.5b --layers 2 --tower-layers 1 --size 384x384 --keep 50% -r 1 -t 1 --peer-fa 1)
echo "$out"
grep -qE '^\| ttft \| qwen2-0.5b q4_0, 384x384, keep 50%, 1 \+ 2 layers .* \| ms \| [0-9.]+ \| [0-9.]+ \| [0-9]+\.[0-9]{2} \|' <<<"$out"
