"""iwp eval and iwp report from outside, on the golden checkpoint: resume after kill -9, shards, bad input."""
import base64
import json
import os
import random
import shutil
import subprocess
import time

from kit import check, convert, finish, folder, iwp, lines, pictures, read, run, small, write_lines

with folder() as t:
    model = convert(t)
    shutil.copy(small, t)
    with open(os.path.join(t, "broken.png"), "wb") as f:
        f.write(b"no picture")
    rows = [dict(id="q%d" % i, task="toy", image="small.png", question="Is it %d?" % i, answer="yes", scorer="yesno",
                 category="ab"[i % 2], max_new_tokens=2) for i in range(3)]
    rows.append(dict(id="bad", task="toy", image="broken.png", question="?", answer="no", scorer="yesno", category="a"))
    rows.append(dict(id="n", task="said", image="small.png", question="Say", answers=["a dog", "the cat"], scorer="nll"))
    manifest = write_lines(os.path.join(t, "t.jsonl"), rows)

    def grid(out, *more):
        return ["eval", *model, "-t", "1", "--tasks", manifest, "--prune", "none,iwp,random",
                "--keep", "50%,0.25", "--seeds", "2", "--out", os.path.join(t, out), *more]

    table = run(*grid("whole"))
    check("| iwp | 50% |" in table and table.count("\n|") >= 6, "table on stdout: " + table)
    whole = read(t, "whole", "results.json")
    res = json.loads(whole)
    check(len(res["runs"]) == 10, "five rows of two tasks")
    toy = {(r["prune"], r["keep"]): r for r in res["runs"] if r["task"] == "toy"}
    check(all(r["n"] == 4 and r["errors"] == (2 if p == "random" else 1) for (p, k), r in toy.items()), "errors counted")
    check(toy[("none", None)]["diff"] == 0 and set(toy[("iwp", 0.5)]["categories"]) == {"a", "b"}, "categories")
    said = {(r["prune"], r["keep"]): r for r in res["runs"] if r["task"] == "said"}
    check(said[("none", None)]["score"] > 0 and len(said[("random", 0.5)]["seed_scores"]) == 2, "nll")
    d = said[("iwp", 0.25)]["score"] - said[("none", None)]["score"]
    check(abs(said[("iwp", 0.25)]["diff"] - d) < 1e-9, "paired difference of one sample")
    line = json.loads(read(t, "whole", "iwp-0.5", "samples_toy.jsonl").split(b"\n")[0])
    check(line["kept"] == round(line["visual"] / 2) and line["resps"] == [[line["answer"]]], "samples line")
    # what the log viewer of lmms_eval 0.7.3 (lmms-eval ui) and its --baseline read: PREFIX_results.json in any folder below, and
    # the samples of a task beside it under the same prefix
    for d in [d for d in os.listdir(os.path.join(t, "whole")) if os.path.isdir(os.path.join(t, "whole", d))]:
        shown = json.loads(read(t, "whole", d, "iwp_results.json"))
        check(isinstance(shown["config"], dict) and shown["model_name"].endswith(d) and shown["date"] == d, "viewer: %s" % shown)
        for task, metric in (("toy", "score"), ("said", "nll")):
            m, seen = shown["results"][task], lines(t, "whole", d, "iwp_samples_%s.jsonl" % task)
            check(isinstance(m[metric + ",none"], (int, float)) and metric + "_stderr,none" in m, "viewer: metrics %s" % m)
            check(shown["n-samples"][task]["effective"] == len(seen) == len(lines(t, "whole", d, "samples_%s.jsonl" % task)), "viewer: samples")
            check(all(isinstance(x["doc_id"], int) and isinstance(x["input"], str) and isinstance(x["target"], str) and
                      x["filtered_resps"] == [x["answer"]] and isinstance(x["score"], (int, float)) for x in seen), "viewer: %s" % seen)
            check(all([k for k in x if "score" in k.lower()] == ["score"] for x in seen), "viewer: one field is the score")
        if d == "iwp-0.5":
            check(shown["results"]["toy"]["score,none"] == toy[("iwp", 0.5)]["score"], "viewer: another score")
    for name in "timings.json report.html report.md report.csv".split():
        check(len(read(t, "whole", name)) > 100, name)

    # answers of a grid with shared prefixes are those of one configuration alone: cuts before the decoder, at
    # several layers, in several steps, that read the layer before, that fail at one budget, and resized pictures
    methods = "none,iwp,fastv,dart,vatp,v2drop,pyramiddrop,divprune,visionzip,random,uniform,resize,tome"
    def several(out, names, *more):
        return [a if a != "none,iwp,random" else names for a in grid(out, "--seeds", "1", *more)]

    # a budget out of reach is refused at the first question, with nothing written for it
    run(*several("many", methods), code=1, text="resize-0.5 cannot answer the first question")
    check(not os.path.exists(os.path.join(t, "many", "resize-0.5")), "refused, but its folder is there")
    check(len(read(t, "many", "iwp-0.5", "samples_toy.jsonl").split(b"\n")) == 2, "one answer before the refusal")
    listed = [c["folder"] for c in json.loads(read(t, "many", "run.json"))["configurations"]]
    check("resize-0.5" not in listed and "iwp-0.5" in listed, "refused, but in run.json: %s" % listed)
    run(*several("many", methods, "--allow-failures"))
    for m in methods.split(","):
        run(*several("alone", m, "--exact-times", "--allow-failures"))
    folders = sorted(d for d in os.listdir(os.path.join(t, "many")) if os.path.isdir(os.path.join(t, "many", d)))
    check(len(folders) == 25, "folders: %s" % folders)
    for d in folders:
        for task in ("toy", "said"):
            name = "samples_%s.jsonl" % task
            check(read(t, "many", d, name) == read(t, "alone", d, name), "alone equals grid: " + d)
    check(read(t, "many", "results.json") == read(t, "alone", "results.json"), "results of many and alone")

    # kept per stage, layer average and prefill FLOPs of every method, wherever costs are reported
    costs = {(r["prune"], r["keep"]): r for r in json.loads(read(t, "many", "timings.json"))["runs"] if r["task"] == "said"}
    for (name, keep), r in costs.items():
        check(r["n"] == 0 or 0 < r["layer_average"] <= 1 and 0 < r["prefill_flops"] <= r["prefill_flops_full"], "costs of %s: %s" % (name, r))
        shares = [s["kept"] for s in r["stages"]]
        check(shares == sorted(shares, reverse=True) and (shares != []) == (name not in ("none", "divprune",
              "visionzip", "resize", "tome") and r["n"] > 0), "stages of %s: %s" % (name, r["stages"]))
    one = costs[("iwp", 0.5)]["stages"]
    check(len(one) == 1 and abs(one[0]["kept"] - 0.5) < 0.02, "the stage of iwp: %s" % one)
    check(len(costs[("pyramiddrop", 0.5)]["stages"]) > 1, "the stages of pyramiddrop: %s" % costs[("pyramiddrop", 0.5)])
    check(b"layer_average,stages" in read(t, "many", "report.csv") and b"layer average" in read(t, "many", "report.html"), "costs in the reports")

    # no answer at all is no success, whatever the folder holds from before; the failures are recorded
    def only(name, *more):
        return ["eval", *model, "-t", "1", "--tasks", manifest, "--prune", name, "--keep", "50%", "--out", os.path.join(t, "only"), *more]

    run(*only("none"))
    run(*only("resize"), code=1, text="all 5 answers failed, the first with: ")
    check(len(lines(t, "only", "resize-0.5", "samples_toy.jsonl")) == 4, "failures recorded")
    check([r["errors"] for r in json.loads(read(t, "only", "results.json"))["runs"] if r["prune"] == "resize"] == [4, 1], "failures counted")
    run(*only("resize", "--allow-failures"))

    # the grid runs no row through a layer that it need not
    cost = json.loads(run("bench", "eval", *model, "-t", "1", "--tasks", manifest, "-o", "json",
                          "--prune", "none,iwp,fastv,dart,pyramiddrop,divprune,visionzip", "--keep", "50%,35%,25%"))
    check(cost["configurations"] == 19 and cost["questions"] == 5, "bench eval: %s" % cost)
    check(cost["grid"]["row_layers"] == cost["unavoidable"]["row_layers"] < cost["alone"]["row_layers"] / 1.3,
          "rows x layers: %s" % cost)
    check(cost["grid"]["encodes"] == cost["unavoidable"]["encodes"] == 1 and cost["alone"]["encodes"] == 19, "encodes")
    check(cost["unavoidable"]["total_ms"] > 0 and cost["alone"]["total_ms"] > cost["alone"]["rest_ms"] > 0, "times")

    # options of the engine and of one method; sweeps
    run("eval", *model, "-t", "1", "--tasks", manifest, "--prune", "none,iwp,divprune", "--keep", "0.5",
        "--opt", "divprune.positions=original", "--sweep", "iwp.positions=original,compact", "--sweep", "layer=1,2",
        "--sweep", "lambda=1,5", "--out", os.path.join(t, "swept"))
    folders = sorted(os.listdir(os.path.join(t, "swept")))
    want = ["iwp-0.5-positions=%s,layer=%d,lambda=%d" % (a, b, c) for a in ("original", "compact") for b in (1, 2) for c in (1, 5)]
    check(all(w in folders for w in want + ["divprune-0.5-positions=original"]), "sweep: %s" % folders)
    said = {d: json.loads(read(t, "swept", d, "samples_said.jsonl")) for d in want}
    a, b = said[want[0]], said[want[4]]
    check(a["keep_bits"] == b["keep_bits"] and a["score"] != b["score"], "positions change the score, not the choice")
    runs = json.loads(read(t, "swept", "results.json"))["runs"]
    check(any(r["options"] == {"positions": "compact", "layer": 2, "lambda": 5} for r in runs), "options in results.json")
    p = subprocess.run([iwp, "run", *model, "-t", "1", "--image", os.path.join(t, "small.png"), "-p",
                        "Is it 1?", "-n", "2", "--prune", "iwp", "--keep", "0.5", "--prune-layer", "2", "--opt",
                        "positions=compact,lambda=1", "--json"], capture_output=True, text=True)
    one = json.loads(p.stdout)
    line = json.loads(read(t, "swept", "iwp-0.5-positions=compact,layer=2,lambda=1", "samples_toy.jsonl").split(b"\n")[1])
    check(one["answer"] == line["answer"], "iwp run says the same as the grid")
    bits = base64.b64decode(line["keep_bits"])
    check([i for i in range(line["visual"]) if bits[i // 8] >> i % 8 & 1] == one["prune"]["keep_indices"], "keep_bits")

    # killed ten times
    rng = random.Random(7)
    for k in range(10):
        p = subprocess.Popen([iwp, *grid("killed")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.05, 1.5))
        p.kill()
        p.wait()
    done = os.path.join(t, "killed", "none")
    if os.path.isdir(done):  # a line that was cut in the middle
        with open(os.path.join(done, "samples_said.jsonl"), "a") as f:
            f.write('{"doc_id":0,"id"') if not os.path.getsize(f.name) else None
    run(*grid("killed"))
    check(read(t, "killed", "results.json") == whole, "killed ten times: other results.json")

    # shards
    out = run(*grid("s0", "--shard", "0/2"))
    check("; n = toy 2 of 4, said 1; ±" in out and b"n=2 of 4<" in read(t, "s0", "report.html"), "n of a shard: " + out)
    run(*grid("s1", "--shard", "1/2"))
    run("report", os.path.join(t, "s0"), os.path.join(t, "s1"), "--out", os.path.join(t, "merged"))
    check(read(t, "merged", "results.json") == whole, "merged shards differ")
    out = run("report", os.path.join(t, "whole"), "--diff", "none,iwp-0.25")
    check("answers changed" in out, "diff")
    check(run("report", os.path.join(t, "whole"), "--diff", "none", "iwp-0.25") == out, "diff A B")
    same = run("report", "--diff", os.path.join(t, "whole"), os.path.join(t, "killed"))
    check(same.count("0 better, 0 worse, 0 answers changed") == 7, "diff of two folders: " + same)
    os.remove(os.path.join(t, "whole", "results.json"))
    run("report", os.path.join(t, "whole"))
    check(read(t, "whole", "results.json") == whole, "rebuilt report differs")

    # answers that are not there are not counted
    shutil.copytree(os.path.join(t, "whole"), os.path.join(t, "cut"))
    write_lines(os.path.join(t, "cut", "iwp-0.5", "samples_toy.jsonl"), lines(t, "cut", "iwp-0.5", "samples_toy.jsonl")[:-1])
    out = run("report", os.path.join(t, "cut"))
    check("; n = toy 3-4 of 4, said 1; 1 answers are missing; ±" in out, "n of a cut file: " + out)

    # bad input
    run(*grid("whole", "--limit", "2"), code=1, text="another --limit")
    run(*grid("whole", "--profile", "lmms-0.7.2"), code=1, text="another --profile")
    run(*grid("x", "--shard", "2/2"), code=2, text="--shard")
    run("eval", "--tasks", "poppe", "--out", "x", code=2, text="did you mean pope")
    run("eval", "--tasks", manifest, "--out", "x", "--prune", "iwp", code=2, text="--keep is needed")
    run("eval", "--tasks", manifest, "--out", "x", "--prune", "ipw", "--keep", "0.5", code=1, text="did you mean iwp")
    run(*grid("x", "--sweep", "nothing=1,2"), code=2, text="no method of --prune has an option")
    run(*grid("x", "--opt", "fastv.query=last"), code=2, text="no method of --prune has an option")
    run(*grid("x", "--opt", "positions=left"), code=2, text="positions is original or compact")
    run(*grid("x", "--sweep", "layer=1,x"), code=2, text="layer is a number")
    run(*grid("x", "--sweep", "lambda=1,,2"), code=2, text="empty")
    run("report", t, code=1, text="no run.json")
    run("report", os.path.join(t, "whole"), "--diff", "none,other", code=2, text="no configuration 'other'")
    with open(manifest, "a") as f:
        f.write("{\n")
    run(*grid("x"), code=1, text="t.jsonl:6:")
    check(not os.path.exists(os.path.join(t, "x")), "a folder was left by a refused command")
finish()
