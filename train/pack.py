"""Packs several questions and answers behind one picture.

Owns: the prompt (the base model's own chat template) and the batch layout. A row is
  prefix | visual tokens | group 1: question, answer, answer ... | group 2 ...
Every question sees prefix and picture; every answer sees those and its question; positions go on as
if each stood alone. The first word of an answer is predicted from the question's last position."""
import numpy as np
import torch

PREFIX = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
          "<|im_start|>user\n")
BETWEEN = "<|im_end|>\n<|im_start|>assistant\n"
END = "<|im_end|>"
NEG = -1e4


class Row:
    """ids (visual positions hold -1), pos, group, answer number, and the loss pairs (source, target, weight, tag)."""

    def __init__(self, tok, n_visual, groups, newline=False, hide_class=False):
        pre = tok.encode(PREFIX)
        self.ids = pre + [-1] * n_visual
        self.first, self.n_visual = len(pre), n_visual
        base = len(self.ids)
        self.pos, self.group, self.ans = list(range(base)), [0] * base, [0] * base
        if hide_class:                 # the last visual token; hidden half of the time in training so that
            self.group[base - 1] = -1  # the patches are read, too
        self.loss = []
        for g, (family, question, answers) in enumerate(groups, 1):
            q = tok.encode(("\n" if newline else "") + question + BETWEEN)
            start = len(self.ids)
            self.add(q, base, g, 0)
            last = start + len(q) - 1
            for k, a in enumerate(answers, 1):
                t = tok.encode(a) + tok.encode(END)
                at = len(self.ids)
                self.add(t[:-1], base + len(q), g, k)
                w = 1.0 if family == "caption" else 3.0
                for j, target in enumerate(t):
                    weight = w if j < len(t) - 1 else .5
                    self.loss.append((last if j == 0 else at + j - 1, target, weight, (g, k)))

    def add(self, ids, pos, g, k):
        self.ids += ids
        self.pos += range(pos, pos + len(ids))
        self.group += [g] * len(ids)
        self.ans += [k] * len(ids)


class Batch:
    """x: embeddings without the picture; `visual` says where rows of the projector go."""

    def __init__(self, rows, embed):
        s, b = -(-max(len(r.ids) for r in rows) // 32) * 32, len(rows)   # few lengths: each costs compiled code and memory
        ids = np.zeros((b, s), np.int64)
        pos = np.zeros((b, s), np.int64)
        group = np.full((b, s), -1, np.int64)
        ans = np.zeros((b, s), np.int64)
        src, tgt, wgt, self.tags = [], [], [], []
        for i, r in enumerate(rows):
            n = len(r.ids)
            ids[i, :n], pos[i, :n], group[i, :n], ans[i, :n] = r.ids, r.pos, r.group, r.ans
            for a, t, w, tag in r.loss:
                src.append(i * s + a)
                tgt.append(t)
                wgt.append(w)
                self.tags.append((i,) + tag)
        self.visual = torch.from_numpy(ids < 0)
        self.x = embed[torch.from_numpy(np.maximum(ids, 0))]
        self.pos = torch.from_numpy(pos)
        gq, gk, aq, ak = group[:, :, None], group[:, None], ans[:, :, None], ans[:, None]
        see = (gk == 0) | ((gq == gk) & ((ak == 0) | (aq == ak)))
        see &= np.tril(np.ones((s, s), bool))[None] & (gk >= 0)
        see |= np.eye(s, dtype=bool)[None]
        self.see = torch.from_numpy(see)
        self.mask = self.additive(self.see, embed.dtype)
        self.src, self.tgt = torch.tensor(src), torch.tensor(tgt)
        self.wgt = torch.tensor(wgt)

    @staticmethod
    def additive(see, dtype):
        return torch.zeros(see.shape, dtype=dtype).masked_fill_(~see, NEG)[:, None]

    def mask_without_picture(self, dtype):
        """Nobody but the visual tokens themselves sees a visual token."""
        see = self.see & (~self.visual[:, None, :] | self.visual[:, :, None])
        return self.additive(see, dtype)


def pool(feats, side):
    """[B,197,768] (patches, class token) -> visual tokens. Side 14: what llama.cpp's LLaVA graph takes, rows
    1 to 196, which is every patch but the first and then the class token. Less: averaged squares of patches."""
    if side == 14:
        return feats[:, 1:]
    b, k = feats.shape[0], 14 // side
    return feats[:, :196].reshape(b, side, k, side, k, 768).mean((2, 4)).reshape(b, side * side, 768)


def run(batch, visual, dec):
    """Hidden states at the loss positions, [n, D]; visual: the projector's rows, [B, n_visual, D]."""
    x = batch.x.masked_scatter(batch.visual[:, :, None], visual.to(dec.dtype))
    h = dec(x, batch.pos, batch.mask)
    return h.flatten(0, 1)[batch.src]
