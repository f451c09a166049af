"""The program from outside: exit codes, one-line errors, help at 80 columns, JSON, environment.

usage: test_cli.py PROGRAM        (standard library only)"""
import json
import math
import os
import random
import re
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time

PROGRAM = os.path.abspath(sys.argv[1])
TMP = tempfile.mkdtemp(prefix="iwp-cli-")
SIZES = {"F32": "f", "F16": "e", "F64": "d", "U8": "B", "I32": "i", "I64": "q"}
failed = []
checked = 0


def check(ok, what):
    global checked
    checked += 1
    if not ok:
        failed.append(what)
        print("FAILED:", what)


def run(*args, env=None, stdin=None, timeout=60):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("IWP_")}
    return subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=timeout,
                          env={**clean, **(env or {})})


def pack(tensors, meta=None):
    header, body = {}, b""
    if meta:
        header["__metadata__"] = meta
    for name, (dtype, shape, values) in tensors.items():
        data = struct.pack(f"<{len(values)}{SIZES[dtype]}", *values)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def raw(header, body=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def save(name, data):
    path = os.path.join(TMP, name)
    with open(path, "wb") as f:
        f.write(data)
    return path


S, FIRST, N, H, G, D = 60, 6, 36, 4, 2, 8
rng = random.Random(5)


def normal(n):
    return [rng.gauss(0, 1) for _ in range(n)]


CODE = [0] * FIRST + [1] * N + [0] * 6 + [3] * (S - FIRST - N - 6)
TENSORS = {"visual": ("U8", [S], CODE), "q": ("F32", [S, H, D], normal(S * H * D)),
           "k": ("F32", [S, G, D], normal(S * G * D)), "k_rope": ("F32", [S, G, D], normal(S * G * D)),
           "v": ("F32", [S, G, D], normal(S * G * D))}
GOOD = save("good.safetensors", pack(TENSORS))


def changed(name, **tensors):
    """A copy of the good file with some tensors replaced, or removed when None."""
    t = {k: v for k, v in {**TENSORS, **tensors}.items() if v is not None}
    return save(name + ".safetensors", pack(t))


def fnv(indices):
    h = 0xcbf29ce484222325
    for b in b"".join(struct.pack("<i", i) for i in indices):
        h = (h ^ b) * 0x100000001b3 % 2**64
    return f"{h:016x}"


def select(*args, env=None, path=GOOD):
    p = run("select", path, "--json", *args, env=env)
    if p.returncode:
        return {"error": p.stderr}
    return json.loads(p.stdout)


def refused(args, code, *words, env=None):
    """Exit code, nothing on stdout, exactly one line on stderr that says these words."""
    p = run(*args, env=env, timeout=20)
    lines = p.stderr.splitlines()
    label = " ".join(args)[:90]
    codes = code if isinstance(code, tuple) else (code,)
    check(p.returncode in codes, f"{label}: exit {p.returncode}, want {code}: {p.stderr[:200]}")
    check(p.stdout == "", f"{label}: stdout is not empty")
    check(len(lines) == 1, f"{label}: {len(lines)} lines on stderr: {p.stderr[:300]}")
    check(lines and lines[0].startswith("iwp"), f"{label}: {p.stderr[:200]}")
    for w in words:
        check(w in p.stderr, f"{label}: '{w}' is not in: {p.stderr.strip()[:200]}")


def test_json():
    p = run("select", GOOD, "--method", "iwp", "--keep", "0.222", "--json", "--scores")
    check(p.returncode == 0 and p.stderr == "", f"a plain run is silent: {p.stderr}")
    d = json.loads(p.stdout)
    want = ["method", "n_tokens", "n_visual", "n_keep", "keep_indices", "keep_hash", "scores", "select_ms", "cpu"]
    check(list(d) == want, f"keys {list(d)}")
    check((d["method"], d["n_tokens"], d["n_visual"], d["n_keep"]) == ("iwp", S, N, 8), f"counts {d}")
    check(d["keep_indices"] == sorted(set(d["keep_indices"])) and len(d["keep_indices"]) == 8, "ascending list")
    check(d["keep_hash"] == fnv(d["keep_indices"]), "hash")
    check(len(d["scores"]) == N and all(math.isfinite(x) for x in d["scores"]), "scores")
    check(isinstance(d["select_ms"], float) and d["cpu"] in ("c", "avx2", "avx512", "neon"), "cpu and time")
    check("scores" not in select("--keep", "0.222"), "scores only when asked")
    check(json.loads(run("select", GOOD, "--keep", "0.222", "-o", "json").stdout)["n_keep"] == 8, "-o json")


def test_budget():
    base = select("--keep", "0.222")
    for same in (["--keep", "22.2%"], ["--keep=0.222"], ["--keep=22.2%"], ["--keep-tokens", "8"],
                 ["--image-pruning-rate", "0.778"], ["--method", "iwp", "--keep", "0.222"], ["--prune", "iwp", "--keep", "0.222"],
                 ["--keep", "0.222", "--opt", "lambda=5"], ["--keep", "0.222", "--prune-opt", "lambda=5", "--opt", "chunk=2,growth=2"]):
        check(select(*same).get("keep_hash") == base["keep_hash"], f"same as --keep 0.222: {same}")
    check(select("--keep", "1").get("keep_indices") == list(range(N)), "keep 1 keeps all")
    check(select("--keep-tokens", str(N)).get("n_keep") == N, "M = N")
    check(select("--keep", "0.0001").get("n_keep") == 1, "at least one")
    check(select().get("n_keep") == N, "no budget keeps all")
    check(select("--keep", "0.222", "--opt", "lambda=5", "--opt", "selector=topk")["keep_hash"]
          == select("--keep", "0.222", "--opt", "selector=topk")["keep_hash"], "repeatable --opt")
    check(select("--method", "uniform", "--keep-tokens", "4").get("keep_indices")
          == [(2 * i + 1) * N // 8 for i in range(4)], "uniform")
    check(select("--method", "none", "--keep", "0.1").get("n_keep") == N, "none keeps all")


def test_same_everywhere():
    base = select("--keep", "0.353")
    for cpu in ("c", "avx2", "avx512", "neon"):
        p = run("select", GOOD, "--keep", "0.353", "--json", env={"IWP_CPU": cpu})
        if p.returncode:
            check(p.returncode == 2 and "not supported" in p.stderr, f"IWP_CPU={cpu}: {p.returncode} {p.stderr}")
        else:
            d = json.loads(p.stdout)
            check((d["keep_hash"], d["cpu"]) == (base["keep_hash"], cpu), f"IWP_CPU={cpu} differs")
    other = "avx2" if os.uname().machine == "aarch64" else "neon"
    refused(["select", GOOD, "--keep", "0.3"], 2, "not supported", env={"IWP_CPU": other})
    refused(["select", GOOD, "--keep", "0.3"], 2, "sse9", env={"IWP_CPU": "sse9"})
    for words in (["bench", "machine"], ["methods"], ["inspect", GOOD]):
        refused(words, 2, "sse9", env={"IWP_CPU": "sse9"})
    for t in ("1", "2", "3"):
        check(select("--keep", "0.353", "--threads", t)["keep_hash"] == base["keep_hash"], f"{t} threads differ")
        check(select("--keep", "0.353", "-t", t)["keep_hash"] == base["keep_hash"], f"-t {t} differs")


def test_types():
    """f16, f64, other names and unaligned data."""
    base = select("--keep", "0.353", "--method", "iwp")
    half = {n: ("F16", s, v) for n, (d, s, v) in TENSORS.items() if n != "visual"}
    check(select("--keep", "0.353", path=changed("half", **half)).get("n_keep") == base["n_keep"], "f16")
    wide = {n: ("F64", s, v) for n, (d, s, v) in TENSORS.items() if n != "visual"}
    check(select("--keep", "0.353", path=changed("wide", **wide)).get("keep_hash") == base["keep_hash"], "f64")
    odd = save("odd.safetensors", pack({"a": ("U8", [1], [0]), **TENSORS}))
    check(select("--keep", "0.353", path=odd).get("keep_hash") == base["keep_hash"], "unaligned data")
    check(select("--keep", "0.353", path=changed("extra", h=("F32", [S, 3], normal(3 * S)))).get("keep_hash")
          == base["keep_hash"], "a tensor nobody needs changes nothing")
    lame = changed("lame", h=("F32", [2], [math.nan] * 2))
    check(select("--keep", "0.353", path=lame).get("keep_hash") == base["keep_hash"], "nor does a bad one")


def test_units():
    unit = ("I32", [N], [i * 3 // N for i in range(N)])
    path = changed("unit", unit=unit)
    d = select("--keep", "0.25", "--budget-scope", "image", path=path)
    per = [sum(1 for i in d["keep_indices"] if i * 3 // N == u) for u in range(3)]
    check(per == [3, 3, 3], f"3 of 12 in each unit: {per}")
    sizes = [20, 12, 4]  # a count is the sum over the units, however it is rounded in each
    uneven = [u for u, n in enumerate(sizes) for _ in range(n)]
    path = changed("uneven", unit=("I32", [N], uneven))
    for n in (*range(3, 20), N - 1, N):
        d = select("--keep-tokens", str(n), "--budget-scope", "image", path=path)
        per = [sum(1 for i in d["keep_indices"] if uneven[i] == u) for u in range(3)]
        check(sum(per) == n and min(per) >= 1 and all(abs(k - n * s / N) <= 1 or k == 1 for k, s in zip(per, sizes)), f"{n} shared: {per}")
    refused(["select", GOOD, "--keep", ".3", "--budget-scope", "image"], 1, "'unit' is missing")
    refused(["select", path, "--keep-tokens", "2", "--budget-scope", "image"], 2, "--keep-tokens 2", "3 units")
    refused(["select", changed("unit-bad", unit=("I32", [N - 1], [0] * (N - 1))), "--keep", ".3"], (1, 2), "unit")
    refused(["select", changed("unit-neg", unit=("I32", [N], [-1] * N)), "--keep", ".3"], (1, 2), "unit")


def test_separators():
    code = list(CODE)
    for i in range(FIRST + 5, FIRST + N, 6):
        code[i] = 2
    path = changed("sep", visual=("U8", [S], code))
    seps = [i - FIRST for i in range(S) if code[i] == 2]
    d = select("--keep-tokens", "5", "--keep-separators", path=path)
    check(set(seps) <= set(d["keep_indices"]) and d["n_keep"] == 5 + len(seps), "separators come on top")
    check(select("--keep-tokens", "5", "--keep-separators=1", path=path)["keep_hash"] == d["keep_hash"], "=1")
    check(select("--keep-tokens", "5", "--keep-separators=0", path=path)["n_keep"] == 5, "=0")
    check(select("--keep-tokens", "5", path=path)["n_keep"] == 5, "prunable by default")


def test_bad_files():
    head = {n: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for n in ("q",)}
    bad = {
        "empty": (b"", "empty"), "short": (b"1234567", "short"), "len-huge": (raw({}, length=2**63), "header"),
        "len-past-end": (raw({}, length=999), "truncated"), "garbage": (bytes(range(256)) * 8, "header"),
        "truncated": (pack(TENSORS)[:-100], "'v'"), "not-json": (raw(b"{" * 2000), "JSON"),
        "deep": (raw(b"[" * 200000), "JSON"), "deep-object": (raw(b'{"a":' * 50000), "deep"), "array": (raw(b"[]"), "JSON"),
        "twice": (raw(b'{"q":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"q":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'), "twice"),
        "past": (raw(head, b"1234"), "'q'"), "dtype": (raw({"q": {**head["q"], "dtype": "Z9"}}, bytes(8)), "'q'"),
        "backwards": (raw({"q": {**head["q"], "data_offsets": [8, 0]}}, bytes(8)), "'q'"),
        "negative": (raw({"q": {**head["q"], "data_offsets": [-8, 0]}}, bytes(8)), "'q'"),
        "huge": (raw({"q": {**head["q"], "shape": [2**40, 2**40, 4]}}, bytes(8)), "'q'"),
        "lie": (raw({"q": {**head["q"], "shape": [3]}}, bytes(8)), "'q'"),
        "overlap": (raw({"q": head["q"], "k": {**head["q"], "data_offsets": [4, 12]}}, bytes(12)), "overlap"),
    }
    for name, (data, word) in bad.items():
        path = save(name + ".safetensors", data)
        started = time.monotonic()
        refused(["select", path, "--method", "iwp", "--keep", "0.2", "--json"], 1, name + ".safetensors", word)
        check(time.monotonic() - started < 20, f"{name}: takes too long")
    refused(["select", os.path.join(TMP, "none"), "--keep", ".2"], 1, "none", "No such file")
    refused(["select", TMP, "--keep", ".2"], 1, "not a regular file")
    refused(["select", "/dev/null", "--keep", ".2"], 1, "/dev/null")
    pipe = os.path.join(TMP, "pipe")
    os.mkfifo(pipe)  # nobody writes to it: whoever opens it to read waits for ever
    for args in (["select", pipe, "--keep", ".2"], ["inspect", pipe], ["convert", pipe, "-o", os.path.join(TMP, "x.gguf")]):
        refused(args, 1, "pipe", "not a regular file")


def test_bad_tensors():
    def one(name, code, *words, **tensors):
        refused(["select", changed(name, **tensors), "--method", "iwp", "--keep", ".2", "--json"], code, *words)
    q, k = TENSORS["q"][2], TENSORS["k"][2]
    one("no-visual", 1, "visual", visual=None)
    for t in ("q", "k", "k_rope", "v"):
        one("no-" + t, 1, f"'{t}'", "missing", **{t: None})
        nan = list(TENSORS[t][2])
        nan[FIRST * (len(nan) // S)] = math.nan
        one("nan-" + t, 1, t, **{t: ("F32", TENSORS[t][1], nan)}) if t != "q" else None
        nan[FIRST * (len(nan) // S)] = math.inf
        one("inf-" + t, 1, t, **{t: ("F32", TENSORS[t][1], nan)}) if t != "q" else None
        one("rank-" + t, 1, f"'{t}'", **{t: ("F32", [len(nan)], nan)})
        one("int-" + t, 1, f"'{t}'", **{t: ("I32", TENSORS[t][1], [0] * len(nan))})
    nan = list(q)
    nan[-1] = math.nan
    one("nan-q", 1, "q", q=("F32", [S, H, D], nan))
    one("rows-k", 1, "'k'", k=("F32", [S - 1, G, D], k[:-G * D]))
    one("heads", 1, k=("F32", [S, 3, D], normal(S * 3 * D)), k_rope=("F32", [S, 3, D], normal(S * 3 * D)),
        v=("F32", [S, 3, D], normal(S * 3 * D)))
    one("dim", 1, v=("F32", [S, G, D + 1], normal(S * G * (D + 1))), k=("F32", [S, G, D + 1], normal(S * G * (D + 1))))
    one("all-text", 1, "visual", visual=("U8", [S], [0] * S))
    one("code9", 1, "visual", visual=("U8", [S], [9] * S))
    one("visual-float", 1, "visual", visual=("F32", [S], [0] * S))
    one("visual-rank", 1, "visual", visual=("U8", [1, S], CODE))
    one("pos", 1, "position_ids", position_ids=("I64", [2, S], [0] * 2 * S))
    one("window", 1, "window_index", window_index=("I64", [3], [0] * 3))


def test_bad_flags():
    ok = ["select", GOOD, "--method", "iwp"]
    for value in ("0", "1.5", "abc", "-0.1", "nan", "inf", "0%", "101%", "", "22.2%%", "1e999", " 0.2"):
        refused([*ok, "--keep", value], 2, "--keep")
    refused([*ok, "--keep-tokens", "0"], 2, "--keep-tokens")
    refused([*ok, "--keep-tokens", "x"], 2, "--keep-tokens")
    refused([*ok, "--keep-tokens", "99"], 2, "iwp select: --keep-tokens 99")
    refused([*ok, "--keep", ".2", "--keep-tokens", "3"], 2, "--keep")
    refused([*ok, "--keep", ".2", "--image-pruning-rate", "0.8"], 2, "--keep and --image-pruning-rate exclude each other")
    refused(["select", changed("keys", vit_k=("F32", [N, 2, 4], normal(8 * N))), "--method", "tome", "--keep", ".2"], 2, "--keep: one step of method tome")
    refused(["select", changed("keys", vit_k=("F32", [N, 2, 4], normal(8 * N))), "--method", "tome", "--keep-tokens", "2"], 2, "--keep-tokens: one step of method tome")
    for flags in (["--image", "x.png"], ["--grid", "6x6"]):
        p = run(*ok, "--keep", ".2", *flags)
        check(p.returncode == 0 and f"{flags[0]} has no effect without --overlay" in p.stderr, f"{flags}: {p.stderr}")
    refused(["select", GOOD, "--method", "nope", "--keep", ".2"], 2, "nope")
    refused(["select", GOOD, "--method", "unifrom", "--keep", ".2"], 2, "did you mean uniform")
    refused([*ok, "--keep", ".2", "--opt", "lamda=3"], 2, "lamda")
    refused([*ok, "--keep", ".2", "--opt", "lambda=x"], 2, "lambda")
    refused([*ok, "--keep", ".2", "--opt", "lambda"], 2, "lambda")
    refused([*ok, "--keep", ".2", "--opt", "growth=-3"], 2, "growth")
    refused([*ok, "--keep", ".2", "--opt", "selector=best"], 2, "selector")
    refused([*ok, "--keep", ".2", "--frobnicate"], 2, "--frobnicate")
    refused([*ok, "--keep", ".2", "--thread", "2"], 2, "did you mean --threads")
    refused([*ok, "--keep", ".2", "--threads", "-4"], 2, "--threads")
    refused([*ok, "--keep", ".2", "--threads", "0"], 2, "--threads")
    refused([*ok, "--keep", ".2", "--threads", "99999999999999999999"], 2, "--threads")
    refused([*ok, "--keep"], 2, "--keep needs a value")
    refused([*ok, "--budget-rule", "x"], 2, "--budget-rule")
    refused([*ok, "--budget-scope", "x"], 2, "--budget-scope")
    refused([*ok, "--keep-separators=7"], 2, "--keep-separators")
    refused([*ok, "-o", "xml"], 2, "xml")
    refused([*ok, "--json", "-o", "text"], 2, "--json and -o text exclude each other")
    refused([*ok, "--log-file", "/nonexistent/x"], 2, "/nonexistent/x")
    os.mkfifo(os.path.join(TMP, "unread"))
    refused([*ok, "--log-file", os.path.join(TMP, "unread")], 2, "unread")  # nobody reads it
    refused(["select", "--method", "iwp", "--keep", ".2"], 2, "FILE.safetensors")
    refused([*ok, "another"], 2, "another")
    refused(["selct"], 2, "did you mean select")
    refused(["frobnicate"], 2, "frobnicate")
    refused(["bench"], 2, "bench")
    refused(["bench", "nothing"], 2, "nothing")
    refused(["methods", "nope"], 2, "nope")
    refused(["select", GOOD, "--method", "a\nb\x1b[31m", "--keep", ".2"], 2, "a?b?[31m")
    check(run().returncode == 2, "no command: exit 2")


def test_bench_select():
    if "  select " not in run("bench", "--help").stdout:
        return
    for args, word in ((["--tokens", "64,99999999999"], "--tokens"), (["--keep", "0.2,7"], "--keep"), (["-t", "1,0"], "--threads"),
                       (["--method", "iwp,nosuch"], "nosuch"), (["--selector", "nosuch"], "nosuch"), (["--opt", "nosuch=1"], "nosuch"),
                       (["--method", "all", "--selector", "nosuch"], "nosuch"), (["--method", "all", "--opt", "lambda=1"], "--opt")):
        refused(["bench", "select", "-r", "1", *args], 2, word)
    refused(["bench", "select", "--keep", "7"], 2, "iwp bench select: --keep: '7' is not")
    table = run("bench", "select", "--method", "all", "--tokens", "64", "--keep", "0.5", "-t", "1", "-r", "1").stdout
    check(all(len(line) <= 100 for line in table.splitlines()) and "| pyramiddrop" in table and "| iwp pc-mmr" in table, f"bench select: {table}")


def test_bench_machine():
    refused(["bench", "machine", "--seconds", "0"], 2, "--seconds")
    got = json.loads(run("bench", "machine", "--seconds", "0.01", "--megabytes", "8", "-o", "json").stdout)
    check(got["threads"] >= 1 and {"f32 fma", "memory read"} <= {r["what"] for r in got["rows"]}, "bench machine: rows")
    refused(["bench", "machine", "-t", "99"], 1, "CPUs can be used")
    names = [r["what"] for r in got["rows"]]
    check((got["cpu"] == "amx") == any("amx" in x for x in names), f"bench machine: cpu {got['cpu']} with {names}")
    check(all((r["unit"] == "GOP/s") == ("int8" in r["what"]) for r in got["rows"]), "bench machine: integers are no FLOP")
    check(all(r["one_thread"] > 0 and r["all_threads"] > 0 for r in got["rows"]), "bench machine: rates")


def test_bench_attention():
    if "  attention " not in run("bench", "--help").stdout:
        return  # built without the engine
    for args, word in ((["--keys", "8"], "--keys"), (["--type", "q4_0"], "f16, q8_0, f32"), (["--heads", "3"], "--heads")):
        refused(["bench", "attention", *args], 2, word)
    refused(["bench", "attention"], 1, "IWP_CPU=c has no attention of our own", env={"IWP_CPU": "c"})
    small = run("bench", "attention", "--heads", "4", "--kv-heads", "2", "--head-size", "32", "--keys", "40",
                "-ub", "20", "--megabytes", "1", "-r", "1", "-t", "2", "-o", "json")
    if small.returncode == 1 and "only ggml's" in small.stderr:
        return  # a CPU without vectors
    rows = json.loads(small.stdout)["rows"]
    check(len(rows) == 4 and all(r["own"] > 0 and r["ggml"] > 0 and r["limit"] > 0 for r in rows), "bench attention: rows")


def test_bench_products():
    if "  products " not in run("bench", "--help").stdout:
        return  # built without the engine
    for args, word in ((["--type", "q9"], "'q9', only f16, bf16"), (["--rows", "0"], "--rows"), (["--rows", "1,2x"], "2x"),
                       (["--shape", "7"], "--shape"), (["--shape", "40x32", "--type", "q4_0"], "32 numbers"),
                       (["--shape", "32x0"], "--shape"), (["--shape", "131072x131072"], "131072 x 131072 f16 takes 32768 MB"),
                       (["--shape", "131072x131072", "--type", "q4_0"], "q4_0 takes 9216 MB"),
                       (["--rows", "1,16384"], "16384 rows of 3584 numbers and their products of 3584 take 448 MB")):
        refused(["bench", "products", *args], 2, word)
    small = ["bench", "products", "--shape", "256x128", "--rows", "1,70", "--megabytes", "1", "-r", "1", "-t", "2"]
    got = json.loads(run(*small, "-o", "json").stdout)
    rows = got["rows"]
    check(len({r["type"] for r in rows}) == len(rows) / 2 == 12, f"bench products: {len(rows)} rows")
    check(all(r["own"] > 0 and r["ggml"] > 0 for r in rows), "bench products: rates")
    check((got["k"], got["m"], got["threads"]) == (256, 128, 2), "bench products: the shape in JSON")
    check(all(r["own"] == r["ggml"] for r in rows if r["by"] == "ggml"), "bench products: ggml's beside itself")
    check(all(r["by"] == ("ggml" if got["path"] == "ggml" else "many") for r in rows if r["rows"] == 70 and r["type"] == "q8_0"),
          f"bench products: {got['path']} beside many rows")
    check(all(r["by"] == ("ggml" if got["path"] == "ggml" else "few") for r in rows if r["rows"] == 1 and r["type"] == "q8_0"),
          f"bench products: {got['path']} beside one row")
    for shape in ("256x1", "256x33"):  # fewer columns than are drawn at random, and none of our blocks
        p = run("bench", "products", "--shape", shape, "--rows", "1,70", "--megabytes", "1", "-r", "1", "-t", "1", "-o", "json")
        check(p.returncode == 0 and len(p.stdout) > 0 and {r["by"] for r in json.loads(p.stdout)["rows"]} == {"ggml"},
              f"bench products {shape}: exit {p.returncode} {p.stdout[-300:]} {p.stderr}")
    p = run("bench", "products", "--shape", "32x32", "--type", "q8_0", "--rows", "1,40", "--megabytes", "1", "-r", "1", "-t", "1")
    check(p.returncode == 0 and "512 matrices of 32 x 32 q8_0, more are not made, take 0.5 MB" in p.stderr, f"bench products: {p.stderr}")
    plain = run(*small, "--type", "Q8_0", env={"IWP_CPU": "c"}).stdout
    check(plain.count("| q8_0 |") == 2 and plain.count("| ggml |") == 2, f"bench products: IWP_CPU=c has only ggml's: {plain}")


def test_environment():
    base = select("--keep", "0.222")
    check(select(env={"IWP_ARG_KEEP": "22.2%"})["keep_hash"] == base["keep_hash"], "IWP_ARG_KEEP")
    check(select("--keep", "0.222", env={"IWP_ARG_KEEP": "0.5"})["keep_hash"] == base["keep_hash"], "the command line wins")
    check(select("--keep", "0.222", env={"IWP_ARG_PRUNE_OPT": "selector=topk"})["keep_hash"]
          == select("--keep", "0.222", "--opt", "selector=topk")["keep_hash"], "IWP_ARG_PRUNE_OPT")
    check(select("--keep", "0.222", "--opt", "lambda=5", env={"IWP_ARG_PRUNE_OPT": "selector=topk"})["keep_hash"]
          == base["keep_hash"], "a list on the command line replaces the environment's")
    refused(["select", GOOD, "--keep", "0.222"], 2, "lamda", env={"IWP_ARG_OPT": "lamda=3"})
    check(select("--keep", "0.222", env={"IWP_ARG_METHOD": "uniform"})["method"] == "uniform", "IWP_ARG_METHOD")
    check("scores" in select("--keep", "0.222", env={"IWP_ARG_SCORES": "1"}), "IWP_ARG_SCORES")
    check(select("--keep-tokens", "8", env={"IWP_ARG_KEEP": "0.5"}).get("keep_hash") == base["keep_hash"], "a budget on the command line replaces the environment's")
    check(select("--image-pruning-rate", "0.778", env={"IWP_ARG_KEEP": "0.5"}).get("keep_hash") == base["keep_hash"], "however it is said")
    refused(["select", GOOD], 2, "IWP_ARG_KEEP", env={"IWP_ARG_KEEP": "7"})
    refused(["select", GOOD], 2, "IWP_ARG_THREADS", env={"IWP_ARG_THREADS": "many"})


def test_help():
    pages = [["--help"], ["select", "--help"], ["select", "-h"], ["methods", "--help"], ["bench", "--help"], ["help", "select"],
             ["select", GOOD, "--keep", "0.2", "--help"], ["methods"], ["--cpu-info"], ["--version"],
             ["select", GOOD, "--keep", "0.353"], ["select", GOOD, "--keep", "0.353", "--scores"]]
    table = json.loads(run("methods", "--json").stdout)["methods"]
    pages += [["methods", m["name"]] for m in table]
    bench = run("bench", "--help").stdout
    pages += [["bench", kind, "--help"] for kind in re.findall(r"^  (\w+) {3,}\S", bench, re.M)]
    for page in pages:
        p = run(*page)
        wide = [line for line in p.stdout.splitlines() if len(line) > 80]
        check(p.returncode == 0 and p.stdout.strip(), f"{page}: exit {p.returncode} {p.stderr}")
        check(p.stderr == "", f"{page}: says {p.stderr}")
        check(not wide, f"{page}: wider than 80 columns: {wide[:2]}")
        check("\t" not in p.stdout and "\x1b" not in p.stdout, f"{page}: tabs or colours in a pipe")
    check(re.fullmatch(r"iwp \d+\.\d+\.\d+\n", run("--version").stdout) is not None, "--version")
    check("example" in run("select", "--help").stdout, "examples in the help")
    names = [m["name"] for m in table]
    check(len(set(names)) == len(names) and {"iwp", "random", "uniform", "none"} <= set(names), f"methods {names}")
    for m in table:
        check(all(k in m for k in ("name", "ref", "site", "needs", "options", "engine_only", "rounding", "positions")), f"{m['name']}: fields")
        check(all(o["text"] and o["default"] != "" for o in m["options"]), f"{m['name']}: every option has text and default")


def test_engine_only():
    """Methods that call back into a model: refused, and the line names the method or the missing tensor."""
    d = 16
    rows = changed("rows", embeds=("F32", [S, d], normal(S * d)), vit_features=("F32", [N, d], normal(N * d)))
    table = json.loads(run("methods", "--json").stdout)["methods"]
    for m in table:
        if m["engine_only"]:
            for path in (rows, GOOD):  # whether the arrays are there or not
                refused(["select", path, "--method", m["name"], "--keep", ".2"], 1, m["name"], "engine-only")


def test_no_leftovers():
    out = os.path.join(TMP, "kept.png")
    p = run("select", GOOD, "--keep", "0.2", "--overlay", out, "--json")
    check(p.returncode == 0, f"overlay: {p.stderr}")
    with open(out, "rb") as f:
        check(f.read(8) == b"\x89PNG\r\n\x1a\n", "overlay is a PNG")
    check(not [f for f in os.listdir(TMP) if f.endswith(".part")], "no temporary file stays")
    refused(["select", GOOD, "--keep", "0.2", "--overlay", "/nonexistent/x.png"], 1, "/nonexistent/x.png")
    refused(["select", GOOD, "--keep", "0.2", "--overlay", out, "--grid", "5x5"], 2, "--grid")
    refused(["select", GOOD, "--keep", "0.2", "--overlay", out, "--grid", "big"], 2, "--grid")
    refused(["select", changed("odd-grid", visual=("U8", [S], [0] * FIRST + [1] * (N - 1) + [3] * (S - FIRST - N + 1))), "--keep", "0.2", "--overlay", out], 2, "--grid")
    refused(["select", save("grid.safetensors", pack(TENSORS, {"grid": "5x5"})), "--keep", "0.2", "--overlay", out], 1, "'grid'")
    refused(["select", GOOD, "--keep", "0.2", "--overlay", out, "--image", GOOD], 1, "good.safetensors")
    with open("/dev/full", "w") as full:
        p = subprocess.run([PROGRAM, "select", GOOD, "--keep", "0.5", "--json"], stdout=full, stderr=subprocess.PIPE, text=True)
    check(p.returncode == 1 and "cannot write" in p.stderr and len(p.stderr.splitlines()) == 1, f"full disk: {p.returncode} {p.stderr}")


def test_outputs():
    """An output replaces nothing but a file, and none that the same command reads or writes."""
    cut = ["select", GOOD, "--keep", "0.2"]
    fifo, jpg, link = (os.path.join(TMP, n) for n in ("fifo.png", "x.jpg", "link.png"))
    os.mkfifo(fifo)
    refused([*cut, "--overlay", fifo], 1, "fifo.png", "not a regular file")
    check(stat.S_ISFIFO(os.lstat(fifo).st_mode), "the FIFO stays one")
    refused([*cut, "--overlay", jpg], 2, "--overlay", ".png")
    check(not os.path.exists(jpg), "no PNG under the name of a JPEG")
    os.symlink("good.safetensors", link)
    with open(GOOD, "rb") as f:
        before = f.read()
    refused([*cut, "--overlay", GOOD], 2, "--overlay", "FILE.safetensors")
    refused([*cut, "--overlay", link], 2, "--overlay", "FILE.safetensors")
    refused([*cut, "--log-file", GOOD], 2, "--log-file", "FILE.safetensors")
    refused([*cut, "--overlay", fifo, "--image", fifo], 2, "--overlay", "--image")
    refused([*cut, "--overlay", TMP + "/new.png", "--log-file", TMP + "/./new.png"], 2, "--overlay", "--log-file")
    with open(GOOD, "rb") as f:
        check(f.read() == before, "the input stays as it was")


def test_log():
    log = os.path.join(TMP, "log.txt")
    p = run("select", GOOD, "--method", "nope", "--log-file", log)
    check(p.returncode == 2, "exit code with a log file")
    check(open(log).read() == p.stderr, "the log file has the same line")


def test_closed_stdout():
    """A closed stdout is an error, and the log file does not take its place."""
    log = os.path.join(TMP, "closed.log")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("IWP_")}
    p = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", PROGRAM, "select", GOOD, "--keep", ".2", "--log-file", log],
                       capture_output=True, text=True, timeout=60, env=clean)
    check(p.returncode == 1 and "cannot write" in p.stderr, f"closed stdout: {p.returncode} {p.stderr}")
    lines = open(log).read().splitlines()
    check(all("cannot write" in x for x in lines), f"the answer is in the log: {lines[:3]}")


def test_interrupt():
    """SIGINT in a long run: 130 and nothing left.  The run is made long by its size."""
    n = 6000
    code = [1] * n + [3] * 4
    s = n + 4
    pool = normal(4096)
    big = [pool[(i * 7919) % 4096] for i in range(s * 2 * 16)]
    tensors = {"visual": ("U8", [s], code)}
    for name in ("q", "k", "k_rope", "v"):
        tensors[name] = ("F32", [s, 2, 16], big)
    path = save("big.safetensors", pack(tensors))
    out = os.path.join(TMP, "never.png")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("IWP_")}
    for sig in (signal.SIGINT, signal.SIGTERM):
        p = subprocess.Popen([PROGRAM, "select", path, "--keep", "0.9", "--opt", "selector=mmr-mult", "--overlay", out, "--grid", "60x100",
                              "-t", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**clean, "IWP_CPU": "c"})
        for _ in range(1000):  # a busy machine may take long to start it
            with open(f"/proc/{p.pid}/status") as f:
                caught = int(re.search(r"SigCgt:\s*(\w+)", f.read())[1], 16)
            if caught >> (sig - 1) & 1:
                break
            time.sleep(0.01)
        time.sleep(0.25)
        p.send_signal(sig)
        stdout, stderr = p.communicate(timeout=60)
        if p.returncode == 0:
            print("note: the run ended before the signal")
            os.unlink(out)
            continue
        check(p.returncode == 130 and stdout == "", f"interrupted: exit {p.returncode} {stderr}")
        check(not os.path.exists(out) and not [f for f in os.listdir(TMP) if f.endswith(".part")], "leftovers")


def test_interrupt_bench():
    """SIGINT in a bench: the rows there are, as one document.  The second selection is made long by its size."""
    args = ["bench", "select", "--tokens", "64,30000", "--selector", "mmr-mult", "--keep", "0.9", "--threads", "1", "-r", "1"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("IWP_")}
    rows = []
    for delay in (0.25, 0.5, 1, 2, 4, 8, 16):  # until the first row is there
        p = subprocess.Popen([PROGRAM, *args, "-o", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env={**clean, "IWP_CPU": "c"})
        time.sleep(delay)
        p.send_signal(signal.SIGINT)
        stdout, stderr = p.communicate(timeout=60)
        check(p.returncode == 130, f"interrupted bench: exit {p.returncode} {stderr}")
        rows = json.loads(stdout)["rows"] if stdout else []
        if rows:
            break
    check([r["tokens"] for r in rows] == [64], f"rows of an interrupted bench: {rows}")


def main():
    try:
        for name, test in list(globals().items()):
            if name.startswith("test_"):
                test()
    finally:
        subprocess.run(["rm", "-rf", TMP])
    print(f"{checked} checks, {len(failed)} failed")
    sys.exit(bool(failed))


main()
