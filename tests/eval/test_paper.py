"""iwp report --paper: the paper's own rows stand beside ours where model, task and budget match, and nowhere else.

usage: test_paper.py PROGRAM DATA        (standard library only)"""
import os
import re
import shutil

from kit import check, finish, folder, golden, pictures, read, run, write_lines

model = os.path.join(golden, "models", "llava-ov")


def paper_rows(out):
    """{method: [cells]} of the rows in italics."""
    rows = re.findall(r'<tr><td class="paper">paper: (.*?)</td>(.*?)</tr>', read(out, "report.html").decode())
    return {name: re.findall(r'<td class="paper">(.*?)</td>', cells) for name, cells in rows}


with folder() as d:
    names = sorted(n for n in os.listdir(pictures) if n.endswith(".png"))[:2]
    for name in names:
        shutil.copy(os.path.join(pictures, name), d)
    write_lines(d + "/pope.jsonl", [dict(id="q%d" % i, task="pope", image=name, question="Is there a cat?", answer="yes", category="random")
                                    for i, name in enumerate(names)])
    for name in ("llava-onevision-qwen2-7b-ov", "another-model"):
        os.symlink(model, os.path.join(d, name))
        files = os.path.join(d, name + ".gguf"), os.path.join(d, name + "-mmproj.gguf")
        run("convert", os.path.join(d, name), "-o", files[0], "--mmproj", files[1], "--type", "f32")
        out = os.path.join(d, "out-" + name)
        run("eval", "-m", files[0], "-mm", files[1], "-t", "1", "--tasks", d + "/pope.jsonl", "--prune", "none,iwp",
            "--keep", "35.3%,50%", "--out", out)
        check(paper_rows(out) == {}, "no figures of the paper without --paper")
        run("report", out, "--paper")
        rows = paper_rows(out)
        if name == "another-model":
            check(rows == {}, "figures of a model that is not in the paper")
            continue
        check(rows.get("Unpruned") == ["88.3", "100.0"], "POPE and Avg. %% of the unpruned model: %s" % rows)
        check("FastV" in rows and "PACT" in rows and "IWP" in " ".join(rows), "methods at 35.3 %%: %s" % list(rows))
finish()
