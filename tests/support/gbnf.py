"""Random grammars of llama.cpp's EBNF without recursion, with the pattern of the same texts, and texts like theirs."""

import random
import re

CHARS = 'ab01 _-é/.[]^"\\\n|(){}*+?&~#:=<'
_NAMES = ["item", "my-rule", "B", "x1"]
_REPEATED = ["*", "+", "?", "{2}", "{0,2}", "{1,3}", "{2,}"]


def grammar_and_pattern(draw: random.Random) -> tuple[str, str]:
    """A grammar, and Python's pattern of its texts."""
    rules: dict[str, str] = {}
    lines = []
    for name in draw.sample(_NAMES, draw.randrange(4)):
        body, pattern = _either(draw, 1, rules)
        lines.append(f"{name} ::= {body}{draw.choice(['', ' # c [', '  '])}")
        rules[name] = pattern
    body, pattern = _either(draw, 2, rules)
    lines.insert(draw.randint(0, len(lines)), f"root ::= {body}")
    return "\n".join(lines), pattern


def text_near(draw: random.Random, pattern: str) -> str:
    """A short text of characters that the pattern has, as far as it says, or of others."""
    own = [char for char in CHARS if re.escape(char) in pattern] or ["a"]
    return "".join(draw.choice(own if draw.random() < 0.9 else CHARS) for _ in range(draw.randint(1, 4)))


def _text(draw: random.Random) -> tuple[str, str]:
    text = "".join(draw.choice(CHARS) for _ in range(draw.randint(1, 3)))
    return f'"{_escaped(text)}"', f"(?:{re.escape(text)})"


def _class(draw: random.Random) -> tuple[str, str]:
    chars = "".join(draw.choice(CHARS.replace("-", "").replace("^", "")) for _ in range(draw.randint(1, 3)))
    begin, spread = draw.choice(["", "", "^"]), draw.choice(["", "a-c", "0-9"])
    return f"[{begin}{spread}{_escaped(chars)}]", f"[{begin}{spread}{re.escape(chars)}]"


def _escaped(text: str) -> str:
    named = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "[": "\\[", "]": "\\]"}
    return "".join(named.get(char, char) for char in text)


def _either(draw: random.Random, depth: int, rules: dict[str, str]) -> tuple[str, str]:
    options = [_row(draw, depth, rules) for _ in range(draw.choice([1, 1, 2, 3]))]
    return draw.choice([" | ", "|"]).join(body for body, _ in options), "|".join(pattern for _, pattern in options)


def _row(draw: random.Random, depth: int, rules: dict[str, str]) -> tuple[str, str]:
    bodies, patterns = list[str](), list[str]()
    for _ in range(draw.randint(1, 3)):
        body, pattern = _one(draw, depth, rules)
        if draw.random() < 0.35:
            times = draw.choice(_REPEATED)
            body, pattern = f"{body}{times}", f"(?:{pattern}){times}"
        bodies.append(body)
        patterns.append(pattern)
    return draw.choice([" ", "  ", "\t"]).join(bodies), "".join(patterns)


def _one(draw: random.Random, depth: int, rules: dict[str, str]) -> tuple[str, str]:
    kind = draw.random()
    if kind < 0.4:
        return _text(draw)
    if kind < 0.7:
        return _class(draw)
    if kind < 0.8 and rules:
        name = draw.choice([*rules])
        return name, f"(?:{rules[name]})"
    if depth:
        body, pattern = _either(draw, depth - 1, rules)
        return f"({body})", f"(?:{pattern})"
    return _text(draw)
