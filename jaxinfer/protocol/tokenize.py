"""POST /tokenize, /apply-template and /detokenize: the requests."""

import dataclasses
from typing import Any

import msgspec

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.chat import CHAT_REFUSED, check_continue, check_template_kwargs
from jaxinfer.protocol.fields import read_wire, required
from jaxinfer.protocol.messages import read_messages, without_billing
from jaxinfer.protocol.tools import Tools, read_tools
from jaxinfer.protocol.validate import invalid, validate_prompt_ids

REFUSED = {name: CHAT_REFUSED[name] for name in ("chat_template", "documents")}


class TokenizeWire(msgspec.Struct, frozen=True, kw_only=True):
    """Either a prompt or messages. add_special_tokens: true for a prompt; a template writes its own for messages."""

    model: str | None = None
    prompt: Any = None
    messages: Any = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    tools: Any = None


class DetokenizeWire(msgspec.Struct, frozen=True, kw_only=True):
    """tokens: ids below the logits' width."""

    model: str | None = None
    tokens: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """prompt or messages, the other one None."""

    wire: TokenizeWire
    prompt: str | None
    messages: list[dict[str, Any]] | None
    tools: Tools | None
    add_generation_prompt: bool
    unknown: tuple[str, ...]


def read_tokenize(body: dict[str, Any]) -> TokenizeRequest:
    """Read a /tokenize request's JSON object. Raises InvalidRequest."""
    wire, unknown = read_wire(body, TokenizeWire, refused=REFUSED)
    if (wire.prompt is None) == (wire.messages is None):
        given = "neither" if wire.prompt is None else "both"
        raise InvalidRequest(f"give either prompt or messages, got {given}", param="prompt", code="invalid_value")
    if wire.messages is None:
        if not isinstance(wire.prompt, str):
            raise invalid("prompt", "a string", wire.prompt, cure="send one")
        return TokenizeRequest(wire, wire.prompt, None, None, False, unknown)
    if wire.add_special_tokens:
        raise invalid(
            "add_special_tokens",
            "false or left out for messages, whose template writes them",
            True,
            cure="leave it out",
        )
    check_template_kwargs(wire.chat_template_kwargs)
    tools = read_tools(wire.tools, None, True)
    messages, unknown_in_messages = read_messages(wire.messages)
    messages = without_billing(messages)
    add_generation_prompt = check_continue(messages, wire.add_generation_prompt, wire.continue_final_message)
    return TokenizeRequest(wire, None, messages, tools, add_generation_prompt, unknown + unknown_in_messages)


def read_apply_template(body: dict[str, Any]) -> TokenizeRequest:
    """Read an /apply-template request's JSON object: /tokenize's with messages. Raises InvalidRequest."""
    required(body, "messages")
    return read_tokenize(body)


def read_detokenize(body: dict[str, Any], *, vocab_size: int) -> tuple[DetokenizeWire, list[int], tuple[str, ...]]:
    """The wire fields, the ids and the unknown names. An empty list of ids is the empty text."""
    raw = required(body, "tokens")
    wire, unknown = read_wire(body, DetokenizeWire, refused={})
    ids = [] if raw == [] else validate_prompt_ids(raw, vocab_size=vocab_size, param="tokens")
    return wire, ids, unknown
