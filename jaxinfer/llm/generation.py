"""The token streams behind one request of a generating route, as a server or a batch file has it."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from typing import Protocol, TypedDict

from jaxinfer.engine.failures import OF_THE_REQUEST
from jaxinfer.errors import ApiError, InvalidRequest, Unavailable
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.hidden import HiddenThoughts
from jaxinfer.llm.timings import metrics_of
from jaxinfer.llm.types import Delta, Timings
from jaxinfer.protocol.embeddings import Pooling
from jaxinfer.protocol.forms import Choice, Metrics, Usage
from jaxinfer.protocol.logprobs import TokenLogprob
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.text.grammar.trial import Tried
from jaxinfer.text.reading import Reading
from jaxinfer.text.tools.reader import WholeCalls


@dataclass(frozen=True, slots=True)
class Echo:
    """Answers begin with their prompts' texts and, where logprobs are wanted, theirs.

    prompt_only: and they end there.    keeps_prompt_logprobs: the list of that name is wanted too.
    """

    texts: list[str]
    prompt_only: bool = False
    keeps_prompt_logprobs: bool = False

    def empty(self, delta: Delta) -> None:
        """Take a delta's answer out, where only the prompt is wanted."""
        if self.prompt_only:
            delta.text, delta.reasoning, delta.calls = "", "", None
            delta.token_ids, delta.thinking_tokens, delta.stop_reason = [], 0, None
            if delta.finish_reason in ("stop", "tool_calls"):
                delta.finish_reason = "length"
            delta.logprobs = delta.logprobs and []

    def put_before(self, delta: Delta, position: int, *, is_first: bool) -> None:
        """Change a delta of prompt `position`'s answer."""
        if is_first:
            delta.text = self.texts[position] + delta.text
            if delta.logprobs is not None:
                delta.logprobs = [*(delta.prompt_logprobs or ()), *delta.logprobs]
        if not self.keeps_prompt_logprobs:
            delta.prompt_logprobs = None


class TurnListener(Protocol):
    """What a request is of a session, which hears of the answer before the client does."""

    def add(self, delta: Delta, prompt: Sequence[int], salt: str) -> None:
        """The answer's next piece; the last one ends the turn."""

    def end(self) -> None:
        """The request is over, however it ended; nothing to do if the turn has."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to generate: `sampling.n` choices of each prompt; choice index = prompt position * n + sample.

    reading: how the answers are taken apart.
    salt: the tenant's; cached prompts are found under their own salt only.    arrived_s: by time.monotonic().
    turn: of a session, which then has one prompt and one choice.
    seed: 64 bits that seed what names no seed of its own; None is a fresh one.
    bulk: nobody reads the answers before they are whole.    pooling: embeddings are wanted instead.
    form: what the answers must be, tried.    hides_thoughts: neither they nor their logprobs are put out.
    num_dropped: messages that were left out so that the prompt fits.
    """

    prompts: list[Sequence[int]]
    sampling: SamplingParams
    priority: int
    chat: bool
    salt: str
    arrived_s: float
    echo: Echo | None = None
    turn: TurnListener | None = None
    reading: Reading | None = None
    seed: int | None = None
    bulk: bool = False
    pooling: Pooling | None = None
    form: Tried | None = None
    hides_thoughts: bool = False
    num_dropped: int = 0

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the request is not carried out as it stands, for the client."""
        dropped = (f"truncation: the oldest {self.num_dropped} messages are left out",) if self.num_dropped else ()
        return dropped + (() if self.form is None else self.form.warnings)


class _Rest(TypedDict):
    """What generating and embedding are both told."""

    request_id: str
    priority: int
    salt: str
    arrived_s: float


class Generation:
    """The running streams of one request. Invariant: after close(), nothing of it runs or holds a page."""

    def __init__(self, llm: AsyncLLM, job: Job) -> None:
        self.job = job
        self.num_choices = len(job.prompts) * job.sampling.n
        self._llm = llm
        # x-request-id may be in use twice at once; the engine's ids may not
        unique = secrets.token_hex(12)
        self._ids = [f"{unique}-{position}" for position in range(len(job.prompts))]
        self._open: set[str] = set()
        self._streams: list[AsyncIterator[Delta]] = []
        self._prompt_tokens = [0] * len(job.prompts)
        self._cached_tokens = [0] * len(job.prompts)
        self._completion_tokens = 0
        self._thinking_tokens = 0 if job.reading is not None and job.reading.thinking is not None else None
        self.before = Usage()  # of earlier ones of the same HTTP request
        self.timings: list[Timings] = []  # of the choices that have ended
        self.is_cut_off = False  # by a server that ends: an abort is an error then
        self.on_close: Callable[[], None] | None = None

    @classmethod
    async def start(cls, llm: AsyncLLM, job: Job) -> "Generation":
        """Enqueue every prompt or none; others get their turns in between. Raises what AsyncLLM.generate raises."""
        generation = cls(llm, job)
        try:
            async with llm.beginning if len(job.prompts) > 1 else nullcontext():
                llm.admit(generation.num_choices, job.arrived_s)
                for position, (request_id, prompt) in enumerate(zip(generation._ids, job.prompts, strict=True)):
                    if position:
                        await asyncio.sleep(0)  # a prompt may take 15 ms: of many allowed_token_ids, or bad_words
                    generation._open.add(request_id)
                    generation._streams.append(await generation._ask(request_id, position, prompt))
        except BaseException:
            await generation.close()
            raise
        return generation

    async def _ask(self, request_id: str, position: int, prompt: Sequence[int]) -> AsyncIterator[Delta]:
        job = self.job
        rest = _Rest(request_id=request_id, priority=job.priority, salt=job.salt, arrived_s=job.arrived_s)
        if job.pooling is not None:
            return await self._llm.embed(prompt, job.pooling, **rest)
        return await self._llm.generate(
            prompt,
            job.sampling,
            chat=job.chat,
            prompt_only=job.echo is not None and job.echo.prompt_only,
            reading=job.reading,
            bulk=job.bulk,
            session=job.turn is not None,
            form=job.form,
            random_seed=None if job.seed is None else (job.seed + position) % 2**64,
            **rest,
        )

    async def close(self) -> None:
        """Abort what has not ended; by id, since a stream that nobody began to read cannot notice being dropped."""
        while self._open:
            await self._llm.abort(self._open.pop())
        if self.job.turn is not None:
            self.job.turn.end()
        if self.on_close is not None:
            self.on_close()

    async def abort(self) -> None:
        """End every choice with finish_reason "abort"; its deltas go on until then."""
        for request_id in tuple(self._open):
            await self._llm.abort(request_id)

    @property
    def usage(self) -> Usage:
        """The tokens so far."""
        counted = sum(self._prompt_tokens), sum(self._cached_tokens), self._completion_tokens, self._thinking_tokens
        return self.before.plus(Usage(*counted))

    @property
    def metrics(self) -> Metrics:
        """How long its parts took, once all choices have ended."""
        return metrics_of(self.timings)

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta]]:
        """Each delta with its choice's index, as they come. Raises InvalidRequest when a choice cannot be what was
        asked for, ApiError (500) when it fails, Unavailable when it is cut off."""
        begun: set[int] = set()
        ended: set[int] = set()
        num_samples = self.job.sampling.n
        hidden = HiddenThoughts.of(self.job.reading) if self.job.hides_thoughts else None
        async with aclosing(_merge(self._streams)) as merged:
            async for position, delta in merged:
                index = position * num_samples + delta.index
                if self.job.echo is not None:
                    self.job.echo.empty(delta)
                if self.job.turn is not None:  # before the client sees how it ended, and may begin the next
                    self.job.turn.add(delta, self.job.prompts[0], self.job.salt)
                if delta.finish_reason == "error" or index in ended:
                    raise _failure(delta)
                if delta.finish_reason == "abort" and self.is_cut_off:
                    message = "the server was told to end at once, before this answer was whole; send it to another"
                    raise Unavailable(message, code="draining")
                if self.job.echo is not None:
                    self.job.echo.put_before(delta, position, is_first=index not in begun)
                    begun.add(index)
                self._prompt_tokens[position] = delta.prompt_tokens
                if delta.index == 0:  # its siblings find what it has computed
                    self._cached_tokens[position] = delta.cached_tokens
                self._completion_tokens += len(delta.token_ids)
                if self._thinking_tokens is not None:
                    self._thinking_tokens += delta.thinking_tokens
                if hidden is not None:
                    hidden.take_out(index, delta)
                if delta.timings is not None:
                    self.timings.append(delta.timings)
                if delta.finish_reason is not None:
                    ended.add(index)
                yield index, delta
        if len(ended) != self.num_choices:
            raise ApiError("the engine ended this request without finishing it", code="engine_error")
        self._open.clear()

    async def collect(self, on_first: Callable[[], None] | None = None) -> list[Choice]:
        """All choices, whole. on_first: called at the first sign that the prompts are being answered."""
        texts: list[list[str]] = [[] for _ in range(self.num_choices)]
        thoughts: list[list[str]] = [[] for _ in range(self.num_choices)]
        calls = [WholeCalls() for _ in range(self.num_choices)]
        logprobs: list[list[TokenLogprob] | None] = [None] * self.num_choices
        prompts: list[list[TokenLogprob] | None] = [None] * self.num_choices
        choices: list[Choice | None] = [None] * self.num_choices
        async with aclosing(self.deltas()) as deltas:
            async for index, delta in deltas:
                if on_first is not None:
                    on_first()
                    on_first = None
                texts[index].append(calls[index].add(delta.calls, delta.text) if delta.calls else delta.text)
                thoughts[index].append(delta.reasoning)
                prompts[index] = prompts[index] or delta.prompt_logprobs
                if delta.logprobs is not None:
                    entries = logprobs[index] = logprobs[index] or []  # of its own: a delta is another's
                    entries += delta.logprobs
                if delta.finish_reason is not None:
                    text = "".join(texts[index])
                    found = logprobs[index], prompts[index]
                    beside = "".join(thoughts[index]), calls[index].calls
                    choices[index] = Choice(index, text, delta.finish_reason, delta.stop_reason, *found, *beside)
        return [choice for choice in choices if choice is not None]


def _failure(delta: Delta) -> ApiError:
    kind = InvalidRequest if delta.code in OF_THE_REQUEST else ApiError
    return kind(delta.error or "the engine failed on this request", code=delta.code or "engine_error")


async def _merge(streams: list[AsyncIterator[Delta]]) -> AsyncGenerator[tuple[int, Delta]]:
    """Items of all streams with their positions, in the order of arrival."""
    if len(streams) == 1:
        async for delta in streams[0]:
            yield 0, delta
        return
    queue: asyncio.Queue[tuple[int, Delta | Exception | None]] = asyncio.Queue(maxsize=len(streams))
    tasks = [asyncio.create_task(_forward(position, stream, queue)) for position, stream in enumerate(streams)]
    try:
        num_running = len(tasks)
        while num_running:
            position, item = await queue.get()
            if item is None:
                num_running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield position, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(
    position: int, stream: AsyncIterator[Delta], queue: asyncio.Queue[tuple[int, Delta | Exception | None]]
) -> None:
    try:
        async for delta in stream:
            await queue.put((position, delta))
        await queue.put((position, None))
    except Exception as error:
        await queue.put((position, error))
