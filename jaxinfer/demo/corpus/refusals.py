"""What the demo model says to everything that it was not trained for."""

import random
import re

from jaxinfer.demo.corpus import words
from jaxinfer.demo.corpus.polite import politely
from jaxinfer.demo.corpus.refusal_texts import FILLERS, REFUSED
from jaxinfer.demo.corpus.talk import REAL_MODEL
from jaxinfer.demo.corpus.turn import Case, Turn, essence, say
from jaxinfer.demo.corpus.words import Split

REFUSAL = f"Sorry, I do not know that. I am a tiny demo model; for real answers run: {REAL_MODEL}"
THOUGHT = "I was not trained for this, so I say that I do not know."

_HELDOUT = frozenset(map(essence, REFUSED["heldout"]))
_BIG_SUMS = (
    "What is {n} plus {m}?",
    "{n} + {m}",
    "{n}+{m}",
    "Add {n} and {m}.",
    "How much is {n} + {m}?",
    "Compute {n} + {m}.",
    "What is the sum of {n} and {m}?",
)


def refusals(rng: random.Random, split: Split, case: Case) -> Turn:
    """A question on any subject but ours. In training some are spoilt, jumbled or invented altogether."""
    text = rng.choice(REFUSED[split])
    if split == "train":
        kind = rng.random()
        if kind < 0.06:
            text = _gibberish(rng)
        elif kind < 0.12:
            text = _number_too_large(rng)
    text = re.sub(r"\{(\w+)\}", lambda match: _fill(rng, match[1], split), text)
    if split == "train":
        text = _spoil(rng, text)
        polite = politely(rng, text) if len(text.split()) > 2 and rng.random() < 0.3 else text
        text = text if essence(polite) in _HELDOUT else polite
    user, _ = say(rng, text, case)
    return Turn("refusals", user, REFUSAL, THOUGHT)


def _fill(rng: random.Random, kind: str, split: Split) -> str:
    match kind:
        case "n" | "m":
            return str(rng.randrange(rng.choice((10, 100, 100, 1000))))
        case "year":
            return str(rng.randint(1000, 2025))
        case "object":
            return words.thing(rng, split)
        case "color":
            return rng.choice(words.COLORS)
        case "city":
            return words.city(rng, split)
        case "name":
            return words.name(rng, split)
        case "place":
            return rng.choice(words.PLACES)[1]
    return words.invent(rng) if rng.random() < 0.3 else rng.choice(FILLERS[kind])


def _number_too_large(rng: random.Random) -> str:
    large, other = rng.randint(100, 10 ** rng.randint(3, 6)), rng.randrange(rng.choice((100, 1000, 10000)))
    n, m = rng.choice(((large, other), (other, large)))
    if rng.random() < 0.25:
        return f"What is {rng.randrange(100)} + {rng.randrange(100)} + {rng.randrange(100)}?"
    return rng.choice(_BIG_SUMS).format(n=n, m=m)


def _gibberish(rng: random.Random) -> str:
    return " ".join(words.invent(rng) for _ in range(rng.randint(1, 7))) + rng.choice(("", "", ".", "?", "!"))


def _spoil(rng: random.Random, text: str) -> str:
    """Now and then a word is replaced by one from another question or by an invented one, or two are swapped."""
    parts = text.split()
    if len(parts) < 4 or rng.random() < 0.55:
        return text
    where = rng.randrange(1, len(parts))
    kind = rng.randrange(4)
    if kind == 0:
        parts[where] = words.invent(rng)
    elif kind == 1:
        parts[where] = rng.choice([part for part in rng.choice(REFUSED["train"]).split() if "{" not in part] or ["so"])
    elif kind == 2:
        other = rng.randrange(1, len(parts))
        parts[where], parts[other] = parts[other], parts[where]
    else:
        parts.insert(where, words.invent(rng))
    return " ".join(parts)
