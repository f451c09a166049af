"""Joins tower, language model and our trained part into the two files llama.cpp and iwp load.

Owns: names and keys of iwp-photo.gguf and iwp-photo-mmproj.gguf. The bytes depend on the inputs
alone. Low-rank changes are added in float32 before the weights are rounded to q8_0.

The mmproj is made for llama.cpp's LLaVA graph as it is: the class token comes *after* the patches
(so the rows of v.position_embd are stored patches first, class last), all but the last layer are
run, v.post_ln is applied, and rows 1 to 196 go through mm.0, GELU, mm.2: every patch but the
first one (top left corner), then the class token."""
import numpy as np

import model_gguf as G

LINEARS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
LM_TYPE = G.Q8_0
FILE_TYPE = {G.F16: 1, G.Q8_0: 7}
MEAN = [0.48145466, 0.4578275, 0.40821073]
STD = [0.26862954, 0.26130258, 0.27577711]


def merged(lm, ours, name):
    """Base weight plus low-rank change as float32."""
    w = lm.array(name)
    a, b = ours.get(name[:-len("weight")] + "lora_a"), ours.get(name[:-len("weight")] + "lora_b")
    if a is not None:
        w = w + b.astype(np.float32) @ a.astype(np.float32)
    return w


def language_model(f, lm, ours, version, progress):
    keys = dict(lm.keys)
    for k in ("general.finetune", "general.organization", "general.basename"):
        keys.pop(k, None)
    keys["general.name"] = (G.STRING, "iwp-photo")
    keys["general.description"] = (G.STRING, "SmolLM2-135M-Instruct (Q4_1) with iwp's low-rank changes " + version)
    keys["general.file_type"] = (G.U32, FILE_TYPE[LM_TYPE])
    tensors = []
    for name, (shape, kind, raw) in lm.tensors.items():
        if name.split(".")[-2] in LINEARS:
            make = lambda n=name: G.encode(merged(lm, ours, n), LM_TYPE)
            tensors.append((name, shape, LM_TYPE, make))
        else:                                       # norms and the q8_0 embedding table as they are
            tensors.append((name, shape, kind, lambda r=raw: bytes(r)))
    G.write(f, keys, tensors, progress)


def mmproj(f, tower, ours, version, progress):
    arr = lambda item, v: (G.ARRAY, (item, v))
    keys = {
        "general.architecture": (G.STRING, "clip"), "general.type": (G.STRING, "mmproj"),
        "general.name": (G.STRING, "iwp-photo"),
        "general.description": (G.STRING, "CLIP ViT-B/16 tower with iwp's projector " + version),
        "general.file_type": (G.U32, 1), "general.quantization_version": (G.U32, 2),
        "clip.has_vision_encoder": (G.BOOL, True), "clip.projector_type": (G.STRING, "mlp"),
        "clip.use_gelu": (G.BOOL, False), "clip.use_silu": (G.BOOL, False),
        "clip.vision.image_size": (G.U32, 224), "clip.vision.patch_size": (G.U32, 16),
        "clip.vision.embedding_length": (G.U32, 768), "clip.vision.feed_forward_length": (G.U32, 3072),
        "clip.vision.projection_dim": (G.U32, 576), "clip.vision.block_count": (G.U32, 12),
        "clip.vision.attention.head_count": (G.U32, 12),
        "clip.vision.attention.layer_norm_epsilon": (G.FLOAT32, 1e-5),
        "clip.vision.image_mean": arr(G.FLOAT32, MEAN), "clip.vision.image_std": arr(G.FLOAT32, STD),
    }
    pos = tower["embeddings.position_embedding.weight"]
    todo = [("v.class_embd", tower["embeddings.class_embedding"], G.F32),
            ("v.patch_embd.weight", tower["embeddings.patch_embedding.weight"], G.F16),
            ("v.position_embd.weight", np.concatenate([pos[1:], pos[:1]]), G.F32),
            ("v.pre_ln.weight", tower["pre_layrnorm.weight"], G.F32),
            ("v.pre_ln.bias", tower["pre_layrnorm.bias"], G.F32),
            ("v.post_ln.weight", ours["projector.norm.weight"], G.F32),
            ("v.post_ln.bias", ours["projector.norm.bias"], G.F32)]
    names = {"ln1": "layer_norm1", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
             "attn_v": "self_attn.v_proj", "attn_out": "self_attn.out_proj", "ln2": "layer_norm2",
             "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}
    for i in range(12):
        for to, name in names.items():
            for part in ("weight", "bias"):
                a = tower["encoder.layers.%d.%s.%s" % (i, name, part)]
                todo.append(("v.blk.%d.%s.%s" % (i, to, part), a, G.F16 if a.ndim == 2 else G.F32))
    for k in ("0", "2"):
        todo.append(("mm.%s.weight" % k, ours["projector.%s.weight" % k], G.F16))
        todo.append(("mm.%s.bias" % k, ours["projector.%s.bias" % k], G.F32))
    G.write(f, keys, [(n, list(a.shape), t, lambda a=a, t=t: G.encode(a, t)) for n, a, t in todo], progress)
