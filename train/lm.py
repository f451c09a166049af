"""SmolLM2-135M in torch with low-rank changes on every linear layer, and the projector.

Owns: the decoder on GGUF weights (q and k are stored for interleaved RoPE and stay so), the
projector (layer norm, linear, GELU, linear: `v.post_ln`, `mm.0`, `mm.2` of the mmproj file), and
saving the trained part. Base weights are frozen; `merged` folds the low-rank part in."""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

N_LAYER, D, HEADS, KV, DH, FF, EPS, THETA = 30, 576, 9, 3, 64, 1536, 1e-5, 100000.0
LINEARS = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
HIDDEN = 1152
EMBED_STD = 0.136


def rms(x, w):
    return F.rms_norm(x, (D,), w, EPS)


def rope_table(pos):
    """pos [..., S] -> cos, sin [..., S, 32] of interleaved pairs."""
    inv = THETA ** (-torch.arange(0, DH, 2, dtype=torch.float32) / DH)
    a = pos.float()[..., None] * inv
    return a.cos(), a.sin()


def rope(x, cos, sin):
    """x [B, S, H, 64], pairs (2i, 2i+1)."""
    a, b = x.unflatten(-1, (DH // 2, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def lin(x, w, a, b):
    y = F.linear(x, w)
    return y if a is None else y + F.linear(F.linear(x, a), b)


def block(x, cos, sin, mask, n1, n2, wq, aq, bq, wk, ak, bk, wv, av, bv, wo, ao, bo, wg, ag, bg, wu, au, bu, wd, ad, bd):
    """One decoder layer. Plain products: torch's fused attention is several times slower backwards with a mask."""
    bsz, s, _ = x.shape
    y = rms(x, n1)
    q = rope(lin(y, wq, aq, bq).view(bsz, s, HEADS, DH), cos, sin)
    k = rope(lin(y, wk, ak, bk).view(bsz, s, KV, DH), cos, sin)
    v = lin(y, wv, av, bv).view(bsz, s, KV, DH)
    k = k[:, :, :, None].expand(-1, -1, -1, 3, -1).reshape(bsz, s, HEADS, DH)
    v = v[:, :, :, None].expand(-1, -1, -1, 3, -1).reshape(bsz, s, HEADS, DH)
    w = torch.matmul(q.transpose(1, 2) * DH ** -.5, k.permute(0, 2, 3, 1)) + mask
    y = torch.matmul(torch.softmax(w, -1), v.transpose(1, 2))
    x = x + lin(y.transpose(1, 2).reshape(bsz, s, D), wo, ao, bo)
    y = rms(x, n2)
    return x + lin(F.silu(lin(y, wg, ag, bg)) * lin(y, wu, au, bu), wd, ad, bd)


class Projector(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(768)
        self.a = nn.Linear(768, HIDDEN)
        self.b = nn.Linear(HIDDEN, D)
        nn.init.normal_(self.b.weight, std=EMBED_STD / (0.6 * HIDDEN ** 0.5))
        nn.init.zeros_(self.b.bias)

    def forward(self, x):
        return self.b(F.gelu(self.a(self.norm(x)), approximate="tanh"))


class Decoder(nn.Module):
    """forward(x [B,S,D], pos [B,S], mask [B,1,S,S] additive or None) -> normed hidden states."""

    def __init__(self, gguf, rank=32, scale=2.0, dtype=torch.bfloat16):
        super().__init__()
        self.rank, self.scale, self.dtype = rank, scale, dtype
        get = lambda k: torch.from_numpy(gguf.array(k))
        self.base = {}
        for i in range(N_LAYER):
            for n in LINEARS:
                self.base[i, n] = get("blk.%d.%s.weight" % (i, n)).to(dtype)
            for n in ("attn_norm", "ffn_norm"):
                self.base[i, n] = get("blk.%d.%s.weight" % (i, n)).to(dtype)
        self.embed = get("token_embd.weight").to(dtype)
        self.out_norm = get("output_norm.weight").to(dtype)
        self.A, self.B = nn.ParameterDict(), nn.ParameterDict()
        if rank:
            for i in range(N_LAYER):
                for n in LINEARS:
                    out, inp = self.base[i, n].shape
                    key = "%d_%s" % (i, n)
                    self.A[key] = nn.Parameter(torch.randn(rank, inp) / inp ** 0.5)
                    self.B[key] = nn.Parameter(torch.zeros(out, rank))

    def begin(self):
        """Casts the low-rank parts once per step."""
        if self.rank:
            self.a = {k: v.to(self.dtype) for k, v in self.A.items()}
            self.b = {k: (v * self.scale).to(self.dtype) for k, v in self.B.items()}

    def merge(self):
        """Folds the low-rank part into the base weights (for evaluation)."""
        with torch.no_grad():
            for i in range(N_LAYER):
                for n in LINEARS:
                    k = "%d_%s" % (i, n)
                    if self.rank:
                        w = self.base[i, n].float() + self.scale * self.B[k] @ self.A[k]
                        self.base[i, n] = w.to(self.dtype)
        self.rank = 0
        self.A, self.B = nn.ParameterDict(), nn.ParameterDict()

    def tensors(self, i):
        """What `block` takes for layer i: two norms, then (weight, a, b) of each linear."""
        out = [self.base[i, "attn_norm"], self.base[i, "ffn_norm"]]
        for n in LINEARS:
            k = "%d_%s" % (i, n)
            out += [self.base[i, n]] + ([self.a[k], self.b[k]] if self.rank else [None, None])
        return out

    def forward(self, x, pos, mask, mask_from=None):
        """mask_from: (layer, other mask) replaces the mask from that layer on."""
        cos, sin = (t.to(self.dtype)[:, :, None] for t in rope_table(pos))
        x = x.to(self.dtype)
        for i in range(N_LAYER):
            m = mask_from[1] if mask_from and i >= mask_from[0] else mask
            x = block(x, cos, sin, m, *self.tensors(i))
        return rms(x, self.out_norm)

    def logits(self, h):
        return F.linear(h, self.embed).float()


def trained_state(proj, dec):
    """The part that is ours, under the names used in models/*.safetensors."""
    out = {"projector.norm.weight": proj.norm.weight, "projector.norm.bias": proj.norm.bias,
           "projector.0.weight": proj.a.weight, "projector.0.bias": proj.a.bias,
           "projector.2.weight": proj.b.weight, "projector.2.bias": proj.b.bias}
    for k in dec.A:
        i, n = k.split("_", 1)
        out["blk.%s.%s.lora_a" % (i, n)] = dec.A[k]
        out["blk.%s.%s.lora_b" % (i, n)] = dec.B[k] * dec.scale
    return {k: v.detach().float().numpy() for k, v in out.items()}


def load_trained(proj, dec, state):
    t = lambda k: torch.from_numpy(np.array(state[k], np.float32))
    with torch.no_grad():
        proj.norm.weight.copy_(t("projector.norm.weight"))
        proj.norm.bias.copy_(t("projector.norm.bias"))
        proj.a.weight.copy_(t("projector.0.weight"))
        proj.a.bias.copy_(t("projector.0.bias"))
        proj.b.weight.copy_(t("projector.2.weight"))
        proj.b.bias.copy_(t("projector.2.bias"))
        for k in dec.A:
            i, n = k.split("_", 1)
            dec.A[k].copy_(t("blk.%s.%s.lora_a" % (i, n)))
            dec.B[k].copy_(t("blk.%s.%s.lora_b" % (i, n)) / dec.scale)
