"""POST /v1/chat/completions: the request."""

import dataclasses
from typing import Any

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.fields import (
    GENERATING,
    REFUSED,
    Envelope,
    Refusal,
    check_envelope,
    read_sampling,
    read_wire,
    required,
)
from jaxinfer.protocol.messages import read_messages
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.protocol.validate import NUMBERS, invalid

# Switches that templates are known to read; anything else could reach into a template's own variables.
TEMPLATE_SWITCHES = ("enable_thinking", "thinking", "date_string")
CHAT_REFUSED = {
    **REFUSED,
    "tools": Refusal(),
    "tool_choice": Refusal(("none",)),
    "parallel_tool_calls": Refusal((True, False)),
    "functions": Refusal(),
    "function_call": Refusal(("none",)),
    "logprobs": Refusal((False,)),
    "top_logprobs": Refusal((0,)),
    "modalities": Refusal((["text"],)),
    "audio": Refusal(),
    "web_search_options": Refusal(),
    "chat_template": Refusal(cure="the model's own template is used"),
    "documents": Refusal(),
    "echo": Refusal((False,)),
    "add_special_tokens": Refusal((False,)),
    "separate_reasoning": Refusal(),
    "stream_reasoning": Refusal(),
    "input_ids": Refusal(cure="send token ids to /v1/completions"),
}


class ChatWire(Envelope, frozen=True, kw_only=True):
    """The fields of a chat request beside SamplingParams'."""

    messages: Any = None
    max_completion_tokens: Any = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request that can be carried out, but for its sampling, which validate_sampling checks.

    messages: role, content and what else a template reads.    unknown: names nobody reads, for the warning header.
    """

    wire: ChatWire
    messages: list[dict[str, str]]
    sampling: SamplingParams
    add_generation_prompt: bool
    unknown: tuple[str, ...]


def read_chat(body: dict[str, Any]) -> ChatRequest:
    """Read a chat request's JSON object. Raises InvalidRequest."""
    raw_messages = required(body, "messages")
    wire, unknown = read_wire(body, ChatWire, refused=CHAT_REFUSED, also_known=GENERATING)
    sampling = read_sampling(_newer_max_tokens(body), refused=CHAT_REFUSED)
    check_envelope(wire)
    check_template_kwargs(wire.chat_template_kwargs)
    messages, unknown_in_messages = read_messages(raw_messages)
    add_generation_prompt = check_continue(messages, wire.add_generation_prompt, wire.continue_final_message)
    return ChatRequest(wire, messages, sampling, add_generation_prompt, unknown + unknown_in_messages)


def check_continue(messages: list[dict[str, str]], add_generation_prompt: bool | None, continue_final: bool) -> bool:
    """Whether a generation prompt is added: unless said otherwise, yes, but not when the last message goes on."""
    if not continue_final:
        return add_generation_prompt is not False
    if add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt must not both be true; leave the second out",
            param="continue_final_message",
            code="invalid_value",
        )
    if messages[-1]["role"] != "assistant":
        law = "used with a last message whose role is assistant"
        raise invalid("continue_final_message", law, messages[-1]["role"])
    return False


def check_template_kwargs(kwargs: dict[str, Any]) -> None:
    """Only switches that templates are known to read, with plain values."""
    for name, value in kwargs.items():
        param = f"chat_template_kwargs.{name}"[:80]
        if name not in TEMPLATE_SWITCHES:
            raise InvalidRequest(
                f"chat_template_kwargs may hold {', '.join(TEMPLATE_SWITCHES)}, got {ascii(name)[:80]}",
                param="chat_template_kwargs",
                code="unsupported_parameter",
            )
        if not isinstance(value, str if name == "date_string" else bool):
            raise invalid(param, "a string" if name == "date_string" else "true or false", value)


def _newer_max_tokens(body: dict[str, Any]) -> dict[str, Any]:
    """max_completion_tokens, OpenAI's newer name, wins over max_tokens."""
    value = body.get("max_completion_tokens")
    if value is None:
        return body
    if not NUMBERS["max_tokens"].allows(value):
        raise invalid("max_completion_tokens", NUMBERS["max_tokens"].law, value)
    return {**body, "max_tokens": value}
