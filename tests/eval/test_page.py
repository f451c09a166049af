"""report.html in Chromium at desktop and phone width: its parts are there, nothing is wider than the window, no error on
the console, the pictures of kept tokens show what the samples say; and on paper.  Screenshots go to the folder given
last, or away."""
import base64
import os
import re
import shutil
import sys

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    print("playwright is missing: run scripts/setup-venv")
    sys.exit(77)

from kit import check, convert, finish, folder, lines, read, run, small, write_lines

chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if not chromium:
    print("chromium is missing: run scripts/install-deps")
    sys.exit(77)
with folder() as t:
    model = convert(t)
    rows = [dict(id="q%d" % i, task=k, image=small, answer="yes", max_new_tokens=2,
                 question="A rather long question, number %d, so that text must wrap: <is> it & \"so\"?" % i,
                 scorer="yesno" if k == "toy" else "exact", category="ab"[i % 2]) for k in ("toy", "other") for i in range(3)]
    with open(os.path.join(t, "broken.png"), "w") as f:
        f.write("no picture")
    rows.append(dict(id="bad", task="toy", image="broken.png", question="?", answer="no", scorer="yesno", category="a"))
    manifest, out = write_lines(os.path.join(t, "t.jsonl"), rows), os.path.join(t, "out")
    run("eval", *model, "-t", "1", "--tasks", manifest, "--prune", "none,iwp,fastv,divprune,random,resize", "--keep", "80%,50%,25%",
        "--seeds", "2", "--allow-failures", "--out", out)
    text = read(out, "report.html").decode()
    check(not re.search(r'(src|href)="(https?:)?//', text), "the page links to the outside")
    with sync_playwright() as p:
        b = p.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width, height in ((1280, 900), (390, 844)):
            page = b.new_page(viewport=dict(width=width, height=height))
            said, asked = [], []
            page.on("console", lambda m: said.append(m.text) if m.type in ("error", "warning") else None)
            page.on("pageerror", lambda e: said.append(str(e)))
            page.on("request", lambda r: asked.append(r.url))
            page.goto("file://" + os.path.join(out, "report.html"))
            count = lambda sel: page.locator(sel).count()
            check(said == [] and [u for u in asked if not u.startswith(("file:", "data:"))] == [], "console: %s" % said)
            check(page.evaluate("document.documentElement.scrollWidth") <= width, "wider than %d pixels" % width)
            check(count("#scores ~ .scroll table") >= 1 and count("td.best") >= 3, "main table")
            check(count(".plots svg polyline") >= 10 and count(".plots svg circle") >= 10, "curves")
            check(count("figure.bars") == 2 and count("figure.bars rect") >= 2 * 12, "bars by task")
            check(count("#equal-tokens") == 1 and count("#equal-time") == 1 and count("tr.control") >= 3, "equal tokens and time")
            check("within" in page.locator("#equal-time + .scroll").inner_text(), "times of the control")
            check(count("#cost ~ .scroll table") >= 1 and count("article.shown") == 2, "cost, gallery")
            check(count(".strip svg .dropped") >= 2 * 4, "overlays")
            # the picture is there, and what is dark is what the samples say was dropped
            size = page.evaluate("(async () => { const i = new Image();"
                                 "i.src = document.querySelector('image').getAttribute('href');"
                                 "await i.decode(); return [i.naturalWidth, i.naturalHeight]; })()")
            shown = lines(os.path.join(out, "gallery_toy.jsonl"))[0]
            check(size == [shown["width"], shown["height"]], "picture of %s" % size)
            line = [x for x in lines(os.path.join(out, "iwp-0.5", "samples_toy.jsonl")) if x["doc_id"] == shown["doc_id"]][0]
            bits = base64.b64decode(line["keep_bits"])
            dark = {i for i in range(line["visual"]) if not bits[i // 8] >> i % 8 & 1}
            cells = [shown["cells"][i:i + 5] for i in range(0, len(shown["cells"]), 5)]
            area = sum((c[3] - c[1]) * (c[4] - c[2]) for c in cells if c[0] in dark)
            paths = page.locator("article.shown").first.locator(".dropped").evaluate_all("l => l.map(e => e.getAttribute('d'))")
            areas = [sum(int(w) * int(h) for w, h in re.findall(r"M\d+ \d+h(\d+)v(\d+)h-\d+z", d)) for d in paths]
            check(0 < area in areas, "dark area %d not among %s" % (area, areas))
            # links inside the page lead somewhere, links to samples to files
            for href in set(page.locator("a").evaluate_all("l => l.map(e => e.getAttribute('href'))")):
                ok = count(href) == 1 if href.startswith("#") else os.path.exists(os.path.join(out, href))
                check(ok, "link to " + href)
            check("broken.png" in page.locator("#failures ~ details").first.inner_html(), "failed sample")
            shots = sys.argv[3] if len(sys.argv) > 3 else t
            page.screenshot(path=os.path.join(shots, "report-%d.png" % width), full_page=True)
            check(os.path.getsize(os.path.join(shots, "report-%d.png" % width)) > 20000, "screenshot is empty")
            page.close()
        page = b.new_page()
        page.goto("file://" + os.path.join(out, "report.html"))
        page.emulate_media(media="print")
        check(page.locator("nav").first.is_hidden(), "navigation on paper")
        page.set_viewport_size(dict(width=720, height=1000))  # A4 within its margins
        check(page.evaluate("document.documentElement.scrollWidth") <= 720, "wider than paper")
        pdf = page.pdf(format="A4")
        check(pdf.startswith(b"%PDF") and len(pdf) > 20000, "PDF")
        b.close()
finish()
