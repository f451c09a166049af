#!/usr/bin/env python3
"""GGUF: writing and reading back, alignment, q8_0 and q4_1, files that are cut off."""
import io
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
from model_test import check, done, raises      # noqa: E402
import numpy as np      # noqa: E402
import model_gguf as G      # noqa: E402

rng = np.random.RandomState(1)
a = rng.randn(5, 64).astype(np.float32)
b = rng.randn(7).astype(np.float32)
keys = {"general.architecture": (G.STRING, "llama"), "x.u": (G.U32, 7), "x.f": (G.FLOAT32, 0.5), "x.b": (G.BOOL, True),
        "x.s": (G.ARRAY, (G.STRING, ["a", "\u0120b", ""])), "x.n": (G.ARRAY, (G.I32, [1, -2]))}


def bytes_of():
    f = io.BytesIO()
    G.write(f, keys, [("a", [5, 64], G.Q8_0, lambda: G.encode(a, G.Q8_0)), ("b", [7], G.F32, lambda: G.encode(b, G.F32)),
                      ("c", [5, 64], G.F16, lambda: G.encode(a, G.F16))])
    return f.getvalue()


data = bytes_of()
check(data == bytes_of(), "the same bytes every time")
r = G.Reader(data)
check(r.keys == keys and list(r.keys) == list(keys), "keys come back in their order")
check((r.array("b") == b).all(), "f32 exact")
check(np.abs(r.array("c") - a).max() < 2e-3, "f16")
err = np.abs(r.array("a") - a).reshape(-1, 32).max(1)
check((err <= np.abs(a).reshape(-1, 32).max(1) / 127 * .51 + 1e-3).all(), "q8_0 within half a step")
check(len(data) % 32 == 0, "aligned")
check(G.Reader(data).tensors["a"][1] == G.Q8_0, "type")
zero = G.dequantise(G.quantise_q8_0(np.zeros((1, 32), np.float32)), G.Q8_0)
check((zero == 0).all(), "a block of zeros")
half = np.full((1, 32), 0.5, np.float32)
half[0, 0] = 127
check(G.dequantise(G.quantise_q8_0(half), G.Q8_0)[1] == 1.0, "halves are rounded away from zero")
block = np.array([2.0, -1.0], "<f2").tobytes() + bytes(range(16))
x = G.dequantise(block, G.Q4_1)
check(x[0] == -1 and x[15] == 2 * 15 - 1 and x[16] == -1 and len(x) == 32, "q4_1: low nibbles first")
for cut in range(0, len(data), 7):
    try:
        G.Reader(data[:cut])
    except (G.GgufError, UnicodeDecodeError):
        continue
    check(cut >= len(data) - 32, "cut at %d was noticed" % cut)
raises(lambda: G.Reader(b"GGML" + data[4:]), G.GgufError, "other magic")
raises(lambda: G.write(io.BytesIO(), {}, [("a", [33], G.Q8_0, lambda: b"")]), G.GgufError, "rows that fill no block")
raises(lambda: G.write(io.BytesIO(), {}, [("a", [32], G.F32, lambda: b"")]), G.GgufError, "too few bytes")
done()
