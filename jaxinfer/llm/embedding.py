"""A request for embeddings over an engine: its inputs as ids, computed as many at a time as run together."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from jaxinfer.errors import Unavailable
from jaxinfer.llm.asked import encode_prompts, new_job
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.generation import Generation, Job
from jaxinfer.protocol.embeddings import NO_ANSWER, PooledWire, check_input_length
from jaxinfer.protocol.forms import Usage

Start = Callable[[Job, Usage], Awaitable[Generation]]  # of some of the inputs; the usage is of those before them
Render = Callable[[int, bytes], bytes]


async def embedding_job(
    llm: AsyncLLM, inputs: list[Any], wire: PooledWire, param: str, *, salt: str, arrived_s: float
) -> Job:
    """The inputs as ids, all of which fit. Raises InvalidRequest."""
    prompts = await encode_prompts(llm, inputs, wire.add_special_tokens, param=param)
    job = new_job(llm, prompts, wire, NO_ANSWER, chat=False, salt=salt, arrived_s=arrived_s)
    for position, ids in enumerate(job.prompts):
        check_input_length(len(ids), llm.info.max_model_len, param=f"{param}[{position}]")
    return replace(job, pooling=wire.pooling)


async def embed_all(
    llm: AsyncLLM, job: Job, render: Render, start: Start, at_once: int | None = None
) -> tuple[list[bytes], Usage]:
    """What `render` makes of each prompt's embedding, and the tokens.

    at_once: None is as many as run together, so that the number of inputs does not depend on how many may wait.
    """
    found: list[bytes] = []
    usage, at_once = Usage(), at_once or llm.limits.max_num_seqs
    for first in range(0, len(job.prompts), at_once):
        generation = await start(replace(job, prompts=job.prompts[first : first + at_once]), usage)
        try:
            found += await _collect(generation, first, render)
            usage = generation.usage
        finally:
            await generation.close()
    return found, usage


async def _collect(generation: Generation, first: int, render: Render) -> list[bytes]:
    found: dict[int, bytes] = {}
    async with aclosing(generation.deltas()) as deltas:
        async for index, delta in deltas:
            if delta.embedding is not None:
                found[index] = render(first + index, delta.embedding)
            elif delta.finish_reason == "abort":
                message = "the request was aborted, by /abort_request or by a server that stops; send it again"
                raise Unavailable(message, code="aborted")
    return [found[index] for index in range(generation.num_choices)]
