"""Trains projector and low-rank changes; a killed run goes on from its last checkpoint.

Owns: the schedule (stages of RECIPE), the mix, checkpoints in WORK, the curve in models/curve.csv.
What step n sees follows from the seed and n alone, so stopping and going on changes nothing.
usage: train.py [--until STEP]"""
import argparse
import csv
import json
import os
import random
import time

import numpy as np
import torch
import torch.nn.functional as F

import lm
import pack
import parts
import questions
import tokenizer

SEED = 7
PHOTOS, GENERATED = 5, 4               # pictures of each kind in a batch
QUESTIONS = 6                          # questions about one photograph in a batch, besides the captions
# name, steps, side of the grid of visual tokens, factor on the learning rates at start and end
RECIPE = [("pooled", 900, 7, 1.0, 1.0), ("full", 1500, 14, 0.7, 0.02)]
LR_LM, LR_PROJECTOR, WARM_UP, CLIP = 6e-4, 1e-3, 40, 1.0
SAVE_EVERY, EVAL_EVERY = 120, 600      # seconds


def stage(step):
    for name, n, side, f0, f1 in RECIPE:
        if step < n:
            return name, side, f0 + (f1 - f0) * step / n
        step -= n
    return None


class Data:
    def __init__(self, tok):
        self.tok = tok
        load = lambda n: np.load(os.path.join(parts.WORK, n + ".npy"), mmap_mode="r")
        self.photos, self.gen = load("photos-train"), load("gen-train")
        self.photo_groups = questions.photo_groups(parts.photos("train"), SEED)
        with open(os.path.join(parts.WORK, "gen-train.json")) as f:
            self.gen_groups = json.load(f)
        n = os.path.join(parts.WORK, "gen-train.done")
        self.n_gen = int(open(n).read())

    def batch(self, step, side, embed):
        rng = random.Random(SEED * 1000003 + step)
        rows, feats = [], []
        hide = lambda: side == 14 and rng.random() < .5
        for k in range(PHOTOS):
            # epochs are shuffles: no photograph comes twice before all came once
            at = step * PHOTOS + k
            order = np.random.RandomState(SEED + at // len(self.photos)).permutation(len(self.photos))
            i = int(order[at % len(self.photos)])
            g = self.photo_groups[i]
            groups = g[:1] + rng.sample(g[1:], min(QUESTIONS, len(g) - 1))
            rows.append(pack.Row(self.tok, side * side, groups, rng.random() < .3, hide()))
            feats.append(self.photos[i])
        for _ in range(GENERATED):
            i = rng.randrange(self.n_gen)
            rows.append(pack.Row(self.tok, side * side, self.gen_groups[i], rng.random() < .3, hide()))
            feats.append(self.gen[i])
        f = torch.from_numpy(np.stack(feats)).float()
        return pack.Batch(rows, embed), pack.pool(f, side)


def save(path, proj, dec, opt, step, seconds):
    torch.save({"proj": proj.state_dict(), "dec": dec.state_dict(), "opt": opt.state_dict(), "step": step,
                "seconds": seconds}, path + ".tmp")
    os.replace(path + ".tmp", path)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--until", type=int, default=1 << 30)
    ap.add_argument("--threads", type=int, default=2)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(SEED)
    gguf = parts.base_lm()
    tok = tokenizer.Tokenizer(gguf.keys)
    proj, dec = lm.Projector(), lm.Decoder(gguf)
    groups = [{"params": list(dec.parameters()), "base": LR_LM}, {"params": list(proj.parameters()), "base": LR_PROJECTOR}]
    opt = torch.optim.AdamW(groups, lr=1e-3, betas=(.9, .98), weight_decay=.01)
    path = os.path.join(parts.WORK, "checkpoint.pt")
    step, before = 0, 0.0
    if os.path.exists(path):
        c = torch.load(path)
        proj.load_state_dict(c["proj"])
        dec.load_state_dict(c["dec"])
        opt.load_state_dict(c["opt"])
        step, before = c["step"], c["seconds"]
        print("going on at step %d" % step, flush=True)
    data = Data(tok)
    t0 = saved = last = time.time()
    log, sums = os.path.join(parts.WORK, "loss.csv"), {}
    while stage(step) and step < a.until:
        name, side, f = stage(step)
        batch, feats = data.batch(step, side, dec.embed)
        for g in opt.param_groups:
            g["lr"] = g["base"] * f * min(1, (step + 1) / WARM_UP)
        dec.begin()
        nll = F.cross_entropy(dec.logits(pack.run(batch, proj, dec, feats)), batch.tgt, reduction="none")
        loss = (nll * batch.wgt).sum() / batch.wgt.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for g in opt.param_groups for p in g["params"]], CLIP)
        opt.step()
        opt.zero_grad()
        step += 1
        cap = (batch.wgt == 1)
        ans = (batch.wgt == 3)
        for key, m in (("caption", cap), ("answer", ans)):
            s = sums.setdefault(key, [0.0, 0])
            s[0] += nll.detach()[m].sum().item()
            s[1] += int(m.sum())
        if step % 20 == 0:
            t = before + time.time() - t0
            row = [step, name, round(t), round(sums["caption"][0] / sums["caption"][1], 4), round(sums["answer"][0] / sums["answer"][1], 4)]
            new = not os.path.exists(log)
            with open(log, "a") as fh:
                w = csv.writer(fh, lineterminator="\n")
                if new:
                    w.writerow(["step", "stage", "seconds", "caption_nll", "answer_nll"])
                w.writerow(row)
            print(*row, "%.2f pictures/s" % ((PHOTOS + GENERATED) * 20 / (time.time() - last)), flush=True)
            sums = {}
            last = time.time()
        if time.time() - saved > SAVE_EVERY:
            save(path, proj, dec, opt, step, before + time.time() - t0)
            saved = time.time()
    save(path, proj, dec, opt, step, before + time.time() - t0)


if __name__ == "__main__":
    main()
