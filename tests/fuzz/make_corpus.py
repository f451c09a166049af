#!/usr/bin/env python3
"""Writes the committed seed corpus of the safetensors fuzzer: a few small good files and one file for
each kind of lie the reader must see through."""
import json
import os
import struct

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus", "safetensors")


def entry(dtype, shape, a, b):
    return {"dtype": dtype, "shape": shape, "data_offsets": [a, b]}


def raw(header, body=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


two = {"a": entry("F32", [2, 2], 0, 16), "b": entry("U8", [3], 16, 19)}
body = struct.pack("<4f3B", 1, -2, .5, 3e38, 0, 1, 2)
every = {}
at = 0
for name, size in (("F64", 8), ("I64", 8), ("U64", 8), ("F32", 4), ("I32", 4), ("U32", 4), ("F16", 2), ("BF16", 2),
                   ("I16", 2), ("U16", 2), ("I8", 1), ("U8", 1), ("BOOL", 1), ("F8_E4M3", 1), ("F8_E5M2", 1)):
    every[name] = entry(name, [3], at, at + 3 * size)
    at += 3 * size
files = {
    "good": raw(two, body),
    "metadata": raw({"__metadata__": {"format": "pt", "grid": "2x2"}, **two}, body),
    "every-dtype": raw(every, bytes(range(at))),
    "scalar-and-empty": raw({"s": entry("F64", [], 0, 8), "e": entry("F32", [0, 7], 8, 8)}, bytes(8)),
    "no-tensors": raw({}),
    "padded": raw(json.dumps(two).encode() + b"   ", body),
    "length-huge": raw(two, body, 2**63),
    "length-past-end": raw(two, body, 9999),
    "overlap": raw({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, bytes(6)),
    "hole": raw({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 6, 10)}, bytes(10)),
    "past-end": raw({"a": entry("U8", [9], 0, 9)}, bytes(4)),
    "shape-huge": raw({"a": entry("F32", [2**40, 2**40, 4], 0, 16)}, bytes(16)),
    "twin": raw(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', b"ab"),
    "deep": raw(b'{"a":' + b"[" * 300),
    "escape": raw(b'{"\\u0061\\ud83d\\ude00":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"a"),
    "zero-escape": raw(b'{"a\\u0000b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"a"),
    "float-offset": raw(b'{"a":{"dtype":"U8","shape":[1e0],"data_offsets":[0,1.0]}}', b"a"),
}
os.makedirs(HERE, exist_ok=True)
for name, data in files.items():
    with open(os.path.join(HERE, name), "wb") as f:
        f.write(data)
print(f"{len(files)} files in {os.path.relpath(HERE)}")
