"""Texts that make careless rules of a tokenizer.json slow: runs of what its own rules name. Imports no jax."""

import contextlib
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import tokenizers

COMMON = "aA1 \n\t.'-_!\u00e9\u65e5\u0301"
_MAX_CHARS = 2**12  # of all rules that are looked at
_LONGEST_UNIT = 3  # characters that stand behind each other in a pattern
_NEAR = 8  # characters of a pattern before and behind a run
_PROPERTY = r"\\[pP]\{[^{}]{1,64}\}|\[:[^:\]]{1,64}:\]"  # of characters, as patterns name one
_SET = rf"\[\^?\]?(?:{_PROPERTY}|\\.|[^\]\\])*\]"
_NO_ATOM = r"\(\?[a-z-]*[):=!>]|\(\?<(?:[=!]|\w+>)|\{\d*,?\d*\}|[()*+?|^$]"  # groups, counts, anchors and choices
_CODE = r"\\x[0-9a-fA-F]{2}|\\x\{[0-9a-fA-F]{1,6}\}|\\u[0-9a-fA-F]{4}"
_ATOM = re.compile(rf"{_NO_ATOM}|({_SET}|{_PROPERTY}|{_CODE}|\\.|.)", re.DOTALL)
_ASSERTION = re.compile(r"\\[AbBGKzZ]")
_NO_TEXT = frozenset(["type", "behavior", "prepend_scheme", "precompiled_charsmap"])  # keys of a rule


class Probe(NamedTuple):
    """A run of a unit between two texts: the first may begin a match, the second end it."""

    before: str
    unit: str
    behind: str

    def text(self, num_chars: int) -> str:
        """The run is that long. Few patterns expect what ends it."""
        return f"{self.before}{self.unit * (num_chars // len(self.unit))}\0\n{self.behind}"


class Atom(NamedTuple):
    """A part of a pattern that matches one character: one that it matches, and one or more that end a run of those."""

    match: str
    end: str


def probes(rules: Any) -> Iterator[Probe]:
    """By turns what the patterns among the rules spell, and runs of what rules replace or write, of common characters,
    and of all that patterns name.

    rules: a JSON object. A rule is looked at once, however often it is there.
    """
    spelt, texts, named = list[list[Atom]](), list[str](), list[str]()
    left = _MAX_CHARS
    for rule, is_pattern in sorted(dict.fromkeys(_rules_in(rules)), key=lambda rule: not rule[1]):
        rule, left = rule[:left], left - len(rule[:left])
        if is_pattern:
            named += [member for name in re.findall(_PROPERTY, rule) for member in _members(name)] + list(rule)
            spelt.append([*_atoms(rule)])
        elif rule:
            texts.append(rule)
    units = dict.fromkeys([*texts, *COMMON, *named, *(char for text in texts for char in text)])
    in_place = (probe for atoms in spelt for probe in _in_place(atoms))
    by_turns = itertools.zip_longest((Probe("", unit, "") for unit in units), in_place)
    yield from dict.fromkeys(probe for pair in by_turns for probe in pair if probe is not None)


def _in_place(atoms: list[Atom]) -> Iterator[Probe]:
    """Of a pattern each few atoms behind each other, alone and with what is around them; and all of it."""
    for length in range(1, _LONGEST_UNIT + 1):
        for i in range(len(atoms) - length + 1):
            unit, before = (_matched(atoms[part]) for part in (slice(i, i + length), slice(max(0, i - _NEAR), i)))
            yield Probe("", unit, "")
            yield Probe(before, unit, "".join(atom.end for atom in atoms[i : i + length + _NEAR]))
    if len(atoms) > _LONGEST_UNIT:
        yield Probe("", _matched(atoms), _matched(atoms))


def _matched(atoms: Iterable[Atom]) -> str:
    return "".join(atom.match for atom in atoms)


def _rules_in(rules: Any) -> Iterator[tuple[str, bool]]:
    """The texts in a JSON object's rules, and whether each is a pattern."""
    if isinstance(rules, list):
        for below in rules:
            yield from _rules_in(below)
    elif isinstance(rules, dict):
        for key, value in rules.items():
            if isinstance(value, str) and key not in _NO_TEXT:
                yield value, key == "Regex"
            else:
                yield from _rules_in(value)


def _atoms(pattern: str) -> Iterator[Atom]:
    """Those of a pattern in their order."""
    for atom in _ATOM.findall(pattern):
        if not atom or _ASSERTION.fullmatch(atom):
            continue
        match = atom if len(atom) == 1 else _found(atom, f"{COMMON}{atom}{_alphabet()}")[:1]
        if match:
            yield Atom(match, _matched(_atoms(atom[2:-1])) if atom.startswith("[^") else match)


def _members(name: str) -> Iterator[str]:
    """The first and the last character of a class."""
    found = _found(name, _alphabet())
    yield from dict.fromkeys([found[:1], found[-1:]]) if found else ()


@cache
def _found(name: str, text: str) -> str:
    """The characters of a text that are in a class, as the library's own patterns have it."""
    with contextlib.suppress(Exception):  # a class that the library does not know: it says so where it reads it
        split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(f"[{name}]"), "removed", invert=True)
        return "".join(piece for piece, _ in split.pre_tokenize_str(text))
    return ""


@cache
def _alphabet() -> str:
    """A character of each general category in each script, as far as names and a part of each block tell."""
    codes = (*range(0x3000), *range(0x3000, 0x10000, 4), *range(0x10000, 0x20000, 16))
    kinds: dict[tuple[str, str], str] = {}
    for char in map(chr, codes):
        if (category := unicodedata.category(char)) not in ("Cs", "Cn"):
            kinds.setdefault((category, unicodedata.name(char, "").partition(" ")[0]), char)
    return "".join(kinds.values())
