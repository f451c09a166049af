"""Where training finds its inputs: the base parts, the photographs, the work directory.

Owns: paths from the environment (IWP_FLICKR8K, IWP_WORK) and the loaded base parts; the parts come
out of the packages that scripts/get-model fetched into the cache."""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "scripts"))
import model_gguf      # noqa: E402
import model_onnx      # noqa: E402
import model_parts     # noqa: E402

WORK = os.environ.get("IWP_WORK", os.path.join(HERE, "..", "out", "train"))
FLICKR = os.environ.get("IWP_FLICKR8K", "")
MODELS = os.path.join(HERE, "..", "models")



def base_lm():
    return model_gguf.Reader(model_parts.read_member(model_parts.LM))


def base_tower():
    return model_onnx.clip_tower(model_parts.read_member(model_parts.TOWER))


def photos(split):
    """Rows of a Flickr8k split with absolute picture paths."""
    if not FLICKR:
        sys.exit("train: set IWP_FLICKR8K to the folder with train.jsonl, dev.jsonl and images/")
    with open(os.path.join(FLICKR, split + ".jsonl")) as f:
        rows = [json.loads(line) for line in f]
    for r in rows:
        r["path"] = os.path.join(FLICKR, r["image"])
    return rows
