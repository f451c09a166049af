#!/usr/bin/env python3
"""The shipped model in the program: tiles, and methods that read the tower in one evaluation.

Uses the files scripts/get-model wrote into the user's cache; skipped where they are not.
usage: test_shipped.py IWP"""
import json
import os
import subprocess
import sys
import tempfile

from model_test import check, done
import model_parts as P

iwp = sys.argv[1]
models = os.path.join(P.cache_dir(), "models")
picture = os.path.join(models, "astronaut.png")
if not all(os.path.exists(os.path.join(models, n)) for n in ("iwp-photo.gguf", "iwp-photo-mmproj.gguf", "astronaut.png")):
    print("the shipped model is not in the cache: skipped")
    sys.exit(77)


def run(*args):
    return subprocess.run([iwp, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)


def ask(*flags):
    r = run("run", "--image", picture, "-p", "Describe the image in one sentence.", "-n", "2", "-t", "1", "--json", *flags)
    check(r.returncode == 0, "iwp run %s: %s" % (" ".join(flags), r.stderr))
    return json.loads(r.stdout) if r.returncode == 0 else None


plain, tiles = ask(), ask("--image-tiles", "2", "--prune", "iwp", "--keep", "0.5", "--budget-scope", "tile")
if plain and tiles:
    check(plain["tokens"]["visual"] == 196, "one tile: %s" % plain["tokens"])
    check(tiles["tokens"]["visual"] == 980 and tiles["tokens"]["visual_kept"] == 490, "five tiles: %s" % tiles["tokens"])
    check(tiles["images"][0]["grids"] == [[14, 14], [28, 28]], "grids: %s" % tiles["images"])
    for k in range(5):
        n = sum(196 * k <= i < 196 * k + 196 for i in tiles["prune"]["keep_indices"])
        check(n == 98, "%d tokens of tile %d are kept" % (n, k))
r = run("run", "--image", picture, "-p", "x", "-n", "1", "--image-tiles", "7")
check(r.returncode == 2 and "--image-tiles" in r.stderr, "too many tiles: " + r.stderr)

with tempfile.TemporaryDirectory() as t:
    manifest = os.path.join(t, "a.jsonl")
    with open(manifest, "w") as f:
        f.write(json.dumps({"id": "1", "task": "x", "image": picture, "question": "Is there a woman in the picture? Answer yes or no.",
                            "answer": "yes", "scorer": "yesno", "max_new_tokens": 3}) + "\n")
    # visionzip wants the class token's rows, zooprune does not know of it, tome changes the tower
    r = run("eval", "--tasks", manifest, "--prune", "none,visionzip,zooprune,tome", "--keep", "0.353", "--seeds", "1", "-t", "1", "--out", t + "/out")
    check(r.returncode == 0, "methods that read the tower, together: " + r.stderr)
    if r.returncode == 0:
        with open(t + "/out/results.json") as f:
            runs = json.load(f)["runs"]
        check(len(runs) == 4 and all(x["errors"] == 0 and x["n"] == 1 for x in runs), "no errors: %s" % runs)
done()
