"""Draws the card's two small figures from what is committed: curve.svg from curve.csv, layers.svg from the card's layer table.

usage: plot.py"""
import csv
import os
import re

MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models")
W, H, LEFT, RIGHT, TOP, BOTTOM = 640, 220, 44, 130, 14, 30
COLOURS = ("#1668a8", "#c05a1c", "#3a7d34")


def figure(path, series, marks, xlabel, lo, hi, ticks):
    """series: [(label, [(x, y)])]; marks: [(x, label)] are vertical lines; y runs from lo to hi."""
    xs = [x for _, pts in series for x, _ in pts]
    px = lambda x: LEFT + (x - min(xs)) / (max(xs) - min(xs)) * (W - LEFT - RIGHT)
    py = lambda y: TOP + (hi - min(max(y, lo), hi)) / (hi - lo) * (H - TOP - BOTTOM)
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">' % (W, H),
           '<rect width="%d" height="%d" fill="#fff"/>' % (W, H)]
    for y in ticks:
        out.append('<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end" fill="#555">%g</text>' % (LEFT, py(y), W - RIGHT, LEFT - 6, py(y) + 4, y))
    for x, label in marks:
        out.append('<path d="M%.1f %dV%d" stroke="#bbb" stroke-dasharray="3 3"/><text x="%.1f" y="%d" fill="#777">%s</text>' % (px(x), TOP, H - BOTTOM, px(x) + 3, TOP + 9 + 11 * (marks.index((x, label)) % 2), label))
    for k, (label, pts) in enumerate(series):
        line = " ".join("%.1f,%.1f" % (px(x), py(y)) for x, y in pts)
        out.append('<polyline points="%s" fill="none" stroke="%s" stroke-width="1.6"/>' % (line, COLOURS[k]))
        out.append('<text x="%d" y="%d" fill="%s">%s</text>' % (W - RIGHT + 14, TOP + 44 + 18 * k, COLOURS[k], label))
    for x in (min(xs), max(xs)):
        out.append('<text x="%.1f" y="%d" text-anchor="middle" fill="#555">%g</text>' % (px(x), H - BOTTOM + 14, x))
    out.append('<text x="%.1f" y="%d" text-anchor="middle" fill="#555">%s</text></svg>' % ((LEFT + W - RIGHT) / 2, H - 6, xlabel))
    with open(path, "w") as f:
        f.write("\n".join(out) + "\n")


def curve():
    with open(os.path.join(MODELS, "curve.csv")) as f:
        rows = list(csv.DictReader(f))
    steps = [int(r["step"]) for r in rows]
    marks, last = [], None
    for s, r in zip(steps, rows):
        if r["stage"] != last:
            marks.append((s, r["stage"]))
            last = r["stage"]
    get = lambda k: [(s, float(r[k])) for s, r in zip(steps, rows)]
    figure(os.path.join(MODELS, "curve.svg"), [("captions, NLL", get("caption_nll")), ("answers, NLL", get("answer_nll"))], marks, "step", 0, 3.5, (0, 1, 2, 3))


def layers():
    """Each column as the part of the effect that is there: 0 without pictures from layer 0 on, 1 with all of them."""
    with open(os.path.join(MODELS, "README.md")) as f:
        rows = re.findall(r"^\| (\d+|never) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", f.read(), flags=re.M)
    value = lambda r, k: float(r[k])
    series = []
    for k, label in ((1, "caption NLL"), (2, "yes/no"), (3, "generated")):
        none, full = value(rows[0], k), value(rows[-1], k)
        series.append((label, [(i, (value(r, k) - none) / (full - none)) for i, r in enumerate(rows)]))
    figure(os.path.join(MODELS, "layers.svg"), series, [(4, "cut of iwp")], "layer from which no visual token is left (30: never)", -.1, 1.1, (0, .5, 1))


if __name__ == "__main__":
    curve()
    layers()
