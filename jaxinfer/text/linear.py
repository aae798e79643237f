"""Which rules of a tokenizer.json may take more time than in proportion to a text.

The library's patterns backtrack. One is linear where nothing in it can fail behind a run of any length: each character
that it reads is then taken, and never read again. All that splits or replaces without a pattern is linear. So are most
published patterns; `\\s+$` is none, nor is what looks ahead for groups of digits.
"""

import re
from collections.abc import Iterator
from typing import Any

MAX_STEPS = 32  # each reads all of a text; published files have eight
MAX_PATTERN_CHARS = 1024  # each alternative is tried at each place
MAX_TEXT_CHARS = 256  # of a text that is looked for, which may nearly match at each place
_SHOWN_CHARS = 60

# Each of these reads a pattern in one way only: two ways would be tried in all their combinations.
_SET = r"\[(?:\\[pP]\{\^?\w+\}|\\[^pP]|[^\[\]\\])+\]"
CHAR = rf"(?:{_SET}|\\[pP]\{{\^?\w+\}}|\\[sSdDwWhHrntfv]|\\[^\w]|[^\\\[\](){{}}|?*+^$])"  # matches one character
_WORDS = r"\(\?i?:['\u2019\w|\[\]]{1,64}\)"  # one of a few short texts
_BEFORE = rf"(?:{CHAR}\?\+?)?{CHAR}{{0,4}}"  # may fail, in two ways
_RUN = rf"{CHAR}(?:[*+]\+?|\{{\d(?:,\d?)?\}})"
_BEHIND = rf"(?:{CHAR}[?*]\+?|{_WORDS}\?)"  # cannot fail
_SIMPLE = rf"{_BEFORE}(?:{_WORDS}|{_RUN}{_BEHIND}{{0,4}})?"
# white space up to its last line end, or else all of it: what the first of the two reads in vain the other takes
_NEW_LINE = r"\[(?:\\r\\n|\r\n)\]"
_SPACES = rf"(?:\\s\*{_NEW_LINE}\+?\|)?\\s\+\(\?!\\S\)"
# capitals before small letters, or else capitals alone, in the same way
_CASED = (
    rf"(?P<first>{CHAR}\?)(?P<upper>{_SET})\*(?P<lower>{_SET})\+(?:{_WORDS}\?)?"
    rf"\|(?P=first)(?P=upper)\+(?P=lower)\*(?:{_WORDS}\?)?"
)
_ALTERNATIVE = rf"(?:{_SPACES}|{_CASED}|{_SIMPLE})"
_LINEAR = re.compile(
    rf"{_ALTERNATIVE}(?:\|{_ALTERNATIVE.replace('?P<', '?P<next_').replace('?P=', '?P=next_')})*", re.S
)


def is_linear(pattern: str) -> bool:
    """Whether all matches of a pattern take time in proportion to a text, as far as its form tells."""
    return len(pattern) <= MAX_PATTERN_CHARS and _LINEAR.fullmatch(pattern) is not None


def nonlinear_rules(*parts: dict[str, Any] | None) -> list[str]:
    """What in these parts of a tokenizer.json may take longer, as a message names it."""
    steps = [step for part in parts for step in steps_of(part)]
    found = [f"pattern {shown(pattern)}" for pattern in filter(None, map(pattern_of, steps)) if not is_linear(pattern)]
    longest = max((len(text) for text in map(_text_of, steps)), default=0)
    if longest > MAX_TEXT_CHARS:
        found.append(f"step that looks for {longest} characters")
    if len(steps) > MAX_STEPS:
        found.append(f"row of {len(steps)} steps")
    return found


def steps_of(part: Any) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer, a pre-tokenizer or a decoder, one after another."""
    unread = [part]  # no recursion: a file may nest thousands
    while unread:
        match unread.pop():
            case (
                {"type": "Sequence", "normalizers": list(steps)}
                | {"type": "Sequence", "pretokenizers": list(steps)}
                | {"type": "Sequence", "decoders": list(steps)}
            ):
                unread += steps[::-1]
            case dict() as step:
                yield step


def pattern_of(step: dict[str, Any]) -> str | None:
    """None for a step that looks for one text, or for none."""
    match step.get("pattern"):
        case {"Regex": str(pattern)}:
            return pattern
    return None


def _text_of(step: dict[str, Any]) -> str:
    match step.get("pattern"):
        case {"String": str(text)}:
            return text
    return ""


def shown(pattern: str) -> str:
    """In quotes, and no longer than a message bears."""
    short = pattern if len(pattern) <= _SHOWN_CHARS else pattern[:_SHOWN_CHARS] + "..."
    return f"'{short}'" if short.isprintable() else ascii(short)
