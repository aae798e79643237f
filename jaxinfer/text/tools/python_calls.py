"""Reads [name(argument=value), ...] as models write it, nothing of it carried out: Python's literals and JSON's alike.

Python's own parser will not do: to it get-weather(...) is a subtraction, an argument named from or user-id is no call,
and what JSON escapes as a pair of surrogates is two halves of one.
"""

import json
import re
import unicodedata
from collections.abc import Container
from typing import NoReturn

from jaxinfer.text.tools.strict_json import dumped, loaded

MAX_KEY_CHARS = 200
KEY = rf"[^\s\x00-\x1f()\[\]{{}}\"'=,]{{1,{MAX_KEY_CHARS}}}"  # what may stand before = for its end to be known
_TOOL = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*\(")
_KEY = re.compile(rf"\s*({KEY})\s*=")
_TEXT = re.compile(r"""\s*([rRuU]?)(?:"([^"\\]*(?:\\.[^"\\]*)*)"|'([^'\\]*(?:\\.[^'\\]*)*)')""", re.DOTALL)
_NUMBER = re.compile(
    r"\s*((?:[+-]\s*)?(?:0[xX][\da-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9_.]+(?:[eE][+-]?[0-9]+)?))(?![\w.])"
)
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD = re.compile(r"\s*(True|False|None|true|false|null)\b")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_MARK = re.compile(r"\s*([\[\](){},:;])")
_NAME = re.compile(rf"{_TEXT.pattern}\s*:", re.DOTALL)  # of a dict, before its value
_OPENER = re.compile(r"\s*[\[{]")  # of a further list or dict in a list
_HALVES = r"\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}"
_ESCAPE = re.compile(
    rf"{_HALVES}|\\(?:x[\da-fA-F]{{2}}|u[\da-fA-F]{{4}}|U[\da-fA-F]{{8}}|N\{{[^}}]*\}}|[0-7]{{1,3}}|.)", re.DOTALL
)
_PLAIN = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPED = _PLAIN | {"\\": "\\", "'": "'", '"': '"', "\n": ""}


def pythonic_calls(text: str, names: Container[str]) -> list[tuple[str, str]] | None:
    """Names and arguments as JSON text, None unless all are calls of these tools with literal arguments."""
    try:
        return _Reader(text).calls(names)
    except (ValueError, RecursionError):  # all that is said of a stranger's text
        return None


def python_value(text: str) -> str:
    """A literal as JSON text. Raises ValueError for all else, and RecursionError."""
    return _Reader(text).value()


class _Reader:
    """Of one text, from its beginning on. What it reads comes as JSON. Raises ValueError for all else."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def calls(self, names: Container[str]) -> list[tuple[str, str]]:
        self._want("[")
        found = []
        while not self._take("]"):
            found.append(self._call(names))
            while any(map(self._take, ",;)}")):  # one too many, or none, parts calls as well
                pass
        self._end("the list's end")
        return found

    def value(self) -> str:
        found = self._value()
        self._end("the literal's end")
        return found

    def _call(self, names: Container[str]) -> tuple[str, str]:
        name = self._match(_TOOL, "a call")[1]
        if name not in names:
            self._refuse("a tool that was offered")
        arguments: dict[str, str] = {}
        while not self._ends_call(names):
            key = self._match(_KEY, "an argument's name")[1]  # whose = parts it from the value before, if no comma does
            arguments[dumped(key)] = self._value()
            self._take_commas()
        return name, _object(arguments)

    def _ends_call(self, names: Container[str]) -> bool:
        """Whether a call ends here. Before another call or the list's end it may lack its closer."""
        call, mark = _TOOL.match(self._text, self._at), _MARK.match(self._text, self._at)
        begins_call = call is not None and call[1] in names
        return self._take(")") or begins_call or (mark is not None and mark[1] in "];,")

    def _value(self) -> str:
        for opening, read in (("[", self._list), ("(", self._tuple), ("{", self._dict)):
            if self._take(opening):
                return read()
        if _TEXT.match(self._text, self._at):
            return dumped(self._string())
        if found := _WORD.match(self._text, self._at):
            self._at = found.end()
            return _WORDS.get(found[1], found[1])
        return _number(self._match(_NUMBER, "a literal")[1].replace(" ", ""))

    def _string(self) -> str:
        """One text, or several that stand side by side, as those in three quotes do."""
        parts = []
        while found := _TEXT.match(self._text, self._at):
            self._at = found.end()
            raw, in_json = (found[3], False) if found[2] is None else (found[2], True)
            parts.append(raw if found[1] in "rR" and found[1] else _unescaped(raw, in_json))
        return "".join(parts)

    def _list(self) -> str:
        return f"[{', '.join(self._items(']')[0])}]"

    def _tuple(self) -> str:
        """As a list, but what stands in parentheses alone, without a comma, is itself."""
        items, num_commas = self._items(")")
        return items[0] if len(items) == 1 and not num_commas else f"[{', '.join(items)}]"

    def _items(self, end: str) -> tuple[list[str], int]:
        """With the number of commas."""
        items: list[str] = []
        while not self._take(end):
            items.append(self._value())
            if not self._take(",") and not (end == "]" and self._begins_item(items[-1])):
                self._want(end)
                return items, len(items) - 1
        return items, len(items)

    def _begins_item(self, before: str) -> bool:
        """Whether a further item of a list begins without a comma: two numbers may be one, and two texts are."""
        is_text = before[-1] in "]}" and _TEXT.match(self._text, self._at) is not None
        return is_text or _OPENER.match(self._text, self._at) is not None

    def _dict(self) -> str:
        entries: dict[str, str] = {}
        while not self._take("}"):
            key = self._value()
            if key[0] in "[{":
                self._refuse("a key")
            self._want(":")
            name = key if key[0] == '"' else dumped(key)
            value = self._value()
            if entries.setdefault(name, value) != value:
                self._refuse("another key")
            if not self._take_commas() and not _NAME.match(self._text, self._at):
                self._want("}")
                break
        return _object(entries)

    def _take(self, mark: str) -> bool:
        found = _MARK.match(self._text, self._at)
        if found is None or found[1] != mark:
            return False
        self._at = found.end()
        return True

    def _take_commas(self) -> bool:
        """One, or several before a name, where a list may lack a value."""
        has_one = self._take(",")
        while self._take(","):
            pass
        return has_one

    def _want(self, mark: str) -> None:
        if not self._take(mark):
            self._refuse(mark)

    def _match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            self._refuse(what)
        self._at = found.end()
        return found

    def _end(self, what: str) -> None:
        if self._text[self._at :].strip():
            self._refuse(what)

    def _refuse(self, what: str) -> NoReturn:
        raise ValueError(f"{what} should stand at character {self._at}")


def _object(entries: dict[str, str]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in entries.items()) + "}"


def _number(text: str) -> str:
    """As it is spelt where JSON spells it so; else as Python has it. Raises ValueError for one that no client could
    read, 1e999 or of thousands of digits, as the other forms do.
    """
    if _JSON_NUMBER.fullmatch(text):
        loaded(text)
        return text
    try:
        number = int(text, 0)
        loaded(str(number))
        return str(number)
    except ValueError:
        if "." not in text and "e" not in text.lower():
            raise  # 007, which is neither's
        return dumped(float(text))


def _unescaped(text: str, in_json: bool) -> str:
    """in_json: in double quotes, where what JSON has escaped is that, and all else as Python has it."""
    return _ESCAPE.sub(lambda found: _meant(found[0], in_json), text)


def _meant(escape: str, in_json: bool) -> str:
    kind = escape[1]
    if len(escape) == 12:  # a pair of surrogates, which JSON writes for one letter
        return str(json.loads(f'"{escape}"'))
    if kind in _ESCAPED:
        return _ESCAPED[kind]
    if kind == "N" and len(escape) > 2:
        try:
            return unicodedata.lookup(escape[3:-1])
        except KeyError:
            raise ValueError("no letter has this name") from None
    if kind in "xuU" and len(escape) > 2:
        return chr(int(escape[2:], 16))  # ValueError beyond the last letter
    if kind in "01234567":
        return chr(int(escape[1:], 8))
    if kind in "xuUN":
        raise ValueError("half an escape")
    return "/" if kind == "/" and in_json else escape
