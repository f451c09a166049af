#!/usr/bin/env bash
# bad_input.sh IWP DATA: every bad file or flag is one line on stderr, the right exit code, nothing on stdout,
# nothing left behind.
set -u
iwp=$1 data=$2
golden=${IWP_SHARED:-$data/../../../shared}/golden
[ -d "$golden/models/llava-ov" ] || golden=$data/golden
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$iwp" convert "$golden/models/llava-ov" -o "$dir/m.gguf" --mmproj "$dir/p.gguf" --type f32 -lv 1 >/dev/null || exit 1
picture=$(find "$golden/vectors/llava-ov/images" -name '*.png' | sort | head -1)
failed=0
expect() { # expect CODE TEXT ARGS...
    local code=$1 text=$2 rc=0
    shift 2
    "$iwp" run -t 1 -lv 2 "$@" >"$dir/out" 2>"$dir/err" </dev/null || rc=$?
    if [ $rc != "$code" ] || [ -s "$dir/out" ] || [ "$(wc -l <"$dir/err")" != 1 ] || ! grep -q -- "$text" "$dir/err"; then
        echo "iwp run $*: exit $rc, wanted $code and '$text'; stdout $(wc -c <"$dir/out") bytes; stderr:"
        head -5 "$dir/err"
        failed=1
    fi
}
m=(-m "$dir/m.gguf") mm=(-mm "$dir/p.gguf") q=(-p hi -n 2)
head -c 100000 "$dir/m.gguf" >"$dir/short.gguf"
printf 'not a picture' >"$dir/bad.jpg"
: >"$dir/empty.png"
head -c 200 "$picture" >"$dir/cut.png"
XDG_CACHE_HOME=$dir expect 1 "make model" "${q[@]}"
expect 1 "nowhere.gguf" -m "$dir/nowhere.gguf" "${q[@]}"
expect 1 "short.gguf" -m "$dir/short.gguf" "${q[@]}"
expect 1 "-m wants" -m "$dir/p.gguf" "${q[@]}"
expect 1 "-mm wants" "${m[@]}" -mm "$dir/m.gguf" "${q[@]}"
expect 1 "mmproj" "${m[@]}" "${q[@]}" --image "$picture"
expect 1 "nothere.png" "${m[@]}" "${mm[@]}" "${q[@]}" --image "$dir/nothere.png"
for f in bad.jpg empty.png cut.png; do expect 1 "$f" "${m[@]}" "${mm[@]}" "${q[@]}" --image "$dir/$f"; done
expect 2 "--prune-layer" "${m[@]}" "${mm[@]}" "${q[@]}" --image "$picture" --prune iwp --keep 0.5 --prune-layer 8
expect 2 "--prune-layer: method divprune" "${m[@]}" "${mm[@]}" "${q[@]}" --image "$picture" --prune divprune --keep 0.5 --prune-layer 2
expect 2 "--prune-layer: method tome" "${m[@]}" "${q[@]}" --prune tome --keep 0.5 --prune-layer 2
for method in scope tome; do
    expect 2 "--prune-opt cls=1" "${m[@]}" "${mm[@]}" "${q[@]}" --image "$picture" --prune $method --keep 0.5 --prune-opt cls=1
done
expect 2 "--prune-opt merge=4" "${m[@]}" "${mm[@]}" "${q[@]}" --image "$picture" --prune scope --keep 0.5 --prune-opt merge=4
expect 2 "--keep-tokens 1: each of the 2 units" "${m[@]}" "${mm[@]}" "${q[@]}" --image "$picture" --image "$picture" --prune iwp --keep-tokens 1 --budget-scope image
expect 2 "--keep" "${m[@]}" "${q[@]}" --prune iwp --keep 1.5
expect 2 "--keep" "${m[@]}" "${q[@]}" --prune iwp --keep 0
expect 2 "iwq" "${m[@]}" "${q[@]}" --prune iwq --keep 0.5
expect 2 "positions" "${m[@]}" "${q[@]}" --prune iwp --keep 0.5 --prune-opt positions=odd
expect 1 "-c" "${m[@]}" -p "$(printf 'word %.0s' $(seq 100))" -n 2 -c 16
expect 2 "-ctk" "${m[@]}" "${q[@]}" -ctk f64
expect 1 "q8_0" "${m[@]}" "${q[@]}" -ctk q8_0
expect 1 "127.0.0.1:1" "${m[@]}" "${q[@]}" --rpc 127.0.0.1:1
expect 2 "host:port" "${m[@]}" "${q[@]}" --rpc nonsense
expect 2 "--json" "${m[@]}" --json
expect 1 "nodir" "${m[@]}" "${q[@]}" --json --dump-tensors "$dir/nodir/x.safetensors"
# Files written after the answer are tried before the model is opened.
mkdir "$dir/sub.png"
for flag in --dump-tensors --overlay --prune-dump; do
    expect 1 "nodir" -m "$dir/nowhere.gguf" "${q[@]}" --image "$picture" $flag "$dir/nodir/x.png"
    expect 1 "directory" -m "$dir/nowhere.gguf" "${q[@]}" --image "$picture" $flag "$dir/sub.png"
done
# Files are neither read and written, nor written twice, by one command.
cp "$picture" "$dir/in.png"
expect 2 "--overlay and --image name" "${m[@]}" "${mm[@]}" "${q[@]}" --image "$dir/in.png" --overlay "$dir/in.png"
expect 2 "--dump-tensors and -m name" "${m[@]}" "${q[@]}" --dump-tensors "$dir/./m.gguf"
expect 2 "--overlay and --prune-dump name" "${m[@]}" "${mm[@]}" "${q[@]}" --image "$picture" --overlay "$dir/x.png" --prune-dump "$dir/x.png"
cmp -s "$picture" "$dir/in.png" || { echo "the input was overwritten" && failed=1; }
[ -z "$(ls "$dir"/*.part 2>/dev/null)" ] || { echo "left behind: $(ls "$dir"/*.part)" && failed=1; }
expect 2 "--image-max-tokens" "${m[@]}" "${mm[@]}" "${q[@]}" --image "$picture" --image-max-tokens 1
expect 2 "--image-min-tokens" "${m[@]}" "${mm[@]}" "${q[@]}" --image "$picture" --image-min-tokens 1000
expect 1 "not the mmproj of" "${m[@]}" -mm "$data/golden/gguf/qwen2.5-vl-mmproj.gguf" "${q[@]}" --image "$picture"
expect 2 "--overlay" "${m[@]}" "${mm[@]}" "${q[@]}" --overlay "$dir/x.png"
expect 2 "resize reaches" "${m[@]}" "${mm[@]}" "${q[@]}" --image "$picture" --prune resize --keep-tokens 1
IWP_CPU=sse9 expect 2 "not supported" "${m[@]}" "${q[@]}"
# Counts past 32 bits are refused in a chat, not cut off.
for n in 4294967298 99999999999999999999; do
    printf '/keep %s\n' $n | "$iwp" run -t 1 -lv 2 "${m[@]}" "${mm[@]}" --prune iwp >"$dir/out" 2>"$dir/err"
    grep -q "/keep: '$n'" "$dir/err" || { echo "chat: /keep $n: $(cat "$dir/err")"; failed=1; }
done
# Out of memory at any point is one line and exit 1.  (Sanitizers cannot live with a limit: left out then.)
base=100000
while [ $base -lt 2000000 ] && ! (ulimit -v $base && "$iwp" --version >/dev/null 2>&1); do base=$((base + 10000)); done
run=("$iwp" run -t 1 -lv 2 "${m[@]}" "${mm[@]}" "${q[@]}" --image "$picture")
for i in 0 1 2 3 4 5 6 8 10 12 14 17 20 30 40 60 80; do
    [ $base -lt 2000000 ] || break
    rc=0
    (ulimit -v $((base + i * 8000)) && exec "${run[@]}" >"$dir/out" 2>"$dir/err") || rc=$?
    [ $rc = 0 ] && continue
    if [ $rc != 1 ] || [ -s "$dir/out" ] || [ "$(wc -l <"$dir/err")" != 1 ] || ! grep -qE "memory|vocabulary" "$dir/err"; then
        echo "with $((base + i * 8000)) KB: exit $rc, $(head -3 "$dir/err")"
        failed=1
    fi
done
exit $failed
