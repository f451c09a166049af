"""The CLIP ViT-B/16 image tower in torch, and the picture preparation llama.cpp uses for LLaVA-1.5.

Owns: `prepare` (PIL picture -> normalised [3,224,224]) and `Tower` (-> hidden states).
The preparation is: longer side to 224 with Pillow's bicubic filter, padded in the middle with the
mean colour; the same steps, in the same arithmetic, as llama.cpp's PAD_CEIL."""
import math

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)
PAD = (122, 116, 104)
SIZE = 224


def square(im):
    im = im.convert("RGB")
    if im.size == (SIZE, SIZE):
        return im
    w, h = im.size
    scale = min(np.float32(SIZE) / np.float32(w), np.float32(SIZE) / np.float32(h))
    nw = min(math.ceil(np.float32(w) * scale), SIZE)
    nh = min(math.ceil(np.float32(h) * scale), SIZE)
    out = Image.new("RGB", (SIZE, SIZE), PAD)
    out.paste(im.resize((nw, nh), Image.Resampling.BICUBIC), ((SIZE - nw) // 2, (SIZE - nh) // 2))
    return out


def prepare(im):
    a = np.asarray(square(im), np.float32) / np.float32(255)
    return torch.from_numpy(((a - MEAN) / STD).transpose(2, 0, 1).copy())


class Tower:
    """Frozen weights in `dtype`; `hidden(x, n)` gives the residual stream after n layers, [B, 197, 768]:
    the patches in reading order, then the class token (attention does not care for the order)."""

    def __init__(self, weights, dtype=torch.float32):
        self.w = {k: torch.from_numpy(np.ascontiguousarray(v)).to(dtype) for k, v in weights.items()}
        self.dtype = dtype

    def norm(self, x, name):
        return F.layer_norm(x, (768,), self.w[name + ".weight"], self.w[name + ".bias"], 1e-5)

    def linear(self, x, name):
        return F.linear(x, self.w[name + ".weight"], self.w[name + ".bias"])

    @torch.no_grad()
    def hidden(self, x, layers=11):
        w, b = self.w, x.shape[0]
        x = F.conv2d(x.to(self.dtype), w["embeddings.patch_embedding.weight"], stride=16)
        x = x.flatten(2).transpose(1, 2)
        pos = w["embeddings.position_embedding.weight"]
        cls = w["embeddings.class_embedding"].expand(b, 1, -1)
        x = torch.cat([x + pos[1:], cls + pos[:1]], 1)
        x = self.norm(x, "pre_layrnorm")
        n = x.shape[1]
        for i in range(layers):
            p = "encoder.layers.%d." % i
            y = self.norm(x, p + "layer_norm1")
            q, k, v = (self.linear(y, p + "self_attn.%s_proj" % c).view(b, n, 12, 64).transpose(1, 2)
                       for c in "qkv")
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, 768)
            x = x + self.linear(y, p + "self_attn.out_proj")
            y = self.linear(self.norm(x, p + "layer_norm2"), p + "mlp.fc1")
            x = x + self.linear(y * torch.sigmoid(1.702 * y), p + "mlp.fc2")
        return x
