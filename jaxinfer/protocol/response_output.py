"""What a response holds: items of thoughts, of messages and of calls."""

import dataclasses
from typing import Any

import msgspec

from jaxinfer.protocol.logprobs import TokenLogprob, chat_entries
from jaxinfer.protocol.responses import own_id, shown_call
from jaxinfer.text.tools.reader import CallDelta

STATUS = {"stop": "completed", "tool_calls": "completed", "length": "incomplete", "abort": "cancelled"}
_CALL_ID = "call_"  # how it begins


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """An answer. calls: that were completed."""

    reasoning: str
    text: str
    calls: list[CallDelta]

    def message(self) -> dict[str, Any]:
        """The assistant's message, as a client would send it to a chat."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [shown_call(call) | {"id": own_id(call, _CALL_ID)} for call in self.calls]
        return message


def message(item_id: str, text: str, logprobs: list[Any], status: str) -> dict[str, Any]:
    """An item of a response in this status: what the model says."""
    content = [] if status == "in_progress" else [part(text, logprobs)]
    own = _item_status(status)
    return {"id": item_id, "type": "message", "status": own, "role": "assistant", "content": content}


def thoughts(item_id: str, text: str, status: str) -> dict[str, Any]:
    """What it thinks before that."""
    content = [] if status == "in_progress" else [thought(text)]
    return {"id": item_id, "type": "reasoning", "status": _item_status(status), "summary": [], "content": content}


def called(call: CallDelta, status: str) -> dict[str, Any]:
    """A call, whose id the client names again with its result."""
    ids = {"id": own_id(call, "fc_"), "type": "function_call", "status": _item_status(status)}
    return ids | {"call_id": own_id(call, _CALL_ID), "name": call.name, "arguments": call.arguments}


def _item_status(status: str) -> str:
    """Of an item that was the last one of a response in this status."""
    return status if status in ("completed", "in_progress") else "incomplete"


def thought(text: str) -> dict[str, Any]:
    """A part of what was thought."""
    return {"type": "reasoning_text", "text": text}


def part(text: str, logprobs: list[Any]) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def written(logprobs: list[TokenLogprob] | None) -> list[msgspec.Raw]:
    """Chat's entries; none when none were asked for."""
    return [] if logprobs is None else chat_entries(logprobs)
