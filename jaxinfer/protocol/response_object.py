"""OpenAI's response object and the events of its stream: one message of one part of text."""

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
    "reasoning": {"effort": None, "summary": None},
}


@dataclasses.dataclass(frozen=True, slots=True)
class ResponseForm:
    """What all events of one response share.

    created: seconds since 1970.    settings: what it repeats of its request.    on_end: is told the object and the text
    of a response that has ended well, before its client is.
    """

    id: str
    created: int
    model: str
    settings: dict[str, Any]
    on_end: Callable[[dict[str, Any], str], None]

    @property
    def item_id(self) -> str:
        return f"msg_{self.id.removeprefix('resp_')}"

    def body(self, choices: list[Choice], progress: Progress) -> bytes:
        """The whole answer, not streamed."""
        (choice,) = choices
        return encode_json(self.ended(choice.text, written(choice.logprobs), choice.finish_reason, progress.usage))

    def ended(self, text: str, logprobs: list[Any], finish_reason: str, usage: Usage) -> dict[str, Any]:
        """The object of a response that has ended well; tells on_end."""
        status = _STATUS[finish_reason]
        response = self.object(status, [self.item(text, logprobs, status)], usage)
        self.on_end(response, text)
        return response

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
        own = status if status in ("completed", "in_progress") else "incomplete"
        content = [] if status == "in_progress" else [part(text, logprobs)]
        return {"id": self.item_id, "type": "message", "status": own, "role": "assistant", "content": content}

    def events(self, progress: Progress) -> "ResponseEvents":
        """The answer, streamed."""
        return ResponseEvents(self, progress)


class ResponseEvents:
    """The events of one streamed response, numbered from 0."""

    ping = PING

    def __init__(self, form: ResponseForm, progress: Progress) -> None:
        self._form = form
        self._progress = progress
        self._num_events = 0
        self._texts: list[str] = []
        self._logprobs: list[Any] = []
        self._finish_reason = ""
        place = encode_json(self._place())[1:-1]
        self._delta_head = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",' + place

    def piece(self, index: int, piece: Piece) -> bytes:
        """A delta, if it has text or logprobs; what opens the response first, what closes its message last."""
        frames = b"" if self._num_events else self._opening()
        if piece.text or piece.logprobs:
            logprobs = written(piece.logprobs)
            self._texts.append(piece.text)
            self._logprobs += logprobs
            fields = (self._delta_head, encode_text(piece.text), encode_line(logprobs), self._num_events)
            frames += b'%b,"delta":%b,"logprobs":%b,"sequence_number":%d}\n\n' % fields
            self._num_events += 1
        if piece.finish_reason is None:
            return frames
        self._finish_reason = piece.finish_reason
        return frames + self._closing()

    def end(self) -> bytes:
        response = self._form.ended(self._text, self._logprobs, self._finish_reason, self._progress.usage)
        kind = "completed" if response["status"] == "completed" else "incomplete"
        return self._event(f"response.{kind}", {"response": response})

    def failed(self, error: ApiError) -> bytes:
        frames = b"" if self._num_events else self._opening()
        output = [self._form.item(self._text, self._logprobs, "failed")]
        response = self._form.object("failed", output, self._progress.usage, error)
        return frames + self._event("response.failed", {"response": response})

    @property
    def _text(self) -> str:
        return "".join(self._texts)

    def _opening(self) -> bytes:
        form, status = self._form, "in_progress"
        response = {"response": form.object(status, [])}
        return b"".join(
            (
                self._event("response.created", response),
                self._event("response.in_progress", response),
                self._event("response.output_item.added", {"output_index": 0, "item": form.item("", [], status)}),
                self._event("response.content_part.added", self._place() | {"part": part("", [])}),
            )
        )

    def _closing(self) -> bytes:
        text, logprobs = self._text, self._logprobs
        item = self._form.item(text, logprobs, _STATUS[self._finish_reason])
        return b"".join(
            (
                self._event("response.output_text.done", self._place() | {"text": text, "logprobs": logprobs}),
                self._event("response.content_part.done", self._place() | {"part": part(text, logprobs)}),
                self._event("response.output_item.done", {"output_index": 0, "item": item}),
            )
        )

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._form.item_id, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        frame = event_frame(kind, fields | {"sequence_number": self._num_events})
        self._num_events += 1
        return frame


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
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
