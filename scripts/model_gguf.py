"""Reads and writes GGUF version 3 files with numpy alone.

Owns: keys and tensors of a file kept in their order, dequantising q4_1 and q8_0, quantising
q8_0, and a writer whose bytes depend only on what it is given.
Refuses: other block types, big-endian files."""
import struct

import numpy as np

F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
U32, I32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
BLOCK = {F32: (1, 4), F16: (1, 2), Q4_1: (32, 20), Q8_0: (32, 34)}   # numbers, bytes
ALIGN = 32


class GgufError(ValueError):
    pass


class Reader:
    """keys: {name: (type, value)}, an array is (ARRAY, (item type, list)); tensors: {name: (shape, type, bytes)}
    with numpy's order of dimensions (rows first)."""

    def __init__(self, data):
        self.b, self.i = memoryview(data), 0
        if bytes(self.take(4)) != b"GGUF" or self.num("I") != 3:
            raise GgufError("not a GGUF version 3 file")
        n_tensors, n_keys = self.num("Q"), self.num("Q")
        self.keys, info = {}, []
        for _ in range(n_keys):
            name, kind = self.string(), self.num("I")
            self.keys[name] = (kind, self.value(kind))
        for _ in range(n_tensors):
            name = self.string()
            shape = [self.num("Q") for _ in range(self.num("I"))][::-1]
            info.append((name, shape, self.num("I"), self.num("Q")))
        start = (self.i + ALIGN - 1) // ALIGN * ALIGN
        self.tensors = {}
        for name, shape, kind, off in info:
            if kind not in BLOCK:
                raise GgufError("tensor type %d of %s" % (kind, name))
            n, size = BLOCK[kind]
            nbytes = int(np.prod(shape)) // n * size
            raw = self.b[start + off:start + off + nbytes]
            if len(raw) != nbytes:
                raise GgufError("%s is cut off" % name)
            self.tensors[name] = (shape, kind, raw)

    def take(self, n):
        if self.i + n > len(self.b):
            raise GgufError("the file ends in its header")
        self.i += n
        return self.b[self.i - n:self.i]

    def num(self, c):
        return struct.unpack("<" + c, self.take(struct.calcsize(c)))[0]

    def string(self):
        return bytes(self.take(self.num("Q"))).decode("utf-8", "surrogateescape")

    def value(self, kind):
        if kind in SCALARS:
            return self.num(SCALARS[kind])
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            item, n = self.num("I"), self.num("Q")
            return item, [self.value(item) for _ in range(n)]
        raise GgufError("key type %d" % kind)

    def array(self, name):
        shape, kind, raw = self.tensors[name]
        return dequantise(raw, kind).reshape(shape)


def dequantise(raw, kind):
    if kind == F32:
        return np.frombuffer(raw, "<f4").copy()
    if kind == F16:
        return np.frombuffer(raw, "<f2").astype(np.float32)
    b = np.frombuffer(raw, np.uint8).reshape(-1, BLOCK[kind][1])
    d = b[:, :2].copy().view("<f2").astype(np.float32)
    if kind == Q8_0:
        return (b[:, 2:].view(np.int8) * d).reshape(-1)
    m = b[:, 2:4].copy().view("<f2").astype(np.float32)
    q = np.concatenate([b[:, 4:] & 15, b[:, 4:] >> 4], 1)      # low nibbles are the first 16
    return (q * d + m).reshape(-1)


def quantise_q8_0(a):
    """ggml's reference: scale = max|x| / 127 kept as f16, round half away from zero."""
    x = np.ascontiguousarray(a, np.float32).reshape(-1, 32)
    d = np.abs(x).max(1, keepdims=True) / np.float32(127)
    inv = np.where(d > 0, np.float32(1) / np.where(d > 0, d, 1), 0).astype(np.float32)
    y = x * inv
    q = (np.sign(y) * np.floor(np.abs(y) + np.float32(0.5))).astype(np.int8)
    out = np.empty((len(x), 34), np.uint8)
    out[:, :2] = d.astype("<f2").view(np.uint8)
    out[:, 2:] = q.view(np.uint8)
    return out.tobytes()


def encode(a, kind):
    if kind == F32:
        return np.ascontiguousarray(a, "<f4").tobytes()
    if kind == F16:
        return np.ascontiguousarray(a, "<f4").astype("<f2").tobytes()
    if kind == Q8_0:
        return quantise_q8_0(a)
    raise GgufError("cannot write type %d" % kind)


def put_string(s):
    b = s.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(b)) + b


def put_value(kind, v):
    if kind == STRING:
        return put_string(v)
    if kind == ARRAY:
        item, items = v
        return struct.pack("<IQ", item, len(items)) + b"".join(put_value(item, x) for x in items)
    return struct.pack("<" + SCALARS[kind], v)


def write(f, keys, tensors, progress=lambda done, total: None):
    """keys: {name: (type, value)}; tensors: [(name, shape, type, function -> bytes)], written in order."""
    head, off = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(keys))], 0
    for name, (kind, v) in keys.items():
        head.append(put_string(name) + struct.pack("<I", kind) + put_value(kind, v))
    sizes = []
    for name, shape, kind, _ in tensors:
        n, size = BLOCK[kind]
        if shape[-1] % n:
            raise GgufError("rows of %s do not fill blocks of %d" % (name, n))
        head.append(put_string(name) + struct.pack("<I", len(shape)))
        head.append(struct.pack("<%dQ" % len(shape), *shape[::-1]) + struct.pack("<IQ", kind, off))
        sizes.append(int(np.prod(shape)) // n * size)
        off += (sizes[-1] + ALIGN - 1) // ALIGN * ALIGN
    head = b"".join(head)
    f.write(head + bytes(-len(head) % ALIGN))
    done = 0
    for (name, _, _, make), size in zip(tensors, sizes):
        raw = make()
        if len(raw) != size:
            raise GgufError("%s: %d bytes, expected %d" % (name, len(raw), size))
        f.write(raw)
        f.write(bytes(-size % ALIGN))
        done += size
        progress(done, off)
