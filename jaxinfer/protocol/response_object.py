"""OpenAI's response object and the events of its stream: thoughts, if the model thinks, and a message of one text."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from jaxinfer.errors import ApiError
from jaxinfer.protocol.forms import Choice, Piece, Progress, Usage
from jaxinfer.protocol.logprobs import LogprobsWriter, TokenLogprob
from jaxinfer.protocol.responses import PING, encode_json, encode_line, encode_text, event_frame

_STATUS = {"stop": "completed", "length": "incomplete", "abort": "cancelled"}
_ALWAYS: dict[str, Any] = {
    "tools": [],
    "max_tool_calls": None,
    "truncation": "disabled",
    "background": False,
    "service_tier": "default",
    "text": {"format": {"type": "text"}},
}


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """An answer so far."""

    reasoning: str
    text: str
    logprobs: list[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class ResponseForm:
    """What all events of one response share.

    created: seconds since 1970.    settings: what it repeats of its request.    on_end: is told the object of a
    response that has ended well, and what was said, before its client is.
    """

    id: str
    created: int
    model: str
    settings: dict[str, Any]
    on_end: Callable[[dict[str, Any], "Said"], None]

    @property
    def item_id(self) -> str:
        return f"msg_{self.id.removeprefix('resp_')}"

    @property
    def thoughts_id(self) -> str:
        return f"rs_{self.id.removeprefix('resp_')}"

    def body(self, choices: list[Choice], progress: Progress) -> bytes:
        """The whole answer, not streamed."""
        (choice,) = choices
        said = Said(choice.reasoning, choice.text, written(choice.logprobs))
        return encode_json(self.ended(said, choice.finish_reason, progress.usage))

    def ended(self, said: "Said", finish_reason: str, usage: Usage) -> dict[str, Any]:
        """The object of a response that has ended well; tells on_end."""
        status = _STATUS[finish_reason]
        response = self.object(status, self.items(said, status), usage)
        self.on_end(response, said)
        return response

    def items(self, said: "Said", status: str) -> list[dict[str, Any]]:
        """The output of a response in this status: no message where an answer has ended among its thoughts."""
        items = [self.thoughts(said.reasoning, "completed" if said.text else status)] if said.reasoning else []
        return items if items and not said.text else [*items, self.item(said.text, said.logprobs, status)]

    def object(
        self, status: str, output: list[dict[str, Any]], usage: Usage | None = None, error: ApiError | None = None
    ) -> dict[str, Any]:
        """The response at a moment."""
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "model": self.model,
            "output": output,
            "usage": None if usage is None else _usage(usage),
            "error": None if error is None else {"code": "server_error", "message": str(error)},
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            **_ALWAYS,
            **self.settings,
        }

    def item(self, text: str, logprobs: list[Any], status: str) -> dict[str, Any]:
        """The message of a response in this status."""
        content = [] if status == "in_progress" else [part(text, logprobs)]
        own = _item_status(status)
        return {"id": self.item_id, "type": "message", "status": own, "role": "assistant", "content": content}

    def thoughts(self, text: str, status: str) -> dict[str, Any]:
        """What the model thought before its message."""
        content = [] if status == "in_progress" else [thought(text)]
        own = _item_status(status)
        return {"id": self.thoughts_id, "type": "reasoning", "status": own, "summary": [], "content": content}

    def events(self, progress: Progress) -> "ResponseEvents":
        """The answer, streamed."""
        return ResponseEvents(self, progress)


class ResponseEvents:
    """The events of one streamed response, numbered from 0: an item of thoughts, if any, then the message."""

    ping = PING

    def __init__(self, form: ResponseForm, progress: Progress) -> None:
        self._form = form
        self._progress = progress
        self._num_events = 0
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._logprobs: list[Any] = []
        self._held: list[Any] = []  # logprobs that no delta has had yet: the message has not begun
        self._has_message = False  # it has begun
        self._finish_reason = ""
        self._delta_head = b""

    def piece(self, index: int, piece: Piece) -> bytes:
        """Its deltas, of thoughts and of text; what opens response and items first, what closes the last one last."""
        frames = b"" if self._num_events else self._opening()
        if piece.reasoning:
            frames += self._thinking(piece.reasoning)
        self._held += written(piece.logprobs)
        if piece.text or self._has_message or (piece.finish_reason is not None and not self._thoughts):
            frames += self._saying(piece.text)
        if piece.finish_reason is None:
            return frames
        self._finish_reason = piece.finish_reason
        return frames + (self._closing() if self._has_message else self._thoughts_closing(_STATUS[piece.finish_reason]))

    def end(self) -> bytes:
        response = self._form.ended(self._said, self._finish_reason, self._progress.usage)
        kind = "completed" if response["status"] == "completed" else "incomplete"
        return self._event(f"response.{kind}", {"response": response})

    def failed(self, error: ApiError) -> bytes:
        frames = b"" if self._num_events else self._opening()
        response = self._form.object("failed", self._form.items(self._said, "failed"), self._progress.usage, error)
        return frames + self._event("response.failed", {"response": response})

    @property
    def _said(self) -> Said:
        return Said("".join(self._thoughts), "".join(self._texts), self._logprobs)

    def _opening(self) -> bytes:
        response = {"response": self._form.object("in_progress", [])}
        return self._event("response.created", response) + self._event("response.in_progress", response)

    def _thinking(self, text: str) -> bytes:
        frames = b""
        if not self._thoughts:
            item = self._form.thoughts("", "in_progress")
            frames = self._event("response.output_item.added", {"output_index": 0, "item": item})
            frames += self._event("response.content_part.added", self._thoughts_place() | {"part": thought("")})
        self._thoughts.append(text)
        return frames + self._event("response.reasoning_text.delta", self._thoughts_place() | {"delta": text})

    def _thoughts_closing(self, status: str) -> bytes:
        place, text = self._thoughts_place(), self._said.reasoning
        item = self._form.thoughts(text, status)
        return b"".join(
            (
                self._event("response.reasoning_text.done", place | {"text": text}),
                self._event("response.content_part.done", place | {"part": thought(text)}),
                self._event("response.output_item.done", {"output_index": 0, "item": item}),
            )
        )

    def _saying(self, text: str) -> bytes:
        """A delta of the message, if there is something in it, with the logprobs of all tokens that had none yet."""
        frames = b"" if self._has_message else self._message()
        if text or self._held:
            self._texts.append(text)
            self._logprobs += self._held
            fields = (self._delta_head, encode_text(text), encode_line(self._held), self._num_events)
            frames += b'%b,"delta":%b,"logprobs":%b,"sequence_number":%d}\n\n' % fields
            self._num_events += 1
            self._held = []
        return frames

    def _message(self) -> bytes:
        """What begins it."""
        self._has_message = True
        frames = self._thoughts_closing("completed") if self._thoughts else b""
        place = encode_json(self._place())[1:-1]
        self._delta_head = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",' + place
        item = self._form.item("", [], "in_progress")
        frames += self._event("response.output_item.added", {"output_index": self._output_index, "item": item})
        return frames + self._event("response.content_part.added", self._place() | {"part": part("", [])})

    def _closing(self) -> bytes:
        said = self._said
        item = self._form.item(said.text, said.logprobs, _STATUS[self._finish_reason])
        return b"".join(
            (
                self._event(
                    "response.output_text.done", self._place() | {"text": said.text, "logprobs": said.logprobs}
                ),
                self._event("response.content_part.done", self._place() | {"part": part(said.text, said.logprobs)}),
                self._event("response.output_item.done", {"output_index": self._output_index, "item": item}),
            )
        )

    @property
    def _output_index(self) -> int:
        """Of the message."""
        return 1 if self._thoughts else 0

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._form.item_id, "output_index": self._output_index, "content_index": 0}

    def _thoughts_place(self) -> dict[str, Any]:
        return {"item_id": self._form.thoughts_id, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        frame = event_frame(kind, fields | {"sequence_number": self._num_events})
        self._num_events += 1
        return frame


def _item_status(status: str) -> str:
    """Of an item that was the last one of a response in this status."""
    return status if status in ("completed", "in_progress") else "incomplete"


def thought(text: str) -> dict[str, Any]:
    """A part of what was thought."""
    return {"type": "reasoning_text", "text": text}


def part(text: str, logprobs: list[Any]) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def written(logprobs: list[TokenLogprob] | None) -> list[Any]:
    """Chat's entries; none when none were asked for."""
    entries: list[Any] = [] if logprobs is None else LogprobsWriter("chat").write(logprobs)["content"]
    return entries


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},  # none is charged for
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
