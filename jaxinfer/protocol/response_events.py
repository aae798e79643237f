"""The events of a streamed response, in OpenAI's order."""

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from jaxinfer.errors import ApiError
from jaxinfer.protocol.forms import EVENT_STREAM, Piece, Progress
from jaxinfer.protocol.response_output import STATUS, Said, called, message, part, thought, thoughts, written
from jaxinfer.protocol.responses import PING, encode_json, encode_line, encode_text, event_frame, in_order
from jaxinfer.text.tools.reader import CallDelta, WholeCalls

if TYPE_CHECKING:
    from jaxinfer.protocol.response_object import ResponseForm

Kind = Literal["reasoning", "message", "function_call"]
_TEXT_DELTA = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",'


class ResponseEvents:
    """The events of one response, numbered from 0. Invariant: one item is open at most, the next one of the output;
    those before it are done and do not change.
    """

    content_type = EVENT_STREAM
    ping = PING

    def __init__(self, form: "ResponseForm", progress: Progress) -> None:
        self._form = form
        self._progress = progress
        self._num_events = 0
        self._done: list[dict[str, Any]] = []
        self._open: Kind | None = None
        self._texts: list[str] = []  # of the open item
        self._logprobs: list[Any] = []  # the same
        self._held: list[Any] = []  # logprobs that no delta has had yet: no message has begun
        self._call = CallDelta(0)  # that is open, its arguments being those of _texts
        self._delta_head = b""
        self._all_texts: list[str] = []
        self._all_thoughts: list[str] = []
        self._calls = WholeCalls()
        self._finish_reason = ""

    def piece(self, index: int, piece: Piece) -> bytes:
        """Its deltas, each in an item of its kind; what opens response and items first, what closes them last."""
        frames = [b"" if self._num_events else self._opening()]
        if text := self._calls.add(piece.calls, piece.text) if piece.calls else piece.text:
            self._all_texts.append(text)
        if piece.reasoning:
            self._all_thoughts.append(piece.reasoning)
            frames.append(self._thinking(piece.reasoning))
        self._held += written(piece.logprobs)
        for one in in_order(piece):
            frames.append(self._saying(one) if isinstance(one, str) else self._calling(one))
        is_last = piece.finish_reason is not None
        if (self._held and self._open == "message") or (is_last and not (self._done or self._open)):
            frames.append(self._saying(""))
        if piece.finish_reason is not None:
            self._finish_reason = piece.finish_reason
            frames.append(self._close(STATUS[piece.finish_reason]))
        return b"".join(frames)

    def end(self) -> bytes:
        said = Said("".join(self._all_thoughts), "".join(self._all_texts), self._calls.calls)
        status = STATUS[self._finish_reason]
        response = self._form.ended(said, self._done, status, self._progress.usage)
        kind = "completed" if status == "completed" else "incomplete"
        return self._event(f"response.{kind}", {"response": response})

    def failed(self, error: ApiError) -> bytes:
        frames = b"" if self._num_events else self._opening()
        self._open = self._open or (None if self._done else "message")
        output = self._done if self._open is None else [*self._done, self._item("failed")]
        response = self._form.object("failed", output, self._progress.usage, error)
        return frames + self._event("response.failed", {"response": response})

    def _opening(self) -> bytes:
        response = {"response": self._form.object("in_progress", [])}
        return self._event("response.created", response) + self._event("response.in_progress", response)

    def _thinking(self, text: str) -> bytes:
        frames = b"" if self._open == "reasoning" else self._begin("reasoning")
        self._texts.append(text)
        return frames + self._event("response.reasoning_text.delta", self._place() | {"delta": text})

    def _saying(self, text: str) -> bytes:
        """A delta of the message, if there is something in it, with the logprobs of all tokens that had none yet."""
        frames = b"" if self._open == "message" else self._begin("message")
        if text or self._held:
            self._texts.append(text)
            self._logprobs += self._held
            fields = (self._delta_head, encode_text(text), encode_line(self._held), self._num_events)
            frames += b'%b,"delta":%b,"logprobs":%b,"sequence_number":%d}\n\n' % fields
            self._num_events += 1
            self._held = []
        return frames

    def _calling(self, call: CallDelta) -> bytes:
        """The next piece of a call. One that turns out to be none is left as it stands; the rest of it is text."""
        frames = b""
        if call.name is not None:
            frames = self._begin("function_call", call)
        if call.arguments:
            self._texts.append(call.arguments)
            frames += self._event("response.function_call_arguments.delta", self._place() | {"delta": call.arguments})
        if call.is_whole or call.dropped is not None:
            frames += self._close("completed" if call.is_whole else "incomplete")
        return frames

    def _begin(self, kind: Kind, call: CallDelta | None = None) -> bytes:
        """What closes the item before and opens one of this kind."""
        frames = self._close("completed")
        self._open, self._texts, self._logprobs = kind, [], []
        self._call = call or self._call
        item = {"output_index": len(self._done), "item": self._item("in_progress")}
        frames += self._event("response.output_item.added", item)
        if kind == "function_call":
            return frames
        self._delta_head = _TEXT_DELTA + encode_json(self._place())[1:-1]
        return frames + self._event("response.content_part.added", self._place() | {"part": self._part("", [])})

    def _close(self, status: str) -> bytes:
        """What ends the open item, if there is one, in a response of this status."""
        if self._open is None:
            return b""
        place, text = self._place(), "".join(self._texts)
        item = self._item(status)
        match self._open:
            case "message":
                last = self._event("response.output_text.done", place | {"text": text, "logprobs": self._logprobs})
            case "reasoning":
                last = self._event("response.reasoning_text.done", place | {"text": text})
            case "function_call":
                own = {"name": self._call.name, "arguments": text}
                last = self._event("response.function_call_arguments.done", place | own)
        if self._open != "function_call":
            last += self._event("response.content_part.done", place | {"part": self._part(text, self._logprobs)})
        last += self._event("response.output_item.done", {"output_index": len(self._done), "item": item})
        self._done.append(item)
        self._open = None
        return last

    def _item(self, status: str) -> dict[str, Any]:
        """The open one."""
        text = "".join(self._texts)
        if self._open == "function_call":
            return called(msgspec.structs.replace(self._call, arguments=text), status)
        if self._open == "reasoning":
            return thoughts(self._item_id(), text, status)
        return message(self._item_id(), text, self._logprobs, status)

    def _item_id(self) -> str:
        number = sum(item["type"] == self._open for item in self._done)
        return self._form.item_id("rs" if self._open == "reasoning" else "msg", number)

    def _part(self, text: str, logprobs: list[Any]) -> dict[str, Any]:
        return thought(text) if self._open == "reasoning" else part(text, logprobs)

    def _place(self) -> dict[str, Any]:
        """Of the open item, and of its part if it has parts."""
        index = len(self._done)
        if self._open == "function_call":
            return {"item_id": called(self._call, "in_progress")["id"], "output_index": index}
        return {"item_id": self._item_id(), "output_index": index, "content_index": 0}

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        frame = event_frame(kind, fields | {"sequence_number": self._num_events})
        self._num_events += 1
        return frame
