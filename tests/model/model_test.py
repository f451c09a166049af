"""Three helpers for the tests of the model scripts. Finds numpy where get-model keeps its own."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "scripts"))
import model_parts      # noqa: E402

sys.path.append(os.path.join(model_parts.cache_dir(), "python-%d.%d" % sys.version_info[:2]))
SKIP = 77
count = [0, 0]
try:
    import numpy      # noqa: F401
except ImportError:
    print("skipped: no numpy (scripts/get-model brings it)")
    sys.exit(SKIP)


def check(ok, what):
    count[0] += 1
    if not ok:
        count[1] += 1
        print("FAIL " + what)


def raises(f, kind, what):
    try:
        f()
    except kind:
        check(True, what)
    else:
        check(False, what + ": no error")


def done():
    print("%s: %d checks, %d failed" % (os.path.basename(sys.argv[0]), count[0], count[1]))
    sys.exit(1 if count[1] else 0)
