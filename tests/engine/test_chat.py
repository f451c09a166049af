"""The chat of iwp run, lines through a pipe, on a golden checkpoint.

usage: test_chat.py PROGRAM DATA        (standard library only)"""
import json
import os
import subprocess
import sys
import tempfile

PROGRAM, DATA = (os.path.abspath(a) for a in sys.argv[1:3])
GOLDEN = os.path.join(DATA, "golden")
ASK = "What is this?"
failed = []


def check(ok, what, *more):
    if not ok:
        failed.append(what)
        print("FAILED:", what, *more)


def run(args, lines=None):
    text = None if lines is None else "".join(line + "\n" for line in lines)
    return subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=300, input=text or "")


def main():
    with tempfile.TemporaryDirectory() as d:
        r = run(["convert", os.path.join(GOLDEN, "models", "llava-ov"), "-o", d + "/m.gguf", "--mmproj", d + "/p.gguf",
                 "--type", "f32"])
        if r.returncode:
            sys.exit("convert: " + r.stderr)
        images = os.path.join(DATA, "media")
        picture = os.path.join(images, "llava-ov-small.png")
        base = ["run", "-m", d + "/m.gguf", "-mm", d + "/p.gguf", "-n", "6", "-t", "1", "-ctk", "f32", "-ctv", "f32"]
        alone = {}
        for name, more in (("text", []), ("all", ["--image", picture]),
                           ("half", ["--image", picture, "--prune", "iwp", "--keep", "50%"]),
                           ("ten", ["--image", picture, "--prune", "uniform", "--keep-tokens", "10"])):
            alone[name] = json.loads(run([*base, *more, "-p", ASK, "--json"]).stdout)

        def chat(lines, *more):
            r = run([*base, *more], lines)
            check("Sanitizer" not in r.stderr, "no sanitizer message", r.stderr[-500:])
            return r

        # One turn is what a single question gives; /clear forgets; /quit and the end of input leave quietly.
        r = chat([ASK, "/clear", ASK, "/quit", "never asked"])
        check(r.returncode == 0 and r.stdout.count(alone["text"]["answer"]) == 2 and "never" not in r.stdout,
              "the same answer after /clear", r.stdout)
        r = chat(["/image " + picture, ASK])
        check(r.returncode == 0 and alone["all"]["answer"] in r.stdout, "/image goes with the next question", r.stdout)
        r = chat([ASK], "--image", picture)
        check(alone["all"]["answer"] in r.stdout, "--image goes with the first question", r.stdout)

        # Another budget on the same conversation: the picture is encoded once, the selection made anew.
        r = chat(["/image " + picture, "/prune iwp", "/keep 50%", ASK, "/clear", "/image " + picture, "/prune uniform",
                  "/keep 10", ASK, "/clear", "/prune none", "/image " + picture, ASK])
        for name in ("half", "ten", "all"):
            check(alone[name]["answer"] in r.stdout, "answer of " + name, r.stdout, alone[name]["answer"])
        kept = "-> %d visual" % len(alone["half"]["prune"]["keep_indices"])
        check(kept in r.stderr, "the summary says %s" % kept, r.stderr)
        check(r.returncode == 0, "exit code", r.returncode)

        # Every mistake is one line, and the conversation goes on as if it had not been made.
        bad = d + "/no.png"
        with open(bad, "w") as f:
            f.write("no picture")
        for line, want in (("/wrong", "unknown command /wrong"), ("/image", "/image needs a file"),
                           ("/image " + d + "/gone.png", "no such file"), ("/video", "/video needs a file"),
                           ("/prune", "/prune needs"), ("/prune nothing-like-it", "nothing-like-it"), ("/keep", "/keep needs"),
                           ("/keep 1.5", "1.5"), ("/keep x", "x"), ("/keep 99999999999", "too many")):
            r = chat([line, ASK])
            check(want in r.stderr and alone["text"]["answer"] in r.stdout and r.returncode == 0, line, r.stderr)
        r = chat(["/image " + bad, ASK, ASK])
        check(r.returncode == 0, "a question after a mistake was answered", r.returncode)
        r = chat(["/image " + bad, ASK])
        check(r.returncode == 1 and r.stderr.count("iwp run:") == 1, "the last question was not answered", r.returncode, r.stderr)
        r = chat(["/image " + bad, ASK, ASK])
        check(r.stderr.count("iwp run:") == 1 and alone["text"]["answer"] in r.stdout, "a bad picture goes with its turn", r.stdout, r.stderr)
        r = chat(["/image " + picture, "/prune iwp", "/keep 100000", ASK, "/keep 50%", ASK])
        want = chat(["/image " + picture, "/prune iwp", "/keep 50%", ASK])
        check("100000" in r.stderr and r.stdout == want.stdout, "a picture outlasts a budget out of reach", r.stdout, r.stderr)
        r = chat(["/help"])
        check("/image FILE" in r.stderr and not r.stdout.strip(), "/help", r.stderr)


main()
sys.exit(1 if failed else 0)
