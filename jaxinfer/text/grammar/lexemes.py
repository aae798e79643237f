"""Lexemes: the repetitions in a grammar's regular expressions that may be too much for llguidance.

An answer comes to a repetition only behind what is before it, where following one beginning of an answer may not get.
Alone, such a repetition is tried within a few tokens.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from jaxinfer.text.grammar.parts import parts
from jaxinfer.text.grammar.source import JSON_SCHEMA

MIN_SIZE = 500  # times that something is repeated; llguidance takes 2,500 of some, of others 1,500 are too much
MAX_TRIED = 32  # of one grammar, the largest
_LARK = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|(?P<json>%json )|/(?P<regex>(?:\\.|[^/\\\n])+)/[imslux]*')
_SIGN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<open>\()|(?P<close>\))|.", re.DOTALL)
_COUNT = re.compile(r"\{(\d+)(?:,(\d*))?\}")


def heavy_lexemes(text: str) -> list[str]:
    """Grammars of one repetition each, the largest first, of those in a grammar's text."""
    found: dict[str, int] = {}
    for kind, expression in _expressions(text):
        for repetition, size in _repetitions(expression):
            if kind == "pattern":
                grammar = JSON_SCHEMA + json.dumps({"type": "string", "pattern": f"^(?:{repetition})$"})
            else:
                grammar = f"%llguidance {{}}\nstart: /{repetition}/"
            found[grammar] = size
    return sorted(found, key=lambda grammar: -found[grammar])[:MAX_TRIED]


def _expressions(text: str) -> Iterator[tuple[str, str]]:
    """Those of its schemas' strings and names, "pattern", and its own, "regex"."""
    decoder, end = json.JSONDecoder(), 0
    while (token := _LARK.search(text, end)) is not None:
        end = token.end()
        if token["regex"] is not None:
            yield "regex", token["regex"]
        elif token["json"] is not None:
            try:
                schema, end = decoder.raw_decode(text, end)
            except ValueError:  # llguidance says what is wrong with it
                continue
            yield from (("pattern", pattern) for pattern in _patterns(schema))


def _patterns(schema: Any) -> Iterator[str]:
    for part, _ in parts(schema) if isinstance(schema, dict) else ():
        if isinstance(part.get("pattern"), str):
            yield part["pattern"]
        if isinstance(part.get("patternProperties"), dict):
            yield from part["patternProperties"]


def _repetitions(expression: str) -> Iterator[tuple[str, int]]:
    """Groups that are repeated, with what repeats them, and how many times all that is in them may come."""
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
            if sign["close"] and size >= MIN_SIZE:
                yield expression[start:end], size
        sizes[-1] += size
