"""OpenAI's response object. What it holds is in response_output.py, the events of its stream in response_events.py."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from jaxinfer.errors import ApiError
from jaxinfer.protocol.forms import Choice, Progress, Usage
from jaxinfer.protocol.response_events import ResponseEvents
from jaxinfer.protocol.response_output import STATUS, Said, called, message, thoughts, written
from jaxinfer.protocol.responses import encode_json

_ALWAYS: dict[str, Any] = {
    "max_tool_calls": None,
    "background": False,
    "service_tier": "default",
}


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
    on_end: Callable[[dict[str, Any], Said], None]

    def item_id(self, prefix: str, number: int = 0) -> str:
        """Of a message or of thoughts. number: how many of the same kind were before."""
        own = f"{prefix}_{self.id.removeprefix('resp_')}"
        return f"{own}_{number}" if number else own

    def body(self, choices: list[Choice], progress: Progress) -> bytes:
        """The whole answer, not streamed."""
        (choice,) = choices
        said = Said(choice.reasoning, choice.text, choice.calls)
        status = STATUS[choice.finish_reason]
        output = self._items(said, written(choice.logprobs), status)
        return encode_json(self.ended(said, output, status, progress.usage))

    def ended(self, said: Said, output: list[dict[str, Any]], status: str, usage: Usage) -> dict[str, Any]:
        """The object of a response that has ended well; tells on_end."""
        response = self.object(status, output, usage)
        self.on_end(response, said)
        return response

    def _items(self, said: Said, logprobs: list[Any], status: str) -> list[dict[str, Any]]:
        """The output of a response in this status: no message where an answer has ended among its thoughts."""
        has_message = bool(said.text or not (said.reasoning or said.calls))
        items = []
        if said.reasoning:
            own = "completed" if has_message or said.calls else status
            items.append(thoughts(self.item_id("rs"), said.reasoning, own))
        if has_message:
            own = "completed" if said.calls else status
            items.append(message(self.item_id("msg"), said.text, logprobs, own))
        return items + [called(call, "completed") for call in said.calls]

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
            "error": None if error is None else {"code": _code(error), "message": str(error)},
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            **_ALWAYS,
            **self.settings,
        }

    def events(self, progress: Progress) -> ResponseEvents:
        """The answer, streamed."""
        return ResponseEvents(self, progress)


def _code(error: ApiError) -> str:
    """The request's fault by its own code; all of ours are one to this API."""
    return error.code if error.status < 500 and error.code is not None else "server_error"


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},  # none is charged for
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
