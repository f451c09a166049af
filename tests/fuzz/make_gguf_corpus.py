#!/usr/bin/env python3
"""Writes the committed seed corpus of the GGUF fuzzer: small good files of both vocabularies and one file
for each kind of lie the reader must see through."""
import os
import struct

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus", "gguf")
U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
FMT = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def text(s):
    s = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(s)) + s


def value(kind, v):
    return text(v) if kind == STR else struct.pack("<" + FMT[kind], v)


def kv(key, kind, v):
    if isinstance(v, list):
        return text(key) + struct.pack("<IIQ", ARR, kind, len(v)) + b"".join(value(kind, x) for x in v)
    return text(key) + struct.pack("<I", kind) + value(kind, v)


def tensor(name, ne, kind, offset):
    return text(name) + struct.pack("<I", len(ne)) + b"".join(struct.pack("<Q", n) for n in ne) + struct.pack("<IQ", kind, offset)


def raw(kvs=(), tensors=(), data=b"", version=3, n_kv=None, n_tensor=None, align=32):
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors) if n_tensor is None else n_tensor,
                                 len(kvs) if n_kv is None else n_kv) + b"".join(kvs) + b"".join(tensors)
    return head + bytes(-len(head) % align) + data if tensors else head


arch = kv("general.architecture", STR, "llama")
bpe = [arch, kv("tokenizer.ggml.model", STR, "gpt2"), kv("tokenizer.ggml.pre", STR, "qwen2"),
       kv("tokenizer.ggml.tokens", STR, ["a", "b", "ab", "<|end|>"]), kv("tokenizer.ggml.merges", STR, ["a b"]),
       kv("tokenizer.ggml.token_type", I32, [1, 1, 1, 3]), kv("tokenizer.ggml.eos_token_id", U32, 3)]
spm = [arch, kv("tokenizer.ggml.model", STR, "llama"),
       kv("tokenizer.ggml.tokens", STR, ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]),
       kv("tokenizer.ggml.scores", F32, [0.0] * 259), kv("tokenizer.ggml.token_type", I32, [2, 3, 3] + [6] * 256)]
every = [kv(f"k{k}", k, 1) for k in FMT] + [kv(f"a{k}", k, [1, 0, 1]) for k in FMT] + [kv("s", STR, "text"), kv("as", STR, ["x", ""])]
two = [tensor("a", [4, 2], 0, 0), tensor("b", [32], 8, 32)]
files = {
    "bpe": raw(bpe), "spm": raw(spm), "every-kind": raw(every), "tensors": raw([arch], two, bytes(32 + 34)),
    "version-2": raw(bpe, version=2), "empty": raw(),
    "aligned-64": raw([kv("general.alignment", U32, 64)], [tensor("a", [1], 0, 0), tensor("b", [1], 0, 64)], bytes(68), align=64),
    "token-twice": raw(bpe[:3] + [kv("tokenizer.ggml.tokens", STR, ["a", "a"]), bpe[4]]),
    "token-zero": raw(bpe[:3] + [kv("tokenizer.ggml.tokens", STR, ["a", "a\0b", ""]), bpe[4]]),
    "scores-short": raw(bpe + [kv("tokenizer.ggml.scores", F32, [1.0])]),
    "id-outside": raw(bpe[:-1] + [kv("tokenizer.ggml.eos_token_id", U32, 4)]),
    "kv-huge": raw(n_kv=2**62), "tensors-huge": raw(n_tensor=2**63), "version-1": raw(version=1), "version-big": raw(version=3 << 24),
    "string-huge": raw([struct.pack("<Q", 2**64 - 1)]), "key-zero": raw([kv(b"a\0b", U8, 1)]), "key-twice": raw([arch, arch]),
    "array-huge": raw([text("a") + struct.pack("<IIQ", ARR, U64, 2**61 + 1)]),
    "array-nested": raw([text("a") + struct.pack("<IIQ", ARR, ARR, 1) + bytes(16)]),
    "strings-huge": raw([text("a") + struct.pack("<IIQ", ARR, STR, 2**60)]),
    "alignment-3": raw([kv("general.alignment", U32, 3)], two, bytes(66)),
    "ne-overflow": raw([], [tensor("a", [2**32, 2**32, 2], 0, 0)], bytes(64)),
    "dims-9": raw([], [text("a") + struct.pack("<I", 9) + bytes(84)]),
    "type-gone": raw([], [tensor("a", [32], 4, 0)], bytes(64)),
    "offset-wild": raw([], [tensor("a", [1], 0, 2**63)], bytes(64)),
    "tensor-twice": raw([], [tensor("a", [8], 0, 0), tensor("a", [8], 0, 32)], bytes(64)),
    "tensor-cut": raw([], [tensor("a", [1024], 0, 0)], bytes(64)),
}
os.makedirs(HERE, exist_ok=True)
for name, data in files.items():
    with open(os.path.join(HERE, name), "wb") as f:
        f.write(data)
print(f"{len(files)} files in {os.path.relpath(HERE)}")
