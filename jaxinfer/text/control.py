"""Keeps what users write from becoming control tokens.

Before rendering, an invisible marker is put behind the first character of every control spelling in the content, which
breaks it; after rendering, what still spells a control token was written by the template. Those get the secret names
of PlainEncoder, the markers are removed, and the whole text is encoded at once, so that the text around the spellings
is tokenized as ever.
"""

import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from jaxinfer.errors import InvalidRequest

# A model's own tags, such as <think> or </tool_call>: what an assistant said and what the system prompt explains may
# hold them. Tokens that begin or end a turn look different or are special.
TAG = re.compile(r"</?\w+>")
_TRUSTED_ROLES = ("system", "developer", "assistant")
_PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))  # characters that mean nothing
_ESCAPE = re.compile(r"\\u(?:e[\da-f]{3}|f[0-8][\da-f]{2}|db[89a-f][\da-f]\\ud[c-f][\da-f]{2})", re.ASCII)  # of those


class ControlGuard:
    """Finds and breaks the spellings of a tokenizer's control tokens."""

    def __init__(self, control_tokens: dict[str, int], special_ids: frozenset[int]) -> None:
        tags = {t for t, token_id in control_tokens.items() if token_id not in special_ids and TAG.fullmatch(t)}
        self._tokens = "".join(control_tokens)
        self._all = _Spellings(control_tokens)
        self._turns = _Spellings(control_tokens.keys() - tags)

    def is_needed(self, messages: list[dict[str, Any]], others: Any) -> bool:
        """Whether any string in the messages or in `others` (tools, template variables) must be broken."""
        spelt = any(self._of(message).occur_in(text) for message in messages for text in _strings(message))
        return spelt or any(self._all.occur_in(text) for text in _strings(others))

    def mark(self, messages: list[dict[str, Any]], others: Any, avoid: str) -> tuple[list[dict[str, Any]], Any, str]:
        """Copies with every spelling broken by a marker that occurs nowhere else, and the marker.

        Raises InvalidRequest where every character that could be one occurs.
        """
        texts = [avoid, self._tokens, *_strings(messages), *_strings(others)]
        used = set().union(*texts)
        escapes = {found[0] for text in texts for found in _ESCAPE.finditer(text)}
        unused = (char for char in map(chr, itertools.chain(*_PRIVATE)) if char not in used)
        marker = next((char for char in unused if _escaped(char) not in escapes), None)
        if marker is None:
            raise InvalidRequest(
                "messages that spell control tokens must leave a private-use character unused, and these hold them "
                "all. Leave one of them out.",
                param="messages",
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
        """`text` with the marker behind the first character of each spelling, which breaks all that begin there, and
        between those of one that begins at its end.
        """
        end = self._open_end(text)
        begun = (found.start() + 1 for found in self._every.finditer(text) if found.end(1) > found.start() + 1)
        cuts = itertools.chain((cut for cut in begun if cut <= end), range(end + 1, len(text) + 1))
        marked, at = io.StringIO(), 0  # no list of the pieces, which are of many times the text's size
        for cut in cuts:
            marked.write(text[at:cut])
            marked.write(marker)
            at = cut
        return marked.getvalue() + text[at:]

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
