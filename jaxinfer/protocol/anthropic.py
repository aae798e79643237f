"""POST /v1/messages and /v1/messages/count_tokens, Anthropic's API: the requests, translated into chat's."""

import dataclasses
from typing import Any

import msgspec

from jaxinfer.protocol.carried import OTHERS_REFUSED, carried, speaking_of
from jaxinfer.protocol.chat import ChatRequest, check_template_kwargs, read_chat
from jaxinfer.protocol.fields import SAMPLING_FIELDS, Envelope, Refusal, read_wire, required
from jaxinfer.protocol.messages import Dialect, read_content, read_messages
from jaxinfer.protocol.structured import STRUCTURED

DIALECT = Dialect(roles=("user", "assistant", "system"), ignored=frozenset())
NAMES = {"stop": "stop_sequences"}
MESSAGES_REFUSED: dict[str, Refusal] = {
    **OTHERS_REFUSED,
    "tools": Refusal(([],)),
    "tool_choice": Refusal(({"type": "auto"}, {"type": "none"})),
    "thinking": Refusal(({"type": "disabled"},)),
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


class MessagesWire(Envelope, frozen=True, kw_only=True):
    """The fields of a request beside SamplingParams'."""

    messages: Any = None
    system: Any = None
    stop_sequences: list[str] | None = None
    chat_template_kwargs: dict[str, Any] = {}


class CountTokensWire(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be counted."""

    model: str | None = None
    messages: Any = None
    system: Any = None
    chat_template_kwargs: dict[str, Any] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class Conversation:
    """goes_on: its last message is the assistant's, and the answer goes on with it.    unknown: names nobody reads."""

    messages: list[dict[str, str]]
    unknown: tuple[str, ...]

    @property
    def goes_on(self) -> bool:
        return self.messages[-1]["role"] == "assistant"


def read_message_request(body: dict[str, Any]) -> ChatRequest:
    """Read a /v1/messages request's JSON object. Raises InvalidRequest."""
    required(body, "max_tokens")
    required(body, "messages")
    known = MESSAGES_IGNORED | MESSAGES_SAMPLING | STRUCTURED
    wire, unknown = read_wire(body, MessagesWire, refused=MESSAGES_REFUSED, also_known=known)
    conversation = _read_conversation(wire.messages, wire.system)
    own = {
        "messages": conversation.messages,
        "stop": wire.stop_sequences,
        "continue_final_message": conversation.goes_on,
    }
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
    messages, unknown = read_messages(raw, DIALECT)
    if system is not None:
        messages.insert(0, {"role": "system", "content": read_content(system, "system", DIALECT)})
    return Conversation(messages, unknown)
