"""Keeps what users write from becoming control tokens.

Before rendering, an invisible marker is put behind the first character of every control spelling in the content, which
breaks it; after rendering, what still spells a control token was written by the template. Those get the secret names
of PlainEncoder, the markers are removed, and the whole text is encoded at once, so that the text around the spellings
is tokenized as ever.
"""

import bisect
import io
import itertools
import os.path
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from jaxinfer.errors import InvalidRequest

# A model's own tags, such as <think> or </tool_call>: what an assistant said and what the system prompt explains may
# hold them. Tokens that begin or end a turn look different or are special.
TAG = re.compile(r"</?\w+>")
_TRUSTED_ROLES = ("system", "developer", "assistant")
_KEY = 2  # characters that a control token has at least
_PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))  # characters that mean nothing
_ESCAPE = re.compile(r"\\u(?:e[\da-f]{3}|f[0-8][\da-f]{2}|db[89a-f][\da-f]\\ud[c-f][\da-f]{2})", re.ASCII)  # of those

_NONE: tuple[str, list[int]] = ("", [])


class ControlGuard:
    """Finds and breaks the spellings of a tokenizer's control tokens, each of two characters or more."""

    def __init__(self, control_tokens: dict[str, int], special_ids: frozenset[int]) -> None:
        tags = {t for t, token_id in control_tokens.items() if token_id not in special_ids and TAG.fullmatch(t)}
        tokens = "".join(control_tokens)
        self._chars, self._escapes = frozenset(tokens), frozenset(_ESCAPE.findall(tokens))
        self._all = _Spellings(control_tokens)
        self._turns = _Spellings(control_tokens.keys() - tags)

    def mark(self, messages: list[dict[str, Any]], others: Any, avoid: str) -> tuple[list[dict[str, Any]], Any, str]:
        """Copies with every spelling broken by a marker that occurs nowhere else, and the marker; it is empty where
        nothing is spelt. others: tools, template variables.    avoid: a text whose characters are no markers.

        Raises InvalidRequest where every character that could be one occurs.
        """
        texts = [avoid, *_strings(messages), *_strings(others)]
        used = self._chars.union(*(text for text in texts if not text.isascii()))
        escapes = self._escapes.union(*map(_ESCAPE.findall, texts))
        unused = (char for char in map(chr, itertools.chain(*_PRIVATE)) if char not in used)
        free = next((char for char in unused if _escaped(char) not in escapes), None)
        marker = free or chr(_PRIVATE[0][0])
        marked = [_map(message, partial(self._of(message).broken, marker=marker)) for message in messages]
        marked_others = _map(others, partial(self._all.broken, marker=marker))
        if marked == messages and marked_others == others:
            return messages, others, ""
        if free is None:
            raise InvalidRequest(
                "messages that spell control tokens must leave a private-use character unused, and these hold them "
                "all. Leave one of them out.",
                param="messages",
            )
        return marked, marked_others, marker

    def unmark(self, rendered: str, marker: str, name: Callable[[str], str]) -> str:
        """The rendering without markers, in which the template's control tokens go by `name(token)`."""
        renamed = self._all.replaced(rendered, name)
        return renamed.replace(marker, "").replace(_escaped(marker), "")

    def _of(self, message: dict[str, Any]) -> "_Spellings":
        return self._turns if message.get("role") in _TRUSTED_ROLES else self._all


class _Spellings:
    """A set of strings to find, in time that does not grow with their number: a model may have 30,000."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = frozenset(tokens)
        self._sorted = sorted(self._tokens)
        first, second = (_one_of({token[i] for token in self._tokens}) for i in range(_KEY))
        self._starts = re.compile(rf"{first}(?={second}|\Z)")
        lengths: dict[str, list[int]] = {}
        beginnings: dict[str, str] = {}
        for token in self._sorted:
            key = token[:_KEY]
            beginnings[key] = os.path.commonprefix([beginnings.get(key, token), token])
            lengths.setdefault(key, []).append(len(token))
        # by key: what all of its tokens begin with, and their lengths, the longest first
        self._with = {key: (beginnings[key], sorted(set(lengths[key]), reverse=True)) for key in lengths}
        self._longest = max(map(len, self._sorted), default=1)

    def broken(self, text: str, marker: str) -> str:
        """`text` with the marker behind the first character of each spelling, which breaks all that begin there, and
        between those of one that begins at its end.
        """
        end = self._open_end(text)
        marked, at = io.StringIO(), 0  # no list of the pieces, which are of many times the text's size
        for start, _ in self._found(text):
            if start >= end:
                break
            marked.write(text[at : start + 1] + marker)
            at = start + 1
        for cut in range(end + 1, len(text) + 1):
            marked.write(text[at:cut] + marker)
            at = cut
        return marked.getvalue() + text[at:]

    def replaced(self, text: str, name: Callable[[str], str]) -> str:
        """`text` with each spelling by another name; of those that overlap, the first and of these the longest."""
        renamed, at = io.StringIO(), 0
        for start, end in self._found(text):
            if start >= at:
                renamed.write(text[at:start])
                renamed.write(name(text[start:end]))
                at = end
        return renamed.getvalue() + text[at:]

    def _found(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of the longest spelling at each place where one begins, in order; they may overlap."""
        for match in self._starts.finditer(text):
            start = match.start()
            beginning, lengths = self._with.get(text[start : start + _KEY], _NONE)
            if not text.startswith(beginning, start):
                continue
            for length in lengths:
                if text[start : start + length] in self._tokens:
                    yield start, start + length
                    break

    def _open_end(self, text: str) -> int:
        """Where the text begins a spelling that the next string could complete; its length when it does not."""
        ends = self._starts.finditer(text, max(0, len(text) - self._longest + 1))
        return next((match.start() for match in ends if self._is_beginning(text[match.start() :])), len(text))

    def _is_beginning(self, text: str) -> bool:
        """Whether some spelling begins with `text` and goes on."""
        at = bisect.bisect_right(self._sorted, text)
        return at < len(self._sorted) and self._sorted[at].startswith(text)


def _one_of(chars: set[str]) -> str:
    """A pattern for any of these characters."""
    return f"[{''.join(map(re.escape, sorted(chars)))}]" if chars else r"(?!)"


def _escaped(char: str) -> str:
    """The character as JSON in ASCII spells it: a template may ask `tojson` for that."""
    units = char.encode("utf-16-be").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _map(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _map(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_map(item, change) for item in value]
    return value
