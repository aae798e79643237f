"""Anthropic's message object, the events of its stream, and its error object."""

import dataclasses
from typing import Any

import msgspec

from jaxinfer.errors import ApiError, TooLong
from jaxinfer.protocol.forms import EVENT_STREAM, Choice, Piece, Progress, Usage
from jaxinfer.protocol.responses import encode_json, encode_text, event_frame, in_order, own_id
from jaxinfer.text.tools.reader import CallDelta

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
_DELTA = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
    b'"delta":{"type":"text_delta","text":%b}}\n\n'
)


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """What all events of one answer share. max_tokens: that it may have at most, and fewer where the context ends; with
    0 it has no blocks.
    """

    id: str
    model: str
    request_id: str
    max_tokens: int

    def body(self, choices: list[Choice], progress: Progress) -> bytes:
        """The whole answer, not streamed."""
        (choice,) = choices
        content = [_thoughts(choice.reasoning)] if choice.reasoning else []
        if choice.text or not (content or choice.calls or self.max_tokens == 0):
            content.append(_text(choice.text))
        content += [_call(call, msgspec.Raw(call.arguments.encode())) for call in choice.calls]
        end = self.end(choice.finish_reason, choice.stop_reason, progress.usage, has_calls=bool(choice.calls))
        return encode_json(self.head(content, progress.usage) | end)

    def head(self, content: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        """The message object, not ended."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage),
        }

    def end(
        self, finish_reason: str | None, stop_reason: int | str | None, usage: Usage, *, has_calls: bool
    ) -> dict[str, str | None]:
        """How it ended. An answer that was aborted has neither reason. With a call, also of a tool by name, clients
        wait for tool_use.
        """
        if isinstance(stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stop_reason}
        ended = "tool_use" if has_calls else "end_turn"
        cut = "max_tokens" if usage.completion_tokens >= self.max_tokens else "model_context_window_exceeded"
        reasons = {"stop": ended, "tool_calls": ended, "length": cut}
        return {"stop_reason": reasons.get(finish_reason or ""), "stop_sequence": None}

    def events(self, progress: Progress) -> "MessageEvents":
        """The answer, streamed."""
        return MessageEvents(self, progress)


class MessageEvents:
    """The events of one streamed answer: blocks one after another, of thoughts, of text and of calls."""

    content_type = EVENT_STREAM
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(self, message: Message, progress: Progress) -> None:
        self._message = message
        self._progress = progress
        self._is_begun = False
        self._index = -1  # of the block that is open
        self._open = ""  # its type, if one is
        self._has_calls = False  # one is whole

    def piece(self, index: int, piece: Piece) -> bytes:
        """Its deltas, each in a block of its kind; what opens message and blocks first, what closes them last."""
        frames = b"" if self._is_begun else self._opening()
        self._is_begun = True
        if piece.reasoning:
            frames += self._begin_unless_open(_thoughts(""))
            frames += self._delta({"type": "thinking_delta", "thinking": piece.reasoning})
        for part in in_order(piece):
            frames += self._say(part) if isinstance(part, str) else self._call(part)
        if piece.finish_reason is None:
            return frames
        is_due = self._index < 0 and self._message.max_tokens > 0
        return frames + (self._begin(_text("")) if is_due else b"") + self._closing(piece)

    def _say(self, text: str) -> bytes:
        return self._begin_unless_open(_text("")) + _DELTA % (self._index, encode_text(text))

    def _call(self, call: CallDelta) -> bytes:
        """The next piece of a call. One that turns out to be none is left as it stands; the rest of it is text."""
        frames = b"" if call.name is None else self._begin(_call(call, {}))
        if call.arguments:
            frames += self._delta({"type": "input_json_delta", "partial_json": call.arguments})
        self._has_calls = self._has_calls or call.is_whole
        return frames + (self._stop() if call.is_whole or call.dropped is not None else b"")

    def _opening(self) -> bytes:
        return event_frame("message_start", {"message": self._message.head([], self._progress.usage)})

    def _begin_unless_open(self, block: dict[str, Any]) -> bytes:
        return b"" if self._open == block["type"] else self._begin(block)

    def _begin(self, block: dict[str, Any]) -> bytes:
        frames = self._stop()
        self._index += 1
        self._open = block["type"]
        frames += event_frame("content_block_start", {"index": self._index, "content_block": block})
        return frames if self._index else frames + self.ping  # where Anthropic has its first

    def _delta(self, delta: dict[str, str]) -> bytes:
        return event_frame("content_block_delta", {"index": self._index, "delta": delta})

    def _stop(self) -> bytes:
        was_open, self._open = self._open, ""
        return event_frame("content_block_stop", {"index": self._index}) if was_open else b""

    def _closing(self, piece: Piece) -> bytes:
        usage = self._progress.usage
        delta = self._message.end(piece.finish_reason, piece.stop_reason, usage, has_calls=self._has_calls)
        return self._stop() + event_frame("message_delta", {"delta": delta, "usage": _usage(usage)})

    def end(self) -> bytes:
        return event_frame("message_stop", {})

    def failed(self, error: ApiError) -> bytes:
        return b"event: error\ndata: %b\n\n" % anthropic_error_body(error, error.status, self._message.request_id)


def anthropic_error_body(error: ApiError, status: int, request_id: str | None) -> bytes:
    """Anthropic's error object. status: of the answer."""
    kind = _ERROR_TYPES.get(status, "invalid_request_error")
    message = _too_long(error) if isinstance(error, TooLong) else str(error)
    return encode_json({"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id})


def _too_long(error: TooLong) -> str:
    """Anthropic's own words, in which agents look for both numbers before they compact."""
    most = error.most_tokens - 1  # an answer needs a token of the context too
    least = "; it was not counted and has at least so many" if error.is_least else ""
    return f"prompt is too long: {error.prompt_tokens} tokens > {most} maximum{least}"


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _thoughts(text: str) -> dict[str, Any]:
    """The signature is Anthropic's alone to give; clients want the field."""
    return {"type": "thinking", "thinking": text, "signature": ""}


def _call(call: CallDelta, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": own_id(call, "toolu_"), "name": call.name, "input": arguments}


def _usage(usage: Usage) -> dict[str, int]:
    """Anthropic counts what was found in the cache apart from the rest of the input."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
