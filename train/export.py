"""Writes the trained part of a checkpoint to models/iwp-photo.safetensors (float16).

usage: export.py [--untrained] [--version TEXT] [--out FILE]"""
import argparse
import os

import numpy as np
import torch

import lm
import parts
import model_safetensors


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--untrained", action="store_true", help="a random projector and no changes: for plumbing only")
    ap.add_argument("--version", default="")
    ap.add_argument("--out", default=os.path.join(parts.MODELS, "iwp-photo.safetensors"))
    a = ap.parse_args()
    torch.manual_seed(0)
    proj = lm.Projector()
    dec = lm.Decoder(parts.base_lm(), rank=0 if a.untrained else 32)
    step = 0
    if not a.untrained:
        c = torch.load(os.path.join(parts.WORK, "checkpoint.pt"))
        proj.load_state_dict(c["proj"])
        dec.load_state_dict(c["dec"])
        step = c["step"]
    state = {k: v.astype(np.float16) for k, v in lm.trained_state(proj, dec).items()}
    for k, v in state.items():
        if not np.isfinite(v).all():
            raise SystemExit("export: %s does not fit float16" % k)
    meta = {"version": a.version or ("untrained" if a.untrained else "step %d" % step), "step": str(step)}
    model_safetensors.save(a.out + ".tmp", state, meta)
    os.replace(a.out + ".tmp", a.out)
    print(a.out, os.path.getsize(a.out))


if __name__ == "__main__":
    main()
