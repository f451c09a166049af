#!/usr/bin/env bash
# rpc.sh IWP LLAMA_BUILD DATA TEST_WEIGHTS: the layers of a golden checkpoint over two of ggml's RPC servers on the loopback
# interface give the same tokens and kept set as the CPU alone.  Left out when the servers are not built
# (scripts/build-llama --peers).
set -eu
iwp=$1 server=$2/bin/ggml-rpc-server data=$3 weights=$4
[ -x "$server" ] || { echo "no $server: left out (scripts/build-llama --peers)" && exit 77; }
shared=${IWP_SHARED:-$data/../../../shared}/golden
[ -d "$shared/models/llava-ov" ] || shared=$data/golden
dir=$(mktemp -d)
pids=()
cleanup() {
    for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
    rm -rf "$dir"
}
trap cleanup EXIT
"$iwp" convert "$shared/models/llava-ov" -o "$dir/m.gguf" --mmproj "$dir/p.gguf" --type f32 -lv 1 >/dev/null
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
ports=()
for i in 1 2; do
    port=$(free_port)
    "$server" --host 127.0.0.1 --port "$port" --threads 1 >"$dir/server$i.log" 2>&1 &
    pids+=($!)
    ports+=("$port")
done
for port in "${ports[@]}"; do
    for _ in $(seq 100); do
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
        sleep 0.1
    done
done
# a custom op must not go there
ASAN_OPTIONS=detect_leaks=0 IWP_TEST_RPC=127.0.0.1:${ports[0]} "$weights" >"$dir/weights.log" 2>&1 || { cat "$dir/weights.log" && exit 1; }
picture=$(find "$shared/vectors/llava-ov/images" -name 'wide.png' | head -1)
[ -n "$picture" ] || picture=$(find "$shared/vectors/llava-ov/images" -name '*.png' | head -1)
# (the RPC client keeps its registry until the end of the process)
ask() {
    ASAN_OPTIONS=detect_leaks=0 "$iwp" run -m "$dir/m.gguf" -mm "$dir/p.gguf" --image "$picture" -p "What is this?" --prune iwp --keep 22.2% \
        -n 12 --ignore-eos --json -ctk f32 -ctv f32 -t 1 -lv 1 "$@" >"$dir/out.json"
    python3 -c 'import json, sys; j = json.load(open(sys.argv[1])); print(j["token_ids"], j["prune"]["keep_indices"])' "$dir/out.json"
}
local_answer=$(ask)
for layers in 99 3; do
    remote=$(ask --rpc "127.0.0.1:${ports[0]},127.0.0.1:${ports[1]}" -ngl $layers)
    [ "$local_answer" = "$remote" ] || { printf 'ngl %s\nlocal  %s\nremote %s\n' "$layers" "$local_answer" "$remote" && exit 1; }
done
echo "same answer on the CPU and over two servers"
