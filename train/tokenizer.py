"""SmolLM2's byte-level BPE, read from the keys of its GGUF file.

Owns: text -> ids with special tokens parsed only where asked. Written for the ASCII text used in
training; digits are single tokens, as in llama.cpp's `smollm` pre-tokeniser."""
import re

SPLIT = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d|\d| ?[^\W\d_]+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
SPECIAL = re.compile(r"(<\|im_start\|>|<\|im_end\|>)")


def byte_chars():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, extra = {}, 0
    for b in range(256):
        if b in keep:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + extra)
            extra += 1
    return table


class Tokenizer:
    def __init__(self, keys):
        self.tokens = keys["tokenizer.ggml.tokens"][1][1]
        self.ids = {t: i for i, t in enumerate(self.tokens)}
        self.rank = {tuple(m.split(" ")): i for i, m in enumerate(keys["tokenizer.ggml.merges"][1][1])}
        self.enc = byte_chars()
        self.dec = {c: b for b, c in self.enc.items()}
        self.cache = {}

    def word(self, s):
        if s not in self.cache:
            parts = [self.enc[b] for b in s.encode()]
            while len(parts) > 1:
                pairs = [(self.rank.get((parts[i], parts[i + 1]), 1 << 30), i) for i in range(len(parts) - 1)]
                r, i = min(pairs)
                if r == 1 << 30:
                    break
                parts[i:i + 2] = [parts[i] + parts[i + 1]]
            self.cache[s] = [self.ids[p] for p in parts]
        return self.cache[s]

    def encode(self, text, special=True):
        out = []
        for piece in (SPECIAL.split(text) if special else [text]):
            if special and SPECIAL.fullmatch(piece):
                out.append(self.ids[piece])
            else:
                for m in SPLIT.finditer(piece):
                    out += self.word(m.group())
        return out

    def decode(self, ids):
        s = "".join(self.tokens[i] for i in ids if i > 16)
        return bytes(self.dec.get(c, 63) for c in s).decode("utf-8", "replace")
