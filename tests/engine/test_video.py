"""Videos from outside, on the golden checkpoints: a film, a folder and a list of the same frames say the same.

The films are made without loss by the ffmpeg program (skipped without it), so every number must be equal: tokens,
positions, pixels, kept sets, answers.  Also: choice of frames, budgets per frame, contact sheets, chat, eval, and
bad films.

usage: test_video.py PROGRAM DATA        (standard library only)"""
import glob
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

PROGRAM, DATA = (os.path.abspath(a) for a in sys.argv[1:3])
GOLDEN = os.path.join(DATA, "golden")
failed = []


def check(ok, what):
    if not ok:
        failed.append(what)
        print("FAILED:", what)


def run(*args, stdin=""):
    return subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=300, input=stdin)


def iwp(*args, stdin=""):
    r = run(*args, stdin=stdin)
    if r.returncode:
        sys.exit("iwp %s: exit %d: %s" % (" ".join(args), r.returncode, r.stderr))
    return r.stdout


def ffmpeg(*args):
    subprocess.run(["ffmpeg", "-v", "error", "-nostdin", "-y", *args], check=True)


def tensors(path):
    with open(path, "rb") as f:
        data = f.read()
    n, = struct.unpack("<Q", data[:8])
    head = json.loads(data[8:8 + n])
    return {k: data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]] for k, v in head.items() if k != "__metadata__"}


def png_size(path):
    with open(path, "rb") as f:
        return struct.unpack(">II", f.read(24)[16:24])


def refused(base, film, text, *flags):
    """One line about it, and nothing was encoded before."""
    said = subprocess.run([PROGRAM, *base, "-p", "What happens?", "-n", "1", "--video", film, *flags], capture_output=True, text=True, timeout=60,
                          stdin=subprocess.DEVNULL)
    check(said.returncode == 1 and text in said.stderr and said.stderr.count("\n") == 1 and "encode" not in said.stderr,
          "%s %s: exit %d, %s" % (film, flags, said.returncode, said.stderr))


def same(d, name, base, film, frames, extra):
    """The film against the folder and a list."""
    ask = [*base, "-p", "What happens?", "-n", "4", "--json", "--prune", "iwp", "--keep", "25%", *extra]
    want = json.loads(iwp(*ask, "--video", frames, "--dump-tensors", d + "/folder.st"))
    got = json.loads(iwp(*ask, "--video", film, "--frames", "8", "--dump-tensors", d + "/film.st"))
    for k in ("tokens", "token_ids", "answer"):
        check(got[k] == want[k], "%s: %s of film and folder: %s, %s" % (name, k, got[k], want[k]))
    check(got["prune"]["keep_indices"] == want["prune"]["keep_indices"], name + ": kept sets")
    a, b = tensors(d + "/film.st"), tensors(d + "/folder.st")
    check(a.keys() == b.keys() and "pixel_values" in a and "position_ids" in a, name + ": tensors")
    check([k for k in a if a[k] != b[k]] == [], name + ": tensors differ: %s" % [k for k in a if a[k] != b[k]])
    image = got["images"][0]
    check(image["frames"] == list(range(8)) and len(image["seconds"]) == 8, name + ": frames %s" % image.get("frames"))
    with open(d + "/frames.txt", "w") as f:
        f.write("".join(os.path.abspath(x) + "\n" for x in sorted(glob.glob(frames + "/*.png"))))
    listed = json.loads(iwp(*ask, "--video", d + "/frames.txt"))
    check(listed["token_ids"] == want["token_ids"] and listed["tokens"] == want["tokens"], name + ": list of frames")
    return got


def frame_budgets(base, film, frames, per_frame):
    ask = [*base, "-p", "What happens?", "-n", "1", "--json", "--prune", "iwp", "--keep", "25%", "--video", film, "--frames", "8"]
    whole, each = (json.loads(iwp(*ask, "--budget-scope", s)) for s in ("global", "frame"))
    count = lambda r: [sum(1 for i in r["prune"]["keep_indices"] if i // per_frame == f) for f in range(8)]
    n = whole["tokens"]["visual"]
    check(whole["tokens"]["visual_kept"] == round(n * 0.25), "global budget: %d of %d" % (whole["tokens"]["visual_kept"], n))
    got = count(each)
    # the newline at the very end belongs to the last frame
    check(all(x == round(per_frame * 0.25) for x in got[:-1]), "budget per frame: %s" % got)
    check(got != count(whole) or len(set(count(whole))) > 1, "global budget is not per frame: %s" % count(whole))


def all_methods(base, film):
    """Every method runs over the tokens of all frames, with one budget; a refusal is one line that says why."""
    table = json.loads(iwp("methods", "--json"))
    table = table if isinstance(table, list) else table["methods"]
    ran = []
    for name in [m["name"] for m in table if m["name"] != "none"]:
        r = run(*base, "-p", "What?", "-n", "1", "--json", "--video", film, "--frames", "4", "--prune", name, "--keep", "50%")
        if r.returncode:
            check(r.returncode in (1, 2) and r.stderr.count("\n") == 1, "%s: exit %d: %s" % (name, r.returncode, r.stderr))
            print("not on a video:", r.stderr.strip())
            continue
        got = json.loads(r.stdout)["tokens"]
        ran.append(name)  # methods in front of the decoder leave the newline alone
        check(got["visual_kept"] <= round(got["visual"] * 0.5) + 1, "%s keeps %d of %d" % (name, got["visual_kept"], got["visual"]))
    check({"iwp", "fastv", "divprune", "pact"} <= set(ran), "methods on a video: %s" % ran)


def sampling(base, d):
    """Numbers of the frames that are taken."""
    film = d + "/long.mp4"
    ffmpeg("-f", "lavfi", "-i", "testsrc=s=64x48:r=10:d=10", "-c:v", "libx264", "-g", "20", "-pix_fmt", "yuv420p", film)
    ask = [*base, "-p", "?", "-n", "1", "--json", "--video", film]
    frames = lambda *a: json.loads(iwp(*ask, *a))["images"][0]
    f = frames("--frames", "5")
    check(f["frames"] == [0, 24, 49, 74, 99], "floor(linspace): %s" % f["frames"])
    check([round(t, 3) for t in f["seconds"]] == [0, 2.4, 4.9, 7.4, 9.9] and abs(f["fps"] - 0.5) < 1e-9, "times: %s" % f["seconds"])
    f = frames("--fps", "0.5")
    check(f["frames"] == [0, 25, 50, 74, 99], "round(linspace): %s" % f["frames"])  # 24.75, 49.5, 74.25
    check(len(frames("--fps", "4", "--frames", "10")["frames"]) == 10, "--frames bounds --fps")
    check(len(frames("--fps", "0.01")["frames"]) == 4, "at least four")
    check(len(frames()["frames"]) == 32, "32 by default")
    refused(base, film, "visual tokens, the context holds 64", "-c", "64")
    os.mkfifo(d + "/pipe.mp4")
    refused(base, d + "/pipe.mp4", "no regular file")


def drawings(base, d, film):
    ask = [*base, "-p", "What?", "-n", "1", "--prune", "iwp", "--keep", "25%", "--video", film, "--frames", "8"]
    iwp(*ask, "--overlay", d + "/sheet.png", "--prune-dump", d + "/sheet.svg")
    one = [*base, "-p", "What?", "-n", "1", "--prune", "iwp", "--keep", "25%", "--video", film, "--frames", "1"]
    iwp(*one, "--overlay", d + "/one.png")
    (w, h), (w1, h1) = png_size(d + "/sheet.png"), png_size(d + "/one.png")
    check(w * h > 4 * w1 * h1 / 2 and w > w1, "contact sheet %dx%d, one frame %dx%d" % (w, h, w1, h1))
    kept = json.loads(iwp(*ask, "--json"))["prune"]["keep_indices"]
    with open(d + "/sheet.svg") as f:
        drawn = f.read().count('fill="#f5b83d"')
    check(drawn == len([i for i in kept if i < 8 * 16]), "cells of the sheet: %d of %d" % (drawn, len(kept)))


def evaluation(base, d, film, frames):
    with open(d + "/m.jsonl", "w") as f:
        pics = sorted(glob.glob(frames + "/*.png"))
        for i, video in enumerate((film, frames, pics)):
            f.write(json.dumps({"id": str(i), "task": "t", "video": video, "question": "What happens?", "answer": "x", "scorer": "exact", "max_new_tokens": 4}) + "\n")
    iwp("eval", *base[1:], "--tasks", d + "/m.jsonl", "--prune", "none,iwp", "--keep", "25%", "--frames", "8", "--out", d + "/out")
    for path in glob.glob(d + "/out/*/samples_*.jsonl"):
        with open(path) as f:
            rows = [json.loads(x) for x in f]
        check(len(rows) == 3 and not any("error" in r for r in rows), "%s: %s" % (path, rows))
        check(len({(r["answer"], r["keep_hash"], r["visual"]) for r in rows}) == 1, "eval of film, folder and list: %s" % path)
    check(len(glob.glob(d + "/out/*/samples_*.jsonl")) == 2, "two configurations")


def chat(base, film):
    r = run(*base, "-n", "4", "--frames", "8", stdin="/video %s\nWhat happens?\n/video /nowhere.mp4\nAnd then?\n" % film)
    check(r.returncode == 0 and "no such file" in r.stderr and len(r.stdout.strip().split("\n")) >= 1, "chat: %s" % r.stderr[-300:])
    first = json.loads(iwp(*base, "-n", "4", "--frames", "8", "--video", film, "-p", "What happens?", "--json"))["answer"]
    check(r.stdout.startswith(first), "chat says %r, run %r" % (r.stdout[:80], first))


def bad(base, d, film):
    with open(film, "rb") as f:
        data = f.read()
    r = run(*base, "-p", "?", "--image", film)
    check(r.returncode == 1 and "films go to --video" in r.stderr, "a film as a picture: " + r.stderr)
    films = {"empty.mp4": (b"", "is empty"), "cut.mov": (data[:len(data) // 2], "cut.mov"), "text.mp4": (b"words " * 50, "is no MP4"),
             "list.txt": (b"\n\n", "names no pictures"), "zero.txt": (b"a\0b", "is no list"), "wrong.txt": (b"/nowhere/x.png\n", "/nowhere/x.png")}
    for name, (content, says) in films.items():
        with open(d + "/" + name, "wb") as f:
            f.write(content)
        r = run(*base, "-p", "?", "--video", d + "/" + name)
        lines = r.stderr.strip().split("\n")
        check(r.returncode == 1 and r.stdout == "" and len(lines) == 1 and says in r.stderr and lines[0].startswith("iwp run: "),
              "%s: exit %d: %s" % (name, r.returncode, r.stderr))


def main():
    if not shutil.which("ffmpeg"):
        print("no ffmpeg program: skipped")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as d:
        for model, extra, rate in (("llava-ov", ["--chat-template", "llava-onevision"], "2"),
                                   ("qwen2.5-vl", [], "2.5")):
            folder = os.path.join(GOLDEN, "models", model)
            if not os.path.exists(folder):  # the larger set has it
                folder = os.path.join(os.environ.get("IWP_SHARED", ""), "golden", "models", model)
            if not os.path.exists(folder):
                print(model + ": no checkpoint here (IWP_SHARED): left out")
                continue
            iwp("convert", folder, "-o", d + "/m.gguf", "--mmproj", d + "/mm.gguf")
            base = ["run", "-m", d + "/m.gguf", "-mm", d + "/mm.gguf", "-t", "1", *extra]
            frames = os.path.join(GOLDEN, "vectors", model, "images", "video")
            film = os.path.join(d, model + ".mov")
            ffmpeg("-framerate", rate, "-i", frames + "/%02d.png", "-c:v", "png", film)
            r = run(*base, "-p", "?", "-n", "1", "--video", film)
            if "without FFmpeg" in r.stderr:
                print("built without the FFmpeg libraries: skipped")
                sys.exit(77)
            if model == "llava-ov":
                same(d, model, base, film, frames, [])
                frame_budgets(base, film, frames, 16)
                all_methods(base, film)
                drawings(base, d, film)
                sampling(base, d)
                evaluation(base, d, film, frames)
                chat(base, film)
                bad(base, d, film)
            else:  # a film's frames have larger bounds of their own
                bounds = ["--image-min-tokens", "4", "--image-max-tokens", "64", "--fps", rate]
                got = same(d, model, base, film, frames, bounds)
                check(abs(got["images"][0]["fps"] - 2.5) < 1e-9, "rate of the film: %s" % got["images"][0]["fps"])
                free = json.loads(iwp(*base, "-p", "?", "-n", "1", "--json", "--video", film, "--frames", "5"))
                check(len(free["images"][0]["frames"]) == 4, "an even number of frames: %s" % free["images"][0])
                rows, cols = free["images"][0]["grids"][0]
                check(128 <= rows * cols <= 768, "tokens of a film's frame: %d x %d" % (rows, cols))
    print("%d failed" % len(failed))
    sys.exit(bool(failed))


main()
