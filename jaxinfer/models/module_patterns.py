"""Patterns of modules' names, as a stranger's config.json has them: which are tried, since some would take for ever.

A pattern is counted before it is tried. What repeats is one character, k of them cut a name in at most
C(_LONGEST + k, k) ways; what may be left out and what has alternatives multiplies them, and so does what looks ahead or
behind. No try takes more ways than that.
"""

import dataclasses
import math
import re

MOST_WAYS = 300_000  # in which the patterns of a checkpoint may try one name: 4 ms
_MAX_CHARACTERS = 200
_LONGEST = 48  # characters of a module's name
_DIGITS = 5  # ways to repeat a digit: numbers in names have no more digits, and others follow only after a point
_PIECE = re.compile(
    r"(?P<open>\((?:\?(?:[:=!]|<[=!]))?)|(?P<close>\))|(?P<bar>\|)|(?P<one>\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^()|])"
)
_TIMES = re.compile(r"([*+{?])[?+]?")


@dataclasses.dataclass
class _Group:
    """What an open group's alternatives are so far: the most repeats of one, and their ways; then those of its last."""

    looks: bool = False
    most_repeats: int = 0
    all_ways: int = 0
    repeats: int = 0
    ways: int = 1

    def next_alternative(self) -> None:
        self.most_repeats, self.all_ways = max(self.most_repeats, self.repeats), self.all_ways + self.ways
        self.repeats, self.ways = 0, 1


def ways(pattern: str) -> int:
    """In how many ways a pattern is tried at most.    Raises ValueError, which says what must hold of it."""
    if len(pattern) > _MAX_CHARACTERS:
        raise ValueError(f"which must have at most {_MAX_CHARACTERS} characters")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"which is none: {error}") from None
    groups, at = [_Group()], 0
    while at < len(pattern):
        piece = _PIECE.match(pattern, at)
        if piece is None or pattern.startswith("(?", at) and piece["open"] == "(":
            raise ValueError("which must have no group but (..), (?:..), (?=..), (?!..), (?<=..) and (?<!..)")
        if re.match(r"\\[1-9]", piece[0]):
            raise ValueError("which must not refer to a group")
        at = piece.end()
        if piece["open"]:
            groups.append(_Group(piece[0] not in ("(", "(?:")))
        elif piece["bar"]:
            groups[-1].next_alternative()
        else:
            times = _TIMES.match(pattern, at)
            at = at if times is None else times.end()
            _count(groups, piece[0], None if times is None else times[1])
    groups[0].next_alternative()
    return groups[0].all_ways * _cuts(groups[0].most_repeats)


def _count(groups: list[_Group], piece: str, times: str | None) -> None:
    """Count a character, or the group that ends here.    times: how what says how often it comes begins."""
    repeats, found = 0, 1
    if piece == ")":
        done = groups.pop()
        done.next_alternative()
        repeats, found = done.most_repeats, done.all_ways
        if done.looks:
            repeats, found = 0, found * _cuts(repeats)
        if times not in (None, "?"):
            raise ValueError("which must repeat no group")
    elif times == "?":
        pass
    elif times is not None:
        repeats, found = (0, _DIGITS) if piece == r"\d" and times != "{" else (1, 1)
    groups[-1].repeats += repeats
    groups[-1].ways *= found + (times == "?")


def _cuts(repeats: int) -> int:
    return math.comb(_LONGEST + repeats, repeats)
