"""Every method at three budgets through `iwp run` on the shipped model; the unpruned answer is the reference.

usage: methods_grid.py PROGRAM        (standard library only; skipped when the model is not in the cache)"""
import json
import os
import subprocess
import sys

PROGRAM = os.path.abspath(sys.argv[1])
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "iwp", "models")
PICTURE = os.path.join(CACHE, "astronaut.png")
KEEPS = (0.353, 0.222, 0.111)
failed = []


def check(ok, what):
    if not ok:
        failed.append(what)
        print("FAILED:", what)


def run(*args):
    """(answer or None, message)"""
    r = subprocess.run([PROGRAM, "run", "--image", PICTURE, "-p", "What is in the picture?", "-n", "4", "--json", *args],
                       capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    return (json.loads(r.stdout), "") if r.returncode == 0 else (None, r.stderr.strip())


def table():
    r = subprocess.run([PROGRAM, "methods", "--json"], capture_output=True, text=True, check=True)
    return json.loads(r.stdout)["methods"]


def one(m, keep, full, *rule):
    name = "%s %g %s" % (m["name"], keep, " ".join(rule))
    got, said = run("--prune", m["name"], "--keep", str(keep), *rule)
    if got is None:  # only a budget that cannot be reached, with the range
        several = "multi-stage" in m["flags"] and not rule
        check((several or m["site"] == "media") and "reaches" in said and said.count("\n") == 0, name + ": " + said)
        return None
    n, t, p = full["tokens"]["visual"], got["tokens"], got["prune"]
    check(t["generated"] > 0 and got["answer"], name + ": no answer")
    check(t["visual"] == n or m["site"] == "media", name + ": %d visual tokens, %d without pruning" % (t["visual"], n))
    if m["name"] == "none":
        check(p is None and t["visual_kept"] == n and got["token_ids"] == full["token_ids"], name + ": not the unpruned answer")
        return got
    check(len(p["keep_indices"]) == t["visual_kept"], name + ": the list is not what was kept")
    most = max(1, round(keep * n))
    if m["name"] == "vtw":
        check(t["visual_kept"] == 0, name + ": keeps %d" % t["visual_kept"])
    elif "multi-stage" in m["flags"] and not rule:
        check(abs(p["layer_average"] - keep) < 0.01, name + ": layer average %g" % p["layer_average"])
    elif m["name"] in ("pact", "tome"):
        check(0 < t["visual_kept"] <= most, name + ": keeps %d, asked %d" % (t["visual_kept"], most))
    elif m["site"] != "media":
        check(t["visual_kept"] == most, name + ": keeps %d, promised %d" % (t["visual_kept"], most))
    check(p["prefill_flops"] < p["prefill_flops_full"], name + ": costs as much as all tokens")
    return got


if not os.path.exists(os.path.join(CACHE, "iwp-photo.gguf")) or not os.path.exists(PICTURE):
    print("the shipped model is not in the cache: skipped (make model fetches it)")
    sys.exit(77)
full, said = run()
if full is None:
    sys.exit("methods_grid.py: " + said)
runs = same = 0
for m in table():
    for keep in KEEPS:
        got = one(m, keep, full)
        if got is None and m["site"] == "layer":  # the same budget as one count must do
            got = one(m, keep, full, "--budget-rule", "cut")
        runs += got is not None
        same += got is not None and got["token_ids"] == full["token_ids"]
print("%d runs, %d of them begin like the unpruned answer, %d failures" % (runs, same, len(failed)))
sys.exit(1 if failed else 0)
