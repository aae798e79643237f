"""ToolReader: an answer's content and its tool calls, numbered and named, as they come."""

import dataclasses
import secrets
from collections.abc import Iterable
from typing import Any

import msgspec

from jaxinfer.text.tools.events import Arguments, Begin, Dropped, End, Event, Gap
from jaxinfer.text.tools.formats import Format, new_parser


@dataclasses.dataclass(frozen=True, slots=True)
class ToolUse:
    """What calls an answer may hold. schemas: of the parameters of the tools offered, by their names.

    parallel: more than one call.    named: the request named the tool, the only one here, so that a call is an ordinary
    end.    due: the answer must be a call.    strict: the tools whose arguments must be of their schema.
    alone: an answer that is one JSON object with a tool's name and arguments is a call too, whatever the form.
    """

    schemas: dict[str, dict[str, Any]]
    parallel: bool = True
    named: bool = False
    due: bool = False
    strict: frozenset[str] = frozenset()
    alone: bool = True


class CallDelta(msgspec.Struct, gc=False):
    """The next piece of a call. id, name: on its first one only.    is_whole: its arguments are complete.

    at: where it stands in the content that comes with it, in characters.    dropped: it is no call after all, and this
    text of it belongs to the content there. What a stream has shown of it stays shown.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    is_whole: bool = False
    dropped: str | None = None
    at: int = 0


class ToolReader:
    """Of the white space around calls, so much is content as parts the texts before and behind them. finish_reason
    "tool_calls" is due when `has_calls`.
    """

    def __init__(self, form: Format, use: ToolUse) -> None:
        self._parser = new_parser(form, use.schemas, alone=use.alone)
        self._use = use
        self._num_begun = self._num_whole = self._num_dropped = 0
        self._has_said = False
        self._after_call = self._was_after_call = False  # nothing but white space since; when the last one began
        self._space: list[str] = []  # behind the last text, held back: a call may follow
        self._space_after: list[str] = []  # behind the call that followed

    @property
    def has_calls(self) -> bool:
        return self._num_whole > 0 and not self._num_dropped and not self._use.named

    def feed(self, text: str) -> tuple[str, list[CallDelta]]:
        """The content and the calls that this text brings."""
        return self._read(self._parser.feed(text))

    def finish(self) -> tuple[str, list[CallDelta]]:
        """What was held back, at the end of the text."""
        content, calls = self._read(self._parser.finish())
        space = "" if self._after_call else "".join(self._space)
        self._space = []
        return content + space, calls

    def _read(self, events: Iterable[Event]) -> tuple[str, list[CallDelta]]:
        content: list[str] = []
        calls: list[CallDelta] = []
        num_chars = 0
        for event in events:
            if isinstance(event, str):
                content.append(self._trimmed(event))
                num_chars += len(content[-1])
            elif isinstance(event, Gap):
                self._after_call = True
            elif self._use.parallel or not self._num_whole:
                self._add(event, num_chars, calls)
        return "".join(content), calls

    def _add(self, event: Begin | Arguments | End | Dropped, at: int, calls: list[CallDelta]) -> None:
        """at: where it stands in the content, in characters."""
        index = self._num_begun - 1
        match event:
            case Begin(name):
                self._was_after_call, self._after_call = self._after_call, True
                self._num_begun += 1
                calls.append(CallDelta(index + 1, f"chatcmpl-tool-{secrets.token_hex(12)}", name, at=at))
            case Arguments(text):
                calls.append(CallDelta(index, arguments=text, at=at))
            case End():
                self._num_whole += 1
                calls.append(CallDelta(index, is_whole=True, at=at))
            case Dropped(raw):
                self._num_dropped += 1
                self._after_call = self._was_after_call
                calls.append(CallDelta(index, dropped=self._trimmed(raw) + "".join(self._space), at=at))
                self._space = []

    def _trimmed(self, text: str) -> str:
        """The text without white space at its end, where a call may follow, and with what is due before it."""
        kept = text.rstrip()
        if not kept:
            (self._space_after if self._after_call else self._space).append(text)
            return ""
        before = "".join(self._space)
        if self._after_call:
            shown = kept.lstrip()
            after = "".join([*self._space_after, kept[: len(kept) - len(shown)]])
            before = before or after or "\n" if self._has_said else ""
            kept = shown
        self._space, self._space_after = [text[len(text.rstrip()) :]], []
        self._has_said, self._after_call = True, False
        return before + kept


def merged(calls: Iterable[CallDelta]) -> list[CallDelta]:
    """The same with neighbouring pieces of a call joined."""
    joined: list[CallDelta] = []
    for call in calls:
        last = joined[-1] if joined else None
        if last is not None and last.index == call.index and last.dropped is None and call.dropped is None:
            last.arguments += call.arguments
            last.is_whole = last.is_whole or call.is_whole
        else:
            joined.append(call)
    return joined


class WholeCalls:
    """The calls of an answer that is not streamed: those that were completed."""

    def __init__(self) -> None:
        self._calls: dict[int, CallDelta] = {}

    def add(self, calls: Iterable[CallDelta], content: str) -> str:
        """Returns the content of the same delta, with the text of dropped calls."""
        for call in calls:
            if call.index in self._calls:
                self._calls[call.index].arguments += call.arguments
                self._calls[call.index].is_whole |= call.is_whole
            else:
                self._calls[call.index] = msgspec.structs.replace(call)
        for call in reversed([call for call in calls if call.dropped is not None]):
            del self._calls[call.index]
            content = f"{content[: call.at]}{call.dropped}{content[call.at :]}"
        return content

    @property
    def calls(self) -> list[CallDelta]:
        return [call for call in self._calls.values() if call.is_whole]
