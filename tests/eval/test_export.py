"""tools/export_hf.py on tiny parquet files of each benchmark's schema, then read by `iwp eval`."""
import json
import os
import subprocess
import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq

iwp, root = sys.argv[1], sys.argv[2]
picture = open(os.path.join(root, "tests/data/golden/vectors/llava-ov/images/small.png"), "rb").read()
IMAGE = {"bytes": picture, "path": "x.png"}
L4 = ["A. a", "B. b", "C. c", "D. d"]
ROWS = {
    "ai2d": [dict(question="q", options=["x", "y"], answer="1", image=IMAGE)],
    "docvqa": [dict(questionId="7", question="q", answers=["x"], image=IMAGE)],
    "infovqa": [dict(questionId="7", question="q", answers=["x", "z"], image=IMAGE)],
    "mmbench": [dict(index=i, question="q", hint="nan", A="x", B="y", C="nan", D="nan", answer="B", category="c", image=IMAGE)
                for i in (5, 1000005)],
    "mme": [dict(question_id="a.png", question="q%d Please answer yes or no." % i, answer="Yes", category="count", image=IMAGE) for i in range(2)],
    "mmmu": [dict(id="m1", question="q <image 1>", options="['x', 'y']", question_type="multiple-choice", answer="B", image_1=IMAGE, image_2=IMAGE),
             dict(id="m2", question="q", options="[]", question_type="open", answer="['4', 'four']", image_1=IMAGE, image_2=None)],
    "scienceqa": [dict(question="q", choices=["x", "y"], answer=0, hint="", image=IMAGE)],
    "textvqa": [dict(question_id=1, question="q", answers=["a"] * 10, image=IMAGE)],
    "mmstar": [dict(index=1, question="q", answer="C", category="c", l2_category="l", image=IMAGE)],
    "pope": [dict(question_id="1", question="q", answer="yes", category="random", image=IMAGE)],
    "egoschema": [dict(video_idx="v", question="q", option=L4 + ["E. e"], answer="4")],
    "videomme": [dict(videoID="v", question_id="1", duration="short", question="q", options=L4, answer="D")],
    "mlvu": [dict(video_name="v.mp4", question="q", answer="A", task_type="ego")],
    "nextqa": [dict(video="v", question="q", a0="0", a1="1", a2="2", a3="3", a4="4", answer=2, qid="3", type="CH")],
}
# the first line of each manifest, but for task, image and video
WANT = {
    "ai2d": dict(id="0", question="q", choices=["x", "y"], answer="B"),
    "docvqa": dict(id="7", question="q", answers=["x"]),
    "infovqa": dict(id="7", question="q", answers=["x", "z"]),
    "mmbench": dict(id="5", question="q", hint="nan", group="5", choices=["x", "y", "nan", "nan"], answer="B", category="c"),
    "mme": dict(id="count/a.png/0", question="q0 Please answer yes or no.", answer="Yes", category="count", group="a.png"),
    "mmmu": dict(id="m1", question="q <image 1>", choices=["x", "y"], answer="B"),
    "scienceqa": dict(id="0", question="q", choices=["x", "y"], answer="A", hint=""),
    "textvqa": dict(id="1", question="q", answers=["a"] * 10),
    "mmstar": dict(id="1", question="q", choices=["A", "B", "C", "D"], answer="C", category="l"),
    "pope": dict(id="random/1", question="q", answer="yes", category="random"),
    "egoschema": dict(id="v", question="q", choices=L4 + ["E. e"], answer="E"),
    "videomme": dict(id="1", question="q", choices=L4, answer="D", category="short"),
    "mlvu": dict(id="0", question="q", choices=["A", "B", "C", "D"], answer="A", category="ego"),
    "nextqa": dict(id="v/3", question="q", choices=["0", "1", "2", "3", "4"], answer="C", category="CH"),
}
VIDEO = {"egoschema", "videomme", "mlvu", "nextqa"}
bad = 0
with tempfile.TemporaryDirectory() as t:
    open(os.path.join(t, "v.mp4"), "wb").close()
    tool = os.path.join(root, "tools/export_hf.py")
    for task, rows in ROWS.items():
        file, out = os.path.join(t, task + ".parquet"), os.path.join(t, task)
        pq.write_table(pa.Table.from_pylist(rows), file)
        p = subprocess.run([sys.executable, tool, task, file, "--out", out, "--videos", t], capture_output=True, text=True)
        if p.returncode:
            print(task, p.stderr)
            bad += 1
            continue
        got = [json.loads(line) for line in open(os.path.join(out, "manifest.jsonl"))]
        first = {k: v for k, v in got[0].items() if k not in ("task", "image", "video")}
        if len(got) != len(rows) or first != WANT[task] or any(g["task"] != task for g in got):
            print(task, got)
            bad += 1
        medium = got[0].get("video" if task in VIDEO else "image")
        pictures = medium if isinstance(medium, list) else [medium]
        if not medium or len(pictures) != (2 if task == "mmmu" else 1) or \
                any(not os.path.exists(os.path.join(out, m)) for m in pictures):
            print(task, "media:", medium)
            bad += 1
        if task not in VIDEO and open(os.path.join(out, pictures[0]), "rb").read() != picture:
            print(task, "the picture's bytes changed")
            bad += 1
        if task == "mmmu" and (got[1]["answers"] != ["4", "four"] or "choices" in got[1] or len(got[1]["image"]) != 1):
            print("mmmu, open question:", got[1])
            bad += 1
        if "image" in got[0] and len(os.listdir(os.path.join(out, "images"))) != 1:
            print(task, "a picture that repeats was written twice")
            bad += 1
        # the manifest is read without complaint: what fails comes after it
        p = subprocess.run([iwp, "eval", "--tasks", os.path.join(out, "manifest.jsonl"), "--out", os.path.join(t, "r"), "-m",
                            os.path.join(t, "absent.gguf")], capture_output=True, text=True)
        if "absent.gguf" not in p.stderr:
            print(task, p.stderr)
            bad += 1
    # a table of another benchmark
    p = subprocess.run([sys.executable, tool, "pope", os.path.join(t, "ai2d.parquet"), "--out", os.path.join(t, "x")], capture_output=True, text=True)
    if p.returncode != 1 or "no column" not in p.stderr or os.path.exists(os.path.join(t, "x", "manifest.jsonl")):
        print("wrong columns:", p.returncode, p.stderr)
        bad += 1
    # a row without its picture, a picture of no known kind, a video that is not there
    for task, rows, want in (("pope", [dict(ROWS["pope"][0], image={"bytes": b"", "path": "x.png"})], "row 0: no picture"),
                             ("pope", [dict(ROWS["pope"][0], image={"bytes": b"BM..", "path": "x.bmp"})], "no JPEG"),
                             ("mlvu", [dict(ROWS["mlvu"][0], video_name="w")], "no video 'w'")):
        file = os.path.join(t, "bad.parquet")
        pq.write_table(pa.Table.from_pylist(rows), file)
        p = subprocess.run([sys.executable, tool, task, file, "--out", os.path.join(t, "y"), "--videos", t], capture_output=True, text=True)
        if p.returncode != 1 or want not in p.stderr or p.stderr.count("\n") != 1 or os.path.exists(os.path.join(t, "y", "manifest.jsonl")):
            print(want, "->", p.returncode, p.stderr)
            bad += 1
    if set(ROWS) != set(WANT) or len(ROWS) != 14:
        print("not every benchmark is here")
        bad += 1
print("ok" if not bad else "%d failed" % bad)
sys.exit(bad != 0)
