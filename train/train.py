"""Trains projector and low-rank changes; a killed run goes on from its last checkpoint.

Owns: the schedule (stages of RECIPE), the mix, checkpoints and the loss curve in WORK. What step n
sees follows from the seed and n alone, so stopping and going on changes nothing. The rows of a batch
are shared by WORKERS processes with one thread each (better than two threads where others use the
machine, too); their gradients are added up. IWP_WORKERS says how many.
usage: train.py [--until STEP] [--max-rss GB]"""
import argparse
import csv
import json
import os
import random
import resource
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

import aux
import lm
import pack
import parts
import questions
import tokenizer

SEED = 7
WORKERS = int(os.environ.get("IWP_WORKERS", "2"))
PART = 4                               # rows that go through the model together; less padding than all at once
QUESTIONS = 6                          # questions about one photograph in a batch, besides the captions


class Stage:
    """steps: its length; side: of the grid of visual tokens; start, end: factors on the learning rates;
    photos, general, local: pictures of each kind in a batch; aux: weight of the losses of aux.py."""

    def __init__(self, name, steps, side, start, end, photos, general, local, aux):
        self.name, self.steps, self.side, self.start, self.end = name, steps, side, start, end
        self.photos, self.general, self.local, self.aux = photos, general, local, aux
        self.pictures = photos + general + local


RECIPE = [Stage("pooled", 260, 7, 1.0, 0.8, 6, 4, 0, 0.0),
          Stage("full", 80, 14, 0.7, 0.03, 6, 4, 0, 0.0),
          Stage("local", 78, 7, 0.6, 0.6, 3, 1, 8, 1.0),
          Stage("local-full", 44, 14, 0.5, 0.02, 3, 1, 8, 0.5)]
LR_LM, LR_PROJECTOR, WARM_UP, CLIP = 1e-3, 5e-4, 20, 1.0
SAVE_EVERY = 120                       # seconds
OTHERS = 3000                          # words that never occur in the data, kept in the loss


def stage(step):
    """The stage of a step and the factor on its learning rates; None when all is done."""
    for s in RECIPE:
        if step < s.steps:
            return s, s.start + (s.end - s.start) * step / s.steps
        step -= s.steps
    return None


class Cache:
    """Rows of a features file, read when asked for (a memory map would count as the process's own memory)."""

    def __init__(self, name):
        path = os.path.join(parts.WORK, name + ".npy")
        m = np.load(path, mmap_mode="r")
        self.shape, self.offset, self.size = m.shape[1:], m.offset, m[0].nbytes
        self.n = len(m)
        self.fd = os.open(path, os.O_RDONLY)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return np.frombuffer(os.pread(self.fd, self.size, self.offset + i * self.size), np.float16).reshape(self.shape)


class Data:
    def __init__(self, tok):
        self.tok = tok
        self.photos = Cache("photos-train")
        self.photo_groups = questions.photo_groups(parts.photos("train"), SEED)
        self.gen = {}
        for name in ("gen-train", "gen-local"):
            with open(os.path.join(parts.WORK, name + ".json")) as f:
                self.gen[name] = Cache(name), json.load(f)

    def vocabulary(self):
        """Token ids in the loss: all that occur in answers, and some that do not. Leaving out the other
        forty thousand saves a fifth of the time."""
        used = {0}
        for groups in self.photo_groups + [g for _, rows in self.gen.values() for g, _ in rows]:
            for _, _, answers in groups:
                for a in answers:
                    used.update(self.tok.encode(a + pack.END))
        rest = [i for i in range(len(self.tok.tokens)) if i not in used]
        used.update(random.Random(SEED).sample(rest, OTHERS))
        return torch.tensor(sorted(used))

    def rows(self, step, s):
        """[(groups, words to be seen, picture array, index, newline, hide class token)] of a step."""
        rng = random.Random(SEED * 1000003 + step)
        out = []
        for k in range(s.photos):
            # epochs are shuffles: no photograph comes twice before all came once
            at = step * s.photos + k
            order = np.random.RandomState(SEED + at // len(self.photos)).permutation(len(self.photos))
            i = int(order[at % len(self.photos)])
            g = self.photo_groups[i]
            out.append((g[:1] + rng.sample(g[1:], min(QUESTIONS, len(g) - 1)), None, self.photos, i))
        for name, n in (("gen-train", s.general), ("gen-local", s.local)):
            pictures, rows = self.gen[name]
            for _ in range(n):
                i = rng.randrange(len(pictures))
                out.append(tuple(rows[i]) + (pictures, i))
        return [r + (rng.random() < .3, rng.random() < .5) for r in out]

    def parts(self, step, s, embed, rank):
        """The step's rows of this worker in parts of similar length, and the weight of the whole step."""
        rows = self.rows(step, s)
        packed = [pack.Row(self.tok, s.side ** 2, g, nl, s.side == 14 and hide) for g, _, _, _, nl, hide in rows]
        total = sum(w for r in packed for _, _, w, _ in r.loss)
        order = sorted(range(len(rows)), key=lambda i: -len(packed[i].ids))
        mine = order[rank::WORKERS]
        out = []
        for k in range(0, len(mine), PART):
            part = mine[k:k + PART]
            f = np.stack([rows[i][2][rows[i][3]] for i in part]).astype(np.float32)
            out.append((pack.Batch([packed[i] for i in part], embed), pack.pool(torch.from_numpy(f), s.side),
                        [rows[i][1] for i in part]))
        return out, total


def save(path, state, step, seconds):
    torch.save(dict({k: v.state_dict() for k, v in state.items()}, step=step, seconds=seconds), path + ".tmp")
    os.replace(path + ".tmp", path)


def share(params):
    """Adds up the gradients of all workers."""
    if WORKERS == 1:
        return
    for p in params:
        if p.grad is None:             # no row of this worker needed it
            p.grad = torch.zeros_like(p)
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

    def write(self, step, s, seconds):
        row = [step, s.name, round(seconds)] + [round(self.sums[k][0] / max(1, self.sums[k][1]), 4) for k in ("caption", "answer")]
        if self.rank == 0:
            new = not os.path.exists(self.path)
            with open(self.path, "a") as f:
                w = csv.writer(f, lineterminator="\n")
                if new:
                    w.writerow(["step", "stage", "seconds", "caption_nll", "answer_nll"])
                w.writerow(row)
            print(*row, "%.2f pictures/s" % (s.pictures * 5 / (time.time() - self.last)), flush=True)
        self.sums, self.last = {}, time.time()


def too_large(limit):
    """Whether this process has grown past `limit` GB: the caller then ends, and goes on from the checkpoint."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize() > limit * 1e9


def work(rank, until, max_rss):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("IWP_PORT", "29517"), GLOO_SOCKET_IFNAME="lo")
    if WORKERS > 1:
        dist.init_process_group("gloo", rank=rank, world_size=WORKERS)
    torch.manual_seed(SEED)
    gguf = parts.base_lm()
    tok = tokenizer.Tokenizer(gguf.keys)
    proj, dec = lm.Projector(), lm.Decoder(gguf)
    proj.load_state_dict(torch.load(os.path.join(parts.WORK, "words.pt")))
    seen = aux.Seen(tok, gguf)
    params = list(dec.parameters()) + list(proj.parameters())
    opt = torch.optim.AdamW([{"params": list(dec.parameters()), "base": LR_LM},
                             {"params": list(proj.parameters()), "base": LR_PROJECTOR}],
                            lr=1e-3, betas=(.9, .98), weight_decay=.01)
    seen_opt = torch.optim.AdamW(seen.parameters(), lr=2e-2, weight_decay=0)
    state = {"proj": proj, "dec": dec, "opt": opt, "seen": seen, "seen_opt": seen_opt}
    path = os.path.join(parts.WORK, "checkpoint.pt")
    step, before = 0, 0.0
    if os.path.exists(path):
        c = torch.load(path)
        for k, v in state.items():
            if k in c:
                v.load_state_dict(c[k])
        step, before = c["step"], c["seconds"]
        del c
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
    while stage(step) and step < until and not (WORKERS == 1 and too_large(max_rss)):
        s, f = stage(step)
        todo, total = data.parts(step, s, dec.embed, rank)
        for g in opt.param_groups:
            g["lr"] = g["base"] * f * min(1, (step + 1) / WARM_UP)
        for batch, feats, words in todo:
            dec.begin()
            visual = proj(feats)
            logits = F.linear(pack.run(batch, visual, dec), head).float()
            nll = F.cross_entropy(logits, place[batch.tgt], reduction="none")
            loss = (nll * batch.wgt).sum() / total
            if s.aux:
                loss = loss + s.aux * len(words) / s.pictures * seen(visual, words, s.side)
            loss.backward()
            log.add(nll.detach(), batch.wgt)
        share(params + (list(seen.parameters()) if s.aux else []))
        torch.nn.utils.clip_grad_norm_(params, CLIP)
        opt.step()
        opt.zero_grad()
        if s.aux:
            seen_opt.step()
            seen_opt.zero_grad()
        step += 1
        seconds = before + time.time() - t0
        if step % 5 == 0:
            log.write(step, s, seconds)
        if rank == 0 and time.time() - saved > SAVE_EVERY:
            save(path, state, step, seconds)
            saved = time.time()
    if rank == 0:
        save(path, state, step, before + time.time() - t0)
    if WORKERS > 1:
        dist.barrier()
    return step


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--until", type=int, default=1 << 30)
    ap.add_argument("--max-rss", type=float, default=6.5, help="one worker only: end with status 3 when it holds more GB; run again to go on")
    a = ap.parse_args()
    if WORKERS > 1:
        torch.multiprocessing.spawn(work, (a.until, a.max_rss), WORKERS)
        return 0
    step = work(0, a.until, a.max_rss)
    return 3 if stage(step) and step < a.until else 0


if __name__ == "__main__":
    sys.exit(main())
