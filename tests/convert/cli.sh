#!/usr/bin/env bash
# iwp convert and iwp inspect from outside: exit codes, one error line, clean stdout, nothing left behind.
set -u
iwp=$1 golden=$2/golden/models/llava-ov
t=$(mktemp -d)
trap 'rm -r "$t"' EXIT
bad=0
check() { # check CODE TEXT COMMAND...: exit code, and on failure one line with TEXT on stderr
    local want=$1 text=$2 got=0
    shift 2
    "$@" >"$t/out" 2>"$t/err" || got=$?
    [ $got = "$want" ] || { echo "exit $got, want $want: $*" && cat "$t/err" && bad=1; }
    [ "$want" = 0 ] && return
    [ "$(wc -l <"$t/err")" = 1 ] || { echo "not one line: $*" && cat "$t/err" && bad=1; }
    grep -qF -- "$text" "$t/err" || { echo "expected '$text': $*" && cat "$t/err" && bad=1; }
}
check 0 "" "$iwp" convert "$golden" -o "$t/m.gguf" --mmproj "$t/p.gguf" --type q8_0
[ -s "$t/out" ] && echo "convert wrote to stdout" && bad=1
check 0 "" "$iwp" convert "$t/m.gguf" -o "$t/n.gguf" --type f32
check 0 "" "$iwp" inspect "$t/p.gguf" --image-size 300x130 --json
grep -q '"tokens": 269' "$t/out" || { echo "wrong estimate" && bad=1; }
python3 -c "import json, sys; json.load(open(sys.argv[1]))" "$t/out" || bad=1
check 0 "" "$iwp" inspect "$golden"
check 2 "-o FILE is needed" "$iwp" convert "$golden"
check 2 "--mmproj" "$iwp" convert "$golden" -o "$t/x.gguf"
check 2 "the same file" "$iwp" convert "$golden" -o "$t/x.gguf" --mmproj "$t/./x.gguf"
check 2 "q9" "$iwp" convert "$golden" -o "$t/x.gguf" --mmproj "$t/y.gguf" --type q9
check 1 "no such file" "$iwp" convert "$t/absent" -o "$t/x.gguf"
check 1 "cannot write" "$iwp" convert "$golden" -o "$t/none/x.gguf" --mmproj "$t/y.gguf"
head -c 5000 "$t/m.gguf" >"$t/cut.gguf"
check 1 "cut.gguf: truncated" "$iwp" convert "$t/cut.gguf" -o "$t/x.gguf" --type f16
check 1 "cut.gguf: truncated" "$iwp" inspect "$t/cut.gguf"
check 2 "640x480" "$iwp" inspect "$t/p.gguf" --image-size 0x5
check 2 "did you mean" "$iwp" inspekt
# a full disk is an error, not a file
check 1 "cannot write" "$iwp" convert "$t/n.gguf" -o /dev/full/x.gguf --type f16
(ulimit -f 100 && trap '' XFSZ && check 1 "cannot write" "$iwp" convert "$t/n.gguf" -o "$t/full.gguf" --type f32 && exit $bad) || bad=1
for f in "$t"/*; do
    case ${f##*/} in m.gguf | n.gguf | p.gguf | cut.gguf | out | err) ;; *) echo "left behind: $f" && bad=1 ;; esac
done
[ $bad = 0 ] && echo ok
exit $bad
