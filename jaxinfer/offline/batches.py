"""Batches that clients of a server ask for: rows of a file, answered after all other requests by the same engine.

Everything is written down before a client hears of it, so that a server that starts again goes on where the last one
ended, however it ended: a batch's answers are in its journal, and its files are made of that, as often as it takes.
"""

import asyncio
import hashlib
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from jaxinfer.config import counted
from jaxinfer.errors import BatchError, EngineError, InvalidRequest, NotFound
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.offline import batch_record
from jaxinfer.offline.batch_record import BatchRecord, Outcome
from jaxinfer.offline.files import FileStore, StoredFile, new_id
from jaxinfer.offline.formats import digest_of, open_source
from jaxinfer.offline.job import BatchRun, JobPlan, Lane
from jaxinfer.offline.journal import SUFFIX, Journal
from jaxinfer.offline.records import Record, out_of_time
from jaxinfer.offline.rows import read_row
from jaxinfer.offline.survey import Unfit, count_rows, fault
from jaxinfer.offline.tally import Tally
from jaxinfer.protocol.batches import WINDOW, WINDOW_S, BatchWire, wrong_state

log = logging.getLogger(__name__)
MAX_RUNNING_BATCHES = 4
LOWEST = 2**31 - 1  # no request is less urgent
_LOOK_S = 60.0  # between two looks for what has become too old


class _Sink:
    """The journal of a batch, as long as its tenant has room."""

    def __init__(self, journal: Journal, batch: BatchRecord, files: FileStore) -> None:
        self.num_bytes = journal.num_bytes
        self._journal, self._batch, self._files = journal, batch, files
        files.count(batch.owner, self.num_bytes)
        self.count()

    def has(self, number: int) -> bool:
        return self._journal.has(number)

    def put(self, record: Record) -> None:
        size = len(record.line) + 1
        self._files.take(self._batch.owner, size)
        self.num_bytes += size
        self._journal.put(record)
        self.count()

    def count(self) -> None:
        self._batch.failed = self._journal.num_errors
        self._batch.completed = self._journal.num_done - self._journal.num_errors

    def close(self) -> None:
        self._files.count(self._batch.owner, -self.num_bytes)
        self._journal.close()


class Batches:
    """The batches of all tenants; belongs to one event loop.

    Invariants: what `of` and `find` know is on disk; at most MAX_RUNNING_BATCHES run at a time, those of the tenants
    who have fewest running first; all of them together have at most half of the engine's places.
    """

    def __init__(
        self,
        llm: AsyncLLM,
        files: FileStore,
        folder: Path,
        salt_of: Callable[[str], str | None],
        window_s: float = WINDOW_S,
    ) -> None:
        """salt_of: a tenant's, under which its cached prompts are found; None for one that this server has no key of.
        window_s: how long a batch may take.
        """
        self._llm, self._files, self._folder, self._salt_of = llm, files, folder, salt_of
        self._window_s = window_s
        self._lane: Lane | None = None
        self._changed = asyncio.Event()
        self._saving = asyncio.Lock()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._stops: dict[str, asyncio.Event] = {}
        self._still: set[str] = set()  # what only another start of the server may go on with
        folder.mkdir(mode=0o700, exist_ok=True)
        self._batches = {batch.id: batch for batch in batch_record.load(folder)}
        for path in folder.iterdir():
            batch = self._batches.get(path.stem)
            if batch is None or path.suffix not in ((".json",) if batch.has_ended else (".json", SUFFIX)):
                path.unlink()
        files.is_in_use = self._uses

    # ---- what clients ask ----

    def of(self, owner: str) -> list[BatchRecord]:
        """A tenant's, the newest first."""
        self._forget_old()
        return [batch for batch in reversed(self._batches.values()) if batch.owner == owner]

    def find(self, owner: str, batch_id: str) -> BatchRecord:
        """Raises NotFound, as for another tenant's."""
        self._forget_old()
        batch = self._batches.get(batch_id)
        if batch is None or batch.owner != owner:
            message = f"there is no batch {ascii(batch_id)[:200]} of yours here; GET /v1/batches lists those there are"
            raise NotFound(message, param="id", code="batch_not_found")
        return batch

    async def create(self, owner: str, wire: BatchWire) -> BatchRecord:
        """A new one, on disk. Raises InvalidRequest when there are too many."""
        most = self._files.limits.max_batches
        if len(self.of(owner)) >= most:
            law = f"at most {counted(most, 'batch')} may be there (--max-batches-per-key), those that ended"
            age = f"in the last {self._files.limits.max_age_s:g} s included"
            raise InvalidRequest(f"{law} {age}, and as many are; wait", code="too_many_batches")
        now = int(time.time())
        batch = BatchRecord(
            id=new_id("batch_"),
            owner=owner,
            endpoint=wire.endpoint,
            input_file_id=wire.input_file_id,
            completion_window=WINDOW,
            metadata=wire.metadata,
            created_at=now,
            expires_at=now + int(self._window_s),
        )
        self._batches[batch.id] = batch  # before it is written: its place is taken, and its file in use
        try:
            await self._save(batch)
        except BaseException:
            del self._batches[batch.id]
            raise
        self._changed.set()
        return batch

    async def cancel(self, batch: BatchRecord) -> None:
        """End it; what was answered stays. Raises InvalidRequest for one that has ended, or nearly."""
        if batch.status not in ("validating", "in_progress", "cancelling"):
            raise wrong_state("cancelled", batch.status)
        if batch.status != "cancelling":
            batch.enter("cancelling")
        await self._save(batch)  # once more, should the disk not have taken it the last time
        if batch.id in self._stops:
            self._stops[batch.id].set()
        self._still.discard(batch.id)
        self._changed.set()

    def counts(self) -> dict[str, int]:
        """Those of all tenants that have not ended, by state."""
        going = [batch for batch in self._batches.values() if not batch.has_ended]
        running = sum(batch.id in self._running for batch in going)
        return {"running": running, "waiting": len(going) - running}

    def _uses(self, file: StoredFile) -> bool:
        return any(batch.input_file_id == file.id and not batch.has_ended for batch in self._batches.values())

    def _forget_old(self) -> None:
        """Forget those that ended too long ago; their files go by their own age."""
        since = time.time() - self._files.limits.max_age_s
        for batch in [batch for batch in self._batches.values() if batch.has_ended]:
            if batch.moments[f"{batch.status}_at"] < since:
                del self._batches[batch.id]
                (self._folder / f"{batch.id}.json").unlink(missing_ok=True)

    async def _save(self, batch: BatchRecord) -> None:
        async with self._saving:
            await asyncio.to_thread(batch_record.save, batch, self._folder)

    # ---- carrying them out ----

    async def run(self) -> None:
        """Carry out what is there and what comes, until this is cancelled or the engine takes no more."""
        limits = self._llm.limits
        capacity = limits.max_num_seqs + limits.max_num_queued_seqs
        self._lane = Lane(self._llm, max(1, min(limits.max_num_seqs, capacity // 2)), prepared_at_once=1)
        try:
            while True:
                self._changed.clear()
                while (batch := self._next()) is not None:
                    self._stops[batch.id] = asyncio.Event()
                    self._running[batch.id] = asyncio.create_task(self._carry_out(batch))
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), _LOOK_S)
                self._forget_old()
                self._files.forget_old()
        finally:
            tasks = list(self._running.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _next(self) -> BatchRecord | None:
        """The one to begin now: the oldest of a tenant who has fewest running."""
        if len(self._running) == MAX_RUNNING_BATCHES or self._llm.status not in ("serving", "ready"):
            return None
        busy = Counter(self._batches[batch_id].owner for batch_id in self._running)
        waiting = [
            batch
            for batch in self._batches.values()
            if not (batch.has_ended or batch.id in self._running or batch.id in self._still)
            and self._salt_of(batch.owner) is not None
        ]
        return min(waiting, key=lambda batch: busy[batch.owner], default=None)

    async def _carry_out(self, batch: BatchRecord) -> None:
        try:
            await self._take_further(batch)
        except (EngineError, BatchError, OSError) as error:  # the server drains or has failed, or its disk is full
            log.warning("batch %s stands still until the server starts again: %s", batch.id, error)
            self._still.add(batch.id)
        except Exception:
            log.exception("batch %s failed", batch.id)
            message = "the server failed on this batch, its log says why"
            batch.errors, batch.outcome = [fault("internal_error", message)], "failed"
            batch.output_file_id = batch.error_file_id = None
            batch.enter("failed")
            await self._save(batch)
        finally:
            del self._running[batch.id], self._stops[batch.id]
            self._changed.set()

    async def _take_further(self, batch: BatchRecord) -> None:
        path = self._files.path_of(batch.input_file_id)
        if batch.outcome is None and batch.status == "validating":
            await self._survey(batch, path)
        journal = await asyncio.to_thread(Journal, self._folder / batch.id, resume=True, overwrite=False)
        sink = _Sink(journal, batch, self._files)
        try:
            if batch.outcome is None:
                await self._decide(batch, await self._answer(batch, path, journal, sink))
            made = await asyncio.to_thread(self._publish, batch, path, journal)
        finally:
            sink.close()
        for file in made:
            self._files.known(file)
        if batch.outcome == "expired":
            batch.failed = batch.total - batch.completed
        batch.enter(batch.outcome or "failed")
        await self._save(batch)
        journal.path.unlink(missing_ok=True)

    async def _survey(self, batch: BatchRecord, path: Path) -> None:
        try:
            batch.total = await asyncio.to_thread(count_rows, path, batch.endpoint, self._files.limits.max_rows)
        except Unfit as unfit:
            batch.errors = unfit.faults
            await self._decide(batch, "failed")
        except BatchError as error:
            await self._decide(batch, _unreadable(batch, error))
        else:
            if batch.status == "validating":  # and not cancelled meanwhile
                batch.enter("in_progress")
                await self._save(batch)

    async def _decide(self, batch: BatchRecord, outcome: Outcome) -> None:
        """How it ends is certain from here on, and the names of its files."""
        batch.outcome = outcome
        batch.output_file_id, batch.error_file_id = new_id("file-"), new_id("file-")
        if outcome == "completed":
            batch.enter("finalizing")
        await self._save(batch)

    async def _answer(self, batch: BatchRecord, path: Path, journal: Journal, sink: _Sink) -> Outcome:
        """Answer what has no answer yet, until all have one, it is cancelled or its time is over."""
        if batch.status == "cancelling":
            return "cancelled"
        info, stop = self._llm.info, self._stops[batch.id]
        plan = JobPlan(
            form="openai",
            ordered=False,
            seed=int.from_bytes(hashlib.blake2b(batch.id.encode(), digest_size=8).digest()),  # over restarts the same
            salt=self._salt_of(batch.owner) or "",
            priority=LOWEST,
        )
        try:
            source = open_source(path, "jsonl")
            facts = {"input": digest_of(path), "model": info.served_names[0], "fingerprint": info.fingerprint}
        except (BatchError, OSError) as error:
            return _unreadable(batch, error)
        try:
            journal.describe(facts)
        except BatchError as error:
            source.close()
            batch.errors = [fault("another_job", str(error))]
            return "failed"
        run = BatchRun(self._llm, plan, sink, Tally(), self._lane)
        tasks: list[asyncio.Task[Any]] = []
        try:
            tasks = [asyncio.create_task(run.run(source.rows)), asyncio.create_task(stop.wait())]
            left_s = batch.expires_at - time.time()
            done, _ = await asyncio.wait(tasks, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED)
            if tasks[0] in done:
                tasks[0].result()
                return "completed"
            if tasks[1] in done:
                return "cancelled"
            return "completed" if journal.num_done == batch.total else "expired"
        except InvalidRequest as error:  # no room for its answers
            batch.errors = [fault(error.code or error.type, str(error), error.param)]
            return "failed"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            source.close()

    def _publish(self, batch: BatchRecord, path: Path, journal: Journal) -> list[StoredFile]:
        """Make the files of what there is, each as often as the server ends while it does so. Takes long."""
        made = []
        answers = (record for record in journal.records() if record.status == 200)
        failures = (record for record in journal.records() if record.status != 200)
        late = _late(batch, path, journal) if batch.outcome == "expired" else iter(())
        for name, records in (("output", answers), ("error", itertools.chain(failures, late))):
            first = next(records, None)
            if first is None:
                setattr(batch, f"{name}_file_id", None)
                continue
            file_id = getattr(batch, f"{name}_file_id")
            filename = f"{batch.id}_{name}.jsonl"
            made.append(self._files.write(file_id, batch.owner, filename, itertools.chain((first,), records)))
        return made


def _unreadable(batch: BatchRecord, error: Exception) -> Outcome:
    """The end of a batch whose input is gone. What its client is told holds no path of this machine."""
    log.error("the input of batch %s cannot be read: %s", batch.id, error)
    batch.errors = [fault("input_unreadable", "the server cannot read the batch's input, its log says why")]
    return "failed"


def _late(batch: BatchRecord, path: Path, journal: Journal) -> Iterator[Record]:
    """The rows that an expired batch has not come to, which count as failed."""
    source = open_source(path, "jsonl")
    try:
        for raw in source.rows:
            if not journal.has(raw.number):
                yield out_of_time(read_row(raw, {}, "openai"))
    finally:
        source.close()
