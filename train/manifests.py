"""Writes dev and test manifests (JSONL of the contract) with their pictures.

Owns: OUT/gen-{dev,test}.jsonl with PNG files beside them, and, where IWP_FLICKR8K points to the
photographs, OUT/photo-{dev,test}-yesno.jsonl and OUT/photo-{dev,test}-nll.jsonl, which name the
photographs where they are. Everything follows from the seeds in features.py.
usage: manifests.py --out DIR [--count N]"""
import argparse
import json
import os

import parts
import pictures
import questions

SEEDS = {"dev": 2002, "test": 3003}    # the same as in features.py, which needs torch
SCORER = {"gen-count": "number", "gen-number": "number", "gen-chart-value": "number", "gen-chart-count": "number",
          "gen-exist": "yesno", "gen-relation": "yesno", "like-touching": "yesno", "like-overlapping": "yesno",
          "photo-yesno": "yesno", "photo-count": "number"}


def write(path, rows):
    with open(path + ".tmp", "w") as f:
        for r in rows:
            f.write(json.dumps(r) + "\n")
    os.replace(path + ".tmp", path)
    print("%s: %d questions" % (path, len(rows)))


def generated(out, split, count):
    folder = os.path.join(out, "gen-" + split)
    os.makedirs(folder, exist_ok=True)
    rows = []
    for k, (family, seed) in enumerate(pictures.plan(count, SEEDS[split])):
        im, qs, _ = pictures.make(family, seed)
        file = "gen-%s/%05d-%s.png" % (split, k, family)
        im.save(os.path.join(out, file))
        for j, (task, question, answers) in enumerate(qs):
            rows.append({"id": "%s-%05d-%d" % (split, k, j), "task": task, "image": file, "question": question,
                         "answer": answers[0], "category": task, "group": family,
                         "scorer": SCORER.get(task, "exact"), "max_new_tokens": 12})
    write(os.path.join(out, "gen-%s.jsonl" % split), rows)


def photos(out, split):
    rows = parts.photos(split)
    asked, told = [], []
    for r, groups in zip(rows, questions.photo_groups(rows, SEEDS[split])):
        image = os.path.relpath(r["path"], out)
        told.append({"id": r["id"], "task": "photo-nll", "image": image, "question": groups[0][1],
                     "answers": groups[0][2], "scorer": "nll"})
        for j, (task, question, answers) in enumerate(groups[1:]):
            asked.append({"id": "%s-%d" % (r["id"], j), "task": task, "image": image, "question": question,
                          "answer": answers[0], "category": task, "scorer": SCORER.get(task, "exact"),
                          "max_new_tokens": 12})
    write(os.path.join(out, "photo-%s-yesno.jsonl" % split), [r for r in asked if r["task"] == "photo-yesno"])
    write(os.path.join(out, "photo-%s-other.jsonl" % split), [r for r in asked if r["task"] != "photo-yesno"])
    write(os.path.join(out, "photo-%s-nll.jsonl" % split), told)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--count", type=int, default=500, help="generated pictures in each part")
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    for split in ("dev", "test"):
        generated(a.out, split, a.count)
        if parts.FLICKR:
            photos(a.out, split)
    if not parts.FLICKR:
        print("IWP_FLICKR8K is not set: no manifests of photographs")


if __name__ == "__main__":
    main()
