"""POST /v1/chat/completions and /v1/completions, as in OpenAI's reference; README.md lists what is left out."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.errors import InvalidRequest, NotFound
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.types import ModelInfo
from jaxinfer.protocol.chat import ChatRequest, read_chat
from jaxinfer.protocol.completions import read_completion
from jaxinfer.protocol.fields import CommonWire, OpenAIEnvelope, StreamOptions
from jaxinfer.protocol.forms import Form
from jaxinfer.protocol.responses import Answer, Kind
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.protocol.session import read_session_id
from jaxinfer.protocol.truncation import truncated
from jaxinfer.protocol.validate import validate_sampling
from jaxinfer.server.body import read_json, unread
from jaxinfer.server.errors import unavailable
from jaxinfer.server.generation import Echo, Generation, Job, while_connected
from jaxinfer.server.sessions import beginning
from jaxinfer.server.stream import EventStream


async def chat_completions(request: Request) -> Response | EventStream:
    """One conversation in, the assistant's next message out."""
    llm = open_llm(request)
    body = await read_json(request, request.app.state.settings.max_body_bytes)
    chat = read_chat(body, max_logprobs=llm.info.max_logprobs)
    return await answer_chat(request, llm, chat, new_answer("chat", request, chat.wire))


async def answer_chat(request: Request, llm: AsyncLLM, chat: ChatRequest, form: Form) -> Response | EventStream:
    """The one way from a conversation to an answer, whatever API it came by."""
    validate_sampling(chat.sampling, vocab_size=llm.info.vocab_size, max_logprobs=llm.info.max_logprobs)
    header, is_appended = request.headers.get("x-session-id"), chat.wire.session_append
    session_id = read_session_id(chat.wire, header, chat.sampling.n, is_appended=is_appended)

    async def prepare() -> Job:
        llm.admit(chat.sampling.n)  # a full queue is no reason to render first
        with beginning(request, session_id) as turn:
            prompt = await render_chat(
                llm,
                chat.messages if turn is None else turn.conversation(chat),
                add_generation_prompt=chat.add_generation_prompt,
                continue_final_message=chat.wire.continue_final_message,
                template_kwargs=chat.wire.chat_template_kwargs,
            )
            return replace(new_job(request, [prompt], chat.wire, chat.sampling, chat=True), turn=turn)

    return await respond(request, llm, prepare, form, chat.wire.stream, chat.unknown)


async def completions(request: Request) -> Response | EventStream:
    """Prompts in, what follows them out; the prompts are part of the answer if `echo` says so."""
    llm = open_llm(request)
    body = await read_json(request, request.app.state.settings.max_body_bytes)
    completion = read_completion(body, vocab_size=llm.info.vocab_size)
    answer = new_answer("completion", request, completion.wire)
    validate_sampling(completion.sampling, vocab_size=llm.info.vocab_size, max_logprobs=llm.info.max_logprobs)
    num_answers = len(completion.prompts) * completion.sampling.n
    session_id = read_session_id(completion.wire, request.headers.get("x-session-id"), num_answers)

    async def prepare() -> Job:
        llm.admit(num_answers)
        prompts = await encode_prompts(llm, completion.prompts, completion.wire.add_special_tokens)
        job = new_job(request, prompts, completion.wire, completion.sampling, chat=False)
        if completion.wire.echo:
            skip = completion.sampling.skip_special_tokens
            texts = [
                given if isinstance(given, str) and left is ids else await llm.decode(left, skip_special_tokens=skip)
                for given, ids, left in zip(completion.prompts, prompts, job.prompts, strict=True)
            ]
            job = replace(job, echo=Echo(texts, completion.prompt_only, completion.wants_prompt_logprobs))
        with beginning(request, session_id) as turn:
            return replace(job, turn=turn)

    return await respond(request, llm, prepare, answer, completion.wire.stream, completion.unknown)


async def encode_prompts(
    llm: AsyncLLM, prompts: list[str | list[int]], special: bool, *, param: str = "prompt"
) -> list[list[int]]:
    """The ids of each. special: whether texts begin with the tokens that the tokenizer puts there."""
    return [
        await llm.encode(prompt, add_special_tokens=special, param=param) if isinstance(prompt, str) else prompt
        for prompt in prompts
    ]


def new_job(
    request: Request, prompts: list[list[int]], wire: CommonWire, sampling: SamplingParams, *, chat: bool
) -> Job:
    """The prompts, cut if the request says so, to compute under the salt of its tenant and its own."""
    max_model_len = request.app.state.llm.info.max_model_len
    left = [truncated(ids, wire, sampling, max_model_len=max_model_len) for ids in prompts]
    state = request.state
    salt = state.tenant.salt
    if wire.cache_salt is not None:
        salt = f"{salt}/{wire.cache_salt}"  # neither holds a slash
    return Job(left, sampling, wire.priority, chat=chat, salt=salt, arrived_s=state.begun_s)


async def respond(
    request: Request,
    llm: AsyncLLM,
    prepare: Callable[[], Awaitable[Job]],
    form: Form,
    stream: bool,
    unknown: tuple[str, ...],
) -> Response | EventStream:
    """Run a job to its end or stream it; what the client leaves behind is aborted either way."""
    headers = unread(request, unknown)

    async def start() -> Generation:
        generation = request.state.generation = await Generation.start(llm, await prepare())
        request.app.state.running.track(request.state.tenant.name, request.state.request_id, generation, form)
        return generation

    async def run() -> bytes:
        generation = await start()
        try:
            choices = await generation.collect()
            return form.body(choices, generation)
        finally:
            await generation.close()

    if not stream:
        body = await while_connected(request.receive, run())
        return Response(body, headers=headers, media_type="application/json")
    generation = await while_connected(request.receive, start())
    interval_s = request.app.state.settings.ping_interval_s
    return EventStream(generation, form, headers, interval_s)


async def render_chat(
    llm: AsyncLLM,
    messages: list[dict[str, str]],
    *,
    add_generation_prompt: bool,
    continue_final_message: bool,
    template_kwargs: dict[str, Any],
) -> list[int]:
    """The prompt's ids. Raises InvalidRequest for a model that has no chat template."""
    if not llm.info.has_chat_template:
        message = f"messages need a chat template, and {llm.info.root} has none; send a prompt to /v1/completions"
        raise InvalidRequest(message, param="messages", code="unsupported_parameter")
    return await llm.render(
        messages,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        template_kwargs=template_kwargs,
    )


def open_llm(request: Request) -> AsyncLLM:
    """The engine, if it takes requests now. Raises Unavailable."""
    state = request.app.state
    llm: AsyncLLM = state.llm
    refusal = unavailable(llm.status, serve_early=state.settings.serve_early)
    if refusal is not None:
        raise refusal
    return llm


def served_model(info: ModelInfo, name: str | None) -> str:
    """The name to answer under: the one asked for, or the first when none was. Raises NotFound."""
    if not name:
        return info.served_names[0]
    if name not in info.served_names:
        served = ", ".join(info.served_names)
        raise NotFound(
            f"the model {ascii(name)[:200]} does not exist here; this server serves {served}",
            param="model",
            code="model_not_found",
        )
    return name


def new_answer(kind: Kind, request: Request, wire: OpenAIEnvelope) -> Answer:
    """Raises NotFound for a model that is not served."""
    info = request.app.state.llm.info
    model = served_model(info, wire.model)
    options = wire.stream_options or StreamOptions()
    answer_id = f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{request.state.request_id}"
    return Answer(kind, answer_id, int(time.time()), model, info.fingerprint, options, wire.include_metrics)
