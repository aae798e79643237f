"""Answers as bytes: whole bodies, and the frames of a stream (server-sent events), as OpenAI's API reference has them.

A frame is a fixed head, a few fields and a fixed tail: everything that is the same in each chunk is encoded once per
stream, so a token costs one msgspec call and one join.
"""

import dataclasses
from typing import Any, Literal

import msgspec

from jaxinfer.errors import ApiError
from jaxinfer.protocol.fields import StreamOptions
from jaxinfer.protocol.forms import EVENT_STREAM, Choice, Metrics, Piece, Progress, Usage
from jaxinfer.protocol.logprobs import LogprobsWriter, prompt_logprobs
from jaxinfer.text.tools.reader import CallDelta

Kind = Literal["chat", "completion"]
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"  # a comment: clients skip it, proxies see traffic
_END = b"\n\n"
# Line ends to some clients' str.splitlines, though not in the SSE standard: escaped, so that no frame is cut
_LINE_ENDS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))

encode_json = msgspec.json.Encoder().encode


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerEnvelope:
    """What all bodies and chunks of one request share. created: seconds since 1970.    options: of its stream."""

    kind: Kind
    id: str
    created: int
    model: str
    fingerprint: str
    options: StreamOptions = StreamOptions()
    include_metrics: bool = False

    def body(self, choices: list[Choice], progress: Progress) -> bytes:
        """The whole answer, not streamed."""
        shape = _chat_choice if self.kind == "chat" else _completion_choice
        name = "chat.completion" if self.kind == "chat" else "text_completion"
        rest: dict[str, Any] = {"choices": [shape(choice) for choice in choices], "usage": progress.usage.as_dict()}
        if self.kind == "chat" and choices and choices[0].prompt_logprobs is not None:
            rest["prompt_logprobs"] = prompt_logprobs(choices[0].prompt_logprobs)
        if self.include_metrics:
            rest["metrics"] = progress.metrics
        return encode_json(self._head(name) | rest)

    def events(self, progress: Progress) -> "Chunks":
        """The answer, streamed."""
        return Chunks(self, progress)

    def frames(self) -> "Frames":
        """The frames of this answer, streamed."""
        name = "chat.completion.chunk" if self.kind == "chat" else "text_completion"
        head = b"data: " + encode_json(self._head(name))[:-1] + b',"choices":['
        text_key = b',"delta":{"content":' if self.kind == "chat" else b',"text":'
        text_end = b'},"logprobs":' if self.kind == "chat" else b',"logprobs":'
        return Frames(head, head + b'{"index":', text_key, text_end)

    def _head(self, name: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Frames:
    """The encoded parts that every frame of one stream shares."""

    head: bytes
    choice_head: bytes
    text_key: bytes
    text_end: bytes

    def role(self, index: int, usage: Usage | None = None) -> bytes:
        """Chat's first chunk of a choice."""
        return self._frame(index, b',"delta":{"role":"assistant","content":""},"logprobs":', usage=usage)

    def text(
        self,
        index: int,
        text: str,
        finish_reason: str | None = None,
        stop_reason: int | str | None = None,
        usage: Usage | None = None,
        logprobs: msgspec.Raw | None = None,
    ) -> bytes:
        """The next piece of a choice's text; its last one has the finish_reason. logprobs: of a LogprobsWriter."""
        delta = self.text_key + encode_text(text) + self.text_end
        return self._frame(index, delta, finish_reason, stop_reason, usage, logprobs)

    def reasoning(self, index: int, text: str, usage: Usage | None = None) -> bytes:
        """The next piece of a chat's thoughts, under both of the names that clients read."""
        return self._beside(index, {"reasoning": text, "reasoning_content": text}, usage)

    def call(self, index: int, call: CallDelta, usage: Usage | None = None) -> bytes:
        """The next piece of a chat's tool call: first its name alone."""
        frames = b""
        if call.name is not None:
            function = {"name": call.name, "arguments": ""}
            begin = {"index": call.index, "id": call.id, "type": "function", "function": function}
            frames = self._beside(index, {"tool_calls": [begin]}, usage)
        if call.arguments:
            piece = {"index": call.index, "function": {"arguments": call.arguments}}
            frames += self._beside(index, {"tool_calls": [piece]}, usage)
        return frames

    def _beside(self, index: int, delta: dict[str, Any], usage: Usage | None) -> bytes:
        return self._frame(index, b',"delta":' + encode_line(delta) + b',"logprobs":', usage=usage)

    def _frame(
        self,
        index: int,
        delta: bytes,
        finish_reason: str | None = None,
        stop_reason: int | str | None = None,
        usage: Usage | None = None,
        logprobs: msgspec.Raw | None = None,
    ) -> bytes:
        middle = b'null,"finish_reason":'
        if logprobs is not None:
            middle = _escape_line_ends(bytes(logprobs)) + b',"finish_reason":'
        end = b"null}]"
        if finish_reason is not None:
            reason = encode_text(stop_reason) if isinstance(stop_reason, str) else encode_json(stop_reason)
            end = encode_json(finish_reason) + b',"stop_reason":' + reason + b"}]"
        if usage is not None:
            end += b',"usage":' + encode_json(usage.as_dict())
        return b"%b%d%b%b%b}\n\n" % (self.choice_head, index, delta, middle, end)

    def last(self, usage: Usage | None, metrics: Metrics | None) -> bytes:
        """The chunk after the last choice's end that include_usage and include_metrics ask for; none, if neither."""
        parts = []
        if usage is not None:
            parts.append(b'"usage":' + encode_json(usage.as_dict()))
        if metrics is not None:
            parts.append(b'"metrics":' + encode_json(metrics))
        return self.head + b"]," + b",".join(parts) + b"}" + _END if parts else b""


class Chunks:
    """The frames of one streamed answer, in the order of its deltas."""

    content_type = EVENT_STREAM
    ping = PING

    def __init__(self, answer: AnswerEnvelope, progress: Progress) -> None:
        self._answer = answer
        self._progress = progress
        self._frames = answer.frames()
        self._writers: dict[int, LogprobsWriter] = {}  # of the choices that have begun

    def piece(self, index: int, piece: Piece) -> bytes:
        """Its frame, after the choice's first one if it is a chat's; one without text, logprobs and end has none."""
        frames = b""
        if index not in self._writers:
            self._writers[index] = LogprobsWriter(self._answer.kind)
            frames = self._frames.role(index, self._usage) if self._answer.kind == "chat" else b""
        if piece.reasoning:
            frames += self._frames.reasoning(index, piece.reasoning, self._usage)
        if not piece.calls:
            return frames + self._text(index, piece) if _is_shown(piece) else frames
        frames += self._in_order(index, piece)
        if piece.finish_reason is None:
            return frames
        return frames + self._frames.text(index, "", piece.finish_reason, piece.stop_reason, self._usage)

    def _in_order(self, index: int, piece: Piece) -> bytes:
        """A piece's content and calls; the logprobs of all of it come with the first text, if only an empty one."""
        logprobs = self._writers[index].write(piece.logprobs) if piece.logprobs else None
        parts = in_order(piece)
        if logprobs is not None and not isinstance(parts[0], str):
            parts.insert(0, "")
        frames = b""
        for part in parts:
            if isinstance(part, str):
                frames += self._frames.text(index, part, usage=self._usage, logprobs=logprobs)
                logprobs = None
            else:
                frames += self._frames.call(index, part, self._usage)
        return frames

    @property
    def _usage(self) -> Usage | None:
        return self._progress.usage if self._answer.options.continuous_usage_stats else None

    def _text(self, index: int, piece: Piece) -> bytes:
        logprobs = None if piece.logprobs is None else self._writers[index].write(piece.logprobs)
        return self._frames.text(index, piece.text, piece.finish_reason, piece.stop_reason, self._usage, logprobs)

    def end(self) -> bytes:
        usage = self._progress.usage if self._answer.options.include_usage else None
        metrics = self._progress.metrics if self._answer.include_metrics else None
        return self._frames.last(usage, metrics) + DONE

    def failed(self, error: ApiError) -> bytes:
        return error_frame(error) + DONE


def _is_shown(piece: Piece) -> bool:
    return bool(piece.text or piece.logprobs or piece.finish_reason is not None)


def error_body(error: ApiError) -> bytes:
    """OpenAI's error object; its code is a string or null."""
    return encode_json({"error": {"message": str(error), "type": error.type, "param": error.param, "code": error.code}})


def error_frame(error: ApiError) -> bytes:
    """An error in mid-stream, where the status line is long gone."""
    return b"data: " + error_body(error) + _END


def event_frame(kind: str, fields: dict[str, Any]) -> bytes:
    """An event of the APIs that name them, in the frame and in its object."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode_line({"type": kind} | fields))


def encode_line(value: Any) -> bytes:
    """JSON without what may end a line."""
    return _escape_line_ends(encode_json(value))


def encode_text(text: str) -> bytes:
    """A text as JSON on one line."""
    return _escape_line_ends(encode_json(text))


def _escape_line_ends(encoded: bytes) -> bytes:
    if encoded.isascii():
        return encoded
    for raw, escaped in _LINE_ENDS:
        encoded = encoded.replace(raw, escaped)
    return encoded


def _logprobs(choice: Choice, kind: Kind) -> msgspec.Raw | None:
    return None if choice.logprobs is None else LogprobsWriter(kind).write(choice.logprobs)


def shown_call(call: CallDelta) -> dict[str, Any]:
    """A whole call, as a message holds it."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def own_id(call: CallDelta, prefix: str) -> str:
    """A call's id as another API writes it."""
    return prefix + (call.id or "").rpartition("-")[2]


def in_order(piece: Piece) -> list[str | CallDelta]:
    """What a piece brings of text and calls, as it was said."""
    parts: list[str | CallDelta] = []
    start = 0
    for call in piece.calls or ():
        parts += [piece.text[start : call.at], call]
        start = call.at
    return [part for part in (*parts, piece.text[start:]) if part]


def _chat_choice(choice: Choice) -> dict[str, Any]:
    has_parts = choice.calls or choice.reasoning
    message: dict[str, Any] = {"role": "assistant", "content": choice.text or ("" if not has_parts else None)}
    message["refusal"] = None
    if choice.reasoning:
        message |= {"reasoning": choice.reasoning, "reasoning_content": choice.reasoning}
    if choice.calls:
        message["tool_calls"] = [shown_call(call) for call in choice.calls]
    return {
        "index": choice.index,
        "message": message,
        "logprobs": _logprobs(choice, "chat"),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }


def _completion_choice(choice: Choice) -> dict[str, Any]:
    found: dict[str, Any] = {
        "index": choice.index,
        "text": choice.text,
        "logprobs": _logprobs(choice, "completion"),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }
    if choice.prompt_logprobs is not None:
        found["prompt_logprobs"] = prompt_logprobs(choice.prompt_logprobs)
    return found
