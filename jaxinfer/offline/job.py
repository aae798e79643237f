"""Rows in, records out, over an engine: the same whether they come from a file, a pipe or a client."""

import asyncio
import dataclasses
import hashlib
import logging
import time
from collections.abc import Iterable
from typing import Any, Protocol

from jaxinfer.errors import ApiError, EngineError, JaxInferError, Overloaded, Unavailable
from jaxinfer.llm.asked import Asked, read_asked
from jaxinfer.llm.async_llm import RETRY_BUSY_S, AsyncLLM
from jaxinfer.llm.generation import Generation, Job
from jaxinfer.offline.records import Record, answered, check_row, refused, request_id
from jaxinfer.offline.rows import Form, Raw, Row, read_row
from jaxinfer.offline.starts import Starts
from jaxinfer.offline.tally import Tally
from jaxinfer.offline.window import Window

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
class Plan:
    """form: of the records.    window: rows between being read and being written; None is as the engine needs.
    seed: of the rows that name none, each with its number.    defaults: fields for rows that do not name them.
    """

    form: Form
    ordered: bool = True
    window: int | None = None
    seed: int = 0
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)


class BatchRun:
    """One run over a job's rows. Invariant: each row that was read gets one record, and what is with the engine when
    this ends early is aborted.
    """

    def __init__(self, llm: AsyncLLM, plan: Plan, sink: Sink, tally: Tally) -> None:
        limits = llm.limits
        capacity = limits.max_num_seqs + limits.max_num_queued_seqs
        page_size = limits.page_size if limits.enable_prefix_caching else 0
        self._llm, self._plan, self._sink, self._tally = llm, plan, sink, tally
        self._starts = Starts(min(AHEAD * limits.max_num_seqs, capacity), page_size, limits.num_pages)
        self._window = Window(plan.window or WINDOW * limits.max_num_seqs, ordered=plan.ordered)

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
                    await self._window.enter(raw.number, raw.num_bytes)
                    tasks.create_task(self._row(read_row(raw, self._plan.defaults)))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._tally.seconds = time.monotonic() - self._tally.began_s

    async def _row(self, row: Row) -> None:
        try:
            record = await self._answer(row)
        except ApiError as error:
            if self._llm.status == "failed":
                raise EngineError(str(error)) from error
            record = self._refuse(row, error)
        except JaxInferError:
            raise
        except Exception:
            log.exception("row %d failed", row.number)
            record = self._refuse(row, ApiError("an error of ours, the log has it", code="internal_error"))
        for ready in self._window.finish(record):
            self._sink.put(ready)
            self._tally.num_rows += 1

    def _refuse(self, row: Row, error: ApiError) -> Record:
        self._tally.refused(error)
        return refused(row, self._plan.form, error)

    async def _answer(self, row: Row) -> Record:
        """Raises ApiError for what cannot be answered."""
        if row.fault is not None:
            raise row.fault
        info = self._llm.info
        asked = read_asked(row.kind, row.body, info)
        check_row(asked, self._plan.form)
        self._tally.ignored(row.unknown + asked.unknown)
        job = await asked.job(self._llm, arrived_s=time.monotonic())
        job = dataclasses.replace(job, seed=seed_of(self._plan.seed, row.number))
        await self._starts.wait(row.number, self._starts.chain(job.prompts[0], job.salt), asked.num_choices)
        try:
            return await self._generate(row, asked, job)
        finally:
            self._starts.end(row.number, asked.num_choices)

    async def _generate(self, row: Row, asked: Asked, job: Job) -> Record:
        generation = await self._start(job)
        try:
            choices = await generation.collect(lambda: self._starts.computed(row.number))
            record = answered(row, self._plan.form, asked.answer(self._llm.info, request_id(row)), choices, generation)
            self._tally.answered(generation.usage)
            return record
        finally:
            await generation.close()

    async def _start(self, job: Job) -> Generation:
        """Others may fill the engine's queue too: then wait for room. Raises EngineError once it takes no more."""
        while True:
            try:
                return await Generation.start(self._llm, job)
            except Overloaded as error:
                await asyncio.sleep(error.retry_after_s or RETRY_BUSY_S)
            except Unavailable as error:
                raise EngineError(str(error)) from error


def seed_of(seed: int, number: int) -> int:
    """64 bits for row `number`, the same in every run."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=8).digest())
