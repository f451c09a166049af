"""tools/export_hf.py on tiny parquet files of each benchmark's schema, then read by `iwp eval`."""
import json
import os
import subprocess
import sys
import tempfile

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:
    print("skipped: no pyarrow")
    sys.exit(77)

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
WANT = {"ai2d": "B", "mmbench": "B", "mmstar": "C", "egoschema": "E", "nextqa": "C", "scienceqa": "A"}
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
        if len(got) != len(rows) or (task in WANT and got[0]["answer"] != WANT[task]):
            print(task, got)
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
print("ok" if not bad else "%d failed" % bad)
sys.exit(bad != 0)
