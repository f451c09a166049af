"""Caches the tower's features of all pictures as float16 memory maps.

Owns: `WORK/<set>.npy` ([n, 197, 768], last-but-one layer, patches in reading order, then the class token) and, for
generated sets, `WORK/<set>.json` with questions and words. Sets: photos-train, photos-dev, photos-test,
gen-train, gen-local, gen-dev, gen-test, or manifest:FILE.jsonl. A finished part is kept: a killed run goes on where it stopped.
usage: features.py SET [COUNT]"""
import json
import os
import sys
import time

import numpy as np
import torch
from PIL import Image

import parts
import pictures
import tower

LAYER, BATCH = 11, 8
SEEDS = {"gen-train": 1001, "gen-local": 4004, "gen-dev": 2002, "gen-test": 3003}


def items(name, count):
    """[(function -> PIL picture)] and, for generated sets, their questions."""
    if name.startswith("photos-"):
        rows = parts.photos(name[7:])[:count or None]
        return [lambda p=r["path"]: Image.open(p) for r in rows], None
    if name.startswith("manifest:"):                # any manifest of the contract, for evaluation
        path = name[9:]
        with open(path) as f:
            files = [os.path.join(os.path.dirname(path), json.loads(line)["image"]) for line in f]
        return [lambda p=p: Image.open(p) for p in files], None
    todo = pictures.plan(count, SEEDS[name], pictures.LOCAL if name == "gen-local" else None)
    return [lambda f=f, s=s: pictures.make(f, s)[0] for f, s in todo], [pictures.make(f, s)[1:] for f, s in todo]


def main(name, count=0, layer=LAYER):
    os.makedirs(parts.WORK, exist_ok=True)
    base = os.path.join(parts.WORK, os.path.splitext(os.path.basename(name))[0])
    path, mark = base + ".npy", base + ".done"
    todo, questions = items(name, count)
    if questions is not None:
        with open(base + ".json", "w") as f:
            json.dump(questions, f)
    done = int(open(mark).read()) if os.path.exists(mark) and os.path.exists(path) else 0
    shape = (len(todo), 197, 768)
    if done:
        out = np.load(path, mmap_mode="r+")
        if out.shape != shape:
            done = 0
    if not done:
        out = np.lib.format.open_memmap(path, "w+", np.float16, shape)
    net = tower.Tower(parts.base_tower(), torch.bfloat16)
    t0, first = time.time(), done
    while done < len(todo):
        x = torch.stack([tower.prepare(f()) for f in todo[done:done + BATCH]])
        out[done:done + len(x)] = net.hidden(x, layer).half().numpy()
        done += len(x)
        with open(mark, "w") as f:
            f.write(str(done))
        if done // BATCH % 20 == 0:
            print("%s %d/%d %.1f/s" % (name, done, len(todo), (done - first) / (time.time() - t0)), flush=True)
    out.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
