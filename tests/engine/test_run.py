"""iwp run and iwp bench prefill from outside, on a golden checkpoint: pictures of what was kept, Ctrl-C, row fields.

usage: test_run.py PROGRAM DATA        (standard library only)"""
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import zlib

PROGRAM, DATA = (os.path.abspath(a) for a in sys.argv[1:3])
GOLDEN = os.path.join(DATA, "golden")
failed = []


def check(ok, what):
    if not ok:
        failed.append(what)
        print("FAILED:", what)


def iwp(*args):
    r = subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    if r.returncode:
        sys.exit("iwp %s: exit %d: %s" % (" ".join(args), r.returncode, r.stderr))
    return r.stdout


def png(path):
    """(width, height, raw rows); every chunk's checksum is checked."""
    with open(path, "rb") as f:
        data = f.read()
    check(data[:8] == b"\x89PNG\r\n\x1a\n", path + " is no PNG")
    at, body, size, last = 8, b"", (0, 0), b""
    while at < len(data):
        n, = struct.unpack(">I", data[at:at + 4])
        last, part = data[at + 4:at + 8], data[at + 8:at + 8 + n]
        check(struct.unpack(">I", data[at + 8 + n:at + 12 + n])[0] == zlib.crc32(last + part), "checksum in " + path)
        if last == b"IHDR":
            size = struct.unpack(">II", part[:8])
        body += part if last == b"IDAT" else b""
        at += 12 + n
    check(last == b"IEND", path + " is cut short")
    return size[0], size[1], zlib.decompress(body)


def pictures(d, base, picture):
    """--overlay and the three forms of --prune-dump say what --json says."""
    ask = [*base, "-mm", d + "/p.gguf", "--image", picture, "-p", "What is this?", "-n", "2", "--json"]
    cut = ["--prune", "iwp", "--keep", "22.2%"]
    got = json.loads(iwp(*ask, *cut, "--overlay", d + "/o.png", "--prune-dump", d + "/k.svg"))
    keep, image = got["prune"]["keep_indices"], got["images"][0]
    first, (rows, cols) = image["grids"][0], image["grids"][-1]
    check(len(image["grids"]) > 1, "the picture makes an AnyRes map")
    want = set()                      # the map follows the global view, with a separator after each of its rows
    for i in keep:
        k = i - first[0] * first[1]
        if k >= 0 and k % (cols + 1) < cols:
            want.add((k % (cols + 1), k // (cols + 1)))
    with open(d + "/k.svg") as f:
        svg = f.read()
    check('viewBox="0 0 %d %d"' % (10 * cols, 10 * rows) in svg, "size of the SVG")
    drawn = {(int(x) // 10, int(y) // 10) for x, y in re.findall(r'<rect x="(\d+)" y="(\d+)"', svg)}
    check(drawn == want and 0 < len(want) < rows * cols, "cells of the SVG: %d, kept %d" % (len(drawn), len(want)))

    for name in ("a,b.png", "c.png"):
        shutil.copy(picture, os.path.join(d, name))
    two = [a if a != picture else "%s/c.png,%s/c.png" % (d, d) for a in ask]
    each = ["--prune", "iwp", "--keep-tokens", "9", "--budget-scope", "image"]
    both = json.loads(iwp(*two, *each, "--dump-tensors", d + "/two.safetensors"))
    check(len(both["images"]) == 2 and both["tokens"]["visual_kept"] == 9, "two pictures with a comma between, 9 tokens of both")
    again = json.loads(iwp("select", d + "/two.safetensors", *each, "--json"))
    check(again["keep_indices"] == both["prune"]["keep_indices"], "select knows which picture a token is of")
    for method in ("iwp", "dart", "fastv", "divprune"):
        said = json.loads(iwp(*ask, "--prune", method, "--keep", "25%", "--dump-tensors", d + "/m.safetensors"))
        again = json.loads(iwp("select", d + "/m.safetensors", "--method", method, "--keep", "25%", "--json"))
        check(again["keep_indices"] == said["prune"]["keep_indices"], method + ": select repeats the choice of a run")
    comma = [a if a != picture else d + "/a,b.png" for a in ask]
    check([i["file"] for i in json.loads(iwp(*comma))["images"]] == [d + "/a,b.png"], "a comma in a picture's name")
    said = subprocess.run([PROGRAM, *ask, "-lv", "3", "--prune", "iwp"], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    check("without --keep keeps all" in said.stderr, "a method without a budget: " + said.stderr)
    check(json.loads(said.stdout)["tokens"]["visual_kept"] == got["tokens"]["visual"], "a method without a budget keeps all")
    for flags in (["--keep", "0.5"], ["--keep-tokens", "9"], ["--prune-opt", "bogus=1"], ["--prune-layer", "3"], ["--budget-scope", "tile"]):
        said = subprocess.run([PROGRAM, *ask, "-lv", "3", "-n", "1", *flags], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
        check(flags[0] + " has no effect without --prune" in said.stderr, "without a method: " + said.stderr)
        check("ttft" in said.stderr and "decode" not in said.stderr, "one token has no rate: " + said.stderr)
    said = subprocess.run([PROGRAM, *ask, "-lv", "3", "--frames", "4"], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    check("--frames has no effect without --video" in said.stderr, "frames of no video: " + said.stderr)
    for flags in (cut, []):
        said = subprocess.run([PROGRAM, *ask, "-lv", "3", *flags], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
        check("without --" not in said.stderr, "no note when there is a budget, or no method")
        check(all(len(x) <= 80 for x in said.stderr.splitlines()) and all(x in said.stderr for x in ("visual", "ttft", "KV")), "summary: " + said.stderr)
    said = subprocess.run([PROGRAM, *ask, "-lv", "3", *cut, "--overlay", d + "/o.jpg"], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    check(said.returncode == 2 and "--overlay" in said.stderr and ".png" in said.stderr and not os.path.exists(d + "/o.jpg"), "--overlay o.jpg: " + said.stderr)

    again = json.loads(iwp(*ask, *cut, "--prune-dump", d + "/k.json"))
    with open(d + "/k.json") as f:
        dump = json.load(f)
    check(again["prune"]["keep_indices"] == keep, "the same question keeps the same tokens")
    check(dump["prune"]["keep_indices"] == keep, "--prune-dump .json keep_indices")
    check(dump["n_visual"] == got["tokens"]["visual"] == len(dump["scores"]), "--prune-dump .json scores")
    check(dump["images"] == got["images"], "--prune-dump .json images")

    iwp(*ask, *cut, "--prune-dump", d + "/k.png")
    iwp(*ask, "--overlay", d + "/all.png")
    o, a, k = png(d + "/o.png"), png(d + "/all.png"), png(d + "/k.png")
    check(o[0] * rows == o[1] * cols and o[0] >= image["width"], "overlay has the shape of the grid")
    check(o[:2] == a[:2] and o[2] != a[2], "dropped tokens show in the overlay")
    check(k[:2] == o[:2] and k[2] != o[2], "--prune-dump .png draws the scores")


def stopped_json(args, enough):
    """The document of a command that got Ctrl-C; later ones until there is `enough` in it, for a start takes its time."""
    got = {}
    for delay in (0.25, 0.5, 1, 2, 4, 8, 16, 32):
        p = subprocess.Popen([PROGRAM, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        try:
            out, err = p.communicate(timeout=delay)
        except subprocess.TimeoutExpired:
            p.send_signal(signal.SIGINT)
            out, err = p.communicate(timeout=120)
        check(p.returncode == 130, "interrupted %s: exit %d: %s" % (args[:2], p.returncode, err[-300:]))
        got = json.loads(out) if out else got
        if got and enough(got):
            break
    return got


def interrupt(d, base):
    """Ctrl-C while the answer streams: exit 130, what was said stays, no file is left behind."""
    before = sorted(os.listdir(d))
    story = [*base, "-p", "Tell me a story.", "-n", "100000", "-c", "100100", "--ignore-eos"]
    p = subprocess.Popen([PROGRAM, *story], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    check(len(os.read(p.stdout.fileno(), 1)) == 1, "the answer streams")
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=120)
    check(p.returncode == 130, "interrupted: exit %d, not 130: %s" % (p.returncode, err[-300:]))
    check(sorted(os.listdir(d)) == before, "files left behind: %s" % os.listdir(d))
    got = stopped_json([*story, "--json"], lambda x: x["tokens"]["generated"] > 0)
    check((got.get("finish_reason"), got.get("interrupted")) == ("length", True), "--json of an interrupted answer: %.300s" % got)
    whole = json.loads(iwp(*base, "-p", "Tell me a story.", "-n", "2", "--ignore-eos", "--json"))
    check(whole["finish_reason"] == "length" and "interrupted" not in whole, "--json of a whole answer: %s" % whole)


ROW = ["model", "prune", "keep", "visual", "visual_kept", "prompt", "encode_ms", "select_ms", "prefill_ms", "prefill_spread_ms",
       "ttft_ms", "prefill_tokens_per_s", "decode_tokens_per_s", "parallel_tokens_per_s", "gflops", "flop_share", "time_share",
       "time_per_flop", "select_share", "kv_bytes", "peak_rss_bytes"]


def near(a, b, what, tolerance=1e-2):
    check(abs(a - b) <= tolerance * max(abs(b), 1), "%s: %g, wanted %g" % (what, a, b))


def bench(d):
    r = subprocess.run([PROGRAM, "bench", "prefill", "-m", d + "/m.gguf", "-c", "100", "-p", "64,99"], capture_output=True, text=True)
    check(r.returncode == 2 and not r.stdout and "-c 100 is too short for -p 99; it takes 101" in r.stderr, "bench prefill: -c: %s" % r)
    got = json.loads(iwp("bench", "prefill", "-m", d + "/m.gguf", "-p", "64,96", "--prune", "none,iwp", "--keep", "0.25,0.5",
                         "-r", "2", "-n", "2", "-np", "3", "-t", "1", "-lv", "1", "-o", "json"))
    check(sorted(got) == ["cpu", "rows", "threads"] and got["threads"] == 1, "bench prefill: %s" % sorted(got))
    rows = got["rows"]
    check([(r["prompt"], r["prune"], r["keep"]) for r in rows] ==
          [(n, m, k) for n in (64, 96) for m, k in (("none", None), ("iwp", .25), ("iwp", .5))], "bench prefill: the grid")
    for r in rows:
        check(list(r) == ROW, "bench prefill: fields %s" % list(r))
        check(r["visual"] == r["prompt"] - 32, "bench prefill: visual")
        check(r["visual_kept"] == round(r["visual"] * (r["keep"] or 1)), "bench prefill: visual_kept %s" % r)
        check(r["encode_ms"] is None and r["ttft_ms"] is None, "bench prefill: what is not measured is null")
        for key in ["prefill_ms", "prefill_tokens_per_s", "decode_tokens_per_s", "parallel_tokens_per_s", "gflops", "peak_rss_bytes"]:
            check(r[key] > 0, "bench prefill: %s" % key)
        full = [x for x in rows if x["prune"] == "none" and x["prompt"] == r["prompt"]][0]
        near(r["time_share"], r["prefill_ms"] / full["prefill_ms"], "bench prefill: time share")
        near(r["time_per_flop"], r["time_share"] / r["flop_share"], "bench prefill: time per FLOP")
        near(r["select_share"], r["select_ms"] / r["prefill_ms"], "bench prefill: select share", 1e-3)
        check((r["flop_share"] == 1) == (r["prune"] == "none"), "bench prefill: FLOP share")
        check((r["kv_bytes"] < full["kv_bytes"]) == (r["prune"] != "none"), "bench prefill: KV bytes")


    alone = ["bench", "prefill", "-m", d + "/none.gguf"]  # told before a model is looked for
    for flags, word in ((["-p", "64,x"], "-p: 'x'"), (["--keep", "0.5,7"], "--keep: '7'"), (["--prune", "none,nope"], "'nope'"),
                        (["--prune", "resize"], "resize needs a picture"), (["--prune", "iwp,tome"], "tome needs a picture")):
        p = subprocess.run([PROGRAM, *alone, *flags], capture_output=True, text=True, timeout=60)
        check(p.returncode == 2 and word in p.stderr and p.stdout == "", "bench prefill %s: %s" % (flags, p.stderr))
    cut = [PROGRAM, "bench", "prefill", "-m", d + "/m.gguf", "-p", "64", "-r", "1", "-t", "1", "--prune", "none,fastv", "--prune-layer"]
    p = subprocess.run([*cut, "99"], capture_output=True, text=True, timeout=60)
    check(p.returncode == 2 and p.stdout == "" and "layers 0 to" in p.stderr, "bench prefill: a layer that is not there: " + p.stdout + p.stderr)
    p = subprocess.run([*cut, "0"], capture_output=True, text=True, timeout=60)
    check(p.returncode == 2 and p.stdout.count("| none |") == 1, "bench prefill: rows are printed as they are measured: " + p.stdout)
    tower = ["bench", "encode", "-mm", GOLDEN + "/gguf/qwen2.5-vl-mmproj.gguf", "--image-size", "560x560", "-r", "1", "-t", "1", "-lv", "1"]
    full, small = (json.loads(iwp(*tower, "-o", "json", *flags))["rows"][0]["visual"] for flags in ([], ["--image-max-tokens", "100"]))
    check(full > 100 >= small > 0, "bench encode: --image-max-tokens: %d and %d tokens" % (full, small))
    p = subprocess.run([PROGRAM, *tower, "--image-tiles", "2"], capture_output=True, text=True, timeout=60)
    check(p.returncode == 2 and "--image-tiles 2: only for CLIP" in p.stderr and p.stdout == "", "bench encode: --image-tiles: " + p.stderr)


def bench_interrupt(d):
    """Ctrl-C in a bench whose second prompt is long: the rows of the first are there."""
    long = ["bench", "prefill", "-m", d + "/m.gguf", "-p", "64,60000", "--prune", "none", "-r", "50", "-t", "1", "-lv", "1", "-o", "json"]
    got = stopped_json(long, lambda x: len(x["rows"]) > 0)
    check(got.get("threads") == 1 and [r["prompt"] for r in got.get("rows", [])] == [64], "rows before Ctrl-C: %.300s" % got)


def formats(base):
    """--json and -o: the same said twice is fine, two things at once are not."""
    for flags in (["--json", "-o", "text"], ["-o", "text", "--json"]):
        p = subprocess.run([PROGRAM, *base, "-p", "Why?", *flags], capture_output=True, text=True)
        check(p.returncode == 2 and p.stdout == "" and "--json and -o text exclude each other" in p.stderr, "%s: %s" % (flags, p.stderr))
    for flags in (["--json"], ["-o", "json"], ["--json", "-o", "json"]):
        check(json.loads(iwp(*base, "-p", "Why?", "-n", "1", *flags))["answer"] is not None, "%s" % flags)
    check(not iwp(*base, "-p", "Why?", "-n", "1", "-o", "text").startswith("{"), "-o text")


def end_to_end(d, picture):
    got = json.loads(iwp("bench", "e2e", "-m", d + "/m.gguf", "-mm", d + "/p.gguf", "--image", picture, "--prune", "none,iwp",
                         "--keep", "0.25", "-r", "2", "-n", "4", "-t", "1", "-lv", "1", "-o", "json"))
    check([(r["prune"], r["keep"]) for r in got["rows"]] == [("none", None), ("iwp", .25)], "bench e2e: the grid")
    for r in got["rows"]:
        check(list(r) == ROW, "bench e2e: fields %s" % list(r))
        check(r["visual_kept"] == round(r["visual"] * (r["keep"] or 1)) and r["prompt"] > r["visual"], "bench e2e: %s" % r)
        check(r["encode_ms"] > 0, "bench e2e: every repeat encodes")
        check(r["ttft_ms"] >= r["prefill_ms"] > 0 and r["decode_tokens_per_s"] > 0, "bench e2e: times")
    for form in ("md", "csv", "json"):
        r = subprocess.run([PROGRAM, "bench", "e2e", "-m", d + "/m.gguf", "-mm", d + "/p.gguf", "--image", d + "/gone.png", "-o", form],
                           capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
        check(r.returncode and not r.stdout and r.stderr.count("\n") == 1, "bench e2e without its picture, %s: %r %r" % (form, r.stdout, r.stderr))


def damaged(d, base):
    """Weights that are no numbers are an error, not an empty answer."""
    with open(d + "/m.gguf", "rb") as f:
        data = bytearray(f.read())
    at = 3 * len(data) // 4           # among the weights, which are f32
    data[at:at + 4096] = b"\xff" * 4096
    with open(d + "/nan.gguf", "wb") as f:
        f.write(data)
    args = [d + "/nan.gguf" if a == d + "/m.gguf" else a for a in base]
    r = subprocess.run([PROGRAM, *args, "-p", "What is this?", "-n", "2", "--json"], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    check(r.returncode == 1 and r.stdout == "" and "not a number" in r.stderr, "NaN weights: exit %d, %r, %r" % (r.returncode, r.stdout[:200], r.stderr))


def main():
    with tempfile.TemporaryDirectory() as d:
        iwp("convert", GOLDEN + "/models/llava-ov", "-o", d + "/m.gguf", "--mmproj", d + "/p.gguf", "--type", "f32", "-lv", "1")
        base = ["run", "-m", d + "/m.gguf", "-t", "1", "-lv", "1"]
        formats(base)
        damaged(d, base)
        interrupt(d, base)
        pictures(d, base, GOLDEN + "/vectors/llava-ov/images/wide.png")
        bench(d)
        bench_interrupt(d)
        end_to_end(d, GOLDEN + "/vectors/llava-ov/images/wide.png")
    print("%d failed" % len(failed))
    return 1 if failed else 0


sys.exit(main())
