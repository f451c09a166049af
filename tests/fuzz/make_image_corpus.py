#!/usr/bin/env python3
"""Writes the committed seed corpus of the picture fuzzer: a tiny good file of each format and kind and
a file for each lie about sizes.  Needs pillow and numpy; files that exist are left alone."""
import io
import pathlib
import struct
import zlib

import numpy as np
from PIL import Image

OUT = pathlib.Path(__file__).resolve().parent / "corpus" / "image"


def save(im, **how):
    b = io.BytesIO()
    im.save(b, **how)
    return b.getvalue()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(w, h, bits, colour, raw, lace=0, extra=b""):
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, bits, colour, 0, 0, lace))
            + extra + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b""))


def jpeg_size(data, w, h):
    at = data.index(b"\xff\xc0") if b"\xff\xc0" in data else data.index(b"\xff\xc2")
    return data[:at + 5] + struct.pack(">HH", h, w) + data[at + 9:]


rng = np.random.RandomState(1)
rgb = Image.fromarray(rng.randint(0, 256, (9, 11, 3)).astype(np.uint8))
rgba = Image.fromarray(rng.randint(0, 256, (7, 5, 4)).astype(np.uint8), "RGBA")
cmyk = Image.fromarray(rng.randint(0, 256, (9, 11, 4)).astype(np.uint8), "CMYK")
jpeg = save(rgb, format="JPEG", quality=30)
gif = save(rgb.quantize(8), format="GIF")
webp = save(rgb, format="WEBP", quality=20)
files = {
    "png-rgb": save(rgb, format="PNG"),
    "png-rgba": save(rgba, format="PNG"),
    "png-palette": save(rgb.quantize(5), format="PNG", bits=4),
    "png-grey16": png(2, 2, 16, 0, bytes([0, 0, 1, 2, 3, 0, 9, 9, 9, 9])),
    "png-interlaced": png(1, 1, 8, 2, bytes([0, 1, 2, 3]), 1),
    "png-no-palette": png(2, 1, 8, 3, bytes([0, 1, 2])),
    "png-zero": png(0, 4, 8, 2, b""),
    "png-bomb": png(60000, 60000, 8, 2, bytes(1000)),
    "png-side": png(2**31 - 1, 1, 8, 0, bytes(10)),
    "png-short-data": png(30, 30, 8, 2, bytes(100)),
    "png-text-bomb": png(1, 1, 8, 0, b"\0\1", 0, chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(10**6)))),
    "jpeg": jpeg,
    "jpeg-grey": save(rgb.convert("L"), format="JPEG", quality=20),
    "jpeg-cmyk": save(cmyk, format="JPEG", quality=20),
    "jpeg-progressive": save(rgb, format="JPEG", quality=20, progressive=True),
    "jpeg-zero": jpeg_size(jpeg, 0, 9),
    "jpeg-larger": jpeg_size(jpeg, 300, 300),
    "jpeg-bomb": jpeg_size(jpeg, 65500, 65500),
    "webp-lossy": webp,
    "webp-lossless": save(rgb, format="WEBP", lossless=True),
    "webp-alpha": save(rgba, format="WEBP", quality=20),
    "webp-animated": save(rgba, format="WEBP", save_all=True, quality=20,
                          append_images=[rgba.transpose(Image.Transpose.ROTATE_180)]),
    "gif": gif,
    "gif-interlaced": save(rgb.convert("L"), format="GIF", interlace=1),
    "gif-bomb": gif[:6] + struct.pack("<HH", 65535, 65535) + gif[10:],
    "gif-animated": save(rgb.quantize(4), format="GIF", save_all=True, append_images=[rgb.rotate(180).quantize(4)]),
    "empty": b"",
    "text": b"not a picture\n",
}
OUT.mkdir(parents=True, exist_ok=True)
for name, data in files.items():
    if not (OUT / name).exists():
        (OUT / name).write_bytes(data)
