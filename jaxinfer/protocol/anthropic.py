"""POST /v1/messages and /v1/messages/count_tokens, Anthropic's API: the requests, translated into chat's."""

import dataclasses
from typing import Any, Literal

import msgspec

from jaxinfer.protocol.anthropic_blocks import AnthropicConversation, read_conversation
from jaxinfer.protocol.carried import OTHERS_REFUSED, carried, speaking_of
from jaxinfer.protocol.chat import ChatRequest, Effort, check_template_kwargs, read_chat
from jaxinfer.protocol.fields import SAMPLING_FIELDS, Envelope, Refusal, read_wire, required
from jaxinfer.protocol.flat_tools import ANTHROPIC, Offered, named, nested
from jaxinfer.protocol.structured import STRUCTURED
from jaxinfer.protocol.tools import Tools, read_tools
from jaxinfer.protocol.validate import NUMBERS, Range, Verbatim, invalid, is_same

FORMAT = "output_config.format"
NAMES = {
    "stop": "stop_sequences",
    "reasoning_effort": "thinking",
    "thinking_token_budget": "thinking.budget_tokens",
    "parameters": "input_schema",
}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}  # Anthropic's words for chat's
MESSAGES_REFUSED: dict[str, Refusal] = {
    **{name: refusal for name, refusal in OTHERS_REFUSED.items() if name != "thinking_token_budget"},
    "stop": Refusal(cure="set stop_sequences"),
    "logprobs": Refusal(cure="send the conversation to /v1/chat/completions"),
    "container": Refusal(),
    "mcp_servers": Refusal(([],)),
    "inference_geo": Refusal(),
    "diagnostics": Refusal(),
    "speed": Refusal(("standard",)),
}
# Hints, and the values that ask for nothing: an agent that sends more of one by habit is told that nobody reads it.
HINTS: dict[str, tuple[Any, ...]] = {
    "context_management": ({}, {"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
    "output_config.effort": ("high",),
    "output_config.task_budget": (),
}
MESSAGES_SAMPLING = SAMPLING_FIELDS - MESSAGES_REFUSED.keys()
MAX_TOKENS = Range(0, NUMBERS["max_tokens"].high, "an integer of at least 0 and below 2^63", integer=True)


class MessagesIgnored(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of /v1/messages that change nothing in the answer; shared beginnings are found again without being marked.

    service_tier: other hosts have names of their own.
    """

    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    cache_control: dict[str, Any] | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None


class AnthropicThinking(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the model is to think, where it can be told, and for how many tokens at most; adaptive: as it likes."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Any = None

    @property
    def effort(self) -> Effort | None:
        """In chat's words."""
        efforts: dict[str, Effort] = {"disabled": "none", "enabled": "high"}
        return efforts.get(self.type)


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """any: the answer is calls.    tool: one call of that name."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True):
    """format: what the answer must be.    effort, task_budget: hints of how much it may take, which nobody reads."""

    format: dict[str, Any] | None = None
    effort: Any = None
    task_budget: Any = None


class MessagesWire(Envelope, frozen=True, kw_only=True):
    """The fields of a request beside SamplingParams'."""

    messages: Any = None
    system: Any = None
    stop_sequences: list[str] | None = None
    tools: Any = None
    tool_choice: ToolChoice | None = None
    thinking: AnthropicThinking | None = None
    context_management: dict[str, Any] | None = None
    output_config: OutputConfig = OutputConfig()
    output_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] = {}


class CountTokensWire(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be counted."""

    model: str | None = None
    messages: Any = None
    system: Any = None
    tools: Any = None
    tool_choice: ToolChoice | None = None
    thinking: AnthropicThinking | None = None
    context_management: dict[str, Any] | None = None
    output_config: OutputConfig = OutputConfig()
    output_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class CountTokens:
    """A conversation whose tokens are to be counted. tools: what it offers."""

    wire: CountTokensWire
    conversation: AnthropicConversation
    tools: Tools | None
    unknown: tuple[str, ...]


def read_message_request(body: dict[str, Any]) -> ChatRequest:
    """Read a /v1/messages request's JSON object. Raises InvalidRequest."""
    if not MAX_TOKENS.allows(required(body, "max_tokens")):
        raise invalid("max_tokens", MAX_TOKENS.law, body["max_tokens"])
    prompt_only = body["max_tokens"] == 0
    required(body, "messages")
    known = MESSAGES_SAMPLING | STRUCTURED
    wire, unknown = read_wire(body, MessagesWire, refused=MESSAGES_REFUSED, also_known=known, ignored=MessagesIgnored)
    conversation = read_conversation(wire.messages, wire.system)
    tools, offered = _read_tools(wire)
    own: dict[str, Any] = {
        "stop": wire.stop_sequences,
        "continue_final_message": conversation.goes_on,
        **tools,
    }
    if prompt_only:
        own["max_tokens"] = 1
    name = FORMAT if wire.output_format is None else "output_format"
    form = _format(wire, body.get("response_format"), name)
    if form is not None:
        own["response_format"] = form
    if wire.thinking is not None:
        own["reasoning_effort"] = wire.thinking.effort
        if wire.thinking.budget_tokens is not None:
            own["thinking_token_budget"] = wire.thinking.budget_tokens
    with speaking_of(NAMES if form is None else NAMES | {"response_format": name}, offered.places):
        chat = read_chat(carried(body, MESSAGES_REFUSED) | own, messages=conversation.messages)
    unknown += _unread_hints(wire) + conversation.unknown + offered.unread
    return dataclasses.replace(chat, unknown=unknown, max_tokens_is_ceiling=True, prompt_only=prompt_only)


def read_count_tokens(body: dict[str, Any]) -> CountTokens:
    """Read a /v1/messages/count_tokens request's JSON object. Raises InvalidRequest."""
    required(body, "messages")
    wire, unknown = read_wire(body, CountTokensWire, refused=MESSAGES_REFUSED, ignored=MessagesIgnored)
    check_template_kwargs(wire.chat_template_kwargs)
    conversation = read_conversation(wire.messages, wire.system)
    asked, offered = _read_tools(wire)
    with speaking_of(NAMES, offered.places):
        tools = read_tools(asked["tools"], asked["tool_choice"], asked["parallel_tool_calls"])
    return CountTokens(wire, conversation, tools, unknown + _unread_hints(wire) + conversation.unknown + offered.unread)


def _format(wire: MessagesWire, others: Any, name: str) -> dict[str, Any] | None:
    """What the answer must be, as chat's response_format. others: chat's.    name: where it was sent, which in the beta
    is output_format.
    """
    given = [form for form in (wire.output_config.format, wire.output_format, others) if form is not None]
    if len(given) > 1:
        raise invalid(FORMAT, "the only field that says what the answer must be", Verbatim(f"{len(given)} of them"))
    form = wire.output_config.format if wire.output_format is None else wire.output_format
    if form is not None and form.get("type") != "json_schema":
        raise invalid(f"{name}.type", "json_schema", form.get("type"))
    return form


def _unread_hints(wire: MessagesWire | CountTokensWire) -> tuple[str, ...]:
    config = wire.output_config
    given = dict(zip(HINTS, (wire.context_management, config.effort, config.task_budget), strict=True))
    return tuple(
        name
        for name, value in given.items()
        if value is not None and not any(is_same(value, neutral) for neutral in HINTS[name])
    )


def _read_tools(wire: MessagesWire | CountTokensWire) -> tuple[dict[str, Any], Offered]:
    """Chat's three fields of tools, and what is offered."""
    offered = nested(wire.tools, ANTHROPIC)
    tools = offered.tools
    for place, tool in zip(offered.places, tools if offered.places else (), strict=True):
        if "parameters" not in tool["function"]:
            raise invalid(f"tools[{place}].input_schema", "a JSON schema, an object", None)
    choice = wire.tool_choice
    asked: Any = None if choice is None else CHOICES.get(choice.type)
    if choice is not None and choice.type == "tool":
        if choice.name is None:
            raise invalid("tool_choice.name", "the name of a tool, with type tool", None)
        offered.check_name(choice.name)
        asked = named(choice.name)
    parallel = choice is None or not choice.disable_parallel_tool_use
    if not tools and choice is not None and choice.type in ("any", "tool"):
        raise invalid("tool_choice", "left out without tools", choice.type, cure="send tools or leave it out")
    return {"tools": tools, "tool_choice": asked, "parallel_tool_calls": parallel}, offered
