"""What the tests of iwp eval share: the program and how it ends, checks that are counted, the golden checkpoint, JSONL.

A test is called with the program and the folder of test data."""
import json
import os
import subprocess
import sys
import tempfile

iwp, data = (os.path.abspath(a) for a in sys.argv[1:3])
golden = os.path.join(data, "golden")
pictures = os.path.join(golden, "vectors", "llava-ov", "images")
small = os.path.join(pictures, "small.png")
bad = []


def check(ok, what):
    if not ok:
        bad.append(what)
        print("failed:", what)


def run(*args, code=0, text=None):
    """What `iwp ARGS` says on stdout; `text`: its one line on stderr has this in it."""
    p = subprocess.run([iwp, *args], capture_output=True, text=True, timeout=600)
    check(p.returncode == code, "exit %d, want %d: %s\n%s" % (p.returncode, code, " ".join(args), p.stderr))
    if text:
        check(text in p.stderr and p.stderr.count("\n") == 1, "'%s' not in one line: %s" % (text, p.stderr))
    return p.stdout


def convert(folder, checkpoint="llava-ov", kind="f32"):
    """A golden checkpoint as flags: -m FILE -mm FILE."""
    model, tower = (os.path.join(folder, "%s-%s.gguf" % (name, kind)) for name in ("m", "p"))
    run("convert", os.path.join(golden, "models", checkpoint), "-o", model, "--mmproj", tower, "--type", kind)
    return ["-m", model, "-mm", tower]


def read(*path):
    with open(os.path.join(*path), "rb") as f:
        return f.read()


def lines(*path):
    """The documents of a JSONL file."""
    return [json.loads(x) for x in read(*path).decode().splitlines()]


def write_lines(path, rows):
    with open(path, "w") as f:
        f.writelines(json.dumps(r) + "\n" for r in rows)
    return path


def folder():
    return tempfile.TemporaryDirectory()


def finish():
    print("ok" if not bad else "%d failed" % len(bad))
    sys.exit(1 if bad else 0)
