"""Rows in, records out, over an engine: the same whether they come from a file, a pipe or a client."""

import asyncio
import dataclasses
import hashlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Protocol

from jaxinfer.errors import ApiError, EngineError, JaxInferError, Overloaded, Unavailable
from jaxinfer.llm.admission import RETRY_BUSY_S
from jaxinfer.llm.asked import Asked, read_asked, served_model
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.embedding import embed_all, embedding_job
from jaxinfer.llm.generation import Generation, Job
from jaxinfer.offline.records import (
    Record,
    answered,
    check_row,
    embedded,
    read_embedding_row,
    refused,
    request_id,
)
from jaxinfer.offline.rows import Form, InputRow, Raw, read_row
from jaxinfer.offline.starts import Starts
from jaxinfer.offline.tally import Tally
from jaxinfer.offline.window import Window
from jaxinfer.protocol.body import LARGE_BYTES
from jaxinfer.protocol.embeddings import EmbeddingRequest, Head, embedding_item, list_body
from jaxinfer.protocol.forms import Usage
from jaxinfer.protocol.validate import invalid

log = logging.getLogger(__name__)
AHEAD = 2  # times max_num_seqs that may be with the engine: it need not wait for us
WINDOW = 8  # times max_num_seqs that may be between being read and being written, unless said otherwise
_BREATH = 1024  # rows passed over before others may run


class Sink(Protocol):
    """Where records go."""

    def has(self, number: int) -> bool:
        """Whether the row was answered before."""

    def put(self, record: Record) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobPlan:
    """form: of the records.    window: rows between being read and being written; None is as the engine needs.
    seed: of the rows that name none, each with its number.    defaults: fields for rows that do not name them.
    salt: cached prompts are found under it only.    priority: of all rows, which then may not name one.
    """

    form: Form
    ordered: bool = True
    window: int | None = None
    seed: int = 0
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
    salt: str = ""
    priority: int | None = None


class Lane:
    """What runs have together that go on at the same time: a share of one engine, and the order of starting.

    Rows are known here by numbers of the lane's own, in the order in which they were read.
    """

    def __init__(self, llm: AsyncLLM, most: int | None = None, prepared_at_once: int | None = None) -> None:
        """most: choices with the engine at a time; None is as many as it needs to be busy.    prepared_at_once: rows
        being read and tokenized; None is all of them.
        """
        limits = llm.limits
        capacity = limits.max_num_seqs + limits.max_num_queued_seqs
        page_size = limits.page_size if limits.enable_prefix_caching else 0
        self.most_of_a_row = min(most or capacity, capacity)  # choices, which are all with the engine at once
        self.starts = Starts(min(most or AHEAD * limits.max_num_seqs, capacity), page_size, limits.num_pages)
        self.numbers = itertools.count()
        self.preparing = asyncio.Semaphore(prepared_at_once or WINDOW * limits.max_num_seqs)


class BatchRun:
    """One run over a job's rows. Invariant: each row that was read gets one record, and what is with the engine when
    this ends early is aborted.
    """

    def __init__(self, llm: AsyncLLM, plan: JobPlan, sink: Sink, tally: Tally, lane: Lane | None = None) -> None:
        """lane: shared with other runs; None is one of its own."""
        self._llm, self._plan, self._sink, self._tally = llm, plan, sink, tally
        self._lane = lane or Lane(llm)
        self._starts = self._lane.starts
        self._window = Window(plan.window or WINDOW * llm.limits.max_num_seqs, ordered=plan.ordered)

    @property
    def _at_once(self) -> int:
        """How many embeddings of a row are computed together."""
        return min(self._llm.limits.max_num_seqs, self._lane.most_of_a_row)

    async def run(self, rows: Iterable[Raw]) -> None:
        """Answer all that were not answered before. Raises EngineError when the engine has failed for good."""
        try:
            async with asyncio.TaskGroup() as tasks:
                num_passed = 0
                for raw in rows:
                    if self._sink.has(raw.number):
                        num_passed += 1
                        if num_passed % _BREATH == 0:
                            await asyncio.sleep(0)
                        continue
                    self._tally.num_read += 1
                    await self._window.enter(raw.number, raw.num_bytes)
                    tasks.create_task(self._row(raw, next(self._lane.numbers)))
                    await asyncio.sleep(0)  # others may share this event loop: a row at a time is begun
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._tally.seconds = time.monotonic() - self._tally.began_s

    async def _row(self, raw: Raw, place: int) -> None:
        record = await self._answer_or_refuse(raw, place)
        for ready in self._window.finish(record):
            self._sink.put(ready)
            self._tally.num_rows += 1

    async def _answer_or_refuse(self, raw: Raw, place: int) -> Record:
        row = InputRow(raw.number)
        try:
            async with self._lane.preparing:
                row = await self._read(raw)
                asked, job = await self._prepare(row)
            return await self._answer(row, place, asked, job)
        except ApiError as error:
            if self._llm.status == "failed" or error.code == "aborted":
                raise EngineError(str(error)) from error
            return self._refuse(row, error)
        except JaxInferError:
            raise
        except Exception:
            log.exception("row %d failed", row.number)
            return self._refuse(row, ApiError("an error of ours, the log has it", code="internal_error"))

    def _refuse(self, row: InputRow, error: ApiError) -> Record:
        self._tally.refused(error)
        return refused(row, self._plan.form, error)

    async def _read(self, raw: Raw) -> InputRow:
        read = partial(read_row, raw, self._plan.defaults, max_model_len=self._llm.info.max_model_len)
        if raw.num_bytes > LARGE_BYTES:
            return await asyncio.to_thread(read)
        return read()

    async def _prepare(self, row: InputRow) -> tuple[Asked | EmbeddingRequest, Job]:
        """Raises ApiError for what cannot be answered."""
        if row.fault is not None:
            raise row.fault
        llm, plan, arrived_s = self._llm, self._plan, time.monotonic()
        if plan.priority is not None and row.body.get("priority") is not None:
            raise invalid("priority", "left out in a batch that runs after all other requests", row.body["priority"])
        asked: Asked | EmbeddingRequest
        if row.kind == "embedding":
            asked = read_embedding_row(row, plan.form, llm.info)
            job = await embedding_job(llm, asked.inputs, asked.wire, "input", salt=plan.salt, arrived_s=arrived_s)
        else:
            asked = read_asked(row.kind, row.body, llm.info)
            check_row(asked, plan.form)
            job = await self._patiently(lambda: asked.job(llm, salt=plan.salt, arrived_s=arrived_s))
        self._tally.ignored((*row.unknown, *asked.unknown, *job.warnings))
        priority = job.priority if plan.priority is None else plan.priority
        return asked, dataclasses.replace(job, seed=seed_of(plan.seed, row.number), priority=priority, bulk=True)

    async def _answer(self, row: InputRow, place: int, asked: Asked | EmbeddingRequest, job: Job) -> Record:
        most = self._lane.most_of_a_row
        if isinstance(asked, EmbeddingRequest):
            num_places = min(len(job.prompts), self._at_once)
        elif asked.num_choices <= most:
            num_places = asked.num_choices
        else:
            raise invalid("n", f"such that a row has at most {most} choices of all its prompts here", asked.num_choices)
        await self._starts.wait(place, self._starts.chain(job.prompts[0], job.salt), num_places)
        try:
            if isinstance(asked, EmbeddingRequest):
                return await self._embed(row, place, asked, job)
            return await self._generate(row, place, asked, job)
        finally:
            self._starts.end(place, num_places)

    async def _embed(self, row: InputRow, place: int, asked: EmbeddingRequest, job: Job) -> Record:
        def render(index: int, raw: bytes) -> bytes:
            self._starts.computed(place)
            return embedding_item(index, raw, asked.wire)

        async def start(part: Job, before: Usage) -> Generation:
            generation = await self._start(part)
            generation.before = before
            return generation

        head = Head(f"embd-{request_id(row)}", int(time.time()), served_model(self._llm.info, asked.wire.model))
        items, usage = await embed_all(self._llm, job, render, start, self._at_once)
        self._tally.answered(usage)
        return embedded(row, list_body(head, items, usage))

    async def _generate(self, row: InputRow, place: int, asked: Asked, job: Job) -> Record:
        generation = await self._start(job)
        try:
            choices = await generation.collect(lambda: self._starts.computed(place))
            if any(choice.finish_reason == "abort" for choice in choices):
                raise EngineError(f"the engine was stopped while it answered row {row.number}")
            record = answered(row, self._plan.form, asked.answer(self._llm.info, request_id(row)), choices, generation)
            self._tally.answered(generation.usage)
            return record
        finally:
            await generation.close()

    async def _start(self, job: Job) -> Generation:
        return await self._patiently(lambda: Generation.start(self._llm, job))

    async def _patiently[T](self, ask: Callable[[], Awaitable[T]]) -> T:
        """Others may fill the engine's queues too: then wait for room. Raises EngineError once it takes no more."""
        while True:
            try:
                return await ask()
            except Overloaded as error:
                await asyncio.sleep(error.retry_after_s or RETRY_BUSY_S)
            except Unavailable as error:
                raise EngineError(str(error)) from error


def seed_of(seed: int, number: int) -> int:
    """64 bits for row `number`, the same in every run."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=8).digest())
