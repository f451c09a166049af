#!/usr/bin/env python3
"""scripts/model-table from outside, with a small program in the place of iwp: which questions and runs it asks for, what
it writes into the card, and what happens when a run fails or is stopped."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from model_test import HERE, check, done

TOOL = os.path.join(HERE, "..", "..", "scripts", "model-table")
FAKE = r'''#!%s
import json, os, sys, time
here = os.path.dirname(os.path.abspath(__file__))
arg = lambda k: sys.argv[sys.argv.index(k) + 1]
run = lambda task, prune, keep, diff: {"task": task, "prune": prune, "keep": keep, "n": 8, "errors": 8 if prune == "resize" else 0, "score": 75.0,
                                       "diff": diff, "diff_stderr": 0 if diff == 0 else 2.0, "categories": {"gen-color": 75.0}}
if sys.argv[1] == "methods":
    print(json.dumps([{"name": n} for n in ("iwp", "none", "random", "zooprune", "resize")]))
elif sys.argv[1] == "eval":
    with open(here + "/calls", "a") as f:
        f.write(json.dumps(sys.argv[1:]) + "\n")
    if os.path.exists(here + "/fail"):
        sys.exit("iwp: no such thing")
    if os.path.exists(here + "/wait"):
        time.sleep(60)
    os.makedirs(arg("--out"), exist_ok=True)
    open(arg("--out") + "/run.json", "w").close()
else:
    out = arg("--out")
    os.makedirs(out, exist_ok=True)
    slow, rest = out.endswith("-slow"), out.endswith("-rest")
    task = "local-rest" if rest else "local-detail"
    runs = [run(task, "none", None, None)]
    for m in ("zooprune",) if slow else ("iwp", "random", "resize"):
        runs += [run(task, m, k, 0 if m == "iwp" else -3.0) for k in (.353, .222, .111)]
    with open(out + "/results.json", "w") as f:
        json.dump({"missing": 0, "runs": runs}, f)
''' % sys.executable


def setup(t):
    fake = os.path.join(t, "iwp")
    with open(fake, "w") as f:
        f.write(FAKE)
    os.chmod(fake, 0o755)
    with open(os.path.join(t, "gen-test.jsonl"), "w") as f:
        for k in range(60):
            task = ("gen-color", "gen-word", "gen-count")[k % 3]
            f.write(json.dumps({"id": str(k), "task": task, "category": task, "image": "a.png", "question": "?", "answer": "x"}) + "\n")
    with open(os.path.join(t, "card.md"), "w") as f:
        f.write("before\n<!-- model-table begins -->\nold\n<!-- model-table ends -->\nafter\n")


def command(t, *more):
    return [sys.executable, TOOL, "--iwp", t + "/iwp", "--data", t, "--out", t + "/out", "--card", t + "/card.md", "--shards", "2", *more]


def run(t, *more):
    return subprocess.run(command(t, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def calls(t):
    path = os.path.join(t, "calls")
    if not os.path.exists(path):
        return []
    with open(path) as f:
        rows = [json.loads(line) for line in f]
    os.remove(path)
    return rows


def card(t):
    with open(os.path.join(t, "card.md")) as f:
        return f.read()


with tempfile.TemporaryDirectory() as t:
    setup(t)
    r = run(t, "--local", "6", "--rest", "3", "--jobs", "1")
    check(r.returncode == 0, "a whole run: " + r.stderr)
    got = calls(t)
    place = [c[c.index("--out") + 1].rsplit("/", 1)[1] for c in got]
    check(place == ["shard0", "shard1", "shard0-slow", "shard1-slow", "shard0-rest", "shard1-rest"], "quick runs first: %s" % place)
    prune = [c[c.index("--prune") + 1] for c in got]
    check(prune == ["none,iwp,random,resize"] * 2 + ["none,zooprune"] * 2 + ["none,iwp,random,resize"] * 2, "methods: %s" % prune)
    check(all("--allow-failures" in c and c[c.index("--keep") + 1] == "35.3%,22.2%,11.1%" for c in got), "budgets")
    with open(os.path.join(t, "table-local-detail.jsonl")) as f:
        rows = [json.loads(line) for line in f]
    check([x["category"] for x in rows] == ["gen-color", "gen-word"] * 3 and {x["task"] for x in rows} == {"local-detail"}, "balanced: %s" % rows)
    text = card(t)
    check(text.startswith("before\n") and text.endswith("after\n") and "old" not in text, "between the marks only: " + text)
    check("| iwp | same answers | same answers | same answers |" in text, "no answer changed: " + text)
    check("| random | -3.0 ± 3.9 |" in text and "| zooprune | -3.0 ± 3.9 |" in text and "| resize | - | - | - |" in text, "cells: " + text)

    r = run(t, "--shard", "1,0/2")
    check(r.returncode == 0 and r.stdout == "" and len(calls(t)) == 6 and card(t) == text, "parts alone write no table")
    r = run(t, "--shard", "2/2")
    check(r.returncode == 1 and len(r.stderr.splitlines()) == 1 and "--shard 2/2" in r.stderr, "no such part: " + r.stderr)
    calls(t)

    open(t + "/fail", "w").close()
    r = run(t, "--jobs", "1")
    check(r.returncode == 1 and r.stderr == "iwp: no such thing\n" and len(calls(t)) == 1 and card(t) == text, "the first failure ends it: " + r.stderr)
    os.rename(t + "/fail", t + "/wait")
    p = subprocess.Popen(command(t, "--jobs", "2"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    end = time.time() + 60
    while time.time() < end and not (os.path.exists(t + "/calls") and len(open(t + "/calls").readlines()) == 2):
        time.sleep(.05)
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=60)
    try:
        os.killpg(p.pid, 0)
        left = True
    except ProcessLookupError:
        left = False
    check(p.returncode == 143 and not left and card(t) == text, "stopped: %d, no process left: %s" % (p.returncode, not left))
done()
