#!/usr/bin/env python3
"""The protobuf walker: a hand-made onnx file, truncated input, odd wire types."""
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
from model_test import check, done, raises      # noqa: E402
import numpy as np      # noqa: E402
import model_onnx as O      # noqa: E402


def vi(x):
    out = b""
    while x > 127:
        out += bytes([x & 127 | 128])
        x >>= 7
    return out + bytes([x])


def ld(num, b):
    return vi(num << 3 | 2) + vi(len(b)) + b


def tensor(name, a, kind, raw=True):
    b = b"".join(vi(1 << 3) + vi(d) for d in a.shape) + vi(2 << 3) + vi(kind) + ld(8, name.encode())
    if raw:
        return b + ld(9, a.tobytes())
    if kind == O.FLOAT:
        return b + ld(4, a.tobytes())
    return b + ld(5, b"".join(vi(int(x) & (1 << 64) - 1) for x in a.flatten()))


f = np.arange(6, dtype="<f4").reshape(2, 3)
q = np.array([[-3, 7], [127, -128]], "i1")
node = ld(1, b"in") + ld(1, b"w_quantized") + ld(3, b"/n") + ld(4, b"MatMulInteger")
graph = ld(1, node) + ld(5, tensor("f", f, O.FLOAT)) + ld(5, tensor("g", f, O.FLOAT, False)) \
    + ld(5, tensor("q", q, O.INT8)) + ld(5, tensor("z", q, O.INT8, False))
model = vi(1 << 3) + vi(8) + ld(7, graph)
nodes, inits = O.read(model)
check(nodes == [("MatMulInteger", "/n", ["in", "w_quantized"])], "nodes")
check((inits["f"] == f).all() and (inits["g"] == f).all(), "floats, raw and packed")
check((inits["q"] == q).all() and (inits["z"] == q).all(), "int8, raw and as negative varints")
for cut in range(1, len(model)):
    try:
        O.read(model[:cut])
    except (O.OnnxError, UnicodeDecodeError, ValueError):
        pass
check(True, "no cut of the file crashes the walker")
raises(lambda: O.read(b"\x3a\xff"), O.OnnxError, "length beyond the end")
raises(lambda: O.read(b"\x3b\x00"), O.OnnxError, "wire type 3")
raises(lambda: O.tensor(vi(8) + vi(4) + vi(16) + vi(O.FLOAT) + ld(9, b"\0" * 8)), O.OnnxError, "shape and bytes disagree")
raises(lambda: O.tensor(vi(16) + vi(11)), O.OnnxError, "unknown data type")
raises(lambda: O.clip_tower(model), O.OnnxError, "not a CLIP tower")
done()
