#!/usr/bin/env python3
"""The picture generator: the same seed gives the same picture and questions; answers are balanced.

Skipped where Pillow is missing."""
import collections
import os
import sys

from model_test import HERE, SKIP, check, done

sys.path.insert(0, os.path.join(HERE, "..", "..", "train"))
try:
    import PIL      # noqa: F401
except ImportError:
    print("skipped: no Pillow")
    sys.exit(SKIP)
import pictures as P      # noqa: E402
import questions as Q      # noqa: E402

for family in P.FAMILIES:
    a, b, c = P.make(family, 3), P.make(family, 3), P.make(family, 4)
    check(a[0].tobytes() == b[0].tobytes() and a[1:] == b[1:], family + ": same seed, same picture")
    check(a[0].tobytes() != c[0].tobytes(), family + ": another seed, another picture")
    check(a[0].size == (224, 224) and a[1] and a[2], family + ": size, questions, words")
check(P.plan(50, 1) == P.plan(50, 1) and P.plan(50, 1) != P.plan(50, 2), "plans follow from their seed")

answers = collections.defaultdict(collections.Counter)
for k in range(400):
    for task, _, a in P.make("scene", k)[1]:
        answers[task][a[0]] += 1
for task, c in answers.items():
    n, top = sum(c.values()), c.most_common(1)[0][1]
    check(top / n < {"gen-exist": .58, "gen-relation": .58}.get(task, .45), "%s is balanced: %s" % (task, c))

dog = ["A dog runs .", "Two dogs run on grass .", "A brown dog", "dog in grass", "The dog"]
p = Q.presence(dog)
check(p["dog"] is True and p["grass"] is True and p["car"] is False and "water" in p, "presence from captions")
check(Q.presence(["A person rides ."] * 5).get("man") is None, "a hint settles nothing")
check(Q.tidy("a dog , running  .") == "A dog, running.", "tidy")
rows = [{"captions": ["a dog on grass"] * 5}, {"captions": ["a red car"] * 5}] * 5
yn = [q for qs in Q.balanced_yesno(rows, 1, 9).values() for q in qs]
check(sum(a == "Yes" for _, _, a in yn) == sum(a == "No" for _, _, a in yn) > 0, "as many yes as no")
done()
