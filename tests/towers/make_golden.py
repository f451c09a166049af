"""Makes tests/data/golden, the committed part of the golden checkpoints.

usage: make_golden.py IWP GOLDEN_DIR OUT_DIR
llava-ov comes whole (checkpoint and tokenizer), qwen2.5-vl as its vision file and a model file without
tensors (vocabulary and keys); of the vectors only what tests compare, of the pictures those they need."""
import json, shutil, struct, subprocess, sys, tempfile
from pathlib import Path

from safetensors.numpy import load_file, save_file

iwp, src, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
CASES = {"llava-ov": ["wide", "multi", "video", "text"], "qwen2.5-vl": ["small", "multi", "video-slow", "text"]}
KEEP = ["input_ids", "position_ids", "visual_mask", "user_mask", "vision_out", "visual_features", "logits_last",
        "greedy_tokens", "iwp.P"]
KEEP += ["iwp.%s.%s" % (k, n) for k in ("0.353", "0.222", "0.111") for n in ("kept", "greedy_tokens", "logits_last")]
SIZE = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def without_tensors(data):
    """The same GGUF, keys only."""
    n_kv = struct.unpack_from("<Q", data, 16)[0]
    at = 24

    def skip(at, kind):
        if kind == 8:
            return at + 8 + struct.unpack_from("<Q", data, at)[0]
        if kind == 9:
            item, n = struct.unpack_from("<IQ", data, at)
            at += 12
            for _ in range(n):
                at = skip(at, item)
            return at
        return at + SIZE[kind]

    for _ in range(n_kv):
        at = skip(at, 8)
        at = skip(at + 4, struct.unpack_from("<I", data, at)[0])
    head = data[:8] + struct.pack("<QQ", 0, n_kv) + data[24:at]
    return head + bytes(-len(head) % 32)


for name, cases in CASES.items():
    v = src / "vectors" / name
    to = out / "vectors" / name
    (to / "images").mkdir(parents=True, exist_ok=True)
    for c in cases:
        t = load_file(v / (c + ".safetensors"))
        save_file({k: t[k] for k in KEEP if k in t}, to / (c + ".safetensors"))
        meta = json.load(open(v / (c + ".json")))
        small = {k: meta.get(k) for k in ("prompt", "messages", "images", "video", "fps", "visual_tokens", "next_position")}
        json.dump(small, open(to / (c + ".json"), "w"), indent=1)
        for im in meta.get("images") or []:
            shutil.copy(v / "images" / im, to / "images" / im)
        if meta.get("video"):
            shutil.copytree(v / "images" / meta["video"], to / "images" / meta["video"], dirs_exist_ok=True)
    json.dump({"cases": [{"name": c} for c in cases]}, open(to / "index.json", "w"), indent=1)
    shutil.copy(v / "tokenizer_cases.json", to)

m = out / "models/llava-ov"
m.mkdir(parents=True, exist_ok=True)
for f in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "processor_config.json",
          "chat_template.jinja", "generation_config.json"):
    shutil.copy(src / "models/llava-ov" / f, m)
(out / "gguf").mkdir(exist_ok=True)
with tempfile.TemporaryDirectory() as t:
    subprocess.run([iwp, "convert", src / "models/qwen2.5-vl", "-o", t + "/m.gguf", "--mmproj",
                    out / "gguf/qwen2.5-vl-mmproj.gguf", "--type", "f32"], check=True)
    (out / "gguf/qwen2.5-vl.gguf").write_bytes(without_tensors(Path(t + "/m.gguf").read_bytes()))
