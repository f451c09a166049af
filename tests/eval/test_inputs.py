"""What iwp eval takes and refuses, from outside, on the golden checkpoint: manifests with mistakes, pictures that cannot
be read, questions that are too long, results folders of other runs, --limit, seeds, frames of a
video."""
import hashlib
import json
import os
import shutil
import subprocess

from kit import check, convert, data, finish, folder, iwp, read, run, small, write_lines
from kit import lines as lines_of


def lines(*path):
    return lines_of(t, *path)


def results(out):
    return json.loads(read(t, out, "results.json"))["runs"]


def row(i, **more):
    r = dict(id="q%s" % i, task="toy", image=small, question="Is it %s?" % i, answer="yes", scorer="yesno", max_new_tokens=2)
    r.update(more)
    return {k: v for k, v in r.items() if v is not None}


def manifest(name, rows):
    return write_lines(os.path.join(t, name), rows)


def grid(tasks, out, *more, prune="none,iwp"):
    return ["eval", *model, "-t", "1", "--tasks", tasks, "--prune", prune, "--keep", "50%", "--out",
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
             (row(1, task="mme", category="count", scorer=None), "needs 'group'"), (row(1, task="mme", group="g", scorer=None), "needs 'category'"),
             (row(1, task="photo-yesno", scorer="guess"), "no scorer is called 'guess'"), (row(1, scorer="nll"), "scorer nll beside others"),
             (row(1, task="photo-yesno", scorer="number"), "scorer 'number' is not that of task 'photo-yesno', which is yesno"),
             (row(1, task="photo-yesno", scorer="nll"), "scorer 'nll' is not that of task 'photo-yesno', which is yesno"),
             (row(1, task="photo-nll"), "scorer 'yesno' is not that of task 'photo-nll', which is nll"),
             (row(1, task="gen-count"), "scorer 'yesno' is not that of task 'generated', which is number"),
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


def accepted():
    """A line may repeat its task's scorer; one that --tasks puts into another task is scored as that one says; a file may
    begin with a byte order mark."""
    path = manifest("own.jsonl", [row(0, task="photo-yesno"), row(1, task="gen-count", scorer="number"), row(2, task="photo-nll", scorer="nll")])
    text = read(path)
    with open(path, "wb") as f:
        f.write(b"\xef\xbb\xbf" + text)
    run(*grid(path, "own", prune="none"))
    check([(r["task"], r["n"], r["errors"]) for r in results("own")] == [("photo-yesno", 1, 0), ("generated", 1, 0), ("photo-nll", 1, 0)],
          "scorers repeated: %s" % results("own"))
    run(*grid("photo-count=" + manifest("moved.jsonl", [row(0)]), "moved", prune="none"))


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
    before = read(t, "run", "results.json")
    other = convert(t, kind="f16")
    swap = lambda args, a, b: [b if x == a else x for x in args]
    run(*swap(grid(path, "run"), model[1], other[1]), code=1, text="holds results of another model")
    if read(other[3]) != read(model[3]):
        run(*swap(grid(path, "run"), model[3], other[3]), code=1, text="holds results of another mmproj file")
    run(*grid(path, "run", "-ctk", "q8_0"), code=1, text="holds results of other model flags")
    run(*grid(manifest("o.jsonl", [row(0, question="Another?")]), "run"), code=1, text="holds results of other data of task toy")
    check(read(t, "run", "results.json") == before, "a refused run changed the folder")


def changed_media():
    """Results belong to bytes: a picture that changes under its name is seen, and names that are equal in two
    folders are two pictures."""
    here, there = os.path.join(t, "here"), os.path.join(t, "there")
    for d, source in ((here, small), (there, os.path.join(os.path.dirname(small), "wide.png"))):
        os.mkdir(d)
        shutil.copy(source, os.path.join(d, "p.png"))
    shutil.copytree(os.path.join(os.path.dirname(small), "video"), os.path.join(t, "seen"))
    a = manifest("here/m.jsonl", [row(0, image="p.png"), row(1, image="p.png")])
    b = manifest("there/m.jsonl", [row(2, image="p.png"), row(3, image="p.png"), row(4, image=None, video="../seen")])
    run(*grid(a + "," + b, "two"))
    whole = read(t, "two", "results.json")
    got = lines("two", "none", "samples_toy.jsonl")
    check([r["medium"] for r in got] == 4 * ["p.png"] + ["../seen"], "names: %s" % [r["medium"] for r in got])
    check(len({r["media_sha256"][0] for r in got}) == 3 and got[0]["media_sha256"] == got[1]["media_sha256"], "hashes of media")
    check([r["df"] for r in results("two")] == [2, 2], "three clusters: %s" % results("two"))
    with open(os.path.join(here, "p.png"), "rb") as f:
        check(got[0]["media_sha256"] == [hashlib.sha256(f.read()).hexdigest()], "the hash is that of the file")
    # nothing to do, with and without what is remembered, after a touch, and from another place: the same bytes
    for change in (lambda: None, lambda: os.remove(os.path.join(t, "two", "media.jsonl")), lambda: os.utime(os.path.join(here, "p.png"))):
        change()
        run(*grid(a + "," + b, "two"))
        check(read(t, "two", "results.json") == whole, "results of the same pictures differ")
    # one bit in a file of the same size, touched a nanosecond later; one in a frame of a folder, at the same time
    picture, frame = os.path.join(here, "p.png"), os.path.join(t, "seen", "02.png")
    listed, files = read(t, "two", "run.json"), sorted(os.listdir(os.path.join(t, "two")))
    for path in (picture, frame):
        old, st = read(path), os.stat(path)
        with open(path, "r+b") as f:
            f.seek(len(old) // 2)
            f.write(bytes([old[len(old) // 2] ^ 1]))
        os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns + (path == picture)))
        run(*grid(a + "," + b, "two", prune="none,iwp,fastv"), code=1, text="is not what it was when")
        check(read(t, "two", "results.json") == whole and read(t, "two", "run.json") == listed and
              sorted(os.listdir(os.path.join(t, "two"))) == files, "a refused run changed the folder")
        with open(path, "wb") as f:
            f.write(old)
    run(*grid(a + "," + b, "two"))
    check(read(t, "two", "results.json") == whole, "results after the pictures are back")
    # other bytes from the start are other data
    shutil.copy(os.path.join(there, "p.png"), picture)
    run(*grid(a + "," + b, "other"))
    hashes = [json.loads(x)["hashes"]["data"]["toy"] for x in (whole, read(t, "other", "results.json"))]
    check(hashes[0] != hashes[1], "data hashes of other pictures are equal")
    check([r["df"] for r in results("other")] == [1, 1], "one picture under two names is one cluster")


def refused():
    path = manifest("r.jsonl", [row(0)])
    base = ["eval", *model, "--tasks", path, "--out", os.path.join(t, "x")]
    for value in ("nan", "inf", "0", "-1", "1.5", "x", "50%%"):
        run(*base, "--prune", "none", "--keep", value, code=2, text="--keep")
    run(*base, "--keep-tokens", "many", code=2, text="--keep-tokens")
    run(*base, "--keep", ".1", code=2, text="--keep without --prune")
    run(*base, "--keep-tokens", "9", code=2, text="--keep-tokens without --prune")
    check(not os.path.exists(os.path.join(t, "x")), "a folder was left by a refused command")


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


with folder() as t:
    model = convert(t)
    for part in (mistakes, accepted, unreadable, other_runs, changed_media, refused, limit, seeds, video):
        part()
finish()
