"""POST /v1/chat/completions: the request."""

import dataclasses
from typing import Any, Literal

import msgspec

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.fields import (
    GENERATING,
    REFUSED,
    OpenAIEnvelope,
    Refusal,
    check_envelope,
    check_stream_logprobs,
    is_no_limit,
    read_sampling,
    read_wire,
    required,
)
from jaxinfer.protocol.messages import read_messages, without_billing
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.protocol.tools import Tools, read_tools
from jaxinfer.protocol.truncation import check_truncation
from jaxinfer.protocol.validate import DROP, MAX_LOGPROBS, NUMBERS, Range, invalid

# Switches that templates are known to read; anything else could reach into a template's own variables.
TEMPLATE_SWITCHES = ("enable_thinking", "thinking", "date_string")
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
THOUGHTS = ("reasoning_effort", "thinking_token_budget", "include_reasoning")
CHAT_REFUSED = {
    **{name: refusal for name, refusal in REFUSED.items() if name not in THOUGHTS},
    "functions": Refusal(),
    "function_call": Refusal(("none",)),
    "modalities": Refusal((["text"],)),
    "audio": Refusal(),
    "web_search_options": Refusal(),
    "moderation": Refusal(),
    "chat_template": Refusal(cure="the model's own template is used"),
    "documents": Refusal(),
    "echo": Refusal((False,)),
    "add_special_tokens": Refusal((False,)),
    "separate_reasoning": Refusal((True,)),
    "stream_reasoning": Refusal((True,)),
    "input_ids": Refusal(cure="send token ids to /v1/completions"),
}


class ChatWire(OpenAIEnvelope, frozen=True, kw_only=True):
    """The fields of a chat request beside SamplingParams'."""

    messages: Any = None
    max_completion_tokens: Any = None
    logprobs: bool = False
    top_logprobs: Any = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    session_append: bool = False  # messages are those since the session's last answer
    session_history: bool = True  # false: nothing can be appended, so the server keeps no text
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    reasoning_effort: Effort | None = None
    include_reasoning: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request that can be carried out, but for its sampling, which validate_sampling checks.

    messages: role, content and what else a template reads.    unknown: names nobody reads, for the warning header.
    template_kwargs: its switches.    drops_oldest: turns may be left out so that the rest fits.
    max_tokens_is_ceiling: an answer that reaches the context's end before max_tokens ends there; else it is refused.
    prompt_only: no answer is wanted, only the prompt in the cache; one token is computed and not shown.
    """

    wire: ChatWire
    messages: list[dict[str, Any]]
    sampling: SamplingParams
    add_generation_prompt: bool
    unknown: tuple[str, ...]
    tools: Tools | None = None
    template_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    drops_oldest: bool = False
    max_tokens_is_ceiling: bool = False
    prompt_only: bool = False


def read_chat(
    body: dict[str, Any], *, max_logprobs: int = MAX_LOGPROBS, messages: list[dict[str, Any]] | None = None
) -> ChatRequest:
    """Read a chat request's JSON object. max_logprobs: the server's limit for top_logprobs.    messages: those of
    another API's request, which have been read. Raises InvalidRequest.
    """
    raw_messages = required(body, "messages") if messages is None else None
    wire, unknown = read_wire(body, ChatWire, refused=CHAT_REFUSED, also_known=GENERATING)
    own = {name: value for name, value in body.items() if name != "logprobs"}  # a bool here, a number in SamplingParams
    sampling = read_sampling(_newer_max_tokens(own), refused=CHAT_REFUSED)
    sampling = msgspec.structs.replace(sampling, logprobs=num_logprobs(wire.logprobs, wire.top_logprobs, max_logprobs))
    check_envelope(wire)
    check_stream_logprobs(wire, sampling)
    check_truncation(wire)
    check_template_kwargs(wire.chat_template_kwargs)
    tools = read_tools(wire.tools, wire.tool_choice, wire.parallel_tool_calls)
    if messages is None:
        messages, unknown_in_messages = read_messages(raw_messages)
        messages, unknown = without_billing(messages), unknown + unknown_in_messages
    add_generation_prompt = check_continue(messages, wire.add_generation_prompt, wire.continue_final_message)
    return ChatRequest(
        wire,
        messages,
        sampling,
        add_generation_prompt,
        unknown,
        tools,
        switched(wire.chat_template_kwargs, wire.reasoning_effort),
    )


def check_continue(messages: list[dict[str, Any]], add_generation_prompt: bool | None, continue_final: bool) -> bool:
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
        raise invalid("continue_final_message", law, messages[-1]["role"], cure="leave it out for a new message")
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
            raise invalid(param, "a string" if name == "date_string" else "true or false", value, cure="leave it out")


def switched(kwargs: dict[str, Any], effort: Effort | None) -> dict[str, Any]:
    """The template's switches, of which reasoning_effort is another spelling: none is off, all else is on."""
    if effort is None:
        return kwargs
    wanted = effort != "none"
    for name in ("enable_thinking", "thinking"):
        if kwargs.get(name, wanted) != wanted:
            raise invalid("reasoning_effort", f"in accord with {name}", effort, cure="leave one out")
    return {**kwargs, "enable_thinking": wanted}


def num_logprobs(wanted: bool, top: Any, most: int = MAX_LOGPROBS) -> int | None:
    """SamplingParams.logprobs of chat's two fields, `logprobs` and `top_logprobs`. Raises InvalidRequest."""
    if top is None:
        return 0 if wanted else None
    allowed = Range(0, most, f"an integer from 0 to {most} (max_logprobs)", integer=True)
    if not allowed.allows(top):
        raise invalid("top_logprobs", allowed.law, top, cure="leave it out for none")
    if top and not wanted:
        raise invalid("top_logprobs", "0 or come with logprobs set to true", top, cure="set logprobs to true")
    return int(top) if wanted else None


def _newer_max_tokens(body: dict[str, Any]) -> dict[str, Any]:
    """max_completion_tokens, OpenAI's newer name, wins over max_tokens."""
    value = body.get("max_completion_tokens")
    if value is None or is_no_limit(value):
        return body
    if not NUMBERS["max_tokens"].allows(value):
        raise invalid("max_completion_tokens", NUMBERS["max_tokens"].law, value, cure=DROP)
    return {**body, "max_tokens": value}
