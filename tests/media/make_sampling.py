"""make_sampling.py >tests/data/media/sampling.txt: frame choices as NumPy and torch make them.

Lines: `floor TOTAL N i0 i1 …` and `round TOTAL N …` (long ones as a checksum), `count TOTAL RATE FPS FRAMES FACTOR N`
by the rule of Qwen2.5-VL's utilities (written down here from its description).
"""
import math
import random

import numpy as np
import torch

rng = random.Random(1)


def show(kind, total, n, idx):
    h = 0
    for i in idx:
        h = (h * 1000003 + i) % (1 << 32)
    print(kind, total, n, h, *(idx if n <= 8 else []))


cases = [(1, 1), (1, 8), (2, 8), (10, 32), (31, 32), (32, 32), (33, 32), (100, 1), (50, 2), (108000, 32), (107999, 64)]
cases += [(rng.randrange(1, 20000), rng.choice([2, 4, 6, 7, 8, 16, 31, 32, 48, 64, 128, 768])) for _ in range(600)]


def plain(total, n):
    """torch's formula number by number; its vectors of 8 or 16 round otherwise once in hundreds of cases."""
    one = np.float32
    stop, step = one(total - 1), one(total - 1) / one(max(n - 1, 1))
    x = [step * one(i) if i < n // 2 or n == 1 else stop - step * one(n - i - 1) for i in range(n)]
    return [int(np.rint(v)) for v in x]


for total, n in cases:
    show("floor", total, n, np.linspace(0, total - 1, n, dtype=int).tolist())
    idx = torch.linspace(0, total - 1, n).round().long().tolist()
    if idx == plain(total, n):
        show("round", total, n, idx)


def frame_count(total, rate, fps, frames, factor):
    """The rate rule: between 4 and 768 frames, in whole temporal patches."""
    if not fps:
        return max(factor, round((frames or 32) / factor) * factor)
    least = math.ceil(4 / factor) * factor
    most = math.floor((frames or min(768, total)) / factor) * factor
    n = min(min(max(total / rate * fps, least), most), total)
    n = math.floor(n / factor) * factor
    return n if n >= factor else min(total, factor)


for _ in range(400):
    total = rng.choice([1, 2, 3, 4, 5, 7, 30, 299, 300, 3000, 54321, 108000])
    rate = rng.choice([1.0, 10.0, 23.976, 24.0, 25.0, 29.97, 30.0, 60.0])
    fps = rng.choice([0, 0.5, 1.0, 2.0, 2.5, 4.0, 30.0])
    frames = rng.choice([0, 0, 1, 3, 5, 7, 8, 16, 31, 32, 64])
    factor = rng.choice([1, 2])
    print("count", total, rate, fps, frames, factor, frame_count(total, rate, fps, frames, factor))
