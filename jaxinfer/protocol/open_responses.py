"""POST /v1/responses, OpenAI's newer API and Open Responses: the request, translated into chat's."""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from jaxinfer.protocol.carried import OTHERS_REFUSED, carried, speaking_of
from jaxinfer.protocol.chat import ChatRequest, Effort, read_chat
from jaxinfer.protocol.fields import GENERATING, Envelope, Refusal, Verbosity, read_wire, required
from jaxinfer.protocol.flat_tools import RESPONSES, flat, nested, nested_choice
from jaxinfer.protocol.response_calls import Item
from jaxinfer.protocol.response_items import Messages, read_input
from jaxinfer.protocol.sampling import GenerationDefaults
from jaxinfer.protocol.validate import MAX_LOGPROBS, Range, convert, invalid

Key = Annotated[str, msgspec.Meta(max_length=64)]
Metadata = Annotated[dict[Key, Annotated[str, msgspec.Meta(max_length=512)]], msgspec.Meta(max_length=16)]
# What an answer may bring along. All but the first are parts of what a server's own tools bring, and there are none.
Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
THOUGHTS = ("reasoning", "thinking_token_budget")
LOGPROBS = "message.output_text.logprobs"
NAMES = {
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
    "reasoning_effort": "reasoning.effort",
    "parameters": "parameters",
}
RESPONSE_REFUSED: dict[str, Refusal] = {
    **{name: refusal for name, refusal in OTHERS_REFUSED.items() if name not in THOUGHTS},
    "max_tool_calls": Refusal(),
    "background": Refusal((False,)),
    "conversation": Refusal(cure="set previous_response_id"),
    "prompt": Refusal(cure="send input"),
    "messages": Refusal(cure="send input"),
    "context_management": Refusal(([],)),
    "moderation": Refusal(),
    "image": Refusal(),
    "access_programs": Refusal(),
    "max_tokens": Refusal(cure="set max_output_tokens"),
    "max_completion_tokens": Refusal(cure="set max_output_tokens"),
    "logprobs": Refusal(cure=f"set include to [{LOGPROBS}]"),
}


class ResponseStreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What chat's are, but for the usage, which always comes."""

    include_obfuscation: bool | None = None


class Reasoning(msgspec.Struct, frozen=True, kw_only=True):
    """effort: as chat's reasoning_effort.    summary: how a client wants them told; none is made, the thoughts come.

    context: the turns whose reasoning the model sees; its template decides, this field has no effect.
    """

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None


class TextWishes(msgspec.Struct, frozen=True, kw_only=True):
    """What `text` says beside the format."""

    verbosity: Verbosity | None = None


class ResponseWire(Envelope, frozen=True, kw_only=True):
    """The fields of a request beside SamplingParams'. store: keep the answer, for clients to come back to."""

    input: Any = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool = True
    max_output_tokens: Any = None
    top_logprobs: Any = None
    include: list[Include] = []
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    metadata: Metadata = {}
    stream_options: ResponseStreamOptions | None = None
    text: dict[str, Any] = {}
    reasoning: Reasoning | None = None
    chat_template_kwargs: dict[str, Any] = {}
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    truncation: Literal["auto", "disabled"] = "disabled"


@dataclasses.dataclass(frozen=True, slots=True)
class ResponseRequest:
    """conversation: what a next response goes on from, but for this one's answer; instructions are no part of it."""

    wire: ResponseWire
    chat: ChatRequest
    conversation: Messages

    def settings(self, defaults: GenerationDefaults) -> dict[str, Any]:
        """What the answer repeats of the request, with the values that were used where it left some out."""
        wire, sampling = self.wire, self.chat.sampling
        return {
            "instructions": wire.instructions,
            "previous_response_id": wire.previous_response_id,
            "store": wire.store,
            "tools": [] if self.chat.tools is None else flat(self.chat.tools.shown),
            "tool_choice": wire.tool_choice or "auto",
            "parallel_tool_calls": wire.parallel_tool_calls,
            "truncation": wire.truncation,
            "metadata": wire.metadata,
            "text": {"format": wire.text.get("format") or {"type": "text"}},
            "reasoning": {"effort": wire.reasoning and wire.reasoning.effort, "summary": None},
            "user": wire.user,
            "safety_identifier": wire.safety_identifier,
            "prompt_cache_key": wire.prompt_cache_key,
            "max_output_tokens": sampling.max_tokens,
            "top_logprobs": sampling.logprobs or 0,
            "temperature": defaults.temperature if sampling.temperature is None else sampling.temperature,
            "top_p": defaults.top_p if sampling.top_p is None else sampling.top_p,
            "presence_penalty": sampling.presence_penalty or 0.0,
            "frequency_penalty": sampling.frequency_penalty or 0.0,
        }


def read_response_request(
    body: dict[str, Any],
    history_of: Callable[[str], Messages],
    item_of: Callable[[str], Item | None],
    is_before: Callable[[str, str], bool] = lambda *_: False,
    *,
    max_logprobs: int = MAX_LOGPROBS,
) -> ResponseRequest:
    """Read a request's JSON object. history_of: the conversation up to a response's end.    item_of: what an earlier
    response said, by the item's id; None where that is not held.    is_before: whether the conversation up to a
    response's end, by its id, has the item of an id. Raises InvalidRequest.
    """
    required(body, "input")
    wire, unknown = read_wire(body, ResponseWire, refused=RESPONSE_REFUSED, also_known=GENERATING)
    before = [] if wire.previous_response_id is None else history_of(wire.previous_response_id)
    previous_id = wire.previous_response_id or ""
    messages, unknown_in_items = read_input(
        wire.input, before, item_of, lambda item_id: is_before(previous_id, item_id)
    )
    offered = nested(wire.tools, RESPONSES)
    own: dict[str, Any] = {"max_tokens": wire.max_output_tokens, "top_logprobs": _top_logprobs(wire, max_logprobs)}
    own["tools"] = offered.tools
    own["tool_choice"] = nested_choice(wire.tool_choice, offered)
    own["parallel_tool_calls"] = wire.parallel_tool_calls
    own["logprobs"] = LOGPROBS in wire.include
    own["reasoning_effort"] = wire.reasoning and wire.reasoning.effort
    form, unread_text = _format(wire.text)
    if form is not None:
        own["response_format"] = form
    conversation = [*before, *messages]
    if wire.instructions is not None:
        messages = [{"role": "system", "content": wire.instructions}, *conversation]
    else:
        messages = conversation
    with speaking_of(NAMES, offered.places):
        chat = read_chat(carried(body, RESPONSE_REFUSED) | own, max_logprobs=max_logprobs, messages=messages)
    if chat.tools is not None and chat.tools.use is not None and LOGPROBS in wire.include:
        law = f"without {LOGPROBS} beside tools: the tokens of a call have no place in a text"
        raise invalid("include", law, wire.include, cure="leave it out, or set tool_choice to none")
    drops_oldest = wire.truncation == "auto"
    if drops_oldest and wire.truncate_prompt_tokens is not None:
        raise invalid("truncation", "disabled beside truncate_prompt_tokens", "auto", cure="leave one of them out")
    unknown += unread_text + unknown_in_items + offered.unread
    chat = dataclasses.replace(chat, unknown=unknown, drops_oldest=drops_oldest)
    return ResponseRequest(wire, chat, conversation)


def _format(text: dict[str, Any]) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """What the answer must be, and the names beside it: verbosity is a wish, in chat a field that nobody reads."""
    convert(text, TextWishes, at="text")
    form = text.get("format")
    if form is not None and not isinstance(form, dict):
        raise invalid("text.format", "an object", form)
    return form, tuple(f"text.{name}" for name, value in text.items() if name != "format" and value is not None)


def _top_logprobs(wire: ResponseWire, most: int) -> Any:
    top = wire.top_logprobs
    allowed = Range(0, most, f"an integer from 0 to {most} (max_logprobs)", integer=True)
    if top is not None and not allowed.allows(top):
        raise invalid("top_logprobs", allowed.law, top)
    if top and LOGPROBS not in wire.include:
        raise invalid("top_logprobs", f"0 or come with {LOGPROBS} in include", top, cure="put that into include")
    return top
