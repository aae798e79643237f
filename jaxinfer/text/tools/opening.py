"""What begins a call in an answer: a token, or a text that tokens spell, however it is cut into them."""

import json
import re
from collections.abc import Iterable, Mapping

import msgspec

from jaxinfer.text.tools.formats import AROUND, FUNCTOOLS, LAYOUTS, RECIPIENT, Format
from jaxinfer.text.tools.json_call import HEAD_CHARS
from jaxinfer.text.tools.json_scanner import SPACE
from jaxinfer.text.tools.marks import MAX_LEAD

_LONGEST = 192  # bytes of a pattern that may come anywhere


class Opening(msgspec.Struct, frozen=True):
    """A text. patterns: each with what the grammar of the calls has read when it is found, \\1 standing for its group.

    is_first: an answer that does not begin with one has none.    firsts: what such an answer may begin with.
    begun: what the prompt has written of one, behind which the answer begins.
    """

    patterns: tuple[tuple[str, str], ...]
    is_first: bool = False
    firsts: str = ""
    begun: str = ""


def opening_of(form: Format, names: Iterable[str], control_tokens: Mapping[str, int]) -> int | Opening:
    """The token after which there is nothing but a call, else the text. names: of the tools; a call of another is none.
    control_tokens: spellings that are one token each.
    """
    match form:
        case "llama3_json":
            spelt = _any_of(json.dumps(name) for name in names)
            head = rf"\s*(?:<\|python_tag\|>\s*)?{_object(spelt, '(?:arguments|parameters)')}"
            return Opening(_spaced(head, r'{"name": \1, "parameters":', " "), is_first=True, firsts="{<")
        case "xlam":
            spelt = _any_of(json.dumps(name) for name in names)
            head = rf"\s*(?:```(?:json)?\s*)?\[{SPACE}{_object(spelt, 'arguments')}"
            return Opening(_spaced(head, r'[{"name": \1, "arguments":', " "), is_first=True, firsts="[`")
        case "pythonic":
            spelt = _any_of(names)
            return Opening(((rf"\s*\[\s*({spelt})\s*\(\s*", r"[\1("),), is_first=True, firsts="[")
        case "functionary_v3_2":
            return Opening(((rf"{RECIPIENT}({_any_of(names)})\n", r"\1\n"),), begun=RECIPIENT)
        case "firefunction_v2":
            return Opening(((rf"{re.escape(FUNCTOOLS)}\s*", f" {FUNCTOOLS}"),))
    layout, space = LAYOUTS[form], "\n" if AROUND[form][0].startswith("\n") else ""
    mark = layout.first
    if layout.token and mark not in control_tokens:
        head = layout.start.removeprefix(layout.token)
        return Opening(((rf'{re.escape(layout.start)}\s*"', f'{head}"'),))
    tagged = _spaced(re.escape(mark), "", space)
    if layout.opening and layout.is_bare:
        return Opening((*tagged, (re.escape(layout.start), f"{space}{layout.start}")))
    return control_tokens.get(mark, Opening(tagged))


def _object(spelt: str, key: str) -> str:
    """An object up to its arguments. spelt, key: patterns of its tool's name and their key."""
    marks = (r"\{", '"name"', ":", f"({spelt})", ",", f'"{key}"', ":")
    return SPACE.join(marks)


def _any_of(names: Iterable[str]) -> str:
    return "|".join(map(re.escape, names))


def _spaced(pattern: str, head: str, space: str) -> tuple[tuple[str, str], ...]:
    """With this white space behind it in the grammar, whatever the model has written there, if it has got as far."""
    return (rf"{pattern}(?:\s+|(?=\S))", head + space), (pattern, head)


class Finder:
    """Looks for an opening in the bytes of an answer as they come. is_over: it will not be found."""

    def __init__(self, opening: Opening) -> None:
        self.is_over = False
        self._opening = opening
        self._patterns = [(re.compile(pattern.encode()), head.encode()) for pattern, head in opening.patterns]
        self._text = opening.begun.encode()  # its end that may begin one

    def feed(self, piece: bytes) -> bytes | None:
        """The next token's. Returns what the grammar of the calls has read once one is found."""
        text = self._text = self._text + piece
        for pattern, head in self._patterns:
            found = pattern.match(text) if self._opening.is_first else pattern.search(text)
            if found is not None:
                return found.expand(head) + text[found.end() :]
        if self._opening.is_first:
            begun = text.lstrip()
            too_long = len(begun) > HEAD_CHARS or len(text) - len(begun) > MAX_LEAD
            self.is_over = too_long or (bool(begun) and chr(begun[0]) not in self._opening.firsts)
        else:
            self._text = text[-_LONGEST:]
        return None
