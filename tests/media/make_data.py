#!/usr/bin/env python3
"""Makes tests/data/media: small pictures in every format and what Pillow 12.x reads from them and
resizes them to, as hashes; and a compact copy of the golden preprocessing vectors.

    python3 tests/media/make_data.py [GOLDEN_DIR]

Needs numpy and pillow 12.3 (newer ones resize in another order).  Fixed seeds; the pictures are only
written when missing, since encoders change between versions while the decoders' output must not.
"""
import hashlib
import io
import json
import math
import pathlib
import shutil
import struct
import sys
import warnings
import zlib

import numpy as np
import PIL
from PIL import Image

warnings.filterwarnings("ignore")
assert PIL.__version__.startswith("12."), "pillow 12.x is the reference"
OUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "media"
DEC = OUT / "decode"


def picture(w, h, channels, seed):
    """Waves with some noise: edges for the resampler, texture for the codecs."""
    rng = np.random.RandomState(seed)
    y, x = np.mgrid[0:h, 0:w].astype(np.float64)
    out = np.zeros((h, w, channels))
    for c in range(channels):
        a, b, p = rng.uniform(0.05, 0.6, 3)
        out[..., c] = 127 + 90 * np.sin(a * x + p * 6) * np.cos(b * y + p) + rng.normal(0, 18, (h, w))
        out[(x - w / 3) ** 2 + (y - h / 2) ** 2 < (h / 4) ** 2, c] = rng.randint(0, 256)
    return np.clip(out, 0, 255).astype(np.uint8)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(w, h, bits, colour, rows, extra=()):
    raw = b"".join(b"\0" + r for r in rows)
    head = struct.pack(">IIBBBBB", w, h, bits, colour, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + b"".join(chunk(k, d) for k, d in extra)
            + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b""))


def png_interlaced(img):
    """Adam7 of an 8-bit RGB array; Pillow cannot write it."""
    h, w, _ = img.shape
    raw = b""
    for x0, y0, dx, dy in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4),
                           (1, 0, 2, 2), (0, 1, 1, 2)):
        part = img[y0::dy, x0::dx]
        if part.size:
            raw += b"".join(b"\0" + r.tobytes() for r in part)
    head = struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 1)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw, 9))
            + chunk(b"IEND", b""))


def gif(sw, sh, left, top, w, h, idx, table=None, local=None, transparent=None):
    """One frame; every code is 8 bits wide because the table is cleared often enough."""
    def flag(t):
        return 0x80 | (int(math.log2(len(t) // 3)) - 1) if t else 0
    o = b"GIF89a" + struct.pack("<HH", sw, sh) + bytes([flag(table), 0, 0]) + (table or b"")
    if transparent is not None:
        o += b"\x21\xf9\x04" + bytes([1, 0, 0, transparent, 0])
    o += b"\x2c" + struct.pack("<HHHH", left, top, w, h) + bytes([flag(local)]) + (local or b"")
    codes = bytearray([128])
    for n, v in enumerate(idx, 1):
        codes.append(v)
        if n % 100 == 0:
            codes.append(128)
    codes.append(129)
    o += b"\x07"
    for i in range(0, len(codes), 255):
        o += bytes([len(codes[i:i + 255])]) + bytes(codes[i:i + 255])
    return o + b"\0\x3b"


def pictures():
    rgb, rgba = Image.fromarray(picture(37, 29, 3, 1)), Image.fromarray(picture(33, 21, 4, 2), "RGBA")
    grey = Image.fromarray(picture(35, 23, 1, 3)[..., 0], "L")
    yield "rgb.png", dict(im=rgb)
    yield "rgba.png", dict(im=rgba)
    yield "grey.png", dict(im=grey)
    yield "grey-alpha.png", dict(im=rgba.convert("LA"))
    yield "palette.png", dict(im=rgb.quantize(64))
    yield "palette-4bit.png", dict(im=rgb.quantize(13), bits=4)
    yield "bits1.png", dict(im=grey.convert("1"))
    yield "grey16.png", dict(raw=png(5, 2, 16, 0, [struct.pack(">5H", 0, 1, 255, 256, 65535),
                                                   struct.pack(">5H", 128, 300, 32768, 77, 254)]))
    row = np.random.RandomState(4).bytes
    yield "grey2.png", dict(raw=png(9, 3, 2, 0, [row(3) for _ in range(3)]))
    yield "grey4.png", dict(raw=png(9, 3, 4, 0, [row(5) for _ in range(3)]))
    yield "rgb16.png", dict(raw=png(7, 4, 16, 2, [row(42) for _ in range(4)]))
    yield "rgba16.png", dict(raw=png(7, 4, 16, 6, [row(56) for _ in range(4)]))
    yield "grey-alpha16.png", dict(raw=png(7, 4, 16, 4, [row(28) for _ in range(4)]))
    yield "palette-short.png", dict(raw=png(6, 1, 8, 3, [bytes([0, 1, 2, 200, 255, 1])],
                                            [(b"PLTE", bytes([10, 20, 30, 40, 50, 60])),
                                             (b"tRNS", b"\0\x80")]))
    yield "grey-trns.png", dict(raw=png(4, 1, 8, 0, [bytes([0, 1, 2, 200])], [(b"tRNS", b"\0\1")]))
    yield "interlaced.png", dict(raw=png_interlaced(picture(19, 13, 3, 5)))
    for name, sub in (("444", 0), ("422", 1), ("420", 2)):
        yield f"jpeg-{name}.jpg", dict(im=rgb, quality=85, subsampling=sub)
    yield "jpeg-progressive.jpg", dict(im=rgb, quality=70, progressive=True)
    yield "jpeg-grey.jpg", dict(im=grey, quality=80)
    yield "jpeg-cmyk.jpg", dict(im=Image.fromarray(picture(31, 27, 4, 6), "CMYK"), quality=80)
    # Written once with libjpeg's own calls: YCCK, CMYK without Adobe's mark, progressive arithmetic code.
    for name in ("ycck", "cmyk-plain", "cmyk-arithmetic"):
        yield f"jpeg-{name}.jpg", dict(kept=True)
    yield "jpeg-rgb.jpg", dict(im=rgb, quality=90, keep_rgb=True)
    yield "jpeg-restart.jpg", dict(im=rgb, quality=75, restart_marker_blocks=2)
    exif = Image.Exif()
    exif[0x112] = 6
    yield "jpeg-exif6.jpg", dict(im=rgb, quality=75, exif=exif)
    yield "lossy.webp", dict(im=rgb, quality=60)
    yield "lossless.webp", dict(im=rgb, lossless=True)
    yield "alpha.webp", dict(im=rgba, quality=70)
    yield "animated.webp", dict(im=rgba, save_all=True, quality=70, duration=50,
                                append_images=[Image.fromarray(picture(33, 21, 4, 7), "RGBA")])
    yield "plain.gif", dict(im=rgb.quantize(100))
    yield "interlaced.gif", dict(im=grey, interlace=1)
    yield "animated.gif", dict(im=rgb.quantize(32), save_all=True, duration=50,
                               append_images=[rgb.rotate(90, expand=False).quantize(32)])
    table = bytes([1, 2, 3, 40, 50, 60, 70, 80, 90, 100, 110, 120])
    yield "inset.gif", dict(raw=gif(7, 5, 2, 1, 3, 2, [1, 2, 3, 0, 1, 2], table))
    yield "inset-transparent.gif", dict(raw=gif(7, 5, 2, 1, 3, 2, [1, 2, 3, 0, 1, 2], table, None, 2))
    yield "outside.gif", dict(raw=gif(3, 2, 2, 1, 3, 3, [1, 2, 3] * 3, table))
    yield "local-table.gif", dict(raw=gif(3, 2, 0, 0, 3, 2, [1, 0, 1, 0, 1, 100], table, table[::-1]))
    yield "no-table.gif", dict(raw=gif(3, 2, 0, 0, 3, 2, [1, 0, 99, 5, 7, 100]))


def sha(data):
    return hashlib.sha256(data).hexdigest()


def read(path):
    return Image.open(path).convert("RGB")


def make_decode():
    lines = []
    for name, how in pictures():
        path = DEC / name
        if not path.exists():
            if "raw" in how:
                path.write_bytes(how["raw"])
            else:
                how["im"].save(path, **{k: v for k, v in how.items() if k != "im"})
        im = read(path)
        lines.append(f"{name} {im.width} {im.height} {sha(im.tobytes())}")
    (OUT / "decode.txt").write_text("\n".join(lines) + "\n")


SIZES = [(1, 1), (3, 2), (7, 90), (14, 14), (28, 56), (37, 29), (37, 60), (80, 29), (104, 104),
         (208, 99), (224, 224), (336, 252), (384, 384), (13, 400), (500, 11)]
FILTERS = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "lanczos": Image.LANCZOS}


def make_resize():
    lines = []
    for name in ("rgb.png", "source.png"):
        path = DEC / name if name == "rgb.png" else OUT / name
        if not path.exists():
            Image.fromarray(picture(181, 143, 3, 8)).quantize(24).save(path, bits=8, optimize=True)
        im = read(path)
        for w, h in SIZES:
            for f, code in FILTERS.items():
                lines.append(f"{name} {f} {w} {h} {sha(im.resize((w, h), code).tobytes())}")
    (OUT / "resize.txt").write_text("\n".join(lines) + "\n")


def clip_pixels(im, tile, aspect):
    """The four ways of preprocess.h; normalised float32, planar."""
    mean = (0.48145466, 0.4578275, 0.40821073)
    if aspect == "crop":
        a, b = min(im.size), max(im.size)
        longer = int(tile * b / a)
        im = im.resize((tile, longer) if im.width <= im.height else (longer, tile), Image.BICUBIC)
        x, y = (im.width - tile) // 2, (im.height - tile) // 2
        im = im.crop((x, y, x + tile, y + tile))
    elif aspect == "letterbox":
        w, h = np.float32(im.width), np.float32(im.height)
        scale = min(np.float32(tile) / w, np.float32(tile) / h)
        im = im.resize((min(math.ceil(w * scale), tile), min(math.ceil(h * scale), tile)), Image.BICUBIC)
        sq = Image.new("RGB", (tile, tile), tuple(int(m * 255) for m in mean))
        sq.paste(im, ((tile - im.width) // 2, (tile - im.height) // 2))
        im = sq
    elif aspect == "pad":
        n = max(im.size)
        sq = Image.new("RGB", (n, n), tuple(int(m * 255) for m in mean))
        sq.paste(im, ((n - im.width) // 2, (n - im.height) // 2))
        im = sq.resize((tile, tile), Image.BICUBIC)
    else:
        im = im.resize((tile, tile), Image.BICUBIC)
    x = (np.asarray(im).astype(np.float64) * (1 / 255)).astype(np.float32)
    x = (x - np.array(mean, np.float32)) / np.array((0.26862954, 0.26130258, 0.27577711), np.float32)
    return np.ascontiguousarray(x.transpose(2, 0, 1))


def make_clip():
    lines = []
    for name in ("rgb.png", "palette-4bit.png", "grey-alpha.png", "interlaced.png"):
        for tile in (56, 101):
            for aspect in ("crop", "pad", "letterbox", "squash"):
                x = clip_pixels(read(DEC / name), tile, aspect)
                lines.append(f"{name} {aspect} {tile} {sha(x.tobytes())}")
    (OUT / "clip.txt").write_text("\n".join(lines) + "\n")


def tensors(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    return {k: data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]
            for k, v in head.items() if k != "__metadata__"}


def make_golden(golden):
    """Sizes as tables, two pictures a model with the hash of the tensor Hugging Face made of them."""
    rows = []
    for model, sets in (("llava-ov", ("this-checkpoint", "released-384")),
                        ("qwen2.5-vl", ("this-checkpoint", "released"))):
        sizes = json.loads((golden / "vectors" / model / "sizes.json").read_text())
        for s in sets:
            keys = [k for k in sizes[s]["rows"][0]]
            rows.append(f"# {model} {s}: {' '.join(keys)}")
            rows += [" ".join(str(r[k]) for k in keys) for r in sizes[s]["rows"]]
    (OUT / "sizes.txt").write_text("\n".join(rows) + "\n")
    lines = []
    for model, case, mode, files in (("llava-ov", "jpeg", "single", ["wide.jpg"]),
                                     ("llava-ov", "multi", "several", ["small.png"]),
                                     ("qwen2.5-vl", "jpeg", "single", ["wide.jpg"]),
                                     ("qwen2.5-vl", "small", "single", ["small.png"])):
        t = tensors(golden / "vectors" / model / f"{case}.safetensors")
        pixels = t["pixel_values"]
        if case == "multi":  # the second picture of two
            pixels = pixels[len(pixels) // 2:]
        for f in files:
            shutil.copyfile(golden / "vectors" / model / "images" / f, OUT / f"{model}-{f}")
            lines.append(f"{model} {mode} {model}-{f} {sha(pixels)}")
    (OUT / "golden.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    DEC.mkdir(parents=True, exist_ok=True)
    make_decode()
    make_resize()
    make_clip()
    if len(sys.argv) > 1:
        make_golden(pathlib.Path(sys.argv[1]))
