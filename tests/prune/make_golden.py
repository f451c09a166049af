"""Cuts tests/data/prune/<model>.safetensors out of the golden vectors: what one selection reads, and what it must give.
usage: make_golden.py GOLDEN_FOLDER OUT_FOLDER   (q_rope is not stored there; it follows from k and k_rope)
Of the similarity maps the first 80 visual tokens are enough."""
import json, os, sys
import numpy as np
from safetensors.numpy import load_file, save_file

src, out = sys.argv[1:]
os.makedirs(out, exist_ok=True)
for model in ("llava-ov", "qwen2.5-vl"):
    t = load_file(f"{src}/vectors/{model}/wide.safetensors")
    settings = json.load(open(f"{src}/vectors/{model}/wide.json"))["iwp"]["switches"]["settings"]
    keep = {n: t[n] for n in t if n in ("visual_mask", "user_mask", "iwp.q", "iwp.k", "iwp.v", "iwp.k_rope", "iwp.P", "hidden_4")
            or n.startswith("switch.P.") or n.endswith(".kept")}
    k, r, q = (t[f"iwp.{n}"].astype(np.float64) for n in ("k", "k_rope", "q"))
    half = k.shape[2] // 2
    a, b, x, y = k[..., :half], k[..., half:], r[..., :half], r[..., half:]
    size = (a * a + b * b).sum(1, keepdims=True)
    cos, sin = (a * x + b * y).sum(1, keepdims=True) / size, (a * y - b * x).sum(1, keepdims=True) / size
    a, b = q[..., :half], q[..., half:]
    keep["iwp.q_rope"] = np.concatenate([a * cos - b * sin, b * cos + a * sin], 2).astype(np.float32)
    for name in ("duplication=rbf", "duplication=cos_v", "duplication=dw", "duplication-rope=0"):
        keep[f"switch.D.{name}"] = np.ascontiguousarray(t[f"switch.D.{name}"][:80, :80]).astype(np.float32)
    for name, s in settings.items():
        keep[f"switch.kept.{name}"] = np.array(s["kept"], np.int32)
    save_file(keep, f"{out}/{model}.safetensors")
