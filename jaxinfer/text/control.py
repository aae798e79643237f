"""Keeps what users write from becoming control tokens.

Before rendering, an invisible marker is put between the characters of every control spelling in the content, which
breaks it; after rendering, what still spells a control token was written by the template. Those get the secret names
of PlainEncoder, the markers are removed, and the whole text is encoded at once, so that the text around the spellings
is tokenized as ever.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

# A model's own tags, such as <think> or </tool_call>: what an assistant said and what the system prompt explains may
# hold them. Tokens that begin or end a turn look different or are special.
TAG = re.compile(r"</?\w+>")
_TRUSTED_ROLES = ("system", "developer", "assistant")


class ControlGuard:
    """Finds and breaks the spellings of a tokenizer's control tokens."""

    def __init__(self, control_tokens: dict[str, int], special_ids: frozenset[int]) -> None:
        tags = {t for t, token_id in control_tokens.items() if token_id not in special_ids and TAG.fullmatch(t)}
        self._all = _Spellings(control_tokens)
        self._turns = _Spellings(control_tokens.keys() - tags)

    def is_needed(self, messages: list[dict[str, Any]], others: Any) -> bool:
        """Whether any string in the messages or in `others` (tools, template variables) must be broken."""
        spelt = any(self._of(message).occur_in(text) for message in messages for text in _strings(message))
        return spelt or any(self._all.occur_in(text) for text in _strings(others))

    def mark(self, messages: list[dict[str, Any]], others: Any, avoid: str) -> tuple[list[dict[str, Any]], Any, str]:
        """Copies with every spelling broken by a marker that occurs nowhere else, and the marker."""
        texts = [avoid, *_strings(messages), *_strings(others)]
        used = set().union(*texts)
        marker = next(
            char
            for char in map(chr, itertools.chain(range(0xE000, 0xF900), range(0xF0000, 0xFFFFE)))
            if char not in used and not any(_escaped(char) in text for text in texts)
        )
        marked = [_map(message, partial(self._of(message).broken, marker=marker)) for message in messages]
        return marked, _map(others, partial(self._all.broken, marker=marker)), marker

    def unmark(self, rendered: str, marker: str, name: Callable[[str], str]) -> str:
        """The rendering without markers, in which the template's control tokens go by `name(token)`."""
        renamed = self._all.replaced(rendered, name)
        return renamed.replace(marker, "").replace(_escaped(marker), "")

    def _of(self, message: dict[str, Any]) -> "_Spellings":
        return self._turns if message.get("role") in _TRUSTED_ROLES else self._all


class _Spellings:
    """A set of strings to find."""

    def __init__(self, tokens: Iterable[str]) -> None:
        by_length = sorted(tokens, key=len, reverse=True)
        pattern = "|".join(map(re.escape, by_length)) if by_length else r"(?!)"
        self._next = re.compile(pattern)
        self._every = re.compile(f"(?=({pattern}))")  # overlapping ones too
        self._beginnings = frozenset(token[:i] for token in by_length for i in range(1, len(token)))
        self._longest = max(map(len, by_length), default=1)

    def occur_in(self, text: str) -> bool:
        return self._next.search(text) is not None or self._open_end(text) < len(text)

    def broken(self, text: str, marker: str) -> str:
        """`text` with the marker between the characters of each spelling, and of one that begins at its end."""
        cuts = {i for match in self._every.finditer(text) for i in range(match.start(1) + 1, match.end(1))}
        cuts.update(range(self._open_end(text) + 1, len(text) + 1))
        ends = [0, *sorted(cuts), len(text)]
        return marker.join(text[start:end] for start, end in zip(ends, ends[1:], strict=False))

    def replaced(self, text: str, name: Callable[[str], str]) -> str:
        return self._next.sub(lambda match: name(match[0]), text)

    def _open_end(self, text: str) -> int:
        """Where the text begins a spelling that the next string could complete; its length when it does not."""
        longest = min(self._longest - 1, len(text))
        return next((len(text) - n for n in range(longest, 0, -1) if text[-n:] in self._beginnings), len(text))


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
