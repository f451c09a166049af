"""Losses on the projector's rows themselves, beside those of the language model.

Owns: `Seen`, two cheap hints that the slow way through the language model would need long for:
where a token lies (its part along "right minus left" and "bottom minus top" of the word embeddings
should be its place in the grid), and what is to be seen (some token of a generated picture should be
close to each word of its list: shapes, colours, printed words, digits and letters; and to no other)."""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import pictures

PLACE, PLACE_WEIGHT, WORD_WEIGHT = .3, 10.0, .05


def vocabulary(tok):
    """{word: id of its first token}; digits and letters are answered without a space before them."""
    words = pictures.SHAPES + list(pictures.PALETTE) + pictures.WORDS + pictures.NUMBERS[2:7]
    out = {w: tok.encode(" " + w)[0] for w in words}
    out.update({c: tok.encode(c)[0] for c in "0123456789" + pictures.LETTERS})
    return out


class Seen(nn.Module):
    def __init__(self, tok, gguf):
        super().__init__()
        table = torch.from_numpy(gguf.array("token_embd.weight"))
        self.words = vocabulary(tok)
        self.index = {w: k for k, w in enumerate(self.words)}
        e = table[torch.tensor(list(self.words.values()))]
        self.e = F.normalize(e - table.mean(0), dim=1)
        one = lambda w: table[tok.encode(" " + w)[0]]
        axes = torch.stack([one("right") - one("left"), one("bottom") - one("top")])
        self.axes = F.normalize(axes, dim=1)
        self.bias = nn.Parameter(torch.full((len(self.words),), -8.0))
        self.scale = nn.Parameter(torch.tensor(12.0))

    def forward(self, visual, words, side):
        """visual [B, n, D]; words: a list for a generated picture, None for a photograph."""
        h = F.normalize(visual.float(), dim=-1)
        out = PLACE_WEIGHT * self.place(h, side)
        known = [i for i, w in enumerate(words) if w is not None]
        if known:
            out = out + WORD_WEIGHT * self.named(h[known], [words[i] for i in known])
        return out

    def place(self, h, side):
        at = torch.from_numpy(np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1).reshape(-1, 2))
        want = PLACE * (2 * at / (side - 1) - 1).float()
        if side == 14:                 # every patch but the first, then the class token: see pack.pool
            h, want = h[:, :-1], want[1:]
        return (h @ self.axes.T - want).pow(2).mean()

    def named(self, h, words):
        y = torch.zeros(len(words), len(self.words))
        for k, bag in enumerate(words):
            for w in bag:
                if w in self.index:
                    y[k, self.index[w]] = 1
        z = torch.logsumexp(h @ self.e.T * self.scale, 1) + self.bias
        return F.binary_cross_entropy_with_logits(z, y, reduction="sum") / len(words)
