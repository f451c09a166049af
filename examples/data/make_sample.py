#!/usr/bin/env python3
"""Makes the sample that `make demo` prunes: a drawn picture (sample.png) and, for each of its 24 x 24
patches, queries, keys and values as a decoder layer might hold them (sample.safetensors, f16).

Nothing here comes from a model: patches of the same material get nearby keys and values (with noise, and
more of it where the patch is busy), and the question's queries point towards the house.  That is enough
structure for a selection to have something to find.  Standard library only; the same bytes every time."""
import json
import math
import os
import random
import struct
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
GRID, CELL = 24, 16
SIZE = GRID * CELL
H, G, D = 4, 2, 32
PRE, POST = 12, 16  # template tokens before, question tokens after the picture
MATERIALS = ["sky", "cloud", "sun", "mountain", "snow", "meadow", "path", "wall", "roof", "door", "window", "trunk", "leaf", "flower"]
WEIGHT = {"wall": .9, "roof": 1.1, "door": 1.5, "window": 1.4, "path": .45, "trunk": .5, "leaf": .35, "flower": .3, "sun": .3}


def mix(a, b, t):
    return tuple(x + (y - x) * t for x, y in zip(a, b))


def hash01(*key):
    x = 0x9E3779B9
    for k in key:
        x = (x ^ (k & 0xFFFFFFFF)) * 0x85EBCA6B % 2**32
        x ^= x >> 13
    return (x * 0xC2B2AE35 % 2**32) / 2**32


def noise(x, y, scale, seed):
    """Smooth value noise in [0, 1]."""
    fx, fy = x * scale, y * scale
    ix, iy = math.floor(fx), math.floor(fy)
    tx, ty = fx - ix, fy - iy
    tx, ty = tx * tx * (3 - 2 * tx), ty * ty * (3 - 2 * ty)
    v = [hash01(ix + i, iy + j, seed) for j in (0, 1) for i in (0, 1)]
    return (v[0] * (1 - tx) + v[1] * tx) * (1 - ty) + (v[2] * (1 - tx) + v[3] * tx) * ty


def ridge(x, base, amp, seed):
    return base - amp * (noise(x, 0, 3.5, seed) + .45 * noise(x, 0, 9, seed + 1) + .15 * noise(x, 0, 30, seed + 2))


def point(x, y):
    """Material and colour at a point of the unit square, y down."""
    # house
    if .555 < x < .815 and .50 < y < .74:
        for wx in (.592, .722):
            if wx < x < wx + .058 and .545 < y < .612:
                cross = abs(x - wx - .029) < .0035 or abs(y - .5785) < .0035
                return "window", (244, 240, 228) if cross else mix((255, 222, 140), (250, 190, 90), (y - .545) / .067)
        if .652 < x < .708 and .625 < y < .74:
            knob = math.hypot(x - .698, y - .688) < .0055
            return "door", (240, 210, 110) if knob else mix((126, 62, 40), (96, 44, 30), abs(x - .68) / .03)
        plank = .96 if int(y * 120) % 4 == 0 else 1.0
        shade = 1 - .16 * max(0, (x - .72) / .1)
        return "wall", tuple(c * plank * shade for c in (236, 224, 200))
    if .535 < x < .835 and .36 < y <= .50 and y > .36 + abs(x - .685) * .93:
        tile = .9 if (int(x * 110) + int(y * 90)) % 2 else 1.0
        return "roof", tuple(c * tile for c in (184, 66, 48))
    if .745 < x < .775 and .365 < y < .46:
        return "roof", (150, 74, 60)
    # tree
    if math.hypot((x - .235) / .125, (y - .50) / .145) + .28 * (noise(x, y, 26, 5) - .5) < 1:
        t = noise(x, y, 34, 6)
        light = max(0, min(1, (.56 - y) / .2))
        return "leaf", mix((34, 92, 44), (104, 168, 62), .55 * t + .45 * light)
    if abs(x - .235) < .017 + .012 * max(0, (y - .70) * 10) and .60 < y < .765:
        return "trunk", mix((96, 66, 42), (70, 46, 30), noise(x, y, 60, 8))
    # meadow and path
    horizon = .665 + .018 * math.sin(x * 5.2) + .01 * math.sin(x * 13)
    if y > horizon:
        way = .68 - (y - .74) * .62 + .05 * math.sin((y - .74) * 12)
        if y > .735 and abs(x - way) < .022 + (y - .735) * .26:
            return "path", mix((206, 180, 132), (178, 150, 106), noise(x, y, 40, 9))
        if y > .78 and hash01(int(x * 70), int(y * 70), 11) > .955:
            cx, cy = (int(x * 70) + .5) / 70, (int(y * 70) + .5) / 70
            if math.hypot(x - cx, y - cy) < .0056:
                return "flower", [(240, 90, 110), (250, 220, 90), (250, 250, 250)][int(hash01(int(x * 70), int(y * 70), 12) * 3)]
        depth = (y - horizon) / (1 - horizon)
        return "meadow", mix(mix((150, 188, 96), (82, 140, 58), depth), (60, 110, 48), .5 * noise(x, y * 2.2, 46, 13))
    # mountains
    far = ridge(x, .66, .26, 21)
    if y > far:
        if y < far + .075 * (.5 + noise(x, y, 30, 24)) and far < .50:
            return "snow", mix((250, 252, 255), (206, 218, 234), noise(x, y, 18, 25))
        return "mountain", mix((116, 130, 156), (150, 166, 176), (y - far) / .3 + .15 * noise(x, y, 24, 26))
    # sky
    if math.hypot(x - .86, y - .14) < .062:
        return "sun", (255, 236, 150)
    c = noise(x, y * 2.6, 4.2, 31) + .4 * noise(x, y * 2.6, 11, 32)
    base = mix((96, 160, 226), (206, 228, 244), min(1, y / .6))
    glow = max(0, 1 - math.hypot(x - .86, y - .14) / .3)
    base = mix(base, (255, 236, 190), .45 * glow)
    if c > .93:
        return "cloud", mix(base, (252, 252, 253), min(1, (c - .93) * 6))
    return "sky", base


def draw():
    rows, share = [], []
    count = [[dict() for _ in range(GRID)] for _ in range(GRID)]
    for py in range(SIZE):
        row = bytearray()
        for px in range(SIZE):
            acc = [0.0, 0.0, 0.0]
            for sy in (.25, .75):
                for sx in (.25, .75):
                    m, c = point((px + sx) / SIZE, (py + sy) / SIZE)
                    acc = [a + b for a, b in zip(acc, c)]
                    cell = count[py // CELL][px // CELL]
                    cell[m] = cell.get(m, 0) + 1
            row += bytes(max(0, min(255, round(a / 4))) for a in acc)
        rows.append(bytes(row))
    total = CELL * CELL * 4
    for r in range(GRID):
        for c in range(GRID):
            share.append({m: n / total for m, n in count[r][c].items()})
    return rows, share


def write_png(path, rows):
    def chunk(tag, data):
        return struct.pack(">I", len(data)) + tag + data + struct.pack(">I", zlib.crc32(tag + data))
    raw = b"".join(b"\0" + r for r in rows)
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", SIZE, len(rows), 8, 2, 0, 0, 0))
                + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b""))


def tokens(share):
    rng = random.Random(2026)
    unit = lambda n: [rng.gauss(0, 1) / math.sqrt(n) for _ in range(n)]
    centre = {m: [[2.6 * x for x in unit(D)] for _ in range(G)] for m in MATERIALS}
    value = {m: [unit(D) for _ in range(G)] for m in MATERIALS}
    ask = [[sum(w * centre[m][h * G // H][i] for m, w in WEIGHT.items()) for i in range(D)] for h in range(H)]
    norm = [math.sqrt(sum(x * x for x in a)) for a in ask]
    ask = [[4.5 * x / n for x in a] for a, n in zip(ask, norm)]
    n, s = GRID * GRID, PRE + GRID * GRID + POST
    q, k, v, k_rope = [], [], [], []
    for t in range(s):
        i = t - PRE
        visual = 0 <= i < n
        mixed = share[i] if visual else {}
        busy = -sum(p * math.log(p) for p in mixed.values()) if visual else 0
        for g in range(G):
            if visual:
                row = i // GRID / GRID - .5, i % GRID / GRID - .5
                kk = [sum(p * centre[m][g][j] for m, p in mixed.items()) + .5 * row[j % 2] * (j < 8)
                      + (.10 + .25 * busy) * rng.gauss(0, 1) for j in range(D)]
                vv = [(.7 + .6 * busy) * (sum(p * value[m][g][j] for m, p in mixed.items())
                      + (.04 + .10 * busy) * rng.gauss(0, 1)) for j in range(D)]
            else:
                kk, vv = [.6 * rng.gauss(0, 1) for _ in range(D)], [.2 * rng.gauss(0, 1) for _ in range(D)]
            k += kk
            v += vv
            for j in range(D):  # rotary embedding, halves paired
                a, b = kk[j % (D // 2)], kk[j % (D // 2) + D // 2]
                w = t * 10000 ** (-(j % (D // 2)) * 2 / D)
                k_rope.append(a * math.cos(w) - b * math.sin(w) if j < D // 2 else a * math.sin(w) + b * math.cos(w))
        for h in range(H):
            text = t >= PRE + n
            q += [(ask[h][j] if text else 0) + .5 * rng.gauss(0, 1) for j in range(D)]
    code = [0] * PRE + [1] * n + [3] * (POST - 4) + [0] * 4
    return s, code, q, k, k_rope, v


def write_safetensors(path, tensors, meta):
    header, body = {"__metadata__": meta}, b""
    for name, (dtype, shape, values) in tensors.items():
        data = struct.pack(f"<{len(values)}{'e' if dtype == 'F16' else 'B'}", *values)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)


rows, share = draw()
write_png(os.path.join(HERE, "sample.png"), rows)
s, code, q, k, k_rope, v = tokens(share)
write_safetensors(os.path.join(HERE, "sample.safetensors"),
                  {"q": ("F16", [s, H, D], q), "k": ("F16", [s, G, D], k), "k_rope": ("F16", [s, G, D], k_rope),
                   "v": ("F16", [s, G, D], v), "visual": ("U8", [s], code)},
                  {"grid": f"{GRID}x{GRID}", "made_by": "make_sample.py"})
