"""POST /v1/chat/completions and /v1/completions, as in OpenAI's reference; README.md lists what is left out."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.llm.asked import Asked, check_asked, read_asked
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.generation import Generation, Job
from jaxinfer.protocol.chat import ChatRequest
from jaxinfer.protocol.completions import CompletionRequest
from jaxinfer.protocol.forms import Form
from jaxinfer.protocol.responses import Kind
from jaxinfer.protocol.session import read_session_id
from jaxinfer.server.body import read_ranked, unread, warned
from jaxinfer.server.errors import unavailable
from jaxinfer.server.sessions import beginning
from jaxinfer.server.stream import EventStream
from jaxinfer.server.watch import while_connected


async def chat_completions(request: Request) -> Response | EventStream:
    """One conversation in, the assistant's next message out."""
    return await _complete(request, "chat")


async def completions(request: Request) -> Response | EventStream:
    """Prompts in, what follows them out; the prompts are part of the answer if `echo` says so."""
    return await _complete(request, "completion")


async def _complete(request: Request, kind: Kind) -> Response | EventStream:
    llm = open_llm(request)
    asked = read_asked(kind, await read_ranked(request), llm.info)  # the body is held by nobody while it is answered
    return await _answer(request, llm, asked, asked.answer(llm.info, request.state.request_id))


async def answer_chat(
    request: Request, llm: AsyncLLM, asked: ChatRequest | CompletionRequest, form: Form
) -> Response | EventStream:
    """The one way from a conversation, or a prompt, to an answer, whatever API it came by."""
    return await _answer(request, llm, check_asked(asked, llm.info), form)


async def _answer(request: Request, llm: AsyncLLM, asked: Asked, form: Form) -> Response | EventStream:
    header = request.headers.get("x-session-id")
    session_id = read_session_id(asked.wire, header, asked.num_choices, is_appended=asked.is_appended)

    async def prepare() -> Job:
        llm.admit(asked.num_choices, request.state.begun_s)  # a full queue is no reason to render first
        with beginning(request, session_id) as turn:
            whole = asked if turn is None else asked.going_on(turn.conversation)
            job = await whole.job(llm, salt=request.state.tenant.salt, arrived_s=request.state.begun_s)
            return job if turn is None else replace(job, turn=turn)

    return await respond(request, llm, prepare, form, asked.wire.stream, asked.unknown)


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
        request.state.held_body.release()
        request.app.state.running.track(request.scope["state"], generation, form)
        return generation

    async def run() -> bytes:
        generation = await start()
        try:
            choices = await generation.collect()
            headers.update(warned(generation.job.warnings, headers))
            return form.body(choices, generation)
        finally:
            await generation.close()

    if not stream:
        body = await while_connected(request.receive, run())
        return Response(body, headers=headers, media_type="application/json")
    generation = await while_connected(request.receive, start())
    headers.update(warned(generation.job.warnings, headers))
    interval_s = request.app.state.settings.ping_interval_s
    return EventStream(generation, form, headers, interval_s)


def open_llm(request: Request) -> AsyncLLM:
    """The engine, if it takes this request. Raises Unavailable."""
    state = request.app.state
    llm: AsyncLLM = state.llm
    refusal = unavailable(llm.status_for(request.state.begun_s), serve_early=state.settings.serve_early)
    if refusal is not None:
        raise refusal
    return llm
