"""POST /v1/embeddings, as in OpenAI's reference, and POST /score, as in vLLM's."""

import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.llm.asked import served_model
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.embedding import Render, embed_all, embedding_job
from jaxinfer.llm.generation import Generation, Job
from jaxinfer.protocol.embeddings import (
    Head,
    PooledWire,
    embedding_item,
    list_body,
    paired,
    read_embedding,
    read_score,
    score_item,
    similarity,
)
from jaxinfer.protocol.forms import Usage
from jaxinfer.server.body import read_ranked, unread
from jaxinfer.server.completions import open_llm
from jaxinfer.server.watch import while_connected


async def embeddings(request: Request) -> Response:
    """An embedding for each input."""
    llm = open_llm(request)
    asked = read_embedding(await read_ranked(request), vocab_size=llm.info.vocab_size, hidden_size=llm.info.hidden_size)
    head = pooled_head("embd", request, served_model(llm.info, asked.wire.model))

    async def run() -> bytes:
        job = await pooled_job(request, llm, asked.inputs, asked.wire, "input")
        items, usage = await embedded(
            request, llm, job, head, lambda index, raw: embedding_item(index, raw, asked.wire)
        )
        return list_body(head, items, usage)

    return await respond_pooled(request, run, asked.unknown)


async def score(request: Request) -> Response:
    """How alike the texts of each pair are: the cosine of their embeddings, from -1 to 1."""
    llm = open_llm(request)
    asked = read_score(await read_ranked(request), vocab_size=llm.info.vocab_size)
    head = pooled_head("score", request, served_model(llm.info, asked.wire.model))

    async def run() -> bytes:
        one = await pooled_job(request, llm, asked.first, asked.wire, "text_1")
        other = await pooled_job(request, llm, asked.second, asked.wire, "text_2")
        both = replace(one, prompts=one.prompts + other.prompts)
        found, usage = await embedded(request, llm, both, head, lambda _, raw: raw)
        pairs = paired(found[: len(asked.first)], found[len(asked.first) :])
        items = [score_item(index, similarity(*pair)) for index, pair in enumerate(pairs)]
        return list_body(head, items, usage)

    return await respond_pooled(request, run, asked.unknown)


async def respond_pooled(
    request: Request, run: Callable[[], Coroutine[Any, Any, bytes]], unknown: tuple[str, ...]
) -> Response:
    """What `run` makes, unless the client leaves; names of fields nobody reads are in a header."""
    headers = unread(request, unknown)
    body = await while_connected(request.receive, run())
    return Response(body, headers=headers, media_type="application/json")


async def pooled_job(request: Request, llm: AsyncLLM, inputs: list[Any], wire: PooledWire, param: str) -> Job:
    """The inputs as ids, for whoever asks."""
    state = request.state
    llm.admit(1, state.begun_s)  # a full queue is no reason to tokenize first
    return await embedding_job(llm, inputs, wire, param, salt=state.tenant.salt, arrived_s=state.begun_s)


async def embedded(request: Request, llm: AsyncLLM, job: Job, head: Head, render: Render) -> tuple[list[bytes], Usage]:
    """What `render` makes of each prompt's embedding, and the tokens; abort_request may end it."""
    state, num_waiting = request.state, len(job.prompts)

    async def start(part: Job, before: Usage) -> Generation:
        nonlocal num_waiting
        generation = await Generation.start(llm, part)
        num_waiting -= len(part.prompts)
        if not num_waiting:  # until then we hold the others, and nothing else bounds them
            state.held_body.release()
        state.generation, generation.before = generation, before
        request.app.state.running.track(request.scope["state"], generation, head)
        return generation

    return await embed_all(llm, job, render, start)


def pooled_head(prefix: str, request: Request, model: str) -> Head:
    """What an answer begins with, made now."""
    return Head(f"{prefix}-{request.state.request_id}", int(time.time()), model)
