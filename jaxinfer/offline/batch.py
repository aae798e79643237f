"""A job on files: opened and checked before a model is loaded, run over one, published as a whole file at the end."""

import asyncio
import contextlib
import dataclasses
import itertools
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from jaxinfer.config import counted
from jaxinfer.errors import ConfigError
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.offline.formats import (
    Source,
    check_output,
    count_statuses,
    digest_of,
    open_source,
    stream_source,
    write_output,
)
from jaxinfer.offline.job import BatchRun, JobPlan
from jaxinfer.offline.journal import Journal
from jaxinfer.offline.names import Format, check_stream, format_of
from jaxinfer.offline.records import Record
from jaxinfer.offline.rows import Form, Raw, form_of
from jaxinfer.offline.tally import Tally

PIPE = "-"
_LOOKED_AT = 1000  # rows read, at most, to find one that tells the form


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchJob:
    """A job as it is asked for. input, output: files, or "-" for a pipe of JSONL.    input_format, output_format: None
    is what the file's name ends in.    ordered: answers in the order of the rows.    resume: go on with what an earlier
    run left.    overwrite: replace the output and what an earlier run left.    The rest: as in Plan.
    """

    input: str
    output: str
    input_format: str | None = None
    output_format: str | None = None
    ordered: bool = True
    window: int | None = None
    resume: bool = False
    overwrite: bool = False
    seed: int = 0
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)

    def check(self) -> tuple[Format, Format]:
        """The formats of input and output. Raises ConfigError for what contradicts itself."""
        formats = (
            format_of(self.input, self.input_format, "--input-format"),
            format_of(self.output, self.output_format, "--output-format"),
        )
        if self.resume and self.overwrite:
            cure = "drop one: --resume alone goes on with a job that --overwrite began"
            raise ConfigError(f"a job is resumed or begun anew, got --resume and --overwrite; {cure}")
        if self.resume and PIPE in (self.input, self.output):
            raise ConfigError("--resume needs files for input and output, got a pipe; name both")
        if self.window is not None and self.window < 1:
            raise ConfigError(f"--window must be at least 1, got {self.window}; leave it out for its default")
        if self.output == PIPE:
            check_stream(formats[1], "-o -")
        if PIPE not in (self.input, self.output) and Path(self.input).resolve() == Path(self.output).resolve():
            law = "the output must be another file than the input"
            raise ConfigError(f"{law}, got {self.output!r} for both; name another with -o")
        return formats


class _Pipe:
    """Records straight to a stream: nothing to resume."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def has(self, number: int) -> bool:
        return False

    def put(self, record: Record) -> None:
        self._stream.write(record.line + b"\n")
        self._stream.flush()


class OpenBatch:
    """A job whose files are open. Invariant: nobody else writes to its output."""

    def __init__(
        self, batch: BatchJob, source: Source, journal: Journal | None, output_format: Format, form: Form
    ) -> None:
        self.batch = batch
        self.journal = journal
        self.tally = Tally()
        self._source = source
        self._output_format = output_format
        self._form = form
        if journal is not None:
            self.tally.num_before, self.tally.num_errors_before = journal.num_done, journal.num_errors
            if journal.num_cut_bytes:
                size = counted(journal.num_cut_bytes, "byte")
                self.tally.notes.append(f"repaired by a cut of {size} behind the last whole line of {journal.path}")
            if lines := journal.damaged_lines:
                alone = len(lines) == 1
                what = f"line {lines[0]:,}" if alone else f"{len(lines):,} lines, the first line {lines[0]:,},"
                cure = f"what only {'it' if alone else 'they'} had was answered anew"
                lost = f"{what} of {journal.path} had no whole answer; {cure}"
                self.tally.notes.append(f"damaged  {lost}")

    @property
    def is_finished(self) -> bool:
        """Whether an earlier run has finished the job, so that there is nothing to do."""
        return self.journal is not None and self.batch.resume and self.journal.is_finished

    def look_back(self) -> None:
        """Count what the finished job has answered: its verdict is still its verdict. Raises BatchError."""
        statuses = count_statuses(Path(self.batch.output), self._output_format)
        self.tally.num_before = statuses.total()
        self.tally.num_errors_before = statuses.total() - statuses[200]

    async def run(self, llm: AsyncLLM) -> None:
        """Answer every row that has no answer yet. What is answered survives the end of this process at any moment."""
        batch, sink = self.batch, self.journal or _Pipe(sys.stdout.buffer)
        if self.journal is not None:
            self.journal.describe(self._facts(llm))
        plan = JobPlan(
            form=self._form, ordered=batch.ordered, window=batch.window, seed=batch.seed, defaults=batch.defaults
        )
        self.tally.began_s = time.monotonic()
        await BatchRun(llm, plan, sink, self.tally).run(self._source.rows)

    def publish(self) -> None:
        """Make the output of all answers. Raises BatchError, and nothing is lost."""
        if self.journal is not None:
            write_output(self.journal.records(), self.journal.output, self._output_format)
            self.journal.remove()

    def progress(self) -> str:
        return self.tally.progress(self._source.share())

    def _facts(self, llm: AsyncLLM) -> dict[str, Any]:
        """What must not change between the runs of one job."""
        batch = self.batch
        return {
            "input": None if batch.input == PIPE else digest_of(Path(batch.input)),
            "form": self._form,
            "ordered": batch.ordered,
            "seed": batch.seed,
            "defaults": batch.defaults,
            "model": llm.info.served_names[0],
            "fingerprint": llm.info.fingerprint,
        }


@contextlib.contextmanager
def open_batch(batch: BatchJob) -> Iterator[OpenBatch]:
    """Open the files of a job. Raises ConfigError or BatchError."""
    input_format, output_format = batch.check()
    with contextlib.ExitStack() as stack:
        if batch.input == PIPE:
            source = stream_source(sys.stdin.buffer, input_format)
        else:
            source = open_source(Path(batch.input), input_format)
        stack.callback(source.close)
        journal = None
        if batch.output != PIPE:
            check_output(Path(batch.output), output_format)
            journal = Journal(Path(batch.output), resume=batch.resume, overwrite=batch.overwrite)
            stack.callback(journal.close)
        is_table = output_format in ("csv", "parquet")
        rows, form = _look(source.rows)
        source = dataclasses.replace(source, rows=rows)
        yield OpenBatch(batch, source, journal, output_format, "plain" if is_table else form)


def _look(rows: Iterator[Raw]) -> tuple[Iterator[Raw], Form]:
    """The rows, and the form of the first that can be read."""
    seen: list[Raw] = []
    for raw in itertools.islice(rows, _LOOKED_AT):
        seen.append(raw)
        if (form := form_of(raw)) is not None:
            return itertools.chain(seen, rows), form
    return itertools.chain(seen, rows), "plain"


async def with_progress(work: Awaitable[None], tell: Callable[[], None], pause_s: Callable[[float], float]) -> None:
    """Do the work; tell of it until it ends.    pause_s: until it is told again, of the seconds since it began."""

    async def go_on() -> None:
        began_s = time.monotonic()
        while True:
            await asyncio.sleep(pause_s(time.monotonic() - began_s))
            tell()

    teller = asyncio.create_task(go_on())
    try:
        await work
    finally:
        teller.cancel()
