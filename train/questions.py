"""Questions about photographs, made from their captions.

Owns: yes/no questions in POPE's style (present and absent things, as many of each per word), colours,
how many, what is somebody doing. A question is a tuple (family, question, answer). Nothing is
asked where the five captions do not settle it: present = at least two captions say so, absent = none
does, not even by a related word."""
import random
import re

# A word and what counts as saying it; a hint alone (second list) makes the answer unsettled.
THINGS = {
    "dog": (["dog", "dogs", "puppy", "puppies"], ["animal", "animals", "poodle", "terrier", "retriever", "collie", "greyhound", "greyhounds", "canine"]),
    "man": (["man", "men", "guy"], ["people", "person", "player", "someone", "biker", "rider", "couple", "climber", "snowboarder", "skateboarder", "skier", "cyclist", "surfer", "hiker", "adult", "adults", "crowd", "gentleman", "male", "players", "team", "boy", "father", "group"]),
    "woman": (["woman", "women", "lady", "ladies"], ["people", "person", "player", "someone", "couple", "adult", "adults", "crowd", "female", "girl", "girls", "group", "mother", "team", "bride", "rider", "climber", "hiker"]),
    "child": (["child", "children", "kid", "kids", "boy", "girl", "boys", "girls", "toddler", "baby"], ["people", "person", "crowd", "group", "family"]),
    "boy": (["boy", "boys"], ["child", "children", "kid", "kids", "people", "person", "toddler", "baby", "player", "group"]),
    "girl": (["girl", "girls"], ["child", "children", "kid", "kids", "people", "person", "toddler", "baby", "woman", "women", "group", "lady"]),
    "ball": (["ball", "balls", "football", "basketball", "baseball", "soccer"], ["tennis", "volleyball", "toy", "rugby", "game", "catch"]),
    "beach": (["beach", "shore", "seashore"], ["sand", "ocean", "sea", "surf", "waves", "water", "lake"]),
    "water": (["water", "ocean", "lake", "river", "pool", "sea", "pond", "wave", "waves", "swimming", "surf"], ["beach", "splash", "splashing", "surfing", "creek", "stream", "fountain", "boat", "wet", "puddle", "swim", "swims", "kayak", "waterfall", "canoe", "surfer"]),
    "grass": (["grass", "grassy", "lawn"], ["field", "park", "yard", "meadow", "outside", "soccer", "football", "backyard", "outdoors"]),
    "snow": (["snow", "snowy", "snowball"], ["ski", "skier", "skiing", "snowboard", "snowboarder", "snowboarding", "sled", "ice", "winter", "skis"]),
    "street": (["street", "road", "sidewalk", "streets"], ["city", "car", "cars", "outside", "pavement", "crosswalk", "traffic", "building", "path", "track"]),
    "car": (["car", "cars", "automobile"], ["vehicle", "truck", "street", "road", "van", "traffic", "race", "racing", "jeep"]),
    "bicycle": (["bicycle", "bike", "bikes", "bicycles", "cyclist", "bicyclist", "biker", "bikers", "cyclists"], ["motorcycle", "motorbike", "rider", "dirtbike", "riding"]),
    "hat": (["hat", "cap", "hats"], ["helmet", "helmets", "hood", "visor", "headband", "uniform"]),
    "rock": (["rock", "rocks", "boulder", "cliff", "rocky"], ["mountain", "mountains", "stone", "stones", "climbing", "climber", "climbs"]),
    "tree": (["tree", "trees"], ["forest", "woods", "wooded", "branch", "park", "leaves", "outside"]),
    "horse": (["horse", "horses", "pony"], ["rodeo", "jockey", "bull"]),
    "bird": (["bird", "birds", "duck", "ducks", "seagull"], ["animal", "geese", "goose", "swan"]),
    "shirt": (["shirt", "shirts", "jersey"], ["jacket", "sweater", "coat", "top", "uniform", "dress", "wearing", "outfit"]),
    "swing": (["swing", "swings"], ["playground", "swinging"]),
    "skateboard": (["skateboard", "skateboarder", "skateboarding", "skateboards"], ["skate", "skater", "ramp"]),
    "boat": (["boat", "boats", "canoe", "kayak"], ["ship", "raft", "water", "sail"]),
    "building": (["building", "buildings", "house"], ["city", "street", "town", "store", "wall"]),
    "fence": (["fence", "fenced", "fences"], ["gate", "railing", "net", "wall"]),
    "bench": (["bench", "benches"], ["seat", "sitting"]),
    "mountain": (["mountain", "mountains", "hill", "hills"], ["rock", "rocks", "cliff", "slope", "climber"]),
    "toy": (["toy", "toys"], ["ball", "stick", "frisbee", "doll"]),
    "stick": (["stick", "sticks", "branch"], ["wood", "hockey", "log"]),
    "frisbee": (["frisbee", "frisbees"], ["disc", "disk", "toy"]),
    "crowd": (["crowd", "crowded"], ["people", "group", "audience", "fans", "spectators"]),
    "jacket": (["jacket", "jackets", "coat"], ["shirt", "sweater", "vest", "suit"]),
    "sand": (["sand", "sandy"], ["beach", "desert", "dirt", "shore", "dune"]),
    "field": (["field"], ["grass", "grassy", "park", "yard", "meadow", "lawn"]),
}
MASS = {"grass", "water", "snow", "sand"}
COLOURS = ["black", "white", "brown", "red", "blue", "green", "yellow", "orange", "pink", "purple", "gray", "tan"]
COLOURED = ["dog", "shirt", "jacket", "dress", "hat", "ball", "bike", "car", "coat", "horse", "helmet", "bird", "shorts"]
NUMBERS = {"two": "2", "three": "3", "four": "4", "five": "5"}
COUNTED = {"dogs": "dog", "people": "person", "men": "man", "women": "woman", "children": "child", "boys": "boy",
           "girls": "girl", "kids": "kid"}
DOING = ["running", "jumping", "playing", "standing", "sitting", "walking", "swimming", "riding", "climbing",
         "sleeping", "laying", "surfing", "smiling", "skiing", "dancing", "swinging", "sliding"]
WHO = ["dog", "man", "woman", "boy", "girl", "child"]


def words(caption):
    return re.findall(r"[a-z]+", caption.lower())


def article(w):
    return w if w in MASS else ("an " if w[0] in "aeiou" else "a ") + w


def yesno_question(word):
    return "Is there %s in the picture? Answer yes or no." % article(word)


def presence(captions):
    """{word: True | False} for the things the captions settle."""
    bags = [set(words(c)) for c in captions]
    out = {}
    for w, (same, hints) in THINGS.items():
        n = sum(bool(b & set(same)) for b in bags)
        if n >= 2:
            out[w] = True
        elif n == 0 and not any(b & set(hints) for b in bags):
            out[w] = False
    return out


def colour(captions):
    out = []
    text = [" ".join(words(c)) for c in captions]
    for noun in COLOURED:
        if any(noun + "s" in t.split() for t in text):
            continue
        said = []
        for t in text:
            said += re.findall(r"\b(%s)(?: and (?:%s))? (?:\w+ )?%s\b" % ("|".join(COLOURS), "|".join(COLOURS), noun), t)
        mixed = any(re.search(r"\b(%s) and (%s) (?:\w+ )?%s\b" % ("|".join(COLOURS), "|".join(COLOURS), noun), t) for t in text)
        if len(said) >= 2 and len(set(said)) == 1 and not mixed:
            out.append(("photo-color", "What color is the %s? Answer with one word." % noun, said[0].capitalize()))
    return out


def count(captions):
    out = []
    text = [" ".join(words(c)) for c in captions]
    for many, one in COUNTED.items():
        said = []
        for t in text:
            said += re.findall(r"\b(%s) (?:\w+ )?%s\b" % ("|".join(NUMBERS), many), t)
        if len(said) >= 2 and len(set(said)) == 1:
            out.append(("photo-count", "How many %s are in the picture? Answer with a number." % many, NUMBERS[said[0]]))
        elif one == "dog" and sum(bool(re.search(r"\b(a|the) (?:\w+ )?(?:\w+ )?dog\b", t)) for t in text) >= 4 \
                and not any(re.search(r"\bdogs|puppies|another\b", t) or t.split().count("dog") > 1 for t in text):
            out.append(("photo-count", "How many dogs are in the picture? Answer with a number.", "1"))
    return out


def doing(captions):
    out = []
    text = [" ".join(words(c)) for c in captions]
    for who in WHO:
        said = []
        for t in text:
            said += re.findall(r"\b%s (?:is |are )?(?:\w+ )?(%s)\b" % (who, "|".join(DOING)), t)
        if len(said) >= 2 and len(set(said)) == 1:
            out.append(("photo-doing", "What is the %s doing? Answer with one word." % who, said[0].capitalize()))
    return out


def balanced_yesno(rows, seed, per_picture):
    """{row index: [(family, question, answer)]}: for every word as many yes as no over all pictures;
    half of the absent words are common ones (drawn by how often they are present)."""
    rng = random.Random(seed)
    yes, no = {}, {}
    for i, r in enumerate(rows):
        for w, p in presence(r["captions"]).items():
            (yes if p else no).setdefault(w, []).append(i)
    out = {i: [] for i in range(len(rows))}
    for w in THINGS:
        y, n = yes.get(w, []), no.get(w, [])
        k = min(len(y), len(n))
        for chosen, answer in ((y, "Yes"), (n, "No")):
            for i in rng.sample(chosen, k):
                out[i].append(("photo-yesno", yesno_question(w), answer))
    for i in out:
        rng.shuffle(out[i])
        out[i] = out[i][:per_picture]
    return out


def tidy(caption):
    c = re.sub(r"\s+([.,;:!?'])", r"\1", caption.strip().replace('"', "")).strip(" ,;")
    c = re.sub(r"\s+", " ", c)
    c = c[:1].upper() + c[1:]
    return c if c.endswith(".") else c.rstrip(".!? ") + "."


def photo_groups(rows, seed, per_picture=8):
    """One list of (family, question, [answers]) per photograph."""
    yn = balanced_yesno(rows, seed, per_picture)
    out = []
    for i, r in enumerate(rows):
        g = [("caption", "Describe the image in one sentence.", [tidy(c) for c in r["captions"]])]
        for f, q, a in yn[i] + colour(r["captions"]) + count(r["captions"]) + doing(r["captions"]):
            g.append((f, q, [a]))
        out.append(g)
    return out
