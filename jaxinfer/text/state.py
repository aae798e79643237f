"""TextState: one sequence's text and the one place that decides where a stop string ends it.

Pure: fed with token ids in order, it gives the same text, the same stop and the same token count however the ids are
cut into calls, so that a stream and a whole answer agree.
"""

from collections.abc import Sequence

import msgspec

from jaxinfer.text.detokenizer import Detokenizer


class TextDelta(msgspec.Struct, gc=False):
    """New text; how many of the tokens given count; the stop string that ended the sequence, if one did."""

    text: str
    num_tokens: int
    stop: str | None = None


class TextState:
    """Detokenizes and looks for stop strings.

    The first character that completes a stop string decides; of several completed by it, the longest. Held back is the
    longest end of the text that is the beginning of a stop string, nothing more; with include_stop nothing at all.
    What the first `start_after` tokens bring belongs to no stop string.
    """

    def __init__(
        self, detokenizer: Detokenizer, *, stop: tuple[str, ...] = (), include_stop: bool = False, start_after: int = 0
    ) -> None:
        if "" in stop:
            raise ValueError("a stop string must not be empty")
        self.stop: str | None = None
        self._detokenizer = detokenizer
        self._include_stop = include_stop
        self._matchers = [_Matcher(text) for text in stop]
        self._starts = frozenset(text[0] for text in stop)
        self._matched = 0  # of what came so far, how many characters may begin a stop string
        self._held = ""
        self._unsearched = start_after

    def feed(self, token_ids: Sequence[int]) -> TextDelta:
        """Append tokens. `num_tokens` counts up to and including the one that completed a stop string."""
        if self.stop is not None:
            return TextDelta("", 0)
        if not self._matchers:
            return TextDelta(self._detokenizer.feed(token_ids), len(token_ids))
        parts: list[str] = []
        for count, token_id in enumerate(token_ids, 1):
            text, stop = self._detokenizer.feed((token_id,)), None
            if self._unsearched:
                self._unsearched -= 1
            else:
                text, stop = self._advance(text)
            parts.append(text)
            if stop is not None:
                return TextDelta("".join(parts), count, stop)
        return TextDelta("".join(parts), len(token_ids))

    def skip(self) -> None:
        """Count a token whose text is not part of this one."""
        self._unsearched = max(self._unsearched - 1, 0)

    def finish(self) -> str:
        """The text still held back, once the sequence has ended; nothing after a stop string."""
        if self.stop is not None:
            return ""
        text, _ = self._advance(self._detokenizer.flush())
        text, self._held = text + self._held, ""
        return text

    def _advance(self, new: str) -> tuple[str, str | None]:
        """Take new text, return what can be given out and the stop string that ended it."""
        if not self._matched and self._starts.isdisjoint(new):
            return new, None
        ends = [(end, -len(m.stop), m.stop) for m in self._matchers if (end := m.advance(new)) is not None]
        if ends:
            end, _, self.stop = min(ends)
            text = self._held + new[:end]
            self._held = ""
            return text if self._include_stop else text[: len(text) - len(self.stop)], self.stop
        text = self._held + new
        self._matched = max([m.matched for m in self._matchers])
        keep = 0 if self._include_stop else self._matched
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None


class NoText:
    """A TextState for callers that want no text: it counts and stops at nothing."""

    stop = None

    def feed(self, token_ids: Sequence[int]) -> TextDelta:
        return TextDelta("", len(token_ids))

    def finish(self) -> str:
        return ""


class _Matcher:
    """Looks for one string in a stream, in constant time per character (Knuth, Morris, Pratt 1977).

    matched: length of the longest beginning of `stop` that the text so far ends with.
    """

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._border = [0] * (len(stop) + 1)  # border[i]: longest proper beginning of stop[:i] that also ends it
        for i in range(1, len(stop)):
            self._border[i + 1] = self._next(self._border[i], stop[i])

    def advance(self, text: str) -> int | None:
        """Take text; the number of its characters up to the end of the first match, or None."""
        start = 0
        if self.matched == 0:
            start = text.find(self.stop[0])
            if start < 0:
                return None
        for i in range(start, len(text)):
            self.matched = self._next(self.matched, text[i])
            if self.matched == len(self.stop):
                return i + 1
        return None

    def _next(self, matched: int, char: str) -> int:
        while matched and self.stop[matched] != char:
            matched = self._border[matched]
        return matched + (self.stop[matched] == char)
