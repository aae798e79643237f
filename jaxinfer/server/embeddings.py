"""POST /v1/embeddings, as in OpenAI's reference, and POST /score, as in vLLM's."""

import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.errors import Unavailable
from jaxinfer.llm.asked import encode_prompts, new_job, served_model
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.generation import Generation, Job
from jaxinfer.protocol.embeddings import (
    NO_ANSWER,
    Head,
    PooledWire,
    check_input_length,
    embedding_item,
    list_body,
    paired,
    read_embedding,
    read_score,
    score_item,
    similarity,
)
from jaxinfer.protocol.forms import Usage
from jaxinfer.server.body import read_json, unread
from jaxinfer.server.completions import open_llm
from jaxinfer.server.watch import while_connected


async def embeddings(request: Request) -> Response:
    """An embedding for each input."""
    llm = open_llm(request)
    body = await read_json(request, request.app.state.settings.max_body_bytes)
    asked = read_embedding(body, vocab_size=llm.info.vocab_size, hidden_size=llm.info.hidden_size)
    head = _head("embd", request, served_model(llm.info, asked.wire.model))

    async def run() -> bytes:
        job = await _job(request, llm, asked.inputs, asked.wire, "input")
        items, usage = await _embed(request, llm, job, head, lambda index, raw: embedding_item(index, raw, asked.wire))
        return list_body(head, items, usage)

    return await _respond(request, run, asked.unknown)


async def score(request: Request) -> Response:
    """How alike the texts of each pair are: the cosine of their embeddings, from -1 to 1."""
    llm = open_llm(request)
    body = await read_json(request, request.app.state.settings.max_body_bytes)
    asked = read_score(body, vocab_size=llm.info.vocab_size)
    head = _head("score", request, served_model(llm.info, asked.wire.model))

    async def run() -> bytes:
        one = await _job(request, llm, asked.first, asked.wire, "text_1")
        other = await _job(request, llm, asked.second, asked.wire, "text_2")
        both = replace(one, prompts=one.prompts + other.prompts)
        found, usage = await _embed(request, llm, both, head, lambda _, raw: raw)
        pairs = paired(found[: len(asked.first)], found[len(asked.first) :])
        items = [score_item(index, similarity(*pair)) for index, pair in enumerate(pairs)]
        return list_body(head, items, usage)

    return await _respond(request, run, asked.unknown)


async def _respond(
    request: Request, run: Callable[[], Coroutine[Any, Any, bytes]], unknown: tuple[str, ...]
) -> Response:
    headers = unread(request, unknown)
    body = await while_connected(request.receive, run())
    return Response(body, headers=headers, media_type="application/json")


async def _job(request: Request, llm: AsyncLLM, inputs: list[Any], wire: PooledWire, param: str) -> Job:
    """The inputs as ids, all of which fit."""
    llm.admit(1)  # a full queue is no reason to tokenize first
    prompts = await encode_prompts(llm, inputs, wire.add_special_tokens, param=param)
    state = request.state
    job = new_job(llm, prompts, wire, NO_ANSWER, chat=False, salt=state.tenant.salt, arrived_s=state.begun_s)
    job = replace(job, pooling=wire.pooling)
    for position, ids in enumerate(job.prompts):
        check_input_length(len(ids), llm.info.max_model_len, param=f"{param}[{position}]")
    return job


async def _embed(
    request: Request, llm: AsyncLLM, job: Job, head: Head, render: Callable[[int, bytes], bytes]
) -> tuple[list[bytes], Usage]:
    """What `render` makes of each prompt's embedding, and the tokens.

    As many at a time as run together, so that the number of inputs does not depend on how many may wait.
    """
    found: list[bytes] = []
    usage = Usage()
    state, at_once = request.state, llm.limits.max_num_seqs
    for first in range(0, len(job.prompts), at_once):
        generation = await Generation.start(llm, replace(job, prompts=job.prompts[first : first + at_once]))
        state.generation, generation.before = generation, usage
        request.app.state.running.track(state.tenant.name, state.request_id, generation, head)
        try:
            found += await _collect(generation, first, render)
            usage = generation.usage
        finally:
            await generation.close()
    return found, usage


async def _collect(generation: Generation, first: int, render: Callable[[int, bytes], bytes]) -> list[bytes]:
    found: dict[int, bytes] = {}
    async with aclosing(generation.deltas()) as deltas:
        async for index, delta in deltas:
            if delta.embedding is not None:
                found[index] = render(first + index, delta.embedding)
            elif delta.finish_reason == "abort":
                message = "the request was aborted, by /abort_request or by a server that stops; send it again"
                raise Unavailable(message, code="aborted")
    return [found[index] for index in range(generation.num_choices)]


def _head(prefix: str, request: Request, model: str) -> Head:
    return Head(f"{prefix}-{request.state.request_id}", int(time.time()), model)
