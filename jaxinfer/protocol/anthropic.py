"""POST /v1/messages and /v1/messages/count_tokens, Anthropic's API: the requests, translated into chat's."""

import dataclasses
from typing import Any, Literal

import msgspec

from jaxinfer.protocol.carried import OTHERS_REFUSED, carried, speaking_of
from jaxinfer.protocol.chat import ChatRequest, Effort, check_template_kwargs, read_chat
from jaxinfer.protocol.fields import SAMPLING_FIELDS, Envelope, Refusal, read_wire, required
from jaxinfer.protocol.messages import Dialect, read_content, read_messages
from jaxinfer.protocol.structured import STRUCTURED
from jaxinfer.protocol.validate import invalid

DIALECT = Dialect(roles=("user", "assistant", "system"), ignored=frozenset())
NAMES = {"stop": "stop_sequences", "reasoning_effort": "thinking", "thinking_token_budget": "thinking.budget_tokens"}
MESSAGES_REFUSED: dict[str, Refusal] = {
    **{name: refusal for name, refusal in OTHERS_REFUSED.items() if name != "thinking_token_budget"},
    "tools": Refusal(([],)),
    "tool_choice": Refusal(({"type": "auto"}, {"type": "none"})),
    "stop": Refusal(cure="set stop_sequences"),
    "logprobs": Refusal(cure="send the conversation to /v1/chat/completions"),
    "container": Refusal(),
    "mcp_servers": Refusal(([],)),
    "context_management": Refusal(),
    "output_config": Refusal(({},)),
    "output_format": Refusal(),
    "inference_geo": Refusal(),
    "diagnostics": Refusal(),
    "speed": Refusal(("standard",)),
}
# They change nothing in the answer; shared beginnings are found again without being marked.
MESSAGES_IGNORED = frozenset({"metadata", "service_tier", "cache_control", "user_profile_id", "workspace_id"})
MESSAGES_SAMPLING = SAMPLING_FIELDS - MESSAGES_REFUSED.keys()


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the model is to think, where it can be told, and for how many tokens at most; adaptive: as it likes."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Any = None

    @property
    def effort(self) -> Effort | None:
        """In chat's words."""
        efforts: dict[str, Effort] = {"disabled": "none", "enabled": "high"}
        return efforts.get(self.type)


class MessagesWire(Envelope, frozen=True, kw_only=True):
    """The fields of a request beside SamplingParams'."""

    messages: Any = None
    system: Any = None
    stop_sequences: list[str] | None = None
    thinking: Thinking | None = None
    chat_template_kwargs: dict[str, Any] = {}


class CountTokensWire(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be counted."""

    model: str | None = None
    messages: Any = None
    system: Any = None
    thinking: Thinking | None = None
    chat_template_kwargs: dict[str, Any] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class Conversation:
    """goes_on: its last message is the assistant's, and the answer goes on with it.    unknown: names nobody reads."""

    messages: list[dict[str, Any]]
    unknown: tuple[str, ...]

    @property
    def goes_on(self) -> bool:
        return bool(self.messages[-1]["role"] == "assistant")


def read_message_request(body: dict[str, Any]) -> ChatRequest:
    """Read a /v1/messages request's JSON object. Raises InvalidRequest."""
    required(body, "max_tokens")
    required(body, "messages")
    known = MESSAGES_IGNORED | MESSAGES_SAMPLING | STRUCTURED
    wire, unknown = read_wire(body, MessagesWire, refused=MESSAGES_REFUSED, also_known=known)
    conversation = _read_conversation(wire.messages, wire.system)
    own: dict[str, Any] = {
        "messages": conversation.messages,
        "stop": wire.stop_sequences,
        "continue_final_message": conversation.goes_on,
    }
    if wire.thinking is not None:
        own["reasoning_effort"] = wire.thinking.effort
        if wire.thinking.budget_tokens is not None:
            own["thinking_token_budget"] = wire.thinking.budget_tokens
    with speaking_of(NAMES):
        chat = read_chat(carried(body, MESSAGES_REFUSED) | own)
    return dataclasses.replace(chat, unknown=unknown + conversation.unknown)


def read_count_tokens(body: dict[str, Any]) -> tuple[CountTokensWire, Conversation]:
    """Read a /v1/messages/count_tokens request's JSON object. Raises InvalidRequest."""
    required(body, "messages")
    wire, unknown = read_wire(body, CountTokensWire, refused=MESSAGES_REFUSED, also_known=MESSAGES_IGNORED)
    check_template_kwargs(wire.chat_template_kwargs)
    conversation = _read_conversation(wire.messages, wire.system)
    return wire, dataclasses.replace(conversation, unknown=unknown + conversation.unknown)


def _read_conversation(raw: Any, system: Any) -> Conversation:
    if isinstance(raw, list):
        raw = [_with_thoughts_apart(message, f"messages[{i}].content") for i, message in enumerate(raw)]
    messages, unknown = read_messages(raw, DIALECT)
    if system is not None:
        messages.insert(0, {"role": "system", "content": read_content(system, "system", DIALECT)})
    return Conversation(messages, unknown)


def _with_thoughts_apart(message: Any, path: str) -> Any:
    """An answer that a client sends back, its blocks of thoughts in a field as templates read it."""
    content = message.get("content") if isinstance(message, dict) and message.get("role") == "assistant" else None
    if not isinstance(content, list):
        return message
    thoughts, rest = "", []
    for position, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "thinking":
            if not isinstance(block.get("thinking"), str):
                raise invalid(f"{path}[{position}].thinking", "a string", block.get("thinking"))
            thoughts += block["thinking"]
        elif kind != "redacted_thinking":  # another server's, which nobody else can read
            rest.append(block)
    if len(rest) == len(content):
        return message
    return message | {"content": rest or ""} | ({"reasoning_content": thoughts} if thoughts else {})
