"""Regular expressions of all kinds that are followed (jaxinfer/text/grammar/patterns.py)."""

import random
import re

LETTERS = "ab1-@ "
CLASSES = ["[ab]", "[^a]", "[a-b1]", r"\d", r"\w", ".", r"[\w-]", "[-a]", r"[^\s@]", r"\S", r"[\-@]"]


def drawn(draw: random.Random, depth: int = 0) -> str:
    """An expression over a few letters, in all the ways that are read."""
    kind = draw.choice("lllccgra") if depth < 3 else draw.choice("lc")
    match kind:
        case "l":
            return re.escape(draw.choice(LETTERS)) if draw.random() < 0.5 else draw.choice("ab1@")
        case "c":
            return draw.choice(CLASSES)
        case "g":
            opening = draw.choice(["(", "(?:"])
            return opening + "".join(drawn(draw, depth + 1) for _ in range(draw.randint(0, 3))) + ")"
        case "r":
            times = draw.choice(["*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}"])
            return f"({drawn(draw, depth + 1)}){times}"
    return "(" + "|".join(drawn(draw, depth + 1) for _ in range(draw.randint(1, 3))) + ")"
