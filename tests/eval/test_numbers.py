"""results.json from the samples files with numpy: means, standard errors clustered by picture, paired differences with
their intervals, means over seeds and categories, pairs, circular groups, Avg. %.  The golden checkpoint answers; what
counts as right is taken from its own answers, so that scores are neither 0 nor 100."""
import copy
import json
import os

import numpy as np

from kit import check, convert, finish, folder, lines, pictures, read, run, write_lines

AGGREGATES = dict(flat="mean", kinds="category", two="pairs", ring="circular", said="nll")
METHODS = ["none", "iwp", "fastv", "random"]


# ---- the same numbers once more ------------------------------------------------------------------------

def units(how, rows):
    """{key: (category, medium, value)}: what a mean is taken over, a sample or a group of them."""
    if how == "nll":
        return {r["doc_id"]: (r.get("category"), r["media_sha256"][0] or r["medium"], r["score"]) for r in rows if "error" not in r}
    if how in ("mean", "category"):
        return {r["doc_id"]: (r.get("category"), r["media_sha256"][0] or r["medium"], 100 * r["score"]) for r in rows}
    groups = {}
    for r in sorted(rows, key=lambda r: r["doc_id"]):
        groups.setdefault((r["category"] if how == "pairs" else "", r["group"]), []).append(r)
    out = {}
    for g in groups.values():
        scores = np.array([r["score"] for r in g])
        value = 100.0 * bool((scores == 1).all())
        if how == "pairs":
            value += 100 * scores.mean()
        out[g[0]["doc_id"]] = (g[0]["category"], g[0]["media_sha256"][0] or g[0]["medium"], value)
    return out


def t_quantile(df):
    """What 2.5 % of Student's t lie above.  With x = sqrt(df) tan(a) the density is cos(a)^(df - 1), which is integrated."""
    node, weight = np.polynomial.legendre.leggauss(60)
    area = lambda a: a / 2 * (weight * np.cos(a / 2 * (node + 1)) ** (df - 1)).sum()
    low, high = 0, np.pi / 2
    for _ in range(60):
        mid = (low + high) / 2
        low, high = (mid, high) if area(mid) < 0.95 * area(np.pi / 2) else (low, mid)
    return np.sqrt(df) * np.tan(low)


def degrees(how, u):
    kinds = {x[0] for x in u} if how in ("category", "pairs") else {None}
    return sum(len({m for c, m, _ in u if k is None or c == k}) - 1 for k in kinds)


def one_stratum(u):
    x = np.array([v for _, _, v in u])
    media = sorted({m for _, m, _ in u})
    sums = np.zeros(len(media))
    np.add.at(sums, [media.index(m) for _, m, _ in u], x - x.mean())
    c = len(media)
    return x.mean(), np.sqrt(c / (c - 1) * (sums ** 2).sum()) / len(x) if c > 1 else np.nan


def estimate(how, u):
    if how not in ("category", "pairs"):
        return one_stratum(u)
    parts = [one_stratum([x for x in u if x[0] == c]) for c in sorted({x[0] for x in u})]
    weight = 1 / len(parts) if how == "category" else 1
    return weight * sum(m for m, _ in parts), weight * np.sqrt(sum(s * s for _, s in parts))


def recompute(out):
    """{(task, method): fields} and {method: Avg. %}."""
    runs, average = {}, {}
    for task, how in AGGREGATES.items():
        for method in METHODS:
            folders = sorted(d for d in os.listdir(out) if d.split("-")[0] == method)
            samples = [lines(out, d, "samples_%s.jsonl" % task) for d in folders]
            seeds = [units(how, s) for s in samples]
            u = {k: (*seeds[0][k][:2], np.mean([s[k][2] for s in seeds])) for k in seeds[0]}
            if method == "none":
                base = u
            score, se = estimate(how, list(u.values()))
            diff, dse = estimate(how, [(*u[k][:2], u[k][2] - base[k][2]) for k in u])
            df = degrees(how, list(u.values()))
            half = t_quantile(df) * dse if dse else 0
            r = dict(n=len(samples[0]), errors=sum("error" in x for s in samples for x in s), score=score, stderr=se, df=df, diff=diff,
                     diff_stderr=dse, diff_interval=[diff - half, diff + half])
            r["categories"] = {c: one_stratum([x for x in u.values() if x[0] == c])[0] for c in sorted({x[0] for x in u.values()})}
            if len(seeds) > 1:
                r["seed_scores"] = [estimate(how, list(s.values()))[0] for s in seeds]
            runs[task, method] = r
    for method in METHODS:
        average[method] = np.mean([100 * runs[t, method]["score"] / runs[t, "none"]["score"] for t in AGGREGATES if t != "said"])
    return runs, average


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if b is None or np.isnan(a):
        return b is None and np.isnan(a)
    return bool(np.isclose(a, b, rtol=1e-9, atol=1e-9))


def differences(want, res):
    runs, average = want
    got = {(r["task"], r["prune"]): r for r in res["runs"]}
    out = [] if got.keys() == runs.keys() else ["rows: %s" % sorted(got)]
    for key, r in runs.items():
        out += ["%s %s: %s, %s from the samples" % (key, k, got[key].get(k), v) for k, v in r.items() if not same(v, got[key].get(k))]
    shown = {a["prune"]: a["value"] for a in res["average_percent"]}
    return out if same(average, shown) else out + ["Avg. %%: %s, %s from the samples" % (shown, average)]


# ---- the run ---------------------------------------------------------------------------------------------

with folder() as t:
    model = convert(t)
    with open(os.path.join(t, "broken.png"), "w") as f:
        f.write("no picture")
    for name, how in AGGREGATES.items():
        with open(os.path.join(t, name + ".json"), "w") as f:
            task = dict(name=name, title=name, prompt="{question}", scorer="nll" if how == "nll" else "exact", max_new_tokens=2)
            json.dump(task if how == "nll" else dict(task, aggregate=how), f)
    # four pictures, unequally often; groups of two questions about one picture, all four pictures in each category
    shown = [os.path.join(pictures, p) for p in ("small.png", "wide.png", "video/00.png", "video/04.png")]
    order = [0, 1, 2, 3, 0, 2, 3, 1, 0, 0]
    rows = [dict(id="q%d" % i, image=shown[p], question="Question %d about it?" % i, category="ab"[i // 2 % 2], group="g%d" % (i // 2),
                 answers=["x"]) for i, p in enumerate(p for p in order for _ in (0, 1))]
    rows.append(dict(rows[0], id="bad", image="broken.png", group="last"))

    def grid(tasks, out, *more):
        return ["eval", *model, "-t", "1", "--task-dir", t, "--tasks", tasks, "--out", os.path.join(t, out),
                "--prune", ",".join(METHODS), "--keep", "10%", *more]

    # first round: what is answered; second: two of three questions have the unpruned answer, others that of a pruned run
    first = os.path.join(t, "first.jsonl")
    write_lines(first, rows)
    run(*grid("flat=" + first, "first", "--seeds", "1"))
    said = {d: {r["id"]: r["answer"] for r in lines(t, "first", d, "samples_flat.jsonl")} for d in ("none", "iwp-0.1")}
    for i, r in enumerate(rows):
        r["answers"] = [said["none" if i % 5 < 3 else "iwp-0.1"][r["id"]] or "nothing", "or a dog"]
    second = os.path.join(t, "second.jsonl")
    write_lines(second, rows)
    out = os.path.join(t, "out")
    run(*grid(",".join("%s=%s" % (name, second) for name in AGGREGATES), "out", "--seeds", "2"))

    def results():
        return json.loads(read(out, "results.json"))

    res, want = results(), recompute(out)
    for d in differences(want, res):
        check(False, d)
    # there is something to compare: no score, error or difference is trivial
    runs = want[0]
    check(all(0 < runs[k, "none"]["score"] < 100 for k in ("flat", "kinds", "ring")), "unpruned scores %s" % runs)
    check(all(runs[k, "none"]["stderr"] > 0 for k in AGGREGATES), "a standard error is 0")
    check(runs["said", "iwp"]["diff"] != 0 and runs["said", "iwp"]["diff_stderr"] > 0, "differences of nll")
    check(runs["flat", "random"]["errors"] == 2 and runs["flat", "none"]["errors"] == 1 and runs["said", "none"]["n"] == 21, "errors")
    flat = [v[2] for v in units("nll", lines(out, "none", "samples_said.jsonl")).values()]
    check(not np.isclose(np.std(flat, ddof=1) / np.sqrt(len(flat)), runs["said", "none"]["stderr"]), "clusters change nothing")

    # another score in a samples file: the report follows it, and the comparison sees that the old one does not
    path = os.path.join(out, "iwp-0.1", "samples_flat.jsonl")
    changed = lines(path)
    changed[3]["score"] = 1 - changed[3]["score"]
    write_lines(path, changed)
    want = recompute(out)
    seen = differences(want, res)
    check(any("score" in d for d in seen) and any("diff_interval" in d for d in seen) and any("Avg." in d for d in seen),
          "a changed score is not seen: %s" % seen)
    run("report", out)
    for d in differences(want, results()):
        check(False, "after a changed score: " + d)
    wrong = copy.deepcopy(results())
    for r in wrong["runs"]:
        r["stderr"] += 1e-6
    check(len(differences(want, wrong)) == len(wrong["runs"]), "a wrong standard error is not seen")
finish()
