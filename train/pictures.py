"""Generated pictures with questions about local detail.

Owns: `make(family, seed)` -> (224 x 224 picture, [(task, question, [answers])], words for what can be
seen in it). Everything follows from the seed. Families: scene (shapes, colours, counts, positions), text, chart, and look-alikes of
the BlindTest tasks (lines, circles2, rings, nested, grid, letter). Answers are drawn first and the
picture is built for them, so that every answer of a task is about equally frequent."""
import math
import random

from PIL import Image, ImageDraw, ImageFont

SIZE, UP = 224, 3                      # drawn at three times the size, then averaged down
PALETTE = {"red": (214, 38, 36), "green": (38, 150, 60), "blue": (36, 80, 210), "yellow": (245, 215, 40),
           "orange": (245, 140, 20), "purple": (130, 50, 170), "black": (20, 20, 20), "white": (250, 250, 250),
           "pink": (250, 140, 190), "brown": (125, 75, 35)}
SHAPES = ["circle", "square", "triangle", "star", "cross"]
WORDS = ("cat dog sun red hat cup pen box key map car bus bed egg ice jam leg arm ball book door fish frog "
         "gate girl hand home king lamp leaf lion milk moon nest park rain ring road rock rose salt sand ship "
         "shop snow sofa star tree wind wolf wood yard zoo open stop exit sale food cafe taxi bank post hotel "
         "music water bread house light night paper river stone table train world apple beach chair cloud").split()
NUMBERS = "zero one two three four five six seven eight nine".split()
LETTERS = "ABCDEFGHIJKLMNOPRSTUVWXYZ"


def font(px):
    return ImageFont.load_default(size=px * UP)


def jitter(rng, c, by=14):
    return tuple(max(0, min(255, v + rng.randint(-by, by))) for v in c)


class Canvas:
    def __init__(self, rng, background=None):
        if background is None:
            v = rng.choice([(255, 255, 255), (200, 200, 200), (170, 200, 225), (225, 215, 190), (200, 225, 200), (90, 90, 100)])
            background = jitter(rng, v, 8)
        self.im = Image.new("RGB", (SIZE * UP, SIZE * UP), background)
        self.d = ImageDraw.Draw(self.im)

    def done(self):
        return self.im.resize((SIZE, SIZE), Image.Resampling.BOX)

    def polygon(self, pts, fill):
        self.d.polygon([(x * UP, y * UP) for x, y in pts], fill=fill)

    def line(self, pts, fill, width):
        self.d.line([(x * UP, y * UP) for x, y in pts], fill=fill, width=round(width * UP), joint="curve")

    def ring(self, x, y, r, colour, width=None, fill=None):
        box = [(x - r) * UP, (y - r) * UP, (x + r) * UP, (y + r) * UP]
        self.d.ellipse(box, fill=fill, outline=colour, width=round((width or 0) * UP))

    def text(self, x, y, s, px, fill):
        self.d.text((x * UP, y * UP), s, font=font(px), fill=fill, anchor="mm")


def star_points(x, y, r, n, inner, turn=-math.pi / 2):
    return [(x + (r if i % 2 == 0 else inner * r) * math.cos(turn + math.pi * i / n),
             y + (r if i % 2 == 0 else inner * r) * math.sin(turn + math.pi * i / n)) for i in range(2 * n)]


def corners(x, y, r, n, turn=-math.pi / 2):
    return [(x + r * math.cos(turn + 2 * math.pi * i / n), y + r * math.sin(turn + 2 * math.pi * i / n)) for i in range(n)]


def draw_shape(c, shape, x, y, r, colour):
    if shape == "circle":
        c.ring(x, y, r, colour, fill=colour)
    elif shape == "square":
        c.polygon([(x - .88 * r, y - .88 * r), (x + .88 * r, y - .88 * r), (x + .88 * r, y + .88 * r), (x - .88 * r, y + .88 * r)], colour)
    elif shape == "triangle":
        c.polygon(corners(x, y + .15 * r, 1.15 * r, 3), colour)
    elif shape == "star":
        c.polygon(star_points(x, y, 1.15 * r, 5, .42), colour)
    else:
        w = .33 * r
        c.polygon([(x - w, y - r), (x + w, y - r), (x + w, y - w), (x + r, y - w), (x + r, y + w), (x + w, y + w),
                   (x + w, y + r), (x - w, y + r), (x - w, y + w), (x - r, y + w), (x - r, y - w), (x - w, y - w)], colour)


def place(rng, n, r_of, gap=6):
    """n centres that keep their distance; None when they do not fit."""
    out = []
    for i in range(n):
        for _ in range(200):
            r = r_of(rng)
            x, y = rng.uniform(r + 6, SIZE - r - 6), rng.uniform(r + 6, SIZE - r - 6)
            if all(math.hypot(x - a, y - b) > 1.15 * (r + q) + gap for a, b, q in out):
                out.append((x, y, r))
                break
        else:
            return None
    return out


def an(s):
    return ("an " if s[0] in "aeiou" else "a ") + s


def draw_scene(rng, often=.5):
    """Shapes on a plain ground; with probability `often` one kind is repeated so that counts are even."""
    counted = rng.choice(SHAPES)
    n_counted = rng.randint(1, 6) if rng.random() < often else 1
    others = rng.randint(0 if n_counted > 2 else 1, 4)
    spots = None
    while spots is None:
        small = 11 if n_counted + others > 5 else 14
        spots = place(rng, n_counted + others, lambda g: g.uniform(small, small + 12))
    names = list(PALETTE)
    dark = rng.choice(["light", "dark"])
    ground = jitter(rng, (232, 232, 226) if dark == "light" else (110, 112, 118), 10)
    usable = [k for k in names if not (k == "white" and dark == "light") and not (k == "black" and dark == "dark")]
    c = Canvas(rng, ground)
    things = []
    one_colour = rng.choice(usable)
    same = rng.random() < .4
    for i, (x, y, r) in enumerate(spots):
        shape = counted if i < n_counted else rng.choice([s for s in SHAPES if s != counted])
        colour = one_colour if same and i < n_counted else rng.choice(usable)
        draw_shape(c, shape, x, y, r, jitter(rng, PALETTE[colour]))
        things.append((colour, shape, x, y, r))
    return c.done(), things, counted, n_counted, usable


def scene(rng):
    """One to eight shapes; half of the pictures repeat one kind."""
    im, things, counted, n_counted, usable = draw_scene(rng)
    return im, scene_questions(rng, things, counted, n_counted, usable), [w for t in things for w in t[:2]]


def scene_questions(rng, things, counted, n_counted, usable):
    q = []
    have = {(c, s) for c, s, *_ in things}
    shapes = [t[1] for t in things]
    colours = [t[0] for t in things]
    # existence: half present; absent ones share the colour or the shape with something that is there
    if rng.random() < .5:
        c, s = rng.choice(sorted(have))
        q.append(("gen-exist", "Is there %s in the picture? Answer yes or no." % an(c + " " + s), ["Yes"]))
    else:
        near = [(c, s) for c in usable for s in SHAPES if (c, s) not in have and (c in colours or s in shapes)]
        c, s = rng.choice(near)
        q.append(("gen-exist", "Is there %s in the picture? Answer yes or no." % an(c + " " + s), ["No"]))
    if rng.random() < .5:
        present = rng.random() < .5
        pool = sorted(set(shapes)) if present else [s for s in SHAPES if s not in shapes]
        if pool:
            q.append(("gen-exist", "Is there %s in the picture? Answer yes or no." % an(rng.choice(pool)), ["Yes" if present else "No"]))
    once = [t for t in things if shapes.count(t[1]) == 1]
    if once:
        t = rng.choice(once)
        q.append(("gen-color", "What color is the %s? Answer with one word." % t[1], [t[0].capitalize()]))
    once = [t for t in things if colours.count(t[0]) == 1]
    if once:
        t = rng.choice(once)
        q.append(("gen-shape", "What shape is the %s object? Answer with one word." % t[0], [t[1].capitalize()]))
    if n_counted > 1 or rng.random() < .14:         # singles are far more frequent than they may be asked
        q.append(("gen-count", "How many %ss are in the picture? Answer with a number." % counted.replace("cross", "crosse"), [str(n_counted)]))
    unique = [t for t in things if sum((t[0], t[1]) == (u[0], u[1]) for u in things) == 1]
    if unique:
        q += where_question(rng.choice(unique))
    if len(unique) > 1:
        a, b = rng.sample(unique, 2)
        q.append(relation_question(rng, a, b))
    return q


def quadrant(x, y):
    return ("top" if y < SIZE / 2 else "bottom") + " " + ("left" if x < SIZE / 2 else "right")


def where_question(thing):
    c, s, x, y, _ = thing
    if abs(x - SIZE / 2) <= 14 or abs(y - SIZE / 2) <= 14:
        return []
    return [("gen-where", "Where is the %s %s: top left, top right, bottom left or bottom right?" % (c, s),
             [quadrant(x, y).capitalize()])]


def relation_question(rng, a, b):
    axis = 2 if abs(a[2] - b[2]) > abs(a[3] - b[3]) else 3
    word = ("left of", "right of") if axis == 2 else ("above", "below")
    if rng.random() < .5:
        w, yes = word[0], a[axis] < b[axis]
    else:
        w, yes = word[1], a[axis] > b[axis]
    return ("gen-relation", "Is the %s %s %s the %s %s? Answer yes or no." % (a[0], a[1], w, b[0], b[1]), ["Yes" if yes else "No"])


def crowd(rng):
    """A scene for training that asks more about counts and places, and for a list of everything with its place."""
    im, things, counted, n_counted, usable = draw_scene(rng, .75)
    kinds = [t[1] for t in things]
    q = [x for x in scene_questions(rng, things, counted, n_counted, usable) if x[0] in ("gen-exist", "gen-color", "gen-shape")]
    q = rng.sample(q, min(2, len(q)))
    for s in sorted(set(kinds)):
        if kinds.count(s) > 1 or rng.random() < .2:
            q.append(("gen-count", "How many %ss are in the picture? Answer with a number." % s.replace("cross", "crosse"), [str(kinds.count(s))]))
    unique = [t for t in things if sum(t[:2] == u[:2] for u in things) == 1]
    for t in rng.sample(unique, min(3, len(unique))):
        q += where_question(t)
    for _ in range(min(3, len(unique) - 1)):
        q.append(relation_question(rng, *rng.sample(unique, 2)))
    told = ["%s %s %s" % (t[0], t[1], quadrant(t[2], t[3])) for t in sorted(things, key=lambda t: (t[3] >= SIZE / 2, t[2] >= SIZE / 2))]
    q.append(("gen-list", "List the objects and where they are.", [", ".join(told).capitalize() + "."]))
    return im, q, [w for t in things for w in t[:2]] + [NUMBERS[kinds.count(s)] for s in sorted(set(kinds)) if kinds.count(s) > 1]


def text(rng, share=.4):
    """One to three printed words or numbers (in `share` of the pictures), each in its own colour."""
    light = rng.random() < .7
    c = Canvas(rng, jitter(rng, (240, 240, 235) if light else (70, 72, 80), 12))
    n = rng.choice([1, 1, 2, 3])
    usable = ["red", "blue", "green", "purple", "black", "orange"] if light else ["white", "yellow", "pink", "orange"]
    colours = rng.sample(usable, n)
    rows = [SIZE * (i + 1) / (n + 1) for i in range(n)]
    q, numbers = [], rng.random() < share
    for y, k in zip(rows, colours):
        s = "%d" % rng.randint(0, 99) if numbers else rng.choice(WORDS)
        if not numbers and rng.random() < .5:
            s = s.upper()
        px = rng.randint(34, 54) if n == 1 else rng.randint(28, 40)
        c.text(SIZE / 2 + rng.uniform(-30, 30), y + rng.uniform(-8, 8), s, px, PALETTE[k])
        what = "number" if numbers else "word"
        ask = "What %s is written in %s? Answer with the %s." % (what, k, what) if n > 1 else \
              "What %s is written in the picture? Answer with the %s." % (what, what)
        q.append(("gen-number" if numbers else "gen-word", ask, [s.lower()]))
    return c.done(), q, colours + [x for _, _, a in q for x in (list(a[0]) if numbers else a)]


def digits(rng):
    return text(rng, .75)


def draw_chart(rng):
    """Three to five labelled bars with values 1 to 9 and a ruled axis."""
    n = rng.randint(3, 5)
    values = [rng.randint(1, 9) for _ in range(n)]
    best = rng.randrange(n)
    values[best] = max(values) + 1 if max(values) < 9 else 9
    values = [v if i == best or v < values[best] else values[best] - 1 for i, v in enumerate(values)]
    names = rng.sample("ABCDEFGH", n)
    colours = rng.sample(["red", "blue", "green", "orange", "purple", "yellow"], n)
    c = Canvas(rng, jitter(rng, (248, 248, 248), 5))
    left, base, unit = 30, 190, 18
    for v in range(0, 10):
        c.line([(left, base - v * unit), (216, base - v * unit)], (205, 205, 205), 1)
        if v % 3 == 0:
            c.text(18, base - v * unit, str(v), 13, (40, 40, 40))
    step = (216 - left) / n
    for i, v in enumerate(values):
        x = left + (i + .5) * step
        w = step * .32
        c.polygon([(x - w, base), (x + w, base), (x + w, base - v * unit), (x - w, base - v * unit)], jitter(rng, PALETTE[colours[i]]))
        c.text(x, base + 14, names[i], 18, (20, 20, 20))
    return c.done(), names, values, colours, best


def chart_questions(names, values, colours, best, asked):
    return ([("gen-chart-max", "Which bar is the tallest? Answer with its letter.", [names[best]]),
             ("gen-chart-max", "What color is the tallest bar? Answer with one word.", [colours[best].capitalize()])]
            + [("gen-chart-value", "What is the value of bar %s? Answer with a number." % names[k], [str(values[k])]) for k in asked]
            + [("gen-chart-count", "How many bars are in the chart? Answer with a number.", [str(len(names))])])


def chart(rng):
    im, names, values, colours, best = draw_chart(rng)
    return im, chart_questions(names, values, colours, best, [rng.randrange(len(names))]), ["chart"] + names + colours


def bars(rng):
    """A chart for training that asks for the value of every bar."""
    im, names, values, colours, best = draw_chart(rng)
    return im, chart_questions(names, values, colours, best, range(len(names))), ["chart"] + names + colours


def crossings(a, b):
    """How often two polylines over the same x positions cross."""
    return sum((a[i] - b[i]) * (a[i + 1] - b[i + 1]) < 0 for i in range(len(a) - 1))


def lines(rng):
    want = rng.randint(0, 2)
    m = 12
    while True:
        a, b = ([rng.randint(0, m) for _ in range(3)] for _ in range(2))
        if all(x != y for x, y in zip(a, b)) and crossings(a, b) == want:
            break
    c = Canvas(rng, (255, 255, 255))
    xs, w = [22, 112, 202], rng.choice([2, 3, 4])
    for ys, k in ((a, (0, 0, 255)), (b, (255, 0, 0))):
        c.line([(x, 22 + 180 * y / m) for x, y in zip(xs, ys)], k, w)
    return c.done(), [("like-lines", "How many times do the blue and red lines touch each other? Answer with a number in curly brackets, e.g., {5}.", ["{%d}" % want])], ["lines"]


def circles2(rng):
    r = rng.choice([22, 28, 34, 42])
    touch = rng.random() < .5
    gap = rng.uniform(-.5, -.02) * r if touch else rng.uniform(.1, 1.0) * r
    turn = rng.uniform(0, math.pi)
    half = r + gap / 2
    cx, cy = SIZE / 2 + rng.uniform(-12, 12), SIZE / 2 + rng.uniform(-12, 12)
    c = Canvas(rng, (255, 255, 255))
    two = rng.sample([(230, 30, 30), (30, 60, 230), (30, 150, 60), (240, 150, 20), (200, 30, 180), (20, 20, 20)], 2)
    for s, k in ((1, two[0]), (-1, two[1])):
        x, y = cx + s * half * math.cos(turn), cy + s * half * math.sin(turn)
        if rng.random() < .7:
            c.ring(x, y, r, k, fill=k)
        else:
            c.ring(x, y, r, k, 2)
    a = ["Yes" if touch else "No"]
    return c.done(), [("like-touching", "Are the two circles touching each other? Answer with Yes/No.", a),
                      ("like-overlapping", "Are the two circles overlapping? Answer with Yes/No.", a)], ["circles"]


def rings(rng):
    n, kind = rng.randint(4, 9), rng.choice(["circle", "pentagon"])
    r = rng.uniform(17, 22) if n > 6 else rng.uniform(20, 28)
    c = Canvas(rng, (255, 255, 255))
    top = (n + 1) // 2
    dx = min(2.3 * r, (SIZE - 2 * r - 12) / max(1, top - 1))
    one = rng.random() < .5
    k = (20, 20, 20) if rng.random() < .5 else PALETTE[rng.choice(["red", "blue", "green", "purple"])]
    x0, y0 = SIZE / 2 - dx * (top - 1) / 2, SIZE / 2
    for i in range(n):
        x = x0 + (i if i < top else i - top + .5) * dx
        y = y0 + (-.55 if i < top else .55) * r * 1.2
        col = k if one else PALETTE[rng.choice(["red", "blue", "green", "purple", "orange", "black"])]
        if kind == "circle":
            c.ring(x, y, r, col, 2)
        else:
            p = corners(x, y, r, 5)
            c.line(p + p[:2], col, 2)
    return c.done(), [("like-" + kind + "s", "How many %ss are in the image? Answer with only the number in numerical format." % kind, [str(n)])], [kind + "s"]


def nested(rng):
    n = rng.randint(2, 5)
    c = Canvas(rng, (255, 255, 255))
    s, x, y = rng.uniform(75, 100), SIZE / 2 + rng.uniform(-8, 8), SIZE / 2 + rng.uniform(-8, 8)
    w = rng.choice([1.3, 2, 3])
    for _ in range(n):
        p = [(x - s, y - s), (x + s, y - s), (x + s, y + s), (x - s, y + s)]
        c.line(p + p[:2], (10, 10, 10), w)
        t = s * rng.uniform(.55, .75)
        x, y = x + rng.uniform(-.5, .5) * (s - t - 5), y + rng.uniform(-.5, .5) * (s - t - 5)
        s = t
    return c.done(), [("like-nested", "How many squares are in the image? Please answer with a number in curly brackets e.g., {10}.", ["{%d}" % n])], ["squares"]


def grid(rng):
    rows = rng.randint(3, 10)
    cols = max(3, min(10, rows + rng.randint(-1, 1)))
    c = Canvas(rng, (255, 255, 255))
    lo, hi, w = 8, SIZE - 8, rng.choice([1, 1.5, 2])
    for i in range(rows + 1):
        y = lo + (hi - lo) * i / rows
        c.line([(lo, y), (hi, y)], (0, 0, 0), w)
    for j in range(cols + 1):
        x = lo + (hi - lo) * j / cols
        c.line([(x, lo), (x, hi)], (0, 0, 0), w)
    if rng.random() < .5:
        for i in range(rows):
            for j in range(cols):
                c.text(lo + (hi - lo) * (j + .5) / cols, lo + (hi - lo) * (i + .5) / rows, rng.choice(WORDS)[:4], 9, (0, 0, 0))
    return c.done(), [("like-grid", "How many rows and columns are in the table? Answer with only the numbers in a pair (row, column), e.g., (5,6)", ["(%d,%d)" % (rows, cols)])], ["table"]


def letter(rng):
    s = rng.choice([w for w in WORDS if len(w) in (4, 5)]).upper()
    k = rng.randrange(len(s))
    c = Canvas(rng, (255, 255, 255))
    step = 38
    x0 = SIZE / 2 - step * (len(s) - 1) / 2
    for i, ch in enumerate(s):
        c.text(x0 + i * step, SIZE / 2, ch, 32, (20, 20, 20))
    c.ring(x0 + k * step, SIZE / 2, 22, (230, 20, 20), 3)
    return c.done(), [("like-letter", "Which letter is being circled? Answer with the letter.", [s[k]]),
                      ("gen-word", "What word is written in the picture? Answer with the word.", [s.lower()])], [s.lower()] + list(s)


FAMILIES = {"scene": scene, "text": text, "chart": chart, "lines": lines, "circles2": circles2, "rings": rings,
            "nested": nested, "grid": grid, "letter": letter, "crowd": crowd, "digits": digits, "bars": bars}
# The last three ask more of what is hard to learn and are only trained on.
LOCAL = {"crowd": 9, "digits": 5, "bars": 3, "lines": 1, "circles2": 1, "rings": 1, "nested": .5, "grid": 1, "letter": 1}
SHARE = {"scene": 10, "text": 4, "chart": 2, "lines": 1, "circles2": 1, "rings": 1, "nested": .5, "grid": 1, "letter": .5}


def make(family, seed):
    return FAMILIES[family](random.Random("%s-%s" % (family, seed)))


def plan(n, seed, share=None):
    """n (family, seed) pairs in these shares, shuffled."""
    rng = random.Random("plan-%s" % seed)
    share = share or SHARE
    names = list(share)
    return [(rng.choices(names, [share[k] for k in names])[0], "%s-%d" % (seed, i)) for i in range(n)]
