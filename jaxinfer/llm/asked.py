"""A request of a generating route: its JSON object read and checked, its prompts made into ids, the head of its answer.

The server's routes and the rows of batch files go through here alike, so that both are refused and answered alike.
"""

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from jaxinfer.errors import InvalidRequest, NotFound
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.dropping import render_to_fit
from jaxinfer.llm.generation import Echo, Job
from jaxinfer.llm.prepare import room_for_answer
from jaxinfer.llm.types import ModelInfo
from jaxinfer.protocol.chat import ChatRequest, read_chat
from jaxinfer.protocol.completions import CompletionRequest, read_completion
from jaxinfer.protocol.fields import CommonWire, Envelope, StreamOptions
from jaxinfer.protocol.responses import AnswerEnvelope, Kind
from jaxinfer.protocol.sampling import COMPLETION_MAX_TOKENS, SamplingParams
from jaxinfer.protocol.served_names import spellings
from jaxinfer.protocol.tools import Tools, unknown_form
from jaxinfer.protocol.truncation import truncated
from jaxinfer.protocol.validate import invalid, validate_sampling
from jaxinfer.text.reading import Reading

_BREATH = 8  # prompts, some of them tokenized here and now, before others may run


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """A request that can be carried out, as far as can be told without its prompts' ids."""

    request: ChatRequest | CompletionRequest

    @property
    def wire(self) -> Envelope:
        return self.request.wire

    @property
    def sampling(self) -> SamplingParams:
        return self.request.sampling

    @property
    def unknown(self) -> tuple[str, ...]:
        return self.request.unknown

    @property
    def num_choices(self) -> int:
        num_prompts = 1 if isinstance(self.request, ChatRequest) else len(self.request.prompts)
        return num_prompts * self.request.sampling.n

    @property
    def is_appended(self) -> bool:
        """Whether its messages are those since a session's last answer."""
        return isinstance(self.request, ChatRequest) and self.request.wire.session_append

    def going_on(self, conversation: Callable[[ChatRequest], list[dict[str, Any]]]) -> "Asked":
        """The same, its messages being all of a conversation that it is a turn of."""
        if not isinstance(self.request, ChatRequest):
            return self
        whole = dataclasses.replace(self.request, messages=conversation(self.request))
        return dataclasses.replace(self, request=whole)

    def answer(self, info: ModelInfo, request_id: str) -> AnswerEnvelope:
        """OpenAI's form of its answer, made now. Raises NotFound for a model that is not served."""
        kind: Kind = "chat" if isinstance(self.request, ChatRequest) else "completion"
        wire = self.request.wire
        answer_id = f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{request_id}"
        options, model = wire.stream_options or StreamOptions(), served_model(info, wire.model)
        return AnswerEnvelope(kind, answer_id, int(time.time()), model, info.fingerprint, options, wire.include_metrics)

    async def job(self, llm: AsyncLLM, *, salt: str = "", arrived_s: float) -> Job:
        """The prompts as ids, cut if the request says so, to compute under the salt of its tenant and its own.

        Raises InvalidRequest for what cannot be rendered or can never fit.
        """
        request, is_chat, num_dropped = self.request, isinstance(self.request, ChatRequest), 0
        if isinstance(request, ChatRequest):
            check_abilities(llm.info, request)
            ids, num_dropped = await rendered(llm, request)
            prompts: list[Sequence[int]] = [ids]
        else:
            prompts = await encode_prompts(llm, request.prompts, request.wire.add_special_tokens)
        caps = request.max_tokens_is_ceiling
        job = new_job(llm, prompts, self.wire, self.sampling, chat=is_chat, salt=salt, arrived_s=arrived_s, caps=caps)
        if isinstance(request, CompletionRequest) and request.wire.echo:
            job = dataclasses.replace(job, echo=await _echo(llm, request, prompts, job.prompts))
        if isinstance(request, ChatRequest):
            reading, hides = _reading(llm, request, job.prompts[0]), not request.wire.include_reasoning
            echo = Echo([""], prompt_only=True) if request.prompt_only else None
            job = dataclasses.replace(job, num_dropped=num_dropped, reading=reading, hides_thoughts=hides, echo=echo)
        form = await llm.forms.check(self.sampling, job.reading)
        return job if form is None else dataclasses.replace(job, form=form)


def read_asked(kind: Kind, body: dict[str, Any], info: ModelInfo) -> Asked:
    """Read and check a request's JSON object. Raises InvalidRequest, or NotFound for another model."""
    request: ChatRequest | CompletionRequest = (
        read_chat(body, max_logprobs=info.max_logprobs)
        if kind == "chat"
        else read_completion(body, vocab_size=info.vocab_size)
    )
    served_model(info, request.wire.model)
    return check_asked(request, info)


def check_asked(request: ChatRequest | CompletionRequest, info: ModelInfo) -> Asked:
    """Raises InvalidRequest for sampling that cannot be carried out."""
    validate_sampling(request.sampling, vocab_size=info.vocab_size, max_logprobs=info.max_logprobs)
    return Asked(request)


async def encode_prompts(
    llm: AsyncLLM, prompts: list[str | Sequence[int]], special: bool, *, param: str = "prompt"
) -> list[Sequence[int]]:
    """The ids of each. special: whether texts begin with the tokens that the tokenizer puts there."""
    found: list[Sequence[int]] = []
    for position, prompt in enumerate(prompts, 1):
        if isinstance(prompt, str):
            prompt = await llm.encode(prompt, add_special_tokens=special, param=param)
        found.append(prompt)
        if position % _BREATH == 0:
            await asyncio.sleep(0)
    return found


def new_job(
    llm: AsyncLLM,
    prompts: list[Sequence[int]],
    wire: CommonWire,
    sampling: SamplingParams,
    *,
    chat: bool,
    salt: str,
    arrived_s: float,
    caps: bool = False,
) -> Job:
    """The prompts, cut if the request says so, to compute under the salt of its tenant and its own. caps: max_tokens,
    which is given, is a ceiling: the answer of the one prompt may have what is left behind that, if it is less.
    """
    room = COMPLETION_MAX_TOKENS if sampling.max_tokens is None else sampling.max_tokens
    if caps and room >= llm.info.max_model_len:
        room = 1
    left = [truncated(ids, wire, room, max_model_len=llm.info.max_model_len) for ids in prompts]
    if caps and sampling.max_tokens is not None:
        rest = room_for_answer(len(left[0]), llm.info, llm.limits)
        sampling = msgspec.structs.replace(sampling, max_tokens=min(sampling.max_tokens, max(rest, 1)))
        if rest < 1:  # the prompt is refused for its length, whatever else is asked of the answer
            sampling = msgspec.structs.replace(sampling, min_tokens=None)
        elif type(sampling.min_tokens) is int and sampling.min_tokens > rest:  # it is the context that is too short
            sampling = msgspec.structs.replace(sampling, max_tokens=None)
    if wire.cache_salt is not None:
        salt = f"{salt}/{wire.cache_salt}"  # neither holds a slash
    return Job(left, sampling, wire.priority, chat=chat, salt=salt, arrived_s=arrived_s)


async def rendered(llm: AsyncLLM, chat: ChatRequest) -> tuple[list[int], int]:
    """The prompt's ids, and how many messages are left out of it."""
    render = partial(
        render_chat,
        llm,
        add_generation_prompt=chat.add_generation_prompt,
        continue_final_message=chat.wire.continue_final_message,
        template_kwargs=chat.template_kwargs,
        tools=None if chat.tools is None else chat.tools.shown,
    )
    if not chat.drops_oldest:
        return await render(chat.messages), 0
    room = llm.info.max_model_len - (chat.sampling.max_tokens or 1)
    return await render_to_fit(render, chat.messages, room)


def _reading(llm: AsyncLLM, chat: ChatRequest, prompt: Sequence[int]) -> Reading | None:
    reading = llm.reading(prompt, None if chat.tools is None else chat.tools.use, chat.sampling)
    if chat.wire.reasoning_effort == "none" and reading is not None and reading.start == "thinking":
        raise invalid("reasoning_effort", "above none for this model, which always thinks", "none", cure="leave it out")
    return reading


def check_abilities(info: ModelInfo, chat: ChatRequest) -> None:
    """Raise InvalidRequest for tools or thinking that the served model does not know."""
    check_tools(info, chat.tools)
    check_effort(info, chat.wire.reasoning_effort)


def check_effort(info: ModelInfo, effort: str | None) -> None:
    """Raise InvalidRequest for thinking that the served model does not do."""
    if effort not in (None, "none") and not info.has_thinking:
        message = f"reasoning_effort needs a model that thinks, {info.root} does not; leave it out"
        raise InvalidRequest(message, param="reasoning_effort", code="unsupported_parameter")


def check_tools(info: ModelInfo, tools: Tools | None) -> None:
    """Raise InvalidRequest for tools that the served model cannot be shown."""
    if tools is not None and info.tool_format is None:
        raise unknown_form(info.root)


async def _echo(
    llm: AsyncLLM, request: CompletionRequest, prompts: list[Sequence[int]], left: list[Sequence[int]]
) -> Echo:
    """What stands before the answers: the prompts as they were given, or what is left of them."""
    skip = request.sampling.skip_special_tokens
    texts = [
        given if isinstance(given, str) and cut is ids else await llm.decode(cut, skip_special_tokens=skip)
        for given, ids, cut in zip(request.prompts, prompts, left, strict=True)
    ]
    return Echo(texts, request.prompt_only, request.wants_prompt_logprobs)


async def render_chat(
    llm: AsyncLLM,
    messages: list[dict[str, Any]],
    *,
    add_generation_prompt: bool,
    continue_final_message: bool,
    template_kwargs: dict[str, Any],
    tools: list[dict[str, Any]] | None = None,
) -> list[int]:
    """The prompt's ids. Raises InvalidRequest for a model that has no chat template."""
    if not llm.info.has_chat_template:
        message = f"messages need a chat template, and {llm.info.root} has none; send a prompt to /v1/completions"
        raise InvalidRequest(message, param="messages", code="unsupported_parameter")
    return await llm.render(
        messages,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        template_kwargs=template_kwargs,
    )


def served_model(info: ModelInfo, name: str | None) -> str:
    """The served name that is meant, the first when none was asked for. Raises NotFound.

    A name is right with and without `:latest`, the tag that Ollama's clients add.
    """
    if not name:
        return info.served_names[0]
    found = next((each for each in spellings(name) if each in info.served_names), None)
    if found is None:
        served = ", ".join(info.served_names)
        raise NotFound(
            f"the model {ascii(name)[:200]} does not exist here; this server serves {served}",
            param="model",
            code="model_not_found",
        )
    return found
