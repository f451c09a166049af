#!/usr/bin/env bash
# scripts/get-llama and build-llama without a network: one clear line for everything that can go wrong, and
# nothing left in the cache.
set -u
cd "$(dirname "$0")/../.."
t=$(mktemp -d)
trap 'rm -r "$t"' EXIT
export XDG_CACHE_HOME=$t/cache PIP_NO_INDEX=1 PIP_FIND_LINKS=$t/none PIP_CONFIG_FILE=/dev/null
bad=0
expect() { # expect TEXT COMMAND...: fails, one line on stderr that has TEXT
    local text=$1
    shift
    if "$@" >"$t/out" 2>"$t/err"; then echo "should have failed: $*" && bad=1; fi
    grep -qF -- "$text" "$t/err" || { echo "$*: expected '$text', got:" && cat "$t/err" && bad=1; }
    [ "$(wc -l <"$t/err")" = 1 ] || { echo "$*: more than one line" && cat "$t/err" && bad=1; }
    [ -s "$t/out" ] && echo "$*: wrote to stdout" && bad=1
    [ -z "$(find "$t/cache" -type f ! -name '*.lock' 2>/dev/null)" ] || { echo "$*: left something in the cache" && bad=1; }
}
expect "--offline forbids fetching" scripts/get-llama --offline
echo "not a tarball" >"$t/x.tar.gz"
expect "sha256 is" env IWP_LLAMA_TARBALL="$t/x.tar.gz" scripts/get-llama
expect "no such file" env IWP_LLAMA_TARBALL="$t/absent" scripts/get-llama
expect "unknown option" scripts/get-llama --ofline
expect "cannot fetch" env PIP_INDEX_URL=http://127.0.0.1:9/simple IWP_QUIET=1 scripts/get-llama
expect "no such folder" scripts/build-llama --source "$t/absent"
expect "not a llama.cpp tree" scripts/build-llama --source "$t"
expect "compiler no-such-cc is missing" scripts/build-llama --cc no-such-cc
expect "unknown option --peer" scripts/build-llama --peer
[ $bad = 0 ] && echo ok
exit $bad
