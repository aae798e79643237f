"""Marks: the tags of all forms, what else may stand before a call, and which text may begin one."""

import re
from functools import lru_cache

FENCE = "```"
MAX_LEAD = 256  # characters before a call that belong to it
MIN_TORN_TAG = 3  # characters of an unfinished tag behind text


def is_closing(tag: str) -> bool:
    return tag.startswith("</") or tag.endswith("/>") or "end" in tag


def may_become(text: str, marks: tuple[str, ...]) -> bool:
    return not text or text in _begun(marks)


@lru_cache(maxsize=256)
def _begun(marks: tuple[str, ...]) -> frozenset[str]:
    return frozenset(mark[:n] for mark in marks for n in range(1, len(mark)))


@lru_cache(maxsize=256)
def next_mark(marks: tuple[str, ...]) -> re.Pattern[str]:
    """Finds one of these, or what may begin one at the text's end."""
    options = []
    for first in dict.fromkeys(mark[0] for mark in marks):  # so that most characters are looked at once
        whole = [re.escape(mark[1:]) for mark in marks if mark[0] == first]
        begun = [re.escape(text[1:]) for text in _begun(marks) if text[0] == first]
        options.append(rf"{re.escape(first)}(?:{'|'.join(whole)}|(?:{'|'.join(['', *begun])})\Z)")
    return re.compile("|".join((*options, r"(?<=\s)[()\[\]{}\"'`]")))
