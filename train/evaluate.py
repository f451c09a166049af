"""Measures the shipped files (iwp-photo.gguf and its mmproj) in torch and prints the card's tables.

Owns: caption NLL with the right, a wrong and no picture; accuracy per task; the table "does layer l
matter". A question counts as right when greedy decoding gives exactly the reference: every token of
it, and the end mark, is the most likely one after those before it. NLL is per token of the reference
without the end mark.
usage: evaluate.py captions|yesno|generated|blindtest|layers [...] [--models DIR] [--limit N]
       evaluate.py describe --pictures FILE ..."""
import argparse
import collections
import json
import math
import os

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

import lm
import pack
import parts
import questions
import tokenizer
import tower
import model_gguf
import model_parts

BATCH = 6


class Model:
    def __init__(self, folder, dtype=torch.bfloat16):
        with open(os.path.join(folder, "iwp-photo.gguf"), "rb") as f:
            g = model_gguf.Reader(f.read())
        with open(os.path.join(folder, "iwp-photo-mmproj.gguf"), "rb") as f:
            m = model_gguf.Reader(f.read())
        self.take(g, dtype)
        self.proj = lm.Projector()
        t = lambda k: torch.from_numpy(m.array(k))
        with torch.no_grad():
            for p, k in ((self.proj.norm, "v.post_ln"), (self.proj.a, "mm.0"), (self.proj.b, "mm.2")):
                p.weight.copy_(t(k + ".weight"))
                p.bias.copy_(t(k + ".bias"))

    def take(self, gguf, dtype):
        self.tok = tokenizer.Tokenizer(gguf.keys)
        self.dec = lm.Decoder(gguf, rank=0, dtype=dtype)

    @classmethod
    def language_model(cls, dtype):
        """The base language model as it came: no picture, nothing of ours."""
        self = cls.__new__(cls)
        self.take(parts.base_lm(), dtype)
        return self

    @torch.no_grad()
    def score(self, groups, feats):
        """[(nll sum without end mark, tokens, all argmax right)] per (picture, group, answer)."""
        n = 0 if feats is None else feats.shape[1] - 1
        rows = [pack.Row(self.tok, n, g) for g in groups]
        batch = pack.Batch(rows, self.dec.embed)
        x = self.embed(batch, feats)
        return self.tally(batch, self.dec(x, batch.pos, batch.mask).flatten(0, 1)[batch.src])

    def embed(self, batch, feats):
        if feats is None:
            return batch.x
        v = self.proj(pack.pool(feats.float(), 14)).to(self.dec.dtype)
        return batch.x.masked_scatter(batch.visual[:, :, None], v)

    def tally(self, batch, h):
        logits = self.dec.logits(h)
        nll = F.cross_entropy(logits, batch.tgt, reduction="none").tolist()
        hit = (logits.argmax(1) == batch.tgt).tolist()
        end = self.tok.ids[pack.END]
        out = collections.OrderedDict()
        for tag, t, l, ok in zip(batch.tags, batch.tgt.tolist(), nll, hit):
            s = out.setdefault(tag, [0.0, 0, True])
            if t != end:
                s[0] += l
                s[1] += 1
            s[2] = s[2] and ok
        return list(out.values())

    @torch.no_grad()
    def answer(self, feats, question, most=40):
        """Greedy answer to one question about one picture ([1,197,768])."""
        ids, end = [], self.tok.ids[pack.END]
        while len(ids) < most:
            row = pack.Row(self.tok, 196, [("caption", question, [""])])
            last = row.loss[0][0]
            row.add(ids, row.pos[last] + 1, 1, 1)
            batch = pack.Batch([row], self.dec.embed)
            h = self.dec(self.embed(batch, feats), batch.pos, batch.mask)[0, -1 if ids else last]
            k = int(self.dec.logits(h[None]).argmax())
            if k == end:
                break
            ids.append(k)
        return self.tok.decode(ids)

    @torch.no_grad()
    def layer_sweep(self, groups, feats):
        """For l = 0 ... 30 the tally with no visual token from layer l on (30: never removed). Rows of
        visual tokens are dropped there: nobody reads them any more."""
        rows = [pack.Row(self.tok, feats.shape[1] - 1, g) for g in groups]
        batch = pack.Batch(rows, self.dec.embed)
        x = self.embed(batch, feats)
        keep = [i for i in range(x.shape[1]) if not batch.visual[:, i].any()]
        assert (batch.visual.sum(1) == x.shape[1] - len(keep)).all()
        where = {old: new for new, old in enumerate(keep)}
        s, short = x.shape[1], len(keep)
        src = torch.tensor([i // s * short + where[i % s] for i in batch.src.tolist()])
        pos, mask = batch.pos[:, keep], batch.mask[:, :, keep][:, :, :, keep]
        table = lambda p: [t.to(self.dec.dtype)[:, :, None] for t in lm.rope_table(p)]
        (c, sn), (c2, sn2) = table(batch.pos), table(pos)
        out = []
        for l in range(lm.N_LAYER + 1):
            y = x[:, keep]
            for i in range(l, lm.N_LAYER):
                y = lm.block(y, c2, sn2, mask, *self.dec.tensors(i))
            out.append(self.tally(batch, lm.rms(y, self.dec.out_norm).flatten(0, 1)[src]))
            if l < lm.N_LAYER:
                x = lm.block(x.to(self.dec.dtype), c, sn, batch.mask, *self.dec.tensors(l))
        return out


def feats_of(name, limit=None):
    return np.load(os.path.join(parts.WORK, name + ".npy"), mmap_mode="r")[:limit]


def in_batches(n, size=BATCH):
    return [range(i, min(i + size, n)) for i in range(0, n, size)]


def take(f, idx):
    return torch.from_numpy(np.stack([f[i] for i in idx]))


def interval(k, n):
    """95 % Wilson interval in percent."""
    if n == 0:
        return 0.0, 0.0
    p, z = k / n, 1.96
    m = (p + z * z / (2 * n)) / (1 + z * z / n)
    d = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return 100 * (m - d), 100 * (m + d)


def captions(model, a):
    rows = parts.photos(a.split)[:a.limit]
    f = feats_of("photos-" + a.split, len(rows))
    groups = [questions.photo_groups([r], 0)[0][:1] for r in rows]
    sums = collections.defaultdict(lambda: [0.0, 0])
    per = collections.defaultdict(list)
    base = Model.language_model(model.dec.dtype)
    for idx in in_batches(len(rows)):
        g = [groups[i] for i in idx]
        for name, net, x in (("right picture", model, take(f, idx)), ("wrong picture", model, take(f, [(i + 37) % len(rows) for i in idx])),
                             ("no picture", model, None), ("no picture, language model untouched", base, None)):
            r = net.score(g, x)
            sums[name][0] += sum(t[0] for t in r)
            sums[name][1] += sum(t[1] for t in r)
            for k in range(len(idx)):
                mine = r[5 * k:5 * k + 5]
                per[name].append(sum(t[0] for t in mine) / sum(t[1] for t in mine))
    print("| prompt | NLL per token | photographs where the right picture is better |\n|---|---|---|")
    for name, (s, n) in sums.items():
        better = "" if name == "right picture" else "%.1f %%" % (100 * np.mean(np.array(per[name]) > np.array(per["right picture"])))
        print("| %s | %.4f | %s |" % (name, s / n, better))


def accuracy(model, items, f):
    """items: [(picture index, task, question, answer)] -> {task: [right, n, Counter of answers]}"""
    by = collections.OrderedDict()
    for i, task, q, ans in items:
        by.setdefault(i, []).append((task, q, [ans]))
    out = collections.OrderedDict()
    keys = list(by)
    for idx in in_batches(len(keys)):
        g = [by[keys[i]] for i in idx]
        r = iter(model.score(g, take(f, [keys[i] for i in idx])))
        for groups in g:
            for task, _, ans in groups:
                t = out.setdefault(task, [0, 0, collections.Counter()])
                t[0] += next(r)[2]
                t[1] += 1
                t[2][ans[0]] += 1
    return out


def table(result):
    print("| task | n | accuracy % | 95 % interval | most frequent answer % |\n|---|---|---|---|---|")
    for task, (k, n, c) in sorted(result.items()):
        lo, hi = interval(k, n)
        print("| %s | %d | %.1f | %.1f-%.1f | %.1f |" % (task, n, 100 * k / n, lo, hi, 100 * c.most_common(1)[0][1] / n))


def yesno(model, a):
    where = {r["image"]: i for i, r in enumerate(parts.photos(a.split))}
    if a.split == "test":
        with open(os.path.join(parts.FLICKR, "yesno.jsonl")) as fh:
            rows = [json.loads(line) for line in fh]
        items = [(where[r["image"]], "photo-yesno", r["question"], r["answer"]) for r in rows]
    else:
        rows = parts.photos(a.split)[:a.limit]
        items = [(i, f, q, ans[0]) for i, g in enumerate(questions.photo_groups(rows, 1)) for f, q, ans in g[1:]]
    table(accuracy(model, items, feats_of("photos-" + a.split)))


def generated(model, a):
    name = "gen-" + a.split
    with open(os.path.join(parts.WORK, name + ".json")) as fh:
        q = [x for x, _ in json.load(fh)][:a.limit]
    table(accuracy(model, [(i, t, s, ans[0]) for i, g in enumerate(q) for t, s, ans in g], feats_of(name)))


def blindtest(model, a):
    with open(a.manifest) as fh:
        rows = [json.loads(line) for line in fh]
    step = max(1, len(rows) // (a.limit or len(rows)))      # all tasks stay in a limited run
    form = {"lines": "{%s}", "nested": "{%s}"}          # the prompt asks for curly brackets
    items = [(i, r["task"], r["question"], form.get(r["task"], "%s") % r["answer"]) for i, r in enumerate(rows) if i % step == 0]
    table(accuracy(model, items, feats_of("blindtest")))


def layers(model, a):
    rows = parts.photos(a.split)[:a.limit or 60]
    f = feats_of("photos-" + a.split)
    photo = [g[:1] for g in questions.photo_groups(rows, 1)]
    with open(os.path.join(parts.FLICKR, "yesno.jsonl")) as fh:
        yn = [json.loads(line) for line in fh]
    where = {r["image"]: i for i, r in enumerate(parts.photos(a.split))}
    for r in yn:
        if where[r["image"]] < len(photo):
            photo[where[r["image"]]].append(("photo-yesno", r["question"], [r["answer"]]))
    name = "gen-" + a.split
    with open(os.path.join(parts.WORK, name + ".json")) as fh:
        gen = [x for x, _ in json.load(fh)][:a.limit or 60]
    g = feats_of(name)
    sums = [collections.defaultdict(lambda: [0.0, 0]) for _ in range(lm.N_LAYER + 1)]
    for groups, x in ((photo, f), (gen, g)):
        for idx in in_batches(len(groups)):
            mine = [groups[i] for i in idx]
            tags = [(t, len(ans)) for gr in mine for t, _, ans in gr]
            kinds = [t for t, n in tags for _ in range(n)]
            for l, r in enumerate(model.layer_sweep(mine, take(x, idx))):
                for kind, (nll, n, ok) in zip(kinds, r):
                    key = kind if kind in ("caption", "photo-yesno") else "generated"
                    s = sums[l][key]
                    s[0] += nll if key == "caption" else 100.0 * ok
                    s[1] += n if key == "caption" else 1
    print("| from layer | caption NLL | yes/no % | generated % |\n|---|---|---|---|")
    for l, s in enumerate(sums):
        m = {k: v[0] / v[1] for k, v in s.items()}
        print("| %s | %.4f | %.1f | %.1f |" % (l if l < lm.N_LAYER else "never", m["caption"], m.get("photo-yesno", 0), m["generated"]))


def describe(model, a):
    """Greedy captions of picture files, or of the first photographs of the split."""
    net = tower.Tower(parts.base_tower())
    files = a.pictures or [r["path"] for r in parts.photos(a.split)[:a.limit or 20]]
    for path in files:
        f = net.hidden(tower.prepare(Image.open(path))[None])
        print("%s\t%s" % (os.path.basename(path), model.answer(f, a.question)), flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("what", nargs="+", choices=["captions", "yesno", "generated", "blindtest", "layers", "describe"])
    ap.add_argument("--pictures", nargs="*")
    ap.add_argument("--question", default="Describe the image in one sentence.")
    ap.add_argument("--models", default=os.path.join(model_parts.cache_dir(), "models"))
    ap.add_argument("--split", default="test")
    ap.add_argument("--limit", type=int)
    ap.add_argument("--manifest", default="")
    ap.add_argument("--f32", action="store_true", help="language model in float32 (slower, closer to other programs)")
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    model = Model(a.models, torch.float32 if a.f32 else torch.bfloat16)
    for what in a.what:
        print("\n### %s (%s, limit %s)" % (what, a.split, a.limit), flush=True)
        globals()[what](model, a)


if __name__ == "__main__":
    main()
