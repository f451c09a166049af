"""iwp analyse on both golden checkpoints and, when it is in the cache, the shipped model: every analysis
runs, its numbers equal those of straight loops over dumped tensors and of single runs of `iwp run`, its
picture is well-formed and stays inside its borders, mistakes are one line."""
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.dom.minidom

import numpy as np
from safetensors.numpy import load_file

from kit import check, convert, finish, folder, golden, iwp, run, write_lines

slow = "slow" in sys.argv[3:]
ALL = "metrics ablate deletion similarity layers identities propagate implicit-weight".split()
KEEP = 0.353


def near(got, want, bound, what):
    check(got is not None and abs(got - want) <= bound, "%s: %r, want %r" % (what, got, want))


# ---- straight loops ------------------------------------------------------------------------------------------

def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def kl(p, q):
    p, q = softmax(p.astype(np.float64)), softmax(q.astype(np.float64))
    return float((p * (np.log(p) - np.log(q))).sum())


def spearman(a, b):
    ra, rb = np.argsort(np.argsort(a)), np.argsort(np.argsort(b))
    return float(np.corrcoef(ra, rb)[0, 1])


class Layer:
    """What one layer of one prompt holds, from --dump-tensors."""

    def __init__(self, file):
        t = load_file(file)
        self.t = {n: t[n].astype(np.float64) for n in ("q", "k", "v", "q_rope", "k_rope", "logits")}
        self.code = t["visual"]
        self.visual = np.flatnonzero((self.code == 1) | (self.code == 2))
        text = np.flatnonzero((self.code == 0) | (self.code == 3))
        self.text = text[text > self.visual[0]]
        self.S, self.H, self.d = t["q"].shape
        self.G = t["k"].shape[1]
        self.query = self.t["q"][self.text].mean(0)

    def weights(self, h):
        return softmax(self.t["k"][:, h * self.G // self.H] @ self.query[h] / np.sqrt(self.d))

    def output(self, h, rows):
        w = self.t["k"][rows][:, h * self.G // self.H] @ self.query[h] / np.sqrt(self.d)
        return softmax(w) @ self.t["v"][rows][:, h * self.G // self.H]

    def effects(self):
        """Head mean of |o - o without i|, each token really left out."""
        out = np.zeros(len(self.visual))
        everything = np.arange(self.S)
        for h in range(self.H):
            o = self.output(h, everything)
            for n, i in enumerate(self.visual):
                out[n] += np.linalg.norm(o - self.output(h, np.delete(everything, i))) / self.H
        return out

    def plain(self):
        out = np.zeros(len(self.visual))
        for h in range(self.H):
            v = self.t["v"][self.visual][:, h * self.G // self.H]
            out += self.weights(h)[self.visual] * np.linalg.norm(v, axis=1) / self.H
        return out

    def maps(self, n):
        rows = np.arange(max(0, self.S - n), self.S)
        rbf, cos, dup = (np.zeros((len(rows), len(rows))) for _ in range(3))
        for g in range(self.G):
            k, v = self.t["k_rope"][rows, g], self.t["v"][rows, g]
            r = np.exp(-((k[:, None] - k[None]) ** 2).sum(2) / (2 * np.sqrt(self.d)))
            u = v / np.linalg.norm(v, axis=1, keepdims=True)
            c = u @ u.T
            rbf += r / self.G
            cos += c / self.G
            dup += (r * c) ** 2 / self.G
        return rbf, cos, dup

    def implicit(self, kept):
        """|W - W_C| / |W| and the cosine, over the visual tokens, mean over KV heads."""
        removed, cosine = [], []
        mask = np.zeros(len(self.visual), bool)
        mask[kept] = True
        for g in range(self.G):
            k, v = self.t["k_rope"][self.visual, g], self.t["v"][self.visual, g]
            e = k @ k.T / np.sqrt(self.d)
            gram = np.exp(e - e.max()) * (v @ v.T)
            removed.append(np.sqrt(gram[~mask][:, ~mask].sum() / gram.sum()))
            cosine.append(gram[:, mask].sum() / np.sqrt(gram.sum() * gram[mask][:, mask].sum()))
        return float(np.mean(removed)), float(np.mean(cosine))


# ---- one model -----------------------------------------------------------------------------------------------

def check_svg(path, what):
    text = open(path).read()
    doc = xml.dom.minidom.parseString(text)
    w, h = (float(x) for x in doc.documentElement.getAttribute("viewBox").split()[2:])
    check(w < 2500 and h < 4000 and "nan" not in text.lower().replace("nanc", "") and "inf\"" not in text, what + ": svg numbers")
    for e in doc.getElementsByTagName("text"):
        x, y = float(e.getAttribute("x")), float(e.getAttribute("y"))
        size = float(e.getAttribute("font-size")) * 0.55 * len(e.firstChild.data if e.firstChild else "")
        turned = bool(e.getAttribute("transform"))
        left = x - {"end": size, "middle": size / 2}.get(e.getAttribute("text-anchor"), 0)
        check(0 <= y <= h and (turned or (left >= -2 and left + size <= w + 2)),
              "%s: text '%s' leaves the picture" % (what, e.firstChild.data))
    check(text.count("<svg") == 1 and "<script" not in text, what + ": one plain picture")


def load(folder, name):
    return json.load(open(os.path.join(folder, name + ".json")))


def check_files(folder, names, what, samples):
    for n in names:
        r = load(folder, n)
        check(r["analysis"] == n and r["samples"] == samples and r["errors"] == 0 and len(r["text"]) > 40, "%s %s: head" % (what, n))
        check(open(os.path.join(folder, n + ".txt")).read() == r["text"], "%s %s: text" % (what, n))
        check_svg(os.path.join(folder, n + ".svg"), "%s %s" % (what, n))
    check(sorted(os.listdir(folder)) == sorted("%s.%s" % (n, e) for n in names for e in ("json", "svg", "txt")), what + ": files")


def check_values(t, model, picture, what, bound):
    """One sample, every number that a loop can give."""
    manifest, out = os.path.join(t, what + ".jsonl"), os.path.join(t, what)
    question = "What is it?"
    row = dict(id="one", task="toy", image=picture, question=question, answer="yes", scorer="yesno", max_new_tokens=2)
    write_lines(manifest, [row])
    common = [*model, "-t", "1", "--tasks", manifest, "--out", out]
    shown = run("analyse", "all", *common)
    check_files(out, ALL, what, 1)
    check(shown.count("\n\n") >= len(ALL) - 1 and load(out, "layers")["text"] in shown, what + ": texts on stdout")

    def single(layer, keep, *more):
        file = os.path.join(t, "dump.safetensors")
        got = json.loads(run("run", *model, "-t", "1", "--image", picture, "-p", question, "-n", "1", "--json", "-ctk", "f32", "-ctv",
                             "f32", "--prune", "iwp", "--keep", str(keep), "--prune-layer", str(layer), "--dump-tensors", file, *more))
        return got["prune"]["keep_indices"], Layer(file)

    kept, cut = single(4, KEEP)
    _, full = single(4, 1)

    # identities: all of them, with the engine's attention within rounding
    ids = load(out, "identities")
    check(ids["hold"] and {r["identity"] for r in ids["identities"]} == {str(i) for i in range(1, 11)}, what + ": identities hold")
    check(all(r["checks"] > 0 and r["largest_error"] <= r["bound"] for r in ids["identities"] if "Taylor" not in r["what"]), what + ": identities checked")

    # deletion: leaving out is recomputed
    d = load(out, "deletion")
    top = [full.weights(h)[full.visual].max() for h in range(full.H)]
    for p in (50, 95, 100):
        near(d["largest_weight_per_head"]["p%d" % p], np.percentile(top, p), bound, "%s: weight p%d" % (what, p))
    near(d["largest_factor"], 1 / (1 - max(top)), 2 * bound, what + ": factor")
    effects = full.effects()
    near(d["plain_rank"]["mean"], spearman(full.plain(), effects), 0.02, what + ": rank of the plain score")
    check(d["effect_rank"]["mean"] > 0.999 and d["centered_rank"]["mean"] > 0.9, what + ": exact scores rank as leaving out does")

    # similarity maps
    s = load(out, "similarity")
    for name, want in zip(("rbf", "cos_v", "dup"), full.maps(100)):
        got = np.array([[np.nan if x is None else x for x in r] for r in s["first"][name]])
        off = np.nanmax(np.abs(got - want))
        check(off <= bound and np.isnan(np.diag(got)).sum() in (0, len(got)), "%s: map %s off by %g" % (what, name, off))

    # layers: sets of single runs
    iou = np.array(load(out, "layers")["iou"])
    check(np.allclose(np.diag(iou), 1) and np.allclose(iou, iou.T) and iou.min() >= 0 and iou.max() <= 1, what + ": IoU matrix")
    other, _ = single(2, KEEP)
    both = len(set(kept) & set(other))
    near(iou[4][2], both / (2 * len(kept) - both), 1e-9, what + ": IoU of layers 4 and 2")

    # propagate: nothing before the cut, KL of dumped logits
    p = load(out, "propagate")["runs"]
    mine = [r for r in p if r["prune"] == "iwp" and r["keep"] == KEEP][0]
    near(mine["kl"], kl(full.t["logits"], cut.t["logits"]), 1e-3 * (1 + mine["kl"]), what + ": KL")
    check(max(mine["text"][:5]) == 0 and min(mine["text"][5:]) > 0 and len(mine["text"]) == load(out, "propagate")["n_layer"], what + ": change per layer")

    # implicit weight of the kept set
    w = load(out, "implicit-weight")["methods"]
    mine = [r for r in w if r["prune"] == "iwp"][0]
    removed, cosine = full.implicit(kept)
    near(mine["removed"]["mean"], removed, bound, what + ": removed")
    near(mine["cosine"]["mean"], cosine, bound, what + ": cosine")
    ran = [r for r in w if "error" not in r]
    check(len(ran) >= 12 and all(abs(r["kept"] - len(kept) / len(full.visual)) < 1e-9 or r["prune"] in ("pact", "sparsevlm", "visionzip", "tome")
                                 for r in ran), what + ": methods at equal count: %s" % w)

    # ablate and metrics: the default is the default everywhere
    a = load(out, "ablate")
    rows = {(r["group"], r["name"]): r for r in a["runs"]}
    default = rows[("default", "default")]
    near(default["kl"], kl(full.t["logits"], cut.t["logits"]), 1e-3 * (1 + default["kl"]), what + ": KL of the default")
    same = [("lambda", "5"), ("growth", "2"), ("first chunk", "2"), ("selector", "pc-mmr"), ("penalty", "new"), ("layer", "4"),
            ("RoPE", "magnitude before, duplication after"), ("keep 35.3%", "magnitude and duplication")]
    check(all(rows[k]["kl"] == default["kl"] and rows[k]["iou"] == 1 for k in same), what + ": the default under other names")
    near(rows[("layer", "2")]["iou"], both / (2 * len(kept) - both), 1e-9, what + ": ablated layer")
    check(rows[("unpruned", "unpruned")]["kl"] == 0 and rows[("unpruned", "unpruned")]["kept"] == 1, what + ": unpruned")
    b = a["brute_force"]
    check(all(b[k]["min"] >= 1 - 1e-9 for k in ("topk", "pc-mmr", "mmr-mult", "mmr-add")) and b["random"]["mean"] > 1, what + ": no selector beats all sets")
    check_brute_force(full, b, what)
    m = {r["name"]: r for r in load(out, "metrics")["runs"]}
    check(m["default"]["kl"] == default["kl"] and m["kv, text-after"]["kl"] == rows[("selector", "topk")]["kl"] and m["dw"]["kl"] >= 0, what + ": metrics")
    near(load(out, "metrics")["rank_correlation"]["vnorm"]["value_norm"], 1, 1e-9, what + ": the norm follows the norm")

    # keep 1 changes nothing; --json is one document
    got = json.loads(run("analyse", "propagate", "implicit-weight", *common, "--keep", "1", "--prune", "iwp,random", "--json"))
    for r in got["propagate"]["runs"]:
        check(r["kl"] == 0 and r["top1"] == 1 and max(r["text"]) == 0 and max(r["visual"]) == 0, what + ": keep 1")
    for r in got["implicit-weight"]["methods"]:
        check(r["removed"]["max"] == 0 and r["cosine"]["min"] > 1 - 1e-9, what + ": keep 1 removes nothing")


def check_brute_force(full, b, what):
    """The best of all sets of 12 visual tokens, and a random one, by hand."""
    n = min(12, len(full.visual))
    small = [full.visual[i * len(full.visual) // n] for i in range(n)]
    text = np.flatnonzero((full.code == 0) | (full.code == 3))
    size = max(1, round(KEEP * n))
    whole = [full.output(h, np.sort(np.concatenate([text, small]))) for h in range(full.H)]
    effects = []
    for kept in itertools.combinations(small, size):
        rows = np.sort(np.concatenate([text, kept]).astype(int))
        effects.append(np.mean([np.linalg.norm(whole[h] - full.output(h, rows)) for h in range(full.H)]))
    near(b["random"]["mean"], np.mean(effects) / min(effects), 0.01, what + ": random set against the best")


def interrupted(args, out):
    """Ctrl-C: exit 130, nothing half-written."""
    p = subprocess.Popen([iwp, *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.4)
    p.send_signal(signal.SIGINT)
    check(p.wait(60) in (130, 0), "Ctrl-C: exit %d" % p.returncode)
    left = os.listdir(out) if os.path.isdir(out) else []
    check(all(re.fullmatch(r"[a-z-]+\.(json|svg|txt)", n) for n in left), "Ctrl-C left %s" % left)


with folder() as t:
    llava = convert(t)
    qwen = ["-m", os.path.join(golden, "gguf", "qwen2.5-vl-q8_0.gguf"), "-mm", os.path.join(golden, "gguf", "qwen2.5-vl-mmproj.gguf")]
    pictures = {m: os.path.join(golden, "vectors", m, "images", "small.png") for m in ("llava-ov", "qwen2.5-vl")}
    wide = os.path.join(golden, "vectors", "qwen2.5-vl", "images", "wide.png")
    check_values(t, llava, pictures["llava-ov"], "llava-ov", 1e-4)
    check_values(t, qwen, wide, "qwen2.5-vl", 1e-4)

    # samples that fail are counted; folders of iwp eval show what was found
    rows = [dict(id="q%d" % i, task="toy", image=pictures["llava-ov"], question="Is it %d?" % i, answer="yes", scorer="yesno", max_new_tokens=1)
            for i in range(2)]
    rows.append(dict(id="bad", task="toy", image=os.path.join(t, "broken.png"), question="?", answer="no", scorer="yesno"))
    rows.append(dict(id="n", task="said", image=pictures["llava-ov"], question="Say", answers=["a dog"], scorer="nll"))
    open(os.path.join(t, "broken.png"), "wb").write(b"no picture")
    manifest, results = write_lines(os.path.join(t, "t.jsonl"), rows), os.path.join(t, "results")
    run("eval", *llava, "-t", "1", "--tasks", manifest, "--prune", "none,iwp", "--keep", "0.5", "--out", results)
    found = os.path.join(results, "analysis")
    run("analyse", "layers", "deletion", *llava, "-t", "1", "--tasks", manifest, "--out", found)
    d = load(found, "deletion")
    check(d["samples"] == 3 and d["errors"] == 1 and "bad" in d["last_error"] and "bad" in d["text"], "a failed sample is counted")
    check(all(r["score"] is not None and r["nll"] > 0 for r in d["runs"]), "scores and nats")
    shutil.copy(os.path.join(found, "layers.json"), os.path.join(found, "odd.json"))
    open(os.path.join(found, "broken.json"), "w").write("{")
    run("report", results)
    page = open(os.path.join(results, "report.html")).read()
    check("<h2>Analyses</h2>" in page and page.count("data:image/svg+xml;base64,") == 2, "the report shows two pictures")
    check(load(found, "layers")["text"].split("\n")[0] in page, "the report has the texts")

    # mistakes
    base = [*llava, "-t", "1", "--tasks", manifest, "--out", os.path.join(t, "x")]
    run("analyse", "layer", *base, code=2, text="did you mean layers")
    run("analyse", *base, code=2, text="NAME of an analysis")
    run("analyse", "layers", *llava, "--out", os.path.join(t, "x"), code=2, text="--tasks is needed")
    run("analyse", "layers", *llava, "--tasks", manifest, code=2, text="--out DIR is needed")
    run("analyse", "layers", *base, "--keep", "1.5", code=2, text="--keep")
    run("analyse", "layers", *base, "--opt", "lambda=x", code=2, text="--opt")
    run("analyse", "propagate", *base, "--prune", "ipw", code=2, text="did you mean iwp")
    run("analyse", "layers", *base, "--prune-layer", "99", code=2, text="--prune-layer 99: the decoder has layers 0 to 7")
    check(not any(f.endswith(".json") for f in os.listdir(os.path.join(t, "x"))) if os.path.isdir(os.path.join(t, "x")) else True, "files of refused commands")
    only = write_lines(os.path.join(t, "only.jsonl"), [rows[2]])
    p = subprocess.run([iwp, "analyse", "layers", *llava, "-t", "1", "--tasks", only, "--out", os.path.join(t, "x")], capture_output=True, text=True)
    check(p.returncode == 1 and "no sample could be used" in p.stderr, "no usable sample: " + p.stderr)
    last = subprocess.run([iwp, "analyse", "identities", *base, "--prune-layer", "7", "--limit", "1"], capture_output=True, text=True)
    check(last.returncode != 0 and "give 0 to 6" in last.stderr, "the last layer: " + last.stderr)
    interrupted(["analyse", "all", *llava, "-t", "1", "--tasks", manifest, "--out", os.path.join(t, "stop")], os.path.join(t, "stop"))

    # the shipped model
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"), "iwp", "models")
    photo = os.path.join(cache, "chelsea.png")
    if os.path.exists(os.path.join(cache, "iwp-photo.gguf")) and os.path.exists(photo) and not slow:
        rows = [dict(id="cat%d" % i, task="toy", image=photo, question=q, answer="yes", scorer="yesno", max_new_tokens=2)
                for i, q in enumerate(("Is there a cat?", "Is it a dog?"))]
        write_lines(os.path.join(t, "photo.jsonl"), rows)
        out = os.path.join(t, "photo")
        few = ["--tasks", os.path.join(t, "photo.jsonl"), "--keep", "35.3%", "--prune", "iwp,random", "--no-answers", "--out"]
        cheap = [n for n in ALL if n not in ("metrics", "ablate")]
        run("analyse", *cheap, *few, out)
        check_files(out, cheap, "photo", 2)
        run("analyse", "metrics", "ablate", *few, out + "-1", "--limit", "1")
        check_files(out + "-1", ["metrics", "ablate"], "photo", 1)
        check(load(out, "identities")["hold"] and load(out, "layers")["mean_iou"] > load(out, "layers")["chance_iou"], "photo: identities, layers")
    else:
        print("the shipped model is not in the cache (make model), or this build is slow: left out")
finish()
