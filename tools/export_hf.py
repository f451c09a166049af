#!/usr/bin/env python3
"""Turns a benchmark's parquet files (as downloaded from the hub) into a manifest for `iwp eval`.

    export_hf.py pope test-0000*.parquet --out data/pope
    export_hf.py videomme test.parquet --videos unpacked/ --out data/videomme

Needs pyarrow. Pictures are written as the bytes they are; the manifest is OUT/manifest.jsonl. Refused: a
table without the columns the benchmark has, a row without its picture or video."""
import argparse
import ast
import hashlib
import json
import os
import sys


class Bad(Exception):
    pass


def letter(i):
    return chr(ord("A") + int(i))


def text(v):
    return "" if v is None else str(v)


def ai2d(r, k):
    return dict(id=str(k), question=r["question"], choices=list(r["options"]), answer=letter(r["answer"]))


def docvqa(r, k):
    return dict(id=text(r["questionId"]), question=r["question"], answers=list(r["answers"]))


def mmbench(r, k):
    return dict(id=str(r["index"]), question=r["question"], hint=text(r["hint"]), group=str(int(r["index"]) % 1000000),
                choices=[text(r[c]) for c in "ABCD"], answer=r["answer"], category=text(r["category"]))


def mme(r, k):
    return dict(id="%s/%s/%d" % (r["category"], r["question_id"], k), question=r["question"], answer=r["answer"],
                category=r["category"], group=text(r["question_id"]))


def mmmu(r, k):
    row = dict(id=r["id"], question=r["question"], answer=text(r["answer"]))
    options = ast.literal_eval(r["options"]) if isinstance(r["options"], str) else list(r["options"])
    if r["question_type"] == "multiple-choice":
        row["choices"] = [str(o) for o in options]
    else:
        try:
            gold = ast.literal_eval(row["answer"])
        except (ValueError, SyntaxError):
            gold = None
        if isinstance(gold, list):
            row["answers"] = [str(g) for g in gold]
            del row["answer"]
    return row


def scienceqa(r, k):
    return dict(id=str(k), question=r["question"], choices=list(r["choices"]), answer=letter(r["answer"]), hint=text(r["hint"]))


def textvqa(r, k):
    return dict(id=text(r["question_id"]), question=r["question"], answers=list(r["answers"]))


LETTERS = ["A", "B", "C", "D"]  # questions that hold their options already


def mmstar(r, k):
    return dict(id=text(r["index"]), question=r["question"], choices=LETTERS, answer=r["answer"], category=r["l2_category"])


def pope(r, k):
    return dict(id="%s/%s" % (r["category"], r["question_id"]), question=r["question"], answer=r["answer"], category=r["category"])


def egoschema(r, k):
    return dict(id=text(r["video_idx"]), question=r["question"], choices=list(r["option"]), answer=letter(r["answer"]), video=r["video_idx"])


def videomme(r, k):
    return dict(id=r["question_id"], question=r["question"], choices=list(r["options"]), answer=r["answer"], category=r["duration"], video=r["videoID"])


def mlvu(r, k):
    return dict(id=str(k), question=r["question"], choices=LETTERS, answer=r["answer"], category=r["task_type"], video=r["video_name"])


def nextqa(r, k):
    return dict(id="%s/%s" % (r["video"], r["qid"]), question=r["question"], choices=[text(r["a%d" % i]) for i in range(5)],
                answer=letter(r["answer"]), category=text(r["type"]), video=text(r["video"]))


TASKS = dict(ai2d=ai2d, docvqa=docvqa, infovqa=docvqa, mmbench=mmbench, mme=mme, mmmu=mmmu, scienceqa=scienceqa, textvqa=textvqa,
             mmstar=mmstar, pope=pope, egoschema=egoschema, videomme=videomme, mlvu=mlvu, nextqa=nextqa)


def extension(data):
    if data[:3] == b"\xff\xd8\xff":
        return "jpg"
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return "png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[:4] == b"GIF8":
        return "gif"
    raise Bad("a picture that is no JPEG, PNG, WebP or GIF")


def save(out, cell):
    """Pictures are named by their content, so that one that repeats is one file (and one cluster)."""
    data = cell.get("bytes") if isinstance(cell, dict) else cell
    if not data:
        raise Bad("no picture")
    name = "images/%s.%s" % (hashlib.sha256(data).hexdigest()[:24], extension(data))
    path = os.path.join(out, name)
    if not os.path.exists(path):
        with open(path + ".tmp", "wb") as f:
            f.write(data)
        os.replace(path + ".tmp", path)
    return name


def images(r, out):
    if "image" in r:
        return save(out, r["image"])
    found = [save(out, r["image_%d" % i]) for i in range(1, 8) if r.get("image_%d" % i)]
    if not found:
        raise Bad("no picture")
    return found


def find_video(folder, name):
    for ext in ("", ".mp4", ".mkv", ".webm", ".avi", ".mov"):
        path = os.path.join(folder, name + ext)
        if os.path.exists(path):
            return path
    raise Bad("no video '%s' in %s" % (name, folder))


def export(task, files, out, videos):
    import pyarrow.parquet as pq
    os.makedirs(os.path.join(out, "images"), exist_ok=True)
    path, k = os.path.join(out, "manifest.jsonl"), 0
    with open(path + ".tmp", "w") as f:
        for file in files:
            for batch in pq.ParquetFile(file).iter_batches(64):
                for r in batch.to_pylist():
                    try:
                        row = TASKS[task](r, k)
                        row["task"] = task
                        if "video" in row:
                            row["video"] = os.path.relpath(find_video(videos, row["video"]), out)
                        else:
                            row["image"] = images(r, out)
                    except KeyError as e:
                        raise Bad("%s: row %d: no column %s; is it %s?" % (file, k, e, task))
                    except Bad as e:
                        raise Bad("%s: row %d: %s" % (file, k, e))
                    f.write(json.dumps(row, ensure_ascii=False) + "\n")
                    k += 1
    os.replace(path + ".tmp", path)
    print("%s: %d questions" % (path, k))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("task", choices=sorted(TASKS))
    p.add_argument("files", nargs="+", metavar="FILE.parquet")
    p.add_argument("--out", required=True, metavar="DIR")
    p.add_argument("--videos", default=".", metavar="DIR", help="where the unpacked videos are")
    a = p.parse_args()
    try:
        export(a.task, a.files, a.out, a.videos)
    except (Bad, OSError) as e:
        sys.exit("export_hf.py: %s" % e)
    except ImportError:
        sys.exit("export_hf.py: needs pyarrow (pip install pyarrow)")


if __name__ == "__main__":
    main()
