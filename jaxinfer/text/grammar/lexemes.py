"""Lexemes: the repetitions in a grammar's regular expressions that may be too much for llguidance.

An answer comes to a repetition only behind what is before it, where following one beginning of an answer may not get.
Alone, such a repetition is tried within a few tokens.
"""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

from jaxinfer.text.grammar.lark import Part, Rules, Token, is_terminal, tokens
from jaxinfer.text.grammar.parts import placeless
from jaxinfer.text.grammar.source import AS_SENT, JSON_SCHEMA

MIN_SIZE = 500  # times that something is repeated; llguidance takes 2,500 of some, of others 1,500 are too much
MAX_TRIED = 32  # of one grammar, the largest
_MAX_NESTED = 100  # terminals and groups within one another
_SIGN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<open>\()|(?P<close>\))|.", re.DOTALL)
_COUNT = re.compile(r"\{(\d+)(?:,(\d*))?\}")


def heavy_lexemes(text: str, rules: Rules | None = None) -> list[str]:
    """Grammars of one repetition each, the largest first, of those in a grammar's text. rules: its own, if it has."""
    found: dict[str, int] = {} if rules is None else dict(_repeated_terminals(text, rules))
    for kind, expression in _expressions(text):
        for repetition, size in _repetitions(expression):
            if kind == "pattern":
                grammar = JSON_SCHEMA + json.dumps({"type": "string", "pattern": f"^(?:{repetition})$"})
            else:
                grammar = f"%llguidance {{}}\nstart: /{repetition}/"
            found[grammar] = size
    return sorted(found, key=lambda grammar: -found[grammar])[:MAX_TRIED]


def largest_repetition(text: str, rules: Rules | None = None) -> tuple[str, int] | None:
    """That of a grammar's text as it is written, and how many times all that is in it may come; None: none is large."""
    found = [repetition for _, expression in _expressions(text) for repetition in _repetitions(expression)]
    if rules is not None:
        known: dict[str, int] = {}
        for name in rules.alternatives:
            for part in itertools.chain.from_iterable(rules.alternatives[name]):
                if (part.most or 1) > 1:
                    found.append((text[part.start : part.end], _times(part, rules, known)))
    largest = max(found, key=lambda repetition: repetition[1], default=("", 0))
    return largest if largest[1] >= MIN_SIZE else None


def _times(part: Part, rules: Rules, known: dict[str, int]) -> int:
    """As _size, of whatever rules are in it. known: of names; of one on the way, 0."""
    if part.name not in rules.alternatives:
        return _size(part, rules)
    if part.name not in known:
        known[part.name] = 0
        inside = itertools.chain.from_iterable(rules.alternatives[part.name])
        known[part.name] = sum(_times(each, rules, known) for each in inside)
    return known[part.name] * (part.most or 1)


def _repeated_terminals(text: str, rules: Rules) -> Iterator[tuple[str, int]]:
    """What a terminal or a rule repeats, where all of it is terminals and texts, and how many times they may come."""
    terminals = "\n".join(text[start:end] for name, (start, end) in rules.spans.items() if is_terminal(name))
    for name, alternatives in rules.alternatives.items():
        for part in itertools.chain.from_iterable(alternatives):
            if (part.most or 1) > 1 and (size := _size(part, rules)) >= MIN_SIZE:
                inner = "start: REPEATED\nREPEATED: " if is_terminal(name) else "start: "
                yield f"%llguidance {{}}\n{inner}{text[part.start : part.end]}\n{terminals}{AS_SENT}", size


def _size(part: Part, rules: Rules, depth: int = 0) -> int:
    """How many times all that is in it may come; 0 where a rule is in it that is no terminal, or too much."""
    if part.token.kind == "regex":
        size = max(1, [*_groups(_body(part.token))][-1][1])
    elif not part.name:
        size = 1
    elif depth == _MAX_NESTED or part.name not in rules.alternatives or not _is_flat(part.name):
        return 0
    else:
        below = [_size(each, rules, depth + 1) for each in itertools.chain.from_iterable(rules.alternatives[part.name])]
        size = sum(below) if all(below) else 0
    return size * (part.most or 1)


def _is_flat(name: str) -> bool:
    """A terminal or a group."""
    return is_terminal(name) or " " in name


def _expressions(text: str) -> Iterator[tuple[str, str]]:
    """Those of its schemas' strings and names, "pattern", and its own, "regex"."""
    for token in tokens(text):
        if token.kind == "regex":
            yield "regex", _body(token)
        elif token.kind == "json":
            yield from (("pattern", pattern) for pattern in _patterns(json.loads(token.text)))


def _body(regex: Token) -> str:
    """Between its slashes."""
    return regex.text.rpartition("/")[0][1:]


def _patterns(schema: Any) -> Iterator[str]:
    for part in placeless(schema):
        if isinstance(part.get("pattern"), str):
            yield part["pattern"]
        if isinstance(part.get("patternProperties"), dict):
            yield from part["patternProperties"]


def _repetitions(expression: str) -> Iterator[tuple[str, int]]:
    """Groups that are repeated, with what repeats them, and how many times all that is in them may come."""
    return ((part, size) for part, size in _groups(expression) if part and size >= MIN_SIZE)


def _groups(expression: str) -> Iterator[tuple[str, int]]:
    """Those that are repeated, as above; the last, without a text, is the whole."""
    starts, sizes, end = list[int](), [0], 0  # by the groups that are open, the whole first
    while (sign := _SIGN.match(expression, end)) is not None:
        start, end, size = sign.start(), sign.end(), 1
        if sign["open"]:
            starts.append(start)
            sizes.append(0)
            continue
        if sign["close"] and starts:
            start, size = starts.pop(), sizes.pop()
        if (count := _COUNT.match(expression, end)) is not None:
            end = count.end()
            size *= max(int(number) for number in count.groups("0") if number)
            if sign["close"]:
                yield expression[start:end], size
        sizes[-1] += size
    yield "", sum(sizes)
