"""test_timeline.py IWP DATA: a film in the page: every taken frame in the strip with its kept tokens, in Debian's Chromium."""
import os
import shutil
import subprocess
import sys
import time

from serve import Server, check, convert, finish, folder

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    print("no playwright: skipped")
    sys.exit(77)
chromium = next((p for p in ("/usr/bin/chromium", "/usr/bin/chromium-browser") if os.path.exists(p)), None)
if not chromium or not shutil.which("ffmpeg"):
    print("no chromium or no ffmpeg: skipped")
    sys.exit(77)



def until(page, expression, seconds=60):
    """Asks from outside: the page's policy forbids eval, which wait_for_function uses."""
    end = time.time() + seconds
    while not page.evaluate(expression):
        if time.time() > end:
            check(expression, False)
            finish()
        time.sleep(0.1)


with folder() as d, sync_playwright() as play:
    film = os.path.join(d, "film.webm")
    subprocess.run(["ffmpeg", "-v", "error", "-f", "lavfi", "-i", "testsrc=s=320x240:r=8:d=4", "-c:v", "libvpx", "-b:v", "300k", film], check=True)
    s = Server(*convert(d))
    browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
    page = browser.new_page()
    problems = []
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: problems.append(str(e)))
    page.goto(s.base + "/")
    until(page, "document.querySelectorAll('.side .method option').length > 4")
    page.set_input_files("#file", film)
    until(page, "state.film === true")
    page.click("#ask")
    until(page, "document.querySelectorAll('.side')[0].querySelectorAll('.strip li').length === 32")
    until(page, "document.querySelectorAll('.side')[1].querySelectorAll('.strip li').length === 32")
    kept = [int(t.split()[0]) for t in page.locator(".side").first.locator(".strip li").evaluate_all("l => l.map(e => e.title)")]
    facts = page.locator(".side").first.locator(".facts dd").first.inner_text()
    check("kept tokens of all frames", 0 <= int(facts.split()[0]) - sum(kept) <= 1, (facts, sum(kept)))  # the newline has no cell
    whole = page.locator(".side").nth(1).locator(".strip li").evaluate_all("l => l.map(e => e.title)")
    check("the other side keeps all", all(t.startswith("16 of 16") for t in whole), whole[:3])
    times = page.locator(".side").first.locator(".strip small").all_inner_texts()
    check("times", times[0] == "0.0 s" and times[-1] == "3.9 s" and times == sorted(times, key=lambda t: float(t[:-2])), times)
    pictures = page.locator(".side").nth(1).locator(".strip canvas").evaluate_all("l => l.map(c => c.toDataURL())")
    check("frames differ", len(set(pictures)) > 16, len(set(pictures)))
    check("no errors in the console", not problems, problems)
    if os.environ.get("IWP_SHOTS"):
        page.screenshot(path=os.path.join(os.environ["IWP_SHOTS"], "timeline.png"), full_page=True)
    browser.close()
    s.stop()
finish()
