"""Stage 0: teaches the projector words before the language model is involved.

Owns: WORK/words.pt, the projector's start. Every visual token is compared with the language model's
own embeddings of some hundred words; a word counts as said by a picture when one of its tokens is
close to it (smooth maximum over the patches), and the captions or the generator say which words should be.
Costs a hundredth of training through the language model and saves most of its first hour.
usage: words.py [STEPS]"""
import collections
import json
import os
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

import lm
import pack
import parts
import questions
import tokenizer

SEED, BATCH, LR = 5, 24, 2e-3
STOP = set("a an the in on of is are with and to at his her their its by for from it that as while two one "
           "there some another up into through out over near who has other each down off front be next behind".split())


def vocabulary(bags, tok):
    """Words said about at least 25 pictures whose start is one token -> that token's id."""
    n = collections.Counter(w for b in bags for w in b)
    words = sorted(w for w, c in n.items() if c >= 25)
    return words, torch.tensor([tok.encode(" " + w)[0] for w in words])


def load():
    photos = np.load(os.path.join(parts.WORK, "photos-train.npy"), mmap_mode="r")
    gen = np.load(os.path.join(parts.WORK, "gen-train.npy"), mmap_mode="r")
    bags = []
    for r in parts.photos("train"):
        c = collections.Counter(w for cap in r["captions"] for w in set(questions.words(cap)) if w not in STOP)
        bags.append({w: min(1.0, .25 + .25 * k) for w, k in c.items()})
    with open(os.path.join(parts.WORK, "gen-train.json")) as f:
        gen_bags = [{w: 1.0 for w in tags} for _, tags in json.load(f)]
    done = [int(open(os.path.join(parts.WORK, n + ".done")).read()) for n in ("photos-train", "gen-train")]
    return photos, gen, bags[:done[0]], gen_bags[:done[1]]


def main(steps):
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    rng = np.random.RandomState(SEED)
    gguf = parts.base_lm()
    tok = tokenizer.Tokenizer(gguf.keys)
    photos, gen, bags, gen_bags = load()
    words, ids = vocabulary(bags + gen_bags, tok)
    index = {w: i for i, w in enumerate(words)}
    table = torch.from_numpy(gguf.array("token_embd.weight"))
    e = table[ids]
    e = F.normalize(e - table.mean(0), dim=1)
    proj = lm.Projector()
    bias = torch.nn.Parameter(torch.full((len(words),), -4.0))
    scale = torch.nn.Parameter(torch.tensor(1.0))
    opt = torch.optim.AdamW([{"params": proj.parameters(), "lr": LR}, {"params": [bias, scale], "lr": 2e-2}], weight_decay=.01)
    print("%d words, %d photographs, %d generated pictures" % (len(words), len(bags), len(gen_bags)), flush=True)
    t0, mean = time.time(), [0.0, 0.0]
    for step in range(1, steps + 1):
        for g in opt.param_groups:
            g["lr"] = (LR if g["params"][0] is not bias else 2e-2) * min(1, step / 30) * max(.05, 1 - step / steps)
        fi, gi = rng.randint(len(bags), size=BATCH * 2 // 3), rng.randint(len(gen_bags), size=BATCH // 3)
        x = np.concatenate([photos[np.sort(fi)], gen[np.sort(gi)]]).astype(np.float32)
        x = pack.pool(torch.from_numpy(x), 7 if step % 3 else 14)
        y = torch.zeros(len(x), len(words))
        for k, bag in enumerate([bags[i] for i in np.sort(fi)] + [gen_bags[i] for i in np.sort(gi)]):
            for w, v in bag.items():
                if w in index:
                    y[k, index[w]] = v
        with torch.autocast("cpu", torch.bfloat16):
            h = proj(x)
        h = h.float()
        s = F.normalize(h, dim=-1) @ e.T * (6 * scale)
        z = torch.logsumexp(s * 2, 1) / 2 + bias
        # keep the tokens as large as word embeddings are
        size = (h.pow(2).mean(-1).sqrt() / lm.EMBED_STD).log().pow(2).mean()
        loss = F.binary_cross_entropy_with_logits(z, y, reduction="sum") / len(x) + size
        opt.zero_grad()
        loss.backward()
        opt.step()
        mean[0] += loss.item()
        mean[1] += 1
        if step % 50 == 0:
            print("words %d loss %.3f scale %.2f size %.3f %ds" % (step, mean[0] / mean[1], scale.item(), size.item(), time.time() - t0), flush=True)
            mean = [0.0, 0.0]
    torch.save(proj.state_dict(), os.path.join(parts.WORK, "words.pt"))
    with torch.no_grad():                                     # what the patches of a few photographs say
        h = proj(torch.from_numpy(photos[:4].astype(np.float32))[:, 1:])
        for k in range(4):
            z = torch.logsumexp(F.normalize(h[k], dim=-1) @ e.T * 12 * scale, 0) / 2 + bias
            print(k, [words[i] for i in z.topk(10).indices], list(bags[k])[:8])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 900)
