"""Trains projector and low-rank changes; a killed run goes on from its last checkpoint.

Owns: the schedule (stages of RECIPE), the mix, checkpoints and the loss curve in WORK. What step n
sees follows from the seed and n alone, so stopping and going on changes nothing. The rows of a batch
are shared by WORKERS processes with one thread each (better than two threads where others use the
machine, too); their gradients are added up.
usage: train.py [--until STEP]"""
import argparse
import csv
import json
import os
import random
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

import lm
import pack
import parts
import questions
import tokenizer

SEED = 7
WORKERS = 2
PHOTOS, GENERATED = 6, 4               # pictures of each kind in a batch
QUESTIONS = 6                          # questions about one photograph in a batch, besides the captions
# name, steps, side of the grid of visual tokens, factor on the learning rates at start and end
RECIPE = [("pooled", 260, 7, 1.0, 0.8), ("full", 80, 14, 0.7, 0.03)]
LR_LM, LR_PROJECTOR, WARM_UP, CLIP = 1e-3, 5e-4, 20, 1.0
SAVE_EVERY = 120                       # seconds
OTHERS = 3000                          # words that never occur in the data, kept in the loss


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
            self.gen_groups = [q for q, _ in json.load(f)]

    def vocabulary(self):
        """Token ids in the loss: all that occur in answers, and some that do not. Leaving out the other
        forty thousand saves a fifth of the time."""
        used = {0}
        for groups in self.photo_groups + self.gen_groups:
            for _, _, answers in groups:
                for a in answers:
                    used.update(self.tok.encode(a + pack.END))
        rest = [i for i in range(len(self.tok.tokens)) if i not in used]
        used.update(random.Random(SEED).sample(rest, OTHERS))
        return torch.tensor(sorted(used))

    def rows(self, step):
        """[(groups, picture array, index, newline, hide class token)] of a step."""
        rng = random.Random(SEED * 1000003 + step)
        out = []
        for k in range(PHOTOS):
            # epochs are shuffles: no photograph comes twice before all came once
            at = step * PHOTOS + k
            order = np.random.RandomState(SEED + at // len(self.photos)).permutation(len(self.photos))
            i = int(order[at % len(self.photos)])
            g = self.photo_groups[i]
            out.append((g[:1] + rng.sample(g[1:], min(QUESTIONS, len(g) - 1)), self.photos, i))
        for _ in range(GENERATED):
            i = rng.randrange(len(self.gen))
            out.append((self.gen_groups[i], self.gen, i))
        return [r + (rng.random() < .3, rng.random() < .5) for r in out]

    def batch(self, step, side, embed, rank):
        rows = self.rows(step)
        packed = [pack.Row(self.tok, side * side, g, nl, side == 14 and hide) for g, _, _, nl, hide in rows]
        total = sum(w for r in packed for _, _, w, _ in r.loss)
        order = sorted(range(len(rows)), key=lambda i: -len(packed[i].ids))
        mine = order[rank::WORKERS]
        f = np.stack([rows[i][1][rows[i][2]] for i in mine]).astype(np.float32)
        return pack.Batch([packed[i] for i in mine], embed), pack.pool(torch.from_numpy(f), side), total


def save(path, proj, dec, opt, step, seconds):
    torch.save({"proj": proj.state_dict(), "dec": dec.state_dict(), "opt": opt.state_dict(), "step": step,
                "seconds": seconds}, path + ".tmp")
    os.replace(path + ".tmp", path)


def share(params):
    """Adds up the gradients of all workers."""
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat)
    at = 0
    for p in params:
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()


class Log:
    """Means over 5 steps, appended to WORK/loss.csv by the first worker."""

    def __init__(self, rank):
        self.path, self.rank = os.path.join(parts.WORK, "loss.csv"), rank
        self.sums, self.last = {}, time.time()

    def add(self, nll, wgt):
        for key, w in (("caption", 1), ("answer", 3)):
            s = self.sums.setdefault(key, [0.0, 0])
            s[0] += nll[wgt == w].sum().item()
            s[1] += int((wgt == w).sum())

    def write(self, step, name, seconds):
        row = [step, name, round(seconds)] + [round(self.sums[k][0] / max(1, self.sums[k][1]), 4) for k in ("caption", "answer")]
        if self.rank == 0:
            new = not os.path.exists(self.path)
            with open(self.path, "a") as f:
                w = csv.writer(f, lineterminator="\n")
                if new:
                    w.writerow(["step", "stage", "seconds", "caption_nll", "answer_nll"])
                w.writerow(row)
            print(*row, "%.2f pictures/s" % ((PHOTOS + GENERATED) * 5 / (time.time() - self.last)), flush=True)
        self.sums, self.last = {}, time.time()


def work(rank, until):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("IWP_PORT", "29517"), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=WORKERS)
    torch.manual_seed(SEED)
    gguf = parts.base_lm()
    tok = tokenizer.Tokenizer(gguf.keys)
    proj, dec = lm.Projector(), lm.Decoder(gguf)
    proj.load_state_dict(torch.load(os.path.join(parts.WORK, "words.pt")))
    params = list(dec.parameters()) + list(proj.parameters())
    opt = torch.optim.AdamW([{"params": list(dec.parameters()), "base": LR_LM},
                             {"params": list(proj.parameters()), "base": LR_PROJECTOR}],
                            lr=1e-3, betas=(.9, .98), weight_decay=.01)
    path = os.path.join(parts.WORK, "checkpoint.pt")
    step, before = 0, 0.0
    if os.path.exists(path):
        c = torch.load(path)
        proj.load_state_dict(c["proj"])
        dec.load_state_dict(c["dec"])
        opt.load_state_dict(c["opt"])
        step, before = c["step"], c["seconds"]
    data = Data(tok)
    vocab = data.vocabulary()
    place = torch.full((len(tok.tokens),), -1)
    place[vocab] = torch.arange(len(vocab))
    head = dec.embed[vocab]
    if rank == 0:
        print("step %d, %d words in the loss" % (step, len(vocab)), flush=True)
    lm.block = torch.compile(lm.block, dynamic=True)
    t0 = saved = time.time()
    log = Log(rank)
    while stage(step) and step < until:
        name, side, f = stage(step)
        batch, feats, total = data.batch(step, side, dec.embed, rank)
        for g in opt.param_groups:
            g["lr"] = g["base"] * f * min(1, (step + 1) / WARM_UP)
        dec.begin()
        logits = F.linear(pack.run(batch, proj, dec, feats), head).float()
        nll = F.cross_entropy(logits, place[batch.tgt], reduction="none")
        ((nll * batch.wgt).sum() / total).backward()
        share(params)
        torch.nn.utils.clip_grad_norm_(params, CLIP)
        opt.step()
        opt.zero_grad()
        step += 1
        log.add(nll.detach(), batch.wgt)
        seconds = before + time.time() - t0
        if step % 5 == 0:
            log.write(step, name, seconds)
        if rank == 0 and time.time() - saved > SAVE_EVERY:
            save(path, proj, dec, opt, step, seconds)
            saved = time.time()
    if rank == 0:
        save(path, proj, dec, opt, step, before + time.time() - t0)
    dist.barrier()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--until", type=int, default=1 << 30)
    a = ap.parse_args()
    torch.multiprocessing.spawn(work, (a.until,), WORKERS)


if __name__ == "__main__":
    main()
