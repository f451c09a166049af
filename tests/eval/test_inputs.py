"""What iwp eval takes and refuses, from outside, on the golden checkpoint: manifests with mistakes, pictures that cannot
be read, questions that are too long, results folders of other runs, --limit, seeds, frames of a
video."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

iwp, data = (os.path.abspath(a) for a in sys.argv[1:3])
golden = os.path.join(data, "golden")
small = os.path.join(golden, "vectors", "llava-ov", "images", "small.png")
bad = []


def check(ok, what):
    if not ok:
        bad.append(what)
        print("failed:", what)


def run(*args, code=0, text=None):
    p = subprocess.run([iwp, *args], capture_output=True, text=True, timeout=300)
    check(p.returncode == code, "exit %d, want %d: %s\n%s" % (p.returncode, code, " ".join(args), p.stderr))
    if text:
        check(text in p.stderr and p.stderr.count("\n") == 1, "'%s' not in one line: %s" % (text, p.stderr))


def lines(*path):
    with open(os.path.join(t, *path)) as f:
        return [json.loads(x) for x in f]


def results(out):
    with open(os.path.join(t, out, "results.json")) as f:
        return json.load(f)["runs"]


def row(i, **more):
    r = dict(id="q%s" % i, task="toy", image=small, question="Is it %s?" % i, answer="yes", scorer="yesno", max_new_tokens=2)
    r.update(more)
    return {k: v for k, v in r.items() if v is not None}


def manifest(name, rows):
    path = os.path.join(t, name)
    with open(path, "w") as f:
        f.writelines(json.dumps(r) + "\n" for r in rows)
    return path


def grid(tasks, out, *more, prune="none,iwp"):
    return ["eval", "-m", model, "-mm", tower, "-t", "1", "--tasks", tasks, "--prune", prune, "--keep", "50%", "--out",
            os.path.join(t, out), *more]


def mistakes():
    """Refused with file and line before anything is written."""
    cases = [(row(1, image="nowhere.png"), "image 'nowhere.png' is not there"), (row(1, video="nowhere.mp4", image=None), "video 'nowhere.mp4'"),
             (row(0), "id 'q0' was on line 1 already"), (row(1, id=None), "no 'id'"), (row(1, id=[1]), "'id' is not text"),
             (row(1, question=None, query="Is it?"), "no 'question'"), (row(1, question={"a": 1}), "'question' is not text"),
             (row(1, image=None, img=small), "neither 'image' nor 'video'"), (row(1, image=7), "'image' is not text"),
             (row(1, video=small), "both 'image' and 'video'"), (row(1, answer=None, reply="yes"), "none of 'answer', 'answers', 'choices'"),
             (row(1, answer=None, choices=["a", "b"]), "'choices' without 'answer'"), (row(1, choices=["a", "b"], answer="C"), "'answer' is no letter"),
             (row(1, scorer="guess"), "no scorer is called 'guess'"), (row(1, max_new_tokens=0), "'max_new_tokens'"),
             (row(1, task="mme", category="count"), "needs 'group'"), (row(1, task="mme", group="g"), "needs 'category'"),
             (row(1, task="unheard", scorer=None), "no 'scorer'"), (row(1, task=None), "no 'task'"), ([1], "not a JSON object")]
    for line, text in cases:
        path = manifest("m.jsonl", [row(0), line])
        p = subprocess.run([iwp, *grid(path, "x")], capture_output=True, text=True, timeout=60)
        check(p.returncode == 1 and p.stderr.count("\n") == 1 and "%s:2: " % path in p.stderr and text in p.stderr,
              "'%s': exit %d: %s" % (text, p.returncode, p.stderr))
    # the same id again: in another file of the task it is told as such, in another task it is another question
    a, b = manifest("a.jsonl", [row(0)]), manifest("b.jsonl", [row(1), row(0)])
    run(*grid(a + "," + b, "x"), code=1, text="b.jsonl:2: id 'q0' was in a manifest before")
    run(*grid(manifest("m.jsonl", []), "x"), code=1, text="no questions")
    check(not os.path.exists(os.path.join(t, "x")), "a folder was left by a refused command")
    run(*grid(manifest("m.jsonl", [row(0), row(0, task="other")]), "twice"))


def unreadable():
    """Samples that fail are recorded under every configuration, counted, and score 0."""
    os.mkdir(os.path.join(t, "folder.png"))
    open(os.path.join(t, "empty.png"), "w").close()
    with open(small, "rb") as f:
        head = f.read(60)
    with open(os.path.join(t, "cut.png"), "wb") as f:
        f.write(head)
    failing = {"folder": row("folder", image="folder.png"), "empty": row("empty", image="empty.png"), "cut": row("cut", image="cut.png"),
               "long": row("long", question="very " * 40000 + "long?")}
    run(*grid(manifest("u.jsonl", [row(0), *failing.values(), row(1)]), "unreadable"))
    for config in ("none", "iwp-0.5"):
        got = {r["id"][1:]: r for r in lines("unreadable", config, "samples_toy.jsonl")}
        check(len(got) == 6, "%s: samples %s" % (config, sorted(got)))
        for name in failing:
            check(got[name].get("error") and got[name]["score"] == 0, "%s %s: %s" % (config, name, got[name].get("error")))
            if name != "long":
                check(name + ".png" in got[name]["error"], "%s does not name the file: %s" % (name, got[name]["error"]))
        check("error" not in got["0"] and "error" not in got["1"], "%s: good samples beside bad ones" % config)
    check(all((r["n"], r["errors"]) == (6, 4) for r in results("unreadable")), "errors counted: %s" % results("unreadable"))


def other_runs():
    path = manifest("o.jsonl", [row(0)])
    run(*grid(path, "run"))
    before = open(os.path.join(t, "run", "results.json")).read()
    other, other_tower = os.path.join(t, "m16.gguf"), os.path.join(t, "p16.gguf")
    run("convert", os.path.join(golden, "models", "llava-ov"), "-o", other, "--mmproj", other_tower, "--type", "f16")
    swap = lambda args, a, b: [b if x == a else x for x in args]
    run(*swap(grid(path, "run"), model, other), code=1, text="holds results of another model")
    if open(other_tower, "rb").read() != open(tower, "rb").read():
        run(*swap(grid(path, "run"), tower, other_tower), code=1, text="holds results of another mmproj file")
    run(*grid(path, "run", "-ctk", "q8_0"), code=1, text="holds results of other model flags")
    run(*grid(manifest("o.jsonl", [row(0, question="Another?")]), "run"), code=1, text="holds results of other data of task toy")
    check(open(os.path.join(t, "run", "results.json")).read() == before, "a refused run changed the folder")


def limit():
    """Whole groups, categories alike, whatever the order of the lines."""
    ring = [row("%d-%d" % (g, k), task="mmbench", category="ab"[g % 2], group="g%d" % g, choices=["it", "no", "so", "or"], answer=k, scorer=None)
            for g in range(6) for k in range(4)]
    pairs = [row("%d-%d" % (g, k), task="mme", category=("count", "color")[g % 2], group="p%d" % g, answer=("Yes", "No")[k], scorer=None)
             for g in range(6) for k in range(2)]
    taken = []
    for task in ("mmbench", "mme"):  # as they are built in, but short answers
        with open(os.path.join(data, "..", "..", "tasks", task + ".json")) as f:
            short = dict(json.load(f), max_new_tokens=2)
        with open(os.path.join(t, task + ".json"), "w") as f:
            json.dump(short, f)
    for order in (1, -1):
        path = manifest("l.jsonl", (ring + pairs)[::order])
        out = "limit%d" % order
        run(*grid(path, out, "--limit", "6", "--task-dir", t, prune="none"))
        seen = {}
        for task, size, want in (("mmbench", 4, 8), ("mme", 2, 6)):
            got = lines(out, "none", "samples_%s.jsonl" % task)
            groups = {}
            for r in got:
                groups.setdefault((r["category"], r["group"]), []).append(r["id"])
            check(len(got) == want and all(len(g) == size for g in groups.values()), "--limit 6 of %s: %s" % (task, groups))
            kinds = [c for c, _ in groups]
            check(abs(2 * kinds.count(kinds[0]) - len(kinds)) <= 1, "categories of %s: %s" % (task, kinds))
            check([r["n"] for r in results(out) if r["task"] == task] == [want], "n of " + task)
            seen[task] = {k: sorted(v) for k, v in groups.items()}
        taken.append(seen)
    check(taken[0] == taken[1], "the order of the lines changes what --limit takes")


def seeds():
    run(*grid(manifest("s.jsonl", [row(0), row(1)]), "seeds", prune="none,iwp,random"))
    folders = sorted(d for d in os.listdir(os.path.join(t, "seeds")) if os.path.isdir(os.path.join(t, "seeds", d)))
    drawn = ["random-0.5-seed%d" % i for i in range(1, 6)]
    check(folders == ["iwp-0.5", "none", *drawn], "folders: %s" % folders)
    kept = {lines("seeds", d, "samples_toy.jsonl")[0]["keep_bits"] for d in drawn}
    check(len(kept) == 5, "five seeds keep %d sets" % len(kept))
    check({r["prune"]: len(r.get("seed_scores", [])) for r in results("seeds")} == dict(none=0, iwp=0, random=5), "seeds in results.json")


def video():
    """The same frames as a folder, a .txt list and an array, unpruned and pruned; no film, so no FFmpeg."""
    frames = os.path.join(t, "frames")
    os.mkdir(frames)
    names = ["%02d.png" % i for i in range(4)]
    for name in names:
        shutil.copy(os.path.join(os.path.dirname(small), "video", name), frames)
    with open(os.path.join(t, "frames.txt"), "w") as f:
        f.writelines("frames/%s\n" % name for name in names)
    given = ["frames", "frames.txt", ["frames/" + name for name in names], ["frames/" + name for name in names[::-1]]]
    run(*grid(manifest("v.jsonl", [row(i, image=None, video=v, question="What happens?") for i, v in enumerate(given)]), "video"))
    for config, share in (("none", 1), ("iwp-0.5", 0.5)):
        got = [(r.get("error"), r["answer"], r["visual"], r["kept"], r["keep_bits"]) for r in
               sorted(lines("video", config, "samples_toy.jsonl"), key=lambda r: r["doc_id"])]
        check(len(got) == 4 and got[0][0] is None and got[0] == got[1] == got[2], "%s: folder, list, array: %s" % (config, got))
        check(got[0][3] == round(share * got[0][2]) > 0, "%s keeps %d of %d" % (config, got[0][3], got[0][2]))
        check(share == 1 or got[3][4] != got[0][4], "the order of frames changes nothing")
    check([r["errors"] for r in results("video")] == [0, 0], "errors: %s" % results("video"))


t = tempfile.mkdtemp()
try:
    model, tower = os.path.join(t, "m.gguf"), os.path.join(t, "p.gguf")
    run("convert", os.path.join(golden, "models", "llava-ov"), "-o", model, "--mmproj", tower, "--type", "f32")
    for part in (mistakes, unreadable, other_runs, limit, seeds, video):
        part()
finally:
    shutil.rmtree(t)
print("ok" if not bad else "%d failed" % len(bad))
sys.exit(1 if bad else 0)
