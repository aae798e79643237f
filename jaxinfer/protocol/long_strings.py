"""Long strings of a JSON text, taken out and read piece by piece, so that no other thread waits for all of one.

json.loads reads a string of 8 MB in one go, in which nothing else of the interpreter runs for 18 ms.
"""

import json
import re
import secrets
import time
from typing import Any

LONG_BYTES = 2**17
_PIECE_BYTES = 2**15
_PAUSE_S = 20e-6  # after each: else a thread that waits for the interpreter gets it after the switch interval only
_MAX_STRINGS = 2**14  # to look at more of them costs more than it saves
_INSIDE = re.compile(  # what may stand in a string; a pair of escapes that is one character is never cut in two
    rb'(?:[^"\\]++|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*+'
)


def take_out(raw: bytes) -> tuple[bytes, dict[str, str]]:
    """A JSON text in which secret names stand for long strings, and these by name. None are taken out where something
    is wrong with one: whoever reads all of it finds the fault."""
    kept: list[bytes] = []
    strings: dict[str, str] = {}
    done = begin = 0
    for _ in range(_MAX_STRINGS):
        begin = raw.find(b'"', begin) + 1
        if not begin:
            kept.append(raw[done:])
            return b"".join(kept), strings
        ends = _ends_of_pieces(raw, begin)
        if not ends:
            break
        if ends[-1] - begin >= LONG_BYTES:
            text = _read(raw, begin, ends)
            if text is None:
                break
            name = secrets.token_hex(16)
            strings[name] = text
            kept += raw[done:begin], name.encode()
            done = ends[-1]
        begin = ends[-1] + 1
    return raw, {}


def put_back(tree: Any, strings: dict[str, str]) -> Any:
    """The tree with the long strings in their places; left in `strings` are those that name a field."""
    if isinstance(tree, str):
        return strings.pop(tree, tree)
    if isinstance(tree, list):
        return [put_back(child, strings) if isinstance(child, str | list | dict) else child for child in tree]
    if isinstance(tree, dict):
        return {name: put_back(child, strings) for name, child in tree.items()}
    return tree


def _ends_of_pieces(raw: bytes, begin: int) -> list[int]:
    """Where the string that begins there is to be cut, its end last; empty when it is none."""
    ends: list[int] = []
    while found := _INSIDE.match(raw, begin, begin + _PIECE_BYTES):
        end = found.end()
        if raw[end : end + 1] == b'"':
            return [*ends, end]
        while begin < end < len(raw) and raw[end] & 0xC0 == 0x80:  # within a character
            end -= 1
        if end == begin or end == len(raw):
            break
        ends.append(end)
        begin = end
        time.sleep(_PAUSE_S)
    return []


def _read(raw: bytes, begin: int, ends: list[int]) -> str | None:
    """What a string says; None: it is not one of JSON's, or half a surrogate pair is in it."""
    pieces = []
    for end in ends:
        try:
            piece: str = json.loads(f'"{raw[begin:end].decode()}"')
            piece.encode()
        except ValueError:
            return None
        pieces.append(piece)
        begin = end
        time.sleep(_PAUSE_S)
    return "".join(pieces)
