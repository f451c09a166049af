"""Reads and writes safetensors files with numpy: f16, f32 and i8, nothing else."""
import json
import struct

import numpy as np

KINDS = {"F32": "<f4", "F16": "<f2", "I8": "i1"}


class SafetensorsError(ValueError):
    pass


def load(path):
    """-> ({name: array}, metadata)"""
    with open(path, "rb") as f:
        data = f.read()
    if len(data) < 8 or 8 + struct.unpack("<Q", data[:8])[0] > len(data):
        raise SafetensorsError("%s is cut off" % path)
    n = struct.unpack("<Q", data[:8])[0]
    try:
        head = json.loads(data[8:8 + n])
    except ValueError:
        raise SafetensorsError("%s has no readable header" % path)
    body, out = memoryview(data)[8 + n:], {}
    meta = head.pop("__metadata__", {})
    for name, t in head.items():
        a, b = t["data_offsets"]
        if t["dtype"] not in KINDS or not 0 <= a <= b <= len(body):
            raise SafetensorsError("%s: bad tensor %s" % (path, name))
        out[name] = np.frombuffer(body[a:b], KINDS[t["dtype"]]).reshape(t["shape"])
    return out, meta


def save(path, arrays, meta):
    names = {np.dtype(v): k for k, v in KINDS.items()}
    head, off = {"__metadata__": dict(sorted(meta.items()))}, 0
    for name in sorted(arrays):
        a = arrays[name]
        head[name] = {"dtype": names[a.dtype], "shape": list(a.shape), "data_offsets": [off, off + a.nbytes]}
        off += a.nbytes
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(arrays):
            f.write(np.ascontiguousarray(arrays[name]).tobytes())
