"""test_web.py IWP DATA [MODEL MMPROJ]: the page in Debian's Chromium: upload, ask, another budget, compare, heat map, keys, copied command,
stored answers, errors, light and dark, a phone's width.  IWP_SHOTS=DIR keeps screenshots."""
import json
import os
import subprocess
import sys
import time

from serve import Server, check, convert, finish, folder, images, picture, text

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    print("no playwright: skipped")
    sys.exit(77)
chromium = next((p for p in ("/usr/bin/chromium", "/usr/bin/chromium-browser") if os.path.exists(p)), None)
if not chromium:
    print("no chromium: skipped")
    sys.exit(77)
shots = os.environ.get("IWP_SHOTS")
wide = os.path.join(images, "wide.png")
if len(sys.argv) > 5:
    wide = sys.argv[5]


def shot(page, name):
    if shots:
        os.makedirs(shots, exist_ok=True)
        page.screenshot(path=os.path.join(shots, name + ".png"), full_page=True)


def until(page, what, arg=None, seconds=60):
    """Waits for an expression; asked from outside, because the page's policy forbids eval."""
    end = time.time() + seconds
    while not page.evaluate(what, arg):
        if time.time() > end:
            raise AssertionError("never came: " + what)
        time.sleep(0.05)


def answered(page, n):
    """Waits until the first n sides show their timings."""
    until(page, """n => [...document.querySelectorAll('.side')].slice(0, n).every(s => s.querySelector('.bars .bar') || s.querySelector('.error').textContent)
        && document.getElementById('ask').disabled === false""", n, 120)


def kept(page, side=0):
    return page.locator(".side").nth(side).locator(".facts dd").first.inner_text()


def bright(page, side=0, which=".picture"):
    """Mean brightness of a canvas: dropped cells are dark."""
    return page.locator(".side").nth(side).locator(which).evaluate("""c => { const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        let s = 0; for (let i = 0; i < d.length; i += 4) s += d[i] + d[i + 1] + d[i + 2]; return s / (d.length / 4) / 3; }""")


with folder() as tmp, sync_playwright() as play:
    model, mmproj = sys.argv[3:5] if len(sys.argv) > 4 else convert(tmp)
    s = Server(model, mmproj, "-np", "2", template=None if len(sys.argv) > 4 else "llava-onevision")
    browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    problems = []
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: problems.append(str(e)))
    page.goto(s.base + "/")
    until(page, "document.querySelectorAll('.side .method option').length > 4")
    methods = page.locator(".side").first.locator(".method option").all_inner_texts()
    check("all methods", {x["name"] for x in json.loads(s.get("/props")[1])["prune"]["methods"]} <= set(methods), methods)
    shot(page, "empty")

    # ---- a sample by key, a question by keyboard alone
    page.locator("header h1").click()
    page.keyboard.press("s")
    until(page, "!document.getElementById('thumb').hidden")
    page.keyboard.press("/")
    check("slash goes to the question", page.evaluate("document.activeElement.id") == "question")
    page.keyboard.press("Control+a")
    page.keyboard.type("What is \"in\" the picture?")
    page.fill("#length", "12")
    page.focus("#question")
    page.keyboard.press("Enter")
    answered(page, 2)
    check("sample is answered", page.locator(".answer").first.inner_text() not in ("", "…"), page.content()[-300:])

    # ---- upload, ask, compare
    page.set_input_files("#file", wide)
    until(page, "document.getElementById('thumb').alt.endsWith('.png')")
    page.click("#ask")
    answered(page, 2)
    a, b = kept(page, 0), kept(page, 1)
    n, of = [int(x) for x in a.split(" kept")[0].split(" of ")]
    check("budget", abs(n / of - 0.22) < 0.03, a)
    check("side by side", b.startswith(f"{of} of {of}"), b)
    check("dropped cells are dim", bright(page, 0) < 0.75 * bright(page, 1), (bright(page, 0), bright(page, 1)))
    bars = page.locator(".side").first.locator(".bars .bar").all_inner_texts()
    check("bars", [x.split("\n")[0] for x in bars] == ["encode", "prefill", "select", "decode"], bars)
    check("against unpruned", page.locator(".side").first.locator(".bars rect[opacity]").count() == 2)
    layers = page.locator(".side").first.locator(".counts rect title").all_text_contents()
    check("tokens per layer", len(layers) == json.loads(s.get("/props")[1])["n_layer"] and str(of) in layers[0] and str(n) in layers[-1], layers)
    several = not page.locator(".side").first.locator("figure").is_hidden()
    if len(sys.argv) < 4:
        check("global view", several and bright(page, 0, ".global") < 0.75 * bright(page, 1, ".global"))
    page.set_viewport_size({"width": 1200, "height": 1400})
    shot(page, "compare")

    # ---- the slider runs the decoder alone
    encoded = s.metric("image_cache_misses_total")
    page.locator(".side").first.locator(".keep").focus()
    page.keyboard.press("End")
    for _ in range(40):
        page.keyboard.press("ArrowLeft")
    until(page, "document.querySelector('.share').textContent === '60 %'")
    until(page, "/^\\d+ of/.test(document.querySelector('.side .facts dd')?.textContent || '') && document.getElementById('ask').disabled === false", None, 120)
    time.sleep(0.3)
    answered(page, 1)
    n60 = int(kept(page, 0).split(" of ")[0])
    check("another budget", abs(n60 / of - 0.6) < 0.03, kept(page, 0))
    check("no second encoding", s.metric("image_cache_misses_total") == encoded)
    check("says cached", "cached" in page.locator(".side").first.locator(".bars .bar").first.inner_text())

    # ---- heat map
    before = bright(page, 0)
    page.locator("header h1").click()
    page.keyboard.press("h")
    check("heat map", page.is_checked("#heat") and abs(bright(page, 0) - before) > 2, (before, bright(page, 0)))
    shot(page, "heat")
    page.keyboard.press("h")

    # ---- the copied command runs
    page.evaluate("navigator.clipboard.writeText = async (t) => { window.copied = t; }")  # a browser without a window has none to read
    page.locator(".side").first.locator(".curl").click()
    until(page, "window.copied && [...document.querySelectorAll('.curl')].some(e => e.textContent === 'Copied')")
    command = page.evaluate("window.copied")
    out = subprocess.run(["bash", "-c", command], cwd=os.path.dirname(wide), capture_output=True, text=True, timeout=120).stdout
    events = [json.loads(x[6:]) for x in out.split("\n\n") if x.startswith("data: {")]
    said = "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"])
    check("copied command", events and events[-1]["prune"]["visual_kept"] == n60 and said == page.locator(".answer").first.inner_text(), (command[:300], out[:300]))

    # ---- errors: of the server, of the picture, without a question
    page.locator(".side").first.locator(".layer").fill("99")
    page.keyboard.press("Tab")
    until(page, "document.querySelector('.side .error').textContent !== ''")
    check("server's error", "prune.layer" in page.locator(".error").first.inner_text())
    shot(page, "error")
    page.locator(".side").first.locator(".method").select_option("divprune")
    check("a layer is for methods that cut there", page.locator(".side").first.locator(".layer").is_disabled() and "layer" not in page.evaluate("sides[0].prune()"))
    until(page, "!state.running && document.querySelector('.side .error').textContent === ''")
    page.locator(".side").first.locator(".method").select_option("iwp")
    page.locator(".side").first.locator(".layer").fill("")
    bad = os.path.join(tmp, "bad.png")
    open(bad, "wb").write(b"\x89PNG\r\n\x1a\nno")
    page.set_input_files("#file", bad)
    until(page, "document.getElementById('note').textContent.includes('cannot read')")
    page.set_input_files("#file", __file__)
    until(page, "document.getElementById('note').textContent.includes('no picture')")
    page.fill("#question", " ")
    page.click("#ask")
    check("no question", "needed" in page.inner_text("#note"))

    # ---- stop
    page.fill("#question", "Count")
    page.fill("#length", "4000")
    page.click("#ask")
    until(page, "document.getElementById('stop').disabled === false")
    page.keyboard.press("Escape")
    until(page, "document.getElementById('ask').disabled === false", None, 30)
    check("nothing runs on", any(s.metric("requests_processing") == 0 or time.sleep(0.1) for _ in range(100)))

    # ---- an answer given elsewhere
    r = s.chat([picture("wide.png"), text("Where?")], prune={"method": "iwp", "keep": 0.3})[1]
    page.goto(s.base + r["prune"]["inspect"])
    until(page, "document.querySelector('.side .bars .bar')")
    check("stored answer", page.locator(".answer").first.inner_text().strip() == r["choices"][0]["message"]["content"].strip()
          and kept(page).startswith(f"{r['prune']['visual_kept']} of") and page.input_value("#question") == "Where?")
    page.goto(s.base + "/?inspect=" + "0" * 32)
    until(page, "document.getElementById('note').textContent.includes('no such report')")
    problems = [p for p in problems if "400" not in p and "404" not in p]
    check("console is clean", not problems, problems)

    # ---- dark, and a phone
    for name, options in (("dark", {"color_scheme": "dark", "viewport": {"width": 1200, "height": 900}}),
                          ("phone", {"viewport": {"width": 375, "height": 700}, "device_scale_factor": 2, "has_touch": True, "is_mobile": True})):
        c = browser.new_context(**options)
        p = c.new_page()
        p.goto(s.base + "/")
        until(p, "document.querySelectorAll('.side .method option').length > 4")
        p.set_input_files("#file", wide)
        p.fill("#length", "8")
        p.click("#ask")
        answered(p, 2)
        ink, back = p.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
        level = [sum(map(int, x[4:-1].split(","))) for x in (ink, back)]
        check(f"{name} colours", (level[0] > level[1]) == (name == "dark") and abs(level[0] - level[1]) > 400, (ink, back))
        over = p.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        check(f"{name} fits", over <= 0, over)
        shot(p, name)
        c.close()

    # ---- a key is asked for
    s.stop()
    s = Server(model, mmproj, "--api-key", "secret", template=None if len(sys.argv) > 4 else "llava-onevision")
    page.goto(s.base + "/")
    page.wait_for_selector("#key-field:not([hidden])")
    page.fill("#key", "secret")
    page.keyboard.press("Tab")
    until(page, "document.querySelectorAll('.side .method option').length > 4")
    browser.close()
    code, log = s.stop()
    check("exit", code == 0, log[-400:])
finish()
